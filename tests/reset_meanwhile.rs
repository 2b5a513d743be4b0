//! A device that is reset while a call of the allocator is in the driver: the call fails and says so, nothing of the
//! old device comes back, and the next call works.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{
    Config, DeviceAllocator, DevicePtr, Error, GrowableBuffer, GrowableOptions, PoolId, PoolOptions,
    SleepMode,
};
use ascend_sim::{Sim, SimConfig, Soc};
use common::gate::{GatedDriver, reset, was_reset};
use common::{CLASSIC, G, GRANULE, M};

const STREAM: Stream = Stream(0);

struct Rig {
    sim: Sim,
    gate: Arc<GatedDriver>,
    alloc: Arc<DeviceAllocator>,
}

impl Rig {
    fn new(conf: &str) -> Self {
        Self::with(conf, G)
    }

    fn with(conf: &str, capacity: u64) -> Self {
        let sim = Sim::new(SimConfig { soc: Soc::Ascend950, devices: 2, capacity, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let gate = Arc::new(GatedDriver::new(SimDriver::new(sim.clone())));
        let config = Config::parse(conf).unwrap();
        let alloc = Arc::new(DeviceAllocator::new(config, gate.clone()).unwrap());
        Self { sim, gate, alloc }
    }

    /// Resets the device before the `nth` coming call of that name is made, and tells the allocator.
    fn reset_at(&self, call: &'static str, nth: u32) {
        let (sim, alloc) = (self.sim.clone(), Arc::downgrade(&self.alloc));
        let seen = AtomicU32::new(0);
        self.gate.watch(Some(Arc::new(move |name| {
            if name == call && seen.fetch_add(1, Ordering::Relaxed) + 1 == nth {
                reset(&sim, &alloc.upgrade().expect("the test holds it"));
            }
        })));
    }

    /// Nothing is left of the old device, and the new one serves.
    #[track_caller]
    fn serves_again(&self) {
        self.serves_again_with(0);
    }

    /// The same; so many bytes were taken by calls that the reset came before, and are lost with those.
    #[track_caller]
    fn serves_again_with(&self, left: u64) {
        self.gate.watch(None);
        self.alloc.check().unwrap();
        let stats = self.alloc.stats(0).unwrap();
        let held = [stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes, stats.requested_bytes];
        assert_eq!(held.map(|stat| stat.all.current), [0; 4]);
        let block = self.alloc.allocate(0, 12 * M, 0, STREAM).unwrap();
        self.sim.submit(0, ascend_sim::Task::new("work").writes(block.0, 12 * M, 1)).unwrap();
        self.alloc.check().unwrap();
        self.alloc.deallocate(block).unwrap();
        self.alloc.empty_cache(Some(0)).unwrap();
        assert_eq!(self.alloc.stats(0).unwrap().reserved_bytes.all.current, 0);
        assert_eq!(self.sim.physical_bytes(0), left, "chunks are lost");
        assert_eq!(self.sim.findings(), Vec::<String>::new());
    }

    fn pool(&self, tag: &str, bytes: u64) -> (PoolId, DevicePtr) {
        let pool = self.alloc.create_pool(0, PoolOptions::tagged(tag)).unwrap();
        let block = self.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap();
        (pool, block)
    }
}

#[test]
fn a_request_fails_and_says_so() {
    for (conf, call, nth, left) in [
        ("", "aclrtMallocPhysical", 1, 15 * GRANULE),
        ("", "aclrtMallocPhysical", 15, GRANULE),
        ("", "aclrtMapMem", 1, 0),
        ("", "aclrtMapMem", 3, 0),
        (CLASSIC, "aclrtMallocAlign32", 1, 30 * M),
    ] {
        let rig = Rig::new(conf);
        rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
        rig.reset_at(call, nth);
        was_reset(rig.alloc.allocate(0, 30 * M, 0, STREAM));
        rig.serves_again_with(left);
    }
}

#[test]
fn a_block_that_grows_is_gone() {
    let rig = Rig::new("");
    let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    rig.reset_at("aclrtMapMem", 1);
    was_reset(rig.alloc.grow_in_place(block, 40 * M));
    rig.serves_again();
    let buffer = GrowableOptions::up_to(64 * M).beginning_with(4 * M);
    let mut buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, buffer).unwrap();
    rig.reset_at("aclrtMapMem", 1);
    was_reset(buffer.resize(40 * M));
    assert!(matches!(buffer.resize(40 * M), Err(Error::State { .. })), "it is gone with its device");
    drop(buffer);
    rig.serves_again();
}

#[test]
fn a_pool_that_falls_asleep_is_awake_and_empty() {
    for (call, nth) in [
        ("aclrtUnmapMem", 1),
        ("aclrtUnmapMem", 2),
        ("aclrtUnmapMem", 4),
        ("aclrtFreePhysical", 1),
        ("aclrtFreePhysical", 3),
        ("aclrtFreePhysical", 4),
    ] {
        for mode in [SleepMode::Discard, SleepMode::Offload] {
            let rig = Rig::new("");
            let (pool, _) = rig.pool("weights", 4 * GRANULE);
            rig.reset_at(call, nth);
            // What could be unmapped before the reset is no success: the pool's memory is gone with all else.
            let slept = rig.alloc.sleep(Some(0), &["weights"], mode);
            assert!(slept.is_err(), "{call} {nth} {mode:?}: {slept:?}");
            assert!(!rig.alloc.is_asleep(pool).unwrap());
            rig.serves_again();
        }
    }
}

#[test]
fn a_pool_that_wakes_is_awake_and_empty() {
    for (call, nth, left) in
        [("aclrtMallocPhysical", 4, GRANULE), ("aclrtMapMem", 1, 0), ("aclrtMapMem", 4, 0)]
    {
        for mode in [SleepMode::Discard, SleepMode::Offload] {
            let rig = Rig::new("");
            let (pool, _) = rig.pool("weights", 4 * GRANULE);
            rig.alloc.sleep(Some(0), &["weights"], mode).unwrap();
            rig.reset_at(call, nth);
            was_reset(rig.alloc.wake(Some(0), &["weights"]));
            assert!(!rig.alloc.is_asleep(pool).unwrap());
            rig.serves_again_with(left);
        }
    }
}

#[test]
fn a_callback_may_be_what_resets_it() {
    let rig = Rig::with("", 64 * M);
    let place: Arc<OnceLock<(Sim, std::sync::Weak<DeviceAllocator>)>> = Arc::default();
    place.set((rig.sim.clone(), Arc::downgrade(&rig.alloc))).unwrap();
    let inside = place.clone();
    let callback = rig.alloc.add_memory_callback(Arc::new(move |_device, _bytes| {
        let (sim, alloc) = inside.get().expect("it is set");
        reset(sim, &alloc.upgrade().expect("the test holds it"));
        true
    }));
    rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
    was_reset(rig.alloc.allocate(0, 40 * M, 0, STREAM));
    rig.alloc.remove_memory_callback(callback);
    rig.serves_again();
}

#[test]
fn whoever_waits_for_another_threads_plan_is_told() {
    let rig = Rig::with("", 64 * M);
    // One thread takes most of the device; another one needs more than is left and waits for it to end.
    let (at_map, reached) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    rig.gate.watch(Some(Arc::new(move |name| {
        if name == "aclrtMapMem" && at_map.send(()).is_ok() {
            // Only the first mapping is held up: after that the channel is closed.
            let _open = wait.lock().unwrap().recv();
        }
    })));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| rig.alloc.allocate(0, 40 * M, 0, STREAM));
        reached.recv().unwrap();
        let second = scope.spawn(|| rig.alloc.allocate(0, 40 * M, 0, Stream(0)));
        while rig.alloc.stats(0).unwrap().ladder.awaited == 0 {
            std::thread::yield_now();
        }
        reset(&rig.sim, &rig.alloc);
        drop(reached);
        drop(go);
        was_reset(first.join().unwrap());
        was_reset(second.join().unwrap());
    });
    rig.serves_again();
}
