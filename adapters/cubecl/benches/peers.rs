//! Allocators of other kinds beside this one, on the same workloads in the same run.
//!
//! ```sh
//! cargo bench -p ascend-alloc-cubecl --bench peers
//! ```
//!
//! | peer | what it is |
//! |---|---|
//! | ascend-alloc | `DeviceAllocator` on the simulated device |
//! | cubecl | its own memory management in its default configuration, over blocks of the same simulated device |
//! | offset-allocator | no more than numbers: places in one range, without lock, streams or driver; a bare lower layer |
//! | malloc | the C library's, for memory of the host; the floor for small blocks. Large ones it takes from the kernel each time |
//!
//! Nobody touches the memory. Uses on other streams are told to ours and cost it time; the others know no streams.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr};
use ascend_alloc_cli::meter::Counting;
use ascend_alloc_cli::trace::{Event, Trace};
use ascend_sim::{BackingMode, Sim, SimConfig};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use cubecl_server::memory_management::ManagedMemoryHandle;

#[allow(dead_code, reason = "the example compares more ways")]
#[path = "../examples/compare/ways.rs"]
mod ways;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Memory of the device, bytes.
const DEVICE: u64 = 256 << 30;
/// Blocks that are live beside the ones measured, about 55 GiB.
const OTHERS: usize = 10_000;
/// Sizes of pairs.
const SIZES: [(&str, u64); 4] =
    [("512 B", 512), ("64 KiB", 64 * KIB), ("2 MiB", 2 * MIB), ("20 MiB", 20 * MIB)];
/// Allocations in the sequence of mixed sizes, places for them (half are full on average) and different sizes.
const MIXED: usize = 1_000;
const PLACES: usize = 64;
const KINDS: usize = 48;
/// Passes over a sequence before the first that is measured.
const SETTLING: u32 = 3;

/// Whoever hands out memory.
trait Peer {
    type Block;

    fn allocate(&mut self, stream: u16, bytes: u64) -> Self::Block;

    fn free(&mut self, block: Self::Block);

    /// Work on another stream uses the block.
    fn record(&mut self, _block: &Self::Block, _stream: u16) {}
}

struct Ours {
    allocator: DeviceAllocator,
    streams: Vec<Stream>,
}

impl Ours {
    fn new(streams: usize) -> Self {
        let sim = Sim::new(SimConfig {
            capacity: DEVICE,
            backing: BackingMode::MetadataOnly,
            checker: false,
            check_mapped: false,
            ..SimConfig::default()
        });
        let more = (1..streams).map(|_| Stream(sim.executor().create_stream(0).expect("a stream")));
        let streams = std::iter::once(Stream(0)).chain(more).collect();
        let driver = Arc::new(SimDriver::new(sim.clone()));
        Self { allocator: DeviceAllocator::new(Config::default(), driver).expect("an allocator"), streams }
    }
}

impl Peer for Ours {
    type Block = DevicePtr;

    #[inline]
    fn allocate(&mut self, stream: u16, bytes: u64) -> DevicePtr {
        let stream = self.streams[usize::from(stream)];
        self.allocator.allocate(0, bytes, 0, stream).expect("there is memory")
    }

    #[inline]
    fn free(&mut self, block: DevicePtr) {
        self.allocator.deallocate(block).expect("the block is live");
    }

    #[inline]
    fn record(&mut self, block: &DevicePtr, stream: u16) {
        self.allocator.record_stream(*block, self.streams[usize::from(stream)]).expect("the block is live");
    }
}

struct Cubecl(Box<dyn ways::Memory>);

impl Cubecl {
    /// One management for each stream of the trace, as in cubecl's servers.
    fn new(trace: &Trace) -> Self {
        let own = &ways::WAYS[0];
        assert!(own.name.contains("default"), "{}", own.name);
        Self((own.counting)(trace, DEVICE, Counting::default()).expect("cubecl's memory management"))
    }
}

impl Peer for Cubecl {
    type Block = ManagedMemoryHandle;

    fn allocate(&mut self, stream: u16, bytes: u64) -> ManagedMemoryHandle {
        self.0.reserve(stream, bytes).unwrap_or_else(|error| panic!("{bytes} bytes: {error:?}"))
    }

    /// A dropped handle is a free block.
    fn free(&mut self, block: ManagedMemoryHandle) {
        drop(block);
    }
}

/// Places in units of 512 bytes.
struct Offsets(offset_allocator::Allocator);

impl Offsets {
    const UNIT: u64 = 512;

    fn new() -> Self {
        Self(offset_allocator::Allocator::new((DEVICE / Self::UNIT) as u32))
    }
}

impl Peer for Offsets {
    type Block = offset_allocator::Allocation;

    #[inline]
    fn allocate(&mut self, _stream: u16, bytes: u64) -> Self::Block {
        self.0.allocate(bytes.div_ceil(Self::UNIT).max(1) as u32).expect("there is room")
    }

    #[inline]
    fn free(&mut self, block: Self::Block) {
        self.0.free(block);
    }
}

struct Malloc;

impl Peer for Malloc {
    type Block = (*mut u8, Layout);

    #[inline]
    fn allocate(&mut self, _stream: u16, bytes: u64) -> Self::Block {
        let layout = Layout::from_size_align(bytes.max(1) as usize, 16).expect("a size that can be");
        // SAFETY: the layout has at least one byte.
        let address = unsafe { System.alloc(layout) };
        assert!(!address.is_null(), "the kernel gives no {bytes} bytes");
        (address, layout)
    }

    #[inline]
    fn free(&mut self, (address, layout): Self::Block) {
        // SAFETY: it comes from `allocate` with this layout, and a block is freed once because it is moved here.
        unsafe { System.dealloc(address, layout) };
    }
}

/// Calls to make, in blocks by number.
struct Sequence {
    events: Vec<Event>,
    blocks: usize,
}

impl Sequence {
    /// Allocations and frees of many sizes, in no order.
    fn mixed() -> Self {
        let mut random = fastrand::Rng::with_seed(11);
        let kinds: Vec<u64> = (0..KINDS).map(|_| log_uniform(&mut random)).collect();
        let mut full = [false; PLACES];
        let (mut events, mut left) = (Vec::new(), MIXED);
        while left > 0 {
            let block = random.u32(..PLACES as u32);
            let is_full = &mut full[block as usize];
            *is_full = !*is_full;
            if *is_full {
                events.push(Event::Allocate { block, stream: 0, bytes: kinds[random.usize(..KINDS)] });
                left -= 1;
            } else {
                events.push(Event::Free { block });
            }
        }
        Self { events, blocks: PLACES }
    }

    fn of_trace(trace: Trace) -> Self {
        let events = trace.events.into_iter().filter(Event::is_call).collect();
        Self { events, blocks: trace.blocks }
    }

    /// Allocations and frees.
    fn operations(&self) -> u64 {
        2 * self.events.iter().filter(|event| matches!(event, Event::Allocate { .. })).count() as u64
    }

    /// Makes all calls; what is left live is freed.
    fn play<P: Peer>(&self, peer: &mut P, live: &mut Vec<Option<P::Block>>) {
        live.resize_with(self.blocks, || None);
        for event in &self.events {
            match *event {
                Event::Allocate { block, stream, bytes } => {
                    live[block as usize] = Some(peer.allocate(stream, bytes));
                }
                Event::Free { block } => {
                    if let Some(block) = live[block as usize].take() {
                        peer.free(block);
                    }
                }
                Event::Record { block, stream } => {
                    if let Some(block) = &live[block as usize] {
                        peer.record(block, stream);
                    }
                }
                Event::Synchronize { .. } | Event::Marker { .. } => {}
            }
        }
        live.iter_mut().filter_map(Option::take).for_each(|block| peer.free(block));
    }
}

/// A size between 512 B and 64 MiB whose logarithm is uniform.
fn log_uniform(random: &mut fastrand::Rng) -> u64 {
    let (low, high) = (512f64.ln(), (64.0 * MIB as f64).ln());
    (low + random.f64() * (high - low)).exp() as u64
}

fn trace(name: &str) -> Trace {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../traces/{name}.trace.zst"));
    Trace::open(&file).expect("the trace is in the repository")
}

/// Pairs of each size, and the mixed sequence, with other blocks live.
fn beside_others<P: Peer>(criterion: &mut Criterion, name: &str, peer: &mut P) {
    let mut random = fastrand::Rng::with_seed(7);
    let others: Vec<P::Block> = (0..OTHERS).map(|_| peer.allocate(0, log_uniform(&mut random))).collect();
    for (size, bytes) in SIZES {
        let mut group = group(criterion, &format!("pair of {size}"), 1);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let block = peer.allocate(0, black_box(bytes));
                peer.free(black_box(block));
            });
        });
    }
    play(criterion, "mixed sizes", name, &Sequence::mixed(), peer);
    others.into_iter().for_each(|block| peer.free(block));
}

/// A sequence, played until everything is at hand before it is measured.
fn play<P: Peer>(criterion: &mut Criterion, what: &str, name: &str, sequence: &Sequence, peer: &mut P) {
    let mut live = Vec::new();
    (0..SETTLING).for_each(|_| sequence.play(peer, &mut live));
    let mut group = group(criterion, what, sequence.operations());
    group.bench_function(name, |bencher| bencher.iter(|| sequence.play(peer, &mut live)));
}

fn group<'a>(criterion: &'a mut Criterion, name: &str, elements: u64) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(elements));
    group.sample_size(20).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_millis(1000));
    group
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let first = trace("T0");
    beside_others(&mut criterion, "ascend-alloc", &mut Ours::new(1));
    beside_others(&mut criterion, "cubecl", &mut Cubecl::new(&first));
    beside_others(&mut criterion, "offset-allocator", &mut Offsets::new());
    beside_others(&mut criterion, "malloc", &mut Malloc);
    for name in ["T0", "T1"] {
        let trace = trace(name);
        let (streams, mut cubecl) = (trace.streams.len(), Cubecl::new(&trace));
        let sequence = Sequence::of_trace(trace);
        let what = format!("{name}, {} operations", sequence.operations());
        play(&mut criterion, &what, "ascend-alloc", &sequence, &mut Ours::new(streams));
        play(&mut criterion, &what, "cubecl", &sequence, &mut cubecl);
        play(&mut criterion, &what, "offset-allocator", &sequence, &mut Offsets::new());
        play(&mut criterion, &what, "malloc", &sequence, &mut Malloc);
    }
    criterion.final_summary();
}
