//! What a program may do. Every value is an operation: indexes are taken modulo what is there, and where nothing is
//! there the operation does nothing.

/// Functions whose calls can be told to fail.
pub const FAILING: [&str; 24] = [
    "aclrtMallocPhysical",
    "aclrtMapMem",
    "aclrtUnmapMem",
    "aclrtFreePhysical",
    "aclrtReserveMemAddress",
    "aclrtReleaseMemAddress",
    "aclrtMemSetAccess",
    "aclrtMallocAlign32",
    "aclrtFree",
    "aclrtCreateEventExWithFlag",
    "aclrtDestroyEvent",
    "aclrtRecordEvent",
    "aclrtQueryEventStatus",
    "aclrtSynchronizeEvent",
    "aclrtStreamWaitEvent",
    "aclrtSynchronizeStream",
    "aclrtSynchronizeDevice",
    "aclrtGetMemInfo",
    "aclrtMemGetAllocationGranularity",
    "aclmdlRICaptureGetInfo",
    "aclrtMemcpyAsync",
    "aclrtMallocHost",
    "aclrtFreeHost",
    "aclrtMemExportToShareableHandle",
];

/// What a failing call answers: out of memory, not supported, refused by the driver, a wrong argument.
pub const CODES: [i32; 4] = [207_001, 207_000, 507_899, 107_000];

/// Tags of pools.
pub const TAGS: [&str; 2] = ["weights", "cache"];

/// A size: which kind, and where in its range.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Size {
    /// Which range.
    pub kind: u8,
    /// Where in it.
    pub value: u16,
}

impl Size {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        const MIB: u64 = 1 << 20;
        let value = u64::from(self.value);
        match self.kind % 16 {
            0 => value % 4,
            1..=3 => value * 8,
            4 | 5 => value * 16 + 1,
            // Around the limit of small requests.
            6 => MIB - 32 + value % 64,
            // A handful of sizes that come again and again.
            7 => MIB << (value % 5),
            8 | 9 => MIB + value * 160,
            10..=12 => MIB + value * 800,
            13 => 20 * MIB + value * 1024,
            14 => 2 * MIB * (value % 40),
            _ => u64::MAX >> (value % 64),
        }
    }
}

/// One step of a program. `lane` is an index into the streams that live.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[allow(missing_docs)]
pub enum Operation {
    /// A block, from a pool where one is named; it is marked and used.
    Allocate {
        size: Size,
        lane: u8,
        align: u8,
        pool: Option<u8>,
    },
    /// The marks of a block are compared, and it is freed.
    Free {
        block: u8,
    },
    /// The youngest block is freed without a look at it.
    FreeLast,
    /// Another stream uses a block: it waits for the contents, works, and the allocator is told.
    Record {
        block: u8,
        lane: u8,
    },
    /// A stream has done with a block: the block's own stream waits for it, and the allocator is told.
    Erase {
        block: u8,
        user: u8,
    },
    /// Work with a block on one of the streams that may use it.
    Use {
        block: u8,
        user: u8,
        write: bool,
    },
    Grow {
        block: u8,
        size: Size,
    },
    Shrink {
        block: u8,
        parts: u8,
    },
    /// Pointers and sizes that must be refused.
    Misuse {
        block: u8,
        offset: u16,
    },

    CreateStream {
        device: bool,
    },
    DestroyStream {
        lane: u8,
    },
    /// A stream waits for another on the device.
    Order {
        first: u8,
        then: u8,
    },
    Synchronize {
        lane: u8,
    },
    SynchronizeDevice {
        device: bool,
    },
    Pass {
        ticks: u8,
    },
    Lag {
        ticks: u8,
    },

    CreatePool {
        device: bool,
        tag: u8,
        no_split: bool,
        use_on_oom: bool,
        soft: u8,
    },
    ReleasePool {
        pool: u8,
    },
    /// Requests that name no pool go to this one: all, those of one thread, or those for one stream.
    BeginRoute {
        pool: u8,
        filter: u8,
        capture: bool,
    },
    EndRoute,
    ReleaseGraph {
        pool: u8,
    },
    Checkpoint {
        pool: u8,
    },
    Restore {
        checkpoint: u8,
    },
    Sleep {
        device: bool,
        tag: u8,
        keep: bool,
    },
    Wake {
        device: bool,
        tag: u8,
    },

    CreateBuffer {
        lane: u8,
        max: Size,
        size: Size,
    },
    ResizeBuffer {
        buffer: u8,
        size: Size,
    },
    RecordBuffer {
        buffer: u8,
        lane: u8,
    },
    DestroyBuffer {
        buffer: u8,
    },

    Trim {
        device: bool,
        keep: u8,
    },
    /// One device, or all.
    Empty {
        device: Option<bool>,
    },
    /// A share of the device in steps of 1/256.
    Fraction {
        device: bool,
        parts: u8,
    },
    /// Limits in MiB; 0 is none.
    Limits {
        device: bool,
        hard: u8,
        soft: u8,
    },
    Peers {
        device: bool,
        on: bool,
    },
    ResetPeaks {
        device: bool,
    },
    ResetSums {
        device: bool,
    },
    Hook {
        on: bool,
    },
    Callback {
        on: bool,
    },
    /// The block may be freed by the callback that is asked for memory.
    Spare {
        block: u8,
    },

    Export {
        block: u8,
    },
    ReleaseExport {
        export: u8,
    },
    /// A block of another process.
    Import {
        message: u8,
        lane: u8,
    },
    RecordImport {
        import: u8,
        lane: u8,
    },
    ReleaseImport {
        import: u8,
    },

    HostAllocate {
        size: Size,
    },
    HostFree {
        block: u8,
    },
    HostRecord {
        block: u8,
        lane: u8,
    },
    HostEmpty,

    /// Three threads allocate, use, record and free at the same time.
    Threads {
        seed: u8,
        rounds: u8,
    },

    /// A device is reset, and the allocator is told.
    Reset {
        device: bool,
    },
    /// What is queued on a stream goes into a graph from now on.
    Capture {
        lane: u8,
    },
    /// The oldest such capture ends; with `spoil` it fails.
    EndCapture {
        spoil: bool,
    },

    Fail {
        call: u8,
        after: u8,
        code: u8,
        always: bool,
    },
    Heal,
    /// Others take so many chunks of the device.
    Crowd {
        device: bool,
        chunks: u8,
    },
}

/// An operation and the thread that does it: the main one, or one of two others.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Step {
    /// Modulo 8; 1 and 2 are the other threads.
    pub thread: u8,
    /// What it does.
    pub operation: Operation,
}

/// A program: how it is set up and what it does.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Program {
    /// The machine and the allocator.
    pub setup: crate::setup::Setup,
    /// What it does, in order.
    pub steps: Vec<Step>,
}
