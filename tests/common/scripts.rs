//! Scripts whose expected values are the same in both modes.

use super::*;

/// B02: a fitting block only waits for a stream.
pub fn b02_waiting_block_is_used_before_failing(setup: Setup) {
    let mut world = setup.build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(600 * M, s0);
    world.work(s1, "t1", a);
    world.record(a, s1);
    world.free(a);
    let config = world.alloc.config();
    let on_device = config.expandable_segments && config.device_waits;
    world.sim.set_logging(true);
    let b = world.alloc(600 * M, s0);
    world.work(s0, "first use of B", b);
    world.verify();
    assert_eq!(b, a);
    let log: Vec<&str> = world.sim.take_log().iter().map(|entry| entry.function).collect();
    world.sim.set_logging(false);
    // The script lets the host wait once for t1, which counts as a retry. With chunks the stream waits
    // for the other on the device instead, before memory is short, where it may (`device_waits`).
    let wait = if on_device { "aclrtStreamWaitEvent" } else { "aclrtSynchronizeEvent" };
    let at = log.iter().position(|call| *call == wait).expect("a wait");
    let waits = log.iter().filter(|call| call.contains("Synchronize") || call.contains("WaitEvent"));
    assert_eq!(waits.count(), 1, "{log:?}");
    for call in ["aclrtMapMem", "aclrtUnmapMem", "aclrtFreePhysical", "aclrtMallocAlign32", "aclrtFree"] {
        assert!(!log[at..].contains(&call), "{log:?}");
    }
    let stats = world.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms), (u64::from(!on_device), 0));
    assert_eq!(world.sizes(), (600 * M, 600 * M, 600 * M));
    world.close();
}

/// B07: a slow stream holds back only its own blocks.
pub fn b07_a_slow_stream_holds_back_its_own_blocks_only(setup: Setup) {
    let mut world = setup.build();
    let (s0, s1, s2) = (world.stream(), world.stream(), world.stream());
    let a = world.alloc(20 * M, s0);
    let b = world.alloc(20 * M, s0);
    world.work(s1, "t1", a);
    world.record(a, s1);
    world.work(s2, "t2", b);
    world.record(b, s2);
    world.free(a);
    world.free(b);
    world.finish(s2);
    let before = world.sim.counters();
    let c = world.alloc(20 * M, s0);
    world.work(s0, "first use of C", c);
    world.verify();
    assert_eq!(c, b);
    let calls = world.calls_since(&before);
    for call in ["aclrtMapMem", "aclrtMallocAlign32", "aclrtStreamWaitEvent"] {
        assert_eq!(calls.get(call), None, "{call}");
    }
    assert_no_host_wait(&calls);
    assert_eq!(world.sizes(), (20 * M, 40 * M, 40 * M));
    world.finish(s1);
    // A request that needs memory looks at what has finished; the script's "any alloc" does it for
    // every request, here those that find a free block ask nobody.
    let d = world.alloc(20 * M, s0);
    assert_eq!(d, a);
    assert_eq!(world.active(), world.allocated());
    world.close();
}

/// B10: a stream's handle is given to a new stream while old work runs.
pub fn b10_a_handle_is_not_a_stream(setup: Setup) {
    let mut world = setup.build();
    world.sim.executor().set_stream_handle_reuse(true);
    world.sim.executor().set_destroy_waits(false);
    let s1 = world.stream();
    let a = world.alloc(20 * M, s1);
    world.work(s1, "t1", a);
    world.free(a);
    world.destroy(s1);
    let s2 = world.stream();
    assert_eq!(s2, s1, "the machine gives the handle again");
    let before = world.sim.counters();
    let b = world.alloc(20 * M, s2);
    world.work(s2, "first use of B", b);
    world.verify();
    let waited = world.calls_since(&before).contains_key("aclrtSynchronizeDevice");
    assert!(b != a || waited, "handed out while t1 runs");
    world.close();
}

/// B10, with the block freed after its stream was destroyed and the handle came back.
pub fn b10_a_block_freed_after_its_stream_is_gone(setup: Setup) {
    let mut world = setup.build();
    world.sim.executor().set_stream_handle_reuse(true);
    world.sim.executor().set_destroy_waits(false);
    let s1 = world.stream();
    let a = world.alloc(20 * M, s1);
    world.work(s1, "t1", a);
    world.destroy(s1);
    let s2 = world.stream();
    assert_eq!(s2, s1, "the machine gives the handle again");
    let other = world.alloc(4 * M, s2);
    world.free(a);
    let b = world.alloc(20 * M, s2);
    world.work(s2, "first use of B", b);
    world.verify();
    world.free(other);
    world.close();
}

/// B10: blocks recorded on a stream that is gone.
pub fn b10_blocks_recorded_on_a_stream_that_is_gone(setup: Setup) {
    let mut world = setup.build();
    world.sim.executor().set_stream_handle_reuse(true);
    world.sim.executor().set_destroy_waits(false);
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(20 * M, s0);
    world.work(s1, "t1", a);
    world.record(a, s1);
    world.destroy(s1);
    let s2 = world.stream();
    assert_eq!(s2, s1, "the machine gives the handle again");
    // The new stream is used and passes everything; that says nothing of the old one.
    let c = world.alloc(4 * M, s2);
    world.work(s2, "t2", c);
    world.free(a);
    world.finish(s2);
    let b = world.alloc(20 * M, s0);
    world.work(s0, "first use of B", b);
    world.verify();
    world.close();
}

/// B10 without the hook: the driver refuses the dead handle, and the device is waited for.
pub fn b10_a_dead_handle_is_answered_by_a_device_wait(setup: Setup) {
    let mut world = setup.build();
    world.sim.executor().set_destroy_waits(false);
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(600 * M, s0);
    world.work(s1, "t1", a);
    world.record(a, s1);
    world.sim.on_device(0, || world.sim.destroy_stream(s1.0)).unwrap().expect("destroyed");
    world.free(a);
    assert_eq!(world.active(), 600 * M, "t1 may still run");
    let b = world.alloc(600 * M, s0);
    world.work(s0, "first use of B", b);
    world.verify();
    assert_eq!(world.stats().calls.wait_device, 1);
    world.close();
}

/// B10 with the hook: once a stream is gone no call names it, whether blocks are freed before or after.
pub fn b10_a_dead_handle_is_never_used(setup: Setup) {
    let mut world = setup.build();
    world.sim.executor().set_destroy_waits(false);
    let (s0, s1) = (world.stream(), world.stream());
    let (of_it, freed) = (world.alloc(20 * M, s1), world.alloc(20 * M, s1));
    let (used, used_freed) = (world.alloc(20 * M, s0), world.alloc(20 * M, s0));
    for (label, block) in [("t1", of_it), ("t2", freed), ("t3", used), ("t4", used_freed)] {
        world.work(s1, label, block);
    }
    world.record(used, s1);
    world.record(used_freed, s1);
    world.free(freed);
    world.free(used_freed);
    world.destroy(s1);
    world.sim.set_logging(true);
    world.free(of_it);
    world.free(used);
    let new = world.alloc(900 * M, s0);
    world.work(s0, "first use", new);
    world.free(new);
    world.alloc.empty_cache(None).expect("emptied");
    world.verify();
    let dead = format!("{:#x}", s1.0);
    let log = world.sim.take_log();
    assert!(!log.is_empty());
    for entry in log {
        let mut words = entry.arguments.split(|c: char| !c.is_ascii_alphanumeric());
        assert!(!words.any(|word| word == dead), "{} {}", entry.function, entry.arguments);
    }
    assert_eq!((world.stats().num_ooms, world.reserved()), (0, 0));
    world.close();
}

/// B14, its second part: caching is switched off and on between an allocation and its free.
pub fn b14_the_record_of_the_block_decides_where_it_goes(setup: Setup) {
    let mut world = setup.build();
    let s0 = world.stream();
    let a = world.alloc(4 * M, s0);
    assert!(world.alloc.set_caching(0, false).expect("switched"));
    let kept = world.reserved();
    world.free(a);
    assert_eq!((world.reserved(), world.stats().calls.free), (kept, 0), "it goes back to the cache");
    let made = world.stats().calls.malloc;
    let b = world.alloc(4 * M, s0);
    world.work(s0, "first use of B", b);
    assert_eq!(
        (world.stats().calls.malloc - made, world.reserved() - kept),
        (1, 4 * M),
        "a block of its own"
    );
    assert!(!world.alloc.set_caching(0, true).expect("switched"));
    world.free(b);
    assert_eq!((world.reserved(), world.stats().calls.free), (kept, 1));
    let c = world.alloc(4 * M, s0);
    assert_eq!(c, a, "the cache serves again");
    world.verify();
    world.close();
}

/// B13: pointers that are not the start of a live block, null, and requests of zero bytes.
pub fn b13_bad_pointers_and_nothing(setup: Setup) {
    let mut world = setup.build();
    let (s0, s1) = (world.stream(), world.stream());
    // Nothing has been asked of the driver yet, and zero bytes change that not.
    let (before, unused) = (world.sim.counters(), world.stats());
    for _ in 0..2 {
        assert_eq!(world.alloc.allocate(0, 0, 0, s0).expect("nothing"), DevicePtr::NULL);
        let pool = PoolId::default_of(0);
        assert_eq!(world.alloc.allocate_in(pool, 0, 0, s0).expect("nothing"), DevicePtr::NULL);
        world.alloc.deallocate(DevicePtr::NULL).expect("nothing");
    }
    world.alloc.record_stream(DevicePtr::NULL, s1).expect("nothing");
    assert_eq!(world.calls_since(&before), BTreeMap::new());
    assert_eq!(world.stats(), unused);
    assert!(matches!(world.alloc.allocate(7, 0, 0, s0), Err(Error::Argument { name: "device", .. })));
    world.free_fails(DevicePtr(0x100), PointerKind::Foreign);

    let a = world.alloc(4 * M, s0);
    world.free_fails(DevicePtr(a.0 + 512), PointerKind::Interior);
    world.free_fails(DevicePtr(a.0 + 1), PointerKind::Interior);
    let outside = world.sim.on_device(0, || world.sim.malloc(4 * M, 0)).unwrap().expect("memory");
    refused_pointer(world.alloc.deallocate(DevicePtr(outside)), DevicePtr(outside), PointerKind::Foreign);
    world.sim.on_device(0, || world.sim.free_with_dev_sync(outside)).unwrap().expect("freed");

    let inside = DevicePtr(a.0 + 100);
    let before = world.stats();
    refused_pointer(world.alloc.record_stream(inside, s1), inside, PointerKind::Interior);
    refused_pointer(world.alloc.grow_in_place(inside, 8 * M), inside, PointerKind::Interior);
    refused_pointer(world.alloc.shrink_in_place(inside, 2 * M), inside, PointerKind::Interior);
    refused_pointer(world.alloc.block_info(inside), inside, PointerKind::Interior);
    assert_eq!(world.stats(), before);
    world.record(a, s0);
    let events = world.sim.count("aclrtRecordEvent");
    world.free(a);
    assert_eq!(world.sim.count("aclrtRecordEvent"), events, "its own stream needs no event");
    assert_eq!(world.active(), 0);
    let before = world.stats();
    refused_pointer(world.alloc.record_stream(a, s1), a, PointerKind::NotLive);
    assert_eq!(world.stats(), before);
    world.free_fails(a, PointerKind::NotLive);
    // The same for a small block, which rests in the front.
    let b = world.alloc(1000, s0);
    world.free(b);
    world.free_fails(b, PointerKind::NotLive);
    refused_pointer(world.alloc.record_stream(b, s1), b, PointerKind::NotLive);
    refused_pointer(world.alloc.block_info(b), b, PointerKind::NotLive);
    world.close();
}

/// B20: sizes near the integer limit, and wrong alignments.
pub fn b20_sizes_near_the_limit(setup: Setup) {
    let mut world = setup.build();
    let s0 = world.stream();
    const MAX: u64 = u64::MAX;
    let mut sizes =
        vec![MAX, MAX - 1, MAX - 510, MAX - 511, 1 << 63, (1 << 63) + 1, 1 << 60, (1 << 48) + 1, 1 << 48];
    sizes.extend((31..=543).step_by(32).map(|less| MAX - less));
    let before = world.sim.counters();
    for &bytes in &sizes {
        for align in [0, 1, 512, 1 << 21, 1 << 63] {
            let stats = world.stats();
            let answer = world.try_alloc(0, bytes, align, s0);
            assert!(matches!(answer, Err(Error::Size { requested, .. }) if requested == bytes), "{answer:?}");
            assert_eq!(world.stats(), stats);
        }
    }
    for (bytes, align) in [(512, 3), (MAX, 3), (512, MAX), (0, 3), (4 * M, 1000)] {
        let answer = world.try_alloc(0, bytes, align, s0);
        assert!(matches!(answer, Err(Error::Argument { name: "align", .. })), "{bytes} {align}: {answer:?}");
    }
    assert_eq!(world.calls_since(&before), BTreeMap::new(), "the driver was asked");
    // More than the device has, but no more than could be: memory is what is missing.
    let before = world.stats();
    let report = world.alloc_fails(1 << 40, s0);
    assert_eq!(report.cause, ascend_alloc::error::OutOfMemoryCause::Device);
    let stats = world.stats();
    assert!(stats.segment.all.current <= before.segment.all.current, "a segment for a hopeless request");
    assert_eq!(stats.reserved_address_space, before.reserved_address_space);
    assert_eq!(stats.allocated_bytes.all.current, before.allocated_bytes.all.current);
    let answer = world.try_alloc(0, 512, 1 << 63, s0);
    assert!(answer.is_err(), "{answer:?}");
    world.verify();
    let a = world.alloc(512, s0);
    let b = world.alloc(512, s0);
    assert_ne!(a, b);
    world.close();
}

/// B46: codes stay what they are, and what failed once works the next time.
pub fn b46_codes_are_kept(setup: Setup, call: &str) {
    let mut world = setup.build();
    let (s0, s1) = (world.stream(), world.stream());
    let cached = world.alloc(40 * M, s1);
    world.work(s1, "t1", cached);
    world.free(cached);
    world.sim.fail(call, 1, 507_899, false).expect("a function");
    refused_by_driver(world.try_alloc(0, 20 * M, 0, s0), 507_899);
    world.verify();
    let stats = world.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (0, 0));
    assert_eq!(world.reserved(), 40 * M, "stays cached");
    world.sim.fail(call, 1, 207_001, false).expect("a function");
    let a = world.alloc(20 * M, s0);
    world.work(s0, "first use of A", a);
    let stats = world.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (0, 1));
    world.close();
}

/// B46: setting a device up fails, and works the next time.
pub fn b46_a_device_is_set_up_the_second_time(setup: Setup) {
    let mut world = setup.build();
    let s0 = world.stream();
    for call in ["aclrtGetMemInfo", "aclrtMemGetAllocationGranularity"] {
        world.sim.fail(call, 1, 100_000, false).expect("a function");
        refused_by_driver(world.try_alloc(0, 512, 0, s0), 100_000);
        for call in ["aclrtReserveMemAddress", "aclrtMallocPhysical", "aclrtMallocAlign32"] {
            assert_eq!(world.sim.count(call), 0, "{call}");
        }
    }
    world.alloc(512, s0);
    world.close();
}

/// B43, what both modes share: refused fractions, devices apart, allocators apart.
pub fn b43_fractions(setup: Setup) {
    let mut world = setup.devices(2).build();
    for wrong in [0.0, -0.1, 1.5, f64::NAN, f64::INFINITY] {
        let answer = world.alloc.set_memory_fraction(0, wrong);
        assert!(matches!(answer, Err(Error::Argument { name: "fraction", .. })), "{wrong}: {answer:?}");
    }
    assert!(matches!(world.alloc.set_memory_fraction(2, 0.5), Err(Error::Argument { name: "device", .. })));
    world.alloc.set_memory_fraction(0, 0.125).expect("set");
    let s0 = world.stream();
    let report = world.alloc_fails(200 * M, s0);
    assert_eq!(report.limit, Some(128 * M));
    // The other device has no limit.
    let s1 = world.stream_on(1);
    world.try_alloc(1, 200 * M, 0, s1).expect("memory");
    world.verify();
    // Nor has another allocator on the same device.
    let other = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(world.sim.clone()))).unwrap();
    let foreign = other.allocate(0, 200 * M, 0, s0).expect("memory");
    other.deallocate(foreign).expect("freed");
    drop(other);
    world.alloc.set_memory_fraction(0, 1.0).expect("set");
    let a = world.try_alloc(0, 200 * M, 0, s0).expect("memory");
    world.alloc.deallocate(a).expect("freed");
    world.live.remove(&a.0);
    let (sim, devices) = (world.sim.clone(), world.devices);
    world.live.keys().for_each(|&at| world.alloc.deallocate(DevicePtr(at)).expect("freed"));
    drop(world);
    assert_nothing_left(&sim, devices);
}

/// That the host waited for nothing.
#[track_caller]
pub fn assert_no_host_wait(calls: &BTreeMap<&'static str, u64>) {
    for call in ["aclrtSynchronizeEvent", "aclrtSynchronizeStream", "aclrtSynchronizeDevice"] {
        assert_eq!(calls.get(call), None, "the host waited");
    }
}
