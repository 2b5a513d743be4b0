//! Giving idle memory back: what may go, and marking it for a [`GiveBack`](super::plan::GiveBack).

use super::Core;
use super::block::{BlockId, NONE, State};
use super::plan::{GiveBack, Returned, Step};
use super::pool::PoolIndex;
use super::segment::Class;

impl Core {
    /// Idle segments from the source of a pool, or of all pools that have one, of at least `bytes` bytes or all.
    pub(crate) fn idle_elsewhere(&mut self, pool: Option<PoolIndex>, bytes: u64) -> GiveBack {
        let mut left = bytes;
        let mut ids = self.free_classic();
        ids.retain(|&id| {
            let class = self.class_of(id);
            let wanted = left > 0 && self.is_sourced(class) && pool.is_none_or(|pool| class.pool() == pool);
            left -= if wanted { left.min(self.blocks[id].len) } else { 0 };
            wanted
        });
        self.take_classic(ids)
    }

    /// Quiescent idle memory of the device of at least `bytes` bytes, or all there is: longest idle first, with
    /// `chunks` those of growable segments before classic segments.
    pub(crate) fn idle_memory(&mut self, bytes: u64, chunks: bool) -> GiveBack {
        let granule = self.limits.granule;
        let mut left = bytes;
        let mut back = GiveBack::default();
        if chunks {
            let cached = (left.div_ceil(granule) as usize).min(self.cached.len());
            back.set_handles(self.cached.split_off(self.cached.len() - cached));
            left = left.saturating_sub(cached as u64 * granule);
            back.runs = self.gather(left.div_ceil(granule), |_| true);
            let moved: usize = back.runs.iter().map(|run| run.handles.len()).sum();
            left = left.saturating_sub(moved as u64 * granule);
        }
        let mut ids = if left > 0 { self.free_classic() } else { Vec::new() };
        ids.retain(|&id| {
            let wanted = left > 0 && !self.is_sourced(self.class_of(id));
            left -= if wanted { left.min(self.blocks[id].len) } else { 0 };
            wanted
        });
        back.classic = self.take_classic(ids).classic;
        back
    }

    /// Reservations that hold nothing at all.
    pub(crate) fn empty_reservations(&mut self) -> GiveBack {
        let mut back = GiveBack::default();
        let empty: Vec<(BlockId, u64, Class)> = self
            .segments
            .iter()
            .filter(|(_, segment)| {
                let block = &self.blocks[segment.first];
                block.state == State::Hole && block.len == segment.len && !segment.owned
            })
            .map(|(_, segment)| (segment.first, segment.origin, segment.class))
            .collect();
        for (block, origin, class) in empty {
            self.pools[class].remove(&mut self.blocks, block);
            self.blocks[block].state = State::Busy;
            self.busy += 1;
            back.reservations.push((block, origin));
        }
        back
    }

    /// By how much a new classic segment of `bytes` would pass the garbage collection threshold.
    /// Small ones are neither collected nor a reason to collect.
    pub(crate) fn garbage(&self, class: Class, bytes: u64) -> u64 {
        let Some(threshold) = self.config.garbage_collection_threshold else { return 0 };
        let most = (self.limit.unwrap_or(self.limits.total) as f64 * threshold) as u64;
        let idle = self.segments.iter().any(|(_, segment)| {
            segment.class.is_classic_large()
                && self.blocks[segment.first].len == segment.len
                && !self.is_sourced(segment.class)
        });
        if class.is_small() || !idle { 0 } else { (self.classic + bytes).saturating_sub(most) }
    }

    /// Frees idle classic segments, oldest first, when a new one of `bytes` would pass the
    /// threshold. Waits for nothing.
    pub(crate) fn collect_garbage(&mut self, class: Class, bytes: u64) -> Option<Step> {
        let mut excess = self.garbage(class, bytes);
        if excess == 0 {
            return None;
        }
        let mut ids = self.free_classic();
        ids.retain(|&id| {
            let wanted =
                excess > 0 && self.class_of(id).is_classic_large() && !self.is_sourced(self.class_of(id));
            if wanted {
                excess = excess.saturating_sub(self.blocks[id].len);
            }
            wanted
        });
        let back = self.take_classic(ids);
        (!back.is_empty()).then_some(Step::GiveBack(back))
    }

    /// Chunks that have been idle for longer than the decay time, a few at a time; `now` in nanoseconds.
    pub(crate) fn decayed(&mut self, now: u64) -> Option<Step> {
        /// Chunks given back in one go, so that no call takes long.
        const MOST: u64 = 16;
        if self.capturing > 0 {
            return None;
        }
        let age = self.config.decay_ms.saturating_mul(1_000_000);
        self.clock.push_back((self.frees, now));
        let mut old = None;
        while let Some(&(frees, then)) = self.clock.front() {
            if now.saturating_sub(then) < age {
                break;
            }
            old = Some(frees);
            self.clock.pop_front();
        }
        self.old = old.unwrap_or(self.old);
        let old = self.old;
        let runs = self.gather(MOST, |block| block.freed <= old);
        let mut back = GiveBack { runs, ..GiveBack::default() };
        let extra = core::mem::take(&mut self.cached);
        back.set_handles(extra);
        (!back.is_empty()).then_some(Step::GiveBack(back))
    }

    /// The only blocks of classic segments that nothing uses, least recently freed first.
    fn free_classic(&self) -> Vec<BlockId> {
        let mut ids: Vec<BlockId> = self
            .segments
            .iter()
            .filter(|(_, segment)| {
                segment.class.is_classic() && !self.pools.get(segment.class.pool()).is_fixed()
            })
            .map(|(_, segment)| segment.first)
            .filter(|&id| {
                let block = &self.blocks[id];
                block.state == State::Free && block.next == NONE && self.is_quiescent(id)
            })
            .collect();
        ids.sort_by_key(|&id| (self.blocks[id].freed, self.blocks[id].addr));
        ids
    }

    fn take_classic(&mut self, ids: Vec<BlockId>) -> GiveBack {
        let mut back = GiveBack::default();
        for id in ids {
            self.withdraw(id);
            self.blocks[id].state = State::Busy;
            self.busy += 1;
            let (address, bytes) = (self.blocks[id].addr, self.blocks[id].len);
            let source = self.pools.get(self.class_of(id).pool()).rules.source.clone();
            back.classic.push(Returned { block: id, address, bytes, source });
        }
        back
    }
}
