//! One event of the history.

use super::context::ContextId;
use crate::driver::{DeviceId, Stream};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Allocate,
    /// A block was given back while other streams may still use it. [`FreeCompleted`](Self::FreeCompleted)
    /// follows once they do not.
    FreeRequested,
    /// The memory of a block can be used again. Where no [`FreeRequested`](Self::FreeRequested) came before, the
    /// block was given back at this moment.
    FreeCompleted,
    /// A live block is used on a further stream (`stream`). Kept only where it was asked for.
    StreamUse,
    /// Physical memory was put behind a range of a segment.
    SegmentMap,
    /// Physical memory was taken from behind a range of a segment.
    SegmentUnmap,
    /// A fixed segment was taken from the driver.
    SegmentAlloc,
    /// A fixed segment was given back to the driver.
    SegmentFree,
    /// Physical memory that was behind another address before was put behind a range. A
    /// [`SegmentUnmap`](Self::SegmentUnmap) of the other address came before.
    ChunkMove,
    /// Pools were put to sleep: `size` bytes went back to the device.
    Sleep,
    /// Pools were woken: `size` bytes were taken from the device.
    Wake,
    /// The host waited for a stream, or for the device (stream 0).
    Wait,
    /// A request for `requested` bytes failed for lack of memory; `size` is what the allocator could still take of the
    /// device by its own count: of the limit, or of the device's memory.
    OutOfMemory,
    /// A snapshot with its events was taken.
    Snapshot,
    /// The program said something: its text is the context.
    UserDefined,
    /// The program said that the host waited for a stream. Kept only where it was asked for.
    HostWait,
}

impl Action {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::Allocate,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::StreamUse,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::ChunkMove,
        Self::Sleep,
        Self::Wake,
        Self::Wait,
        Self::OutOfMemory,
        Self::Snapshot,
        Self::UserDefined,
        Self::HostWait,
    ];

    /// Its name in files: PyTorch's word where PyTorch has one.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocate => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::StreamUse => "stream_use",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::ChunkMove => "chunk_move",
            Self::Sleep => "sleep",
            Self::Wake => "wake",
            Self::Wait => "wait",
            Self::OutOfMemory => "oom",
            Self::Snapshot => "snapshot",
            Self::UserDefined => "user_defined",
            Self::HostWait => "host_wait",
        }
    }

    /// The action of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// One event; sizes and addresses in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number: from 1 in the order in which things happened, over all devices of an allocator.
    pub sequence: u64,
    /// When, in nanoseconds of the driver's clock. Coarse: the clock is read now and then only, so that events
    /// in a row may have the same time. It never runs backwards along [`sequence`](Self::sequence).
    pub time: u64,
    /// What happened.
    pub action: Action,
    /// On which device.
    pub device: DeviceId,
    /// First address concerned; zero where there is none.
    pub address: u64,
    /// Bytes concerned: of the block or range, rounded as the allocator did.
    pub size: u64,
    /// Bytes asked for, where it is about a block or a request; else zero.
    pub requested: u64,
    /// The stream concerned.
    pub stream: Stream,
    /// The pool concerned, by its serial; 0 is the default one.
    pub pool: u64,
    /// The pool's tag, if it has one.
    pub tag: Option<ContextId>,
    /// Who caused it, if that was said (see [`set_context`](super::set_context)) or captured.
    pub context: Option<ContextId>,
}
