//! What the tests of growing buffers run on.

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, GrowableBuffer, GrowableOptions, Result};
use ascend_sim::{BackingMode, Sim, SimConfig, Soc, Task};

/// A machine and an allocator on it.
pub struct Rig {
    pub sim: Sim,
    pub alloc: Arc<DeviceAllocator>,
}

impl Rig {
    /// One device without a pad, whose work ends at once, with the heap checker after every call.
    pub fn new(capacity: u64) -> Self {
        Self::on(SimConfig { capacity, ..Self::machine() }, "check_level:3")
    }

    pub fn machine() -> SimConfig {
        SimConfig { soc: Soc::Ascend950, backing: BackingMode::MetadataOnly, ..SimConfig::default() }
    }

    pub fn on(config: SimConfig, conf: &str) -> Self {
        let sim = Sim::new(config);
        sim.set_device(0).unwrap();
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let alloc = Arc::new(DeviceAllocator::new(Config::parse(conf).unwrap(), driver).unwrap());
        Self { sim, alloc }
    }

    pub fn buffer(&self, max: u64, bytes: u64, stream: Stream) -> Result<GrowableBuffer> {
        let options = GrowableOptions::up_to(max).beginning_with(bytes);
        GrowableBuffer::new(self.alloc.clone(), 0, stream, options)
    }

    pub fn stream(&self) -> Stream {
        Stream(self.sim.create_stream().unwrap())
    }

    /// Queues a task that writes a range of an object.
    pub fn work(&self, stream: Stream, address: u64, bytes: u64, tag: u64) {
        self.sim.submit(stream.0, Task::new("work").writes(address, bytes, tag)).unwrap();
    }

    pub fn counts(&self) -> [u64; 4] {
        ["aclrtMapMem", "aclrtUnmapMem", "aclrtMallocPhysical", "aclrtReserveMemAddress"]
            .map(|call| self.sim.count(call))
    }

    /// Allocated and reserved bytes, and address space.
    pub fn held(&self) -> (i64, i64, u64) {
        let stats = self.alloc.stats(0).unwrap();
        let reserved = stats.reserved_bytes.all.current;
        (stats.allocated_bytes.all.current, reserved, stats.reserved_address_space)
    }

    /// Ends: everything is free, so everything goes back to the device.
    #[track_caller]
    pub fn close(self) {
        self.alloc.check().unwrap();
        assert_eq!(self.held().0, 0, "something is still live");
        self.alloc.empty_cache(None).unwrap();
        assert_eq!(self.held(), (0, 0, 0));
        assert_eq!(self.sim.findings(), Vec::<String>::new());
        drop(self.alloc);
        assert_eq!(
            (self.sim.mapping_count(), self.sim.reserved_bytes(), self.sim.physical_bytes(0)),
            (0, 0, 0)
        );
    }
}
