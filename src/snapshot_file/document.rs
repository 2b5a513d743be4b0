//! What a snapshot means: PyTorch's dictionary as plain structs.

use std::sync::Arc;

/// A source line that was active when something happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file; empty where it is not known.
    pub filename: Arc<str>,
    /// The line; 0 or less where it is not known.
    pub line: i64,
    /// The function.
    pub name: Arc<str>,
}

/// Frames, the innermost first. Entries with the same ones share them; empty where none were captured.
pub type Frames = Arc<[Frame]>;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// `active_allocated`: handed out.
    Allocated,
    /// `active_pending_free`: given back, and other streams may still use it.
    PendingFree,
    /// `inactive`: free.
    Inactive,
}

impl BlockKind {
    /// Its word in the dictionary.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            BlockKind::Allocated => "active_allocated",
            BlockKind::PendingFree => "active_pending_free",
            BlockKind::Inactive => "inactive",
        }
    }

    /// The kind of a word; `active_awaiting_free`, which PyTorch's documentation has, is known too.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "active_allocated" => Some(BlockKind::Allocated),
            "active_pending_free" | "active_awaiting_free" => Some(BlockKind::PendingFree),
            "inactive" => Some(BlockKind::Inactive),
            _ => None,
        }
    }

    /// Whether it counts as active.
    #[must_use]
    pub fn is_active(self) -> bool {
        self != BlockKind::Inactive
    }
}

/// A block; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// Bytes, as the allocator rounded them.
    pub size: u64,
    /// Bytes that were asked for; 0 unless it is active.
    pub requested_size: u64,
    /// What it is.
    pub kind: BlockKind,
    /// Where it was allocated.
    pub frames: Frames,
}

/// A stretch of memory of the device; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device.
    pub device: u32,
    /// First address.
    pub address: u64,
    /// Bytes; the blocks tile it.
    pub total_size: u64,
    /// Bytes of blocks that are handed out.
    pub allocated_size: u64,
    /// Bytes of active blocks.
    pub active_size: u64,
    /// Bytes that were asked for in active blocks.
    pub requested_size: u64,
    /// The stream, by its raw handle.
    pub stream: u64,
    /// Whether it is for large blocks.
    pub is_large: bool,
    /// The pool: (0, 0) is the default one.
    pub pool: (u64, u64),
    /// Whether it grows and shrinks by mapping.
    pub is_expandable: bool,
    /// Whether its pool sleeps: the addresses are held, and no memory is behind the blocks. Only this allocator has that.
    pub is_asleep: bool,
    /// Where it was taken from the device.
    pub frames: Frames,
    /// Its blocks, in address order.
    pub blocks: Vec<Block>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// `alloc`: a block was handed out.
    Alloc,
    /// `free_requested`: a block was given back.
    FreeRequested,
    /// `free_completed`: the memory of a block that was given back can be used again.
    FreeCompleted,
    /// `segment_alloc`: a segment was taken from the device.
    SegmentAlloc,
    /// `segment_free`: a segment was given back to the device.
    SegmentFree,
    /// `segment_map`: memory was put behind addresses.
    SegmentMap,
    /// `segment_unmap`: memory was taken from behind addresses.
    SegmentUnmap,
    /// `oom`: a request found no memory.
    OutOfMemory,
    /// `snapshot`: a snapshot was taken.
    Snapshot,
    /// `stream_use`: a live block is used on `stream` too. Only this allocator has that.
    StreamUse,
    /// `host_wait`: the host waited for `stream`. Only this allocator has that.
    HostWait,
    /// Any other: `annotate`, `workspace_snapshot`, `user_defined` and what is to come.
    Other(Arc<str>),
}

impl Action {
    /// Its word in the dictionary.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::OutOfMemory => "oom",
            Action::Snapshot => "snapshot",
            Action::StreamUse => "stream_use",
            Action::HostWait => "host_wait",
            Action::Other(word) => word,
        }
    }

    /// The action of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Self {
        match word {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "oom" => Action::OutOfMemory,
            "snapshot" => Action::Snapshot,
            "stream_use" => Action::StreamUse,
            "host_wait" => Action::HostWait,
            other => Action::Other(other.into()),
        }
    }
}

/// Something that happened; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What.
    pub action: Action,
    /// First address; for [`Action::OutOfMemory`] the bytes that the device had free.
    pub addr: u64,
    /// Bytes: asked for where it is about a block or a request, else those of the range.
    pub size: u64,
    /// The stream, by its raw handle.
    pub stream: u64,
    /// When, in microseconds of some clock. torch_npu does not say.
    pub time_us: Option<i64>,
    /// The pool.
    pub pool: Option<(u64, u64)>,
    /// What the program said, `user_metadata`.
    pub note: Option<Arc<str>>,
    /// Where.
    pub frames: Frames,
}

/// A moment that the program named, apart from the entries of a device: `external_annotations`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The device.
    pub device: u32,
    /// When, in microseconds of the entries' clock.
    pub time_us: i64,
    /// Its name.
    pub name: Arc<str>,
    /// `START`, `END` or something else.
    pub stage: Arc<str>,
}

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Memory of all devices.
    pub segments: Vec<Segment>,
    /// What happened on each device, in order; by the device's number.
    pub device_traces: Vec<Vec<Entry>>,
    /// Moments that the program named.
    pub annotations: Vec<Annotation>,
    /// Settings of the allocator, each with its value as text.
    pub settings: Vec<(String, String)>,
    /// Settings and figures of this allocator that PyTorch has no place for, by device: written under `ascend_alloc`.
    pub figures: Vec<(String, i64)>,
    /// What was found that does not fit together or was left out, in words.
    pub warnings: Vec<String>,
}

/// Totals of some segments; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Segments.
    pub segments: u64,
    /// Bytes of segments with memory behind them.
    pub reserved: u64,
    /// Bytes of blocks that are handed out.
    pub allocated: u64,
    /// Bytes of active blocks.
    pub active: u64,
    /// Bytes that were asked for in active blocks.
    pub requested: u64,
    /// Blocks that are handed out.
    pub allocated_blocks: u64,
    /// Blocks that are active.
    pub active_blocks: u64,
    /// Bytes of the largest free block.
    pub largest_free: u64,
}

impl Totals {
    /// Adds a segment.
    pub fn add(&mut self, segment: &Segment) {
        self.segments += 1;
        if !segment.is_asleep {
            self.reserved = self.reserved.saturating_add(segment.total_size);
        }
        for block in &segment.blocks {
            match block.kind {
                BlockKind::Inactive => {
                    if !segment.is_asleep {
                        self.largest_free = self.largest_free.max(block.size);
                    }
                    continue;
                }
                BlockKind::Allocated => {
                    self.allocated = self.allocated.saturating_add(block.size);
                    self.allocated_blocks += 1;
                }
                BlockKind::PendingFree => {}
            }
            self.active = self.active.saturating_add(block.size);
            self.requested = self.requested.saturating_add(block.requested_size);
            self.active_blocks += 1;
        }
    }
}

impl Document {
    /// The devices that have memory or events, by number.
    #[must_use]
    pub fn devices(&self) -> Vec<u32> {
        let traced = self.device_traces.iter().enumerate().filter(|(_, trace)| !trace.is_empty());
        let traced = traced.filter_map(|(device, _)| u32::try_from(device).ok());
        let mut devices: Vec<u32> =
            self.segments.iter().map(|segment| segment.device).chain(traced).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// What happened on a device.
    #[must_use]
    pub fn trace(&self, device: u32) -> &[Entry] {
        self.device_traces.get(device as usize).map_or(&[], Vec::as_slice)
    }

    /// Totals of a device.
    #[must_use]
    pub fn totals(&self, device: u32) -> Totals {
        let mut totals = Totals::default();
        for segment in self.segments.iter().filter(|segment| segment.device == device) {
            totals.add(segment);
        }
        totals
    }
}
