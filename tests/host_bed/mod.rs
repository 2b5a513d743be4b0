//! A machine and an allocator of page-locked memory, for tests of it.

// Every test binary compiles this module and uses a part of it.
#![allow(dead_code)]

use std::cell::Cell;
use std::sync::Arc;

use ascend_alloc::Config;
use ascend_alloc::driver::{Driver, HostCopy, SimDriver, Stream};
use ascend_alloc::host::{HostPtr, PinnedAllocator, PinnedOptions};
use ascend_sim::{LAG_NEVER, Sim, SimConfig};

pub const M: u64 = 1 << 20;
pub const G: u64 = 1 << 30;

/// A machine with device memory to copy to and from, and an allocator of page-locked memory.
pub struct Bed {
    pub sim: Sim,
    pub driver: Arc<SimDriver>,
    pub pinned: PinnedAllocator,
    pub device_memory: u64,
    /// Copies so far: each has its own place on the device.
    copies: Cell<u64>,
}

impl Bed {
    pub fn new(options: PinnedOptions) -> Self {
        Self::on(SimConfig { lag: LAG_NEVER, host_capacity: 8 * G, ..SimConfig::default() }, options)
    }

    pub fn on(config: SimConfig, options: PinnedOptions) -> Self {
        let sim = Sim::new(config);
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let pinned = PinnedAllocator::new(options, driver.clone()).expect("an allocator");
        sim.set_device(0).expect("a device");
        let device_memory = sim.malloc(16 * M, 0).expect("device memory");
        Self { sim, driver, pinned, device_memory, copies: Cell::new(0) }
    }

    pub fn stream(&self) -> Stream {
        Stream(self.sim.create_stream().expect("a stream"))
    }

    #[track_caller]
    pub fn alloc(&self, bytes: u64) -> HostPtr {
        let ptr = self.pinned.allocate(bytes, 0).expect("memory");
        self.pinned.check().expect("a sound heap");
        ptr
    }

    #[track_caller]
    pub fn free(&self, ptr: HostPtr) {
        self.pinned.deallocate(ptr).expect("freed");
        self.pinned.check().expect("a sound heap");
    }

    /// Queues a copy of the block's first bytes to the device, and tells the allocator.
    #[track_caller]
    pub fn copy(&self, ptr: HostPtr, stream: Stream) {
        let device = self.device_memory + self.copies.replace(self.copies.get() + 1) * 512;
        let copy = HostCopy { host: ptr.address(), device, bytes: 512, to_host: false };
        // SAFETY: the block is live, and the allocator hands it out again only when the stream has passed.
        unsafe { self.driver.copy_async(0, copy, stream) }.expect("queued");
        self.pinned.record_use(ptr, 0, stream).expect("recorded");
    }

    /// Ends all work of a stream, without the host learning of it.
    pub fn finish(&self, stream: Stream) {
        self.sim.executor().run_stream(0, stream.0).expect("a stream");
    }

    pub fn reserved(&self) -> u64 {
        self.pinned.stats().allocated_bytes.current as u64
    }

    pub fn active(&self) -> (i64, i64) {
        let stats = self.pinned.stats();
        (stats.active_requests.current, stats.active_bytes.current)
    }

    pub fn regions(&self) -> u64 {
        self.sim.count("aclrtMallocHost")
    }

    /// Gives everything back and looks what is left.
    pub fn end(self) {
        let Self { sim, pinned, device_memory, driver, .. } = self;
        pinned.empty_cache_waiting().expect("emptied");
        assert_eq!(pinned.stats().allocated_bytes.current, 0);
        assert_eq!(pinned.stats().lost, 0);
        drop(pinned);
        drop(driver);
        sim.free(device_memory).expect("freed");
        let (free, total) = sim.host_memory();
        assert_eq!(free, total, "all host memory is back");
        let findings = sim.findings();
        assert!(findings.is_empty(), "{findings:#?}");
        assert_eq!(sim.count("aclrtCreateEventExWithFlag"), sim.count("aclrtDestroyEvent"), "events");
    }
}

/// What a configuration says, without warnings.
pub fn config(text: &str) -> PinnedOptions {
    let config = Config::parse(text).expect("a configuration");
    assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    PinnedOptions::from_config(&config)
}
