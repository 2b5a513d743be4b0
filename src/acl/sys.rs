// @generated from ffi/acl/acl_runtime.h by `cargo run -p bindings -- acl`; do not edit.

pub const ACL_HOST_REG_MAPPED: u32 = 2;
pub const ACL_HOST_REG_PINNED: u32 = 268435456;
pub const ACL_RT_VMM_EXPORT_FLAG_DEFAULT: u32 = 0;
pub const ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION: u32 = 1;
pub const ACL_STREAM_FAST_LAUNCH: u32 = 1;
pub const ACL_STREAM_FAST_SYNC: u32 = 2;
pub const ACL_EVENT_SYNC: u32 = 1;
pub const ACL_EVENT_CAPTURE_STREAM_PROGRESS: u32 = 2;
pub type aclError = ::core::ffi::c_int;
pub type aclrtContext = *mut ::core::ffi::c_void;
pub type aclrtStream = *mut ::core::ffi::c_void;
pub type aclrtEvent = *mut ::core::ffi::c_void;
pub type aclrtDrvMemHandle = *mut ::core::ffi::c_void;
pub type aclmdlRI = *mut ::core::ffi::c_void;
pub const ACL_MEM_MALLOC_HUGE_FIRST: aclrtMemMallocPolicy = 0;
pub const ACL_MEM_MALLOC_HUGE_ONLY: aclrtMemMallocPolicy = 1;
pub const ACL_MEM_MALLOC_NORMAL_ONLY: aclrtMemMallocPolicy = 2;
pub const ACL_MEM_MALLOC_HUGE1G_ONLY: aclrtMemMallocPolicy = 6;
pub type aclrtMemMallocPolicy = ::core::ffi::c_uint;
pub const ACL_DDR_MEM: aclrtMemAttr = 0;
pub const ACL_HBM_MEM: aclrtMemAttr = 1;
pub const ACL_DDR_MEM_HUGE: aclrtMemAttr = 2;
pub const ACL_DDR_MEM_NORMAL: aclrtMemAttr = 3;
pub const ACL_HBM_MEM_HUGE: aclrtMemAttr = 4;
pub const ACL_HBM_MEM_NORMAL: aclrtMemAttr = 5;
pub const ACL_HBM_MEM_HUGE1G: aclrtMemAttr = 10;
pub const ACL_MEM_NORMAL: aclrtMemAttr = 12;
pub const ACL_MEM_HUGE: aclrtMemAttr = 13;
pub const ACL_MEM_HUGE1G: aclrtMemAttr = 14;
pub type aclrtMemAttr = ::core::ffi::c_uint;
pub const ACL_MEM_LOCATION_TYPE_HOST: aclrtMemLocationType = 0;
pub const ACL_MEM_LOCATION_TYPE_DEVICE: aclrtMemLocationType = 1;
pub const ACL_MEM_LOCATION_TYPE_UNREGISTERED: aclrtMemLocationType = 2;
pub const ACL_MEM_LOCATION_TYPE_MANAGED: aclrtMemLocationType = 3;
pub const ACL_MEM_LOCATION_TYPE_HOST_NUMA: aclrtMemLocationType = 4;
pub type aclrtMemLocationType = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtMemLocation {
    pub id: u32,
    pub type_: aclrtMemLocationType,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtMemLocation"][::core::mem::size_of::<aclrtMemLocation>() - 8usize];
    [
        "Alignment of aclrtMemLocation",
    ][::core::mem::align_of::<aclrtMemLocation>() - 4usize];
    [
        "Offset of field: aclrtMemLocation::id",
    ][::core::mem::offset_of!(aclrtMemLocation, id) - 0usize];
    [
        "Offset of field: aclrtMemLocation::type_",
    ][::core::mem::offset_of!(aclrtMemLocation, type_) - 4usize];
};
pub const ACL_MEM_HANDLE_TYPE_NONE: aclrtMemHandleType = 0;
pub const ACL_MEM_HANDLE_TYPE_POSIX: aclrtMemHandleType = 2;
pub type aclrtMemHandleType = ::core::ffi::c_uint;
pub const ACL_MEM_ALLOCATION_TYPE_PINNED: aclrtMemAllocationType = 0;
pub type aclrtMemAllocationType = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtPhysicalMemProp {
    pub handleType: aclrtMemHandleType,
    pub allocationType: aclrtMemAllocationType,
    pub memAttr: aclrtMemAttr,
    pub location: aclrtMemLocation,
    pub reserve: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of aclrtPhysicalMemProp",
    ][::core::mem::size_of::<aclrtPhysicalMemProp>() - 32usize];
    [
        "Alignment of aclrtPhysicalMemProp",
    ][::core::mem::align_of::<aclrtPhysicalMemProp>() - 8usize];
    [
        "Offset of field: aclrtPhysicalMemProp::handleType",
    ][::core::mem::offset_of!(aclrtPhysicalMemProp, handleType) - 0usize];
    [
        "Offset of field: aclrtPhysicalMemProp::allocationType",
    ][::core::mem::offset_of!(aclrtPhysicalMemProp, allocationType) - 4usize];
    [
        "Offset of field: aclrtPhysicalMemProp::memAttr",
    ][::core::mem::offset_of!(aclrtPhysicalMemProp, memAttr) - 8usize];
    [
        "Offset of field: aclrtPhysicalMemProp::location",
    ][::core::mem::offset_of!(aclrtPhysicalMemProp, location) - 12usize];
    [
        "Offset of field: aclrtPhysicalMemProp::reserve",
    ][::core::mem::offset_of!(aclrtPhysicalMemProp, reserve) - 24usize];
};
pub const ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM: aclrtMemGranularityOptions = 0;
pub const ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED: aclrtMemGranularityOptions = 1;
pub type aclrtMemGranularityOptions = ::core::ffi::c_uint;
pub const ACL_RT_MEM_ACCESS_FLAGS_NONE: aclrtMemAccessFlags = 0;
pub const ACL_RT_MEM_ACCESS_FLAGS_READ: aclrtMemAccessFlags = 1;
pub const ACL_RT_MEM_ACCESS_FLAGS_READWRITE: aclrtMemAccessFlags = 3;
pub type aclrtMemAccessFlags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtMemAccessDesc {
    pub flags: aclrtMemAccessFlags,
    pub location: aclrtMemLocation,
    pub rsv: [u8; 12usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of aclrtMemAccessDesc",
    ][::core::mem::size_of::<aclrtMemAccessDesc>() - 24usize];
    [
        "Alignment of aclrtMemAccessDesc",
    ][::core::mem::align_of::<aclrtMemAccessDesc>() - 4usize];
    [
        "Offset of field: aclrtMemAccessDesc::flags",
    ][::core::mem::offset_of!(aclrtMemAccessDesc, flags) - 0usize];
    [
        "Offset of field: aclrtMemAccessDesc::location",
    ][::core::mem::offset_of!(aclrtMemAccessDesc, location) - 4usize];
    [
        "Offset of field: aclrtMemAccessDesc::rsv",
    ][::core::mem::offset_of!(aclrtMemAccessDesc, rsv) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtPtrAttributes {
    pub location: aclrtMemLocation,
    pub pageSize: u32,
    pub rsv: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of aclrtPtrAttributes",
    ][::core::mem::size_of::<aclrtPtrAttributes>() - 28usize];
    [
        "Alignment of aclrtPtrAttributes",
    ][::core::mem::align_of::<aclrtPtrAttributes>() - 4usize];
    [
        "Offset of field: aclrtPtrAttributes::location",
    ][::core::mem::offset_of!(aclrtPtrAttributes, location) - 0usize];
    [
        "Offset of field: aclrtPtrAttributes::pageSize",
    ][::core::mem::offset_of!(aclrtPtrAttributes, pageSize) - 8usize];
    [
        "Offset of field: aclrtPtrAttributes::rsv",
    ][::core::mem::offset_of!(aclrtPtrAttributes, rsv) - 12usize];
};
pub const ACL_RT_MEM_ATTR_RSV: aclrtMallocAttrType = 0;
pub const ACL_RT_MEM_ATTR_MODULE_ID: aclrtMallocAttrType = 1;
pub const ACL_RT_MEM_ATTR_DEVICE_ID: aclrtMallocAttrType = 2;
pub const ACL_RT_MEM_ATTR_VA_FLAG: aclrtMallocAttrType = 3;
pub type aclrtMallocAttrType = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub union aclrtMallocAttrValue {
    pub moduleId: u16,
    pub deviceId: u32,
    pub vaFlag: u32,
    pub rsv: [u8; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of aclrtMallocAttrValue",
    ][::core::mem::size_of::<aclrtMallocAttrValue>() - 8usize];
    [
        "Alignment of aclrtMallocAttrValue",
    ][::core::mem::align_of::<aclrtMallocAttrValue>() - 4usize];
    [
        "Offset of field: aclrtMallocAttrValue::moduleId",
    ][::core::mem::offset_of!(aclrtMallocAttrValue, moduleId) - 0usize];
    [
        "Offset of field: aclrtMallocAttrValue::deviceId",
    ][::core::mem::offset_of!(aclrtMallocAttrValue, deviceId) - 0usize];
    [
        "Offset of field: aclrtMallocAttrValue::vaFlag",
    ][::core::mem::offset_of!(aclrtMallocAttrValue, vaFlag) - 0usize];
    [
        "Offset of field: aclrtMallocAttrValue::rsv",
    ][::core::mem::offset_of!(aclrtMallocAttrValue, rsv) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct aclrtMallocAttribute {
    pub attr: aclrtMallocAttrType,
    pub value: aclrtMallocAttrValue,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of aclrtMallocAttribute",
    ][::core::mem::size_of::<aclrtMallocAttribute>() - 12usize];
    [
        "Alignment of aclrtMallocAttribute",
    ][::core::mem::align_of::<aclrtMallocAttribute>() - 4usize];
    [
        "Offset of field: aclrtMallocAttribute::attr",
    ][::core::mem::offset_of!(aclrtMallocAttribute, attr) - 0usize];
    [
        "Offset of field: aclrtMallocAttribute::value",
    ][::core::mem::offset_of!(aclrtMallocAttribute, value) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtMallocConfig {
    pub attrs: *mut aclrtMallocAttribute,
    pub numAttrs: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtMallocConfig"][::core::mem::size_of::<aclrtMallocConfig>() - 16usize];
    [
        "Alignment of aclrtMallocConfig",
    ][::core::mem::align_of::<aclrtMallocConfig>() - 8usize];
    [
        "Offset of field: aclrtMallocConfig::attrs",
    ][::core::mem::offset_of!(aclrtMallocConfig, attrs) - 0usize];
    [
        "Offset of field: aclrtMallocConfig::numAttrs",
    ][::core::mem::offset_of!(aclrtMallocConfig, numAttrs) - 8usize];
};
pub const ACL_MEMCPY_HOST_TO_HOST: aclrtMemcpyKind = 0;
pub const ACL_MEMCPY_HOST_TO_DEVICE: aclrtMemcpyKind = 1;
pub const ACL_MEMCPY_DEVICE_TO_HOST: aclrtMemcpyKind = 2;
pub const ACL_MEMCPY_DEVICE_TO_DEVICE: aclrtMemcpyKind = 3;
pub const ACL_MEMCPY_DEFAULT: aclrtMemcpyKind = 4;
pub type aclrtMemcpyKind = ::core::ffi::c_uint;
pub const ACL_HOST_REGISTER_MAPPED: aclrtHostRegisterType = 0;
pub type aclrtHostRegisterType = ::core::ffi::c_uint;
pub const ACL_RT_HAC_TYPE_STARS: aclrtHacType = 0;
pub const ACL_RT_HAC_TYPE_AICPU: aclrtHacType = 1;
pub const ACL_RT_HAC_TYPE_AIC: aclrtHacType = 2;
pub const ACL_RT_HAC_TYPE_AIV: aclrtHacType = 3;
pub const ACL_RT_HAC_TYPE_PCIEDMA: aclrtHacType = 4;
pub const ACL_RT_HAC_TYPE_RDMA: aclrtHacType = 5;
pub const ACL_RT_HAC_TYPE_SDMA: aclrtHacType = 6;
pub const ACL_RT_HAC_TYPE_DVPP: aclrtHacType = 7;
pub const ACL_RT_HAC_TYPE_UDMA: aclrtHacType = 8;
pub const ACL_RT_HAC_TYPE_CCU: aclrtHacType = 9;
pub type aclrtHacType = ::core::ffi::c_uint;
pub const ACL_RT_HOST_MEM_MAP_NOT_SUPPORTED: aclrtHostMemMapCapability = 0;
pub const ACL_RT_HOST_MEM_MAP_SUPPORTED: aclrtHostMemMapCapability = 1;
pub type aclrtHostMemMapCapability = ::core::ffi::c_uint;
pub const ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT: aclrtMemSharedHandleType = 1;
pub const ACL_MEM_SHARE_HANDLE_TYPE_FABRIC: aclrtMemSharedHandleType = 2;
pub type aclrtMemSharedHandleType = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtMemFabricHandle {
    pub data: [u8; 128usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of aclrtMemFabricHandle",
    ][::core::mem::size_of::<aclrtMemFabricHandle>() - 128usize];
    [
        "Alignment of aclrtMemFabricHandle",
    ][::core::mem::align_of::<aclrtMemFabricHandle>() - 1usize];
    [
        "Offset of field: aclrtMemFabricHandle::data",
    ][::core::mem::offset_of!(aclrtMemFabricHandle, data) - 0usize];
};
pub const ACL_STREAM_STATUS_COMPLETE: aclrtStreamStatus = 0;
pub const ACL_STREAM_STATUS_NOT_READY: aclrtStreamStatus = 1;
pub const ACL_STREAM_STATUS_RESERVED: aclrtStreamStatus = 65535;
pub type aclrtStreamStatus = ::core::ffi::c_uint;
pub const ACL_EVENT_RECORDED_STATUS_NOT_READY: aclrtEventRecordedStatus = 0;
pub const ACL_EVENT_RECORDED_STATUS_COMPLETE: aclrtEventRecordedStatus = 1;
pub type aclrtEventRecordedStatus = ::core::ffi::c_uint;
pub const ACL_MODEL_RI_CAPTURE_MODE_GLOBAL: aclmdlRICaptureMode = 0;
pub const ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL: aclmdlRICaptureMode = 1;
pub const ACL_MODEL_RI_CAPTURE_MODE_RELAXED: aclmdlRICaptureMode = 2;
pub type aclmdlRICaptureMode = ::core::ffi::c_uint;
pub const ACL_MODEL_RI_CAPTURE_STATUS_NONE: aclmdlRICaptureStatus = 0;
pub const ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE: aclmdlRICaptureStatus = 1;
pub const ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED: aclmdlRICaptureStatus = 2;
pub type aclmdlRICaptureStatus = ::core::ffi::c_uint;
pub const ACL_RT_DEVICE_STATE_SET_PRE: aclrtDeviceState = 0;
pub const ACL_RT_DEVICE_STATE_SET_POST: aclrtDeviceState = 1;
pub const ACL_RT_DEVICE_STATE_RESET_PRE: aclrtDeviceState = 2;
pub const ACL_RT_DEVICE_STATE_RESET_POST: aclrtDeviceState = 3;
pub type aclrtDeviceState = ::core::ffi::c_uint;
pub const ACL_RT_STREAM_STATE_CREATE_POST: aclrtStreamState = 1;
pub const ACL_RT_STREAM_STATE_DESTROY_PRE: aclrtStreamState = 2;
pub type aclrtStreamState = ::core::ffi::c_uint;
pub const ACL_RT_THREAD_LEVEL: aclrtLastErrLevel = 0;
pub type aclrtLastErrLevel = ::core::ffi::c_uint;
pub type aclrtCallback = ::core::option::Option<
    unsafe extern "C" fn(userData: *mut ::core::ffi::c_void),
>;
pub type aclrtDeviceStateCallback = ::core::option::Option<
    unsafe extern "C" fn(
        deviceId: i32,
        state: aclrtDeviceState,
        args: *mut ::core::ffi::c_void,
    ),
>;
pub type aclrtStreamStateCallback = ::core::option::Option<
    unsafe extern "C" fn(
        stream: aclrtStream,
        state: aclrtStreamState,
        args: *mut ::core::ffi::c_void,
    ),
>;
pub type aclrtAllocatorDesc = *mut ::core::ffi::c_void;
pub type aclrtAllocator = *mut ::core::ffi::c_void;
pub type aclrtAllocatorBlock = *mut ::core::ffi::c_void;
pub type aclrtAllocatorAddr = *mut ::core::ffi::c_void;
pub type aclrtAllocatorAllocFunc = ::core::option::Option<
    unsafe extern "C" fn(
        allocator: aclrtAllocator,
        size: usize,
    ) -> *mut ::core::ffi::c_void,
>;
pub type aclrtAllocatorFreeFunc = ::core::option::Option<
    unsafe extern "C" fn(allocator: aclrtAllocator, block: aclrtAllocatorBlock),
>;
pub type aclrtAllocatorAllocAdviseFunc = ::core::option::Option<
    unsafe extern "C" fn(
        allocator: aclrtAllocator,
        size: usize,
        addr: aclrtAllocatorAddr,
    ) -> *mut ::core::ffi::c_void,
>;
pub type aclrtAllocatorGetAddrFromBlockFunc = ::core::option::Option<
    unsafe extern "C" fn(block: aclrtAllocatorBlock) -> *mut ::core::ffi::c_void,
>;
#[derive(Clone, Copy)]
pub struct Functions {
    pub aclInit: Option<
        unsafe extern "C" fn(configPath: *const ::core::ffi::c_char) -> aclError,
    >,
    pub aclrtGetVersion: Option<
        unsafe extern "C" fn(
            majorVersion: *mut i32,
            minorVersion: *mut i32,
            patchVersion: *mut i32,
        ) -> aclError,
    >,
    pub aclsysGetVersionNum: Option<
        unsafe extern "C" fn(
            pkgName: *mut ::core::ffi::c_char,
            versionNum: *mut i32,
        ) -> aclError,
    >,
    pub aclrtGetSocName: Option<unsafe extern "C" fn() -> *const ::core::ffi::c_char>,
    pub aclGetRecentErrMsg: Option<unsafe extern "C" fn() -> *const ::core::ffi::c_char>,
    pub aclrtGetLastError: Option<
        unsafe extern "C" fn(level: aclrtLastErrLevel) -> aclError,
    >,
    pub aclrtGetDeviceCount: Option<unsafe extern "C" fn(count: *mut u32) -> aclError>,
    pub aclrtGetDevice: Option<unsafe extern "C" fn(deviceId: *mut i32) -> aclError>,
    pub aclrtSetDevice: Option<unsafe extern "C" fn(deviceId: i32) -> aclError>,
    pub aclrtResetDevice: Option<unsafe extern "C" fn(deviceId: i32) -> aclError>,
    pub aclrtSynchronizeDevice: Option<unsafe extern "C" fn() -> aclError>,
    pub aclrtSynchronizeDeviceWithTimeout: Option<
        unsafe extern "C" fn(timeout: i32) -> aclError,
    >,
    pub aclrtDeviceGetBareTgid: Option<unsafe extern "C" fn(pid: *mut i32) -> aclError>,
    pub aclrtGetPrimaryCtxState: Option<
        unsafe extern "C" fn(
            deviceId: i32,
            flags: *mut u32,
            active: *mut i32,
        ) -> aclError,
    >,
    pub aclrtCreateContext: Option<
        unsafe extern "C" fn(context: *mut aclrtContext, deviceId: i32) -> aclError,
    >,
    pub aclrtDestroyContext: Option<
        unsafe extern "C" fn(context: aclrtContext) -> aclError,
    >,
    pub aclrtSetCurrentContext: Option<
        unsafe extern "C" fn(context: aclrtContext) -> aclError,
    >,
    pub aclrtGetCurrentContext: Option<
        unsafe extern "C" fn(context: *mut aclrtContext) -> aclError,
    >,
    pub aclrtCtxGetCurrentDefaultStream: Option<
        unsafe extern "C" fn(stream: *mut aclrtStream) -> aclError,
    >,
    pub aclrtDeviceCanAccessPeer: Option<
        unsafe extern "C" fn(
            canAccessPeer: *mut i32,
            deviceId: i32,
            peerDeviceId: i32,
        ) -> aclError,
    >,
    pub aclrtDeviceEnablePeerAccess: Option<
        unsafe extern "C" fn(peerDeviceId: i32, flags: u32) -> aclError,
    >,
    pub aclrtDeviceDisablePeerAccess: Option<
        unsafe extern "C" fn(peerDeviceId: i32) -> aclError,
    >,
    pub aclrtRegDeviceStateCallback: Option<
        unsafe extern "C" fn(
            regName: *const ::core::ffi::c_char,
            callback: aclrtDeviceStateCallback,
            args: *mut ::core::ffi::c_void,
        ) -> aclError,
    >,
    pub aclrtRegStreamStateCallback: Option<
        unsafe extern "C" fn(
            regName: *const ::core::ffi::c_char,
            callback: aclrtStreamStateCallback,
            args: *mut ::core::ffi::c_void,
        ) -> aclError,
    >,
    pub aclrtCreateStream: Option<
        unsafe extern "C" fn(stream: *mut aclrtStream) -> aclError,
    >,
    pub aclrtCreateStreamWithConfig: Option<
        unsafe extern "C" fn(
            stream: *mut aclrtStream,
            priority: u32,
            flag: u32,
        ) -> aclError,
    >,
    pub aclrtDestroyStream: Option<
        unsafe extern "C" fn(stream: aclrtStream) -> aclError,
    >,
    pub aclrtStreamQuery: Option<
        unsafe extern "C" fn(
            stream: aclrtStream,
            status: *mut aclrtStreamStatus,
        ) -> aclError,
    >,
    pub aclrtSynchronizeStream: Option<
        unsafe extern "C" fn(stream: aclrtStream) -> aclError,
    >,
    pub aclrtSynchronizeStreamWithTimeout: Option<
        unsafe extern "C" fn(stream: aclrtStream, timeout: i32) -> aclError,
    >,
    pub aclrtStreamWaitEvent: Option<
        unsafe extern "C" fn(stream: aclrtStream, event: aclrtEvent) -> aclError,
    >,
    pub aclrtCreateEventExWithFlag: Option<
        unsafe extern "C" fn(event: *mut aclrtEvent, flag: u32) -> aclError,
    >,
    pub aclrtDestroyEvent: Option<unsafe extern "C" fn(event: aclrtEvent) -> aclError>,
    pub aclrtRecordEvent: Option<
        unsafe extern "C" fn(event: aclrtEvent, stream: aclrtStream) -> aclError,
    >,
    pub aclrtQueryEventStatus: Option<
        unsafe extern "C" fn(
            event: aclrtEvent,
            status: *mut aclrtEventRecordedStatus,
        ) -> aclError,
    >,
    pub aclrtSynchronizeEvent: Option<
        unsafe extern "C" fn(event: aclrtEvent) -> aclError,
    >,
    pub aclrtSynchronizeEventWithTimeout: Option<
        unsafe extern "C" fn(event: aclrtEvent, timeout: i32) -> aclError,
    >,
    pub aclmdlRICaptureGetInfo: Option<
        unsafe extern "C" fn(
            stream: aclrtStream,
            status: *mut aclmdlRICaptureStatus,
            modelRI: *mut aclmdlRI,
        ) -> aclError,
    >,
    pub aclmdlRICaptureThreadExchangeMode: Option<
        unsafe extern "C" fn(mode: *mut aclmdlRICaptureMode) -> aclError,
    >,
    pub aclmdlRIDestroyRegisterCallback: Option<
        unsafe extern "C" fn(
            modelRI: aclmdlRI,
            func: aclrtCallback,
            userData: *mut ::core::ffi::c_void,
        ) -> aclError,
    >,
    pub aclrtGetMemInfo: Option<
        unsafe extern "C" fn(
            attr: aclrtMemAttr,
            free: *mut usize,
            total: *mut usize,
        ) -> aclError,
    >,
    pub aclrtMalloc: Option<
        unsafe extern "C" fn(
            devPtr: *mut *mut ::core::ffi::c_void,
            size: usize,
            policy: aclrtMemMallocPolicy,
        ) -> aclError,
    >,
    pub aclrtMallocAlign32: Option<
        unsafe extern "C" fn(
            devPtr: *mut *mut ::core::ffi::c_void,
            size: usize,
            policy: aclrtMemMallocPolicy,
        ) -> aclError,
    >,
    pub aclrtMallocWithCfg: Option<
        unsafe extern "C" fn(
            devPtr: *mut *mut ::core::ffi::c_void,
            size: usize,
            policy: aclrtMemMallocPolicy,
            cfg: *mut aclrtMallocConfig,
        ) -> aclError,
    >,
    pub aclrtFree: Option<
        unsafe extern "C" fn(devPtr: *mut ::core::ffi::c_void) -> aclError,
    >,
    pub aclrtFreeWithDevSync: Option<
        unsafe extern "C" fn(devPtr: *mut ::core::ffi::c_void) -> aclError,
    >,
    pub aclrtPointerGetAttributes: Option<
        unsafe extern "C" fn(
            ptr: *const ::core::ffi::c_void,
            attributes: *mut aclrtPtrAttributes,
        ) -> aclError,
    >,
    pub aclrtMemGetAddressRange: Option<
        unsafe extern "C" fn(
            ptr: *mut ::core::ffi::c_void,
            pbase: *mut *mut ::core::ffi::c_void,
            psize: *mut usize,
        ) -> aclError,
    >,
    pub aclrtMemcpy: Option<
        unsafe extern "C" fn(
            dst: *mut ::core::ffi::c_void,
            destMax: usize,
            src: *const ::core::ffi::c_void,
            count: usize,
            kind: aclrtMemcpyKind,
        ) -> aclError,
    >,
    pub aclrtMemcpyAsync: Option<
        unsafe extern "C" fn(
            dst: *mut ::core::ffi::c_void,
            destMax: usize,
            src: *const ::core::ffi::c_void,
            count: usize,
            kind: aclrtMemcpyKind,
            stream: aclrtStream,
        ) -> aclError,
    >,
    pub aclrtMemset: Option<
        unsafe extern "C" fn(
            devPtr: *mut ::core::ffi::c_void,
            maxCount: usize,
            value: i32,
            count: usize,
        ) -> aclError,
    >,
    pub aclrtMemsetAsync: Option<
        unsafe extern "C" fn(
            devPtr: *mut ::core::ffi::c_void,
            maxCount: usize,
            value: i32,
            count: usize,
            stream: aclrtStream,
        ) -> aclError,
    >,
    pub aclrtReserveMemAddress: Option<
        unsafe extern "C" fn(
            virPtr: *mut *mut ::core::ffi::c_void,
            size: usize,
            alignment: usize,
            expectPtr: *mut ::core::ffi::c_void,
            flags: u64,
        ) -> aclError,
    >,
    pub aclrtReleaseMemAddress: Option<
        unsafe extern "C" fn(virPtr: *mut ::core::ffi::c_void) -> aclError,
    >,
    pub aclrtMallocPhysical: Option<
        unsafe extern "C" fn(
            handle: *mut aclrtDrvMemHandle,
            size: usize,
            prop: *const aclrtPhysicalMemProp,
            flags: u64,
        ) -> aclError,
    >,
    pub aclrtFreePhysical: Option<
        unsafe extern "C" fn(handle: aclrtDrvMemHandle) -> aclError,
    >,
    pub aclrtMapMem: Option<
        unsafe extern "C" fn(
            virPtr: *mut ::core::ffi::c_void,
            size: usize,
            offset: usize,
            handle: aclrtDrvMemHandle,
            flags: u64,
        ) -> aclError,
    >,
    pub aclrtUnmapMem: Option<
        unsafe extern "C" fn(virPtr: *mut ::core::ffi::c_void) -> aclError,
    >,
    pub aclrtMemGetAllocationGranularity: Option<
        unsafe extern "C" fn(
            prop: *mut aclrtPhysicalMemProp,
            option: aclrtMemGranularityOptions,
            granularity: *mut usize,
        ) -> aclError,
    >,
    pub aclrtMemSetAccess: Option<
        unsafe extern "C" fn(
            virPtr: *mut ::core::ffi::c_void,
            size: usize,
            desc: *mut aclrtMemAccessDesc,
            count: usize,
        ) -> aclError,
    >,
    pub aclrtMemGetAccess: Option<
        unsafe extern "C" fn(
            virPtr: *mut ::core::ffi::c_void,
            location: *mut aclrtMemLocation,
            flag: *mut u64,
        ) -> aclError,
    >,
    pub aclrtMemRetainAllocationHandle: Option<
        unsafe extern "C" fn(
            virPtr: *mut ::core::ffi::c_void,
            handle: *mut aclrtDrvMemHandle,
        ) -> aclError,
    >,
    pub aclrtMemGetAllocationPropertiesFromHandle: Option<
        unsafe extern "C" fn(
            handle: aclrtDrvMemHandle,
            prop: *mut aclrtPhysicalMemProp,
        ) -> aclError,
    >,
    pub aclrtMemExportToShareableHandle: Option<
        unsafe extern "C" fn(
            handle: aclrtDrvMemHandle,
            handleType: aclrtMemHandleType,
            flags: u64,
            shareableHandle: *mut u64,
        ) -> aclError,
    >,
    pub aclrtMemImportFromShareableHandle: Option<
        unsafe extern "C" fn(
            shareableHandle: u64,
            deviceId: i32,
            handle: *mut aclrtDrvMemHandle,
        ) -> aclError,
    >,
    pub aclrtMemSetPidToShareableHandle: Option<
        unsafe extern "C" fn(
            shareableHandle: u64,
            pid: *mut i32,
            pidNum: usize,
        ) -> aclError,
    >,
    pub aclrtMemExportToShareableHandleV2: Option<
        unsafe extern "C" fn(
            handle: aclrtDrvMemHandle,
            flags: u64,
            shareType: aclrtMemSharedHandleType,
            shareableHandle: *mut ::core::ffi::c_void,
        ) -> aclError,
    >,
    pub aclrtMemImportFromShareableHandleV2: Option<
        unsafe extern "C" fn(
            shareableHandle: *mut ::core::ffi::c_void,
            shareType: aclrtMemSharedHandleType,
            flags: u64,
            handle: *mut aclrtDrvMemHandle,
        ) -> aclError,
    >,
    pub aclrtMemSetPidToShareableHandleV2: Option<
        unsafe extern "C" fn(
            shareableHandle: *mut ::core::ffi::c_void,
            shareType: aclrtMemSharedHandleType,
            pid: *mut i32,
            pidNum: usize,
        ) -> aclError,
    >,
    pub aclrtMallocHost: Option<
        unsafe extern "C" fn(
            hostPtr: *mut *mut ::core::ffi::c_void,
            size: usize,
        ) -> aclError,
    >,
    pub aclrtMallocHostWithCfg: Option<
        unsafe extern "C" fn(
            ptr: *mut *mut ::core::ffi::c_void,
            size: u64,
            cfg: *mut aclrtMallocConfig,
        ) -> aclError,
    >,
    pub aclrtFreeHost: Option<
        unsafe extern "C" fn(hostPtr: *mut ::core::ffi::c_void) -> aclError,
    >,
    pub aclrtFreeHostWithDevSync: Option<
        unsafe extern "C" fn(hostPtr: *mut ::core::ffi::c_void) -> aclError,
    >,
    pub aclrtHostRegister: Option<
        unsafe extern "C" fn(
            ptr: *mut ::core::ffi::c_void,
            size: u64,
            type_: aclrtHostRegisterType,
            devPtr: *mut *mut ::core::ffi::c_void,
        ) -> aclError,
    >,
    pub aclrtHostRegisterV2: Option<
        unsafe extern "C" fn(
            ptr: *mut ::core::ffi::c_void,
            size: u64,
            flag: u32,
        ) -> aclError,
    >,
    pub aclrtHostUnregister: Option<
        unsafe extern "C" fn(ptr: *mut ::core::ffi::c_void) -> aclError,
    >,
    pub aclrtHostGetDevicePointer: Option<
        unsafe extern "C" fn(
            pHost: *mut ::core::ffi::c_void,
            pDevice: *mut *mut ::core::ffi::c_void,
            flag: u32,
        ) -> aclError,
    >,
    pub aclrtHostMemMapCapabilities: Option<
        unsafe extern "C" fn(
            deviceId: u32,
            hacType: aclrtHacType,
            capabilities: *mut aclrtHostMemMapCapability,
        ) -> aclError,
    >,
    pub aclrtAllocatorCreateDesc: Option<unsafe extern "C" fn() -> aclrtAllocatorDesc>,
    pub aclrtAllocatorDestroyDesc: Option<
        unsafe extern "C" fn(allocatorDesc: aclrtAllocatorDesc) -> aclError,
    >,
    pub aclrtAllocatorSetObjToDesc: Option<
        unsafe extern "C" fn(
            allocatorDesc: aclrtAllocatorDesc,
            allocator: aclrtAllocator,
        ) -> aclError,
    >,
    pub aclrtAllocatorSetAllocFuncToDesc: Option<
        unsafe extern "C" fn(
            allocatorDesc: aclrtAllocatorDesc,
            func: aclrtAllocatorAllocFunc,
        ) -> aclError,
    >,
    pub aclrtAllocatorSetFreeFuncToDesc: Option<
        unsafe extern "C" fn(
            allocatorDesc: aclrtAllocatorDesc,
            func: aclrtAllocatorFreeFunc,
        ) -> aclError,
    >,
    pub aclrtAllocatorSetAllocAdviseFuncToDesc: Option<
        unsafe extern "C" fn(
            allocatorDesc: aclrtAllocatorDesc,
            func: aclrtAllocatorAllocAdviseFunc,
        ) -> aclError,
    >,
    pub aclrtAllocatorSetGetAddrFromBlockFuncToDesc: Option<
        unsafe extern "C" fn(
            allocatorDesc: aclrtAllocatorDesc,
            func: aclrtAllocatorGetAddrFromBlockFunc,
        ) -> aclError,
    >,
    pub aclrtAllocatorRegister: Option<
        unsafe extern "C" fn(
            stream: aclrtStream,
            allocatorDesc: aclrtAllocatorDesc,
        ) -> aclError,
    >,
    pub aclrtAllocatorUnregister: Option<
        unsafe extern "C" fn(stream: aclrtStream) -> aclError,
    >,
    pub aclrtAllocatorGetByStream: Option<
        unsafe extern "C" fn(
            stream: aclrtStream,
            allocatorDesc: *mut aclrtAllocatorDesc,
            allocator: *mut aclrtAllocator,
            allocFunc: *mut aclrtAllocatorAllocFunc,
            freeFunc: *mut aclrtAllocatorFreeFunc,
            allocAdviseFunc: *mut aclrtAllocatorAllocAdviseFunc,
            getAddrFromBlockFunc: *mut aclrtAllocatorGetAddrFromBlockFunc,
        ) -> aclError,
    >,
}
macro_rules! with_function_names {
    ($then:ident) => {
        $then ! { aclInit, aclrtGetVersion, aclsysGetVersionNum, aclrtGetSocName,
        aclGetRecentErrMsg, aclrtGetLastError, aclrtGetDeviceCount, aclrtGetDevice,
        aclrtSetDevice, aclrtResetDevice, aclrtSynchronizeDevice,
        aclrtSynchronizeDeviceWithTimeout, aclrtDeviceGetBareTgid,
        aclrtGetPrimaryCtxState, aclrtCreateContext, aclrtDestroyContext,
        aclrtSetCurrentContext, aclrtGetCurrentContext, aclrtCtxGetCurrentDefaultStream,
        aclrtDeviceCanAccessPeer, aclrtDeviceEnablePeerAccess,
        aclrtDeviceDisablePeerAccess, aclrtRegDeviceStateCallback,
        aclrtRegStreamStateCallback, aclrtCreateStream, aclrtCreateStreamWithConfig,
        aclrtDestroyStream, aclrtStreamQuery, aclrtSynchronizeStream,
        aclrtSynchronizeStreamWithTimeout, aclrtStreamWaitEvent,
        aclrtCreateEventExWithFlag, aclrtDestroyEvent, aclrtRecordEvent,
        aclrtQueryEventStatus, aclrtSynchronizeEvent, aclrtSynchronizeEventWithTimeout,
        aclmdlRICaptureGetInfo, aclmdlRICaptureThreadExchangeMode,
        aclmdlRIDestroyRegisterCallback, aclrtGetMemInfo, aclrtMalloc,
        aclrtMallocAlign32, aclrtMallocWithCfg, aclrtFree, aclrtFreeWithDevSync,
        aclrtPointerGetAttributes, aclrtMemGetAddressRange, aclrtMemcpy,
        aclrtMemcpyAsync, aclrtMemset, aclrtMemsetAsync, aclrtReserveMemAddress,
        aclrtReleaseMemAddress, aclrtMallocPhysical, aclrtFreePhysical, aclrtMapMem,
        aclrtUnmapMem, aclrtMemGetAllocationGranularity, aclrtMemSetAccess,
        aclrtMemGetAccess, aclrtMemRetainAllocationHandle,
        aclrtMemGetAllocationPropertiesFromHandle, aclrtMemExportToShareableHandle,
        aclrtMemImportFromShareableHandle, aclrtMemSetPidToShareableHandle,
        aclrtMemExportToShareableHandleV2, aclrtMemImportFromShareableHandleV2,
        aclrtMemSetPidToShareableHandleV2, aclrtMallocHost, aclrtMallocHostWithCfg,
        aclrtFreeHost, aclrtFreeHostWithDevSync, aclrtHostRegister, aclrtHostRegisterV2,
        aclrtHostUnregister, aclrtHostGetDevicePointer, aclrtHostMemMapCapabilities,
        aclrtAllocatorCreateDesc, aclrtAllocatorDestroyDesc, aclrtAllocatorSetObjToDesc,
        aclrtAllocatorSetAllocFuncToDesc, aclrtAllocatorSetFreeFuncToDesc,
        aclrtAllocatorSetAllocAdviseFuncToDesc,
        aclrtAllocatorSetGetAddrFromBlockFuncToDesc, aclrtAllocatorRegister,
        aclrtAllocatorUnregister, aclrtAllocatorGetByStream }
    };
}
pub(super) use with_function_names;
