//! What would have helped a request that nothing could serve, and by how many bytes.
//!
//! Memory helps where it is whole chunks, or whole fixed blocks: anything else stays where it is.

use super::Core;
use super::block::{Block, BlockId, State};
use super::plan::Request;
use super::pool::PoolIndex;
use super::segment::Segment;
use crate::error::{EXPANDABLE, OutOfMemoryCause, RESERVATIONS, Remedy};

/// A stretch of memory: where it begins and ends.
type Stretch = (u64, u64);

impl Core {
    /// What would have helped, as far as the core can tell. What is none of the device's helps nobody.
    pub(super) fn remedies(&self, request: &Request, cause: OutOfMemoryCause) -> Vec<Remedy> {
        let mut remedies = Vec::new();
        let mut add = |bytes, change, reason| remedies.push(Remedy { change, bytes, reason });
        if self.is_elsewhere(request.class) {
            // Nor does what is the device's.
            return remedies;
        }
        if cause == OutOfMemoryCause::AddressSpace {
            add(0, RESERVATIONS, "smaller reservations find room more easily.");
            return remedies;
        }
        let (early, fixed) = self.kept_by_graphs();
        if early > 0 {
            let reason = "while one is being captured nothing is moved, given back or waited for.";
            add(early, "Allocate before the capture of a graph begins", reason);
        }
        if fixed > 0 {
            add(fixed, "Release captured graphs", "their pools keep idle memory in place.");
        }
        self.add_of_fixed_blocks(&mut add);
        let wide = self.scattered_by_width();
        if wide > 0 {
            let reason = "live blocks share chunks as large as that with idle memory.";
            add(wide, "Leave large_segment_size_mb and page_size out", reason);
        }
        let exported = self.kept_by_exports();
        if exported > 0 {
            add(exported, "End exports", "blocks that were freed stay for their importers.");
        }
        let (_, behind) = self.bare_and_behind();
        if behind > 0 {
            let reason = "a sleep or a wake that failed left memory behind them, which nobody can use.";
            add(behind, "Put pools that sleep to sleep again, or wake them", reason);
        }
        let rounding = self.rounded_up();
        if rounding > 0 {
            add(rounding, "Set roundup_power2_divisions:0", "live blocks are rounded up by so much.");
        }
        remedies
    }

    /// Bytes that could have been moved, given back or waited for before a capture began, wherever there are no graphs, and
    /// those that could be once no graph is left.
    fn kept_by_graphs(&self) -> (u64, u64) {
        let freed = |_: BlockId, block: &Block| matches!(block.state, State::Free | State::Waiting);
        match self.capturing {
            0 => (0, self.whole_bytes(|pool| self.pools.get(pool).is_fixed(), is_idle)),
            _ => (self.whole_bytes(|pool| !self.pools.get(pool).is_fixed(), freed), 0),
        }
    }

    /// Adds what helps where idle memory lies in pieces of fixed blocks.
    fn add_of_fixed_blocks(&self, add: &mut impl FnMut(u64, &'static str, &'static str)) {
        let idle = |kind: Option<bool>| {
            self.free_bytes(|block| {
                let of = self.pools.get(block.class.pool());
                let movable = of.rules.source.is_none() && !of.is_fixed();
                // Whole ones go back to the device when they may.
                let piece = block.len < self.segments[block.segment as usize].len;
                block.class.is_classic() && piece && movable && of.rules.expandable == kind
            })
        };
        let (usual, own) = (idle(None), idle(Some(false)));
        if usual + own > 0 && !self.reservable {
            let reason = "address ranges cannot be reserved here, so idle memory cannot be moved together.";
            add(0, "Free blocks", reason);
        } else {
            if usual > 0 && !self.config.expandable_segments {
                add(usual, EXPANDABLE, "idle memory can be moved together then.");
            }
            if own > 0 {
                let reason =
                    "idle memory of pools that were made with fixed blocks cannot be moved together.";
                add(own, "Make pools with expandable:None or Some(true)", reason);
            }
        }
        if let Some(most) = self.config.max_split_size.filter(|_| !self.config.expandable_segments) {
            let whole = self.free_bytes(|block| block.class.is_classic_large() && block.len >= most);
            if whole > 0 {
                add(whole, "Raise max_split_size_mb", "idle blocks that large are not split.");
            }
        }
    }

    /// Idle bytes of whole granules whose chunk has more of them, of which some are not idle.
    fn scattered_by_width(&self) -> u64 {
        let wide =
            self.segments.iter().map(|(_, segment)| segment).filter(|segment| !segment.wide.is_empty());
        let here = wide.filter(|segment| self.may_be_taken_from(segment));
        let kept = |segment: &Segment| -> u64 {
            let runs = self.runs_in(segment, is_idle).into_iter();
            let more = |run: Stretch| self.granules_in(run) - self.whole_in(segment, run);
            runs.map(more).sum()
        };
        here.filter(|segment| !self.pools.get(segment.class.pool()).is_fixed()).map(kept).sum()
    }

    /// Bytes that would be idle if no export kept blocks that were freed.
    fn kept_by_exports(&self) -> u64 {
        let without = |id: BlockId, block: &Block| is_idle(id, block) || self.outlives_its_owner(id);
        let movable = |pool: PoolIndex| !self.pools.get(pool).is_fixed();
        if self.exported_blocks().next().is_none() {
            return 0;
        }
        self.whole_bytes(movable, without) - self.whole_bytes(movable, is_idle)
    }

    /// Bytes of whole chunks and whole fixed blocks of the device that would be idle if all blocks were that are `open`, of
    /// some pools.
    fn whole_bytes(
        &self,
        pools: impl Fn(PoolIndex) -> bool,
        open: impl Fn(BlockId, &Block) -> bool + Copy,
    ) -> u64 {
        let segments = self.segments.iter().map(|(_, segment)| segment);
        let chosen =
            segments.filter(|segment| self.may_be_taken_from(segment) && pools(segment.class.pool()));
        let whole = |segment: &Segment| -> u64 {
            self.runs_in(segment, open).into_iter().map(|run| self.whole_in(segment, run)).sum()
        };
        chosen.map(whole).sum()
    }

    /// Whether what is idle in a segment could serve others.
    fn may_be_taken_from(&self, segment: &Segment) -> bool {
        segment.mapped > 0 && !self.is_elsewhere(segment.class) && !self.is_asleep(segment.class.pool())
    }

    /// Stretches of blocks of a segment that are `open`, as long as they go on.
    pub(super) fn runs_in(&self, segment: &Segment, open: impl Fn(BlockId, &Block) -> bool) -> Vec<Stretch> {
        let mut runs: Vec<Stretch> = Vec::new();
        let blocks = self.blocks.from(segment.first).map(|id| (id, &self.blocks[id]));
        for (_, block) in blocks.filter(|&(id, block)| open(id, block)) {
            match runs.last_mut() {
                Some(run) if run.1 == block.addr => run.1 = block.end(),
                _ => runs.push((block.addr, block.end())),
            }
        }
        runs
    }

    /// Bytes of a stretch of a segment that its chunks do not share with anything else. A fixed block is one chunk.
    pub(super) fn whole_in(&self, segment: &Segment, (from, to): Stretch) -> u64 {
        if segment.class.is_classic() {
            let all = from == segment.base && to == segment.base + segment.len;
            return if all { segment.len } else { 0 };
        }
        let (mut first, mut end) = self.whole_chunks(from, to);
        let shift = self.limits.shift;
        // Wide chunks that reach beyond its ends.
        if let Some((start, bytes)) = segment.wide_behind(first, shift).filter(|&(start, _)| start < first) {
            first = start + bytes;
        }
        if let Some((start, bytes)) = end.checked_sub(1).and_then(|last| segment.wide_behind(last, shift))
            && start + bytes > end
        {
            end = start;
        }
        end.saturating_sub(first)
    }

    /// Bytes of the granules that lie wholly in a stretch.
    fn granules_in(&self, (from, to): Stretch) -> u64 {
        let (first, end) = self.whole_chunks(from, to);
        end.saturating_sub(first)
    }

    /// Free bytes of the device, of some blocks.
    fn free_bytes(&self, wanted: impl Fn(&Block) -> bool) -> u64 {
        let here = |block: &&Block| !self.is_elsewhere(block.class) && wanted(block);
        self.idle_blocks().filter(here).map(|block| block.len).sum()
    }

    /// Bytes of live blocks of the device that are there because of `roundup_power2_divisions` alone.
    fn rounded_up(&self) -> u64 {
        let blocks = self.present_blocks().map(|(_, block)| block);
        let live = blocks.filter(|block| block.state == State::Live && !self.is_elsewhere(block.class));
        let more = |block: &Block| {
            let (usual, rounded) = (self.block_end(block.requested)?, self.block_len(block.requested)?);
            Some(rounded.min(block.len).saturating_sub(usual))
        };
        live.filter_map(more).sum()
    }
}

/// Whether a block is idle, to be given to what looks at blocks with their numbers.
pub(super) fn is_idle(_: BlockId, block: &Block) -> bool {
    block.state == State::Free
}
