//! The ACL calls the simulator answers, one value each.

/// Declares [`Call`] with the ACL name of every value.
macro_rules! calls {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// One ACL function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Call {
            $(
                #[doc = $name]
                $variant,
            )*
        }

        impl Call {
            /// Every call, in the order of their numbers.
            pub(crate) const ALL: &'static [Call] = &[$(Call::$variant),*];

            /// The function's name.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Call::$variant => $name,)*
                }
            }
        }
    };
}

calls! {
    Init = "aclInit",
    Finalize = "aclFinalize",
    FinalizeReference = "aclFinalizeReference",
    GetRecentErrMsg = "aclGetRecentErrMsg",
    GetVersion = "aclrtGetVersion",
    GetSocName = "aclrtGetSocName",
    SetDevice = "aclrtSetDevice",
    ResetDevice = "aclrtResetDevice",
    ResetDeviceForce = "aclrtResetDeviceForce",
    GetDevice = "aclrtGetDevice",
    GetDeviceCount = "aclrtGetDeviceCount",
    CreateContext = "aclrtCreateContext",
    DestroyContext = "aclrtDestroyContext",
    SetCurrentContext = "aclrtSetCurrentContext",
    GetCurrentContext = "aclrtGetCurrentContext",
    GetMemInfo = "aclrtGetMemInfo",
    ReserveMemAddress = "aclrtReserveMemAddress",
    ReleaseMemAddress = "aclrtReleaseMemAddress",
    MallocPhysical = "aclrtMallocPhysical",
    FreePhysical = "aclrtFreePhysical",
    MapMem = "aclrtMapMem",
    UnmapMem = "aclrtUnmapMem",
    MemGetAllocationGranularity = "aclrtMemGetAllocationGranularity",
    MemSetAccess = "aclrtMemSetAccess",
    MemGetAccess = "aclrtMemGetAccess",
    MemRetainAllocationHandle = "aclrtMemRetainAllocationHandle",
    MemGetAllocationPropertiesFromHandle = "aclrtMemGetAllocationPropertiesFromHandle",
    MemGetAddressRange = "aclrtMemGetAddressRange",
    PointerGetAttributes = "aclrtPointerGetAttributes",
    Malloc = "aclrtMalloc",
    MallocAlign32 = "aclrtMallocAlign32",
    Free = "aclrtFree",
    FreeWithDevSync = "aclrtFreeWithDevSync",
    MallocHost = "aclrtMallocHost",
    FreeHost = "aclrtFreeHost",
    FreeHostWithDevSync = "aclrtFreeHostWithDevSync",
    HostRegister = "aclrtHostRegister",
    HostRegisterV2 = "aclrtHostRegisterV2",
    HostUnregister = "aclrtHostUnregister",
    HostGetDevicePointer = "aclrtHostGetDevicePointer",
    Memcpy = "aclrtMemcpy",
    MemcpyAsync = "aclrtMemcpyAsync",
    Memset = "aclrtMemset",
    MemsetAsync = "aclrtMemsetAsync",
    CreateStream = "aclrtCreateStream",
    CreateStreamWithConfig = "aclrtCreateStreamWithConfig",
    DestroyStream = "aclrtDestroyStream",
    DestroyStreamForce = "aclrtDestroyStreamForce",
    StreamQuery = "aclrtStreamQuery",
    SynchronizeStream = "aclrtSynchronizeStream",
    SynchronizeStreamWithTimeout = "aclrtSynchronizeStreamWithTimeout",
    SynchronizeDevice = "aclrtSynchronizeDevice",
    SynchronizeDeviceWithTimeout = "aclrtSynchronizeDeviceWithTimeout",
    CreateEvent = "aclrtCreateEvent",
    CreateEventWithFlag = "aclrtCreateEventWithFlag",
    CreateEventExWithFlag = "aclrtCreateEventExWithFlag",
    DestroyEvent = "aclrtDestroyEvent",
    RecordEvent = "aclrtRecordEvent",
    ResetEvent = "aclrtResetEvent",
    QueryEvent = "aclrtQueryEvent",
    QueryEventStatus = "aclrtQueryEventStatus",
    QueryEventWaitStatus = "aclrtQueryEventWaitStatus",
    SynchronizeEvent = "aclrtSynchronizeEvent",
    SynchronizeEventWithTimeout = "aclrtSynchronizeEventWithTimeout",
    EventElapsedTime = "aclrtEventElapsedTime",
    StreamWaitEvent = "aclrtStreamWaitEvent",
    LaunchHostFunc = "aclrtLaunchHostFunc",
    CaptureBegin = "aclmdlRICaptureBegin",
    CaptureGetInfo = "aclmdlRICaptureGetInfo",
    CaptureEnd = "aclmdlRICaptureEnd",
    CaptureThreadExchangeMode = "aclmdlRICaptureThreadExchangeMode",
    GraphExecute = "aclmdlRIExecuteAsync",
    GraphDestroy = "aclmdlRIDestroy",
    VersionNumber = "aclsysGetVersionNum",
    VersionText = "aclsysGetVersionStr",
    GetRunMode = "aclrtGetRunMode",
    GetDeviceInfo = "aclrtGetDeviceInfo",
    GetDeviceCapability = "aclrtGetDeviceCapability",
    QueryDeviceStatus = "aclrtQueryDeviceStatus",
    GetDeviceUtilizationRate = "aclrtGetDeviceUtilizationRate",
    GetPrimaryCtxState = "aclrtGetPrimaryCtxState",
    CtxGetCurrentDefaultStream = "aclrtCtxGetCurrentDefaultStream",
    DeviceGetBareTgid = "aclrtDeviceGetBareTgid",
    GetStreamAvailableNum = "aclrtGetStreamAvailableNum",
    GetEventAvailableNum = "aclrtGetEventAvailableNum",
    DeviceGetStreamPriorityRange = "aclrtDeviceGetStreamPriorityRange",
    GetMemUsageInfo = "aclrtGetMemUsageInfo",
    CheckMemType = "aclrtCheckMemType",
    SetDeviceSatMode = "aclrtSetDeviceSatMode",
    GetDeviceSatMode = "aclrtGetDeviceSatMode",
    SetOpWaitTimeout = "aclrtSetOpWaitTimeout",
    SetOpExecuteTimeOut = "aclrtSetOpExecuteTimeOut",
    SetOpExecuteTimeOutWithMs = "aclrtSetOpExecuteTimeOutWithMs",
    SetOpExecuteTimeOutV2 = "aclrtSetOpExecuteTimeOutV2",
    GetOpTimeOutInterval = "aclrtGetOpTimeOutInterval",
    GetOpExecuteTimeout = "aclrtGetOpExecuteTimeout",
    CtxSetSysParamOpt = "aclrtCtxSetSysParamOpt",
    CtxGetSysParamOpt = "aclrtCtxGetSysParamOpt",
    SetSysParamOpt = "aclrtSetSysParamOpt",
    GetSysParamOpt = "aclrtGetSysParamOpt",
    DeviceSetLimit = "aclrtDeviceSetLimit",
    DeviceGetLimit = "aclrtDeviceGetLimit",
    GetLastError = "aclrtGetLastError",
    PeekAtLastError = "aclrtPeekAtLastError",
    DeviceTaskAbort = "aclrtDeviceTaskAbort",
    SetTsDevice = "aclrtSetTsDevice",
    GetLogicDevIdByUserDevId = "aclrtGetLogicDevIdByUserDevId",
    GetUserDevIdByLogicDevId = "aclrtGetUserDevIdByLogicDevId",
    StreamGetId = "aclrtStreamGetId",
    StreamGetPriority = "aclrtStreamGetPriority",
    StreamGetFlags = "aclrtStreamGetFlags",
    SetStreamFailureMode = "aclrtSetStreamFailureMode",
    SetStreamOverflowSwitch = "aclrtSetStreamOverflowSwitch",
    GetStreamOverflowSwitch = "aclrtGetStreamOverflowSwitch",
    SetStreamAttribute = "aclrtSetStreamAttribute",
    GetStreamAttribute = "aclrtGetStreamAttribute",
    StreamAbort = "aclrtStreamAbort",
    StreamWaitEventWithTimeout = "aclrtStreamWaitEventWithTimeout",
    StreamWaitEventWithFlag = "aclrtStreamWaitEventWithFlag",
    RecordEventWithFlag = "aclrtRecordEventWithFlag",
    EventGetTimestamp = "aclrtEventGetTimestamp",
    GetEventId = "aclrtGetEventId",
    IpcGetEventHandle = "aclrtIpcGetEventHandle",
    IpcOpenEventHandle = "aclrtIpcOpenEventHandle",
    CreateNotify = "aclrtCreateNotify",
    DestroyNotify = "aclrtDestroyNotify",
    RecordNotify = "aclrtRecordNotify",
    WaitAndResetNotify = "aclrtWaitAndResetNotify",
    GetNotifyId = "aclrtGetNotifyId",
    SubscribeReport = "aclrtSubscribeReport",
    UnSubscribeReport = "aclrtUnSubscribeReport",
    ProcessReport = "aclrtProcessReport",
    LaunchCallback = "aclrtLaunchCallback",
    RegDeviceStateCallback = "aclrtRegDeviceStateCallback",
    RegStreamStateCallback = "aclrtRegStreamStateCallback",
    SetDeviceTaskAbortCallback = "aclrtSetDeviceTaskAbortCallback",
    SetExceptionInfoCallback = "aclrtSetExceptionInfoCallback",
    GetMemUceInfo = "aclrtGetMemUceInfo",
    MemUceRepair = "aclrtMemUceRepair",
    MallocCached = "aclrtMallocCached",
    MallocWithCfg = "aclrtMallocWithCfg",
    MallocForTaskScheduler = "aclrtMallocForTaskScheduler",
    MallocHostWithCfg = "aclrtMallocHostWithCfg",
    MemFlush = "aclrtMemFlush",
    MemInvalidate = "aclrtMemInvalidate",
    HostMemMapCapabilities = "aclrtHostMemMapCapabilities",
    MemAllocManaged = "aclrtMemAllocManaged",
    Memcpy2d = "aclrtMemcpy2d",
    Memcpy2dAsync = "aclrtMemcpy2dAsync",
    MemcpyAsyncWithCondition = "aclrtMemcpyAsyncWithCondition",
    MemcpyAsyncWithOffset = "aclrtMemcpyAsyncWithOffset",
    MemsetD32 = "aclrtMemsetD32",
    MemsetD32Async = "aclrtMemsetD32Async",
    MemcpyBatch = "aclrtMemcpyBatch",
    MemcpyBatchAsync = "aclrtMemcpyBatchAsync",
    DeviceCanAccessPeer = "aclrtDeviceCanAccessPeer",
    DeviceEnablePeerAccess = "aclrtDeviceEnablePeerAccess",
    DeviceDisablePeerAccess = "aclrtDeviceDisablePeerAccess",
    DevicePeerAccessStatus = "aclrtDevicePeerAccessStatus",
    MemP2PMap = "aclrtMemP2PMap",
    ReserveMemAddressNoUcMemory = "aclrtReserveMemAddressNoUCMemory",
    MemMapNoAccess = "aclrtMemMapNoAccess",
    MemMapSelectedLink = "aclrtMemMapSelectedLink",
    MemMapSetLink = "aclrtMemMapSetLink",
    MemExport = "aclrtMemExportToShareableHandle",
    MemImport = "aclrtMemImportFromShareableHandle",
    MemSetPid = "aclrtMemSetPidToShareableHandle",
    MemExportV2 = "aclrtMemExportToShareableHandleV2",
    MemImportV2 = "aclrtMemImportFromShareableHandleV2",
    MemSetPidV2 = "aclrtMemSetPidToShareableHandleV2",
    IpcMemGetExportKey = "aclrtIpcMemGetExportKey",
    IpcMemSetImportPid = "aclrtIpcMemSetImportPid",
    IpcMemImportByKey = "aclrtIpcMemImportByKey",
    IpcMemClose = "aclrtIpcMemClose",
    IpcMemSetAttr = "aclrtIpcMemSetAttr",
    IpcMemImportPidInterServer = "aclrtIpcMemImportPidInterServer",
    MemPoolCreate = "aclrtMemPoolCreate",
    MemPoolDestroy = "aclrtMemPoolDestroy",
    MemPoolMallocAsync = "aclrtMemPoolMallocAsync",
    MemPoolFreeAsync = "aclrtMemPoolFreeAsync",
    MemPoolTrimTo = "aclrtMemPoolTrimTo",
    MemPoolSetAttr = "aclrtMemPoolSetAttr",
    MemPoolGetAttr = "aclrtMemPoolGetAttr",
    AllocatorCreateDesc = "aclrtAllocatorCreateDesc",
    AllocatorDestroyDesc = "aclrtAllocatorDestroyDesc",
    AllocatorSetObj = "aclrtAllocatorSetObjToDesc",
    AllocatorSetAlloc = "aclrtAllocatorSetAllocFuncToDesc",
    AllocatorSetFree = "aclrtAllocatorSetFreeFuncToDesc",
    AllocatorSetAdvise = "aclrtAllocatorSetAllocAdviseFuncToDesc",
    AllocatorSetGetAddr = "aclrtAllocatorSetGetAddrFromBlockFuncToDesc",
    AllocatorRegister = "aclrtAllocatorRegister",
    AllocatorUnregister = "aclrtAllocatorUnregister",
    AllocatorGetByStream = "aclrtAllocatorGetByStream",
    GraphRun = "aclmdlRIExecute",
    GraphAbort = "aclmdlRIAbort",
    GraphOnDestroy = "aclmdlRIDestroyRegisterCallback",
    TaskGroupBegin = "aclmdlRICaptureTaskGrpBegin",
    TaskGroupEnd = "aclmdlRICaptureTaskGrpEnd",
    TaskUpdateBegin = "aclmdlRICaptureTaskUpdateBegin",
    TaskUpdateEnd = "aclmdlRICaptureTaskUpdateEnd",
}

impl Call {
    /// The call with that name, if the simulator answers it.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|call| call.name() == name)
    }

    /// Whether the call allocates, frees, copies, waits or queues work: inside a callback of a stream,
    /// which runs while the runtime holds what such calls need, it would never return.
    pub(crate) const fn blocks_in_callback(self) -> bool {
        matches!(
            self,
            Self::ReserveMemAddress
                | Self::ReleaseMemAddress
                | Self::MallocPhysical
                | Self::FreePhysical
                | Self::MapMem
                | Self::UnmapMem
                | Self::MemSetAccess
                | Self::Malloc
                | Self::MallocAlign32
                | Self::Free
                | Self::FreeWithDevSync
                | Self::MallocHost
                | Self::FreeHost
                | Self::FreeHostWithDevSync
                | Self::HostRegister
                | Self::HostRegisterV2
                | Self::HostUnregister
                | Self::Memcpy
                | Self::Memset
                | Self::MallocCached
                | Self::MallocWithCfg
                | Self::MallocForTaskScheduler
                | Self::MallocHostWithCfg
                | Self::Memcpy2d
                | Self::MemsetD32
                | Self::MemcpyBatch
                | Self::MemPoolMallocAsync
                | Self::MemPoolFreeAsync
                | Self::SynchronizeStream
                | Self::SynchronizeStreamWithTimeout
                | Self::SynchronizeDevice
                | Self::SynchronizeDeviceWithTimeout
                | Self::SynchronizeEvent
                | Self::SynchronizeEventWithTimeout
                | Self::MemcpyAsync
                | Self::MemsetAsync
                | Self::MemsetD32Async
                | Self::Memcpy2dAsync
                | Self::MemcpyBatchAsync
                | Self::RecordEvent
                | Self::StreamWaitEvent
                | Self::LaunchHostFunc
                | Self::LaunchCallback
                | Self::GraphExecute
                | Self::GraphRun
                | Self::Finalize
                | Self::FinalizeReference
                | Self::ResetDevice
                | Self::ResetDeviceForce
                | Self::DestroyContext
                | Self::DestroyStream
                | Self::DestroyStreamForce
                | Self::DeviceTaskAbort
                | Self::ResetEvent
                | Self::RecordEventWithFlag
                | Self::StreamWaitEventWithFlag
                | Self::StreamWaitEventWithTimeout
                | Self::MemcpyAsyncWithCondition
                | Self::MemAllocManaged
                | Self::MemMapNoAccess
                | Self::ReserveMemAddressNoUcMemory
                | Self::MemImport
                | Self::MemImportV2
                | Self::IpcMemImportByKey
                | Self::IpcMemClose
                | Self::MemPoolDestroy
                | Self::MemPoolTrimTo
                | Self::ProcessReport
        )
    }

    /// The call's place in arrays with one entry a call.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_found_by_its_name() {
        for (index, call) in Call::ALL.iter().enumerate() {
            assert_eq!(call.index(), index);
            assert_eq!(Call::by_name(call.name()), Some(*call));
        }
        assert_eq!(Call::by_name("aclrtNothing"), None);
    }
}
