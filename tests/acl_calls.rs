//! Every call of the layer reaches the library with the right arguments and brings the answer
//! back; failures become errors with all that is known.

mod stand_ins;

use std::ffi::c_void;

use ascend_alloc::acl::{Acl, codes, sys};
use ascend_alloc::driver::{DriverError, DriverResult};
use stand_ins::{CANN_8_0, FULL, StandIn};

/// A stand-in whose device 1 is current in this thread.
fn on_device_1(test: &str) -> (StandIn, Acl) {
    let stand_in = StandIn::new(FULL, test);
    let acl = stand_in.acl();
    acl.set_device(1).expect("the device is there");
    stand_in.calls();
    (stand_in, acl)
}

fn at(address: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(address)
}

#[track_caller]
fn done<T>(answer: DriverResult<T>) -> T {
    answer.expect("the stand-in does not fail")
}

#[test]
fn process_and_version() {
    let (stand_in, acl) = on_device_1("calls_process");
    done(acl.init(Some(c"acl.json")));
    assert_eq!(done(acl.version()), (1, 13, 0));
    assert_eq!(done(acl.package_version(c"runtime")), 90_000_000);
    assert_eq!(acl.soc_name(), Some(c"Ascend910B3"));
    assert_eq!(done(acl.bare_process_id()), 4711);
    assert_eq!(
        stand_in.calls(),
        [
            "aclInit(acl.json)@1",
            "aclrtGetVersion()@1",
            "aclsysGetVersionNum(runtime)@1",
            "aclrtDeviceGetBareTgid()@1"
        ]
    );
    stand_in.set_soc(c"");
    assert_eq!(acl.soc_name(), None);
}

#[test]
fn devices_and_contexts() {
    let (stand_in, acl) = on_device_1("calls_devices");
    assert_eq!(done(acl.device_count()), 2);
    assert_eq!(done(acl.device()), 1);
    assert_eq!(acl.device_if_any(), Some(1));
    assert_eq!(done(acl.primary_context_state(1)), (0, true));
    assert_eq!(done(acl.primary_context_state(0)), (0, false));
    let primary = done(acl.current_context());
    let own = done(acl.create_context(0));
    assert_eq!((done(acl.current_context()), done(acl.device())), (own, 0));
    // SAFETY: both contexts are the library's.
    done(unsafe { acl.set_current_context(primary) });
    // SAFETY: nothing was made in it.
    done(unsafe { acl.destroy_context(own) });
    // SAFETY: the library answers a stale context with a code.
    let stale = unsafe { acl.set_current_context(own) }.expect_err("it is destroyed");
    assert_eq!((stale.code, stale.name), (codes::RT_PARAM_INVALID, "ACL_ERROR_RT_PARAM_INVALID"));
    assert!(!done(acl.default_stream()).is_null());
    done(acl.synchronize_device());
    done(acl.synchronize_device_with_timeout(-1));
    assert_eq!(acl.synchronize_device_with_timeout(0).expect_err("0 is refused").arguments, "timeout=0");
    assert!(done(acl.can_access_peer(1, 0)));
    stand_in.calls();
    done(acl.enable_peer_access(0));
    done(acl.disable_peer_access(0));
    // SAFETY: this test's own reference, from `on_device_1`.
    done(unsafe { acl.reset_device(1) });
    assert_eq!(
        stand_in.calls(),
        ["aclrtDeviceEnablePeerAccess(0, 0)@1", "aclrtDeviceDisablePeerAccess(0)@1", "aclrtResetDevice(1)@1"]
    );
}

#[test]
fn callbacks_get_what_they_were_registered_with() {
    unsafe extern "C" fn on_state(device: i32, state: sys::aclrtDeviceState, seen: *mut c_void) {
        // SAFETY: the test passes a pair that outlives the call.
        unsafe { *seen.cast::<(i32, u32)>() = (device, state) };
    }
    unsafe extern "C" fn on_end(seen: *mut c_void) {
        // SAFETY: the test passes a number that outlives the call.
        unsafe { *seen.cast::<u32>() += 1 };
    }
    let (stand_in, acl) = on_device_1("calls_callbacks");
    let mut seen = (0_i32, 0_u32);
    // SAFETY: the stand-in calls it before it returns and not afterwards.
    done(unsafe { acl.on_device_state(c"allocator", Some(on_state), (&raw mut seen).cast()) });
    assert_eq!(seen, (1, sys::ACL_RT_DEVICE_STATE_RESET_PRE));
    // SAFETY: nothing is called.
    done(unsafe { acl.on_device_state(c"allocator", None, std::ptr::null_mut()) });
    // SAFETY: nothing is called.
    done(unsafe { acl.on_stream_state(c"allocator", None, std::ptr::null_mut()) });
    let mut ends = 0_u32;
    // SAFETY: as the first.
    done(unsafe { acl.on_graph_destroyed(at(0x77), Some(on_end), (&raw mut ends).cast()) });
    assert_eq!(ends, 1);
    assert_eq!(
        stand_in.calls(),
        [
            "aclrtRegDeviceStateCallback(allocator, 1)@1",
            "aclrtRegDeviceStateCallback(allocator, 0)@1",
            "aclrtRegStreamStateCallback(allocator, 0)@1",
            "aclmdlRIDestroyRegisterCallback(0x77)@1",
        ]
    );
}

#[test]
fn streams_and_events() {
    let (stand_in, acl) = on_device_1("calls_streams");
    let stream = done(acl.create_stream(0, sys::ACL_STREAM_FAST_LAUNCH | sys::ACL_STREAM_FAST_SYNC));
    assert_eq!(stand_in.calls(), ["aclrtCreateStreamWithConfig(0, 0x3)@1"]);
    let plain = done(acl.create_default_stream());
    let (first, second) = (done(acl.create_event(1)), done(acl.create_event(1)));
    stand_in.calls();
    // SAFETY: streams and events are the library's and live.
    unsafe {
        assert!(done(acl.stream_is_idle(stream)));
        done(acl.record_event(first, stream));
        done(acl.stream_wait_event(stream, second));
        assert!(!done(acl.event_is_complete(first)), "1 is complete, 0 is not");
        assert!(done(acl.event_is_complete(second)));
        done(acl.synchronize_event(first));
        done(acl.synchronize_event_with_timeout(first, 20));
        done(acl.synchronize_stream(stream));
        done(acl.synchronize_stream_with_timeout(stream, 20));
        done(acl.destroy_event(first));
        done(acl.destroy_stream(plain));
    }
    let names: Vec<_> =
        stand_in.calls().iter().map(|call| call.split('(').next().unwrap_or_default().to_owned()).collect();
    assert_eq!(
        names,
        [
            "aclrtStreamQuery",
            "aclrtRecordEvent",
            "aclrtStreamWaitEvent",
            "aclrtQueryEventStatus",
            "aclrtQueryEventStatus",
            "aclrtSynchronizeEvent",
            "aclrtSynchronizeEventWithTimeout",
            "aclrtSynchronizeStream",
            "aclrtSynchronizeStreamWithTimeout",
            "aclrtDestroyEvent",
            "aclrtDestroyStream",
        ]
    );
    stand_in.set_capture(2);
    // SAFETY: the stream is live.
    let (status, graph) = done(unsafe { acl.capture_info(stream) });
    assert_eq!(status, sys::ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED);
    assert!(!graph.is_null());
    assert_eq!(done(acl.exchange_capture_mode(sys::ACL_MODEL_RI_CAPTURE_MODE_RELAXED)), 1);
}

#[test]
fn blocks_copies_and_fills() {
    let (stand_in, acl) = on_device_1("calls_blocks");
    assert_eq!(done(acl.memory_info(sys::ACL_HBM_MEM)), (32 << 30, 64 << 30));
    let block = done(acl.malloc(100, sys::ACL_MEM_MALLOC_HUGE_ONLY));
    let mut module = [sys::aclrtMallocAttribute {
        attr: sys::ACL_RT_MEM_ATTR_MODULE_ID,
        value: sys::aclrtMallocAttrValue { moduleId: 33 },
    }];
    let other = done(acl.malloc_with(100, sys::ACL_MEM_MALLOC_HUGE_FIRST, &mut module));
    let third = done(acl.malloc_align_32(64, sys::ACL_MEM_MALLOC_HUGE1G_ONLY));
    assert!(!block.is_null() && !other.is_null() && !third.is_null());
    assert_eq!(
        stand_in.calls(),
        [
            "aclrtGetMemInfo(1)@1",
            "aclrtMalloc(100, 1)@1",
            "aclrtMallocWithCfg(100, 0, 1)@1",
            "aclrtMallocAlign32(64, 6)@1",
        ]
    );
    let range = done(acl.address_range(at(0x12c0_0020_1000)));
    assert_eq!(range, (at(0x12c0_0020_0000), 2 << 20));
    // SAFETY: the stand-in touches no memory.
    unsafe {
        let attributes = done(acl.pointer_attributes(block));
        assert_eq!(
            (attributes.location.id, attributes.location.type_),
            (1, sys::ACL_MEM_LOCATION_TYPE_DEVICE)
        );
        assert_eq!(attributes.pageSize, 2 << 20);
        stand_in.calls();
        done(acl.copy(at(0x10), at(0x20), 8, sys::ACL_MEMCPY_DEVICE_TO_HOST));
        done(acl.copy_async(at(0x10), at(0x20), 8, sys::ACL_MEMCPY_DEFAULT, at(0x30)));
        done(acl.fill(at(0x10), 255, 8));
        done(acl.fill_async(at(0x10), 1, 8, at(0x30)));
        done(acl.free(at(0x10)));
        done(acl.free_with_device_sync(at(0x10)));
    }
    assert_eq!(
        stand_in.calls(),
        [
            "aclrtMemcpy(0x10, 8, 0x20, 8, 2)@1",
            "aclrtMemcpyAsync(0x10, 8, 0x20, 8, 4, 0x30)@1",
            "aclrtMemset(0x10, 8, 255, 8)@1",
            "aclrtMemsetAsync(0x10, 8, 1, 8, 0x30)@1",
            "aclrtFree(0x10)@1",
            "aclrtFreeWithDevSync(0x10)@1",
        ]
    );
}

#[test]
fn virtual_memory() {
    let (stand_in, acl) = on_device_1("calls_virtual_memory");
    let device = sys::aclrtMemLocation { id: 1, type_: sys::ACL_MEM_LOCATION_TYPE_DEVICE };
    let property = sys::aclrtPhysicalMemProp {
        handleType: sys::ACL_MEM_HANDLE_TYPE_NONE,
        allocationType: sys::ACL_MEM_ALLOCATION_TYPE_PINNED,
        memAttr: sys::ACL_HBM_MEM_HUGE,
        location: device,
        reserve: 0,
    };
    assert_eq!(done(acl.granularity(&property)), 2 << 20);
    let range = done(acl.reserve(8 << 20, 0));
    let chunk = done(acl.malloc_physical(2 << 20, &property));
    stand_in.calls();
    // SAFETY: the handles are the library's; the stand-in maps nothing.
    unsafe {
        done(acl.map(range, 2 << 20, chunk));
        done(acl.set_access(range, 2 << 20, sys::aclrtMemLocation { id: 0, ..device }));
        assert_eq!(done(acl.access(range, device)), 3);
        assert!(!done(acl.retain_handle(range)).is_null());
        let found = done(acl.properties(chunk));
        assert_eq!((found.memAttr, found.location.id), (sys::ACL_MEM_HUGE, 1));
        done(acl.unmap(range));
        done(acl.free_physical(chunk));
        done(acl.release(range));
    }
    assert_eq!(
        stand_in.calls(),
        [
            format!("aclrtMapMem({range:?}, 2097152, 0, {chunk:?}, 0)@1"),
            format!("aclrtMemSetAccess({range:?}, 2097152, flags=3, type=1, id=0, 1)@1"),
            format!("aclrtMemGetAccess({range:?}, id=1)@1"),
            format!("aclrtMemRetainAllocationHandle({range:?})@1"),
            format!("aclrtMemGetAllocationPropertiesFromHandle({chunk:?})@1"),
            format!("aclrtUnmapMem({range:?})@1"),
            format!("aclrtFreePhysical({chunk:?})@1"),
            format!("aclrtReleaseMemAddress({range:?})@1"),
        ]
    );
}

#[test]
fn sharing() {
    let (stand_in, acl) = on_device_1("calls_sharing");
    let chunk = at(0x40);
    // SAFETY: the stand-in does not look at the handle.
    let shared = done(unsafe { acl.export(chunk, 1) });
    assert_eq!(shared, 0x7_0000_0001);
    done(acl.allow_import(shared, &mut [99]));
    assert!(!done(acl.import(shared, 1)).is_null());
    // SAFETY: as above.
    let fabric = done(unsafe { acl.export_to_fabric(chunk, 0) });
    assert_eq!(fabric.data, [0x5a; 128]);
    done(acl.allow_import_from_fabric(&fabric, &mut [98]));
    assert!(!done(acl.import_from_fabric(&fabric)).is_null());
    assert_eq!(
        stand_in.calls(),
        [
            "aclrtMemExportToShareableHandle(0x40, 0, 1)@1",
            "aclrtMemSetPidToShareableHandle(0x700000001, 99, 1)@1",
            "aclrtMemImportFromShareableHandle(0x700000001, 1)@1",
            "aclrtMemExportToShareableHandleV2(0x40, 0, 2)@1",
            "aclrtMemSetPidToShareableHandleV2(0x5a, 2, 98, 1)@1",
            "aclrtMemImportFromShareableHandleV2(0x5a, 2, 0)@1",
        ]
    );
}

#[test]
fn host_memory() {
    let (stand_in, acl) = on_device_1("calls_host");
    assert!(!done(acl.malloc_host(4096)).is_null());
    let mut same_address = [sys::aclrtMallocAttribute {
        attr: sys::ACL_RT_MEM_ATTR_VA_FLAG,
        value: sys::aclrtMallocAttrValue { vaFlag: 1 },
    }];
    assert!(!done(acl.malloc_host_with(4096, &mut same_address)).is_null());
    // SAFETY: the stand-in touches no memory.
    unsafe {
        assert_eq!(done(acl.register_host(at(0x5000), 4096)), at(0x5000));
        done(acl.register_host_v2(at(0x6000), 4096, sys::ACL_HOST_REG_MAPPED | sys::ACL_HOST_REG_PINNED));
        assert_eq!(done(acl.host_device_pointer(at(0x6000))), at(0x6000));
        done(acl.unregister_host(at(0x6000)));
        done(acl.free_host(at(0x7000)));
        done(acl.free_host_with_device_sync(at(0x8000)));
    }
    assert_eq!(
        stand_in.calls(),
        [
            "aclrtMallocHost(4096)@1",
            "aclrtMallocHostWithCfg(4096, 1, attr=3, value=1)@1",
            "aclrtHostRegister(0x5000, 4096, 0)@1",
            "aclrtHostRegisterV2(0x6000, 4096, 0x10000002)@1",
            "aclrtHostGetDevicePointer(0x6000, 0)@1",
            "aclrtHostUnregister(0x6000)@1",
            "aclrtFreeHost(0x7000)@1",
            "aclrtFreeHostWithDevSync(0x8000)@1",
        ]
    );
}

#[test]
fn a_failure_carries_call_arguments_code_name_and_the_librarys_words() {
    let (stand_in, acl) = on_device_1("calls_failure");
    stand_in.fail("aclrtReserveMemAddress", 207_001, 1, "  no address space is left\n");
    let error = acl.reserve(1 << 40, 0).expect_err("it is told to fail");
    assert_eq!(
        error,
        DriverError {
            call: "aclrtReserveMemAddress",
            arguments: "size=1099511627776, alignment=0, expectPtr=0x0, flags=0".to_owned(),
            code: 207_001,
            name: "ACL_ERROR_RT_MEMORY_ALLOCATION",
            message: Some("no address space is left".to_owned()),
            missing_symbol: None,
        }
    );
    assert!(error.is_out_of_memory() && !error.is_unsupported());
    assert_eq!(
        error.to_string(),
        "aclrtReserveMemAddress(size=1099511627776, alignment=0, expectPtr=0x0, flags=0) answered 207001 \
         (ACL_ERROR_RT_MEMORY_ALLOCATION): no address space is left"
    );
    // The words were read with the error: the next one does not show them again.
    assert_eq!(acl.recent_message(), None);
    stand_in.fail("aclrtFree", 123, 1, "");
    // SAFETY: the stand-in frees nothing.
    let error = unsafe { acl.free(at(0x10)) }.expect_err("it is told to fail");
    assert_eq!((error.code, error.name, error.message), (123, "unknown code", None));
}

#[test]
fn asking_for_the_device_leaves_no_words_behind() {
    let stand_in = StandIn::new(FULL, "calls_no_words");
    let acl = stand_in.acl();
    assert_eq!(acl.device_if_any(), None);
    assert_eq!(acl.recent_message(), None);
    let error = acl.device().expect_err("the thread has no context");
    assert_eq!(
        (error.code, error.message.as_deref()),
        (codes::RT_CONTEXT_NULL, Some("the thread has no context"))
    );
}

#[test]
fn a_missing_call_names_its_symbol() {
    let acl = StandIn::new(CANN_8_0, "calls_missing").acl();
    let location = sys::aclrtMemLocation { id: 0, type_: sys::ACL_MEM_LOCATION_TYPE_DEVICE };
    let error = acl.set_access(at(0x20_0000), 2 << 20, location).expect_err("8.0 has no such call");
    assert_eq!(error.missing_symbol, Some("aclrtMemSetAccess"));
    assert!(error.is_unsupported() && !error.is_out_of_memory());
    assert_eq!(
        error.to_string(),
        "aclrtMemSetAccess(virPtr=0x200000, size=2097152, flags=3, location=1:0, count=1): \
         the loaded library has no symbol aclrtMemSetAccess"
    );
    // SAFETY: the call is not there.
    let answers = unsafe {
        [
            acl.free_with_device_sync(at(0x10)).map_err(|error| error.missing_symbol),
            acl.register_host_v2(at(0x10), 1, 0).map_err(|error| error.missing_symbol),
            acl.retain_handle(at(0x10)).map(drop).map_err(|error| error.missing_symbol),
        ]
    };
    assert_eq!(
        answers,
        [
            Err(Some("aclrtFreeWithDevSync")),
            Err(Some("aclrtHostRegisterV2")),
            Err(Some("aclrtMemRetainAllocationHandle")),
        ]
    );
}

#[test]
fn allocators_of_streams() {
    unsafe extern "C" fn alloc(_object: *mut c_void, _size: usize) -> *mut c_void {
        std::ptr::null_mut()
    }
    unsafe extern "C" fn free(_object: *mut c_void, _block: *mut c_void) {}
    unsafe extern "C" fn advise(_object: *mut c_void, _size: usize, _wanted: *mut c_void) -> *mut c_void {
        std::ptr::null_mut()
    }
    unsafe extern "C" fn address(block: *mut c_void) -> *mut c_void {
        block
    }
    let (stand_in, acl) = on_device_1("calls_allocators");
    let functions = ascend_alloc::acl::AllocatorFunctions {
        object: at(0x50),
        alloc: Some(alloc),
        free: Some(free),
        advise: Some(advise),
        address: Some(address),
    };
    // SAFETY: the stand-in calls nothing and follows nothing.
    unsafe {
        done(acl.register_allocator(at(0x60), &functions));
        assert_eq!(done(acl.allocator_object(at(0x60))), at(0x50));
        done(acl.unregister_allocator(at(0x60)));
    }
    assert_eq!(
        stand_in.calls(),
        [
            "aclrtAllocatorCreateDesc()@1",
            "aclrtAllocatorSetObjToDesc(desc, value)@1",
            "aclrtAllocatorSetAllocFuncToDesc(desc, value)@1",
            "aclrtAllocatorSetFreeFuncToDesc(desc, value)@1",
            "aclrtAllocatorSetAllocAdviseFuncToDesc(desc, value)@1",
            "aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, value)@1",
            "aclrtAllocatorRegister(0x60, desc)@1",
            "aclrtAllocatorDestroyDesc(desc)@1",
            "aclrtAllocatorGetByStream(0x60)@1",
            "aclrtAllocatorUnregister(0x60)@1",
        ]
    );
}
