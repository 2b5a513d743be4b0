//! Registering memory of others: what is checked before the driver is asked, and what a guard makes sure of.

use std::sync::Arc;

use ascend_alloc::Error;
use ascend_alloc::driver::{Driver, Engine, HostCopy, KernelVersion, RegisterKind, SimDriver, Stream};
use ascend_alloc::error::PointerKind;
use ascend_alloc::host::{HostRegistry, PageMemory, PinnedAllocator, PinnedBuffer, PinnedOptions};
use ascend_sim::exec::HostOp;
use ascend_sim::{LAG_NEVER, Sim, SimConfig};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const BOTH: RegisterKind = RegisterKind { pinned: true, mapped: true };
const MAPPED: RegisterKind = RegisterKind { pinned: false, mapped: true };
/// `ACL_HOST_REG_MAPPED`.
const FLAG_MAPPED: u32 = 2;

fn machine() -> (Sim, Arc<SimDriver>) {
    let sim = Sim::new(SimConfig { lag: LAG_NEVER, strict: true, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    (sim, driver)
}

fn state<T>(result: ascend_alloc::Result<T>) -> Option<&'static str> {
    match result {
        Err(Error::State { reason, .. }) => Some(reason),
        _ => None,
    }
}

fn argument<T>(result: ascend_alloc::Result<T>) -> Option<&'static str> {
    match result {
        Err(Error::Argument { name, .. }) => Some(name),
        _ => None,
    }
}

fn pointer<T>(result: ascend_alloc::Result<T>) -> Option<PointerKind> {
    match result {
        Err(Error::Pointer { kind, .. }) => Some(kind),
        _ => None,
    }
}

#[test]
fn b32_only_own_whole_aligned_ranges_are_registered_and_unregistered() {
    let (sim, driver) = machine();
    let registry = HostRegistry::new(driver);
    let memory = PageMemory::zeroed((M + 64 * K) as usize).unwrap();
    let p = memory.address().next_multiple_of(64 * K);
    // SAFETY: the memory outlives the registrations.
    let register = |start, bytes| unsafe { registry.register_raw(start, bytes, 0, BOTH, false) };
    register(p + 64 * K, 8 * K).unwrap();
    assert!(state(register(p + 64 * K, 8 * K)).unwrap().contains("already"));
    assert!(state(register(p, M)).unwrap().contains("overlaps"));
    assert!(state(register(p + 68 * K, 64 * K)).unwrap().contains("overlaps"));
    assert_eq!(argument(register(p + 100, 4 * K)), Some("start"));
    assert_eq!(argument(register(p + 128 * K, 0)), Some("bytes"));
    assert_eq!(argument(register(p, u64::MAX)), Some("bytes"));
    assert_eq!(argument(register(0, 4 * K)), Some("start"));
    assert_eq!(sim.count("aclrtHostRegisterV2"), 1);
    assert_eq!(sim.recent_error(), None, "nothing was refused by the driver");
    for (address, inside) in [(p + 64 * K, true), (p + 72 * K - 1, true), (p + 72 * K, false)] {
        assert_eq!(registry.is_registered(address), inside);
    }
    assert_eq!(pointer(registry.unregister_raw(p + 68 * K)), Some(PointerKind::Interior));
    registry.unregister_raw(p + 64 * K).unwrap();
    assert_eq!(pointer(registry.unregister_raw(p + 64 * K)), Some(PointerKind::Foreign));
    sim.host_register_v2(p + 64 * K, 8 * K, FLAG_MAPPED).unwrap();
    match register(p + 64 * K, 8 * K) {
        Err(Error::Driver(error)) => assert_eq!(error.code, 507_910),
        other => panic!("{other:?}"),
    }
    assert_eq!(pointer(registry.unregister_raw(p + 64 * K)), Some(PointerKind::Foreign));
    assert_eq!(sim.count("aclrtHostUnregister"), 1);
    sim.host_unregister(p + 64 * K).unwrap();
    register(p + 64 * K, 8 * K).unwrap();
    registry.unregister_raw(p + 64 * K).unwrap();
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn old_kernels_register_only_memory_of_the_driver() {
    let (sim, driver) = machine();
    let registry = HostRegistry::new(driver.clone());
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver.clone()).unwrap());
    for (major, minor, allowed) in [(4, 19, false), (5, 10, false), (5, 11, true), (6, 6, true)] {
        driver.set_kernel_version(KernelVersion { major, minor });
        let before = sim.count("aclrtHostRegisterV2");
        match registry.register(PageMemory::zeroed(4096).unwrap(), 0, BOTH) {
            Ok(guard) => assert!(allowed && guard.unregister().is_ok(), "{major}.{minor}"),
            Err((error, _memory)) => {
                let text = error.to_string();
                assert!(!allowed && text.contains("aclrtMallocHost") && text.contains("5.10"), "{text}");
                assert_eq!(sim.count("aclrtHostRegisterV2"), before, "the driver is not asked");
            }
        }
        let locked = PinnedBuffer::<u8>::zeroed_at_page(pinned.clone(), 8192).unwrap();
        let (error, locked) = registry.register(locked, 0, BOTH).unwrap_err();
        assert!(error.to_string().contains("page-locked already"), "{error}");
        let guard = registry.register(locked, 0, MAPPED).unwrap();
        assert_eq!(guard.kernel_ptr().unwrap().for_kernel(), guard.range().0);
        drop(guard);
    }
    pinned.empty_cache_waiting().unwrap();
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn a_guard_waits_for_work_and_unregisters_before_it_frees() {
    let (sim, driver) = machine();
    let registry = HostRegistry::new(driver.clone());
    let target = sim.malloc(M, 0).unwrap();
    let stream = Stream(sim.create_stream().unwrap());
    let memory = PageMemory::zeroed(64 << 10).unwrap();
    let guard = registry.register(memory, 0, BOTH).unwrap();
    let (start, bytes) = guard.range();
    let copy = HostCopy { host: start, device: target, bytes, to_host: false };
    // SAFETY: the guard keeps the memory until the stream has been waited for.
    unsafe { driver.copy_async(0, copy, stream) }.unwrap();
    guard.record_use(0, stream);
    drop(guard);
    assert_eq!((sim.count("aclrtSynchronizeStream"), sim.count("aclrtHostUnregister")), (1, 1));
    assert!(!registry.is_registered(start));
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    // The check is alive: without the record the checker sees it.
    let guard = registry.register(PageMemory::zeroed(64 << 10).unwrap(), 0, BOTH).unwrap();
    let copy = HostCopy { host: guard.range().0, ..copy };
    // SAFETY: the memory is kept below until the stream is done.
    unsafe { driver.copy_async(0, copy, stream) }.unwrap();
    let memory = guard.unregister().unwrap();
    sim.touch(HostOp::Write, memory.address(), 64 << 10);
    assert!(!sim.take_findings().is_empty());
    assert_eq!(sim.synchronize_stream(stream.0), Err(507_043), "the copy found no memory any more");
}

#[test]
fn what_cannot_be_unregistered_stays() {
    let (sim, driver) = machine();
    let registry = HostRegistry::new(driver);
    let guard = registry.register(PageMemory::zeroed(4096).unwrap(), 0, BOTH).unwrap();
    let (start, _) = guard.range();
    sim.fail("aclrtHostUnregister", 1, 507_899, false).unwrap();
    let (error, guard) = guard.unregister().unwrap_err();
    assert!(matches!(error, Error::Driver(_)) && registry.is_registered(start));
    drop(guard);
    assert!(!registry.is_registered(start) && sim.leaks().is_empty());

    let guard = registry.register(PageMemory::zeroed(4096).unwrap(), 0, BOTH).unwrap();
    let (start, _) = guard.range();
    guard.record_use(0, Stream(sim.create_stream().unwrap()));
    sim.fail("aclrtSynchronizeStream", 1, 507_899, false).unwrap();
    drop(guard);
    assert!(registry.is_registered(start), "a device may still use it");
    registry.unregister_raw(start).unwrap();
}

/// Only its guard knows which work uses the memory, and drops it.
#[test]
fn what_a_guard_owns_is_unregistered_by_the_guard() {
    let (sim, driver) = machine();
    let registry = HostRegistry::new(driver);
    let guard = registry.register(PageMemory::zeroed(4096).unwrap(), 0, BOTH).unwrap();
    let (start, _) = guard.range();
    assert!(state(registry.unregister_raw(start)).unwrap().contains("guard"));
    assert_eq!((registry.is_registered(start), sim.count("aclrtHostUnregister")), (true, 0));
    // A guard that could not end it leaves it to the program.
    sim.fail("aclrtHostUnregister", 1, 507_899, true).unwrap();
    let (_, guard) = guard.unregister().unwrap_err();
    assert!(state(registry.unregister_raw(start)).unwrap().contains("guard"));
    drop(guard);
    sim.clear_faults();
    registry.unregister_raw(start).unwrap();
    assert!(!registry.is_registered(start) && sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn before_8_5_mappings_are_registered_with_the_older_call() {
    let (sim, driver) = machine();
    sim.set_missing(&["aclrtHostRegisterV2", "aclrtHostGetDevicePointer"]).unwrap();
    let registry = HostRegistry::new(driver.clone());
    let guard = registry.register(PageMemory::zeroed(8192).unwrap(), 0, MAPPED).unwrap();
    assert_eq!(sim.count("aclrtHostRegister"), 1);
    assert_eq!(guard.kernel_ptr().unwrap().for_kernel(), guard.range().0);
    drop(guard);
    let (error, _memory) = registry.register(PageMemory::zeroed(4096).unwrap(), 0, BOTH).unwrap_err();
    assert!(matches!(error, Error::Driver(ref error) if error.missing_symbol == Some("aclrtHostRegisterV2")));
    assert!(sim.leaks().is_empty());
}

#[test]
fn engines_say_whether_they_reach_host_memory() {
    let (sim, driver) = machine();
    let registry = HostRegistry::new(driver);
    let reach: Vec<Engine> =
        Engine::ALL.into_iter().filter(|&engine| registry.can_reach(0, engine).unwrap()).collect();
    assert!(reach.contains(&Engine::AiVector) && !reach.contains(&Engine::Rdma), "{reach:?}");
    sim.set_missing(&["aclrtHostMemMapCapabilities"]).unwrap();
    match registry.can_reach(0, Engine::Sdma) {
        Err(Error::Driver(error)) => assert!(error.is_unsupported()),
        other => panic!("{other:?}"),
    }
}
