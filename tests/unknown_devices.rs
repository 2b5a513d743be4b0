//! A device that the driver does not know is refused in the same words by every call that takes a number of one.

use core::fmt::Debug;
use std::sync::Arc;

use ascend_alloc::driver::{Engine, RegisterKind, SimDriver, Stream};
use ascend_alloc::history::HistoryOptions;
use ascend_alloc::host::{HostRegistry, PageMemory, PinnedAllocator, PinnedOptions, StagingRing};
use ascend_alloc::{
    Config, DeviceAllocator, DeviceBuffer, EmptyOptions, Error, ExportOptions, GrowableBuffer,
    GrowableOptions, PoolId, PoolOptions, Result, RouteFilter, SharedHandle, SleepMode,
};
use ascend_sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;
/// One more than there are.
const NOBODY: u32 = 2;
const S0: Stream = Stream(0);

fn machine() -> (Sim, Arc<SimDriver>) {
    let sim = Sim::new(SimConfig { devices: NOBODY, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    (sim.clone(), Arc::new(SimDriver::new(sim)))
}

#[track_caller]
fn refused<T: Debug>(answer: Result<T>) {
    match answer {
        Err(Error::Argument { name: "device", value, expected: "a device the driver knows" }) => {
            assert_eq!(value, NOBODY.to_string());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn device_memory_has_no_unknown_device() {
    let (sim, driver) = machine();
    let other = Stream(sim.create_stream().unwrap());
    let alloc = Arc::new(DeviceAllocator::new(Config::default(), driver).unwrap());
    let block = alloc.allocate(0, 3 * MIB, 0, S0).unwrap();
    let export = alloc.export(block, &ExportOptions::default()).unwrap();
    let handle = SharedHandle::from_bytes(&export.handle().to_bytes()).unwrap();
    refused(alloc.allocate(NOBODY, MIB, 0, S0));
    refused(alloc.allocate(NOBODY, 0, 0, S0));
    refused(alloc.stats(NOBODY));
    refused(alloc.reset_peak_stats(NOBODY));
    refused(alloc.reset_accumulated_stats(NOBODY));
    refused(alloc.snapshot(NOBODY));
    refused(alloc.stream_destroyed(NOBODY, other));
    refused(alloc.device_was_reset(NOBODY));
    refused(alloc.imported_bytes(NOBODY));
    refused(alloc.create_pool(NOBODY, PoolOptions::default()));
    refused(alloc.process_id(NOBODY));
    refused(alloc.trim(NOBODY, 0));
    refused(alloc.set_memory_fraction(NOBODY, 0.5));
    refused(alloc.set_caching(NOBODY, false));
    refused(alloc.set_memory_limit(NOBODY, None));
    refused(alloc.memory_limit(NOBODY));
    refused(alloc.set_soft_limit(NOBODY, None));
    refused(alloc.set_peers(NOBODY, &[0]));
    let peers = alloc.set_peers(0, &[NOBODY]);
    assert!(matches!(peers, Err(Error::Argument { name: "peers", .. })), "{peers:?}");
    refused(alloc.peers(NOBODY));
    refused(alloc.claim(NOBODY, 1, 512));
    refused(alloc.empty_cache(Some(NOBODY)));
    refused(alloc.empty_cache_with(Some(NOBODY), &EmptyOptions::default()));
    refused(alloc.sleep(Some(NOBODY), &[], SleepMode::Discard));
    refused(alloc.wake(Some(NOBODY), &[]));
    refused(alloc.import(NOBODY, &handle, S0));
    refused(alloc.note_host_wait(NOBODY, S0));
    refused(DeviceBuffer::new(alloc.clone(), NOBODY, MIB, S0));
    refused(GrowableBuffer::new(alloc.clone(), NOBODY, S0, GrowableOptions::up_to(MIB)));
    let pool = PoolId { device: NOBODY, serial: 1 };
    refused(alloc.allocate_in(pool, MIB, 0, S0));
    refused(alloc.release_pool(pool));
    refused(alloc.pool_stats(pool));
    refused(alloc.route(pool, RouteFilter::All).map(drop));
    refused(alloc.begin_route(pool, RouteFilter::All));
    refused(alloc.end_route(pool));
    refused(alloc.capture(pool, RouteFilter::All).map(drop));
    refused(alloc.begin_capture(pool, RouteFilter::All));
    refused(alloc.release_graph(pool));
    refused(alloc.checkpoint(pool).map(drop));
    refused(alloc.is_asleep(pool));
    alloc.check().unwrap();
}

/// Also while events are kept: nothing is noted of a device that is not there.
#[test]
fn histories_have_no_unknown_device() {
    let (_sim, driver) = machine();
    let alloc = DeviceAllocator::new(Config::default(), driver).unwrap();
    alloc.start_history(&HistoryOptions { entries: 100, uses: true, ..HistoryOptions::default() });
    refused(alloc.note_host_wait(NOBODY, S0));
    assert_eq!(alloc.history().events, []);
    alloc.note_host_wait(NOBODY - 1, S0).unwrap();
    assert_eq!(alloc.history().events.len(), 1);
}

#[test]
fn page_locked_memory_has_no_unknown_device() {
    let (sim, driver) = machine();
    let other = Stream(sim.create_stream().unwrap());
    let options = PinnedOptions { device: NOBODY, ..PinnedOptions::default() };
    refused(PinnedAllocator::new(options, driver.clone()));
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver.clone()).unwrap());
    let block = pinned.allocate(MIB, 0).unwrap();
    refused(pinned.record_use(block, NOBODY, S0));
    refused(pinned.stream_destroyed(NOBODY, other));
    refused(StagingRing::new(pinned.clone(), NOBODY, 2, MIB).map(drop));
    pinned.stream_destroyed(0, other).unwrap();
    pinned.deallocate(block).unwrap();

    let registry = HostRegistry::new(driver);
    let kind = RegisterKind { pinned: true, mapped: true };
    let memory = PageMemory::zeroed(4096).unwrap();
    // SAFETY: the memory is valid, and nothing is registered.
    refused(unsafe { registry.register_raw(memory.address(), 4096, NOBODY, kind, false) });
    refused(registry.can_reach(NOBODY, Engine::AiCube));
    refused(registry.register(memory, NOBODY, kind).map(drop).map_err(|(error, _)| error));
    assert_eq!(sim.recent_error(), None, "the driver was not asked");
}
