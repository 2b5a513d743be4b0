//! Checkpoints: which blocks of a pool are live at one moment, to be made so again later.
//!
//! Graphs that share a pool and branch need the pool as it was when the branch began. Restoring frees every
//! live block of the pool and hands out those of the checkpoint at their old addresses. It costs time in
//! proportion to the blocks of the pool, and calls no driver.

use super::Core;
use super::block::{BlockId, NONE, State};
use super::pool::PoolIndex;
use crate::driver::Stream;

/// One live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    /// First address.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes asked for.
    pub(crate) requested: u64,
    /// The stream it was allocated for.
    pub(crate) stream: Stream,
}

impl Core {
    /// The live blocks of a pool, by address, but not those of growing buffers, which have owners who know
    /// their size, those lent to the default pool, whose owners know nothing of this one, and those claimed.
    pub(crate) fn live_of(&self, pool: PoolIndex) -> Vec<BlockId> {
        let is_meant = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.state == State::Live && !block.class.is_growing() && !block.lent && !block.claimed
        };
        self.blocks_of(pool).filter(is_meant).collect()
    }

    /// Whether live blocks of a pool are lent to the default pool.
    pub(crate) fn has_lent(&self, pool: PoolIndex) -> bool {
        self.blocks_of(pool).any(|id| self.blocks[id].lent)
    }

    /// What is to be remembered of these blocks.
    pub(crate) fn saved(&self, blocks: &[BlockId]) -> Vec<Saved> {
        let save = |&id: &BlockId| {
            let block = &self.blocks[id];
            let stream = self.streams[block.home as usize].handle;
            Saved { address: block.addr, len: block.len, requested: block.requested, stream }
        };
        blocks.iter().map(save).collect()
    }

    /// Why the blocks, sorted by address, cannot be brought back now: each must lie in mapped memory of the
    /// pool that no other stream still uses.
    pub(crate) fn unrestorable(&self, pool: PoolIndex, saved: &[Saved]) -> Option<&'static str> {
        const ELSEWHERE: &str = "memory of the checkpoint does not belong to the pool any more";
        if self.is_asleep(pool) {
            return Some("the pool sleeps; wake it first");
        }
        let mut saved = saved.iter().peekable();
        for first in self.firsts_of(pool) {
            let (mut id, mut end) = (first, self.blocks[first].addr);
            // What begins before this segment is in none.
            if saved.peek().is_some_and(|next| next.address < end) {
                return Some(ELSEWHERE);
            }
            while id != NONE {
                let block = &self.blocks[id];
                let here = saved.peek().is_some_and(|next| next.address < block.end());
                match block.state {
                    _ if !here => {}
                    // Segments go, and buffers may lie where blocks were.
                    _ if block.class.is_growing() => return Some(ELSEWHERE),
                    State::Hole => return Some("memory of the checkpoint is not mapped any more"),
                    State::Waiting => {
                        return Some("blocks of the pool wait for streams; synchronize these first");
                    }
                    State::Live if block.lent => {
                        return Some(
                            "a block lent to the default pool lies where blocks were; free it first",
                        );
                    }
                    State::Live if block.claimed => {
                        return Some("a claimed block lies where blocks were; free it first");
                    }
                    State::Busy => return Some("another thread is moving memory of the pool; try again"),
                    State::Live | State::Free => {}
                }
                end = block.end();
                while saved.next_if(|next| next.address + next.len <= end).is_some() {}
                id = block.next;
            }
            // What goes on behind this segment is in none either.
            if saved.peek().is_some_and(|next| next.address < end) {
                return Some(ELSEWHERE);
            }
        }
        saved.peek().map(|_| ELSEWHERE)
    }

    /// Takes `saved` out of the free blocks that cover it, and hands it out.
    pub(crate) fn revive(&mut self, start: BlockId, saved: &Saved) -> BlockId {
        let end = saved.address + saved.len;
        let mut id = start;
        while self.blocks[id].end() <= saved.address {
            id = self.blocks[id].next;
        }
        let mut target = NONE;
        loop {
            let (addr, last) = (self.blocks[id].addr, self.blocks[id].end());
            let from = addr.max(saved.address);
            let piece = self.carve(id, from, last.min(end) - from);
            if target == NONE {
                target = piece;
            } else {
                self.blocks.join(target, piece);
            }
            if self.blocks[target].end() >= end {
                break;
            }
            id = self.blocks[target].next;
        }
        let home = self.stream_id(saved.stream);
        self.blocks[target].epoch = 0;
        self.hand_out(target, saved.requested, home);
        target
    }

    /// The first blocks of the pool's segments, by address.
    pub(crate) fn firsts_of(&self, pool: PoolIndex) -> Vec<BlockId> {
        let own = self.segments.iter().filter(|(_, segment)| segment.class.pool() == pool);
        let mut firsts: Vec<(u64, BlockId)> = own.map(|(_, segment)| (segment.base, segment.first)).collect();
        firsts.sort_unstable();
        firsts.into_iter().map(|(_, first)| first).collect()
    }
}
