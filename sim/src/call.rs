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
}

impl Call {
    /// The call with that name, if the simulator answers it.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|call| call.name() == name)
    }

    /// Whether the call allocates, frees or copies: inside a callback of a stream, which runs while
    /// the runtime holds what such calls need, it would never return.
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
