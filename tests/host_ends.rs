//! Page-locked memory: streams and devices that end while it is used, limits that streams hold up, and what is told
//! when there is none.

use std::cell::Cell;
use std::sync::Arc;

use ascend_alloc::driver::{Driver, HostCopy, KernelVersion, RegisterKind, SimDriver, Stream};
use ascend_alloc::host::{
    FreeOrder, HostPtr, HostRegistry, PageMemory, PinnedAllocator, PinnedBuffer, PinnedForm, PinnedOptions,
    StagingRing,
};
use ascend_alloc::{DevicePtr, Error};
use ascend_sim::exec::CaptureMode;
use ascend_sim::{BackingMode, LAG_NEVER, Sim, SimConfig};

const M: u64 = 1 << 20;
const G: u64 = 1 << 30;
const BOTH: RegisterKind = RegisterKind { pinned: true, mapped: true };

/// Two devices with memory to copy to, and an allocator.
struct Bed {
    sim: Sim,
    driver: Arc<SimDriver>,
    pinned: Arc<PinnedAllocator>,
    device_memory: DevicePtr,
    /// Copies so far: each has its own place on the device.
    copies: Cell<u64>,
}

impl Bed {
    fn new(options: PinnedOptions) -> Self {
        Self::on(SimConfig::default(), options)
    }

    fn on(config: SimConfig, options: PinnedOptions) -> Self {
        let sim = Sim::new(SimConfig { devices: 2, lag: LAG_NEVER, host_capacity: 8 * G, ..config });
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let pinned = Arc::new(PinnedAllocator::new(options, driver.clone()).expect("an allocator"));
        sim.set_device(0).expect("a device");
        let device_memory = DevicePtr(sim.malloc(16 * M, 0).expect("device memory"));
        Self { sim, driver, pinned, device_memory, copies: Cell::new(0) }
    }

    fn stream(&self) -> Stream {
        Stream(self.sim.create_stream().expect("a stream"))
    }

    /// Allocates 20 MiB, queues a copy of its first bytes, tells of it and frees.
    #[track_caller]
    fn use_and_free(&self, stream: Stream) -> HostPtr {
        let ptr = self.pinned.allocate(20 * M, 0).expect("memory");
        self.copy(ptr, stream);
        self.pinned.record_use(ptr, 0, stream).expect("recorded");
        self.pinned.deallocate(ptr).expect("freed");
        ptr
    }

    #[track_caller]
    fn copy(&self, ptr: HostPtr, stream: Stream) {
        let device = self.device_memory.0 + self.copies.replace(self.copies.get() + 1) * 512;
        let copy = HostCopy { host: ptr.address(), device, bytes: 512, to_host: false };
        // SAFETY: the block is handed out again, or given back, only when the stream has passed.
        unsafe { self.driver.copy_async(0, copy, stream) }.expect("queued");
    }

    fn finish(&self, stream: Stream) {
        self.sim.executor().run_stream(0, stream.0).expect("a stream");
    }

    fn reset(&mut self) {
        self.sim.reset_device_force(0).expect("reset");
        self.sim.set_device(0).expect("a device");
        self.device_memory = DevicePtr(self.sim.malloc(16 * M, 0).expect("device memory"));
    }

    fn waiting(&self) -> u64 {
        self.pinned.stats().waiting_bytes
    }

    /// Gives everything back and looks what is left.
    fn end(self) {
        self.sim.synchronize_device().expect("idle");
        self.pinned.empty_cache_waiting().expect("emptied");
        drop(Arc::into_inner(self.pinned).expect("nobody else has it"));
        let (free, total) = self.sim.host_memory();
        assert_eq!(free, total, "all host memory is back");
        let left: Vec<_> = self
            .sim
            .leaks()
            .into_iter()
            .filter(|line| line.contains("event") || line.contains("range"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(self.sim.findings().is_empty(), "{:?}", self.sim.findings());
    }
}

/// Events that stood ready went with the device, and new ones take their place.
#[test]
fn after_a_reset_of_the_device_streams_are_asked_again() {
    for streams in 1..3 {
        let mut bed = Bed::new(PinnedOptions::default());
        let before: Vec<_> = (0..streams).map(|_| bed.stream()).collect();
        for &stream in &before {
            bed.use_and_free(stream);
        }
        before.iter().for_each(|&stream| bed.finish(stream));
        bed.pinned.process_events().unwrap();
        assert_eq!(bed.waiting(), 0, "the events stand ready");
        bed.reset();
        let after: Vec<_> = before.iter().map(|_| bed.stream()).collect();
        let regions = bed.sim.count("aclrtMallocHost");
        for &stream in after.iter().cycle().take(20) {
            bed.use_and_free(stream);
            bed.finish(stream);
            bed.pinned.process_events().unwrap();
            assert_eq!(bed.waiting(), 0);
        }
        assert_eq!(bed.sim.count("aclrtMallocHost"), regions, "what has passed serves the next request");
        bed.end();
    }
}

#[test]
fn a_stream_that_is_gone_keeps_no_guard_and_no_copy() {
    let bed = Bed::new(PinnedOptions::default());
    let registry = HostRegistry::new(bed.driver.clone());
    let guard = registry.register(PageMemory::zeroed(4096).unwrap(), 0, BOTH).map_err(|(error, _)| error);
    let guard = guard.unwrap();
    let stream = bed.stream();
    guard.record_use(0, stream);
    guard.record_use(99, stream);
    let buffer = PinnedBuffer::<u8>::zeroed(bed.pinned.clone(), 100).unwrap();
    let flight = buffer.upload(bed.device_memory, 0, stream).map_err(|(error, _)| error).unwrap();
    bed.sim.executor().set_destroy_waits(false);
    bed.sim.destroy_stream(stream.0).unwrap();
    drop(flight.wait().map_err(|(error, _)| error).unwrap());
    drop(guard.unregister().map_err(|(error, _)| error).unwrap());
    bed.end();
}

#[test]
fn a_ring_goes_on_after_a_reset_and_without_a_stream() {
    let mut bed = Bed::new(PinnedOptions::default());
    let mut ring = StagingRing::new(bed.pinned.clone(), 0, 2, M).unwrap();
    let data = vec![5; 4 << 20];
    ring.upload(&data, bed.device_memory, bed.stream(), |_| {}).unwrap();
    bed.reset();
    for round in 0..3 {
        let stream = bed.stream();
        let waits = bed.sim.count("aclrtSynchronizeStream");
        ring.upload(&data, bed.device_memory, stream, |_| {}).unwrap();
        assert_eq!(bed.sim.count("aclrtSynchronizeStream"), waits, "round {round}: events serve");
        // The last copies have their events behind them, which outlive the stream.
        bed.sim.destroy_stream(stream.0).unwrap();
    }
    let mut back = vec![0; 4 << 20];
    ring.download(&mut back, bed.device_memory, bed.stream(), |_| {}).unwrap();
    assert!(back == data);
    // A copy without an event, on a stream that is gone.
    let stream = bed.stream();
    bed.sim.fail("aclrtRecordEvent", 1, 507_899, true).unwrap();
    bed.sim.fail("aclrtSynchronizeStream", 1, 507_899, false).unwrap();
    ring.upload(&data, bed.device_memory, stream, |_| {}).unwrap_err();
    bed.sim.clear_faults();
    bed.sim.destroy_stream(stream.0).unwrap();
    ring.upload(&data, bed.device_memory, bed.stream(), |_| {}).unwrap();
    drop(ring);
    bed.end();
}

/// Its buffers are filled again while the graph still copies from them.
#[test]
fn a_ring_is_in_no_graph() {
    let bed = Bed::new(PinnedOptions::default());
    let mut ring = StagingRing::new(bed.pinned.clone(), 0, 2, M).unwrap();
    let stream = bed.stream();
    bed.sim.capture_begin(stream.0, CaptureMode::Global).unwrap();
    let mut data = vec![5; 2 << 20];
    let copies = bed.sim.count("aclrtMemcpyAsync");
    for refused in [
        ring.upload(&data.clone(), bed.device_memory, stream, |_| {}),
        ring.download(&mut data, bed.device_memory, stream, |_| {}),
    ] {
        assert!(
            matches!(&refused, Err(Error::State { reason, .. }) if reason.contains("captured")),
            "{refused:?}"
        );
    }
    assert_eq!(bed.sim.count("aclrtMemcpyAsync"), copies);
    bed.sim.capture_end(stream.0).unwrap();
    ring.upload(&data, bed.device_memory, stream, |_| {}).unwrap();
    drop(ring);
    bed.end();
}

#[test]
fn no_more_free_memory_is_kept_than_was_said_whoever_finds_it() {
    for background in [false, true] {
        let bed = Bed::new(PinnedOptions { max_cached: Some(0), background, ..PinnedOptions::default() });
        let stream = bed.stream();
        bed.use_and_free(stream);
        assert_eq!(bed.waiting(), 20 * M);
        bed.finish(stream);
        if background {
            while bed.pinned.stats().allocated_bytes.current > 0 {
                std::thread::yield_now();
            }
        } else {
            bed.pinned.process_events().unwrap();
        }
        assert_eq!(bed.pinned.stats().allocated_bytes.current, 0);
        // A request finds it while it looks for something else.
        bed.use_and_free(stream);
        bed.finish(stream);
        let ptr = bed.pinned.allocate(40 * M, 0).unwrap();
        // The thread may have found it before, and be about to give it back.
        while background && bed.pinned.stats().allocated_bytes.current > 40 * M as i64 {
            std::thread::yield_now();
        }
        assert_eq!(bed.pinned.stats().allocated_bytes.current, 40 * M as i64);
        bed.pinned.deallocate(ptr).unwrap();
        bed.end();
    }
    let all = Bed::new(PinnedOptions { max_cached: Some(u64::MAX), ..PinnedOptions::default() });
    let ptr = all.pinned.allocate(20 * M, 0).unwrap();
    all.pinned.deallocate(ptr).unwrap();
    assert_eq!(all.pinned.stats().cached_bytes(), 20 * M);
    all.end();
}

#[test]
fn devices_that_the_driver_does_not_know_are_refused() {
    let bed = Bed::new(PinnedOptions::default());
    let ptr = bed.pinned.allocate(20 * M, 0).unwrap();
    let refused = bed.pinned.record_use(ptr, 2, Stream(0));
    assert!(matches!(refused, Err(Error::Argument { name: "device", .. })), "{refused:?}");
    bed.pinned.deallocate(ptr).unwrap();
    assert_eq!(bed.waiting(), 0, "nobody uses it");
    let buffer = PinnedBuffer::<u8>::zeroed(bed.pinned.clone(), 100).unwrap();
    buffer.record_use(2, Stream(0));
    let (error, buffer) = buffer.upload(bed.device_memory, 2, Stream(0)).unwrap_err();
    assert!(matches!(error, Error::Driver(_)), "{error}");
    drop(buffer);
    bed.end();
}

#[test]
fn sizes_beyond_every_machine_are_refused() {
    let options = PinnedOptions { largest_request: u64::MAX, ..PinnedOptions::default() };
    let bed = Bed::new(options.clone());
    for bytes in [1 << 45, 1 << 63, u64::MAX - 511, u64::MAX] {
        match bed.pinned.allocate(bytes, 0) {
            Err(Error::Size { reason, .. }) => assert!(reason.contains("machine"), "{reason}"),
            other => panic!("{bytes}: {other:?}"),
        }
    }
    bed.end();
    let bed = Bed::new(PinnedOptions::default());
    for wrong in [
        PinnedOptions { largest_request: 0, ..PinnedOptions::default() },
        PinnedOptions { max_total: Some(0), ..PinnedOptions::default() },
    ] {
        let refused = PinnedAllocator::new(wrong, bed.driver.clone()).err();
        assert!(matches!(refused, Some(Error::Argument { .. })), "{refused:?}");
    }
    bed.end();
}

#[test]
fn values_without_bytes_are_counted() {
    let bed = Bed::new(PinnedOptions::default());
    let buffer = PinnedBuffer::<[u8; 0]>::from_slice(bed.pinned.clone(), &[[]; 3]).unwrap();
    assert_eq!((buffer.len(), buffer.bytes()), (3, 0));
    drop(buffer);
    bed.end();
}

/// A region as well as a chunk.
#[test]
fn with_device_sync_nothing_is_taken_from_under_a_copy() {
    for form in [PinnedForm::Regions, PinnedForm::Virtual] {
        let options = PinnedOptions { form, free_order: FreeOrder::DeviceSync, ..PinnedOptions::default() };
        let bed = Bed::on(SimConfig { backing: BackingMode::Mapped, ..SimConfig::default() }, options);
        let ptr = bed.pinned.allocate(20 * M, 0).unwrap();
        bed.copy(ptr, bed.stream());
        bed.pinned.deallocate(ptr).unwrap();
        assert_eq!(bed.pinned.empty_cache().unwrap(), 20 * M, "{form:?}");
        bed.end();
    }
}

#[test]
fn times_are_those_of_calls_that_succeeded() {
    let bed = Bed::new(PinnedOptions::default());
    bed.sim.fail("aclrtMallocHost", 1, 507_899, false).unwrap();
    assert!(bed.pinned.allocate(20 * M, 0).is_err());
    let ptr = bed.pinned.allocate(20 * M, 0).unwrap();
    bed.pinned.deallocate(ptr).unwrap();
    bed.sim.fail("aclrtFreeHost", 1, 507_899, false).unwrap();
    assert!(bed.pinned.empty_cache().is_err());
    assert_eq!(bed.pinned.empty_cache().unwrap(), 20 * M);
    let stats = bed.pinned.stats();
    assert_eq!((stats.num_host_alloc, stats.host_alloc_time.count), (1, 1));
    assert_eq!((stats.num_host_free, stats.host_free_time.count), (1, 1));
    bed.end();
}

/// Its pages are locked, and do not come from `aclrtMallocHost`.
#[test]
fn old_kernels_register_no_memory_of_the_virtual_form() {
    for (form, allowed) in [(PinnedForm::Regions, true), (PinnedForm::Virtual, false)] {
        let options = PinnedOptions { form, ..PinnedOptions::default() };
        let bed = Bed::on(SimConfig { backing: BackingMode::Mapped, ..SimConfig::default() }, options);
        let registry = HostRegistry::new(bed.driver.clone());
        let register = |kind| {
            let buffer = PinnedBuffer::<u8>::zeroed_at_page(bed.pinned.clone(), 8192).unwrap();
            registry.register(buffer, 0, kind).map(drop).map_err(|(error, _)| error.to_string())
        };
        assert!(register(BOTH).unwrap_err().contains("page-locked already"), "{form:?}");
        bed.driver.set_kernel_version(KernelVersion { major: 5, minor: 10 });
        let calls = bed.sim.count("aclrtHostRegisterV2");
        let answer = register(RegisterKind { pinned: false, mapped: true });
        assert_eq!(answer.is_ok(), allowed, "{form:?}: {answer:?}");
        assert_eq!(
            bed.sim.count("aclrtHostRegisterV2") - calls,
            u64::from(allowed),
            "the driver is not asked"
        );
        assert!(answer.err().is_none_or(|text| text.contains("aclrtMallocHost") && text.contains("5.10")));
        bed.end();
    }
}

#[test]
fn more_memory_than_there_is_ends_no_process() {
    let refused = PageMemory::zeroed(1 << 46);
    assert!(matches!(refused, Err(Error::Size { requested, .. }) if requested == 1 << 46), "{refused:?}");
}

/// What helps is said in the words of page-locked memory.
#[test]
fn advice_names_settings_of_page_locked_memory() {
    // One region, of which two pieces that are not beside each other become idle.
    let options = PinnedOptions { max_total: Some(64 * M), reserve: 64 * M, ..PinnedOptions::default() };
    let bed = Bed::new(options);
    let blocks = [(); 4].map(|()| bed.pinned.allocate(16 * M, 0).unwrap());
    bed.pinned.deallocate(blocks[0]).unwrap();
    bed.pinned.deallocate(blocks[2]).unwrap();
    let limited = bed.pinned.allocate(24 * M, 0).unwrap_err().to_string();
    assert!(limited.contains("max_total") && limited.contains("pin_memory_expandable_segments"), "{limited}");
    let free = Bed::new(PinnedOptions::default());
    let full = free.pinned.allocate(100 * G, 0).unwrap_err().to_string();
    assert!(full.contains("no block can be larger than the machine's memory"), "{full}");
    for text in [limited, full] {
        for word in [" device", "Set expandable", "memory_limit_mb", "per_process"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
    for ptr in [blocks[1], blocks[3]] {
        bed.pinned.deallocate(ptr).unwrap();
    }
    bed.end();
    free.end();
}
