//! Page-locked memory: what single calls answer, and drivers that offer less.

use std::alloc::Layout;
use std::sync::Arc;

use allocator_api2::alloc::Allocator;
use ascend_alloc::driver::{Driver, RegisterKind, ShareForm, ShareName, SimDriver, Stream};
use ascend_alloc::error::PointerKind;
use ascend_alloc::host::{
    HostMemory, HostPtr, HostRegistry, KernelPtr, PageMemory, Pinned, PinnedAllocator, PinnedBuffer,
    PinnedForm, PinnedOptions, StagingRing,
};
use ascend_alloc::{Config, Error};
use ascend_sim::{LAG_NEVER, Sim, SimConfig};

mod common;
use common::gate::GatedDriver;
use common::{G, K, M};

fn machine() -> (Sim, Arc<SimDriver>) {
    let sim = Sim::new(SimConfig { host_capacity: 4 * G, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    (sim, driver)
}

fn pinned(options: PinnedOptions) -> (Sim, Arc<PinnedAllocator>) {
    let (sim, driver) = machine();
    (sim, Arc::new(PinnedAllocator::new(options, driver).unwrap()))
}

#[test]
fn wrong_settings_are_refused_before_anything_is_taken() {
    let (sim, driver) = machine();
    let nobodys = PinnedOptions { device: 7, ..PinnedOptions::default() };
    let refused = PinnedAllocator::new(nobodys, driver.clone()).err();
    assert!(
        matches!(&refused, Some(Error::Argument { name: "device", value, .. }) if value == "7"),
        "{refused:?}"
    );
    let config = Config { headroom: -1.0, ..Config::default() };
    assert!(matches!(PinnedAllocator::from_config(&config, driver.clone()), Err(Error::Config(_))));
    assert_eq!(sim.count("aclrtMallocHost"), 0);
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver).unwrap());
    for (pieces, piece) in [(0, 4096), (2, 0)] {
        let ring = StagingRing::new(pinned.clone(), 0, pieces, piece).err();
        assert!(matches!(ring, Some(Error::Argument { name: "pieces, piece", .. })), "{ring:?}");
    }
}

#[test]
fn a_large_request_may_be_split() {
    let (sim, pinned) = pinned(PinnedOptions { max_total: Some(64 * M), ..PinnedOptions::default() });
    let blocks = pinned.allocate_split(20 * M, 8 * M).unwrap();
    assert_eq!(blocks.iter().map(|&(bytes, _)| bytes).collect::<Vec<_>>(), [8 * M, 8 * M, 4 * M]);
    for &(bytes, ptr) in &blocks {
        assert!(pinned.block_bytes(ptr).unwrap() >= bytes);
    }
    let whole = pinned.allocate_split(3 * M, 0).unwrap();
    assert_eq!(whole.len(), 1, "0 asks for parts as large as they may be");
    assert_eq!(pinned.allocate_split(0, M).unwrap(), []);
    // What does not fit is given back.
    let before = pinned.stats().active_bytes.current;
    let refused = pinned.allocate_split(80 * M, 8 * M);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert_eq!(pinned.stats().active_bytes.current, before);
    for (_, ptr) in blocks.into_iter().chain(whole) {
        pinned.deallocate(ptr).unwrap();
    }
    let stats = pinned.stats();
    assert_eq!(stats.cached_bytes(), stats.allocated_bytes.current as u64, "all of it is free");
    assert!(stats.active_bytes.peak >= 23 * M as i64);
    pinned.reset_peak_stats();
    assert_eq!(pinned.stats().active_bytes.peak, 0);
    pinned.empty_cache().unwrap();
    assert_eq!(pinned.stats().cached_bytes(), 0);
    drop(pinned);
    let (free, total) = sim.host_memory();
    assert_eq!(free, total);
}

#[test]
fn nothing_is_a_pointer_too() {
    let (_sim, pinned) = pinned(PinnedOptions::default());
    pinned.record_use(HostPtr::NULL, 0, Stream(0)).unwrap();
    pinned.deallocate(HostPtr::NULL).unwrap();
    let mut empty = PinnedBuffer::<u64>::zeroed(pinned.clone(), 0).unwrap();
    assert_eq!((empty.len(), empty.iter_mut().count(), empty.bytes()), (0, 0, 0));
    let container = Pinned::new(pinned.clone());
    let nothing = Layout::from_size_align(0, 64).unwrap();
    let block = container.allocate(nothing).unwrap();
    assert_eq!((block.len(), block.cast::<u8>().addr().get() % 64), (0, 0));
    // SAFETY: it is of this allocator, with this layout.
    unsafe { container.deallocate(block.cast(), nothing) };
    assert_eq!(pinned.stats().active_requests.current, 0);
}

#[test]
fn kernels_reach_what_is_registered() {
    let (_sim, plain) = pinned(PinnedOptions::default());
    let buffer = PinnedBuffer::<u8>::zeroed(plain, 64).unwrap();
    assert!(buffer.kernel_ptr().is_err(), "nothing made it known to the device");
    let (_sim, registered) = pinned(PinnedOptions { registered: true, ..PinnedOptions::default() });
    let buffer = PinnedBuffer::<u8>::zeroed(registered.clone(), 64).unwrap();
    let pointer: KernelPtr = buffer.kernel_ptr().unwrap();
    assert_eq!(registered.kernel_ptr(buffer.ptr()).unwrap(), pointer);
    assert_ne!(pointer.for_kernel(), 0);
}

#[test]
fn a_registry_knows_its_ranges_only() {
    let (_sim, driver) = machine();
    let registry = HostRegistry::new(driver);
    let memory: &'static mut [u8] = Box::leak(vec![0_u8; 64 << 10].into_boxed_slice());
    let start = memory.as_ptr().addr() as u64;
    let page = start.next_multiple_of(4 * K);
    let part = &mut memory[(page - start) as usize..][..8192];
    assert_eq!(part.range(), (page, 8192));
    let neither = RegisterKind { pinned: false, mapped: false };
    let mapped = RegisterKind { pinned: false, mapped: true };
    let (error, part) = registry.register(part, 0, neither).expect_err("it would bring nothing");
    assert!(matches!(error, Error::Argument { name: "kind", .. }), "{error}");
    let guard = registry.register(part, 0, mapped).map_err(|(error, _)| error).unwrap();
    assert_eq!(guard.range(), (page, 8192));
    assert_eq!(
        registry.kernel_ptr(page + 5).unwrap().for_kernel() - guard.kernel_ptr().unwrap().for_kernel(),
        5
    );
    let outside = registry.kernel_ptr(page + 8192);
    assert!(matches!(outside, Err(Error::Pointer { kind: PointerKind::Foreign, .. })), "{outside:?}");
    drop(guard);
    assert!(registry.kernel_ptr(page).is_err());
}

#[test]
fn a_driver_with_the_basic_calls_only_is_enough_for_regions() {
    let (sim, inner) = machine();
    let inner = SimDriver::clone(&inner);
    // It passes the basic calls on and has none of those in `HostCalls`.
    let driver: Arc<dyn Driver> = Arc::new(GatedDriver::new(inner));
    assert!(driver.host_calls().is_none());
    let options = PinnedOptions {
        common_addresses: true,
        free_order: ascend_alloc::host::FreeOrder::DeviceSync,
        ..PinnedOptions::default()
    };
    let pinned = PinnedAllocator::new(options, driver.clone()).unwrap();
    let ptr = pinned.allocate(M, 0).unwrap();
    assert!(pinned.kernel_ptr(ptr).is_err(), "the driver cannot make it known to the device");
    pinned.deallocate(ptr).unwrap();
    let waits = sim.count("aclrtSynchronizeDevice");
    pinned.empty_cache().unwrap();
    assert_eq!(sim.count("aclrtSynchronizeDevice"), waits + 1, "instead of the call that waits itself");
    assert_eq!(pinned.stats().allocated_bytes.current, 0);
    let registered = PinnedOptions { registered: true, ..PinnedOptions::default() };
    let refused = PinnedAllocator::new(registered, driver.clone()).unwrap().allocate(M, 0);
    assert!(matches!(&refused, Err(Error::Driver(error)) if error.is_unsupported()), "{refused:?}");
    let (free, total) = sim.host_memory();
    assert_eq!(free, total, "the region that could not be registered went back");
    let fallen_back = PinnedOptions { form: PinnedForm::Virtual, ..PinnedOptions::default() };
    let pinned = PinnedAllocator::new(fallen_back, driver.clone());
    // There is no granule to ask for: whichever way it is said, nothing panics.
    if let Ok(pinned) = pinned {
        let answer = pinned.allocate(M, 0);
        assert!(answer.is_ok() || matches!(answer, Err(Error::Driver(_))), "{answer:?}");
    }
    let registry = HostRegistry::new(driver);
    let memory = PageMemory::zeroed(8192).unwrap();
    let kind = RegisterKind { pinned: true, mapped: true };
    let (error, _memory) = registry.register(memory, 0, kind).expect_err("there is no call");
    assert!(matches!(&error, Error::Driver(error) if error.is_unsupported()), "{error}");
}

#[test]
fn what_a_driver_does_not_offer_is_an_error_with_the_calls_name() {
    let (_sim, inner) = machine();
    let driver = GatedDriver::new(SimDriver::clone(&inner));
    let name = ShareName::of_number(ShareForm::V1, 7);
    let refused = [driver.process_id(0).map(drop), driver.allow_import(0, &name, &[1, 2])];
    let calls = ["aclrtDeviceGetBareTgid", "aclrtMemSetPidToShareableHandle"];
    for (answer, call) in refused.into_iter().zip(calls) {
        let error = answer.expect_err("it passes none of these on");
        assert!(error.is_unsupported() && error.call == call, "{error}");
        assert!(error.to_string().contains(call), "{error}");
    }
    // What it says nothing about is as on the usual driver.
    assert_eq!((driver.driver_device(1), driver.can_set_access()), (Ok(1), true));
    assert!(driver.has_lost_memory(0, false) && driver.has_lost_memory(0, true));
    assert!(!driver.watch_states(&Arc::default()), "nobody tells it of streams and devices");
}

/// B20 for page-locked memory, whatever single requests and rounding may be.
#[test]
fn b20_sizes_near_the_limit() {
    const MAX: u64 = u64::MAX;
    for (largest_request, round_up_to) in [(192 * G, None), (MAX, None), (MAX, Some(MAX))] {
        let (sim, pinned) =
            pinned(PinnedOptions { largest_request, round_up_to, ..PinnedOptions::default() });
        let first = pinned.allocate(512, 0).unwrap();
        pinned.deallocate(first).unwrap();
        let before = (pinned.stats(), sim.counters());
        for bytes in
            [MAX, MAX - 1, MAX - 510, MAX - 511, MAX - 543, 1 << 63, (1 << 63) + 1, 1 << 60, (1 << 48) + 1]
        {
            for align in [0, 1, 512, 1 << 21, 1 << 63] {
                let answer = pinned.allocate(bytes, align);
                assert!(
                    matches!(answer, Err(Error::Size { requested, .. }) if requested == bytes),
                    "{answer:?}"
                );
            }
            let answer = pinned.allocate_split(bytes, MAX);
            assert!(matches!(answer, Err(Error::Size { .. } | Error::OutOfMemory(_))), "{answer:?}");
        }
        for (bytes, align) in [(0, 3), (512, 3), (512, MAX)] {
            let answer = pinned.allocate(bytes, align);
            assert!(
                matches!(answer, Err(Error::Argument { name: "align", .. })),
                "{bytes} {align}: {answer:?}"
            );
        }
        let answer = pinned.allocate(1 << 48, 0);
        assert!(matches!(answer, Err(Error::Size { .. } | Error::OutOfMemory(_))), "{answer:?}");
        assert_eq!(pinned.stats().active_bytes, before.0.active_bytes);
        assert_eq!(sim.count("aclrtMallocHost"), 1);
        let (a, b) = (pinned.allocate(512, 0).unwrap(), pinned.allocate(512, 0).unwrap());
        assert_ne!(a, b);
        pinned.deallocate(a).unwrap();
        pinned.deallocate(b).unwrap();
        assert_eq!(pinned.check(), Ok(()));
    }
}

/// B13: nothing takes nothing.
#[test]
fn b13_requests_of_zero_bytes_take_nothing() {
    let (sim, pinned) = pinned(PinnedOptions::default());
    let before = sim.counters();
    for align in [0, 1, 512, 1 << 21] {
        assert!(pinned.allocate(0, align).unwrap().is_null());
    }
    assert_eq!(pinned.allocate_split(0, 0).unwrap(), []);
    pinned.deallocate(HostPtr::NULL).unwrap();
    assert_eq!(sim.counters(), before);
    let stats = pinned.stats();
    assert_eq!((stats.active_bytes, stats.active_requests), Default::default());
    assert_eq!((stats.num_host_alloc, stats.num_host_free), (0, 0));
}

/// Any number of bytes is a limit, and what is said to be lacking is what was asked for.
#[test]
fn a_limit_may_be_any_number_of_bytes() {
    let (_, pinned) = pinned(PinnedOptions { max_total: Some(12 * M + 1), ..PinnedOptions::default() });
    let block = pinned.allocate(12 * M, 0).unwrap();
    let answer = pinned.allocate(500, 0);
    assert!(matches!(&answer, Err(Error::OutOfMemory(report)) if report.requested == 500), "{answer:?}");
    pinned.deallocate(block).unwrap();
}

/// Streams of several devices may have the same handle.
#[test]
fn streams_that_hold_memory_back_are_told_with_their_device() {
    let sim =
        Sim::new(SimConfig { devices: 2, host_capacity: 4 * G, lag: LAG_NEVER, ..SimConfig::default() });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let pinned = PinnedAllocator::new(PinnedOptions::default(), driver).unwrap();
    for device in [0, 1] {
        let block = pinned.allocate(M, 0).unwrap();
        pinned.record_use(block, device, Stream(0)).unwrap();
        pinned.deallocate(block).unwrap();
    }
    let Err(Error::OutOfMemory(report)) = pinned.allocate(5 * G, 0) else { panic!("the host has 4 GiB") };
    let mut held: Vec<_> = report.pending.iter().map(|held| (held.device, held.stream, held.bytes)).collect();
    held.sort_unstable();
    assert_eq!(held, [(0, Stream(0), M), (1, Stream(0), M)]);
    let text = report.to_string();
    for device in [0, 1] {
        let line = format!("1 MiB of freed blocks held back by stream 0x0 of device {device} (1 event)");
        assert!(text.contains(&line), "{text}");
    }
}
