//! Statistics with PyTorch's names and meanings.
//!
//! | statistic | grows when | shrinks when |
//! |---|---|---|
//! | `allocation`, `allocated_bytes` | a block is handed out | it is freed |
//! | `requested_bytes` | a block is handed out, by the size asked for | its free is completed |
//! | `active`, `active_bytes` | a block is handed out | its free is completed: no stream uses it any more |
//! | `segment` | a segment is taken from the driver | it is given back |
//! | `reserved_bytes` | physical memory is put behind a segment | it is taken away |
//!
//! Block sizes are the rounded ones. All sizes are bytes.

pub(crate) mod json;

/// One statistic over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The value now.
    pub current: i64,
    /// The highest value since the last reset of peaks.
    pub peak: i64,
    /// Sum of all increases since the last reset.
    pub allocated: i64,
    /// Sum of all decreases since the last reset.
    pub freed: i64,
}

/// A statistic for all blocks, and apart for small and large ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatArray {
    /// All blocks.
    pub all: Stat,
    /// Blocks of at most 1 MiB (before the pad).
    pub small: Stat,
    /// The rest.
    pub large: Stat,
}

/// What the allocator asked of the driver, by call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCalls {
    /// `aclrtMapMem`.
    pub map: u64,
    /// `aclrtUnmapMem`.
    pub unmap: u64,
    /// `aclrtMallocPhysical`.
    pub malloc_physical: u64,
    /// `aclrtFreePhysical`.
    pub free_physical: u64,
    /// `aclrtReserveMemAddress`.
    pub reserve: u64,
    /// `aclrtReleaseMemAddress`.
    pub release: u64,
    /// `aclrtMemSetAccess`.
    pub set_access: u64,
    /// `aclrtMallocAlign32`.
    pub malloc: u64,
    /// `aclrtFree`.
    pub free: u64,
    /// `aclrtRecordEvent`.
    pub record_event: u64,
    /// `aclrtQueryEventStatus`.
    pub query_event: u64,
    /// `aclrtStreamWaitEvent`: a stream waits for another on the device; the host does not.
    pub stream_wait: u64,
    /// The host waited for one event.
    pub wait_event: u64,
    /// The host waited for one stream.
    pub wait_stream: u64,
    /// The host waited for the whole device.
    pub wait_device: u64,
}

/// How often each step was taken for requests that found no free block of their stream at once; in the
/// order in which they are tried (see [`DeviceAllocator`](crate::DeviceAllocator)). What free blocks of the other size, or of
/// a pool that lends, serve is no step: it counts among the requests only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LadderSteps {
    /// Requests that had to climb.
    pub requests: u64,
    /// The front cache gave its blocks back, and free blocks of other streams were looked at.
    pub flushed: u64,
    /// Events under way were asked whether they have completed.
    pub queried: u64,
    /// Open epochs of streams were closed by events.
    pub closed: u64,
    /// Address space was reserved.
    pub reserved: u64,
    /// Chunks were put behind a range: cached, new or moved ones.
    pub mapped: u64,
    /// A classic segment was asked for.
    pub fetched: u64,
    /// Idle memory was given back.
    pub released: u64,
    /// A framework callback was called.
    pub asked: u64,
    /// The request's stream was made to wait for others on the device.
    pub joined: u64,
    /// The host waited for one event, or for one stream that got no event.
    pub waited: u64,
    /// The host waited for the device.
    pub synchronized: u64,
    /// Driver calls of other threads were waited for, because they held memory.
    pub awaited: u64,
    /// Requests that failed.
    pub failed: u64,
}

impl LadderSteps {
    /// Each count with its name.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 14] {
        [
            ("requests", self.requests),
            ("flushed", self.flushed),
            ("queried", self.queried),
            ("closed", self.closed),
            ("reserved", self.reserved),
            ("mapped", self.mapped),
            ("fetched", self.fetched),
            ("released", self.released),
            ("asked", self.asked),
            ("joined", self.joined),
            ("waited", self.waited),
            ("synchronized", self.synchronized),
            ("awaited", self.awaited),
            ("failed", self.failed),
        ]
    }
}

/// Statistics of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Blocks handed out (count).
    pub allocation: StatArray,
    /// Bytes handed out, rounded.
    pub allocated_bytes: StatArray,
    /// Bytes handed out, as asked for.
    pub requested_bytes: StatArray,
    /// Blocks handed out or waiting for streams (count).
    pub active: StatArray,
    /// Bytes handed out or waiting for streams.
    pub active_bytes: StatArray,
    /// Segments (count): a reservation counts as one.
    pub segment: StatArray,
    /// Bytes with physical memory behind them.
    pub reserved_bytes: StatArray,
    /// Free pieces of classic segments (count).
    pub inactive_split: StatArray,
    /// Free pieces of classic segments, bytes.
    pub inactive_split_bytes: StatArray,
    /// Classic requests of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Classic segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Requests that succeeded only after memory had been given back.
    pub num_alloc_retries: u64,
    /// Requests that failed for lack of memory.
    pub num_ooms: u64,
    /// How often all streams were waited for.
    pub num_sync_all_streams: u64,
    /// Ranges taken from the driver (mapped or allocated).
    pub num_device_alloc: u64,
    /// Ranges given back to the driver.
    pub num_device_free: u64,
    /// `max_split_size` in force, or -1.
    pub max_split_size: i64,
    /// Address space reserved, bytes.
    pub reserved_address_space: u64,
    /// Chunks held without an address, bytes.
    pub cached_handles: u64,
    /// Bytes of blocks that are active without memory behind them, because their pool sleeps.
    pub sleeping_bytes: u64,
    /// Chunks moved from one address to another without asking the device (count).
    pub chunks_moved: u64,
    /// Frees whose caller said another size than it had asked for (count); see
    /// [`deallocate_sized`](crate::DeviceAllocator::deallocate_sized).
    pub size_mismatches: u64,
    /// Driver calls.
    pub calls: DriverCalls,
    /// Steps of the ladder.
    pub ladder: LadderSteps,
}

impl DriverCalls {
    /// Each count with the ACL name of its call.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 15] {
        [
            ("aclrtMapMem", self.map),
            ("aclrtUnmapMem", self.unmap),
            ("aclrtMallocPhysical", self.malloc_physical),
            ("aclrtFreePhysical", self.free_physical),
            ("aclrtReserveMemAddress", self.reserve),
            ("aclrtReleaseMemAddress", self.release),
            ("aclrtMemSetAccess", self.set_access),
            ("aclrtMallocAlign32", self.malloc),
            ("aclrtFree", self.free),
            ("aclrtRecordEvent", self.record_event),
            ("aclrtQueryEventStatus", self.query_event),
            ("aclrtStreamWaitEvent", self.stream_wait),
            ("aclrtSynchronizeEvent", self.wait_event),
            ("aclrtSynchronizeStream", self.wait_stream),
            ("aclrtSynchronizeDevice", self.wait_device),
        ]
    }

    /// Adds another count, call by call.
    pub(crate) fn add(&mut self, other: &Self) {
        self.map += other.map;
        self.unmap += other.unmap;
        self.malloc_physical += other.malloc_physical;
        self.free_physical += other.free_physical;
        self.reserve += other.reserve;
        self.release += other.release;
        self.set_access += other.set_access;
        self.malloc += other.malloc;
        self.free += other.free;
        self.record_event += other.record_event;
        self.query_event += other.query_event;
        self.stream_wait += other.stream_wait;
        self.wait_event += other.wait_event;
        self.wait_stream += other.wait_stream;
        self.wait_device += other.wait_device;
    }
}

impl Default for Stats {
    /// Nothing has happened, and no size is too large to split.
    fn default() -> Self {
        Self {
            allocation: StatArray::default(),
            allocated_bytes: StatArray::default(),
            requested_bytes: StatArray::default(),
            active: StatArray::default(),
            active_bytes: StatArray::default(),
            segment: StatArray::default(),
            reserved_bytes: StatArray::default(),
            inactive_split: StatArray::default(),
            inactive_split_bytes: StatArray::default(),
            oversize_allocations: Stat::default(),
            oversize_segments: Stat::default(),
            num_alloc_retries: 0,
            num_ooms: 0,
            num_sync_all_streams: 0,
            num_device_alloc: 0,
            num_device_free: 0,
            max_split_size: -1,
            reserved_address_space: 0,
            cached_handles: 0,
            sleeping_bytes: 0,
            chunks_moved: 0,
            size_mismatches: 0,
            calls: DriverCalls::default(),
            ladder: LadderSteps::default(),
        }
    }
}
