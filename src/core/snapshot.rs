//! The heap as plain structs, with the words of PyTorch's snapshot.

use std::collections::BTreeMap;

use super::Core;
use super::block::{Block, NONE, State};
use crate::driver::{DeviceId, Stream};
use crate::history::ContextId;

/// What a block of a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Handed out.
    ActiveAllocated,
    /// Freed, and other streams may still use it.
    ActivePendingFree,
    /// Free.
    Inactive,
    /// Taken for driver calls that are running.
    InTransit,
}

/// One block; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSnapshot {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes asked for; zero unless active.
    pub requested_size: u64,
    /// What it is.
    pub state: BlockState,
    /// The stream it was allocated for, or whose free block it is.
    pub stream: Stream,
    /// Whether it rests in the front cache.
    pub in_front: bool,
    /// Who asked for it, while it is active: as far as the history still has its allocation, in a
    /// [`FullSnapshot`](crate::snapshot::FullSnapshot) only.
    pub context: Option<ContextId>,
}

/// A stretch of memory without a hole; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSnapshot {
    /// The device.
    pub device: DeviceId,
    /// First address.
    pub address: u64,
    /// Bytes; the blocks tile it.
    pub total_size: u64,
    /// Bytes of blocks handed out.
    pub allocated_size: u64,
    /// Bytes of blocks handed out or waiting for streams.
    pub active_size: u64,
    /// Bytes asked for in active blocks.
    pub requested_size: u64,
    /// Whether its blocks count as small.
    pub is_small: bool,
    /// Whether it belongs to a reservation that grows and shrinks.
    pub is_expandable: bool,
    /// First address of the reservation or classic segment it is part of.
    pub base: u64,
    /// The pool it belongs to, by its serial; 0 is the default one.
    pub pool: u64,
    /// The stream of its first block.
    pub stream: Stream,
    /// Whether its pool sleeps and has no memory behind the blocks, or not behind all of each. Where some was left behind a
    /// pool (claimed memory, or what the driver refused to take), blocks with memory are in stretches of their own.
    pub is_asleep: bool,
    /// Pieces of physical memory behind it: chunks, or the one of a classic segment.
    pub chunks: u64,
    /// Blocks in address order.
    pub blocks: Vec<BlockSnapshot>,
}

/// All memory of a device at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Mapped stretches, by address.
    pub segments: Vec<SegmentSnapshot>,
    /// Chunks held without an address, bytes.
    pub cached_handles: u64,
}

/// A block of the front cache, which the core counts as live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resting {
    /// First address.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes it was last asked for with.
    pub(crate) requested: u64,
    /// Whether other streams may still use it.
    pub(crate) waits: bool,
}

impl Core {
    /// The heap as plain structs; `resting` are the blocks of the front cache.
    pub(crate) fn snapshot(&self, resting: &[Resting]) -> Snapshot {
        let resting: BTreeMap<u64, Resting> = resting.iter().map(|&rests| (rests.address, rests)).collect();
        let mut segments = Vec::new();
        for (_, segment) in self.segments.iter() {
            let mut run: Option<SegmentSnapshot> = None;
            let mut id = segment.first;
            while id != NONE {
                let block = &self.blocks[id];
                let is_asleep = self.is_asleep(segment.class.pool()) && !self.is_backed(block);
                if block.state == State::Hole || run.as_ref().is_some_and(|run| run.is_asleep != is_asleep) {
                    segments.extend(run.take());
                }
                if block.state != State::Hole {
                    let run = run.get_or_insert_with(|| SegmentSnapshot {
                        device: self.limits.device,
                        address: block.addr,
                        total_size: 0,
                        allocated_size: 0,
                        active_size: 0,
                        requested_size: 0,
                        is_small: segment.class.is_small(),
                        is_expandable: !segment.class.is_classic(),
                        base: segment.base,
                        pool: self.pools.get(segment.class.pool()).serial,
                        stream: self.streams[block.home as usize].handle,
                        is_asleep,
                        chunks: 0,
                        blocks: Vec::new(),
                    });
                    run.push(self.block_snapshot(block, resting.get(&block.addr)));
                }
                id = block.next;
            }
            segments.extend(run);
        }
        for run in &mut segments {
            run.chunks = self.pieces_behind(run);
        }
        segments.sort_by_key(|segment| segment.address);
        Snapshot { segments, cached_handles: self.cached_bytes() }
    }

    /// Whether all of a block has memory behind it.
    fn is_backed(&self, block: &Block) -> bool {
        let segment = &self.segments[block.segment as usize];
        let mut granules =
            (block.addr & !(self.limits.granule - 1)..block.end()).step_by(self.limits.granule as usize);
        segment.class.is_classic() || granules.all(|at| segment.chunk(at, self.limits.shift).is_some())
    }

    /// How many pieces of physical memory begin behind a stretch.
    fn pieces_behind(&self, run: &SegmentSnapshot) -> u64 {
        if !run.is_expandable {
            return 1;
        }
        let Some(segment) = self.segment_of(run.address) else { return 0 };
        let end = run.address + run.total_size;
        let first = run.address.next_multiple_of(self.limits.granule);
        let granules = (first..end).step_by(self.limits.granule as usize);
        let backed = granules.filter(|&at| segment.chunk(at, self.limits.shift).is_some()).count() as u64;
        let more: u64 = segment.wide.range(run.address..end).map(|(_, &span)| u64::from(span) - 1).sum();
        backed - more
    }

    fn block_snapshot(&self, block: &Block, rests: Option<&Resting>) -> BlockSnapshot {
        let state = match (block.state, rests) {
            (State::Live, None) => BlockState::ActiveAllocated,
            (State::Live, Some(rests)) if rests.waits => BlockState::ActivePendingFree,
            (State::Waiting, _) => BlockState::ActivePendingFree,
            (State::Busy, _) => BlockState::InTransit,
            (State::Live | State::Free | State::Hole, _) => BlockState::Inactive,
        };
        let requested = rests.map_or(block.requested, |rests| rests.requested);
        let active = matches!(state, BlockState::ActiveAllocated | BlockState::ActivePendingFree);
        BlockSnapshot {
            address: block.addr,
            size: block.len,
            requested_size: if active { requested } else { 0 },
            state,
            stream: self.streams[block.home as usize].handle,
            in_front: rests.is_some(),
            context: None,
        }
    }
}

impl SegmentSnapshot {
    /// Its pool as the pair of numbers that PyTorch's tools show: (0, 0) is the default pool, (0, serial) another.
    #[must_use]
    pub fn pool_pair(&self) -> (u64, u64) {
        (0, self.pool)
    }

    fn push(&mut self, block: BlockSnapshot) {
        self.total_size += block.size;
        self.requested_size += block.requested_size;
        match block.state {
            BlockState::ActiveAllocated => {
                self.allocated_size += block.size;
                self.active_size += block.size;
            }
            BlockState::ActivePendingFree => self.active_size += block.size,
            BlockState::Inactive | BlockState::InTransit => {}
        }
        self.blocks.push(block);
    }
}
