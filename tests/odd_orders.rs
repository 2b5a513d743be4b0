//! Calls in orders that nobody planned: each has a defined answer, and nothing is left at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{
    Age, Config, DeviceAllocator, EmptyOptions, Error, GrowableBuffer, GrowableOptions, PoolOptions,
    RouteFilter, SleepMode,
};
use ascend_sim::{BackingMode, Sim, SimConfig};

const M: u64 = 1 << 20;
const STREAM: Stream = Stream(0);

fn rig_with(conf: &str, capacity: u64) -> (Sim, Arc<DeviceAllocator>) {
    let config =
        SimConfig { devices: 2, capacity, backing: BackingMode::MetadataOnly, ..SimConfig::default() };
    let sim = Sim::new(config);
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    (sim, Arc::new(DeviceAllocator::new(Config::parse(conf).unwrap(), driver).unwrap()))
}

fn rig() -> (Sim, Arc<DeviceAllocator>) {
    rig_with("check_level:3", 1 << 30)
}

/// Gives everything back and sees that nothing is left.
fn finish(sim: &Sim, allocator: &DeviceAllocator) {
    allocator.empty_cache_with(None, &EmptyOptions { wait: true, ..EmptyOptions::default() }).unwrap();
    allocator.check().unwrap();
    assert_eq!((sim.physical_bytes(0), sim.reserved_bytes()), (0, 0));
    assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"));
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
}

#[test]
fn the_heap_is_checked_while_other_threads_use_the_front() {
    let (sim, allocator) = rig();
    let streams: Vec<Stream> = (0..4).map(|_| Stream(sim.create_stream().unwrap())).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (at, &stream) in streams.iter().enumerate() {
            let (sim, allocator, stop, other) = (&sim, &allocator, &stop, streams[(at + 1) % 4]);
            scope.spawn(move || {
                sim.set_device(0).unwrap();
                let mut round = 0;
                while !stop.load(Relaxed) {
                    round += 1;
                    let bytes = [512, 4096, 3 * M][round % 3];
                    let ptr = allocator.allocate(0, bytes, 0, stream).unwrap();
                    if round % 5 == 0 {
                        allocator.record_stream(ptr, other).unwrap();
                    }
                    allocator.deallocate(ptr).unwrap();
                }
            });
        }
        let faults: Vec<_> = (0..500).filter_map(|_| allocator.check().err()).collect();
        stop.store(true, Relaxed);
        assert!(faults.is_empty(), "{} of 500: {:?}", faults.len(), faults.first());
    });
    finish(&sim, &allocator);
}

#[test]
fn a_pool_is_released_once_whoever_else_holds_it() {
    let (sim, allocator) = rig();
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let route = allocator.route(pool, RouteFilter::All).unwrap();
    let ptr = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    allocator.release_pool(pool).unwrap();
    assert!(matches!(allocator.release_pool(pool), Err(Error::Argument { .. })), "released before");
    let more = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    assert_eq!(allocator.block_info(more).unwrap().pool, pool, "the route holds it");
    allocator.deallocate(ptr).unwrap();
    allocator.deallocate(more).unwrap();
    allocator.empty_cache(None).unwrap();
    let again = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    assert_eq!(allocator.block_info(again).unwrap().pool, pool);
    allocator.deallocate(again).unwrap();
    drop(route);
    finish(&sim, &allocator);
    assert!(allocator.pool_stats(pool).is_err());
}

#[test]
fn a_pool_is_released_while_it_is_captured_into() {
    let (sim, allocator) = rig();
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let capture = allocator.capture(pool, RouteFilter::All).unwrap();
    let a = allocator.allocate(0, 4 * M - 512, 0, STREAM).unwrap();
    allocator.release_pool(pool).unwrap();
    assert!(allocator.release_pool(pool).is_err());
    let b = allocator.allocate(0, 4 * M - 512, 0, STREAM).unwrap();
    allocator.deallocate(a).unwrap();
    let graph = capture.finish();
    allocator.deallocate(b).unwrap();
    allocator.empty_cache(None).unwrap();
    assert_eq!(sim.physical_bytes(0), 8 * M, "the graph's memory stays");
    let saved = allocator.checkpoint(pool).unwrap();
    assert_eq!(allocator.restore(&saved).unwrap().allocated.len(), 0);
    drop(graph);
    finish(&sim, &allocator);
}

/// A graph that is released gets no more addresses: what its capture still asks other pools for is theirs, whether its route
/// ends later or between the looking up of the pool and the request.
#[test]
fn a_graph_that_is_gone_keeps_no_pool_inside_of_its_capture() {
    for meanwhile in [false, true] {
        let (sim, allocator) = rig();
        let [graph, inner] =
            [(); 2].map(|()| allocator.create_pool(0, PoolOptions::default()).expect("a pool"));
        allocator.begin_capture(graph, RouteFilter::All).unwrap();
        let (weak, ended) = (Arc::downgrade(&allocator), AtomicBool::new(!meanwhile));
        let end = move |_| {
            if !ended.swap(true, Relaxed) {
                let allocator = weak.upgrade().unwrap();
                allocator.end_route(graph).unwrap();
                allocator.release_graph(graph).unwrap();
            }
            true
        };
        if !meanwhile {
            allocator.release_graph(graph).unwrap();
        }
        let inside = allocator.route(inner, RouteFilter::Accepts(Arc::new(end))).unwrap();
        let block = allocator.allocate(0, 20 * M, 0, STREAM).unwrap();
        drop(inside);
        assert_eq!(allocator.pool_stats(inner).unwrap().graphs, 0, "meanwhile: {meanwhile}");
        allocator.deallocate(block).unwrap();
        if !meanwhile {
            allocator.end_route(graph).unwrap();
        }
        for pool in [graph, inner] {
            allocator.release_pool(pool).unwrap();
        }
        finish(&sim, &allocator);
        assert!(allocator.pool_stats(graph).is_err() && allocator.pool_stats(inner).is_err());
    }
}

/// A request that several captures take is in the graphs of all, whether the newest of them or a route inside of them
/// sends it to its pool: the addresses stay until the last of these graphs is gone.
#[test]
fn what_captures_inside_of_captures_get_stays_for_all_their_graphs() {
    for last in 0..3 {
        let (sim, allocator) = rig();
        let pools = [(); 3].map(|()| allocator.create_pool(0, PoolOptions::default()).expect("a pool"));
        let begun = pools.map(|pool| allocator.capture(pool, RouteFilter::ThisThread).expect("a capture"));
        let entered = allocator.create_pool(0, PoolOptions::default()).expect("a pool");
        let inner = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
        let route = allocator.route(entered, RouteFilter::ThisThread).unwrap();
        let inside = allocator.allocate(0, 6 * M, 0, STREAM).unwrap();
        drop(route);
        assert_eq!(allocator.block_info(inner).unwrap().pool, pools[2]);
        assert_eq!(allocator.block_info(inside).unwrap().pool, entered);
        let mut graphs = begun.map(|capture| Some(capture.finish()));
        for block in [inner, inside] {
            allocator.deallocate(block).unwrap();
        }
        (0..3).filter(|&at| at != last).for_each(|at| drop(graphs[at].take()));
        allocator.empty_cache(None).unwrap();
        assert!(sim.is_backed(inner.0, 4 * M) && sim.is_backed(inside.0, 6 * M), "graph {last} has them");
        drop(graphs[last].take());
        for pool in pools.into_iter().chain([entered]) {
            allocator.release_pool(pool).unwrap();
        }
        finish(&sim, &allocator);
        assert!(allocator.pool_stats(entered).is_err());
    }
}

/// Only what a capture gets is baked into its graph.
#[test]
fn a_request_that_fails_inside_of_a_capture_keeps_no_pool() {
    let (sim, allocator) = rig_with("check_level:3", 64 * M);
    let [outer, inner] = [(); 2].map(|()| allocator.create_pool(0, PoolOptions::default()).expect("a pool"));
    let idle = allocator.allocate_in(inner, 20 * M, 0, STREAM).unwrap();
    allocator.deallocate(idle).unwrap();
    let capture = allocator.capture(outer, RouteFilter::ThisThread).unwrap();
    let inside = allocator.route(inner, RouteFilter::ThisThread).unwrap();
    assert!(matches!(allocator.allocate(0, 80 * M, 0, STREAM), Err(Error::OutOfMemory(_))));
    drop(inside);
    let graph = capture.finish();
    assert_eq!(allocator.pool_stats(inner).unwrap().graphs, 0);
    let all = allocator.allocate(0, 60 * M, 0, STREAM).expect("what is idle is moved");
    allocator.deallocate(all).unwrap();
    drop(graph);
    for pool in [outer, inner] {
        allocator.release_pool(pool).unwrap();
    }
    finish(&sim, &allocator);
}

#[test]
fn a_checkpoint_is_restored_twice_asleep_and_after_the_memory_went() {
    let (sim, allocator) = rig();
    let pool = allocator.create_pool(0, PoolOptions::tagged("p")).unwrap();
    let a = allocator.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    let b = allocator.allocate_in(pool, 700, 0, STREAM).unwrap();
    let saved = allocator.checkpoint(pool).unwrap();
    let first = allocator.restore(&saved).unwrap();
    let second = allocator.restore(&saved).unwrap();
    assert_eq!(first, second);
    assert_eq!(second.allocated.len(), 2);

    allocator.sleep(None, &["p"], SleepMode::Offload).unwrap();
    let asleep = allocator.restore(&saved);
    assert!(matches!(asleep, Err(Error::State { .. })), "{asleep:?}");
    allocator.check().unwrap();
    allocator.wake(None, &["p"]).unwrap();
    allocator.restore(&saved).unwrap();

    allocator.deallocate(a).unwrap();
    allocator.deallocate(b).unwrap();
    allocator.empty_cache(None).unwrap();
    assert!(matches!(allocator.restore(&saved), Err(Error::State { .. })));
    // A growing buffer of the same pool may lie where the blocks were.
    let options = GrowableOptions::up_to(64 * M).beginning_with(8 * M).in_pool(pool);
    let buffer = GrowableBuffer::new(allocator.clone(), 0, STREAM, options).unwrap();
    let over = allocator.restore(&saved);
    assert!(matches!(over, Err(Error::State { .. })), "{over:?} buffer {:?} a {a:?} b {b:?}", buffer.ptr());
    allocator.check().unwrap();
    drop(buffer);
    allocator.release_pool(pool).unwrap();
    finish(&sim, &allocator);
}

#[test]
fn streams_are_erased_that_were_never_recorded() {
    let (sim, allocator) = rig();
    let other = Stream(sim.create_stream().unwrap());
    let a = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    for stream in [STREAM, other, Stream(0xdead), Stream(u64::MAX as _)] {
        allocator.erase_stream(a, stream).unwrap();
    }
    allocator.record_stream(a, other).unwrap();
    allocator.record_stream(a, other).unwrap();
    allocator.erase_stream(a, other).unwrap();
    allocator.erase_stream(a, other).unwrap();
    allocator.deallocate(a).unwrap();
    let stats = allocator.stats(0).unwrap();
    assert_eq!((stats.active_bytes.all.current, stats.calls.record_event), (0, 0));
    assert!(matches!(allocator.erase_stream(a, other), Err(Error::Pointer { .. })));
    finish(&sim, &allocator);
}

#[test]
fn pools_come_and_go_while_others_put_them_to_sleep() {
    let (sim, allocator) = rig_with("check_level:2", 1 << 30);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..3)
            .map(|at| {
                let (sim, allocator, stop) = (&sim, &allocator, &stop);
                scope.spawn(move || {
                    sim.set_device(0).unwrap();
                    for round in 0..100 {
                        match at {
                            0 => {
                                let pool = allocator.create_pool(0, PoolOptions::tagged("t")).unwrap();
                                let full = round % 2 == 0;
                                let ptr =
                                    full.then(|| allocator.allocate_in(pool, 3 * M, 0, STREAM)).transpose();
                                allocator.release_pool(pool).unwrap();
                                if let Ok(Some(ptr)) = ptr {
                                    allocator.deallocate(ptr).unwrap();
                                }
                            }
                            1 => match allocator.sleep(None, &["t"], SleepMode::Offload) {
                                Ok(_) | Err(Error::State { .. } | Error::Argument { .. }) => {}
                                Err(error) => panic!("{error}"),
                            },
                            _ => match allocator.wake(None, &["t"]) {
                                Ok(_) | Err(Error::State { .. } | Error::Argument { .. }) => {}
                                Err(error) => panic!("{error}"),
                            },
                        }
                    }
                    stop.store(true, Relaxed);
                })
            })
            .collect();
        for handle in handles {
            handle.join().expect("no call panics");
        }
    });
    let _ = allocator.wake(None, &[]);
    finish(&sim, &allocator);
}

#[test]
fn graphs_are_released_by_two_threads_at_once() {
    let (sim, allocator) = rig_with("check_level:0", 1 << 30);
    for _ in 0..100 {
        let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
        let _route = allocator.begin_capture(pool, RouteFilter::All).unwrap();
        allocator.end_route(pool).unwrap();
        allocator.release_pool(pool).unwrap();
        let gate = std::sync::Barrier::new(2);
        let done: usize = std::thread::scope(|scope| {
            let release = || {
                gate.wait();
                usize::from(allocator.release_graph(pool).is_ok())
            };
            let other = scope.spawn(release);
            release() + other.join().unwrap()
        });
        assert_eq!(done, 1);
    }
    finish(&sim, &allocator);
}

#[test]
fn a_buffer_grows_beyond_its_maximum_and_while_its_pool_sleeps() {
    let (sim, allocator) = rig();
    let pool = allocator.create_pool(0, PoolOptions::tagged("kv")).unwrap();
    let options = GrowableOptions::up_to(64 * M).beginning_with(3 * M).in_pool(pool);
    let mut buffer = GrowableBuffer::new(allocator.clone(), 0, STREAM, options).unwrap();
    let most = buffer.max_bytes();
    for bytes in [most + 1, u64::MAX, u64::MAX - 511, 1 << 63] {
        assert!(matches!(buffer.resize(bytes), Err(Error::Size { .. })), "{bytes}");
    }
    buffer.resize(most).unwrap();
    allocator.sleep(None, &["kv"], SleepMode::Offload).unwrap();
    buffer.resize(5 * M).unwrap();
    assert!(matches!(buffer.resize(6 * M + 1), Err(Error::State { .. })));
    assert!(allocator.deallocate(buffer.ptr()).is_err(), "a buffer is not freed by its address");
    allocator.wake(None, &["kv"]).unwrap();
    buffer.resize(0).unwrap();
    buffer.resize(1).unwrap();
    allocator.sleep(None, &["kv"], SleepMode::Discard).unwrap();
    buffer.resize(0).unwrap();
    assert!(!allocator.is_asleep(pool).unwrap(), "empty pools wake by themselves");
    buffer.resize(4 * M).unwrap();
    allocator.sleep(None, &["kv"], SleepMode::Discard).unwrap();
    drop(buffer);
    for (max, now) in [(0, 1), (1, 2), (u64::MAX, 0), (u64::MAX, u64::MAX), (1 << 62, 1)] {
        let options = GrowableOptions::up_to(max).beginning_with(now);
        assert!(GrowableBuffer::new(allocator.clone(), 0, STREAM, options).is_err(), "{max} {now}");
    }
    allocator.release_pool(pool).unwrap();
    finish(&sim, &allocator);
}

#[test]
fn callbacks_that_panic_or_allocate_harm_nobody() {
    let (sim, allocator) = rig_with("check_level:2", 64 * M);
    let held = allocator.allocate(0, 60 * M, 0, STREAM).unwrap();
    let inner = Arc::downgrade(&allocator);
    let id = allocator.add_memory_callback(Arc::new(move |_, _| {
        let allocator = inner.upgrade().unwrap();
        let again = allocator.allocate(0, 30 * M, 0, STREAM);
        assert!(again.is_err());
        allocator.empty_cache(None).unwrap();
        false
    }));
    let error = allocator.allocate(0, 30 * M, 0, STREAM).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert!(allocator.remove_memory_callback(id));
    let id = allocator.add_memory_callback(Arc::new(|_, _| panic!("a callback's own trouble")));
    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        allocator.allocate(0, 30 * M, 0, STREAM).unwrap_err()
    }));
    if let Ok(error) = answer {
        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    }
    let small = allocator.allocate(0, 512, 0, STREAM).unwrap();
    allocator.deallocate(small).unwrap();
    assert!(allocator.remove_memory_callback(id));
    allocator.deallocate(held).unwrap();
    let big = allocator.allocate(0, 64 * M - 512, 0, STREAM).unwrap();
    allocator.deallocate(big).unwrap();
    finish(&sim, &allocator);
}

#[test]
fn limits_fall_below_what_is_held() {
    let (sim, allocator) = rig();
    let a = allocator.allocate(0, 100 * M, 0, STREAM).unwrap();
    let b = allocator.allocate(0, 100 * M, 0, STREAM).unwrap();
    allocator.set_memory_limit(0, Some(50 * M)).unwrap();
    allocator.set_soft_limit(0, Some(M)).unwrap();
    assert!(matches!(allocator.allocate(0, 2 * M, 0, STREAM), Err(Error::OutOfMemory(_))));
    let rest = allocator.allocate(0, 512, 0, STREAM).expect("what is free beside the large ones");
    allocator.deallocate(rest).unwrap();
    allocator.deallocate(a).unwrap();
    let again = allocator.allocate(0, 100 * M, 0, STREAM).unwrap();
    assert!(matches!(allocator.allocate(0, 100 * M, 0, STREAM), Err(Error::OutOfMemory(_))));
    allocator.deallocate(again).unwrap();
    allocator.deallocate(b).unwrap();
    assert_eq!(sim.physical_bytes(0) / M, 202, "what is held is kept, and serves");
    allocator.empty_cache(None).unwrap();
    let c = allocator.allocate(0, 50 * M - 512, 0, STREAM).unwrap();
    assert!(matches!(allocator.allocate(0, 2 * M, 0, STREAM), Err(Error::OutOfMemory(_))));
    assert!(allocator.set_memory_limit(0, Some(0)).is_err() && allocator.set_soft_limit(0, Some(0)).is_err());
    allocator.set_memory_limit(0, Some(1)).unwrap();
    allocator.deallocate(c).unwrap();
    allocator.empty_cache(None).unwrap();
    assert!(allocator.allocate(0, 2 * M, 0, STREAM).is_err());
    allocator.set_memory_limit(0, None).unwrap();
    let d = allocator.allocate(0, 900 * M, 0, STREAM).unwrap();
    allocator.deallocate(d).unwrap();
    finish(&sim, &allocator);
}

#[test]
fn the_cache_is_emptied_by_age_from_many_threads() {
    let (sim, allocator) = rig_with("check_level:2", 1 << 30);
    std::thread::scope(|scope| {
        for at in 0..4u64 {
            let (sim, allocator) = (&sim, &allocator);
            scope.spawn(move || {
                sim.set_device(0).unwrap();
                for round in 0..60u64 {
                    let ptr = allocator.allocate(0, (1 + (round + at) % 7) * M, 0, STREAM).unwrap();
                    allocator.deallocate(ptr).unwrap();
                    let age = match (round + at) % 4 {
                        0 => Some(Age::Frees(u64::MAX)),
                        1 => Some(Age::Frees(3)),
                        2 => Some(Age::Time(Duration::MAX)),
                        _ => None,
                    };
                    let options =
                        EmptyOptions { min_age: age, wait: round % 8 == 0, ..EmptyOptions::default() };
                    allocator.empty_cache_with(Some(0), &options).unwrap();
                    sim.advance(1000);
                }
            });
        }
    });
    finish(&sim, &allocator);
}

#[test]
fn blocks_are_freed_and_asked_for_by_other_threads_while_their_pool_sleeps() {
    let (sim, allocator) = rig();
    let pool = allocator.create_pool(0, PoolOptions::tagged("w")).unwrap();
    let a = allocator.allocate_in(pool, 10 * M, 0, STREAM).unwrap();
    let b = allocator.allocate_in(pool, 700, 0, STREAM).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    allocator.record_stream(a, other).unwrap();
    allocator.sleep(None, &["w"], SleepMode::Offload).unwrap();
    assert_eq!(sim.physical_bytes(0), 0);
    std::thread::scope(|scope| {
        let join = scope.spawn(|| {
            sim.set_device(1).unwrap();
            assert!(matches!(allocator.allocate_in(pool, 512, 0, STREAM), Err(Error::State { .. })));
            assert!(matches!(allocator.grow_in_place(b, 900), Err(Error::State { .. })));
            allocator.shrink_in_place(a, 5 * M).unwrap();
            allocator.deallocate(a).unwrap();
            assert!(allocator.deallocate(a).is_err());
        });
        join.join().unwrap();
    });
    allocator.check().unwrap();
    assert!(allocator.wake(Some(1), &["w"]).is_err(), "no such pool there");
    assert!(allocator.is_asleep(pool).unwrap());
    assert!(allocator.capture(pool, RouteFilter::All).is_err());
    assert_eq!(allocator.sleep(None, &["w"], SleepMode::Discard).unwrap().pools, 0);
    let woken = allocator.wake(Some(0), &["w"]).unwrap();
    assert_eq!((woken.pools, woken.mapped_bytes), (1, 2 * M));
    allocator.deallocate(b).unwrap();
    allocator.release_pool(pool).unwrap();
    finish(&sim, &allocator);
}

#[test]
fn a_reset_ends_sleep_captures_routes_and_buffers() {
    let (sim, allocator) = rig();
    let pool = allocator.create_pool(0, PoolOptions::tagged("w")).unwrap();
    let a = allocator.allocate_in(pool, 10 * M, 0, STREAM).unwrap();
    allocator.sleep(None, &["w"], SleepMode::Offload).unwrap();
    let saved = allocator.checkpoint(pool).unwrap();
    let route = allocator.route(pool, RouteFilter::ThisThread).unwrap();
    allocator.release_pool(pool).unwrap();
    let graph_pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let capture = allocator.capture(graph_pool, RouteFilter::Stream(Stream(9))).unwrap();
    let options = GrowableOptions::up_to(64 * M).beginning_with(3 * M);
    let mut buffer = GrowableBuffer::new(allocator.clone(), 0, STREAM, options.in_pool(graph_pool)).unwrap();
    sim.reset_device_force(0).unwrap();
    sim.set_device(0).unwrap();
    // Whether a reset ends reservations is the device's matter: the allocator asks nothing for what was before.
    let left = sim.reserved_bytes();
    allocator.device_was_reset(0).unwrap();
    allocator.check().unwrap();
    assert!(allocator.restore(&saved).is_err());
    assert!(buffer.resize(4 * M).is_err());
    let b = allocator.allocate(0, 2 * M, 0, STREAM).unwrap();
    assert_eq!(allocator.block_info(b).unwrap().pool, pool, "the route leads there still");
    drop(capture.finish());
    drop(buffer);
    allocator.deallocate(a).unwrap();
    allocator.deallocate(b).unwrap();
    drop(route);
    allocator.release_pool(graph_pool).unwrap();
    allocator.empty_cache(None).unwrap();
    allocator.check().unwrap();
    assert_eq!((sim.physical_bytes(0), sim.reserved_bytes()), (0, left));
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    drop(allocator);
    let host = sim.leaks().into_iter().filter(|leak| leak.contains("pinned")).collect::<Vec<_>>();
    assert_eq!(host, Vec::<String>::new(), "the content of what slept is given back");
}

#[test]
fn sizes_and_alignments_at_the_ends() {
    let (sim, allocator) = rig();
    let mut options = PoolOptions::default();
    options.no_split = true;
    let pool = allocator.create_pool(0, options).unwrap();
    for bytes in [u64::MAX, u64::MAX - 511, 1 << 63, (1 << 63) + 1, 1 << 60, 1 << 48] {
        for align in [0, 1, 512, 2 * M, 1 << 30, 1 << 31, 1 << 63, 3] {
            assert!(allocator.allocate_in(pool, bytes, align, STREAM).is_err(), "{bytes} {align}");
            assert!(allocator.allocate(0, bytes, align, STREAM).is_err(), "{bytes} {align}");
        }
    }
    assert_eq!(sim.physical_bytes(0), 0);
    for align in [1, 512, 2 * M, 1 << 30] {
        for bytes in [1, 700, 3 * M] {
            let a = allocator.allocate_in(pool, bytes, align, STREAM).unwrap();
            let b = allocator.allocate(0, bytes, align, STREAM).unwrap();
            assert_eq!((a.0 % align, b.0 % align), (0, 0));
            allocator.deallocate(a).unwrap();
            allocator.deallocate(b).unwrap();
        }
    }
    allocator.release_pool(pool).unwrap();
    finish(&sim, &allocator);
}
