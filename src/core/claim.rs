//! Free memory that is handed out for where it lies: that of a bad page, so that nobody else gets it.

use super::block::{BlockId, State};
use super::segment::SMALL_LIMIT;
use super::{Core, UNIT};

impl Core {
    /// Hands out free memory that lies in `from..to`, in whole chunks as far as it is free, with what its segment
    /// cannot hold as a block of its own: one piece. Nothing where none is free.
    pub(crate) fn claim(&mut self, from: u64, to: u64) -> Option<BlockId> {
        let id = self.free_in(from, to)?;
        let (start, end) = self.claimed(id, from, to);
        let home = self.blocks[id].home;
        let piece = self.carve(id, start, end - start);
        self.hand_out(piece, end - start, home);
        self.blocks[piece].claimed = true;
        Some(piece)
    }

    /// A free block that reaches into `from..to`. Those of a pool that sleeps are in no index.
    fn free_in(&self, from: u64, to: u64) -> Option<BlockId> {
        let mut blocks = self.blocks.iter();
        let found = blocks.find(|(_, block)| {
            block.state == State::Free && block.indexed && block.addr < to && from < block.end()
        });
        found.map(|(id, _)| id)
    }

    /// What is cut out of a free block: the chunks of `from..to`, and no less than a block of its class may have, on
    /// both sides of the cuts.
    fn claimed(&self, id: BlockId, from: u64, to: u64) -> (u64, u64) {
        let block = &self.blocks[id];
        let (first, last) = (block.addr, block.end());
        if block.class.is_classic_large() || self.pools.get(block.class.pool()).rules.no_split {
            return (first, last);
        }
        let granule = self.limits.granule;
        let least = if block.class.is_small() { UNIT } else { SMALL_LIMIT + UNIT };
        let mut start = (from & !(granule - 1)).max(first);
        if start - first < least {
            start = first;
        }
        let chunks_end = to.checked_next_multiple_of(granule).unwrap_or(u64::MAX);
        let mut end = chunks_end.max(start.saturating_add(least)).min(last);
        if last - end < least {
            end = last;
        }
        if end - start < least {
            start = first;
        }
        (start, end)
    }
}
