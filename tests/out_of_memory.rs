//! What an out-of-memory error says: every field, and the text.

mod common;

use std::sync::Arc;

use ascend_alloc::driver::Stream;
use ascend_alloc::error::{HeldBack, Holder, OutOfMemory, OutOfMemoryCause, PoolShare};
use ascend_alloc::{Error, GrowableBuffer, GrowableOptions, PoolOptions, RouteFilter, SleepMode};
use ascend_sim::Soc;
use common::{CLASSIC, Elsewhere, G, K, M, Setup, ran_out};

#[test]
fn every_field_says_what_is_there() {
    let world = Setup::default().capacity(256 * M).build();
    let (s0, s1) = (world.stream(), world.stream());
    world.alloc.set_soft_limit(0, Some(200 * M)).expect("set");
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("weights")).expect("a pool");
    let weights = [0, 1].map(|_| world.alloc.allocate_in(pool, 20 * M, 0, s1).expect("memory"));
    let a = world.alloc.allocate(0, 101 * M, 0, s0).expect("memory");
    // Two MiB of it are free, one in a chunk of its own, one beside a live block.
    let b = world.alloc.allocate(0, 3 * M, 0, s0).expect("memory");
    world.sim.set_foreign_bytes(0, 64 * M);
    let answer = world.alloc.allocate(0, 100 * M, 0, s0);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    assert_eq!((report.device, report.requested, report.cause), (0, 100 * M, OutOfMemoryCause::Device));
    // 144 MiB are held and 64 MiB are another's, so 48 MiB are free.
    assert_eq!(report.lacking, 52 * M);
    assert_eq!((report.allocated, report.active, report.reserved), (144 * M, 144 * M, 144 * M));
    assert_eq!((report.idle, report.scattered, report.cached_handles, report.largest_free), (0, 0, 0, 0));
    assert_eq!((report.device_free, report.device_total), (48 * M, 256 * M));
    assert_eq!(report.held_by_others, 64 * M);
    assert_eq!((report.limit, report.soft_limit), (None, Some(200 * M)));
    let stats = world.stats();
    assert_eq!(report.address_space, stats.reserved_address_space);
    let share = |pool, tag: &str, reserved| PoolShare {
        pool,
        tag: tag.to_owned(),
        reserved,
        idle: 0,
        largest_fit: 0,
    };
    assert_eq!(report.pools, [share(0, "", 104 * M), share(pool.serial, "weights", 40 * M)]);
    let holder =
        |pool, tag: &str, stream, bytes, blocks| Holder { pool, tag: tag.to_owned(), stream, bytes, blocks };
    let holders = [holder(0, "", s0, 104 * M, 2), holder(pool.serial, "weights", s1, 40 * M, 2)];
    assert_eq!(report.holders, holders);
    assert_eq!(report.pending, []);
    let helps: Vec<_> = report.remedies.iter().map(|remedy| (remedy.change, remedy.bytes)).collect();
    assert_eq!(helps, [("Use less memory outside this allocator", 64 * M)]);
    let text = Error::OutOfMemory(report).to_string();
    for part in [
        "asked for 100 MiB (104857600 bytes), 52 MiB are lacking; the device is full",
        "144 MiB handed out, 0 B waiting for streams, 0 B idle (0 B of it between live blocks)",
        "device: 48 MiB free of 256 MiB, 64 MiB held by others; soft limit 200 MiB",
        "the default pool: 104 MiB, 0 B idle, largest fit 0 B",
        "pool 1 \"weights\": 40 MiB",
        "104 MiB in 2 blocks of the default pool for stream 0x",
        "what helps: Use less memory outside this allocator (64 MiB more)",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    weights.into_iter().chain([a, b]).for_each(|ptr| world.alloc.deallocate(ptr).expect("freed"));
    world.close();
}

/// Idle memory that is of no use, and who holds it back.
#[test]
fn idle_and_pending_memory_is_named() {
    let mut world = Setup::default().capacity(64 * M).build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(3 * M, s0);
    let b = world.alloc(3 * M, s0);
    world.free(a);
    // One chunk of the first is free, the other is shared with the second.
    let c = world.alloc(20 * M, s1);
    world.share(s0, "t1", c);
    world.free(c);
    // The stream cannot be waited for, neither on the device nor by the host.
    for wait in
        ["aclrtStreamWaitEvent", "aclrtSynchronizeEvent", "aclrtSynchronizeStream", "aclrtSynchronizeDevice"]
    {
        world.sim.fail(wait, 1, 507_899, true).expect("a function");
    }
    let answer = world.alloc.allocate(0, 60 * M, 0, s1);
    assert!(matches!(answer, Err(Error::Driver(_))), "{answer:?}");
    world.sim.clear_faults();
    world.verify();
    // A request larger than the device fails before anything is waited for.
    let report = world.alloc_fails(65 * M, s1);
    assert_eq!(report.scattered, M, "{report}");
    // What was moved together for the request that failed went back to the device with it.
    assert_eq!(report.idle, M, "{report}");
    let held: Vec<HeldBack> = report.pending.iter().filter(|held| held.bytes == 20 * M).copied().collect();
    assert_eq!(held.iter().map(|held| held.stream).collect::<Vec<Stream>>(), [s0], "{report}");
    assert!(report.to_string().contains("20 MiB of freed blocks held back by stream 0x"), "{report}");
    world.free(b);
    world.close();
}

/// The device is called full only where it is.
#[test]
fn what_stopped_a_request_is_what_is_said() {
    let mut world = Setup::default().capacity(64 * M).build();
    for (requested, lacking) in [(65 * M, 65 * M), (64 * M - 1, 64 * M)] {
        world.sim.fail("aclrtMallocPhysical", 1, 207_001, true).expect("a function");
        let text = world.alloc_fails(requested, Stream(0)).to_string();
        let larger = requested > 64 * M;
        let said = if larger { "the device has 64 MiB in all" } else { "the driver gives no more, although" };
        assert!(text.contains(&format!("{} MiB are lacking; {said}", lacking / M)), "{text}");
        assert_eq!(text.contains("Ask for less: no block can be larger than the device."), larger, "{text}");
    }
    world.sim.clear_faults();
    world.close();

    // A request that fits only without the pad.
    let mut setup = Setup::default().capacity(64 * M);
    setup.sim.soc = Soc::Ascend910B;
    let mut world = setup.build();
    let text = world.alloc_fails(64 * M, Stream(0)).to_string();
    assert!(text.contains("64.00 MiB are lacking; the device has 64 MiB in all"), "{text}");
    assert!(text.contains("Ask for less: no block can be larger than the device."), "{text}");
    world.close();
}

/// A device that gave all it had does not keep any back, although what it gave in vain is free again.
#[test]
fn a_device_that_gave_all_it_had_is_full() {
    let full = |report: OutOfMemory| {
        assert_eq!(
            (report.lacking, report.device_free, report.cached_handles),
            (16 * M, 24 * M, 0),
            "{report}"
        );
        let said = "16 MiB are lacking; the device is full";
        assert!(report.to_string().contains(said), "{report}");
    };
    for conf in ["", CLASSIC] {
        let mut world = Setup::default().conf(conf).capacity(64 * M).build();
        let s0 = world.stream();
        world.alloc(40 * M, s0);
        full(world.alloc_fails(40 * M, s0));
        world.close();
    }
    // Nor during a capture, nor for a pool that wakes.
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let alloc = world.alloc.clone();
    let pool = alloc.create_pool(0, PoolOptions::tagged("w")).expect("a pool");
    let asleep = alloc.allocate_in(pool, 40 * M, 0, s0).expect("memory");
    alloc.sleep(None, &["w"], SleepMode::Discard).expect("asleep");
    let held = alloc.allocate(0, 40 * M, 0, s0).expect("memory");
    full(ran_out(alloc.wake(None, &["w"])));
    let graph = alloc.create_pool(0, PoolOptions::default()).expect("a pool");
    let capture = alloc.capture(graph, RouteFilter::Stream(s0)).expect("begun");
    full(ran_out(alloc.allocate_in(graph, 40 * M, 0, s0)));
    drop(capture);
    [asleep, held].into_iter().for_each(|ptr| alloc.deallocate(ptr).expect("freed"));
    drop(alloc);
    world.free_all();
    world.close();
}

/// What sleeps has no memory, so it neither holds any nor is any of it idle.
#[test]
fn pools_that_sleep_hold_nothing() {
    let world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("w")).expect("a pool");
    let [gap, block] = [0, 1].map(|_| world.alloc.allocate_in(pool, 20 * M + 700, 0, s0).expect("memory"));
    world.alloc.deallocate(gap).expect("freed");
    world.alloc.sleep(None, &["w"], SleepMode::Discard).expect("asleep");
    let answer = world.alloc.allocate(0, 65 * M, 0, s0);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    let sums = (report.idle, report.scattered, report.largest_free, report.reserved);
    assert_eq!(sums, (0, 0, 0, 0), "{report}");
    assert_eq!((&report.pools[..], &report.holders[..], &report.pending[..]), (&[][..], &[][..], &[][..]));
    let kept = 20 * M + 1024;
    assert_eq!((report.allocated, report.asleep), (kept, kept), "{report}");
    assert!(report.to_string().contains("asleep: 20.00 MiB of what is handed out"), "{report}");
    world.alloc.deallocate(block).expect("freed");
    world.close();
}

/// Neither the device nor a limit bounds what comes from elsewhere, and it is not taken for others' memory.
#[test]
fn memory_from_elsewhere_is_told_apart() {
    let world = Setup::default().capacity(64 * M).conf("memory_limit_mb:8").build();
    let s0 = world.stream();
    let mut options = PoolOptions::default();
    options.source = Some(Arc::new(Elsewhere(100 * M)));
    let pool = world.alloc.create_pool(0, options).expect("a pool");
    let answer = world.alloc.allocate_in(pool, 101 * M, 0, s0);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    assert_eq!((report.cause, report.lacking), (OutOfMemoryCause::Source, 102 * M), "{report}");
    assert!(report.to_string().contains("the pool's source has none"), "{report}");
    let block = world.alloc.allocate_in(pool, 70 * M, 0, s0).expect("more than the device has");
    world.alloc.set_memory_limit(0, None).expect("no limit");
    world.sim.set_foreign_bytes(0, 24 * M);
    let answer = world.alloc.allocate(0, 50 * M, 0, s0);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    let sums = (report.reserved, report.elsewhere, report.held_by_others);
    assert_eq!((report.cause, sums), (OutOfMemoryCause::Device, (70 * M, 70 * M, 24 * M)), "{report}");
    world.alloc.deallocate(block).expect("freed");
    world.close();
}

/// The cause is what was in the way in the end, not what else might have been.
#[test]
fn the_cause_is_what_was_in_the_way() {
    // 20 MiB can be moved, so of 30 MiB only 10 are missing: the limit has room for these, the device has none.
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let a = world.alloc(20 * M, s0);
    world.alloc(10 * M, s0);
    world.free(a);
    world.sim.set_foreign_bytes(0, 34 * M);
    world.alloc.set_memory_limit(0, Some(50 * M)).expect("a limit");
    let report = world.alloc_fails(30 * M, s0);
    assert_eq!((report.cause, report.lacking), (OutOfMemoryCause::Device, 10 * M), "{report}");
    assert!(!report.advice().contains("memory_limit_mb"), "{report}");
    // No limit stands in the way of what the device does not have at all.
    let report = world.alloc_fails(65 * M, s0);
    assert_eq!(report.cause, OutOfMemoryCause::Device, "{report}");
    assert!(report.advice().contains("no block can be larger than the device"), "{report}");
    world.close();

    // An address is what a growing buffer begins with.
    let world = Setup::default().capacity(64 * M).conf("memory_limit_mb:8").build();
    world.sim.fail("aclrtReserveMemAddress", 1, 207_001, true).expect("a function");
    let options = GrowableOptions::up_to(32 * M).at_least(16 * M);
    let answer = GrowableBuffer::new(world.alloc.clone(), 0, Stream(0), options);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    assert_eq!(report.cause, OutOfMemoryCause::AddressSpace, "{report}");
    world.sim.clear_faults();
    world.close();
}

/// What is free among small blocks serves large requests too; and a block has its pad.
#[test]
fn the_largest_fit_leaves_room_for_the_pad() {
    for padded in [false, true] {
        let setup = Setup::default().capacity(64 * M);
        let world = if padded { setup.padded() } else { setup }.build();
        let s0 = world.stream();
        let fit = || match world.alloc.allocate(0, 65 * M, 0, s0) {
            Err(Error::OutOfMemory(report)) => report.largest_free,
            other => panic!("{other:?}"),
        };
        let small: Vec<_> = (0..3).map(|_| world.alloc.allocate(0, M, 0, s0).expect("memory")).collect();
        small.into_iter().for_each(|ptr| world.alloc.deallocate(ptr).expect("freed"));
        assert_eq!(fit(), if padded { 4 * M - 32 } else { 4 * M });
        world.alloc.empty_cache(None).expect("emptied");
        let large = world.alloc.allocate(0, 4 * M, 0, s0).expect("memory");
        let beside = world.alloc.allocate(0, 2 * M, 0, s0).expect("memory");
        world.alloc.deallocate(large).expect("freed");
        let most = fit();
        assert_eq!(most, if padded { 4 * M + 480 } else { 4 * M });
        let before = world.calls_since(&Default::default());
        let again = world.alloc.allocate(0, most, 0, s0).expect("it fits");
        assert_eq!((again, world.calls_since(&Default::default())), (large, before), "where it was");
        [again, beside].into_iter().for_each(|ptr| world.alloc.deallocate(ptr).expect("freed"));
        world.close();
    }
}

/// What is left of a large block may be too small for any large request, but not for a small one.
#[test]
fn a_fit_that_is_named_can_be_used() {
    for fit in [M - 512, M, M + 512] {
        let mut world = Setup::default().capacity(8 * M).build();
        let s0 = world.stream();
        world.alloc(4 * M - fit, s0);
        world.alloc(4 * M, s0);
        let report = world.alloc_fails(fit + 512, s0);
        assert_eq!((report.idle, report.largest_free), (fit, fit), "{report}");
        world.alloc(fit, s0);
        world.close();
    }
}

/// What is free behind a growing buffer serves only that.
#[test]
fn the_largest_fit_can_be_had() {
    let world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let options = GrowableOptions::up_to(32 * M).beginning_with(30 * M);
    let mut buffer = GrowableBuffer::new(world.alloc.clone(), 0, s0, options).expect("a buffer");
    buffer.resize(2 * M).expect("smaller");
    let answer = world.alloc.allocate(0, 65 * M, 0, s0);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    assert_eq!((report.idle, report.largest_free), (28 * M, 0), "{report}");
    drop(buffer);
    world.close();
}

/// Free neighbours that are not one, because their pool does not split or their streams are not done, lie between live
/// blocks no more than one free block in their place.
#[test]
fn free_neighbours_are_not_between_live_blocks() {
    let mut world = Setup::default().capacity(64 * M).build();
    let mut options = PoolOptions::tagged("whole");
    options.no_split = true;
    let pool = world.alloc.create_pool(0, options).expect("a pool");
    let streams = [world.stream(), world.stream()];
    let [c, d] = streams.map(|stream| world.alloc(3 * M, stream));
    for (stream, block) in [(streams[0], c), (streams[1], d)] {
        world.work(stream, "use", block);
        world.free(block);
    }
    let [a, b, kept] =
        [3 * M, 3 * M, 2 * M].map(|bytes| world.alloc.allocate_in(pool, bytes, 0, Stream(0)).unwrap());
    [a, b].into_iter().for_each(|block| world.alloc.deallocate(block).unwrap());
    // More than there is on the device, so that nothing is tried.
    let report = |bytes| match world.alloc.allocate(0, bytes, 0, Stream(0)) {
        Err(Error::OutOfMemory(report)) => *report,
        other => panic!("{other:?}"),
    };
    let found = report(65 * M);
    assert_eq!((found.idle, found.scattered), (12 * M, 0), "{found}");
    world.alloc.deallocate(kept).unwrap();
    world.alloc.release_pool(pool).unwrap();
    world.close();
}

/// With rounding, the largest request that fits a free block is one that is not rounded beyond it.
#[test]
fn the_largest_fit_can_be_had_with_rounding() {
    for padded in [false, true] {
        let setup = Setup::default().conf("roundup_power2_divisions:4").capacity(64 * M);
        let mut world = if padded { setup.padded() } else { setup }.build();
        let s0 = world.stream();
        let parts = [9 * M, 7 * M, 7 * M].map(|bytes| world.alloc(bytes, s0));
        world.alloc(2 * M - 600, s0);
        parts.into_iter().for_each(|part| world.free(part));
        let largest = world.alloc_fails(65 * M, s0).largest_free;
        assert!((20 * M..=24 * M).contains(&largest), "{largest}");
        let before = world.sim.counters();
        world.alloc(largest, s0);
        let calls = world.calls_since(&before);
        assert!(!calls.contains_key("aclrtMapMem"), "{largest}: {calls:?}");
        world.close();
    }
}

/// What is left below the limit is less than a chunk: the device has more.
#[test]
fn a_limit_is_named_though_the_block_itself_would_fit_below_it() {
    for bytes in [512, 900 * K] {
        let mut world = Setup::default().conf("memory_limit_mb:5").capacity(16 * M).build();
        let s0 = world.stream();
        world.alloc(4 * M, s0);
        let report = world.alloc_fails(bytes, s0);
        assert_eq!((report.cause, report.device_free), (OutOfMemoryCause::Limit, 12 * M), "{report}");
        // One of these MiB is below the limit.
        assert!(report.remedies.iter().any(|remedy| remedy.bytes == 11 * M), "{report}");
        world.close();
    }
}

/// What is lacking is what a higher limit would have to give, whatever is held beyond it already.
#[test]
fn a_limit_that_is_higher_by_what_is_lacking_does() {
    for (conf, held, asked) in
        [("", 60, 20), ("", 40, 24), (CLASSIC, 60, 20), (CLASSIC, 40, 24), ("", 40, 51), ("", 60, 61)]
    {
        let mut world = Setup::default().conf(conf).capacity(150 * M).build();
        let s0 = world.stream();
        let (kept, gone) = (world.alloc((held - 10) * M, s0), world.alloc(10 * M, s0));
        world.alloc.set_memory_limit(0, Some(50 * M)).expect("a limit");
        world.free(gone);
        world.work(s0, "use", kept);
        let report = world.alloc_fails(asked * M, s0);
        assert_eq!(report.cause, OutOfMemoryCause::Limit, "{report}");
        let remedy = report.remedies.iter().find(|remedy| remedy.change.starts_with("Raise")).expect("one");
        // All that the device has.
        let most = report.device_free + report.reserved;
        assert_eq!(remedy.bytes, most - 50 * M, "{report}");
        // What is larger than the limit is not tried: nothing that is idle counts.
        for less in [if asked > 50 { 12 * M } else { 2 * M }, 0] {
            world.alloc.set_memory_limit(0, Some(50 * M + report.lacking - less)).expect("a limit");
            let answer = world.try_alloc(0, asked * M, 0, s0);
            assert_eq!(answer.is_ok(), less == 0, "{conf} {held} {asked}: {report}");
        }
        world.close();
    }
}

/// Raising the limit is no remedy, or none that is enough, where the device has not more either.
#[test]
fn a_limit_is_not_said_to_be_in_the_way_of_what_the_device_has_not() {
    for (conf, limit, gain) in [("", 30, 2), (CLASSIC, 30, 2), ("", 32, 0), (CLASSIC, 32, 0)] {
        let mut world = Setup::default().conf(conf).capacity(32 * M).build();
        let s0 = world.stream();
        world.alloc(20 * M, s0);
        world.alloc.set_memory_limit(0, Some(limit * M)).expect("a limit");
        let report = world.alloc_fails(14 * M, s0);
        let raise = report.remedies.iter().find(|remedy| remedy.change.starts_with("Raise"));
        assert_eq!(raise.map_or(0, |remedy| remedy.bytes), gain * M, "{report}");
        assert_eq!(raise.is_some(), gain > 0, "{report}");
        world.close();
    }
}

/// Large blocks may begin at multiples of 16 KiB only. What is cut off for that serves no large request.
#[test]
fn the_largest_fit_can_be_had_with_alignment() {
    for (before, conf) in [(3 * M + 512, ""), (3 * M, ""), (3 * M + 512, CLASSIC)] {
        for bytes in [7 * M, 2 * M + 512, 2 * M] {
            let conf =
                format!("base_addr_aligned_kb:16,{}", if conf.is_empty() { "headroom:0" } else { conf });
            let mut world = Setup::default().conf(&conf).capacity(64 * M).build();
            let s0 = world.stream();
            world.alloc(before / 2, s0);
            world.alloc(before / 2, s0);
            let gap = world.alloc(bytes - 1024, s0);
            world.alloc(2 * M - 512, s0);
            world.free(gap);
            let report = world.alloc_fails(65 * M, s0);
            let counters = world.sim.counters();
            world.alloc(report.largest_free, s0);
            let calls = world.calls_since(&counters);
            assert!(!calls.contains_key("aclrtMapMem"), "{conf} {bytes}: {report}: {calls:?}");
            world.close();
        }
    }
}

/// A fixed block at multiples of 1 GiB takes 1 GiB more: the device was said to be full, although all of it was free.
#[test]
fn the_text_says_at_which_multiples_a_block_was_to_lie() {
    let mut world = Setup::default().conf(CLASSIC).build();
    let stream = world.stream();
    let report = ran_out(world.try_alloc(0, 3 * M, G, stream));
    assert_eq!((report.align, report.device_free), (Some(G), G));
    let text = report.to_string();
    assert!(text.contains("asked for 3 MiB (3145728 bytes) at multiples of 1 GiB, "), "{text}");
    assert!(text.contains("the device has 1 GiB in all"), "{text}");
    let report = world.alloc_fails(2 * G, stream);
    assert_eq!(report.align, None);
    assert!(!report.to_string().contains("multiples"), "{report}");
    world.close();
}
