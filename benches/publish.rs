//! Whether publishing metrics once a second slows the pair down, and what one publication takes.
//!
//! Stretches of time with and without the timer take turns; in each as many pairs are made as fit. What counts is
//! the CPU time of the whole process, so the timer's own thread is in it, and other programs on the machine are
//! not. A recorder that keeps all values is installed, since without one publishing does next to nothing.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_sim::{BackingMode, Sim, SimConfig};
use metrics_util::debugging::DebuggingRecorder;
use rustix::time::{ClockId, clock_gettime};

mod common;

use common::{CAPACITY, DEVICE, OTHERS, log_uniform};

/// Stretches of each kind.
const TURNS: usize = 15;
/// How long one is: three publications, the first with a look at each block.
const STRETCH: Duration = Duration::from_millis(3_100);
/// Pairs between two looks at the clock.
const BATCH: u32 = 10_000;
/// Publications that are timed one by one.
const SINGLE: usize = 101;

fn main() {
    // `cargo test --benches` passes no `--bench`: it only wants to see everything run once.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let (turns, stretch, single) =
        if measure { (TURNS, STRETCH, SINGLE) } else { (1, Duration::from_millis(1), 1) };
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().expect("no other recorder is installed");
    let allocator = Arc::new(crowded());
    // What the recorder keeps of histograms grows until somebody looks.
    let drop_values = || drop(snapshotter.snapshot());

    let mut ratios = Vec::new();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    pairs_for(&allocator, stretch);
    for turn in 0..turns {
        // Which comes first changes, so that what grows or shrinks over time evens out.
        let (plain, published) = if turn % 2 == 0 {
            let plain = pairs_for(&allocator, stretch);
            (plain, published_pairs(&allocator, stretch))
        } else {
            let published = published_pairs(&allocator, stretch);
            (pairs_for(&allocator, stretch), published)
        };
        drop_values();
        without.push(plain);
        with.push(published);
        ratios.push(published / plain);
    }
    println!("a pair of 64 KiB, {OTHERS} other blocks live; median of {turns} turns of {stretch:?} each");
    println!("without publishing   {:>7.2} ns", median(&mut without));
    println!("published each second{:>7.2} ns", median(&mut with));
    let middle = median(&mut ratios);
    let (low, high) = (ratios[ratios.len() / 4], ratios[ratios.len() * 3 / 4]);
    println!("ratio of neighbours  {middle:>7.4}  (half of them between {low:.4} and {high:.4})");
    let statistics = median(&mut times(single, || allocator.publish()));
    drop_values();
    let blocks = median(&mut times(single, || allocator.publish_blocks()));
    drop_values();
    println!("publish()            {:>7.1} us", statistics);
    println!("publish_blocks()     {:>7.1} us", blocks);
}

/// An allocator with other blocks live, as in the pair bench.
fn crowded() -> DeviceAllocator {
    let sim = Sim::new(SimConfig {
        capacity: CAPACITY,
        backing: BackingMode::MetadataOnly,
        checker: false,
        check_mapped: false,
        ..SimConfig::default()
    });
    let allocator = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim))).expect("sound");
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..OTHERS {
        allocator
            .allocate(DEVICE, log_uniform(&mut random), 0, Stream(0))
            .expect("the device is large enough");
    }
    allocator
}

/// CPU nanoseconds of a pair while metrics are published once a second.
fn published_pairs(allocator: &Arc<DeviceAllocator>, stretch: Duration) -> f64 {
    let timer = allocator.publish_every(Duration::from_secs(1)).expect("a thread");
    let nanos = pairs_for(allocator, stretch);
    drop(timer);
    nanos
}

/// CPU nanoseconds of a pair, of those that fit into the stretch.
fn pairs_for(allocator: &DeviceAllocator, stretch: Duration) -> f64 {
    let (start, before) = (Instant::now(), cpu_nanos());
    let mut pairs = 0_u64;
    while start.elapsed() < stretch {
        for _ in 0..BATCH {
            let block =
                allocator.allocate(DEVICE, black_box(64 << 10), 0, Stream(0)).expect("there is memory");
            allocator.deallocate(black_box(block)).expect("the block is live");
        }
        pairs += u64::from(BATCH);
    }
    (cpu_nanos() - before) as f64 / pairs as f64
}

/// CPU time of this process in nanoseconds, all threads together.
fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Microseconds of CPU time, one by one.
fn times(count: usize, mut run: impl FnMut()) -> Vec<f64> {
    let one = |_| {
        let before = cpu_nanos();
        run();
        (cpu_nanos() - before) as f64 / 1e3
    };
    (0..count).map(one).collect()
}

/// The median; the values are in order afterwards.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
