//! An allocator on a machine of three devices whose calls can be held up, refused, and come before by others.

use std::sync::{Arc, Mutex, Weak};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, PoolId, PoolOptions};
use ascend_sim::{BackingMode, LAG_NEVER, Sim, SimConfig, Soc};

use super::gate::{GatedDriver, reset};
use super::{GRANULE, M};

/// A code that no call is expected to answer.
pub const REFUSED: i32 = 507_899;

/// See the module's documentation.
pub struct Rig {
    pub sim: Sim,
    pub gate: Arc<GatedDriver>,
    pub alloc: Arc<DeviceAllocator>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with("check_level:2", 256 * M)
    }

    pub fn with(conf: &str, capacity: u64) -> Self {
        let backing = BackingMode::MetadataOnly;
        // Work ends when it is waited for, and in streams that are not held when their events are asked about.
        let (soc, lag) = (Soc::Ascend950, LAG_NEVER);
        let config = SimConfig { soc, devices: 3, capacity, backing, lag, ..SimConfig::default() };
        let sim = Sim::new(config);
        sim.set_device(0).unwrap();
        let gate = Arc::new(GatedDriver::new(SimDriver::new(sim.clone())));
        let alloc = Arc::new(DeviceAllocator::new(Config::parse(conf).unwrap(), gate.clone()).unwrap());
        Self { sim, gate, alloc }
    }

    pub fn pool(&self, tag: &str) -> PoolId {
        self.alloc.create_pool(0, PoolOptions::tagged(tag)).unwrap()
    }

    pub fn stream(&self) -> Stream {
        Stream(self.sim.create_stream().unwrap())
    }

    /// Does this at the first coming call of that name.
    pub fn once_at(&self, call: &'static str, run: impl FnOnce() + Send + 'static) {
        let run = Mutex::new(Some(run));
        self.gate.watch(Some(Arc::new(move |name| {
            if name == call
                && let Some(run) = { run.lock().unwrap().take() }
            {
                run();
            }
        })));
    }

    pub fn weak(&self) -> (Sim, Weak<DeviceAllocator>) {
        (self.sim.clone(), Arc::downgrade(&self.alloc))
    }

    /// Resets the first device for the allocator, as a driver does that takes address space back: that of the first segment
    /// comes again.
    pub fn reset_to_the_same_addresses(&self) {
        let segment = self.alloc.snapshot(0).unwrap().segments[0].clone();
        let chunks = (0..segment.chunks).map(|at| segment.address + at * GRANULE);
        self.gate.take_reservation(segment.base, chunks);
        self.alloc.device_was_reset(0).unwrap();
    }

    pub fn cached(&self) -> u64 {
        self.alloc.stats(0).unwrap().cached_handles
    }

    /// Everything that is free goes back; nothing is left, and all host memory was given back.
    #[track_caller]
    pub fn finish(self) {
        self.gate.watch(None);
        self.alloc.empty_cache(None).unwrap();
        self.alloc.check().unwrap();
        let Self { sim, alloc, gate } = self;
        drop((Arc::into_inner(alloc).expect("nobody else has it"), gate));
        assert_eq!((sim.physical_bytes(0), sim.mapping_count()), (0, 0));
        assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"), "host memory is given back");
        assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    }
}

/// Resets the first device, and tells the allocator, if it is still there.
pub fn reset_weak((sim, alloc): &(Sim, Weak<DeviceAllocator>)) {
    reset(sim, &alloc.upgrade().expect("the test holds it"));
}
