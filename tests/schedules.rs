//! Threads under a scheduler that decides at every lock and every atomic who goes on, at random or with few changes.
//!
//! ```text
//! RUSTFLAGS="--cfg ascend_alloc_shuttle" cargo test --locked --test schedules
//! ```
//!
//! Without that flag this file is empty. `ASCEND_ALLOC_SCHEDULES` sets how many schedules each test plays. A
//! schedule that fails is printed as a text; `shuttle::replay` plays it again.
#![cfg(ascend_alloc_shuttle)]

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, Error, SleepMode};
use ascend_sim::{BackingMode, ExecMode, Sim, SimConfig, Task};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::{MaxSteps, Runner, thread};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
/// Changes of the running thread in the schedules that have few.
const CHANGES: usize = 3;
/// Locks and atomics of one schedule, at most; those of one that ends are far fewer.
const MOST_STEPS: usize = 2_000_000;
/// Stack of a thread, bytes: the simulator and debug builds need more than the default.
const STACK: usize = 4 << 20;

/// One machine, one allocator, and blocks that threads give each other.
struct Bed {
    sim: Sim,
    alloc: DeviceAllocator,
    given: Mutex<Vec<DevicePtr>>,
}

/// Plays a test under random schedules, and under those with few changes.
fn play(test: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules = std::env::var("ASCEND_ALLOC_SCHEDULES").ok();
    let schedules = schedules.map_or(100, |text| text.parse().expect("ASCEND_ALLOC_SCHEDULES is a number"));
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new(CHANGES, schedules), config).run(test);
}

fn bed(capacity: u64, lag: u64) -> Arc<Bed> {
    let (backing, exec_mode) = (BackingMode::MetadataOnly, ExecMode::Deterministic { seed: 1 });
    let sim = Sim::new(SimConfig { capacity, backing, exec_mode, lag, ..SimConfig::default() });
    let conf = Config { check_level: 0, ..Config::default() };
    let alloc = DeviceAllocator::new(conf, Arc::new(SimDriver::new(sim.clone()))).expect("an allocator");
    Arc::new(Bed { sim, alloc, given: Mutex::new(Vec::new()) })
}

impl Bed {
    fn stream(&self) -> Stream {
        Stream(self.sim.on_device(0, || self.sim.create_stream()).expect("a device").expect("a stream"))
    }

    /// Work on `stream` that writes a block.
    fn write(&self, stream: Stream, ptr: DevicePtr) {
        let bytes = self.alloc.block_info(ptr).expect("live").bytes;
        let task = Task::new("write").writes(ptr.0, bytes, 1);
        self.sim.on_device(0, || self.sim.submit(stream.0, task)).expect("a device").expect("queued");
    }

    /// Everything is given back, and the books are exact. The heap checker is not called: it reads millions of
    /// atomics, and `tests/core_model.rs` runs it after threads.
    fn close(self: Arc<Self>) {
        let bed = Arc::into_inner(self).expect("all threads have ended");
        for ptr in bed.given.into_inner().expect("not poisoned") {
            bed.alloc.deallocate(ptr).expect("freed");
        }
        bed.alloc.empty_cache(None).expect("emptied");
        let stats = bed.alloc.stats(0).expect("statistics");
        let left = [stats.allocated_bytes, stats.active_bytes, stats.requested_bytes, stats.reserved_bytes];
        assert_eq!(left.map(|array| array.all.current), [0; 4]);
        let count = stats.allocation.all;
        assert_eq!(count.allocated, count.freed);
        drop(bed.alloc);
        assert!(bed.sim.findings().is_empty(), "{:#?}", bed.sim.findings());
        assert_eq!(bed.sim.physical_bytes(0), 0);
        assert_eq!((bed.sim.mapping_count(), bed.sim.reserved_bytes()), (0, 0));
    }
}

/// What one thread does: blocks of a few sizes, used on two streams, freed by whoever gets them.
fn hammer(bed: &Bed, [own, next]: [Stream; 2], sizes: &[u64], operations: usize) {
    let mut live = Vec::new();
    for _ in 0..operations {
        match thread_rng().gen_range(0..12) {
            0..5 => {
                let bytes = sizes[thread_rng().gen_range(0..sizes.len())];
                match bed.alloc.allocate(0, bytes, 0, own) {
                    Ok(ptr) => {
                        bed.write(own, ptr);
                        live.push(ptr);
                    }
                    Err(Error::OutOfMemory(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            5 => {
                if let Some(&ptr) = live.last() {
                    order(&bed.sim, own, next);
                    bed.write(next, ptr);
                    bed.alloc.record_stream(ptr, next).expect("recorded");
                }
            }
            6..9 => {
                if let Some(ptr) = live.pop() {
                    bed.alloc.deallocate(ptr).expect("freed");
                }
            }
            9 => bed.given.lock().expect("not poisoned").extend(live.pop()),
            10 => {
                let given = bed.given.lock().expect("not poisoned").pop();
                if let Some(ptr) = given {
                    bed.alloc.deallocate(ptr).expect("freed");
                }
            }
            _ => match thread_rng().gen_range(0..4) {
                0 => _ = bed.alloc.trim(0, 2 * M).expect("trimmed"),
                1 => bed.alloc.empty_cache(Some(0)).expect("emptied"),
                2 => _ = bed.alloc.stats(0).expect("statistics"),
                _ => bed.sim.tick(1),
            },
        }
    }
    live.into_iter().for_each(|ptr| bed.alloc.deallocate(ptr).expect("freed"));
}

/// Lets a stream wait on the device for what another has queued.
fn order(sim: &Sim, first: Stream, then: Stream) {
    let exec = sim.executor();
    let event = exec.create_event(0, 1, true).expect("an event");
    exec.record_event(0, event, first.0).expect("recorded");
    exec.stream_wait_event(0, then.0, event).expect("waits");
    exec.destroy_event(event).expect("destroyed");
}

fn threads(capacity: u64, lag: u64, sizes: &'static [u64], operations: usize) {
    let bed = bed(capacity, lag);
    let streams = [bed.stream(), bed.stream(), bed.stream()];
    let threads = [0, 1, 2].map(|number| {
        let (bed, streams) = (bed.clone(), [streams[number], streams[(number + 1) % 3]]);
        thread::spawn(move || hammer(&bed, streams, sizes, operations))
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    bed.close();
}

#[test]
fn blocks_of_few_sizes_on_three_streams() {
    play(|| threads(1024 * M, 3, &[512, 512, 3 * M], 12));
}

#[test]
fn three_threads_on_a_device_that_is_too_small() {
    play(|| threads(8 * M, 2, &[512, 2 * M, 3 * M, 5 * M], 10));
}

/// Two requests of half the device each succeed, whoever maps first and whoever frees what was there.
#[test]
fn two_threads_that_need_memory_at_once_both_get_it() {
    play(|| {
        let bed = bed(16 * M, 0);
        let streams = [bed.stream(), bed.stream(), bed.stream()];
        for bytes in [6 * M, 6 * M, 512 * K] {
            let ptr = bed.alloc.allocate(0, bytes, 0, streams[2]).expect("there is room");
            bed.alloc.deallocate(ptr).expect("freed");
        }
        let threads = [0, 1].map(|number| {
            let (bed, stream) = (bed.clone(), streams[number]);
            thread::spawn(move || bed.alloc.allocate(0, 7 * M, 0, stream).expect("the sum fits"))
        });
        let blocks = threads.map(|thread| thread.join().expect("no panic"));
        bed.given.lock().expect("not poisoned").extend(blocks);
        bed.close();
    });
}

/// A pool goes to sleep and wakes while another thread allocates and frees in it: each answer is defined.
#[test]
fn a_pool_sleeps_while_others_use_it() {
    play(|| {
        let bed = bed(64 * M, 0);
        let stream = bed.stream();
        let pool = bed.alloc.create_pool(0, ascend_alloc::PoolOptions::tagged("t"));
        let pool = pool.expect("a pool");
        let user = {
            let bed = bed.clone();
            thread::spawn(move || {
                for _ in 0..4 {
                    match bed.alloc.allocate_in(pool, 3 * M, 0, stream) {
                        Ok(ptr) => bed.alloc.deallocate(ptr).expect("freed"),
                        Err(Error::State { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        };
        bed.alloc.sleep(None, &["t"], SleepMode::Discard).expect("sleeps");
        bed.alloc.wake(None, &["t"]).expect("wakes");
        user.join().expect("no panic");
        bed.alloc.release_pool(pool).expect("released");
        bed.close();
    });
}
