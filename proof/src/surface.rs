//! The allocator as a program sees it, once through the Rust interface and once through the C functions.

mod c;
mod functions;
pub mod structs {
    //! The structs of `ascend_alloc.h`.
    pub use super::functions::{
        BlockEntryInfo, BufferEntry, BufferOptions, ExportOptions, HostStats, PoolOptions, PoolStats,
        Request, SleepReport, Stats,
    };
}
mod rust;

use core::fmt;
use std::sync::Arc;

pub use c::CSurface;
pub use functions::Functions;
pub use rust::RustSurface;

/// Which kind of refusal a call answered: the kinds of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Argument,
    Driver,
    State,
    OutOfMemory,
    Other,
}

/// A call that was refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Which kind.
    pub kind: Kind,
    /// What the allocator says.
    pub text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

/// What a call answers.
pub type Answer<T> = Result<T, Refusal>;

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BlockInfo {
    pub device: u32,
    pub address: u64,
    pub bytes: u64,
    pub requested: u64,
    pub stream: u64,
    pub segment: u64,
    pub segment_bytes: u64,
}

/// A growing buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BufferInfo {
    pub address: u64,
    pub bytes: u64,
    pub max_bytes: u64,
    pub mapped_bytes: u64,
}

/// The statistics that are compared; counts and bytes at this moment unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Books {
    pub allocations: i64,
    pub allocated: i64,
    pub allocated_peak: i64,
    pub requested: i64,
    pub active: i64,
    pub reserved: i64,
    pub segments: i64,
    pub sleeping: i64,
    pub cached_handles: i64,
    pub address_space: i64,
}

/// A block of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Piece {
    pub address: u64,
    pub bytes: u64,
    pub requested: u64,
    pub live: bool,
    pub active: bool,
}

/// A stretch of memory of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Stretch {
    pub address: u64,
    pub bytes: u64,
    pub is_asleep: bool,
    /// Pieces of physical memory behind it, where that is told.
    pub chunks: Option<u64>,
    pub pieces: Vec<Piece>,
}

/// Page-locked memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct HostBooks {
    pub active_requests: i64,
    pub active: i64,
    pub held: i64,
}

/// What is chosen for a pool.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct PoolChoice {
    pub tag: &'static str,
    pub no_split: bool,
    pub use_on_oom: bool,
    /// 0 is none.
    pub soft_limit: u64,
}

/// Which requests a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Filter {
    All,
    Thread,
    Stream(u64),
}

/// Told of an event on a device.
pub type Hook = Arc<dyn Fn(u32) + Send + Sync>;

/// Asked to free memory of a device; whether it did.
pub type FreeMemory = Arc<dyn Fn(u32) -> bool + Send + Sync>;

/// The calls of the allocator. Pools, buffers, checkpoints, exports and imports are numbers. Sizes in bytes.
///
/// The meaning of each is that of the function with that name in the Rust and the C interface.
#[allow(missing_docs)]
pub trait Surface: Send + Sync {
    fn allocate(&self, device: u32, bytes: u64, align: u64, stream: u64) -> Answer<u64>;
    fn allocate_in(&self, pool: u64, bytes: u64, stream: u64) -> Answer<u64>;
    fn free(&self, address: u64) -> Answer<()>;
    fn record(&self, address: u64, stream: u64) -> Answer<()>;
    fn erase(&self, address: u64, stream: u64) -> Answer<()>;
    fn grow(&self, address: u64, bytes: u64) -> Answer<bool>;
    fn shrink(&self, address: u64, bytes: u64) -> Answer<()>;
    fn block(&self, address: u64) -> Answer<BlockInfo>;
    fn stream_destroyed(&self, device: u32, stream: u64) -> Answer<()>;
    fn device_was_reset(&self, device: u32) -> Answer<()>;

    fn trim(&self, device: u32, keep: u64) -> Answer<u64>;
    /// Negative: all devices.
    fn empty(&self, device: i32) -> Answer<()>;
    fn set_fraction(&self, device: u32, fraction: f64) -> Answer<()>;
    /// Nothing where the interface has no such call.
    fn set_limits(&self, device: u32, hard: Option<u64>, soft: Option<u64>) -> Option<Answer<()>>;
    fn set_peers(&self, device: u32, peers: &[u32]) -> Answer<()>;
    fn books(&self, device: u32) -> Answer<Books>;
    fn reset_peaks(&self, device: u32) -> Answer<()>;
    fn reset_sums(&self, device: u32) -> Answer<()>;
    fn snapshot(&self, device: u32) -> Answer<Vec<Stretch>>;
    fn set_hook(&self, hook: Option<Hook>) -> Answer<()>;
    fn add_callback(&self, callback: FreeMemory) -> Answer<u64>;
    fn remove_callback(&self, number: u64) -> Answer<()>;

    fn create_pool(&self, device: u32, choice: PoolChoice) -> Answer<u64>;
    fn release_pool(&self, pool: u64) -> Answer<()>;
    fn begin_route(&self, pool: u64, filter: Filter) -> Answer<()>;
    fn begin_capture(&self, pool: u64, filter: Filter) -> Answer<()>;
    fn end_route(&self, pool: u64) -> Answer<()>;
    fn release_graph(&self, pool: u64) -> Answer<()>;
    fn checkpoint(&self, pool: u64) -> Answer<u64>;
    /// Addresses that were freed, and that were handed out.
    fn restore(&self, checkpoint: u64) -> Answer<(Vec<u64>, Vec<u64>)>;
    fn release_checkpoint(&self, checkpoint: u64) -> Answer<()>;
    fn sleep(&self, device: u32, tag: &str, keep: bool) -> Answer<()>;
    fn wake(&self, device: u32, tag: &str) -> Answer<()>;
    fn is_asleep(&self, pool: u64) -> Answer<bool>;

    fn create_buffer(&self, device: u32, stream: u64, max: u64, bytes: u64) -> Answer<u64>;
    fn resize_buffer(&self, buffer: u64, bytes: u64) -> Answer<()>;
    fn record_buffer(&self, buffer: u64, stream: u64) -> Answer<()>;
    fn buffer(&self, buffer: u64) -> Answer<BufferInfo>;
    fn destroy_buffer(&self, buffer: u64) -> Answer<()>;

    /// The export and its message.
    fn export(&self, address: u64) -> Answer<(u64, Vec<u8>)>;
    fn release_export(&self, export: u64) -> Answer<()>;
    /// The import, its address and its bytes.
    fn import(&self, message: &[u8], device: u32, stream: u64) -> Answer<(u64, u64, u64)>;
    fn record_import(&self, import: u64, stream: u64) -> Answer<()>;
    fn release_import(&self, import: u64) -> Answer<()>;

    fn host_allocate(&self, bytes: u64) -> Answer<u64>;
    fn host_free(&self, address: u64) -> Answer<()>;
    fn host_record(&self, address: u64, device: u32, stream: u64) -> Answer<()>;
    /// With `waiting` streams are waited for.
    fn host_empty(&self, waiting: bool) -> Answer<()>;
    fn host_books(&self) -> Answer<HostBooks>;

    /// The heap checker; through the C interface it runs inside the library, whose answers then say `internal`.
    fn check(&self) -> Result<(), Vec<String>>;
}
