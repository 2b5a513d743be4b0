//! Random programs against a shadow, the heap checker, and the machine's use checker; and threads.
//!
//! Every program is made from a seed. A failure prints the seed and what the program did.
//! `ASCEND_ALLOC_SEED=N` runs one seed alone, `ASCEND_ALLOC_PROGRAMS=N` runs N times as many.

mod common;

use std::sync::Arc;
use std::sync::Barrier;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, Error};
use ascend_sim::exec::EVENT_SYNC;
use ascend_sim::{BackingMode, ExecMode, Sim, SimConfig, Task};
use common::program::{Flavor, run};
use common::{G, K, M, assert_nothing_left};

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs so many programs of a flavor, or the one the environment names.
fn programs(first: u64, count: u64, flavor: impl Fn(u64) -> Flavor) {
    let more = number("ASCEND_ALLOC_PROGRAMS").unwrap_or(1);
    let seeds = match number("ASCEND_ALLOC_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + count * more,
    };
    for seed in seeds {
        run(seed, flavor(seed));
    }
}

fn flavor(seed: u64) -> Flavor {
    let devices = if seed.is_multiple_of(4) { 2 } else { 1 };
    let operations = if seed.is_multiple_of(16) { 150 } else { 35 };
    Flavor { expandable: true, faults: false, mortal: false, devices, operations, pools: false }
}

#[test]
fn chunks() {
    programs(0, 220, flavor);
}

#[test]
fn chunks_and_streams_that_end() {
    programs(1_000_000, 200, |seed| Flavor { mortal: true, ..flavor(seed) });
}

#[test]
fn chunks_and_failing_calls() {
    programs(2_000_000, 220, |seed| Flavor { faults: true, mortal: true, ..flavor(seed) });
}

#[test]
fn pools_captures_and_sleep() {
    programs(5_000_000, 120, |seed| Flavor { pools: true, mortal: true, ..flavor(seed) });
}

#[test]
fn pools_captures_sleep_and_failing_calls() {
    programs(6_000_000, 120, |seed| Flavor { pools: true, faults: true, mortal: true, ..flavor(seed) });
}

#[test]
fn pools_of_classic_segments() {
    programs(7_000_000, 60, |seed| Flavor { pools: true, expandable: false, mortal: true, ..flavor(seed) });
}

#[test]
fn classic_segments() {
    programs(3_000_000, 180, |seed| Flavor { expandable: false, mortal: true, ..flavor(seed) });
}

#[test]
fn classic_segments_and_failing_calls() {
    programs(4_000_000, 180, |seed| Flavor { expandable: false, faults: true, mortal: true, ..flavor(seed) });
}

/// What a thread did, in the words of the statistics.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    allocations: i64,
    frees: i64,
    allocated: i64,
    freed: i64,
}

/// One thread's share: blocks of its own stream, some used on the next stream too, some handed to the next
/// thread to be freed there.
fn hammer(
    alloc: &DeviceAllocator,
    sim: &Sim,
    streams: [Stream; 2],
    seed: u64,
    operations: usize,
    give: &std::sync::mpsc::Sender<(DevicePtr, u64)>,
    take: &std::sync::mpsc::Receiver<(DevicePtr, u64)>,
) -> (Done, Vec<DevicePtr>) {
    let [stream, next] = streams;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut done = Done::default();
    let mut live: Vec<(DevicePtr, u64)> = Vec::new();
    sim.set_device(0).expect("a device");
    let free = |(ptr, bytes): (DevicePtr, u64), done: &mut Done| {
        alloc.deallocate(ptr).expect("freed");
        done.frees += 1;
        done.freed += bytes as i64;
    };
    for operation in 0..operations {
        let tag = (seed << 32) | (operation as u64 + 1);
        match rng.u8(..20) {
            0..10 => {
                let size = [rng.u64(1..4 * K), 3000, 64 * K, rng.u64(M..4 * M), 2 * M][rng.usize(..5)];
                let ptr = match alloc.allocate(0, size, 0, stream) {
                    Ok(ptr) => ptr,
                    // Memory another thread is moving at this moment serves nobody.
                    Err(Error::OutOfMemory(_)) => {
                        live.pop().into_iter().for_each(|block| free(block, &mut done));
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                };
                let bytes = alloc.block_info(ptr).expect("live").bytes;
                // One task for the whole life: whoever gets the memory next must come behind it.
                sim.submit(stream.0, Task::new("use").writes(ptr.0, size, tag)).expect("queued");
                if rng.u8(..16) == 0 {
                    order(sim, stream, next);
                    sim.submit(next.0, Task::new("shared").writes(ptr.0, size, tag)).expect("queued");
                    alloc.record_stream(ptr, next).expect("recorded");
                }
                done.allocations += 1;
                done.allocated += bytes as i64;
                live.push((ptr, bytes));
            }
            10..16 if !live.is_empty() => {
                let block = live.swap_remove(rng.usize(..live.len()));
                if rng.u8(..8) == 0 {
                    give.send(block).expect("somebody takes");
                } else {
                    free(block, &mut done);
                }
            }
            17 => {
                while let Ok(block) = take.try_recv() {
                    free(block, &mut done);
                }
            }
            16 => sim.tick(1),
            18 if rng.u8(..16) == 0 => _ = alloc.trim(0, 8 * M).expect("trimmed"),
            19 if rng.u8(..32) == 0 => _ = alloc.stats(0).expect("statistics"),
            _ => {}
        }
        if live.len() > 60 {
            free(live.swap_remove(0), &mut done);
        }
    }
    (done, live.into_iter().map(|(ptr, _)| ptr).collect())
}

/// Lets a stream wait on the device for what another has queued.
fn order(sim: &Sim, first: Stream, then: Stream) {
    let exec = sim.executor();
    let event = exec.create_event(0, EVENT_SYNC, true).expect("an event");
    exec.record_event(0, event, first.0).expect("recorded");
    exec.stream_wait_event(0, then.0, event).expect("waits");
    exec.destroy_event(event).expect("destroyed");
}

/// Four threads on four streams, one allocator. Afterwards the books are exact.
fn four_threads(conf: Config, capacity: u64, exec_mode: ExecMode, lag: u64, operations: usize) {
    for round in 0..number("ASCEND_ALLOC_PROGRAMS").unwrap_or(1) {
        four_threads_once(conf.clone(), capacity, exec_mode, lag, operations, 1 + 4 * round);
    }
}

fn four_threads_once(
    conf: Config,
    capacity: u64,
    exec_mode: ExecMode,
    lag: u64,
    operations: usize,
    first_seed: u64,
) {
    const THREADS: usize = 4;
    let backing = BackingMode::MetadataOnly;
    let sim = Sim::new(SimConfig { capacity, backing, exec_mode, lag, ..SimConfig::default() });
    let alloc = DeviceAllocator::new(conf, Arc::new(SimDriver::new(sim.clone()))).expect("an allocator");
    let mut gives = Vec::new();
    let mut takes = Vec::new();
    for _ in 0..THREADS {
        let (give, take) = std::sync::mpsc::channel();
        gives.push(give);
        takes.push(take);
    }
    gives.rotate_left(1);
    let create = || Stream(sim.on_device(0, || sim.create_stream()).unwrap().expect("a stream"));
    let streams: [Stream; THREADS] = core::array::from_fn(|_| create());
    let barrier = Barrier::new(THREADS);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = gives
            .into_iter()
            .zip(takes)
            .enumerate()
            .map(|(number, (give, take))| {
                let streams = [streams[number], streams[(number + 1) % THREADS]];
                let (alloc, sim, barrier) = (&alloc, &sim, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let (done, live) =
                        hammer(alloc, sim, streams, first_seed + number as u64, operations, &give, &take);
                    barrier.wait();
                    // What the neighbour gave after the last look is live.
                    drop(give);
                    (done, live, take.iter().map(|(ptr, _)| ptr).collect::<Vec<_>>())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    if let Err(faults) = alloc.check() {
        panic!("{faults:#?}");
    }
    let findings = sim.findings();
    assert!(findings.is_empty(), "{findings:#?}");
    let mut sum = Done::default();
    let mut live: Vec<DevicePtr> = Vec::new();
    for (done, own, given) in results {
        sum.allocations += done.allocations;
        sum.frees += done.frees;
        sum.allocated += done.allocated;
        sum.freed += done.freed;
        live.extend(own.into_iter().chain(given));
    }
    let mut bytes = 0;
    let mut ranges: Vec<(u64, u64)> = live
        .iter()
        .map(|&ptr| {
            let info = alloc.block_info(ptr).expect("live");
            bytes += info.bytes as i64;
            (ptr.0, info.bytes)
        })
        .collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "live blocks overlap");
    let stats = alloc.stats(0).expect("statistics");
    let count = stats.allocation.all;
    assert_eq!((count.allocated, count.freed), (sum.allocations, sum.frees));
    assert_eq!(count.current as usize, live.len());
    let allocated = stats.allocated_bytes.all;
    assert_eq!((allocated.allocated, allocated.freed, allocated.current), (sum.allocated, sum.freed, bytes));
    assert!(allocated.peak >= allocated.current && allocated.peak <= capacity as i64);
    assert!(stats.active_bytes.all.current >= bytes);
    assert_eq!(sim.physical_bytes(0), stats.reserved_bytes.all.current as u64 + stats.cached_handles);
    live.iter().for_each(|&ptr| alloc.deallocate(ptr).expect("freed"));
    alloc.empty_cache(None).expect("emptied");
    let stats = alloc.stats(0).expect("statistics");
    let left = [stats.allocated_bytes, stats.active_bytes, stats.requested_bytes, stats.reserved_bytes];
    assert_eq!(left.map(|array| array.all.current), [0; 4]);
    drop(alloc);
    assert_nothing_left(&sim, 1);
}

const SCHEDULED: ExecMode = ExecMode::Deterministic { seed: 1 };

#[test]
fn four_threads_on_chunks() {
    four_threads(Config::default(), 4 * G, SCHEDULED, 0, 30_000);
    four_threads(Config::default(), 4 * G, SCHEDULED, 50, 15_000);
}

#[test]
fn four_threads_on_a_small_device() {
    four_threads(Config::default(), 150 * M, SCHEDULED, 5, 15_000);
    four_threads(Config { expandable_segments: false, ..Config::default() }, 150 * M, SCHEDULED, 5, 10_000);
}

#[test]
fn four_threads_and_work_by_threads() {
    four_threads(Config::default(), 4 * G, ExecMode::Threads, 0, 3000);
    four_threads(Config::default(), 150 * M, ExecMode::Threads, 0, 2000);
}

#[test]
fn four_threads_on_chunks_without_the_front() {
    let conf = Config { front_cache: false, ..Config::default() };
    four_threads(conf, 4 * G, SCHEDULED, 3, 10_000);
}

#[test]
fn four_threads_on_classic_segments() {
    let conf = Config { expandable_segments: false, ..Config::default() };
    four_threads(conf, 4 * G, SCHEDULED, 3, 10_000);
}
