//! Waking climbs the same ladder as a request: it fails only where the memory is really used. And what other threads
//! may do to pools on their way.

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ascend_alloc::driver::Stream;
use ascend_alloc::history::{self, HistoryOptions};
use ascend_alloc::hook::{self, MemoryEvent};
use ascend_alloc::{DevicePtr, Error, PoolId, PoolOptions, SleepMode, Woken};
use ascend_sim::{Location, Task};
use common::gate::PASSED;
use common::gated::{REFUSED, Rig};
use common::{GRANULE, M, Setup, World};

const STREAM: Stream = Stream(0);

/// A pool `w` with a block of so many bytes, asleep.
fn sleeper(world: &World, bytes: u64) -> (PoolId, DevicePtr) {
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("w")).expect("a pool");
    let block = world.alloc.allocate_in(pool, bytes, 0, STREAM).expect("memory");
    world.alloc.sleep(None, &["w"], SleepMode::Discard).expect("asleep");
    (pool, block)
}

fn wakes(world: &World) -> Woken {
    let woken = world.alloc.wake(None, &["w"]).expect("the memory is not in use");
    world.alloc.check().expect("whole");
    woken
}

fn close(world: World, (pool, block): (PoolId, DevicePtr)) {
    world.alloc.deallocate(block).expect("freed");
    world.alloc.release_pool(pool).expect("released");
    world.close();
}

/// Takes and frees so many bytes of the default pool.
fn leave_idle(world: &World, bytes: u64, stream: Stream) {
    let block = world.alloc.allocate(0, bytes, 0, stream).expect("memory");
    world.alloc.deallocate(block).expect("freed");
}

#[test]
fn idle_wide_chunks_are_broken_for_it() {
    let world = Setup::default().conf("large_segment_size_mb:20").capacity(100 * M).build();
    let asleep = sleeper(&world, 60 * M);
    let blocks: Vec<_> =
        (0..5).map(|_| world.alloc.allocate(0, 20 * M, 0, STREAM).expect("memory")).collect();
    assert_eq!(world.sim.count("aclrtMallocPhysical"), 3 + 5, "all of them wide");
    blocks.into_iter().for_each(|block| world.alloc.deallocate(block).expect("freed"));
    assert_eq!(wakes(&world).mapped_bytes, 60 * M);
    close(world, asleep);
}

#[test]
fn idle_fixed_segments_are_given_back_for_it() {
    let world = Setup::default().capacity(100 * M).build();
    let asleep = sleeper(&world, 60 * M);
    world.sim.fail("aclrtReserveMemAddress", 1, 207_001, true).expect("a function");
    leave_idle(&world, 60 * M, STREAM);
    world.sim.clear_faults();
    assert_eq!(world.sim.count("aclrtMallocAlign32"), 1);
    wakes(&world);
    assert_eq!(world.sim.count("aclrtFree"), 1);
    close(world, asleep);
}

#[test]
fn too_little_memory_ends_it_where_no_reservation_can_be_made_any_more() {
    let world = Setup::default().capacity(64 * M).build();
    let asleep = sleeper(&world, 40 * M);
    world.sim.fail("aclrtReserveMemAddress", 1, 207_000, true).expect("a function");
    let block = world.alloc.allocate(0, 40 * M, 0, STREAM).expect("a fixed block");
    let error = world.alloc.wake(None, &["w"]).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    world.alloc.check().expect("whole");
    world.alloc.deallocate(block).expect("freed");
    wakes(&world);
    world.sim.clear_faults();
    close(world, asleep);
}

#[test]
fn free_blocks_of_pools_that_do_not_split_are_merged_for_it() {
    let world = Setup::default().capacity(64 * M).build();
    let asleep = sleeper(&world, 40 * M);
    let mut options = PoolOptions::default();
    options.no_split = true;
    let pool = world.alloc.create_pool(0, options).expect("a pool");
    let block = |_| world.alloc.allocate_in(pool, 3 * M / 2, 0, STREAM).expect("memory");
    let blocks: Vec<_> = (0..40).map(block).collect();
    blocks.into_iter().for_each(|block| world.alloc.deallocate(block).expect("freed"));
    wakes(&world);
    close(world, asleep);
}

#[test]
fn callbacks_are_asked_for_it() {
    let world = Setup::default().capacity(64 * M).build();
    let asleep = sleeper(&world, 40 * M);
    let hoard = Mutex::new(Some(world.alloc.allocate(0, 60 * M, 0, STREAM).expect("memory")));
    let (alloc, told) = (Arc::downgrade(&world.alloc), Arc::new(Mutex::new(Vec::new())));
    let asked = told.clone();
    world.alloc.add_memory_callback(Arc::new(move |_, bytes| {
        asked.lock().unwrap().push(bytes);
        let Some(block) = hoard.lock().unwrap().take() else { return false };
        alloc.upgrade().unwrap().deallocate(block).is_ok()
    }));
    wakes(&world);
    // 4 MiB were free beside the hoard.
    assert_eq!(*told.lock().unwrap(), [36 * M]);
    close(world, asleep);
}

/// No event can be recorded on a stream that is gone: only the device tells that its work is over.
#[test]
fn memory_of_destroyed_streams_is_waited_for() {
    let world = Setup::default().capacity(64 * M).build();
    let asleep = sleeper(&world, 40 * M);
    let stream = world.stream();
    leave_idle(&world, 60 * M, stream);
    world.alloc.stream_destroyed(0, stream).expect("told");
    world.sim.on_device(0, || world.sim.destroy_stream(stream.0)).unwrap().expect("destroyed");
    wakes(&world);
    assert_eq!(world.sim.count("aclrtSynchronizeDevice"), 1);
    close(world, asleep);
}

/// A soft limit has idle memory moved before new memory is taken, and does not make waking fail.
#[test]
fn soft_limits_have_idle_memory_moved_first() {
    for (of_pool, idle) in [(false, 60 * M), (true, 60 * M), (false, 0), (true, 0)] {
        let world = Setup::default().capacity(256 * M).build();
        let mut options = PoolOptions::tagged("w");
        options.soft_limit = of_pool.then_some(20 * M);
        let pool = world.alloc.create_pool(0, options).expect("a pool");
        let block = world.alloc.allocate_in(pool, 60 * M, 0, STREAM).expect("memory");
        world.alloc.sleep(None, &["w"], SleepMode::Discard).expect("asleep");
        if !of_pool {
            world.alloc.set_soft_limit(0, Some(40 * M)).expect("set");
        }
        if idle > 0 {
            leave_idle(&world, idle, STREAM);
        }
        let held = world.sim.physical_bytes(0);
        wakes(&world);
        assert_eq!(world.sim.physical_bytes(0), held.max(60 * M), "{of_pool} {idle}");
        close(world, (pool, block));
    }
}

/// What the device got back from another process in the meantime is found, and the error says what was lacking.
#[test]
fn what_is_lacking_is_told() {
    let world = Setup::default().capacity(100 * M).build();
    let asleep = sleeper(&world, 60 * M);
    leave_idle(&world, 30 * M, STREAM);
    let live = world.alloc.allocate(0, 20 * M, 0, STREAM).expect("memory");
    // 10 MiB are idle in what is held, and 20 more on the device.
    world.sim.set_foreign_bytes(0, 50 * M);
    let answer = world.alloc.wake(None, &["w"]);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    assert_eq!((report.requested, report.lacking, report.asleep), (60 * M, 30 * M, 60 * M), "{report}");
    assert!(world.alloc.is_asleep(asleep.0).expect("a pool"));
    world.alloc.check().expect("whole");
    world.sim.set_foreign_bytes(0, 0);
    wakes(&world);
    world.alloc.deallocate(live).expect("freed");
    close(world, asleep);
}

/// Where the driver does not let go of what others have idle, new memory still serves.
#[test]
fn what_cannot_be_moved_is_done_without() {
    let world = Setup::default().capacity(256 * M).build();
    let asleep = sleeper(&world, 60 * M);
    world.alloc.set_soft_limit(0, Some(40 * M)).expect("set");
    leave_idle(&world, 60 * M, STREAM);
    world.sim.fail("aclrtUnmapMem", 1, 507_899, true).expect("a function");
    wakes(&world);
    world.sim.clear_faults();
    assert_eq!(world.sim.physical_bytes(0), 120 * M);
    close(world, asleep);
}

/// While a pool falls asleep its free blocks are in no list; they keep the number of their stream all the same.
#[test]
fn numbers_of_destroyed_streams_are_kept_for_pools_that_fall_asleep() {
    let world = Setup::default().build();
    let (gone, other) = (world.stream(), world.stream());
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("w")).expect("a pool");
    let used = world.alloc.allocate_in(pool, 8 * M, 0, gone).expect("memory");
    let kept = world.alloc.allocate_in(pool, 2 * M, 0, other).expect("memory");
    let task = Task::new("write").writes(used.0, 8 * M, 1);
    world.sim.on_device(0, || world.sim.submit(gone.0, task)).unwrap().expect("queued");
    world.driver.hold(gone);
    world.alloc.deallocate(used).expect("freed");
    world.alloc.stream_destroyed(0, gone).expect("told");
    // While the sleep waits for the other stream, a third one is seen for the first time; then a wait is refused.
    let (alloc, late) = (Arc::downgrade(&world.alloc), world.stream());
    world.driver.watch(Some(Arc::new(move |call| {
        if call == PASSED {
            let alloc = alloc.upgrade().unwrap();
            let block = alloc.allocate(0, 2 * M, 0, late).expect("memory");
            alloc.deallocate(block).expect("freed");
        }
    })));
    world.sim.fail("aclrtSynchronizeDevice", 1, 507_899, true).expect("a function");
    let slept = world.alloc.sleep(None, &["w"], SleepMode::Discard);
    assert!(matches!(slept, Err(Error::Driver(_))), "{slept:?}");
    world.driver.watch(None);
    world.sim.clear_faults();
    let next = world.alloc.allocate_in(pool, 8 * M, 0, late).expect("memory");
    // Whoever gets the memory comes behind the work of the stream that is gone, or the use checker finds it.
    let task = Task::new("next").writes(next.0, 8 * M, 2);
    world.sim.on_device(0, || world.sim.submit(late.0, task)).unwrap().expect("queued");
    assert_eq!(world.sim.findings(), Vec::<String>::new());
    world.driver.finish(0, gone).expect("finished");
    [next, kept].into_iter().for_each(|block| world.alloc.deallocate(block).expect("freed"));
    world.alloc.release_pool(pool).expect("released");
    world.close();
}

/// A wake that could not wait for its copies leaves a pool asleep with memory behind it. That chunk is nobody's plan, so a
/// refusal counts.
#[test]
fn peers_are_refused_for_memory_of_a_pool_that_could_not_wake() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    for wait in ["aclrtSynchronizeStream", "aclrtSynchronizeDevice"] {
        rig.sim.fail(wait, 1, REFUSED, true).unwrap();
    }
    let woken = rig.alloc.wake(None, &["weights"]);
    assert!(matches!(woken, Err(Error::Driver(_))), "{woken:?}");
    rig.sim.clear_faults();
    rig.sim.fail("aclrtMemSetAccess", 1, REFUSED, true).unwrap();
    let peered = rig.alloc.set_peers(0, &[1]);
    assert!(matches!(peered, Err(Error::Driver(_))), "{peered:?}");
    rig.sim.clear_faults();
    rig.alloc.set_peers(0, &[1]).unwrap();
    rig.alloc.wake(None, &["weights"]).unwrap();
    assert_eq!(rig.sim.get_access(block.0 + 2 * M, Location::device(1)).unwrap(), 3);
    rig.alloc.deallocate(block).unwrap();
    rig.finish();
}

/// What sleeps has no memory, and whoever keeps books from the events knows: granules with memory, by both of them.
#[test]
fn the_hook_and_the_history_are_told_of_memory_that_sleeps_and_wakes() {
    let world = Setup::default().capacity(100 * M).build();
    let told: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
    let books = told.clone();
    world.alloc.set_event_hook(Some(Arc::new(move |event: &MemoryEvent| {
        for at in (event.address..event.address + event.bytes).step_by(GRANULE as usize) {
            let fits = match event.action {
                hook::Action::Map | hook::Action::Move => books.lock().unwrap().insert(at),
                hook::Action::Unmap => books.lock().unwrap().remove(&at),
                _ => true,
            };
            assert!(fits, "{event:?}");
        }
    })));
    world.alloc.start_history(&HistoryOptions::default());
    let agree = |when: &str| {
        let mut kept = BTreeSet::new();
        for event in world.alloc.history().events {
            for at in (event.address..event.address + event.size).step_by(GRANULE as usize) {
                let fits = match event.action {
                    history::Action::SegmentMap | history::Action::ChunkMove => kept.insert(at),
                    history::Action::SegmentUnmap => kept.remove(&at),
                    _ => true,
                };
                assert!(fits, "{when}: {event:?}");
            }
        }
        assert_eq!(*told.lock().unwrap(), kept, "{when}");
        assert_eq!(kept.len() as u64 * GRANULE, world.reserved(), "{when}");
    };
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("w")).expect("a pool");
    let [block, gap, last] =
        [20, 30, 10].map(|size| world.alloc.allocate_in(pool, size * M, 0, STREAM).expect("memory"));
    world.alloc.deallocate(gap).expect("freed");
    agree("awake");
    for refused in [true, false] {
        // Refused half-way, and not put back as a whole.
        let faults = if refused { vec![("aclrtUnmapMem", 9), ("aclrtMapMem", 2)] } else { vec![] };
        faults.iter().for_each(|&(call, k)| world.sim.fail(call, k, REFUSED, false).expect("a function"));
        assert_eq!(world.alloc.sleep(None, &["w"], SleepMode::Discard).is_err(), refused);
        world.sim.clear_faults();
        agree("asleep, or not quite");
        if refused {
            wakes(&world);
            agree("awake again");
        }
    }
    leave_idle(&world, 90 * M, STREAM);
    agree("asleep beside another pool");
    wakes(&world);
    agree("with memory of another pool");
    let again = world.alloc.allocate_in(pool, 30 * M, 0, STREAM).expect("memory");
    agree("where memory was given back asleep");
    [last, again].into_iter().for_each(|block| world.alloc.deallocate(block).expect("freed"));
    close(world, (pool, block));
    assert!(told.lock().unwrap().is_empty());
}

/// A wake that could not wait for its copies leaves memory behind a pool that sleeps, and so does a sleep that could not
/// put back what it had taken. Putting it to sleep again gives that to the device, and keeps the content.
#[test]
fn what_a_failure_left_behind_a_pool_that_sleeps_goes_back() {
    const WAITS: [&str; 2] = ["aclrtSynchronizeStream", "aclrtSynchronizeDevice"];
    for mode in [SleepMode::Offload, SleepMode::Discard] {
        for in_wake in [true, false] {
            let rig = Rig::new();
            let pool = rig.pool("weights");
            let block = rig.alloc.allocate_in(pool, 100 * M, 0, STREAM).unwrap();
            rig.sim.fill_bytes(block.0, 100 * M, 9).unwrap();
            if in_wake {
                rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
                WAITS.iter().for_each(|wait| rig.sim.fail(wait, 1, REFUSED, true).unwrap());
                assert!(rig.alloc.wake(None, &["weights"]).is_err());
            } else {
                rig.sim.fail("aclrtUnmapMem", 9, REFUSED, false).unwrap();
                rig.sim.fail("aclrtMapMem", 3, REFUSED, true).unwrap();
                assert!(rig.alloc.sleep(None, &["weights"], SleepMode::Offload).is_err());
                rig.sim.clear_faults();
            }
            let held = rig.sim.physical_bytes(0) - rig.cached();
            assert!(rig.alloc.is_asleep(pool).unwrap() && held > 80 * M, "{held}");
            // Somebody who lacks just that is told what helps.
            let failed = rig.alloc.allocate(0, 180 * M, 0, STREAM).unwrap_err();
            let Error::OutOfMemory(report) = &failed else { panic!("{failed:?}") };
            let behind = report.remedies.iter().find(|remedy| remedy.change.contains("to sleep again"));
            assert!(behind.is_some_and(|remedy| remedy.bytes == held), "{failed}");
            assert_eq!(report.asleep, report.active.saturating_sub(held), "{failed}");
            // Refused once more it sleeps as before.
            rig.sim.clear_faults();
            rig.sim.fail("aclrtUnmapMem", 2, REFUSED, false).unwrap();
            assert!(rig.alloc.sleep(None, &["weights"], mode).is_err());
            assert!(rig.alloc.is_asleep(pool).unwrap());
            rig.alloc.check().unwrap();
            let (free, held) = (rig.sim.mem_info(1).unwrap().0, rig.sim.physical_bytes(0) - rig.cached());
            let slept = rig.alloc.sleep(None, &["weights"], mode).unwrap();
            assert_eq!((slept.pools, slept.returned_bytes, slept.host_bytes), (1, held, 0));
            assert_eq!(rig.sim.mem_info(1).unwrap().0 - free, slept.device_bytes);
            assert_eq!(slept.device_bytes, slept.returned_bytes);
            assert_eq!(rig.sim.physical_bytes(0), rig.cached());
            assert_eq!(rig.alloc.sleep(None, &["weights"], mode).unwrap().pools, 0);
            let tenant = rig.alloc.allocate(0, 180 * M, 0, STREAM).unwrap();
            rig.alloc.deallocate(tenant).unwrap();
            rig.alloc.wake(None, &["weights"]).unwrap();
            for at in (0..100 * M).step_by(M as usize) {
                let mut byte = [0];
                rig.sim.read_bytes(block.0 + at, &mut byte).unwrap();
                assert_eq!(byte, [9], "at {at}");
            }
            rig.alloc.deallocate(block).unwrap();
            rig.finish();
        }
    }
}

/// While one piece is copied the memory for the next is taken, and nobody waits before all are queued.
#[test]
fn content_is_copied_in_a_pipeline() {
    let world = Setup::default().build();
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("w")).expect("a pool");
    let block = world.alloc.allocate_in(pool, 160 * M, 0, STREAM).expect("memory");
    world.sim.set_logging(true);
    let watched =
        ["aclrtMallocHost", "aclrtMemcpyAsync", "aclrtSynchronizeStream", "aclrtUnmapMem", "aclrtMapMem"];
    let calls = || {
        let log = world.sim.take_log().into_iter().map(|entry| entry.function);
        let mut calls: Vec<_> = log.filter(|call| watched.contains(call)).collect();
        calls.dedup();
        calls
    };
    world.alloc.sleep(None, &["w"], SleepMode::Offload).expect("asleep");
    let [take, copy, wait, unmap, map] = watched;
    assert_eq!(calls(), [take, copy, take, copy, take, copy, wait, unmap]);
    assert_eq!(world.alloc.wake(None, &["w"]).expect("awake").copied_bytes, 160 * M);
    assert_eq!(calls(), [map, copy, wait]);
    world.sim.set_logging(false);
    close(world, (pool, block));
}

/// Page-locked memory is slow to be had and comes in whole pages, so what lies scattered on the device lies together there.
#[test]
fn scattered_content_takes_few_blocks_of_the_host() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let sizes = (0..300).map(|at| if at % 30 == 1 { 9 * M } else { 600 + at * 100 });
    let blocks: Vec<_> = sizes
        .enumerate()
        .map(|(at, bytes)| {
            let block = rig.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap();
            rig.sim.fill_bytes(block.0, bytes, at as u8).unwrap();
            (at, block, bytes)
        })
        .collect();
    let whole = |&(at, block, bytes): &(usize, DevicePtr, u64)| {
        for place in [0, bytes / 2, bytes - 1] {
            let mut byte = [0];
            rig.sim.read_bytes(block.0 + place, &mut byte).unwrap();
            assert_eq!(byte, [at as u8], "{place} of {bytes}");
        }
    };
    let (kept, gone): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|&(at, ..)| at % 2 == 1);
    gone.into_iter().for_each(|(_, block, _)| rig.alloc.deallocate(block).unwrap());
    // Once without the second block of the host.
    rig.sim.fail("aclrtMallocHost", 2, REFUSED, false).unwrap();
    assert!(rig.alloc.sleep(None, &["weights"], SleepMode::Offload).is_err());
    assert_eq!((rig.sim.count("aclrtMallocHost"), rig.sim.count("aclrtFreeHost")), (2, 1));
    rig.sim.clear_faults();
    kept.iter().for_each(whole);
    let (taken, copies) = (rig.sim.count("aclrtMallocHost"), rig.sim.count("aclrtMemcpyAsync"));
    let slept = rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    assert!(rig.sim.count("aclrtMemcpyAsync") - copies > 140, "each stretch is copied");
    assert!(slept.host_bytes > 90 * M && slept.host_bytes < 128 * M, "{slept:?}");
    assert_eq!(rig.sim.count("aclrtMallocHost") - taken, 2, "64 MiB at a time");
    // What is freed meanwhile is not copied back.
    let (kept, gone): (Vec<_>, Vec<_>) = kept.into_iter().partition(|&(at, ..)| at % 4 == 1);
    let less: u64 = gone.iter().map(|&(_, block, _)| rig.alloc.block_info(block).unwrap().bytes).sum();
    gone.into_iter().for_each(|(_, block, _)| rig.alloc.deallocate(block).unwrap());
    let woken = rig.alloc.wake(None, &["weights"]).unwrap();
    assert_eq!(woken.copied_bytes, slept.host_bytes - less);
    kept.iter().for_each(whole);
    kept.into_iter().for_each(|(_, block, _)| rig.alloc.deallocate(block).unwrap());
    assert_eq!((rig.sim.count("aclrtMallocHost"), rig.sim.count("aclrtFreeHost")), (4, 3), "one was refused");
    rig.alloc.empty_cache(None).unwrap();
    rig.alloc.check().unwrap();
    assert_eq!(rig.sim.physical_bytes(0), 0);
    assert!(rig.sim.findings().is_empty());
}

/// Host memory that the driver does not take back at first is offered again, whoever had the content it held: one that is
/// awake, a sleep that failed, a block that was freed asleep.
#[test]
fn host_memory_that_was_refused_is_offered_again() {
    let world = Setup::default().build();
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("w")).expect("a pool");
    let block = world.alloc.allocate_in(pool, 70 * M, 0, STREAM).expect("memory");
    let all = world.sim.host_memory().0;
    let fall = || world.alloc.sleep(None, &["w"], SleepMode::Offload);
    let refuse = |call, k| world.sim.fail(call, k, REFUSED, true).expect("a call");
    for way in 0..3 {
        match way {
            0 => {
                fall().expect("asleep");
                refuse("aclrtFreeHost", 1);
                wakes(&world);
            }
            1 => {
                refuse("aclrtFreeHost", 1);
                refuse("aclrtUnmapMem", 3);
                assert!(matches!(fall(), Err(Error::Driver(_))));
            }
            _ => {
                let other = world.alloc.allocate_in(pool, 9 * M, 0, Stream(0)).expect("memory");
                world.alloc.sleep(None, &["w"], SleepMode::Offload).expect("asleep");
                world.alloc.deallocate(block).expect("freed");
                refuse("aclrtFreeHost", 1);
                world.alloc.deallocate(other).expect("freed");
            }
        }
        assert!(world.sim.host_memory().0 < all, "the driver has not taken it back");
        world.sim.clear_faults();
        if way < 2 {
            fall().expect("asleep");
            wakes(&world);
        } else {
            world.alloc.shut_down();
        }
        assert_eq!(world.sim.host_memory().0, all, "way {way}");
    }
    world.alloc.release_pool(pool).expect("released");
    world.close();
}

/// A serving engine that shares its device with training, round after round: weights first, then the cache, for which there is
/// no memory until training has given up its own. Nothing piles up.
/// https://github.com/vllm-project/vllm-ascend/issues/9563, https://github.com/verl-project/verl/pull/1748
#[test]
fn rounds_of_sleep_and_training_take_no_more_each_time() {
    let world = Setup::default().build();
    let pool = |tag| world.alloc.create_pool(0, PoolOptions::tagged(tag)).expect("a pool");
    let pools = [pool("weights"), pool("cache")];
    let weights = world.alloc.allocate_in(pools[0], 200 * M, 0, STREAM).expect("memory");
    let cache = world.alloc.allocate_in(pools[1], 500 * M, 0, STREAM).expect("memory");
    world.sim.fill_bytes(weights.0, 200 * M, 7).expect("filled");
    for round in 0..12 {
        for (place, bytes) in [(None, (20 + round % 7) * M), (Some(pools[0]), (1 + round % 5) * M)] {
            let answer = match place {
                Some(pool) => world.alloc.allocate_in(pool, bytes, 0, STREAM),
                None => world.alloc.allocate(0, bytes, 0, STREAM),
            };
            world.alloc.deallocate(answer.expect("a workspace")).expect("freed");
        }
        world.alloc.sleep(None, &["weights"], SleepMode::Offload).expect("asleep");
        world.alloc.sleep(None, &["cache"], SleepMode::Discard).expect("asleep");
        let training = world.alloc.allocate(0, 1000 * M, 0, STREAM).expect("nothing is held in vain");
        world.alloc.deallocate(training).expect("freed");
        world.alloc.wake(None, &["weights"]).expect("awake");
        let update = world.alloc.allocate(0, 600 * M, 0, STREAM).expect("memory");
        assert!(matches!(world.alloc.wake(None, &["cache"]), Err(Error::OutOfMemory(_))));
        world.alloc.deallocate(update).expect("freed");
        world.alloc.wake(None, &["cache"]).expect("awake");
        for at in [0, 200 * M - 1] {
            let mut byte = [0];
            world.sim.read_bytes(weights.0 + at, &mut byte).expect("mapped");
            assert_eq!(byte, [7]);
        }
    }
    assert_eq!(world.sim.count("aclrtMallocHost"), world.sim.count("aclrtFreeHost"));
    [weights, cache].into_iter().for_each(|block| world.alloc.deallocate(block).expect("freed"));
    pools.into_iter().for_each(|pool| world.alloc.release_pool(pool).expect("released"));
    world.close();
}
