//! Sleep and wake: memory goes, addresses and content stay, and every wrong order has its answer.

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{
    Config, ContentStore, DeviceAllocator, DevicePtr, Error, PoolId, PoolOptions, RouteFilter, SleepMode,
};
use ascend_sim::{BackingMode, CaptureMode, ExecMode, LAG_NEVER, Sim, SimConfig, Soc, Task};

const MIB: u64 = 1 << 20;
const STREAM: Stream = Stream(0);

struct Rig {
    sim: Sim,
    allocator: DeviceAllocator,
    pool: PoolId,
    blocks: Vec<(DevicePtr, u64)>,
}

/// A pool `weights` with blocks of many sizes, filled with a pattern each.
fn rig(capacity: u64) -> Rig {
    let sim = Sim::new(SimConfig { capacity, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let sizes = [3 * MIB, 700, 20 * MIB, 2 * MIB, 100_000, 5 * MIB + 1];
    let blocks: Vec<_> =
        sizes.iter().map(|&bytes| (allocator.allocate_in(pool, bytes, 0, STREAM).unwrap(), bytes)).collect();
    for (number, &(ptr, bytes)) in blocks.iter().enumerate() {
        sim.fill_bytes(ptr.0, bytes, number as u8 + 1).unwrap();
    }
    // A gap between live blocks.
    let (gap, _) = blocks[3];
    allocator.deallocate(gap).unwrap();
    let blocks = blocks.into_iter().filter(|&(ptr, _)| ptr != gap).collect();
    Rig { sim, allocator, pool, blocks }
}

impl Rig {
    fn free(&self) -> u64 {
        self.sim.mem_info(1).unwrap().0
    }

    fn assert_content(&self) {
        for &(ptr, bytes) in &self.blocks {
            let mut first = [0; 4];
            let mut last = [0; 4];
            self.sim.read_bytes(ptr.0, &mut first).unwrap();
            self.sim.read_bytes(ptr.0 + bytes - 4, &mut last).unwrap();
            assert!(first[0] != 0 && first == [first[0]; 4] && last == first, "block at {:#x}", ptr.0);
        }
    }

    /// Frees everything; every taken call was answered by a returning one.
    fn finish(self) {
        let sim = self.close();
        assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"), "host memory is given back");
        assert_eq!(sim.count("aclrtMapMem"), sim.count("aclrtUnmapMem"));
    }

    /// Frees everything.
    fn close(self) -> Sim {
        for &(ptr, _) in &self.blocks {
            self.allocator.deallocate(ptr).unwrap();
        }
        self.allocator.release_pool(self.pool).unwrap();
        self.allocator.empty_cache(None).unwrap();
        self.allocator.check().unwrap();
        assert_eq!((self.sim.physical_bytes(0), self.sim.reserved_bytes()), (0, 0));
        assert!(self.sim.findings().is_empty(), "{:?}", self.sim.findings());
        self.sim
    }
}

#[test]
fn memory_goes_and_addresses_stay() {
    let rig = rig(1 << 30);
    let (free, reserved) = (rig.free(), rig.sim.reserved_bytes());
    let before = rig.allocator.stats(0).unwrap();
    let slept = rig.allocator.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    assert_eq!(slept.pools, 1);
    assert_eq!(slept.returned_bytes, rig.free() - free, "as the device counts");
    assert_eq!((slept.device_bytes, slept.host_bytes), (slept.returned_bytes, 0));
    assert_eq!((rig.sim.physical_bytes(0), rig.sim.reserved_bytes()), (0, reserved));
    let asleep = rig.allocator.stats(0).unwrap();
    assert_eq!(asleep.reserved_bytes.all.current, 0);
    assert_eq!(asleep.allocated_bytes.all.current, before.allocated_bytes.all.current);
    assert_eq!(asleep.sleeping_bytes as i64, before.active_bytes.all.current);
    assert!(rig.allocator.is_asleep(rig.pool).unwrap());
    let woken = rig.allocator.wake(None, &["weights"]).unwrap();
    // The gap of 2 MiB between live blocks may stay without memory.
    assert!(woken.mapped_bytes <= slept.returned_bytes && woken.copied_bytes == 0);
    for &(ptr, bytes) in &rig.blocks {
        assert_eq!(rig.allocator.block_info(ptr).unwrap().requested, bytes);
        rig.sim.fill_bytes(ptr.0, bytes, 9).unwrap();
    }
    assert_eq!(rig.allocator.stats(0).unwrap().sleeping_bytes, 0);
    rig.finish();
}

#[test]
fn offloaded_content_comes_back() {
    let rig = rig(1 << 30);
    let slept = rig.allocator.sleep(Some(0), &["weights"], SleepMode::Offload).unwrap();
    let live: u64 = rig.blocks.iter().map(|&(ptr, _)| rig.allocator.block_info(ptr).unwrap().bytes).sum();
    assert_eq!(slept.host_bytes, live, "what is free is not copied");
    // Another tenant uses the memory meanwhile.
    let tenant = rig.allocator.allocate(0, 1 << 29, 0, STREAM).unwrap();
    rig.sim.fill_bytes(tenant.0, 1 << 29, 0xee).unwrap();
    rig.allocator.deallocate(tenant).unwrap();
    let woken = rig.allocator.wake(Some(0), &["weights"]).unwrap();
    assert_eq!(woken.copied_bytes, live);
    rig.assert_content();
    rig.finish();
}

#[test]
fn with_a_store_the_next_sleep_takes_no_new_host_memory() {
    let rig = rig(1 << 30);
    let driver = Arc::new(SimDriver::new(rig.sim.clone()));
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver).unwrap());
    rig.allocator.keep_content_in(pinned.clone()).unwrap();
    let mut taken = Vec::new();
    for _ in 0..3 {
        let slept = rig.allocator.sleep(Some(0), &["weights"], SleepMode::Offload).unwrap();
        let kept = pinned.stats().active_bytes.current as u64;
        assert!(kept >= slept.host_bytes && slept.host_bytes > 28 * MIB, "{kept} for {}", slept.host_bytes);
        rig.allocator.wake(Some(0), &["weights"]).unwrap();
        rig.assert_content();
        assert_eq!(pinned.stats().active_bytes.current, 0);
        taken.push(rig.sim.count("aclrtMallocHost"));
    }
    assert!(taken[0] > 0 && taken[2] == taken[0], "{taken:?}");
    let again = rig.allocator.keep_content_in(pinned.clone());
    assert!(matches!(again, Err(Error::State { .. })), "{again:?}");
    pinned.empty_cache().unwrap();
    rig.finish();
}

/// What is kept together is no reason to refuse: each piece is as small as the store wants it.
#[test]
fn a_store_of_small_blocks_keeps_content_in_many() {
    let rig = rig(1 << 30);
    let driver = Arc::new(SimDriver::new(rig.sim.clone()));
    let options = PinnedOptions { largest_request: MIB - 100, ..PinnedOptions::default() };
    let pinned = Arc::new(PinnedAllocator::new(options, driver).unwrap());
    rig.allocator.keep_content_in(pinned.clone()).unwrap();
    let slept = rig.allocator.sleep(Some(0), &["weights"], SleepMode::Offload).unwrap();
    assert!(pinned.stats().active_requests.current as u64 >= slept.host_bytes / MIB);
    rig.allocator.wake(Some(0), &["weights"]).unwrap();
    rig.assert_content();
    assert_eq!(pinned.stats().active_bytes.current, 0);
    pinned.empty_cache().unwrap();
    rig.finish();
}

#[test]
fn a_store_without_memory_leaves_the_pools_awake() {
    let rig = rig(1 << 30);
    let driver = Arc::new(SimDriver::new(rig.sim.clone()));
    let options = PinnedOptions { max_total: Some(16 * MIB), ..PinnedOptions::default() };
    let pinned = Arc::new(PinnedAllocator::new(options, driver).unwrap());
    rig.allocator.keep_content_in(pinned.clone()).unwrap();
    let refused = rig.allocator.sleep(Some(0), &["weights"], SleepMode::Offload);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert!(!rig.allocator.is_asleep(rig.pool).unwrap());
    rig.assert_content();
    assert_eq!(pinned.stats().active_bytes.current, 0);
    pinned.empty_cache().unwrap();
    rig.finish();
}

/// Resets the device and puts the pools to sleep again while their first sleep asks for host memory, as other threads
/// might.
struct Interrupting {
    sim: Sim,
    allocator: std::sync::OnceLock<std::sync::Weak<DeviceAllocator>>,
    refilled: std::sync::atomic::AtomicBool,
    pool: PoolId,
}

// SAFETY: it gives out memory of the simulator's host calls.
unsafe impl ContentStore for Interrupting {
    fn take(&self, _device: u32, bytes: u64) -> Result<u64, Error> {
        let allocator = self.allocator.get().unwrap().upgrade().unwrap();
        if !self.refilled.swap(true, std::sync::atomic::Ordering::Relaxed) {
            allocator.device_was_reset(0).unwrap();
            allocator.allocate_in(self.pool, 6 * MIB, 0, STREAM).unwrap();
            let slept = allocator.sleep(Some(0), &["weights"], SleepMode::Discard).unwrap();
            assert_eq!(slept.pools, 1);
        }
        Ok(self.sim.malloc_host(bytes).unwrap())
    }

    fn give_back(&self, _device: u32, address: u64) {
        self.sim.free_host(address).unwrap();
    }
}

#[test]
fn a_reset_in_the_middle_of_a_sleep_does_not_touch_the_next_one() {
    let rig = rig(1 << 30);
    let Rig { sim, allocator, pool, .. } = rig;
    let allocator = Arc::new(allocator);
    let store = Arc::new(Interrupting {
        sim: sim.clone(),
        allocator: std::sync::OnceLock::new(),
        refilled: std::sync::atomic::AtomicBool::new(false),
        pool,
    });
    store.allocator.set(Arc::downgrade(&allocator)).unwrap();
    allocator.keep_content_in(store).unwrap();
    let first = allocator.sleep(Some(0), &["weights"], SleepMode::Offload);
    assert!(matches!(first, Err(Error::State { .. })), "{first:?}");
    // The second sleep, which began after the reset, holds as it was: without content.
    assert!(allocator.is_asleep(pool).unwrap());
    let woken = allocator.wake(Some(0), &["weights"]).unwrap();
    assert_eq!((woken.pools, woken.mapped_bytes, woken.copied_bytes), (1, 8 * MIB, 0));
    assert_eq!(
        sim.count("aclrtMallocHost"),
        sim.count("aclrtFreeHost"),
        "content nobody wants is given back"
    );
    allocator.check().unwrap();
}

#[test]
fn queued_work_is_waited_for() {
    let rig = rig(1 << 30);
    let other = Stream(rig.sim.create_stream().unwrap());
    let (ptr, bytes) = rig.blocks[2];
    rig.allocator.record_stream(ptr, other).unwrap();
    rig.sim.submit(other.0, Task::new("kernel").writes(ptr.0, bytes, 1)).unwrap();
    rig.allocator.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    assert!(rig.sim.findings().is_empty(), "{:?}", rig.sim.findings());
    assert_eq!(rig.sim.count("aclrtSynchronizeDevice"), 0, "only the streams that used it");
    rig.allocator.wake(None, &["weights"]).unwrap();
    rig.finish();
}

#[test]
fn sleeping_and_waking_twice_changes_nothing() {
    let rig = rig(1 << 30);
    assert_eq!(rig.allocator.wake(None, &["weights"]).unwrap().pools, 0, "it was awake");
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    for mode in [SleepMode::Offload, SleepMode::Discard] {
        assert_eq!(rig.allocator.sleep(None, &["weights"], mode).unwrap(), Default::default());
    }
    assert_eq!(rig.allocator.wake(None, &["weights"]).unwrap().pools, 1);
    assert_eq!(rig.allocator.wake(None, &["weights"]).unwrap(), Default::default());
    rig.assert_content();
    rig.finish();
}

#[test]
fn blocks_can_be_freed_while_asleep() {
    for all in [false, true] {
        let mut rig = rig(1 << 30);
        rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
        let rest = if all { 0 } else { 2 };
        for (ptr, _) in rig.blocks.split_off(rest) {
            rig.allocator.deallocate(ptr).unwrap();
            assert!(matches!(rig.allocator.deallocate(ptr), Err(Error::Pointer { .. })), "once only");
        }
        assert_eq!(rig.allocator.is_asleep(rig.pool).unwrap(), !all, "the last block wakes it");
        let woken = rig.allocator.wake(None, &["weights"]).unwrap();
        assert_eq!(woken.pools, u32::from(!all));
        rig.assert_content();
        let again = rig.allocator.allocate_in(rig.pool, 8 * MIB, 0, STREAM).unwrap();
        rig.allocator.deallocate(again).unwrap();
        rig.finish();
    }
}

#[test]
fn what_a_sleeping_pool_cannot_do_is_said() {
    let rig = rig(1 << 30);
    rig.allocator.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    let state = |answer: Result<(), Error>| assert!(matches!(answer, Err(Error::State { .. })), "{answer:?}");
    state(rig.allocator.allocate_in(rig.pool, MIB, 0, STREAM).map(drop));
    let route = rig.allocator.route(rig.pool, RouteFilter::ThisThread).unwrap();
    state(rig.allocator.allocate(0, MIB, 0, STREAM).map(drop));
    drop(route);
    let (ptr, bytes) = rig.blocks[0];
    state(rig.allocator.grow_in_place(ptr, bytes + 4 * MIB).map(drop));
    rig.allocator.shrink_in_place(ptr, 2 * MIB).unwrap();
    let other = Stream(rig.sim.create_stream().unwrap());
    rig.allocator.record_stream(ptr, other).unwrap();
    rig.allocator.empty_cache(None).unwrap();
    rig.allocator.check().unwrap();
    let missing = rig.allocator.sleep(None, &["activations"], SleepMode::Discard);
    assert!(matches!(missing, Err(Error::Argument { name: "tag", .. })), "{missing:?}");
    state(rig.allocator.sleep(None, &[""], SleepMode::Discard).map(drop));
    rig.allocator.wake(None, &["weights"]).unwrap();
    rig.finish();
}

#[test]
fn pools_of_one_tag_wake_without_the_others() {
    let rig = rig(1 << 30);
    let cache = rig.allocator.create_pool(0, PoolOptions::tagged("cache")).unwrap();
    let block = rig.allocator.allocate_in(cache, 30 * MIB, 0, STREAM).unwrap();
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.allocator.sleep(None, &["cache"], SleepMode::Discard).unwrap();
    assert_eq!(rig.sim.physical_bytes(0), 0);
    rig.allocator.wake(None, &["weights"]).unwrap();
    rig.assert_content();
    assert!(rig.allocator.is_asleep(cache).unwrap());
    rig.allocator.wake(None, &["cache"]).unwrap();
    rig.allocator.deallocate(block).unwrap();
    rig.allocator.release_pool(cache).unwrap();
    rig.finish();
}

#[test]
fn waking_without_enough_memory_leaves_all_asleep() {
    let rig = rig(64 * MIB);
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.sim.set_foreign_bytes(0, 50 * MIB);
    let failed = rig.allocator.wake(None, &["weights"]);
    assert!(matches!(failed, Err(Error::OutOfMemory(_))), "{failed:?}");
    assert!(rig.allocator.is_asleep(rig.pool).unwrap());
    assert_eq!(rig.sim.physical_bytes(0), 0, "what was taken went back");
    rig.allocator.check().unwrap();
    rig.sim.set_foreign_bytes(0, 0);
    // What is idle in another pool is taken.
    let idle = rig.allocator.allocate(0, 60 * MIB, 0, STREAM).unwrap();
    rig.allocator.deallocate(idle).unwrap();
    rig.allocator.wake(None, &["weights"]).unwrap();
    rig.assert_content();
    rig.finish();
}

#[test]
fn captures_keep_a_pool_awake() {
    let rig = rig(1 << 30);
    let stream = Stream(rig.sim.create_stream().unwrap());
    rig.allocator.record_stream(rig.blocks[0].0, stream).unwrap();
    rig.sim.capture_begin(stream.0, CaptureMode::Global).unwrap();
    let refused = rig.allocator.sleep(None, &["weights"], SleepMode::Offload);
    assert!(refused.is_err(), "{refused:?}");
    assert!(!rig.allocator.is_asleep(rig.pool).unwrap());
    rig.sim.capture_end(stream.0).unwrap();
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.allocator.wake(None, &["weights"]).unwrap();
    rig.assert_content();
    rig.finish();
}

/// Content is copied and waited for on the default stream, which a capture does not allow; memory alone can be had.
#[test]
fn kept_content_does_not_come_back_during_a_capture() {
    let rig = rig(1 << 30);
    let graph = rig.allocator.create_pool(0, PoolOptions::tagged("graph")).unwrap();
    let cache = rig.allocator.create_pool(0, PoolOptions::tagged("cache")).unwrap();
    let block = rig.allocator.allocate_in(cache, 2 * MIB, 0, STREAM).unwrap();
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.allocator.sleep(None, &["cache"], SleepMode::Discard).unwrap();
    let capture = rig.allocator.capture(graph, RouteFilter::Stream(Stream(77))).unwrap();
    let before = rig.sim.counters();
    let refused = rig.allocator.wake(None, &["weights"]);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    assert_eq!(rig.sim.counters(), before);
    rig.allocator.wake(None, &["cache"]).unwrap();
    let after = rig.sim.counters();
    for call in ["aclrtMemcpyAsync", "aclrtSynchronizeStream", "aclrtSynchronizeDevice"] {
        assert_eq!(after.get(call), before.get(call), "{call}");
    }
    drop(capture);
    rig.allocator.wake(None, &["weights"]).unwrap();
    rig.assert_content();
    rig.allocator.deallocate(block).unwrap();
    rig.allocator.release_pool(cache).unwrap();
    rig.allocator.release_pool(graph).unwrap();
    rig.finish();
}

/// What could not be waited for is not over because a pool was about to sleep.
#[test]
fn a_sleep_that_is_refused_forgets_no_work() {
    let config = SimConfig { backing: BackingMode::MetadataOnly, lag: LAG_NEVER, ..SimConfig::default() };
    let sim = Sim::new(SimConfig { exec_mode: ExecMode::Deterministic { seed: 1 }, ..config });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let stream = Stream(sim.create_stream().unwrap());
    let [used, kept] = [8 * MIB, 2 * MIB].map(|bytes| allocator.allocate_in(pool, bytes, 0, stream).unwrap());
    sim.submit(stream.0, Task::new("write").writes(used.0, 8 * MIB, 1)).unwrap();
    allocator.deallocate(used).unwrap();
    sim.capture_begin(stream.0, CaptureMode::Relaxed).unwrap();
    let refused = allocator.sleep(None, &["weights"], SleepMode::Discard);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    allocator.check().unwrap();
    let held = allocator.stats(0).unwrap().reserved_bytes.all.current;
    assert_eq!(allocator.trim(0, 0).unwrap(), 0, "the stream has not passed the free");
    assert_eq!(allocator.stats(0).unwrap().reserved_bytes.all.current, held);
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    sim.capture_end(stream.0).unwrap();
    allocator.deallocate(kept).unwrap();
    allocator.release_pool(pool).unwrap();
    allocator.empty_cache(None).unwrap();
    assert_eq!(sim.physical_bytes(0), 0);
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
}

#[test]
fn an_allocator_can_end_while_pools_sleep() {
    let rig = rig(1 << 30);
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    let Rig { sim, allocator, .. } = rig;
    drop(allocator);
    assert_eq!(sim.physical_bytes(0), 0);
    assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"));
}

/// What is kept on the host is the content of live blocks, which stays like these.
#[test]
fn content_outlives_a_shut_down_after_which_the_allocator_is_used() {
    let rig = rig(1 << 30);
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.allocator.shut_down();
    let woken = rig.allocator.wake(None, &["weights"]).unwrap();
    assert!(woken.copied_bytes > 0, "{woken:?}");
    rig.assert_content();
    rig.finish();
}

#[test]
fn a_failing_call_at_any_point_leaves_a_defined_state() {
    const CALLS: [&str; 9] = [
        "aclrtUnmapMem",
        "aclrtFreePhysical",
        "aclrtMallocPhysical",
        "aclrtMapMem",
        "aclrtMallocHost",
        "aclrtMemcpyAsync",
        "aclrtSynchronizeStream",
        "aclrtSynchronizeEvent",
        "aclrtRecordEvent",
    ];
    for call in CALLS {
        for always in [false, true] {
            for k in 1..40 {
                let rig = rig(256 * MIB);
                rig.sim.fail(call, k, 507_899, always).unwrap();
                let before = rig.sim.count(call);
                let slept = rig.allocator.sleep(None, &["weights"], SleepMode::Offload);
                let woken = rig.allocator.wake(None, &["weights"]);
                let reached = rig.sim.count(call) - before >= k;
                rig.sim.clear_faults();
                rig.allocator.check().unwrap();
                if slept.is_err() || woken.is_err() {
                    assert!(reached, "{call} {k}: {slept:?} {woken:?}");
                    // Whatever state it is in, this brings it back.
                    rig.allocator.wake(None, &["weights"]).unwrap();
                }
                assert!(!rig.allocator.is_asleep(rig.pool).unwrap());
                rig.assert_content();
                // Refused calls are counted too, so that the counts need not match.
                rig.close();
                if !reached {
                    break;
                }
            }
        }
    }
}

/// A pool that the driver neither lets fall asleep nor puts back sleeps, with its content on the host.
#[test]
fn what_the_driver_does_not_put_back_waking_provides() {
    for k in [2, 5] {
        let rig = rig(256 * MIB);
        rig.sim.fail("aclrtUnmapMem", k, 507_899, false).unwrap();
        rig.sim.fail("aclrtMapMem", 1, 507_899, true).unwrap();
        let slept = rig.allocator.sleep(None, &["weights"], SleepMode::Offload);
        assert!(matches!(slept, Err(Error::Driver(_))), "{slept:?}");
        assert!(rig.allocator.is_asleep(rig.pool).unwrap());
        rig.allocator.check().unwrap();
        let woken = rig.allocator.wake(None, &["weights"]);
        assert!(matches!(woken, Err(Error::Driver(_))), "{woken:?}");
        assert!(rig.allocator.is_asleep(rig.pool).unwrap());
        rig.sim.clear_faults();
        let woken = rig.allocator.wake(None, &["weights"]).unwrap();
        assert_eq!(woken.mapped_bytes, (k - 1) * (2 << 20), "what had been taken away");
        rig.assert_content();
        rig.close();
    }
}

/// Grants go with the mapping: a chunk that is put back is granted to the peers again.
#[test]
fn waking_keeps_chunks_that_it_does_not_need() {
    let rig = rig(1 << 30);
    let other = rig.allocator.create_pool(0, PoolOptions::tagged("other")).unwrap();
    let block = rig.allocator.allocate_in(other, 2 * MIB, 0, STREAM).unwrap();
    rig.allocator.sleep(None, &["other"], SleepMode::Discard).unwrap();
    // The chunks of the first pool stay, without an address.
    rig.sim.fail("aclrtFreePhysical", 1, 507_899, true).unwrap();
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.sim.clear_faults();
    let cached = rig.allocator.stats(0).unwrap().cached_handles;
    assert!(cached > 4 * MIB, "{cached}");
    let woken = rig.allocator.wake(None, &["other"]).unwrap();
    assert_eq!(rig.allocator.stats(0).unwrap().cached_handles, cached - woken.mapped_bytes);
    rig.allocator.check().unwrap();
    rig.allocator.deallocate(block).unwrap();
    rig.allocator.release_pool(other).unwrap();
    rig.allocator.wake(None, &["weights"]).unwrap();
    rig.assert_content();
    rig.finish();
}

#[test]
fn peers_reach_what_was_put_back() {
    let sim = Sim::new(SimConfig { devices: 2, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::default(), driver).unwrap();
    allocator.set_peers(0, &[1]).unwrap();
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let block = allocator.allocate_in(pool, 8 * MIB, 0, STREAM).unwrap();
    let granted = || {
        let chunks = (block.0..block.0 + 8 * MIB).step_by(2 << 20);
        chunks.map(|at| sim.get_access(at, ascend_sim::Location::device(1)).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(granted(), [3; 4]);
    sim.fail("aclrtUnmapMem", 3, 507_899, false).unwrap();
    let slept = allocator.sleep(None, &["weights"], SleepMode::Discard);
    assert!(matches!(slept, Err(Error::Driver(_))), "{slept:?}");
    assert!(!allocator.is_asleep(pool).unwrap());
    // The next call that goes to the driver sees to it.
    let next = allocator.allocate(0, 20 * MIB, 0, STREAM).unwrap();
    assert_eq!(granted(), [3; 4]);
    allocator.deallocate(next).unwrap();
    allocator.deallocate(block).unwrap();
    allocator.check().unwrap();
}

/// bug-scenarios.md B50.
#[test]
fn b50_waking_runs_out_of_memory_half_way() {
    // Without a pad, as the script has it.
    let (soc, backing) = (Soc::Ascend950, BackingMode::MetadataOnly);
    let sim = Sim::new(SimConfig { capacity: 1 << 30, soc, backing, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    let block = |tag, bytes| {
        let pool = allocator.create_pool(0, PoolOptions::tagged(tag)).unwrap();
        (pool, allocator.allocate_in(pool, bytes, 0, STREAM).unwrap())
    };
    let (weights, cache) = (block("w", 300 * MIB), block("k", 400 * MIB));
    sim.fill_bytes(weights.1.0, 300 * MIB, 0x5a).unwrap();
    let live = allocator.stats(0).unwrap().allocated_bytes.all.current;
    let slept = allocator.sleep(None, &["w"], SleepMode::Offload).unwrap();
    allocator.sleep(None, &["k"], SleepMode::Discard).unwrap();
    assert_eq!(allocator.stats(0).unwrap().reserved_bytes.all.current, 0);
    assert_eq!((sim.mem_info(1).unwrap().0, slept.host_bytes), (1 << 30, 300 * MIB));

    sim.set_foreign_bytes(0, 600 * MIB);
    let failed = allocator.wake(None, &[]);
    let Err(Error::OutOfMemory(report)) = failed else { panic!("{failed:?}") };
    assert_eq!(report.cause, OutOfMemoryCause::Device);
    assert_eq!(allocator.stats(0).unwrap().reserved_bytes.all.current, 0);
    assert_eq!((sim.count("aclrtFreeHost"), sim.physical_bytes(0)), (0, 0), "the content is still kept");
    assert_eq!(sim.count("aclrtMapMem"), sim.count("aclrtUnmapMem"));
    assert!(allocator.is_asleep(weights.0).unwrap() && allocator.is_asleep(cache.0).unwrap());
    assert_eq!(allocator.stats(0).unwrap().allocated_bytes.all.current, live, "the addresses are still ours");

    sim.set_foreign_bytes(0, 0);
    assert_eq!(allocator.wake(None, &[]).unwrap().pools, 2);
    let (mut found, kept) = (vec![0; MIB as usize], vec![0x5a; MIB as usize]);
    for at in (0..300 * MIB).step_by(MIB as usize) {
        sim.read_bytes(weights.1.0 + at, &mut found).unwrap();
        assert!(found == kept, "{at}");
    }
    assert_eq!(allocator.stats(0).unwrap().reserved_bytes.all.current, 700 * MIB as i64);
    assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"));
    for (pool, ptr) in [weights, cache] {
        allocator.deallocate(ptr).unwrap();
        allocator.release_pool(pool).unwrap();
    }
    allocator.empty_cache(None).unwrap();
    assert_eq!(sim.count("aclrtMapMem"), sim.count("aclrtUnmapMem"));
    assert_eq!(sim.physical_bytes(0), 0);
}
