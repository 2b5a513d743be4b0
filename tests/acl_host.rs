//! The driver on stand-ins: what it asks of the library for page-locked host memory, copies, and names of the fabric.

mod stand_ins;

use ascend_alloc::acl::sys;
use ascend_alloc::driver::{
    Driver, DriverResult, Engine, HostCopy, PhysicalHandle, RegisterKind, ShareForm, ShareName, Stream,
};
use ascend_alloc::host::{FreeOrder, PinnedAllocator, PinnedForm, PinnedOptions};
use stand_ins::{CANN_8_0, FULL, StandIn};

const MIB: u64 = 1 << 20;
const BOTH: RegisterKind = RegisterKind { pinned: true, mapped: true };
const MAPPED: RegisterKind = RegisterKind { pinned: false, mapped: true };
const PINNED: RegisterKind = RegisterKind { pinned: true, mapped: false };

/// A stand-in whose thread has set device 1.
fn stand_in(variant: &str, test: &str) -> StandIn {
    let stand_in = StandIn::new(variant, test);
    stand_in.acl().set_device(1).expect("the device is there");
    stand_in.calls();
    stand_in
}

#[track_caller]
fn done<T>(answer: DriverResult<T>) -> T {
    answer.expect("the stand-in does not fail")
}

#[test]
fn the_calls_for_host_memory_are_those_of_the_library() {
    let stand_in = stand_in(FULL, "host_calls");
    let driver = stand_in.driver();
    let calls = driver.host_calls().expect("ACL has them");
    let region = done(calls.malloc_common(1, 4 * MIB));
    done(calls.free_synchronized(1, region));
    // SAFETY: the stand-in touches no memory.
    unsafe {
        assert_eq!(done(calls.register(1, 0x10000, MIB, BOTH)), None);
        assert_eq!(done(calls.register(1, 0x10000, MIB, MAPPED)), None);
        assert_eq!(done(calls.register(1, 0x10000, MIB, PINNED)), None);
    }
    assert_eq!(done(calls.device_pointer(1, 0x10000)), 0x10000);
    assert!(!done(calls.can_reach_host(1, Engine::Stars)), "the stand-in says 0");
    done(calls.unregister(1, 0x10000));
    assert_eq!(
        stand_in.acting_calls(),
        [
            format!("aclrtMallocHostWithCfg(4194304, 1, attr={}, value=1)@1", sys::ACL_RT_MEM_ATTR_VA_FLAG),
            format!("aclrtFreeHostWithDevSync({region:#x})@1"),
            format!(
                "aclrtHostRegisterV2(0x10000, 1048576, {:#x})@1",
                sys::ACL_HOST_REG_MAPPED | sys::ACL_HOST_REG_PINNED
            ),
            format!("aclrtHostRegisterV2(0x10000, 1048576, {:#x})@1", sys::ACL_HOST_REG_MAPPED),
            format!("aclrtHostRegisterV2(0x10000, 1048576, {:#x})@1", sys::ACL_HOST_REG_PINNED),
            "aclrtHostGetDevicePointer(0x10000, 0)@1".to_owned(),
            format!("aclrtHostMemMapCapabilities(1, {})@1", Engine::Stars as u32),
            "aclrtHostUnregister(0x10000)@1".to_owned(),
        ]
    );
}

#[test]
fn without_the_newer_call_only_mappings_are_registered() {
    let stand_in = stand_in(CANN_8_0, "host_register_old");
    let driver = stand_in.driver();
    let calls = driver.host_calls().expect("ACL has them");
    // SAFETY: the stand-in touches no memory.
    let (mapped, pinned) =
        unsafe { (calls.register(1, 0x10000, MIB, MAPPED), calls.register(1, 0x10000, MIB, BOTH)) };
    assert_eq!(done(mapped), Some(0x10000), "the older call answers the device's address");
    let error = pinned.expect_err("there is no call that pins");
    assert!(error.is_unsupported() && error.missing_symbol.is_some(), "{error}");
    let told = stand_in.acting_calls();
    assert_eq!(told, [format!("aclrtHostRegister(0x10000, 1048576, {})@1", sys::ACL_HOST_REGISTER_MAPPED)]);
    for error in [calls.free_synchronized(1, 0x10000), calls.can_reach_host(1, Engine::Stars).map(drop)] {
        assert!(error.expect_err("CANN 8.0 lacks it").missing_symbol.is_some());
    }
}

#[test]
fn the_machine_says_what_it_is() {
    let stand_in = stand_in(FULL, "host_machine");
    let driver = stand_in.driver();
    let calls = driver.host_calls().expect("ACL has them");
    let memory = done(calls.memory());
    assert!(memory.free > 0 && memory.free <= memory.total, "{memory:?}");
    let version = calls.kernel_version().expect("Linux says its version");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(
        release.starts_with(&format!("{version}.")) || release.starts_with(&format!("{version}-")),
        "{release}"
    );
}

#[test]
fn host_chunks_are_of_ddr_and_fall_back_to_what_the_part_has() {
    let stand_in = stand_in(FULL, "host_physical");
    let driver = stand_in.driver();
    let calls = driver.host_calls().expect("ACL has them");
    let kinds = |calls: Vec<String>| -> Vec<bool> {
        let ddr = format!("attr={}", sys::ACL_DDR_MEM_HUGE);
        calls.iter().map(|call| call.contains(&ddr)).collect()
    };
    assert_eq!(done(calls.granularity(1)), 2 * MIB);
    done(calls.malloc_physical(1, 2 * MIB));
    assert_eq!(kinds(stand_in.acting_calls()), [true, true]);
    stand_in.fail("aclrtMallocPhysical", 100_000, 1, "kind");
    done(calls.malloc_physical(1, 2 * MIB));
    assert_eq!(kinds(stand_in.acting_calls()), [true, false]);
    // Refused whatever the kind: the first answer is told.
    stand_in.fail("aclrtMallocPhysical", 100_000, 2, "kind");
    let error = calls.malloc_physical(1, 2 * MIB).expect_err("both are refused");
    assert!(error.arguments.contains(&format!("memAttr={}", sys::ACL_DDR_MEM_HUGE)), "{}", error.arguments);
    stand_in.acting_calls();
    stand_in.fail("aclrtMallocPhysical", 207_001, 1, "full");
    assert!(calls.malloc_physical(1, 2 * MIB).expect_err("full").is_out_of_memory());
    assert_eq!(stand_in.acting_calls().len(), 1, "a full machine is no reason to try another kind");
}

#[test]
fn copies_go_where_they_are_said_to() {
    let stand_in = stand_in(FULL, "host_copies");
    let driver = stand_in.driver();
    let calls = driver.host_calls().expect("ACL has them");
    let copy = |to_host| HostCopy { host: 0x1000, device: 0x2000, bytes: 64, to_host };
    // SAFETY: the stand-in copies nothing.
    unsafe {
        done(driver.copy_async(1, copy(true), Stream(0)));
        done(driver.copy_async(1, copy(false), Stream(0)));
        done(calls.copy(1, copy(true)));
        done(calls.copy(1, copy(false)));
    }
    let told = stand_in.acting_calls();
    let [to_host, to_device] = [sys::ACL_MEMCPY_DEVICE_TO_HOST, sys::ACL_MEMCPY_HOST_TO_DEVICE];
    let expected = [("0x1000", "0x2000", to_host), ("0x2000", "0x1000", to_device)];
    assert_eq!(told.len(), 4, "{told:?}");
    for (call, (to, from, kind)) in told.iter().zip(expected.iter().chain(&expected)) {
        assert!(call.contains(&format!("({to}, ")) && call.contains(from), "{call}");
        assert!(call.contains(&format!("{kind}")), "{call}");
    }
}

#[test]
fn names_of_the_fabric_go_through_as_they_are() {
    let stand_in = stand_in(FULL, "host_fabric");
    let driver = stand_in.driver();
    let name = done(driver.export_chunk(1, PhysicalHandle(0x40), ShareForm::Fabric, false));
    assert_eq!(name, ShareName { form: ShareForm::Fabric, bytes: [0x5a; 128] });
    done(driver.allow_import(1, &name, &[4711, 4712]));
    done(driver.import_chunk(1, &name));
    let kind = sys::ACL_MEM_SHARE_HANDLE_TYPE_FABRIC;
    assert_eq!(
        stand_in.acting_calls(),
        [
            format!("aclrtMemExportToShareableHandleV2(0x40, 0, {kind})@1"),
            format!("aclrtMemSetPidToShareableHandleV2(0x5a, {kind}, 4711, 2)@1"),
            format!("aclrtMemImportFromShareableHandleV2(0x5a, {kind}, 0)@1"),
        ]
    );
}

#[test]
fn page_locked_memory_asks_for_no_more_than_it_needs() {
    let stand_in = stand_in(FULL, "host_pinned");
    let options = PinnedOptions {
        device: 1,
        form: PinnedForm::Regions,
        free_order: FreeOrder::DeviceSync,
        ..PinnedOptions::default()
    };
    let pinned = PinnedAllocator::new(options, std::sync::Arc::new(stand_in.driver())).expect("an allocator");
    let ptr = pinned.allocate(MIB, 0).expect("the stand-in has memory");
    pinned.deallocate(ptr).expect("freed");
    pinned.empty_cache().expect("emptied");
    let told = stand_in.acting_calls();
    let names: Vec<&str> = told.iter().map(|call| call.split('(').next().unwrap_or_default()).collect();
    assert_eq!(
        names.iter().filter(|name| name.contains("Malloc") || name.contains("Free")).collect::<Vec<_>>(),
        [&"aclrtMallocHost", &"aclrtFreeHostWithDevSync"],
        "{names:?}"
    );
}
