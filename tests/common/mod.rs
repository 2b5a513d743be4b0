//! A program around an allocator on a simulated machine, and everything it can be held to.
//!
//! [`World`] makes the calls a program would make: it allocates, queues tasks, records streams, frees.
//! It keeps a shadow of what must be live and, with [`World::verify`], compares allocator,
//! simulator and shadow with each other. Tasks stay queued until [`World::finish`] or until somebody
//! waits for them.

// Every test binary compiles this module and uses a part of it.
#![allow(dead_code)]

pub mod gate;
pub mod gated;
pub mod growing;
mod invariants;
#[cfg(target_os = "linux")]
pub mod other;
pub mod pooled;
pub mod program;
pub mod scripts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ascend_alloc::driver::{DeviceId, SimDriver, Stream};
use ascend_alloc::error::{OutOfMemory, PointerKind};
use ascend_alloc::stats::DriverCalls;
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, Error, PoolId, PoolSource, Result, Stats};
use ascend_sim::exec::EVENT_SYNC;
use ascend_sim::{BackingMode, LAG_NEVER, Sim, SimConfig, Soc, Task};
use gate::GatedDriver;

pub const K: u64 = 1 << 10;
pub const M: u64 = 1 << 20;
pub const G: u64 = 1 << 30;
/// Bytes of a chunk on the simulated parts.
pub const GRANULE: u64 = 2 * M;

/// The classic mode of the scenarios.
pub const CLASSIC: &str = "expandable_segments:False";

/// The error of a request that must have failed for lack of memory.
#[track_caller]
pub fn ran_out<T: core::fmt::Debug>(answer: Result<T>) -> OutOfMemory {
    match answer {
        Err(Error::OutOfMemory(report)) => *report,
        other => panic!("{other:?}"),
    }
}

/// A source of a pool whose memory is none of the device's: one block of so many bytes at most.
pub struct Elsewhere(pub u64);

impl PoolSource for Elsewhere {
    fn allocate(&self, _device: DeviceId, bytes: u64, _stream: Stream) -> Option<u64> {
        (bytes <= self.0).then_some(1 << 45)
    }

    fn free(&self, _device: DeviceId, _address: u64, _bytes: u64) {}
}

/// Reads one count of calls.
type Count = fn(&DriverCalls) -> u64;

/// The calls that allocator and machine both count.
const COUNTED: [(&str, Count); 15] = [
    ("aclrtMapMem", |calls| calls.map),
    ("aclrtUnmapMem", |calls| calls.unmap),
    ("aclrtMallocPhysical", |calls| calls.malloc_physical),
    ("aclrtFreePhysical", |calls| calls.free_physical),
    ("aclrtReserveMemAddress", |calls| calls.reserve),
    ("aclrtReleaseMemAddress", |calls| calls.release),
    ("aclrtMemSetAccess", |calls| calls.set_access),
    ("aclrtMallocAlign32", |calls| calls.malloc),
    ("aclrtFree", |calls| calls.free),
    ("aclrtRecordEvent", |calls| calls.record_event),
    ("aclrtQueryEventStatus", |calls| calls.query_event),
    ("aclrtStreamWaitEvent", |calls| calls.stream_wait),
    ("aclrtSynchronizeEvent", |calls| calls.wait_event),
    ("aclrtSynchronizeStream", |calls| calls.wait_stream),
    ("aclrtSynchronizeDevice", |calls| calls.wait_device),
];

/// A live block as the program knows it.
#[derive(Clone, Debug)]
pub struct Live {
    pub device: DeviceId,
    pub stream: Stream,
    pub requested: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// Names the object in tasks and in its bytes.
    pub tag: u64,
    /// Streams it was recorded on.
    pub recorded: Vec<Stream>,
    /// The pool it was asked for from, if not the default one.
    pub pool: Option<PoolId>,
}

/// How a [`World`] is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub conf: Config,
    pub sim: SimConfig,
    /// Whether tasks end only when told and everything else at once; otherwise the machine's lag counts.
    pub scripted: bool,
}

impl Default for Setup {
    /// One device of 1 GiB without pad, default settings, work that never ends by itself.
    fn default() -> Self {
        let sim = SimConfig {
            soc: Soc::Ascend950,
            backing: BackingMode::MetadataOnly,
            lag: LAG_NEVER,
            ..SimConfig::default()
        };
        Self { conf: Config::default(), sim, scripted: true }
    }
}

impl Setup {
    /// With settings as text.
    pub fn conf(mut self, text: &str) -> Self {
        self.conf = Config::parse(text).expect("a configuration");
        self
    }

    /// With devices of so many bytes.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.sim.capacity = bytes;
        self
    }

    /// With so many devices.
    pub fn devices(mut self, devices: u32) -> Self {
        self.sim.devices = devices;
        self
    }

    /// With the part whose blocks need a pad of 32 bytes.
    pub fn padded(mut self) -> Self {
        self.sim.soc = Soc::Ascend910B;
        self
    }

    pub fn build(self) -> World {
        World::new(self)
    }
}

/// A machine, an allocator on it, and the program that uses both.
pub struct World {
    pub sim: Sim,
    pub driver: Arc<GatedDriver>,
    pub alloc: Arc<DeviceAllocator>,
    pub capacity: u64,
    pub devices: u32,
    /// By device and address.
    pub live: BTreeMap<u64, Live>,
    /// Live blocks that have no memory at the moment, because their pool sleeps.
    pub asleep: BTreeSet<u64>,
    /// Whether live blocks are written when allocated and compared in `verify`.
    pub contents: bool,
    /// Whether symbols are missing.
    pub missing: bool,
    /// Whether two streams may have the same handle one after the other.
    pub reused_handles: bool,
    /// Calls of the driver from before sums were reset.
    pub calls_before: Vec<DriverCalls>,
    next_tag: u64,
    last_current: Result<i32, i32>,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let sim = Sim::new(setup.sim.clone());
        let driver = SimDriver::new(sim.clone());
        let driver = match setup.scripted {
            true => GatedDriver::new(driver),
            false => GatedDriver::passive(driver),
        };
        let driver = Arc::new(driver);
        let alloc = Arc::new(DeviceAllocator::new(setup.conf, driver.clone()).expect("an allocator"));
        let last_current = sim.get_device();
        Self {
            sim,
            driver,
            alloc,
            capacity: setup.sim.capacity,
            devices: setup.sim.devices,
            live: BTreeMap::new(),
            asleep: BTreeSet::new(),
            contents: true,
            missing: false,
            reused_handles: false,
            calls_before: Vec::new(),
            next_tag: 1,
            last_current,
        }
    }

    // ---- the program ----

    /// A new stream of a device.
    pub fn stream_on(&self, device: DeviceId) -> Stream {
        Stream(self.sim.on_device(device, || self.sim.create_stream()).unwrap().expect("a stream"))
    }

    /// A new stream of device 0.
    pub fn stream(&self) -> Stream {
        self.stream_on(0)
    }

    /// Asks for memory; nothing is queued.
    pub fn try_alloc(
        &mut self,
        device: DeviceId,
        bytes: u64,
        align: u64,
        stream: Stream,
    ) -> Result<DevicePtr> {
        let ptr = self.alloc.allocate(device, bytes, align, stream)?;
        if !ptr.is_null() {
            self.note_new(device, ptr, bytes, align, stream);
        }
        Ok(ptr)
    }

    pub fn note_new(&mut self, device: DeviceId, ptr: DevicePtr, requested: u64, align: u64, stream: Stream) {
        let info = self.alloc.block_info(ptr).expect("a live block");
        assert_eq!((info.device, info.address, info.stream), (device, ptr.0, stream));
        assert_eq!(info.requested, requested, "requested bytes of {ptr:?}");
        assert!(info.bytes >= requested + self.sim.soc().tail_pad(), "{info:?} is too short");
        assert!(ptr.0.is_multiple_of(align.max(512)), "{ptr:?} is not aligned to {align}");
        assert!(info.segment <= ptr.0 && ptr.0 + info.bytes <= info.segment + info.segment_bytes, "{info:?}");
        let before = self.live.range(..ptr.0).next_back();
        assert!(before.is_none_or(|(at, block)| at + block.bytes <= ptr.0), "{ptr:?} overlaps {before:?}");
        let behind = self.live.range(ptr.0..).next();
        assert!(behind.is_none_or(|(&at, _)| ptr.0 + info.bytes <= at), "{ptr:?} overlaps {behind:?}");
        let tag = self.next_tag;
        self.next_tag += 1;
        let block =
            Live { device, stream, requested, bytes: info.bytes, tag, recorded: Vec::new(), pool: None };
        if self.contents {
            self.write_marks(ptr.0, &block);
        }
        self.live.insert(ptr.0, block);
    }

    /// A block of device 0, which must be there.
    #[track_caller]
    pub fn alloc(&mut self, bytes: u64, stream: Stream) -> DevicePtr {
        let ptr = self.try_alloc(0, bytes, 0, stream);
        let ptr = ptr.unwrap_or_else(|error| panic!("{bytes} bytes: {error}"));
        self.verify();
        ptr
    }

    /// A request on device 0 that must fail for lack of memory.
    #[track_caller]
    pub fn alloc_fails(&mut self, bytes: u64, stream: Stream) -> OutOfMemory {
        match self.try_alloc(0, bytes, 0, stream) {
            Err(Error::OutOfMemory(report)) => {
                assert_eq!((report.device, report.requested), (0, bytes));
                self.verify();
                *report
            }
            other => panic!("{bytes} bytes: {other:?}"),
        }
    }

    /// Frees a live block.
    #[track_caller]
    pub fn free(&mut self, ptr: DevicePtr) {
        self.live.remove(&ptr.0).expect("a live block");
        self.alloc.deallocate(ptr).expect("freed");
        self.verify();
    }

    /// The same with a size that is said.
    #[track_caller]
    pub fn free_sized(&mut self, ptr: DevicePtr, bytes: u64) {
        self.live.remove(&ptr.0).expect("a live block");
        self.alloc.deallocate_sized(ptr, bytes).expect("freed");
        self.verify();
    }

    /// A free that must be refused, for that reason, and change nothing.
    #[track_caller]
    pub fn free_fails(&mut self, ptr: DevicePtr, kind: PointerKind) {
        let before = self.stats();
        refused_pointer(self.alloc.deallocate(ptr), ptr, kind);
        assert_eq!(self.stats(), before);
        self.verify();
    }

    /// Tells the allocator that a stream uses a block.
    #[track_caller]
    pub fn record(&mut self, ptr: DevicePtr, stream: Stream) {
        self.alloc.record_stream(ptr, stream).expect("recorded");
        let block = self.live.get_mut(&ptr.0).expect("a live block");
        if block.stream != stream && !block.recorded.contains(&stream) {
            block.recorded.push(stream);
        }
        self.verify();
    }

    /// Queues a task that writes a live block to a stream.
    #[track_caller]
    pub fn work(&self, stream: Stream, label: &'static str, ptr: DevicePtr) {
        let block = &self.live[&ptr.0];
        let task = Task::new(label).writes(ptr.0, block.requested, block.tag);
        self.sim.on_device(block.device, || self.sim.submit(stream.0, task)).unwrap().expect("queued");
        self.driver.hold(stream);
    }

    /// Lets a stream wait for what another one has queued, on the device. Not an ACL call: the calls
    /// counted are the allocator's.
    #[track_caller]
    pub fn order(&self, device: DeviceId, first: Stream, then: Stream) {
        assert!(self.try_order(device, first, then), "an event");
    }

    /// The same; false when the device has no more events.
    #[track_caller]
    pub fn try_order(&self, device: DeviceId, first: Stream, then: Stream) -> bool {
        let exec = self.sim.executor();
        let event = exec.create_event(device, EVENT_SYNC, true).expect("an event");
        let recorded = exec.record_event(device, event, first.0).is_ok();
        if recorded {
            exec.stream_wait_event(device, then.0, event).expect("waits");
            self.driver.order(first, then);
        }
        exec.destroy_event(event).expect("destroyed");
        recorded
    }

    /// Uses a live block on another stream as a program must: the stream waits for the contents, works,
    /// and the allocator is told.
    #[track_caller]
    pub fn share(&mut self, user: Stream, label: &'static str, ptr: DevicePtr) {
        let (device, home) = (self.live[&ptr.0].device, self.live[&ptr.0].stream);
        self.order(device, home, user);
        self.work(user, label, ptr);
        self.record(ptr, user);
    }

    /// Ends all work of a stream of device 0 now queued, without the host learning of it.
    #[track_caller]
    pub fn finish(&self, stream: Stream) {
        self.driver.finish(0, stream).expect("a stream");
    }

    /// Destroys a stream of device 0 and tells the allocator, as the program does.
    #[track_caller]
    pub fn destroy(&self, stream: Stream) {
        self.sim.on_device(0, || self.sim.destroy_stream(stream.0)).unwrap().expect("destroyed");
        self.driver.forget(stream);
        self.alloc.stream_destroyed(0, stream).expect("told");
        self.verify();
    }

    /// Frees everything that is live.
    pub fn free_all(&mut self) {
        let blocks: Vec<u64> = self.live.keys().copied().collect();
        for address in blocks {
            self.free(DevicePtr(address));
        }
    }

    /// Makes a device current in this thread, as the program's own choice.
    pub fn set_device(&mut self, device: i32) {
        self.sim.set_device(device).expect("a device");
        self.last_current = self.sim.get_device();
    }

    // ---- what can be looked at ----

    /// Statistics of device 0.
    pub fn stats(&self) -> Stats {
        self.alloc.stats(0).expect("statistics")
    }

    /// Allocated, active and reserved bytes of device 0.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let stats = self.stats();
        let current = |array: ascend_alloc::stats::StatArray| array.all.current as u64;
        (current(stats.allocated_bytes), current(stats.active_bytes), current(stats.reserved_bytes))
    }

    /// Allocated bytes of device 0.
    pub fn allocated(&self) -> u64 {
        self.sizes().0
    }

    /// Active bytes of device 0.
    pub fn active(&self) -> u64 {
        self.sizes().1
    }

    /// Reserved bytes of device 0.
    pub fn reserved(&self) -> u64 {
        self.sizes().2
    }

    /// Block bytes of a live block.
    pub fn block(&self, ptr: DevicePtr) -> u64 {
        self.live[&ptr.0].bytes
    }

    /// Calls of the simulated machine since `before` (see [`Sim::counters`]), without those that did not happen.
    pub fn calls_since(&self, before: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
        let counters = self.sim.counters().into_iter();
        counters
            .map(|(name, count)| (name, count - before.get(name).unwrap_or(&0)))
            .filter(|&(_, count)| count > 0)
            .collect()
    }
}

/// That a call was refused because of its pointer.
#[track_caller]
pub fn refused_pointer<T: core::fmt::Debug>(answer: Result<T>, ptr: DevicePtr, expected: PointerKind) {
    match answer {
        Err(Error::Pointer { address, kind }) => assert_eq!((address, kind), (ptr.0, expected)),
        other => panic!("{ptr:?}: {other:?}"),
    }
}

/// That a call failed with a code of the driver.
#[track_caller]
pub fn refused_by_driver<T: core::fmt::Debug>(answer: Result<T>, code: i32) {
    match answer {
        Err(Error::Driver(error)) => assert_eq!(error.code, code),
        other => panic!("expected code {code}: {other:?}"),
    }
}

/// That a machine holds nothing of an allocator that is gone.
#[track_caller]
pub fn assert_nothing_left(sim: &Sim, devices: u32) {
    assert_nothing_held(sim, devices, true);
}

/// The same; events are compared only if no call failed.
#[track_caller]
pub fn assert_nothing_held(sim: &Sim, devices: u32, events: bool) {
    let findings = sim.findings();
    assert!(findings.is_empty(), "use checker: {findings:#?}");
    for device in 0..devices {
        assert_eq!(sim.physical_bytes(device), 0, "I6: physical memory of device {device}");
    }
    assert_eq!((sim.mapping_count(), sim.reserved_bytes()), (0, 0), "I6: mappings and address space");
    let (made, gone) = (sim.count("aclrtCreateEventExWithFlag"), sim.count("aclrtDestroyEvent"));
    assert!(made == gone || !events, "I6: {made} events made, {gone} destroyed");
}
