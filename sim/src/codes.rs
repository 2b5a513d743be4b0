//! Numbers of the ACL interface: error codes and the enum values that calls take.
//!
//! Codes of the vendor's interface are positive. Two codes of the simulator's own are negative, so
//! that nothing can take them for an answer of a device: [`MISSING_SYMBOL`] and [`HOST_LIMIT`].

/// The call was accepted.
pub const SUCCESS: i32 = 0;
/// An argument check of the ACL layer failed.
pub const INVALID_PARAM: i32 = 100_000;
/// `aclInit` was called before.
pub const REPEAT_INITIALIZE: i32 = 100_002;
/// The configuration of `aclInit` cannot be read.
pub const INVALID_FILE: i32 = 100_003;
/// `aclFinalize` without a matching `aclInit`.
pub const REPEAT_FINALIZE: i32 = 100_037;
/// Flags of a feature that does not exist.
pub const FEATURE_UNSUPPORTED: i32 = 200_006;
/// A runtime argument check failed.
pub const RT_PARAM_INVALID: i32 = 107_000;
/// The device does not exist or is not visible.
pub const RT_INVALID_DEVICEID: i32 = 107_001;
/// The calling thread has no current context.
pub const RT_CONTEXT_NULL: i32 = 107_002;
/// The memory attribute of a memory query does not exist.
pub const RT_INVALID_MEMORY_TYPE: i32 = 107_016;
/// A handle that was destroyed, or an address that nothing was ever mapped at.
pub const RT_INVALID_HANDLE: i32 = 107_017;
/// A synchronous copy or fill that a running capture forbids.
pub const RT_CAPTURE_MODE_NOT_SUPPORT: i32 = 107_030;
/// A copy on a stream with memory that is not pinned, which a running capture forbids.
pub const RT_CAPTURE_MODE_BLOCK_ASYNC: i32 = 107_041;
/// The chip, the driver or the library does not support the call.
pub const RT_FEATURE_NOT_SUPPORT: i32 = 207_000;
/// Out of device memory, out of address space, or a size that is too large.
pub const RT_MEMORY_ALLOCATION: i32 = 207_001;
/// This process may not do that.
pub const RT_NO_PERMISSION: i32 = 207_006;
/// The runtime is in a state that it cannot be in; here also the answer to calls that would never
/// return.
pub const RT_INTERNAL_ERROR: i32 = 507_000;
/// A device was reset more often than it was set.
pub const RT_CONTEXT_RELEASE_ERROR: i32 = 507_007;
/// A task touched memory that was not there.
pub const RT_AICORE_TRAP_WRITE_OVERFLOW: i32 = 507_043;
/// Everything the driver refuses without a code of its own.
pub const RT_DRV_INTERNAL_ERROR: i32 = 507_899;
/// A host range is registered already.
pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 507_910;
/// A host range is not registered.
pub const HOST_MEMORY_NOT_REGISTERED: i32 = 507_911;

/// The simulator's own: the library that is being played lacks this call.
pub const MISSING_SYMBOL: i32 = -1;
/// The simulator's own: the machine that runs the simulator refused (number of mappings, address
/// space, memory). Never an answer of a device.
pub const HOST_LIMIT: i32 = -2;

/// The name of a code as the vendor's header spells it, or the simulator's own name.
#[must_use]
pub fn name(code: i32) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == code).map_or("unknown code", |(_, name)| name)
}

const NAMES: &[(i32, &str)] = &[
    (SUCCESS, "ACL_SUCCESS"),
    (INVALID_PARAM, "ACL_ERROR_INVALID_PARAM"),
    (100_001, "ACL_ERROR_UNINITIALIZE"),
    (REPEAT_INITIALIZE, "ACL_ERROR_REPEAT_INITIALIZE"),
    (INVALID_FILE, "ACL_ERROR_INVALID_FILE"),
    (REPEAT_FINALIZE, "ACL_ERROR_REPEAT_FINALIZE"),
    (200_000, "ACL_ERROR_BAD_ALLOC"),
    (FEATURE_UNSUPPORTED, "ACL_ERROR_FEATURE_UNSUPPORTED"),
    (RT_PARAM_INVALID, "ACL_ERROR_RT_PARAM_INVALID"),
    (RT_INVALID_DEVICEID, "ACL_ERROR_RT_INVALID_DEVICEID"),
    (RT_CONTEXT_NULL, "ACL_ERROR_RT_CONTEXT_NULL"),
    (107_003, "ACL_ERROR_RT_STREAM_CONTEXT"),
    (107_005, "ACL_ERROR_RT_STREAM_MODEL"),
    (107_006, "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID"),
    (107_007, "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL"),
    (107_008, "ACL_ERROR_RT_ADDR_UNALIGNED"),
    (107_011, "ACL_ERROR_RT_STREAM_SUBSCRIBE"),
    (107_012, "ACL_ERROR_RT_THREAD_SUBSCRIBE"),
    (107_015, "ACL_ERROR_RT_STREAM_NO_CB_REG"),
    (RT_INVALID_MEMORY_TYPE, "ACL_ERROR_RT_INVALID_MEMORY_TYPE"),
    (RT_INVALID_HANDLE, "ACL_ERROR_RT_INVALID_HANDLE"),
    (107_018, "ACL_ERROR_RT_INVALID_MALLOC_TYPE"),
    (107_019, "ACL_ERROR_RT_WAIT_TIMEOUT"),
    (107_022, "ACL_ERROR_RT_DEVICE_TASK_ABORT"),
    (107_023, "ACL_ERROR_RT_STREAM_ABORT"),
    (107_024, "ACL_ERROR_RT_CAPTURE_DEPENDENCY"),
    (107_025, "ACL_ERROR_RT_STREAM_UNJOINED"),
    (107_026, "ACL_ERROR_RT_MODEL_CAPTURED"),
    (107_027, "ACL_ERROR_RT_STREAM_CAPTURED"),
    (107_028, "ACL_ERROR_RT_EVENT_CAPTURED"),
    (107_029, "ACL_ERROR_RT_STREAM_NOT_CAPTURED"),
    (RT_CAPTURE_MODE_NOT_SUPPORT, "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT"),
    (107_031, "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT"),
    (107_032, "ACL_ERROR_STREAM_CAPTURE_CONFLICT"),
    (107_033, "ACL_ERROR_STREAM_TASK_GROUP_STATUS"),
    (107_036, "ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED"),
    (107_037, "ACL_ERROR_RT_MODEL_RUNNING"),
    (107_038, "ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD"),
    (RT_CAPTURE_MODE_BLOCK_ASYNC, "ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC"),
    (RT_FEATURE_NOT_SUPPORT, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT"),
    (RT_MEMORY_ALLOCATION, "ACL_ERROR_RT_MEMORY_ALLOCATION"),
    (207_002, "ACL_ERROR_RT_MEMORY_FREE"),
    (207_004, "ACL_ERROR_RT_NO_DEVICE"),
    (207_005, "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL"),
    (RT_NO_PERMISSION, "ACL_ERROR_RT_NO_PERMISSION"),
    (207_007, "ACL_ERROR_RT_NO_EVENT_RESOURCE"),
    (207_008, "ACL_ERROR_RT_NO_STREAM_RESOURCE"),
    (207_012, "ACL_ERROR_RT_OVER_LIMIT"),
    (207_018, "ACL_ERROR_RT_DEVICE_OOM"),
    (RT_INTERNAL_ERROR, "ACL_ERROR_RT_INTERNAL_ERROR"),
    (507_004, "ACL_ERROR_RT_STREAM_NOT_COMPLETE"),
    (507_006, "ACL_ERROR_RT_EVENT_NOT_COMPLETE"),
    (RT_CONTEXT_RELEASE_ERROR, "ACL_ERROR_RT_CONTEXT_RELEASE_ERROR"),
    (507_010, "ACL_ERROR_RT_LOST_HEARTBEAT"),
    (507_012, "ACL_ERROR_RT_REPORT_TIMEOUT"),
    (507_014, "ACL_ERROR_RT_AICORE_TIMEOUT"),
    (507_015, "ACL_ERROR_RT_AICORE_EXCEPTION"),
    (507_042, "ACL_ERROR_RT_AICORE_TRAP_READ_OVERFLOW"),
    (RT_AICORE_TRAP_WRITE_OVERFLOW, "ACL_ERROR_RT_AICORE_TRAP_WRITE_OVERFLOW"),
    (507_044, "ACL_ERROR_RT_VECTOR_CORE_TRAP_READ_OVERFLOW"),
    (507_045, "ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW"),
    (507_046, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"),
    (507_047, "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT"),
    (507_053, "ACL_ERROR_RT_DEVICE_MEM_ERROR"),
    (RT_DRV_INTERNAL_ERROR, "ACL_ERROR_RT_DRV_INTERNAL_ERROR"),
    (507_903, "ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED"),
    (HOST_MEMORY_ALREADY_REGISTERED, "ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    (HOST_MEMORY_NOT_REGISTERED, "ACL_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    (100_004, "ACL_ERROR_WRITE_FILE"),
    (100_005, "ACL_ERROR_INVALID_FILE_SIZE"),
    (100_006, "ACL_ERROR_PARSE_FILE"),
    (107_013, "ACL_ERROR_RT_GROUP_NOT_SET"),
    (107_014, "ACL_ERROR_RT_GROUP_NOT_CREATE"),
    (107_020, "ACL_ERROR_RT_TASK_TIMEOUT"),
    (107_034, "ACL_ERROR_STREAM_TASK_GROUP_INTR"),
    (107_035, "ACL_ERROR_RT_TASK_ABORT_STOP"),
    (107_039, "ACL_ERROR_RT_INSUFFICIENT_INPUT_ARRAY"),
    (107_040, "ACL_ERROR_RT_MODEL_UPDATE_FAILED"),
    (107_042, "ACL_ERROR_RT_SYMBOL_NOT_FOUND"),
    (107_043, "ACL_ERROR_RT_INVALID_SYMBOL"),
    (107_044, "ACL_ERROR_RT_INVALID_DEVICE_FUNCTION"),
    (107_045, "ACL_ERROR_RT_SUB_ACLGRAPH_IS_CAPTURING"),
    (148_051, "ACL_ERROR_RELATIVE_RESOURCE_NOT_CLEARED"),
    (200_001, "ACL_ERROR_API_NOT_SUPPORT"),
    (200_002, "ACL_ERROR_INVALID_DEVICE"),
    (200_003, "ACL_ERROR_MEMORY_ADDRESS_UNALIGNED"),
    (200_004, "ACL_ERROR_RESOURCE_NOT_MATCH"),
    (200_005, "ACL_ERROR_INVALID_RESOURCE_HANDLE"),
    (207_003, "ACL_ERROR_RT_AICORE_OVER_FLOW"),
    (207_016, "ACL_ERROR_RT_AIVEC_OVER_FLOW"),
    (207_017, "ACL_ERROR_RT_OVER_FLOW"),
    (207_019, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP"),
    (207_020, "ACL_ERROR_RT_TIMEOUT"),
    (207_021, "ACL_ERROR_RT_LINK_TYPE_NOT_SUPPORTED"),
    (300_000, "ACL_ERROR_STORAGE_OVER_LIMIT"),
    (500_000, "ACL_ERROR_INTERNAL_ERROR"),
    (500_001, "ACL_ERROR_FAILURE"),
    (500_002, "ACL_ERROR_GE_FAILURE"),
    (500_003, "ACL_ERROR_RT_FAILURE"),
    (500_004, "ACL_ERROR_DRV_FAILURE"),
    (500_005, "ACL_ERROR_PROFILING_FAILURE"),
    (507_001, "ACL_ERROR_RT_TS_ERROR"),
    (507_002, "ACL_ERROR_RT_STREAM_TASK_FULL"),
    (507_005, "ACL_ERROR_RT_END_OF_SEQUENCE"),
    (507_008, "ACL_ERROR_RT_SOC_VERSION"),
    (507_013, "ACL_ERROR_RT_SYS_DMA"),
    (507_017, "ACL_ERROR_RT_AICPU_TIMEOUT"),
    (507_018, "ACL_ERROR_RT_AICPU_EXCEPTION"),
    (507_022, "ACL_ERROR_RT_IPC_ERROR"),
    (507_023, "ACL_ERROR_RT_MODEL_ABORT_NORMAL"),
    (507_033, "ACL_ERROR_RT_DEV_SETUP_ERROR"),
    (507_051, "ACL_ERROR_RT_SEND_MSG"),
    (507_052, "ACL_ERROR_RT_COPY_DATA"),
    (507_054, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR"),
    (507_055, "ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR"),
    (507_056, "ACL_ERROR_RT_LINK_ERROR"),
    (507_057, "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR"),
    (507_900, "ACL_ERROR_RT_AICPU_INTERNAL_ERROR"),
    (507_901, "ACL_ERROR_RT_SOCKET_CLOSE"),
    (507_902, "ACL_ERROR_RT_AICPU_INFO_LOAD_RSP_ERR"),
    (507_904, "ACL_ERROR_RT_COMM_OP_RETRY_FAIL"),
    (507_905, "ACL_ERROR_SNAPSHOT_LOCK_TIMEOUT"),
    (507_906, "ACL_ERROR_SNAPSHOT_LOCK_FAILED"),
    (507_907, "ACL_ERROR_SNAPSHOT_UNLOCK_FAILED"),
    (507_908, "ACL_ERROR_SNAPSHOT_BACKUP_FAILED"),
    (507_909, "ACL_ERROR_SNAPSHOT_RESTORE_FAILED"),
    (507_912, "ACL_ERROR_SNAPSHOT_CALLBACK_FAILED"),
    (507_913, "ACL_ERROR_SNAPSHOT_REGISTER_CALLBACK_FAILED"),
    (507_914, "ACL_ERROR_RT_L3_PORT_ERROR"),
    (507_915, "ACL_ERROR_RT_CCU_TIMEOUT"),
    (507_916, "ACL_ERROR_RT_CCU_EXCEPTION"),
    (100_034, "ACL_ERROR_STREAM_NOT_SUBSCRIBE"),
    (100_035, "ACL_ERROR_THREAD_NOT_SUBSCRIBE"),
    (100_036, "ACL_ERROR_WAIT_CALLBACK_TIMEOUT"),
    (507_016, "ACL_ERROR_RT_AICORE_TRAP_EXCEPTION"),
    (507_034, "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT"),
    (507_035, "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION"),
    (507_036, "ACL_ERROR_RT_VECTOR_CORE_TRAP_EXCEPTION"),
    (MISSING_SYMBOL, "SIM_MISSING_SYMBOL"),
    (HOST_LIMIT, "SIM_HOST_LIMIT"),
];

/// Values of `aclrtMemAttr`.
pub mod attr {
    /// All on-package memory (queries only).
    pub const HBM: u32 = 1;
    /// Host memory in huge pages.
    pub const DDR_HUGE: u32 = 2;
    /// Host memory in normal pages.
    pub const DDR_NORMAL: u32 = 3;
    /// On-package memory in huge pages: the usual attribute of a chunk.
    pub const HBM_HUGE: u32 = 4;
    /// On-package memory in normal pages (2 MiB all the same).
    pub const HBM_NORMAL: u32 = 5;
    /// Host memory in huge pages, for peers.
    pub const DDR_P2P_HUGE: u32 = 6;
    /// Host memory in normal pages, for peers.
    pub const DDR_P2P_NORMAL: u32 = 7;
    /// On-package memory in pages of 1 GiB.
    pub const HBM_HUGE1G: u32 = 10;
    /// On-package memory in pages of 1 GiB, for peers.
    pub const HBM_P2P_HUGE1G: u32 = 11;
    /// Device memory in normal pages.
    pub const MEM_NORMAL: u32 = 12;
    /// Device memory in huge pages.
    pub const MEM_HUGE: u32 = 13;
    /// Device memory in pages of 1 GiB.
    pub const MEM_HUGE1G: u32 = 14;
    /// Device memory in normal pages, for peers.
    pub const MEM_P2P_NORMAL: u32 = 15;
    /// Device memory in huge pages, for peers.
    pub const MEM_P2P_HUGE: u32 = 16;
    /// Device memory in pages of 1 GiB, for peers.
    pub const MEM_P2P_HUGE1G: u32 = 17;
    /// The highest value there is.
    pub const LAST: u32 = MEM_P2P_HUGE1G;
}

/// Values of `aclrtMemLocationType`.
pub mod location {
    /// Host memory.
    pub const HOST: u32 = 0;
    /// Device memory.
    pub const DEVICE: u32 = 1;
    /// Host memory the driver does not know.
    pub const UNREGISTERED: u32 = 2;
    /// Managed memory.
    pub const MANAGED: u32 = 3;
    /// Host memory of one NUMA node.
    pub const HOST_NUMA: u32 = 4;
}

/// Values of `aclrtMemMallocPolicy`.
pub mod policy {
    /// Pages of 2 MiB if there are any, pages of 4 KiB otherwise and for small sizes.
    pub const HUGE_FIRST: u32 = 0;
    /// Pages of 2 MiB only.
    pub const HUGE_ONLY: u32 = 1;
    /// Pages of 4 KiB only.
    pub const NORMAL_ONLY: u32 = 2;
    /// As [`HUGE_ONLY`], for peers.
    pub const HUGE_ONLY_P2P: u32 = 4;
    /// As [`NORMAL_ONLY`], for peers.
    pub const NORMAL_ONLY_P2P: u32 = 5;
    /// Pages of 1 GiB only.
    pub const HUGE1G_ONLY: u32 = 6;
    /// As [`HUGE1G_ONLY`], for peers.
    pub const HUGE1G_ONLY_P2P: u32 = 7;
}

/// `ACL_RT_MEM_ACCESS_FLAGS_READWRITE`, the only access that can be granted.
pub const ACCESS_READWRITE: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (index, (code, text)) in NAMES.iter().enumerate() {
            assert_eq!(name(*code), *text);
            assert!(NAMES[..index].iter().all(|(other, name)| other != code && name != text));
        }
        assert_eq!(name(12345), "unknown code");
    }
}
