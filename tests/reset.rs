//! bug-scenarios.md B38: a device that is reset under live, cached and waiting blocks.

mod common;

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::error::PointerKind;
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{
    Config, DeviceAllocator, EmptyOptions, Error, ExportOptions, GrowableBuffer, GrowableOptions,
    PoolOptions, RouteFilter, SleepMode,
};
use ascend_sim::{BackingMode, Sim, SimConfig};
use common::M;
use common::gated::{REFUSED, Rig};

const STREAM: Stream = Stream(0);

fn rig() -> (Sim, DeviceAllocator) {
    let config = SimConfig {
        devices: 2,
        capacity: 1 << 30,
        backing: BackingMode::MetadataOnly,
        ..SimConfig::default()
    };
    let sim = Sim::new(config);
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    (sim, allocator)
}

#[test]
fn b38_what_was_on_the_device_is_forgotten() {
    let (sim, allocator) = rig();
    let other = Stream(sim.create_stream().unwrap());
    let live = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    let small = allocator.allocate(0, 4096, 0, STREAM).unwrap();
    let cached = allocator.allocate(0, 20 * M, 0, STREAM).unwrap();
    let waiting = allocator.allocate(0, 20 * M, 0, STREAM).unwrap();
    allocator.record_stream(waiting, other).unwrap();
    allocator.deallocate(cached).unwrap();
    allocator.deallocate(waiting).unwrap();
    let elsewhere = allocator.allocate(1, 4 * M, 0, STREAM).unwrap();
    sim.reset_device_force(0).unwrap();
    sim.set_device(0).unwrap();

    let before = sim.counters();
    allocator.device_was_reset(0).unwrap();
    let stats = allocator.stats(0).unwrap();
    assert_eq!(
        [stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes].map(|stat| stat.all.current),
        [0; 3]
    );
    assert_eq!(allocator.stats(1).unwrap().reserved_bytes.all.current, 6 * M as i64);
    allocator.deallocate(live).unwrap();
    let again = allocator.deallocate(live);
    assert!(matches!(again, Err(Error::Pointer { kind: PointerKind::Foreign, .. })), "once only: {again:?}");
    allocator.device_was_reset(0).unwrap();
    allocator.empty_cache(Some(0)).unwrap();
    assert_eq!(sim.counters(), before, "nothing was asked of the driver");

    let next = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    assert!(next != small && next != cached);
    allocator.deallocate(next).unwrap();
    allocator.deallocate(small).unwrap();
    allocator.deallocate(elsewhere).unwrap();
    allocator.check().unwrap();
}

#[test]
fn no_new_block_has_the_address_of_a_stale_one() {
    let rig = Rig::with("check_level:3", 1 << 30);
    let allocator = &rig.alloc;
    let first = allocator.allocate(0, 4096, 0, STREAM).unwrap();
    rig.reset_to_the_same_addresses();
    let blocks: Vec<_> = (0..64).map(|_| allocator.allocate(0, 4096, 0, STREAM).unwrap()).collect();
    assert!(!blocks.contains(&first));
    allocator.check().unwrap();
    allocator.deallocate(first).unwrap();
    assert_eq!(allocator.allocate(0, 4096, 0, STREAM).unwrap(), first, "it is nobody's now");
    allocator.deallocate(first).unwrap();
    let more: Vec<_> = (0..64).map(|_| allocator.allocate(0, 4096, 0, STREAM).unwrap()).collect();
    for block in blocks.into_iter().chain(more) {
        allocator.deallocate(block).unwrap();
    }
    assert_eq!(allocator.stats(0).unwrap().allocated_bytes.all.current, 0);
    allocator.check().unwrap();
}

#[test]
fn pools_stay_and_what_they_were_in_has_ended() {
    let (sim, allocator) = rig();
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    allocator.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    allocator.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    let graphs = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let capture = allocator.capture(graphs, RouteFilter::All).unwrap();
    allocator.allocate(0, 8 * M, 0, STREAM).unwrap();
    sim.reset_device_force(0).unwrap();
    sim.set_device(0).unwrap();
    allocator.device_was_reset(0).unwrap();
    assert!(!allocator.is_asleep(pool).unwrap());
    drop(capture);
    let stats = allocator.pool_stats(graphs).unwrap();
    assert_eq!((stats.graphs, stats.reserved_bytes.all.current, stats.reserved_address_space), (0, 0, 0));
    let block = allocator.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    assert_eq!(allocator.pool_stats(pool).unwrap().allocated_bytes.all.current, 8 * M as i64 + 512);
    allocator.deallocate(block).unwrap();
    allocator.check().unwrap();
}

#[test]
fn without_being_told_errors_come_from_the_driver() {
    let (sim, allocator) = rig();
    let block = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    sim.reset_device_force(0).unwrap();
    sim.set_device(0).unwrap();
    allocator.deallocate(block).unwrap();
    let emptied = allocator.empty_cache(Some(0));
    assert!(matches!(emptied, Err(Error::Driver(_))), "{emptied:?}");
    allocator.check().unwrap();
}

/// Nobody has to tell page-locked memory of a reset: an event that went with the device is waited for with the device.
#[test]
fn page_locked_memory_outlives_a_reset_of_a_device_that_used_it() {
    let sim = Sim::new(SimConfig::default());
    sim.set_device(0).unwrap();
    let pinned =
        PinnedAllocator::new(PinnedOptions::default(), Arc::new(SimDriver::new(sim.clone()))).unwrap();
    let block = pinned.allocate(M, 0).unwrap();
    pinned.record_use(block, 0, STREAM).unwrap();
    pinned.deallocate(block).unwrap();
    pinned.process_events().unwrap();
    sim.reset_device_force(0).unwrap();
    sim.set_device(0).unwrap();
    pinned.empty_cache().unwrap();
    assert_eq!(pinned.stats().active_bytes.current, 0);
    let again = pinned.allocate(M, 0).unwrap();
    pinned.record_use(again, 0, STREAM).unwrap();
    pinned.deallocate(again).unwrap();
    pinned.empty_cache_waiting().unwrap();
    assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"));
}

/// Content of a pool that slept is nobody's after a reset: its host memory goes back when the cache is emptied, and until then
/// to no one, because copies may still use it.
#[test]
fn host_memory_of_lost_content_goes_back() {
    for stored in [false, true] {
        let (sim, allocator) = rig();
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver).unwrap());
        if stored {
            allocator.keep_content_in(pinned.clone()).unwrap();
        }
        let all = sim.host_memory().0;
        let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
        let lost = allocator.allocate_in(pool, 70 * M, 0, STREAM).unwrap();
        allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
        sim.reset_device_force(0).unwrap();
        sim.set_device(0).unwrap();
        allocator.device_was_reset(0).unwrap();
        // Neither without waiting nor while nobody may wait.
        allocator.empty_cache_with(None, &EmptyOptions { wait: false, ..EmptyOptions::default() }).unwrap();
        let graph = allocator.begin_capture(pool, RouteFilter::All);
        allocator.empty_cache(None).unwrap();
        assert!(sim.host_memory().0 <= all - 70 * M, "copies may use it");
        graph.and_then(|_| allocator.end_route(pool)).unwrap();
        sim.fail("aclrtSynchronizeStream", 1, REFUSED, true).unwrap();
        sim.fail("aclrtSynchronizeDevice", 1, REFUSED, true).unwrap();
        let refused = allocator.empty_cache(None);
        assert!(matches!(refused, Err(Error::Driver(_))), "{refused:?}");
        sim.clear_faults();
        allocator.empty_cache(None).unwrap();
        assert_eq!(pinned.stats().active_bytes.current, 0);
        pinned.empty_cache().unwrap();
        assert_eq!(sim.host_memory().0, all, "stored: {stored}");
        allocator.deallocate(lost).unwrap();
        allocator.release_graph(pool).unwrap();
        allocator.check().unwrap();
    }
}

/// Addresses may come again after a reset: what is held from before it has nothing to do with what is there now.
#[test]
fn what_is_held_from_before_does_nothing_to_what_came_after() {
    let (sim, allocator) = rig();
    let allocator = Arc::new(allocator);
    let pool = allocator.create_pool(0, PoolOptions::tagged("p")).unwrap();
    let buffer = || {
        let options = GrowableOptions::up_to(64 * M).beginning_with(4 * M);
        GrowableBuffer::new(allocator.clone(), 0, STREAM, options).unwrap()
    };
    let first = allocator.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    let checkpoint = allocator.checkpoint(pool).unwrap();
    let (old, export) = (buffer(), allocator.export(first, &ExportOptions::for_processes(&[1])).unwrap());
    sim.reset_device_force(0).unwrap();
    sim.set_device(0).unwrap();
    allocator.device_was_reset(0).unwrap();
    allocator.deallocate(first).unwrap();

    let second = allocator.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    let new = buffer();
    let restored = allocator.restore(&checkpoint);
    let Err(Error::State { reason, .. }) = restored else { panic!("{restored:?}") };
    assert!(reason.contains("reset since"), "{reason}");
    let recorded = old.record_stream(Stream(sim.create_stream().unwrap()));
    assert!(matches!(recorded, Err(Error::Pointer { kind: PointerKind::NotLive, .. })), "{recorded:?}");
    let allowed = export.allow(&[2]);
    assert!(matches!(allowed, Err(Error::State { .. })), "{allowed:?}");
    assert!(allocator.block_info(second).is_ok());
    drop((old, export, new));
    allocator.deallocate(second).unwrap();
    allocator.release_pool(pool).unwrap();
    allocator.empty_cache(None).unwrap();
    assert_eq!(sim.physical_bytes(0), 0);
    allocator.check().unwrap();
}

/// A release says only which pool is meant. A graph of before the reset that is destroyed late must not take the
/// addresses from one that runs, and each capture has its release.
#[test]
fn graphs_of_before_are_released_before_those_of_now() {
    for pool_first in [false, true] {
        let (sim, allocator) = rig();
        let pool = allocator.create_pool(0, PoolOptions::tagged("graph")).unwrap();
        let capture = |pool| {
            allocator.begin_capture(pool, RouteFilter::ThisThread).unwrap();
            let block = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
            allocator.end_route(pool).unwrap();
            block
        };
        let old = [capture(pool), capture(pool)];
        sim.reset_device_force(0).unwrap();
        sim.set_device(0).unwrap();
        allocator.device_was_reset(0).unwrap();
        old.into_iter().for_each(|block| allocator.deallocate(block).unwrap());
        let block = capture(pool);
        allocator.deallocate(block).unwrap();
        if pool_first {
            allocator.release_pool(pool).unwrap();
        }
        for graphs in [1, 1, 0] {
            allocator.empty_cache(None).unwrap();
            assert!(sim.is_backed(block.0, 4 * M), "the new graph runs");
            allocator.release_graph(pool).unwrap();
            assert_eq!(allocator.pool_stats(pool).unwrap().graphs, graphs);
        }
        assert!(allocator.release_graph(pool).is_err());
        allocator.empty_cache(None).unwrap();
        assert_eq!(sim.physical_bytes(0), 0);
        assert_eq!(allocator.pool_stats(pool).is_err(), pool_first, "gone with its last hold");
        allocator.check().unwrap();
    }
}
