//! A full device: nothing that would do is overlooked, and nobody waits for more than is needed.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ascend_alloc::driver::Stream;
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{DevicePtr, Error, PoolOptions, RouteFilter};
use ascend_sim::Task;
use ascend_sim::WAIT_FOREVER;
use common::gate::PASSED;
use common::{CLASSIC, G, K, M, Setup, World};

/// The calls since `before` by which the host or a stream waits.
fn waits(world: &World, before: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
    let mut calls = world.calls_since(before);
    calls.retain(|name, _| name.contains("Synchronize") || name.contains("WaitEvent"));
    calls
}

/// Takes all that is left of the device, and of what is free on it.
fn fill(world: &mut World, stream: Stream) {
    let mut bytes = world.capacity;
    while bytes >= 512 {
        if world.try_alloc(0, bytes, 0, stream).is_err() {
            bytes /= 2;
        }
    }
}

/// Blocks with something live behind each, so that they are not merged when they are freed.
fn apart(world: &mut World, count: usize, bytes: u64, stream: Stream) -> Vec<DevicePtr> {
    let pair = |world: &mut World| {
        let block = world.alloc(bytes, stream);
        world.alloc(512, stream);
        block
    };
    (0..count).map(|_| pair(world)).collect()
}

/// Allocates where something is free already: nothing is mapped, given back or waited for.
#[track_caller]
fn alloc_where_it_is(world: &mut World, bytes: u64, stream: Stream) -> DevicePtr {
    let before = world.sim.counters();
    let block = world.alloc(bytes, stream);
    let mut calls = world.calls_since(&before);
    calls.retain(|name, _| name.contains("Map") || name.contains("Free"));
    assert_eq!((calls, waits(world, &before)), Default::default());
    block
}

/// Small and large blocks are kept apart, but a request does not fail for that.
#[test]
fn a_small_request_takes_what_is_free_among_large_blocks() {
    for conf in ["", "front_cache:False", CLASSIC] {
        let mut world = Setup::default().conf(conf).capacity(60 * M).build();
        let s0 = world.stream();
        let mut blocks = Vec::new();
        while let Ok(block) = world.try_alloc(0, 5 * M / 4, 0, s0) {
            blocks.push(block);
        }
        world.free(blocks[2]);
        let end = blocks[2].0 + world.block(blocks[1]);
        let small: Vec<DevicePtr> = (0..3).map(|_| alloc_where_it_is(&mut world, 3 * M / 8, s0)).collect();
        assert!(small.iter().all(|ptr| (blocks[2].0..end).contains(&ptr.0)), "{conf}: {small:x?}");
        world.alloc.shrink_in_place(small[1], M / 4).expect("shorter");
        let shorter = world.live.get_mut(&small[1].0).expect("live");
        shorter.requested = M / 4;
        let shorter = shorter.clone();
        world.write_marks(small[1].0, &shorter);
        assert!(!world.alloc.grow_in_place(small[1], M).expect("an answer"), "the next one is behind it");
        for _ in 0..2 {
            world.free(small[0]);
            assert_eq!(alloc_where_it_is(&mut world, 3 * M / 8, s0), small[0]);
        }
        small.into_iter().for_each(|ptr| world.free(ptr));
        assert_eq!(alloc_where_it_is(&mut world, 5 * M / 4, s0), blocks[2], "{conf}: they became one again");
        world.close();
    }
}

/// The other way round, where too little is free for a chunk to move.
#[test]
fn a_large_request_takes_what_is_free_among_small_blocks() {
    for conf in ["", "front_cache:False", CLASSIC] {
        let mut world = Setup::default().conf(conf).capacity(40 * M).build();
        let s0 = world.stream();
        let blocks: Vec<DevicePtr> = (0..80).map(|_| world.alloc(M / 2, s0)).collect();
        blocks[5..8].iter().for_each(|&ptr| world.free(ptr));
        for _ in 0..2 {
            let large = alloc_where_it_is(&mut world, 3 * M / 2, s0);
            assert_eq!(large, blocks[5], "{conf}");
            world.free(large);
        }
        let again: Vec<DevicePtr> = (0..3).map(|_| alloc_where_it_is(&mut world, M / 2, s0)).collect();
        assert_eq!(again, blocks[5..8], "{conf}");
        world.close();
    }
}

/// A search looks at 32 blocks of about one size. Where there is nothing else it looks at all of them.
#[test]
fn the_only_block_that_fits_is_found_behind_many_that_do_not() {
    // Too small by 1 KiB, or not aligned.
    for (others, wanted, align) in [(100 * K, 101 * K, 512), (64 * K, 64 * K, 64 * K)] {
        let mut world = Setup::default().conf("front_cache:False").capacity(16 * M).build();
        let s0 = world.stream();
        let block = world.try_alloc(0, wanted, align, s0).expect("memory");
        world.alloc(512, s0);
        let many = apart(&mut world, 60, others, s0);
        fill(&mut world, s0);
        world.free(block);
        many.into_iter().for_each(|ptr| world.free(ptr));
        assert_eq!(world.try_alloc(0, wanted, align, s0).expect("a free block fits"), block);
        world.close();
    }
}

/// A search looks at 64 other streams. Where there is nothing else it looks at all of them.
/// Where the fewest chunks are missing lie all that could be had for them. At the other place more are missing, and there
/// are as many.
#[test]
fn a_place_with_fewer_idle_chunks_is_taken_where_the_rest_cannot_be_had_otherwise() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let _head = world.alloc(3 * M, s0);
    let gap = world.alloc(5 * M, s0);
    let _middle = world.alloc(3 * M + M / 2, s0);
    let tail = world.alloc(4 * M + M / 2, s0);
    world.free(gap);
    world.alloc.trim(0, 0).expect("trimmed");
    let held = world.reserved();
    world.alloc.set_memory_limit(0, Some(held)).expect("a limit");
    world.free(tail);
    // Half a chunk and two whole ones are free behind the last block, half a chunk and a hole of two in the gap.
    let block = world.alloc(5 * M, s0);
    assert_eq!((block, world.reserved()), (gap, held));
    world.close();
}

/// A block was used on a stream that is gone, and its own has ended unseen, which shows only after the device was waited for
/// because of the first.
#[test]
fn the_device_is_waited_for_again_where_a_stream_turns_out_to_be_gone() {
    let mut world = Setup { scripted: false, ..Setup::default() }.capacity(16 * M).build();
    let (home, user, s2) = (world.stream(), world.stream(), world.stream());
    let block = world.alloc(12 * M, home);
    world.share(user, "use", block);
    world.destroy(user);
    let sim = world.sim.clone();
    sim.executor().synchronize_stream(0, home.0, WAIT_FOREVER).expect("waited");
    sim.on_device(0, || sim.destroy_stream(home.0)).unwrap().expect("destroyed");
    world.free(block);
    let again = world.alloc(12 * M, s2);
    assert_eq!(again, block);
    world.close();
}

#[test]
fn the_only_block_that_fits_is_found_on_the_last_of_many_streams() {
    for (conf, captured) in [(CLASSIC, false), ("", false), ("", true)] {
        let mut world = Setup::default().conf(conf).capacity(16 * M).build();
        let streams: Vec<Stream> = (0..80).map(|_| world.stream()).collect();
        for &stream in &streams {
            let block = world.alloc(600 * K, stream);
            world.free(block);
        }
        world.alloc.empty_cache(None).expect("emptied");
        let last = streams[79];
        world.alloc(M, last);
        let block = world.alloc(M, last);
        fill(&mut world, last);
        world.free(block);
        // It is known to be over.
        world.alloc.trim(0, u64::MAX).expect("trimmed");
        let alloc = world.alloc.clone();
        let pool = alloc.create_pool(0, PoolOptions::default()).expect("a pool");
        let capture =
            captured.then(|| alloc.capture(pool, RouteFilter::Stream(world.stream())).expect("begun"));
        assert_eq!(world.alloc(M, streams[0]), block, "{conf} {captured}");
        drop(capture);
        drop(alloc);
        world.close();
    }
}

/// What the others hold back is as much as is lacking, though less than is asked for.
#[test]
fn the_stream_waits_on_the_device_for_what_is_lacking() {
    // The device has no more, or the allocator may have no more of it.
    for limited in [false, true] {
        let mut world = Setup::default().capacity(64 * G).build();
        world.contents = false;
        if limited {
            world.alloc.set_memory_limit(0, Some(4 * G)).expect("a limit");
        }
        let most = if limited { 4 * G } else { 64 * G };
        let (s0, s1) = (world.stream(), world.stream());
        world.alloc(most - 2 * G, s0);
        let a = world.alloc(600 * M, s1);
        world.work(s1, "earlier work", a);
        world.free(a);
        let before = world.sim.counters();
        let b = world.alloc(1900 * M, s0);
        world.work(s0, "first use", b);
        assert_eq!(waits(&world, &before), [("aclrtStreamWaitEvent", 1)].into(), "limited: {limited}");
        world.close();
    }
}

/// The host waits for the stream that holds most back, and not for others as well.
#[test]
fn the_host_waits_for_the_stream_that_holds_most_back() {
    for conf in [CLASSIC, "device_waits:False"] {
        let mut world = Setup::default().conf(conf).capacity(64 * M).build();
        let (s0, s1, s2) = (world.stream(), world.stream(), world.stream());
        let small = world.alloc(100 * K, s1);
        let a = world.alloc(60 * M, s2);
        for (stream, block) in [(s1, small), (s2, a)] {
            world.work(stream, "earlier work", block);
            world.free(block);
        }
        let before = world.sim.counters();
        let b = world.alloc(60 * M, s0);
        world.work(s0, "first use", b);
        assert_eq!(b, a, "{conf}");
        assert_eq!(waits(&world, &before), [("aclrtSynchronizeEvent", 1)].into(), "{conf}");
        world.verify();
        world.close();
    }
}

/// What another thread frees while a request waits may come to rest in the front.
#[test]
fn what_rests_in_the_front_since_then_serves_a_request_that_waited() {
    let mut world = Setup::default().conf("device_waits:False").capacity(64 * M).build();
    let (s0, s1, s2) = (world.stream(), world.stream(), world.stream());
    let block = world.alloc(30 * M, s2);
    let a = world.alloc(20 * M, s1);
    world.work(s1, "earlier work", a);
    world.free(a);
    world.live.remove(&block.0);
    let alloc = Arc::downgrade(&world.alloc);
    world.driver.watch(Some(Arc::new(move |call| {
        let alloc = alloc.upgrade().expect("still there");
        if call == PASSED {
            std::thread::scope(|scope| {
                scope.spawn(|| alloc.deallocate(block).expect("freed")).join().expect("no panic");
            });
        }
    })));
    let b = world.try_alloc(0, 60 * M, 0, s0).expect("all of it is free");
    world.driver.watch(None);
    world.work(s0, "first use", b);
    world.close();
}

/// Others go on while a request waits; it does not wait for what they queue from then on.
#[test]
fn a_request_that_fails_does_not_wait_for_ever_while_others_go_on() {
    /// More than it should need.
    const MOST: u64 = 20;
    let mut world = Setup::default().conf("device_waits:False").capacity(64 * M).build();
    let (s0, s1, s2) = (world.stream(), world.stream(), world.stream());
    let kept = world.alloc(30 * M, s0);
    let a = world.alloc(4 * M, s1);
    world.work(s1, "earlier work", a);
    world.free(a);
    let turns = Arc::new(AtomicU64::new(0));
    let (alloc, sim, driver) = (world.alloc.clone(), world.sim.clone(), world.driver.clone());
    let counted = turns.clone();
    world.driver.watch(Some(Arc::new(move |call| {
        if call != PASSED || counted.fetch_add(1, SeqCst) > MOST {
            return;
        }
        let block = alloc.allocate(0, 2 * M, 0, s2).expect("room");
        let task = Task::new("more work").writes(block.0, 2 * M, 1);
        sim.on_device(0, || sim.submit(s2.0, task)).unwrap().expect("queued");
        driver.hold(s2);
        alloc.deallocate(block).expect("freed");
        // Records an event and waits for nothing.
        alloc.trim(0, u64::MAX).expect("trimmed");
    })));
    let answer = world.alloc.allocate(0, 40 * M, 0, s0);
    world.driver.watch(None);
    assert!(matches!(answer, Err(Error::OutOfMemory(_))), "{answer:?}");
    assert!(turns.load(SeqCst) < MOST, "{} waits", turns.load(SeqCst));
    world.free(kept);
    world.close();
}

/// What a request gives back another process may take, while other threads leave new idle memory: the request gives
/// back no more than the device has.
#[test]
fn a_request_that_fails_does_not_give_back_for_ever_while_others_take() {
    let world = Setup::default()
        .conf(&format!("{CLASSIC},device_waits:False,front_cache:False"))
        .capacity(400 * M)
        .build();
    let s0 = world.stream();
    let kept = world.alloc.allocate(0, 40 * M, 0, s0).expect("memory");
    let turns = Arc::new(AtomicU64::new(0));
    let (alloc, sim, counted) = (world.alloc.clone(), world.sim.clone(), turns.clone());
    let this = std::thread::current().id();
    world.driver.watch(Some(Arc::new(move |call| {
        if call != "aclrtMallocAlign32" || std::thread::current().id() != this {
            return;
        }
        assert!(counted.fetch_add(1, SeqCst) < 100, "there is no end");
        // The other process leaves 40 MiB for a moment, and takes all that is free then.
        let held = alloc.stats(0).expect("figures").reserved_bytes.all.current as u64;
        sim.set_foreign_bytes(0, 400 * M - held - 40 * M);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let block = alloc.allocate(0, 40 * M, 0, s0).expect("room");
                alloc.deallocate(block).expect("freed");
                // So that it is known to be idle.
                alloc.trim(0, u64::MAX).expect("trimmed");
            });
        });
        sim.set_foreign_bytes(0, 400 * M - held - 40 * M);
    })));
    let answer = world.alloc.allocate(0, 100 * M, 0, s0);
    world.driver.watch(None);
    assert!(matches!(answer, Err(Error::OutOfMemory(_))), "{answer:?}");
    assert!(turns.load(SeqCst) > 5, "others took what it gave back");
    world.alloc.deallocate(kept).expect("freed");
    world.close();
}

/// What is idle in a pool whose addresses a graph holds cannot be had for another place, so nothing is lost where it lies.
#[test]
fn idle_memory_of_a_graph_is_no_reason_to_take_another_place() {
    let mut world = Setup::default().conf("device_waits:False").capacity(100 * M).build();
    let (s0, s1) = (world.stream(), world.stream());
    let alloc = world.alloc.clone();
    let pool = alloc.create_pool(0, PoolOptions::default()).expect("a pool");
    let graph = alloc.capture(pool, RouteFilter::All).expect("a capture");
    let [gap, held, tail] = [36, 16, 10].map(|mib| world.alloc(mib * M, s0));
    drop(graph);
    world.free(gap);
    alloc.empty_cache(None).expect("emptied");
    let graph = alloc.capture(pool, RouteFilter::All).expect("a capture").finish();
    alloc.set_memory_limit(0, Some(world.reserved() + 22 * M)).expect("a limit");
    // The stream is not known to have passed, so at first only the gap would do.
    world.work(s0, "t", tail);
    world.free(tail);
    let block =
        alloc.allocate_in(pool, 32 * M, 0, s1).expect("ten MiB are there, the limit has room for the rest");
    assert_eq!((block, world.reserved()), (tail, 48 * M));
    world.note_new(0, block, 32 * M, 0, s1);
    world.free(held);
    drop(graph);
    alloc.release_pool(pool).expect("released");
    drop(alloc);
    world.close();
}

/// More than a limit may be held that was set later.
#[test]
fn memory_that_is_there_serves_requests_beyond_a_limit_that_was_set_later() {
    for conf in ["", CLASSIC, "device_waits:False"] {
        let mut world = Setup::default().conf(conf).capacity(100 * M).build();
        let (s0, s1) = (world.stream(), world.stream());
        let block = world.alloc(60 * M, s0);
        world.work(s0, "t", block);
        world.free(block);
        world.alloc.set_memory_limit(0, Some(40 * M)).expect("a limit");
        assert_eq!(world.alloc(60 * M, s1), block, "{conf}");
        assert_eq!(world.alloc_fails(60 * M, s1).cause, OutOfMemoryCause::Limit);
        world.close();
    }
}

/// Fixed blocks go back longest idle first, but none that the others make up for: each as good as the request needs it.
#[test]
fn no_fixed_block_goes_back_that_is_not_needed() {
    // By age, and which are left.
    for (idle, wanted, left) in [
        (&[20, 22, 24, 100, 26][..], 110, &[22, 24, 26][..]),
        (&[38, 44, 96], 114, &[44]),
        (&[20, 40, 60], 62, &[40]),
        (&[60, 40, 20], 62, &[20]),
    ] {
        let mut world = Setup::default().conf(CLASSIC).capacity(idle.iter().sum::<u64>() * M).build();
        let s0 = world.stream();
        let blocks: Vec<DevicePtr> = idle.iter().map(|mib| world.alloc(mib * M, s0)).collect();
        blocks.into_iter().for_each(|block| world.free(block));
        let block = world.alloc(wanted * M, s0);
        let segments = world.alloc.snapshot(0).unwrap().segments;
        let others = segments.iter().filter(|segment| segment.address != block.0);
        let mut found: Vec<u64> = others.map(|segment| segment.total_size / M).collect();
        found.sort_unstable();
        assert_eq!(found, left, "{idle:?} {wanted}");
        world.close();
    }
}

/// Other processes take and return memory between the calls that a request makes, never so much that it could not be served.
#[test]
fn others_take_and_return_memory_in_the_middle_of_requests() {
    const ALL: u64 = 256 * M;
    for seed in 0..30 {
        let mut setup =
            Setup::default().conf(["", "headroom:0.5", "front_cache:False"][seed % 3]).capacity(ALL);
        (setup.scripted, setup.sim.lag) = (false, 0);
        let world = setup.build();
        let streams = [world.stream(), world.stream()];
        let mut rng = fastrand::Rng::with_seed(seed as u64);
        let room = Arc::new(AtomicU64::new(0));
        let others: Arc<dyn Fn(&'static str) + Send + Sync> = {
            let (sim, room, rng) = (world.sim.clone(), room.clone(), Mutex::new(rng.fork()));
            Arc::new(move |call| {
                if ["between", "aclrtMallocPhysical", "aclrtFreePhysical", "aclrtUnmapMem"].contains(&call) {
                    let most = room.load(SeqCst).min(ALL - sim.physical_bytes(0));
                    let mut rng = rng.lock().unwrap();
                    sim.set_foreign_bytes(0, [most, 0, rng.u64(..=most)][rng.usize(..3)]);
                }
            })
        };
        world.driver.watch(Some(others.clone()));
        let mut live: Vec<(DevicePtr, u64)> = Vec::new();
        for _ in 0..300 {
            let held: u64 = live.iter().map(|&(_, bytes)| bytes).sum();
            let bytes = rng.u64(1..20) * 2 * M;
            if rng.u8(..5) < 3 && held + bytes <= ALL {
                room.store(ALL - held - bytes, SeqCst);
                world.sim.set_foreign_bytes(0, 0);
                others("between");
                let ptr = world.alloc.allocate(0, bytes, 0, streams[rng.usize(..2)]);
                live.push((
                    ptr.unwrap_or_else(|error| panic!("{seed}: {bytes} beside {held}: {error}")),
                    bytes,
                ));
            } else if !live.is_empty() {
                let (ptr, _) = live.swap_remove(rng.usize(..live.len()));
                world.alloc.deallocate(ptr).unwrap();
            }
        }
        world.driver.watch(None);
        world.alloc.check().unwrap();
    }
}
