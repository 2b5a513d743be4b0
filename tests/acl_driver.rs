//! The driver on stand-ins: what it asks of the library, how it degrades, and that a thread's
//! device and context stay what they were.

mod stand_ins;

use std::ffi::c_void;
use std::process::Command;
use std::thread;

use ascend_alloc::acl::{Acl, codes};
use ascend_alloc::driver::{
    AclDriver, Driver, DriverResult, Event, MemoryInfo, PageKind, PhysicalHandle, Stream,
};
use stand_ins::{CANN_8_0, FULL, StandIn, WITHOUT_VMM};

const MIB: u64 = 1 << 20;

/// A driver whose thread has set device 1.
fn on_device_1(variant: &str, test: &str) -> (StandIn, AclDriver) {
    let stand_in = StandIn::new(variant, test);
    stand_in.acl().set_device(1).expect("the device is there");
    let driver = stand_in.driver();
    stand_in.calls();
    (stand_in, driver)
}

#[track_caller]
fn done<T>(answer: DriverResult<T>) -> T {
    answer.expect("the stand-in does not fail")
}

fn stream_of(acl: &Acl) -> Stream {
    Stream(acl.create_default_stream().expect("a stream").addr() as u64)
}

#[test]
fn a_thread_on_the_right_device_is_left_alone() {
    let (stand_in, driver) = on_device_1(FULL, "driver_right_device");
    let stream = stream_of(driver.acl());
    stand_in.calls();
    let event = done(driver.create_event(1));
    done(driver.record_event(1, event, stream));
    done(driver.query_event(1, event));
    done(driver.synchronize_event(1, event));
    done(driver.stream_wait_event(1, stream, event));
    done(driver.synchronize_stream(1, stream));
    done(driver.synchronize_device(1));
    done(driver.destroy_event(1, event));
    let calls = stand_in.calls();
    assert!(calls.iter().all(|call| call.ends_with("@1")), "{calls:?}");
    let switches = ["aclrtSetDevice(", "aclrtSetCurrentContext("];
    assert!(!calls.iter().any(|call| switches.iter().any(|name| call.starts_with(name))), "{calls:?}");
    // Streams wait only for events that were made with this flag.
    assert!(calls.contains(&"aclrtCreateEventExWithFlag(0x1)@1".to_owned()), "{calls:?}");
}

#[test]
fn another_device_is_used_and_the_threads_own_put_back() {
    let (stand_in, driver) = on_device_1(FULL, "driver_other_device");
    let own = stand_in.context();
    let event = done(driver.create_event(0));
    assert_eq!(stand_in.context(), own);
    let calls = stand_in.acting_calls();
    assert!(calls.contains(&"aclrtCreateEventExWithFlag(0x1)@0".to_owned()), "{calls:?}");
    // Opened once, on another thread; from then on only the context is switched.
    assert_eq!(calls.iter().filter(|call| *call == "aclrtSetDevice(0)@-1").count(), 1, "{calls:?}");
    done(driver.destroy_event(0, event));
    let primary = stand_in.acting_calls();
    let (switch, back) = (&primary[0], &primary[2]);
    assert!(switch.starts_with("aclrtSetCurrentContext(") && switch.ends_with("@1"), "{primary:?}");
    assert!(primary[1].starts_with("aclrtDestroyEvent(") && primary[1].ends_with("@0"), "{primary:?}");
    assert_eq!(*back, format!("aclrtSetCurrentContext({own:?})@0"));
    assert_eq!(primary.len(), 3);
    assert_eq!(stand_in.context(), own);
}

#[test]
fn a_context_is_put_back_after_a_failure() {
    let (stand_in, driver) = on_device_1(FULL, "driver_failure_restores");
    let own = stand_in.context();
    stand_in.fail("aclrtMallocAlign32", 207_001, 1, "full");
    let error = driver.malloc(0, 4096, PageKind::Huge).expect_err("it is told to fail");
    assert!(error.is_out_of_memory());
    assert_eq!(error.message.as_deref(), Some("full"));
    assert_eq!(stand_in.context(), own);
}

/// ACL answers so when numbers overflowed, a sequence ended, a model was stopped: the work has ended.
#[test]
fn what_work_has_to_say_is_no_failure_of_a_wait() {
    let (stand_in, driver) = on_device_1(FULL, "driver_soft_codes");
    let stream = stream_of(driver.acl());
    for code in [207_003, 207_016, 207_017, 507_005, 507_023, 507_901] {
        stand_in.fail("aclrtSynchronizeStream", code, 1, "said once");
        done(driver.synchronize_stream(1, stream));
        // The call for the device has stopped at the stream that said so, and goes on.
        stand_in.fail("aclrtSynchronizeDevice", code, 2, "said by two streams");
        stand_in.acting_calls();
        done(driver.synchronize_device(1));
        let calls = stand_in.acting_calls();
        assert_eq!(calls.len(), 3, "{calls:?}");
        assert!(calls.iter().all(|call| call.starts_with("aclrtSynchronizeDevice(")), "{calls:?}");
    }
    for code in [507_014, 507_053, 107_027] {
        stand_in.fail("aclrtSynchronizeStream", code, 1, "lost");
        assert_eq!(driver.synchronize_stream(1, stream).expect_err("it is told to fail").code, code);
        stand_in.fail("aclrtSynchronizeDevice", code, 1, "lost");
        assert_eq!(driver.synchronize_device(1).expect_err("it is told to fail").code, code);
    }
    // Nothing says that streams behind one that never ends to speak have been waited for.
    stand_in.fail("aclrtSynchronizeDevice", 207_003, 1000, "again and again");
    assert_eq!(driver.synchronize_device(1).expect_err("it does not end").code, 207_003);
}

#[test]
fn a_context_of_the_threads_own_survives() {
    let stand_in = StandIn::new(FULL, "driver_explicit_context");
    let acl = stand_in.acl();
    let own = acl.create_context(0).expect("a context");
    let driver = stand_in.driver();
    // Its own device: the call runs in it.
    done(driver.create_event(0));
    assert_eq!(stand_in.context(), own);
    // The other device: the call does not, and it is back afterwards.
    done(driver.create_event(1));
    assert_eq!(stand_in.context(), own);
    let calls = stand_in.calls();
    assert!(calls.contains(&"aclrtCreateEventExWithFlag(0x1)@1".to_owned()), "{calls:?}");
    // To set a device would have replaced it; that happens on another thread only.
    assert!(
        calls.iter().filter(|call| call.starts_with("aclrtSetDevice(")).all(|call| call.ends_with("@-1"))
    );
}

#[test]
fn a_thread_without_a_context_still_has_none_afterwards() {
    let stand_in = StandIn::new(FULL, "driver_no_context");
    let driver = stand_in.driver();
    let event = done(driver.create_event(1));
    done(driver.record_event(1, event, Stream(0)));
    done(driver.synchronize_device(1));
    let address = done(driver.malloc(1, 4096, PageKind::Huge));
    done(driver.free(1, address));
    assert!(stand_in.context().is_null());
    let calls = stand_in.acting_calls();
    assert!(calls.contains(&"aclrtMallocAlign32(4096, 0)@1".to_owned()), "{calls:?}");
    assert_eq!(stand_in.references(1), 1);
}

#[test]
fn calls_that_need_no_context_only_need_the_device_open() {
    let stand_in = StandIn::new(FULL, "driver_no_context_needed");
    let driver = stand_in.driver();
    let range = done(driver.reserve(0, 8 * MIB));
    let chunk = done(driver.malloc_physical(0, 2 * MIB, PageKind::Huge));
    stand_in.calls();
    done(driver.map(0, range, 2 * MIB, chunk));
    done(driver.unmap(0, range));
    done(driver.free_physical(0, chunk));
    done(driver.release(0, range));
    assert_eq!(
        stand_in.acting_calls(),
        [
            format!("aclrtMapMem({range:#x}, 2097152, 0, {:#x}, 0)@-1", chunk.0),
            format!("aclrtUnmapMem({range:#x})@-1"),
            format!("aclrtFreePhysical({:#x})@-1", chunk.0),
            format!("aclrtReleaseMemAddress({range:#x})@-1"),
        ]
    );
    assert!(stand_in.context().is_null());
    // A library that wants a context all the same gets one.
    stand_in.fail("aclrtUnmapMem", codes::RT_CONTEXT_NULL, 1, "no context");
    done(driver.unmap(0, range));
    assert!(stand_in.context().is_null());
    let calls = stand_in.acting_calls();
    assert_eq!(calls.first(), Some(&format!("aclrtUnmapMem({range:#x})@-1")));
    assert_eq!(calls.last(), Some(&format!("aclrtUnmapMem({range:#x})@0")));
}

#[test]
fn the_driver_gives_back_the_devices_it_opened_and_no_other() {
    let (stand_in, driver) = on_device_1(FULL, "driver_references");
    let own = stand_in.context();
    done(driver.create_event(0));
    done(driver.create_event(1));
    assert_eq!((stand_in.references(0), stand_in.references(1)), (1, 1));
    drop(driver);
    assert_eq!((stand_in.references(0), stand_in.references(1)), (0, 1));
    assert_eq!(stand_in.context(), own);
}

#[test]
fn threads_that_open_a_device_at_once_give_all_references_back() {
    let stand_in = StandIn::new(FULL, "driver_threads");
    let driver = stand_in.driver();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let event = done(driver.create_event(1));
                    done(driver.destroy_event(1, event));
                }
                assert!(stand_in.context().is_null());
            });
        }
    });
    assert!(stand_in.references(1) >= 1);
    drop(driver);
    assert_eq!(stand_in.references(1), 0);
}

#[test]
fn a_device_reset_by_force_is_opened_again() {
    let (stand_in, driver) = on_device_1(FULL, "driver_reset");
    done(driver.create_event(0));
    // SAFETY: nothing of the device is used afterwards.
    done(unsafe { driver.acl().reset_device(0) });
    let own = stand_in.context();
    done(driver.create_event(0));
    assert_eq!(stand_in.context(), own);
    assert_eq!(stand_in.references(0), 1);
}

/// Calls that need no context find the device closed instead.
#[test]
fn a_device_that_is_not_open_any_more_is_opened_for_calls_without_a_context() {
    let (stand_in, driver) = on_device_1(FULL, "driver_closed");
    let (own, range) = (stand_in.context(), done(driver.reserve(0, 8 * MIB)));
    let calls: [fn(&AclDriver, u64) -> DriverResult<()>; 3] = [
        |driver, _| driver.reserve(0, 8 * MIB).map(drop),
        |driver, _| driver.malloc_physical(0, 2 * MIB, PageKind::Huge).map(drop),
        |driver, range| driver.map(0, range, 2 * MIB, PhysicalHandle(0x80)),
    ];
    for (call, name) in calls.iter().zip(["aclrtReserveMemAddress", "aclrtMallocPhysical", "aclrtMapMem"]) {
        // SAFETY: nothing of the device is used afterwards that the stand-in would look at.
        done(unsafe { driver.acl().reset_device(0) });
        stand_in.fail(name, codes::RT_INVALID_HANDLE, 1, "the device is not open");
        done(call(&driver, range));
        assert_eq!(stand_in.references(0), 1, "{name}");
        assert_eq!(stand_in.context(), own);
    }
    // What says so on an open device has another reason.
    stand_in.fail("aclrtMapMem", codes::RT_INVALID_HANDLE, 2, "no such handle");
    let error = driver.map(0, range, 2 * MIB, PhysicalHandle(0x80)).expect_err("it is told to fail");
    assert_eq!(error.code, codes::RT_INVALID_HANDLE);
    assert_eq!((stand_in.references(0), stand_in.context()), (1, own));
}

#[test]
fn a_stream_of_the_primary_context_is_reached_from_another_context() {
    let (stand_in, driver) = on_device_1(FULL, "driver_stream_context");
    let stream = stream_of(driver.acl());
    let own = driver.acl().create_context(1).expect("a context");
    let event = done(driver.create_event(1));
    done(driver.record_event(1, event, stream));
    done(driver.stream_wait_event(1, stream, event));
    assert_eq!(stand_in.context(), own);
    // Of the two contexts neither knows a third one's stream: the first answer is told.
    let foreign = Stream(0x51);
    let error = driver.record_event(1, event, foreign).expect_err("nobody knows the stream");
    assert_eq!(error.code, codes::RT_STREAM_CONTEXT);
    assert_eq!(stand_in.context(), own);
}

#[test]
fn waiting_for_the_device_covers_the_primary_context_too() {
    let (stand_in, driver) = on_device_1(FULL, "driver_synchronize");
    let own = driver.acl().create_context(0).expect("a context");
    done(driver.synchronize_device(0));
    let waits = |calls: Vec<String>| {
        calls.into_iter().filter(|call| call.starts_with("aclrtSynchronizeDevice")).count()
    };
    assert_eq!(waits(stand_in.calls()), 1);
    // Now the driver opens the device itself, for a thread without a context.
    thread::scope(|scope| {
        scope.spawn(|| done(driver.synchronize_device(0)));
    });
    assert_eq!(waits(stand_in.calls()), 1);
    done(driver.synchronize_device(0));
    assert_eq!(waits(stand_in.calls()), 2);
    assert_eq!(stand_in.context(), own);
}

#[test]
fn reservations_fall_back_to_the_old_flags_once() {
    let (stand_in, driver) = on_device_1(FULL, "driver_reserve");
    let asked = |flags: u32| format!("aclrtReserveMemAddress(8388608, 0, (nil), {flags})@1");
    done(driver.reserve(1, 8 * MIB));
    assert_eq!(stand_in.acting_calls(), [asked(0)]);
    for code in [100_000, 107_000] {
        // The first is refused with either flags: nothing is learnt from that.
        stand_in.fail("aclrtReserveMemAddress", code, 2, "flags");
        let error = driver.reserve(1, 8 * MIB).expect_err("both tries fail");
        assert_eq!((error.code, error.message.as_deref()), (code, Some("flags")));
        assert!(error.arguments.ends_with("flags=0"), "{}", error.arguments);
        assert_eq!(stand_in.acting_calls(), [asked(0), asked(1)]);
    }
    stand_in.fail("aclrtReserveMemAddress", 207_001, 1, "no room");
    assert!(driver.reserve(1, 8 * MIB).expect_err("no room").is_out_of_memory());
    assert_eq!(stand_in.acting_calls(), [asked(0)], "no second try when the space is used up");
    stand_in.fail("aclrtReserveMemAddress", 107_000, 1, "flags");
    done(driver.reserve(1, 8 * MIB));
    done(driver.reserve(1, 8 * MIB));
    assert_eq!(stand_in.acting_calls(), [asked(0), asked(1), asked(1)]);
}

#[test]
fn physical_memory_is_hbm_and_falls_back_to_what_the_part_has() {
    let (stand_in, driver) = on_device_1(FULL, "driver_physical");
    assert_eq!(done(driver.granularity(1, PageKind::Huge)), 2 * MIB);
    done(driver.malloc_physical(1, 2 * MIB, PageKind::Huge));
    done(driver.malloc_physical(1, 1024 * MIB, PageKind::Huge1G));
    assert_eq!(
        stand_in.acting_calls(),
        [
            "aclrtMemGetAllocationGranularity(attr=4, option=0)@1",
            "aclrtMallocPhysical(2097152, attr=4, device=1, flags=0)@1",
            "aclrtMallocPhysical(1073741824, attr=10, device=1, flags=0)@1",
        ]
    );
    // Out of memory is no reason to try another kind.
    stand_in.fail("aclrtMallocPhysical", 207_001, 1, "full");
    assert!(driver.malloc_physical(1, 2 * MIB, PageKind::Huge).expect_err("full").is_out_of_memory());
    assert_eq!(stand_in.acting_calls().len(), 1);
    // Refused whatever the kind: the first answer is told and the usual kind stays.
    stand_in.fail("aclrtMallocPhysical", 100_000, 2, "kind");
    let error = driver.malloc_physical(1, 2 * MIB, PageKind::Huge).expect_err("both are refused");
    assert!(error.arguments.contains("memAttr=4"), "{}", error.arguments);
    stand_in.acting_calls();
    stand_in.fail("aclrtMallocPhysical", 100_000, 1, "kind");
    done(driver.malloc_physical(1, 2 * MIB, PageKind::Huge));
    done(driver.malloc_physical(1, 2 * MIB, PageKind::Huge));
    assert_eq!(done(driver.granularity(1, PageKind::Huge)), 2 * MIB);
    done(driver.malloc_physical(1, 1024 * MIB, PageKind::Huge1G));
    assert_eq!(
        stand_in.acting_calls(),
        [
            "aclrtMallocPhysical(2097152, attr=4, device=1, flags=0)@1",
            "aclrtMallocPhysical(2097152, attr=13, device=1, flags=0)@1",
            "aclrtMallocPhysical(2097152, attr=13, device=1, flags=0)@1",
            "aclrtMemGetAllocationGranularity(attr=13, option=0)@1",
            "aclrtMallocPhysical(1073741824, attr=10, device=1, flags=0)@1",
        ]
    );
}

#[test]
fn memory_is_asked_for_as_hbm_and_as_ddr_where_there_is_none() {
    let (stand_in, driver) = on_device_1(FULL, "driver_memory_info");
    assert_eq!(done(driver.memory_info(1)), MemoryInfo { free: 32 << 30, total: 64 << 30 });
    stand_in.set_hbm_total(0);
    assert_eq!(done(driver.memory_info(1)), MemoryInfo { free: 4 << 30, total: 8 << 30 });
}

#[test]
fn blocks_are_asked_for_by_page_kind() {
    let (stand_in, driver) = on_device_1(FULL, "driver_malloc");
    let address = done(driver.malloc(1, 20 * MIB, PageKind::Huge));
    done(driver.malloc(1, 1024 * MIB, PageKind::Huge1G));
    done(driver.free(1, address));
    assert_eq!(
        stand_in.acting_calls(),
        [
            "aclrtMallocAlign32(20971520, 0)@1".to_owned(),
            "aclrtMallocAlign32(1073741824, 6)@1".to_owned(),
            format!("aclrtFree({address:#x})@1"),
        ]
    );
}

#[test]
fn the_tail_pad_depends_on_the_part() {
    let (stand_in, driver) = on_device_1(FULL, "driver_tail_pad");
    assert_eq!(done(driver.tail_pad(1)), 32);
    stand_in.set_soc(c"Ascend950PR_9599");
    assert_eq!(done(driver.tail_pad(1)), 0);
    stand_in.set_soc(c"");
    assert_eq!(done(driver.tail_pad(1)), 32, "a part that cannot be named gets the pad");
}

#[test]
fn capture_is_seen_and_never_asked_about_the_default_stream() {
    let (stand_in, driver) = on_device_1(FULL, "driver_capture");
    let stream = stream_of(driver.acl());
    stand_in.calls();
    assert!(!done(driver.is_capturing(1, stream)));
    for status in [1, 2] {
        stand_in.set_capture(status);
        assert!(done(driver.is_capturing(1, stream)));
    }
    stand_in.calls();
    assert!(!done(driver.is_capturing(1, Stream(0))));
    assert_eq!(stand_in.calls(), [""; 0]);
    stand_in.fail("aclmdlRICaptureGetInfo", 207_000, 1, "the driver is too old");
    assert!(!done(driver.is_capturing(1, stream)));
    stand_in.fail("aclmdlRICaptureGetInfo", 507_000, 1, "broken");
    assert_eq!(driver.is_capturing(1, stream).expect_err("a real failure").code, 507_000);
}

#[test]
fn an_old_library_degrades() {
    let (stand_in, driver) = on_device_1(CANN_8_0, "driver_old");
    let stream = stream_of(driver.acl());
    assert!(!done(driver.is_capturing(1, stream)));
    let range = done(driver.reserve(1, 2 * MIB));
    let chunk = done(driver.malloc_physical(1, 2 * MIB, PageKind::Huge));
    done(driver.map(1, range, 2 * MIB, chunk));
    let error = driver.set_access(1, range, 2 * MIB, 1).expect_err("8.0 has no such call");
    assert_eq!(error.missing_symbol, Some("aclrtMemSetAccess"));
    assert!(error.is_unsupported());
    let calls = stand_in.calls();
    assert!(calls.iter().any(|call| call.starts_with("aclrtMapMem(")), "{calls:?}");
}

#[test]
fn without_virtual_memory_all_its_calls_are_unsupported_and_blocks_work() {
    let (stand_in, driver) = on_device_1(WITHOUT_VMM, "driver_without_vmm");
    let chunk = PhysicalHandle(0x40);
    let missing = |answer: DriverResult<()>| answer.expect_err("it is missing").missing_symbol;
    assert_eq!(
        missing(driver.granularity(1, PageKind::Huge).map(drop)),
        Some("aclrtMemGetAllocationGranularity")
    );
    assert_eq!(missing(driver.reserve(1, 2 * MIB).map(drop)), Some("aclrtReserveMemAddress"));
    assert_eq!(
        missing(driver.malloc_physical(1, 2 * MIB, PageKind::Huge).map(drop)),
        Some("aclrtMallocPhysical")
    );
    assert_eq!(missing(driver.map(1, 0x20_0000, 2 * MIB, chunk)), Some("aclrtMapMem"));
    assert_eq!(missing(driver.unmap(1, 0x20_0000)), Some("aclrtUnmapMem"));
    assert_eq!(missing(driver.free_physical(1, chunk)), Some("aclrtFreePhysical"));
    assert_eq!(missing(driver.release(1, 0x20_0000)), Some("aclrtReleaseMemAddress"));
    assert_eq!(missing(driver.set_access(1, 0x20_0000, 2 * MIB, 1)), Some("aclrtMemSetAccess"));
    let address = done(driver.malloc(1, 2 * MIB, PageKind::Huge));
    done(driver.free(1, address));
    assert!(stand_in.calls().contains(&"aclrtMallocAlign32(2097152, 0)@1".to_owned()));
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let stand_in = StandIn::new(FULL, "driver_no_device");
    let driver = stand_in.driver();
    for device in [2, u32::MAX] {
        let error = driver.create_event(device).expect_err("there are two devices");
        assert_eq!(error.code, codes::RT_INVALID_DEVICEID);
        assert_eq!(driver.reserve(device, 2 * MIB).expect_err("as above").code, codes::RT_INVALID_DEVICEID);
    }
    assert_eq!(done(driver.device_count()), 2);
    assert!(stand_in.context().is_null());
}

#[test]
fn errors_of_the_library_come_through_with_its_words() {
    let (stand_in, driver) = on_device_1(FULL, "driver_words");
    stand_in.fail("aclrtUnmapMem", 507_899, 1, "the range is busy");
    let error = driver.unmap(1, 0x12c0_0000_0000).expect_err("it is told to fail");
    assert_eq!(
        error.to_string(),
        "aclrtUnmapMem(virPtr=0x12c000000000) answered 507899 (ACL_ERROR_RT_DRV_INTERNAL_ERROR): the range is busy"
    );
    assert_eq!(driver.query_event(1, Event(0x1010)), Ok(true), "the error is not repeated");
    assert_eq!(driver.acl().recent_message(), None);
}

#[test]
fn no_error_stays_in_the_library() {
    let (stand_in, driver) = on_device_1(FULL, "driver_last_error");
    stand_in.fail("aclrtUnmapMem", 507_899, 1, "the range is busy");
    driver.unmap(1, 0x12c0_0000_0000).expect_err("it is told to fail");
    assert_eq!(stand_in.last_error(), 0, "it was answered");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            done(driver.synchronize_device(1));
            assert_eq!(stand_in.last_error(), 0, "that the thread has no device is no error");
        });
    });
}

#[test]
fn words_of_an_error_on_another_thread_are_not_lost() {
    let stand_in = StandIn::new(FULL, "driver_words_elsewhere");
    let driver = stand_in.driver();
    stand_in.fail("aclrtCreateEventExWithFlag", 207_007, 1, "no events left");
    let error = driver.create_event(0).expect_err("it is told to fail");
    assert_eq!((error.code, error.message.as_deref()), (207_007, Some("no events left")));
}

#[test]
fn time_does_not_go_backwards() {
    let driver = StandIn::new(FULL, "driver_time").driver();
    let times: Vec<u64> = (0..100).map(|_| driver.now()).collect();
    assert!(times.is_sorted());
}

/// The visible devices are read from the environment when a driver is made, so each list needs a
/// process of its own.
#[test]
fn access_names_the_drivers_own_device_numbers() {
    const TEST: &str = "access_names_the_drivers_own_device_numbers";
    const LIST: &str = "ASCEND_RT_VISIBLE_DEVICES";
    const INSIDE: &str = "ASCEND_ALLOC_TEST_INSIDE";
    // The list; whether 0 and 1 are addressable; what 1 is called there.
    let cases: [(Option<&str>, [bool; 2], Option<u32>); 6] = [
        (None, [true, true], Some(1)),
        (Some("0,1"), [true, true], Some(1)),
        (Some("0,2"), [true, false], Some(2)),
        (Some("4,6"), [false, false], Some(6)),
        (Some("0"), [true, false], None),
        (Some(""), [false, false], None),
    ];
    if let Some(number) = std::env::var(INSIDE).ok().and_then(|number| number.parse::<usize>().ok()) {
        let (_, addressable, called) = cases[number];
        let (stand_in, driver) = on_device_1(FULL, &format!("driver_visible_{number}"));
        assert_eq!([0, 1].map(|device| driver.owner_access_is_addressable(device)), addressable);
        let answer = driver.set_access(1, 0x20_0000, 2 * MIB, 1);
        let calls = stand_in.acting_calls();
        match called {
            Some(id) => {
                done(answer);
                assert_eq!(
                    calls,
                    [format!("aclrtMemSetAccess(0x200000, 2097152, flags=3, type=1, id={id}, 1)@1")]
                );
            }
            None => {
                let error = answer.expect_err("the list has no such device");
                assert_eq!(error.code, codes::RT_INVALID_DEVICEID);
                assert!(error.to_string().contains(LIST), "{error}");
                assert_eq!(calls, [""; 0], "a wrong device is not even tried");
            }
        }
        return;
    }
    for (number, (list, _, _)) in cases.iter().enumerate() {
        let mut command = Command::new(std::env::current_exe().expect("the test has a file"));
        command.args(["--exact", TEST]).env(INSIDE, number.to_string()).env_remove(LIST);
        if let Some(list) = list {
            command.env(LIST, list);
        }
        let output = command.output().expect("the test starts again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{list:?}: {text}");
    }
}

#[test]
fn the_driver_can_be_shared_and_is_object_safe() {
    fn shared<T: Send + Sync>(_: &T) {}
    let (stand_in, driver) = on_device_1(FULL, "driver_shared");
    shared(&driver);
    let driver: Box<dyn Driver> = Box::new(driver);
    assert_eq!(done(driver.device_count()), 2);
    let _unused: *mut c_void = stand_in.context();
}
