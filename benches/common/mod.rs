//! What all benches stand on: an allocator with other blocks live, and the calls that are measured.
//!
//! ```text
//!  pair, threads ─┐
//!  instructions ──┼─► Bed ─► DeviceAllocator ─► SimDriver (pair, threads) or NullDriver (instructions, test)
//!  hot_path (test)┘
//! ```
//!
//! Everything random comes from a fixed seed, so that runs can be compared.

// Each of them uses a part of this.
#![allow(dead_code, reason = "shared by several targets, each of which uses a part")]

use std::sync::Arc;

use ascend_alloc::driver::{DeviceId, Driver, SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr};
use ascend_sim::{BackingMode, Sim, SimConfig};

pub mod null;
pub mod unit;

/// The device all benches use.
pub const DEVICE: DeviceId = 0;
/// Blocks that are live beside the ones measured.
pub const OTHERS: usize = 10_000;
/// Streams of a bed.
pub const STREAMS: usize = 8;
/// Memory of the device, bytes: the other blocks take about 55 GiB.
pub const CAPACITY: u64 = 256 << 30;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The sizes that pairs are measured with.
pub const SIZES: [(&str, u64); 7] = [
    ("512 B", 512),
    ("4 KiB", 4 * KIB),
    ("64 KiB", 64 * KIB),
    ("1 MiB", MIB),
    ("2 MiB", 2 * MIB),
    ("20 MiB", 20 * MIB),
    ("64 MiB", 64 * MIB),
];

/// An allocator with other blocks live.
pub struct Bed {
    /// The allocator under test.
    pub allocator: DeviceAllocator,
    /// Streams; the first is the default stream.
    pub streams: [Stream; STREAMS],
    /// The second of them.
    pub second: Stream,
    /// The other live blocks.
    pub others: Vec<DevicePtr>,
}

impl Bed {
    /// On the simulator, with [`OTHERS`] live blocks. The device keeps no bytes and runs no work, so
    /// that nothing but the allocator's calls takes time.
    pub fn simulated(config: Config) -> Bed {
        Bed::on_simulator(config, CAPACITY, OTHERS)
    }

    /// The same on a device of 64 GiB, with nothing else live.
    pub fn alone(config: Config) -> Bed {
        Bed::on_simulator(config, 64 << 30, 0)
    }

    fn on_simulator(config: Config, capacity: u64, others: usize) -> Bed {
        let sim = Sim::new(SimConfig {
            capacity,
            backing: BackingMode::MetadataOnly,
            checker: false,
            check_mapped: false,
            ..SimConfig::default()
        });
        let create = |at: usize| match at {
            0 => Stream(0),
            _ => Stream(sim.executor().create_stream(DEVICE).expect("the simulator has streams")),
        };
        let streams = core::array::from_fn(create);
        Bed::on(Arc::new(SimDriver::new(sim)), config, streams, others)
    }

    /// On a driver that does nothing, with `others` live blocks; an event completes when `lag` more
    /// were recorded.
    pub fn null(config: Config, lag: u64, others: usize) -> Bed {
        let streams = core::array::from_fn(|at| Stream(0x1000 * at as u64));
        Bed::on(Arc::new(null::NullDriver::new(CAPACITY, lag)), config, streams, others)
    }

    /// On that driver, with `others` live blocks on the default stream, whose sizes are log-uniform
    /// between 512 B and 64 MiB.
    fn on(driver: Arc<dyn Driver>, config: Config, streams: [Stream; STREAMS], others: usize) -> Bed {
        let allocator = DeviceAllocator::new(config, driver).expect("the configuration is sound");
        let mut random = fastrand::Rng::with_seed(7);
        let others = (0..others)
            .map(|_| {
                let bytes = log_uniform(&mut random);
                allocator.allocate(DEVICE, bytes, 0, Stream(0)).expect("the device is large enough")
            })
            .collect();
        Bed { allocator, streams, second: streams[1], others }
    }

    /// One block of that size allocated and freed on a stream.
    #[inline]
    pub fn pair(&self, bytes: u64, stream: Stream) {
        let block = self.allocator.allocate(DEVICE, bytes, 0, stream).expect("there is memory");
        self.allocator.deallocate(block).expect("the block is live");
    }

    /// As [`pair`](Self::pair) on the default stream, used on the second one in between.
    #[inline]
    pub fn recorded_pair(&self, bytes: u64) {
        self.recorded_pair_on(bytes, Stream(0), self.second);
    }

    /// The same with any two streams.
    #[inline]
    pub fn recorded_pair_on(&self, bytes: u64, stream: Stream, second: Stream) {
        let block = self.allocator.allocate(DEVICE, bytes, 0, stream).expect("there is memory");
        self.allocator.record_stream(block, second).expect("the block is live");
        self.allocator.deallocate(block).expect("the block is live");
    }

    /// `count` pairs of one size on a stream.
    #[inline(never)]
    pub fn pairs(&self, bytes: u64, stream: Stream, count: u32) {
        for _ in 0..count {
            self.pair(bytes, stream);
        }
    }

    /// `count` recorded pairs of one size.
    #[inline(never)]
    pub fn recorded_pairs(&self, bytes: u64, count: u32) {
        self.recorded_pairs_on(bytes, Stream(0), self.second, count);
    }

    /// The same with any two streams.
    #[inline(never)]
    pub fn recorded_pairs_on(&self, bytes: u64, stream: Stream, second: Stream, count: u32) {
        for _ in 0..count {
            self.recorded_pair_on(bytes, stream, second);
        }
    }
}

/// A configuration in which every call goes through the core.
pub fn core_only() -> Config {
    Config { front_cache: false, ..Config::default() }
}

/// Sizes without end, each as [`log_uniform`] draws it.
pub fn sizes(seed: u64) -> impl Iterator<Item = u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || log_uniform(&mut random))
}

/// A size between 512 B and 64 MiB whose logarithm is uniform.
pub fn log_uniform(random: &mut fastrand::Rng) -> u64 {
    let low = 512f64.ln();
    let high = (64.0 * MIB as f64).ln();
    (low + random.f64() * (high - low)).exp() as u64
}

/// A step of a [`Mix`].
#[derive(Clone, Copy)]
enum Step {
    Allocate { place: usize, bytes: u64 },
    Free { place: usize },
}

/// A fixed sequence of allocations and frees of many sizes, in no order, that leaves nothing live.
pub struct Mix {
    steps: Vec<Step>,
    blocks: Vec<DevicePtr>,
}

impl Mix {
    /// Places for blocks, half of which are live on average.
    const PLACES: usize = 64;
    /// Different sizes.
    const KINDS: usize = 48;

    /// A sequence of `pairs` allocations and as many frees.
    pub fn new(pairs: usize) -> Mix {
        let mut random = fastrand::Rng::with_seed(11);
        let kinds: Vec<u64> = (0..Self::KINDS).map(|_| log_uniform(&mut random)).collect();
        let mut full = [false; Self::PLACES];
        let mut steps = Vec::with_capacity(2 * pairs);
        let mut left = pairs;
        while left > 0 {
            let place = random.usize(0..Self::PLACES);
            if full[place] {
                steps.push(Step::Free { place });
            } else {
                steps.push(Step::Allocate { place, bytes: kinds[random.usize(0..Self::KINDS)] });
                left -= 1;
            }
            full[place] = !full[place];
        }
        steps.extend((0..Self::PLACES).filter(|&place| full[place]).map(|place| Step::Free { place }));
        Mix { steps, blocks: vec![DevicePtr::NULL; Self::PLACES] }
    }

    /// Calls made by one [`run`](Self::run).
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Makes the calls on the default stream.
    pub fn run(&mut self, bed: &Bed) {
        self.run_on(bed, Stream(0));
    }

    /// Makes the calls on a stream.
    #[inline(never)]
    pub fn run_on(&mut self, bed: &Bed, stream: Stream) {
        for step in &self.steps {
            match *step {
                Step::Allocate { place, bytes } => {
                    let block = bed.allocator.allocate(DEVICE, bytes, 0, stream);
                    self.blocks[place] = block.expect("there is memory");
                }
                Step::Free { place } => {
                    bed.allocator.deallocate(self.blocks[place]).expect("the block is live");
                }
            }
        }
    }
}
