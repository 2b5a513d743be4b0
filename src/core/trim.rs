//! Giving idle memory back: what may go, and marking it for a [`GiveBack`](super::plan::GiveBack).

use super::Core;
use super::block::{Block, BlockId, NONE, State};
use super::plan::{Closing, GiveBack, Returned, Run, Step, granules_of};
use super::pool::PoolIndex;
use super::segment::{Class, Segment};
use super::stream::StreamId;

/// Which idle memory may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// That of one pool, or of all.
    pub(crate) pool: Option<PoolIndex>,
    /// What has been free since this number of frees or longer.
    pub(crate) since: u64,
    /// Blocks, and chunks where ages count, that are looked at.
    pub(crate) look: usize,
    /// Where the look at idle blocks, and that at idle classic segments, begins, if that is still one; else at the first. Decay
    /// goes on where it stopped, so that what cannot go keeps nothing else.
    pub(crate) from: [BlockId; 2],
}

impl Choice {
    /// All of it.
    pub(crate) const ALL: Self = Self { pool: None, since: u64::MAX, look: usize::MAX, from: [NONE; 2] };

    /// Whether not all is looked at in one go, so that the next look goes on where this one stopped.
    fn is_bounded(self) -> bool {
        self.look < usize::MAX
    }
}

impl Core {
    /// Idle segments of memory that is none of the device's, of one pool or all, of at least `bytes` bytes or all.
    pub(crate) fn idle_elsewhere(&mut self, choice: Choice, bytes: u64) -> GiveBack {
        let ids = self.idle_segments_of(choice, bytes, Self::is_elsewhere);
        self.take_classic(ids)
    }

    /// The same of the pools that have their memory from the source of this one.
    pub(crate) fn idle_of_source(&mut self, pool: PoolIndex, bytes: u64) -> GiveBack {
        let ids =
            self.idle_segments_of(Choice::ALL, bytes, |core, class| core.have_one_source(class.pool(), pool));
        self.take_classic(ids)
    }

    /// The same of one pool, wherever its memory is from.
    pub(crate) fn idle_of_pool(&mut self, pool: PoolIndex, bytes: u64) -> GiveBack {
        let ids = self.idle_segments_of(Choice { pool: Some(pool), ..Choice::ALL }, bytes, |_, _| true);
        self.take_classic(ids)
    }

    /// Quiescent idle memory of the device of at least `bytes` bytes, or all there is: longest idle first, with
    /// `chunks` those of growable segments before classic segments.
    pub(crate) fn idle_memory(&mut self, choice: Choice, bytes: u64, chunks: bool) -> GiveBack {
        let granule = self.limits.granule;
        let mut left = bytes;
        let mut back = GiveBack::default();
        if chunks {
            // A chunk without an address is of no pool and no age.
            let all = choice.pool.is_none() && choice.since == u64::MAX;
            let cached = if all { (left.div_ceil(granule) as usize).min(self.cached.len()) } else { 0 };
            let mut handles = self.cached.split_off(self.cached.len() - cached);
            if all && left > 0 {
                handles.append(&mut self.stuck);
            }
            left = left.saturating_sub(granules_of(&handles) as u64 * granule);
            back.set_handles(handles);
            back.runs = self.idle_runs(choice, left.div_ceil(granule));
            let moved: usize = back.runs.iter().map(|run| run.handles.len()).sum();
            left = left.saturating_sub(moved as u64 * granule);
            let wide = self.idle_wide(choice, left.div_ceil(granule));
            let granules: u64 = wide.iter().map(|run| u64::from(run.span)).sum();
            left = left.saturating_sub(granules * granule);
            back.runs.extend(wide);
        }
        let ids = self.idle_segments_of(choice, left, |core, class| !core.is_elsewhere(class));
        back.classic = self.take_classic(ids).classic;
        back
    }

    /// Reservations that hold nothing at all, of one pool or of all.
    pub(crate) fn empty_reservations(&mut self, pool: Option<PoolIndex>) -> GiveBack {
        let mut back = GiveBack::default();
        let is_empty = |segment: &&Segment| {
            let block = &self.blocks[segment.first];
            block.state == State::Hole && !segment.owned && block.len == segment.len
        };
        let said = |segment: &Segment| (segment.first, segment.origin, segment.class);
        let all = || self.segments.iter().map(|(_, segment)| segment);
        let empty: Vec<(BlockId, u64, Class)> = match pool {
            Some(pool) => {
                // Fixed blocks, of which there may be many, have no holes.
                let holes = Class::all(pool).into_iter().flat_map(|class| self.holes_of(class));
                let segments = holes.map(|hole| &self.segments[self.blocks[hole].segment as usize]);
                segments.filter(is_empty).map(said).collect()
            }
            None => all().filter(is_empty).map(said).collect(),
        };
        for (block, origin, class) in empty {
            self.pools[class].remove(&mut self.blocks, block);
            self.blocks[block].state = State::Busy;
            self.busy += 1;
            back.reservations.push((block, origin));
        }
        back
    }

    /// The holes of a class.
    fn holes_of(&self, class: Class) -> impl Iterator<Item = BlockId> {
        let some = |id: BlockId| (id != NONE).then_some(id);
        core::iter::successors(some(self.pools[class].head), move |&id| some(self.blocks[id].list_next))
    }

    /// By how much a new classic segment of `bytes` would pass the garbage collection threshold, if anything is
    /// there to be collected. Small ones are neither collected nor a reason to collect.
    pub(crate) fn garbage(&self, class: Class, bytes: u64) -> u64 {
        let Some(threshold) = self.config.garbage_collection_threshold else { return 0 };
        let most = (self.limit.unwrap_or(self.limits.total) as f64 * threshold) as u64;
        let excess = (self.classic + bytes).saturating_sub(most);
        if class.is_small() || self.collectable == 0 { 0 } else { excess }
    }

    /// Frees idle classic segments, oldest first, when a new one of `bytes` would pass the
    /// threshold. Waits for nothing.
    pub(crate) fn collect_garbage(&mut self, class: Class, bytes: u64) -> Option<Step> {
        let excess = self.garbage(class, bytes);
        let ids = self.idle_segments_of(Choice::ALL, excess, Self::is_collected);
        let back = self.take_classic(ids);
        (!back.is_empty()).then_some(Step::GiveBack(back))
    }

    /// Memory that has been idle for longer than the decay times, a little at a time; `now` in nanoseconds.
    pub(crate) fn decayed(&mut self, now: u64) -> Option<Step> {
        /// Chunks given back in one go, so that no call takes long.
        const MOST: u64 = 16;
        /// Blocks and chunks looked at.
        const LOOK: usize = 256;
        if self.capturing > 0 {
            return None;
        }
        self.clock.note(self.all_frees(), now);
        let (age, count) = (self.config.decay_ms.saturating_mul(1_000_000), self.config.decay_ops);
        let by_time = if age > 0 { self.frees_before(now, age) } else { 0 };
        let by_count = if count > 0 { self.all_frees().saturating_sub(count) } else { 0 };
        let since = by_time.max(by_count);
        if since == 0 {
            return None;
        }
        let choice = Choice { pool: None, since, look: LOOK, from: self.decay_from };
        let mut back = self.idle_memory(choice, MOST * self.limits.granule, true);
        let spare = self.cached.len() - self.cached.len().min(MOST as usize);
        back.set_handles(self.cached.split_off(spare));
        (!back.is_empty()).then_some(Step::GiveBack(back))
    }

    /// Whether it is time to bring blocks of the front back, so that those that nobody asks for can age too: the number of
    /// the turn.
    pub(crate) fn resting_turn(&mut self) -> Option<usize> {
        /// Frees from one time to the next, at most: a shard that is in use has to fill again.
        const APART: u64 = 4096;
        let count = self.config.decay_ops;
        let apart = if count > 0 { APART.min(count / 4) } else { APART };
        if self.all_frees() < self.brought_back.0 + apart {
            return None;
        }
        self.brought_back = (self.all_frees(), self.brought_back.1.wrapping_add(1));
        Some(self.brought_back.1)
    }

    /// How many blocks had become free `age` nanoseconds before `now`, as far as is known.
    pub(crate) fn frees_before(&self, now: u64, age: u64) -> u64 {
        now.checked_sub(age).map_or(0, |then| self.clock.until(then))
    }

    /// What must be asked before memory can decay: the oldest events of a few streams. The streams take turns.
    pub(crate) fn decay_query(&mut self) -> Option<Step> {
        let mut closing = Closing::new();
        for id in self.decay_turn() {
            let first = self.streams[id].closing.front();
            closing.extend(first.map(|&(event, epoch)| (id as StreamId, event, epoch)));
        }
        (!closing.is_empty()).then_some(Step::Query(closing))
    }

    /// What must be closed before memory can decay: the epoch of one of these streams that holds most. The next
    /// time others have their turn.
    pub(crate) fn decay_close(&mut self) -> Option<Step> {
        if self.capturing > 0 {
            // One has begun while the oldest events were asked for.
            return None;
        }
        let turn = self.decay_turn();
        self.turn = if turn.end < self.streams.len() { turn.end } else { 0 };
        let able = |&id: &usize| self.is_closable(id as StreamId);
        let heaviest = turn.filter(able).max_by_key(|&id| self.streams[id].stamped_bytes)?;
        if self.tokens <= 0 {
            return None;
        }
        self.tokens -= 1;
        Some(self.close(&[heaviest as StreamId]))
    }

    fn decay_turn(&self) -> core::ops::Range<usize> {
        /// Streams looked at in one go.
        const STREAMS: usize = 16;
        let from = self.turn.min(self.streams.len());
        from..(from + STREAMS).min(self.streams.len())
    }

    /// Takes up to `wanted` quiescent chunks from idle blocks, longest idle first, and marks them busy.
    fn idle_runs(&mut self, choice: Choice, wanted: u64) -> Vec<Run> {
        let mut found: Vec<(BlockId, u64, u64)> = Vec::new();
        let (mut left, mut look) = (wanted, choice.look);
        let mut listed = self.listed_for(choice, false);
        while left > 0 && look > 0 {
            let Some(id) = listed.next() else { break };
            look -= 1;
            if choice.since == u64::MAX {
                self.movable(id, &mut left, &mut found);
            } else {
                self.aged(id, choice.since, &mut left, &mut look, &mut found);
            }
        }
        let next = listed.next().unwrap_or(NONE);
        drop(listed);
        if choice.is_bounded() {
            self.decay_from[0] = next;
        }
        found.into_iter().map(|(id, addr, end)| self.seize(id, addr, end)).collect()
    }

    /// Adds stretches of chunks of an idle block that may move and were last used before that number of frees,
    /// from its far end; `look` bounds the chunks looked at.
    fn aged(
        &self,
        id: BlockId,
        since: u64,
        left: &mut u64,
        look: &mut usize,
        found: &mut Vec<(BlockId, u64, u64)>,
    ) {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let segment = &self.segments[self.blocks[id].segment as usize];
        let old = |addr: u64| {
            let stamp = segment.stamp(addr, shift);
            u64::from(stamp.epoch) <= self.streams[stamp.stream as usize].ages.until(since)
        };
        let may_move = self.mover(id);
        let (start, mut stop) = self.whole_chunks(self.blocks[id].addr, self.blocks[id].end());
        while stop > start && *left > 0 && *look > 0 {
            *look -= 1;
            let chunk = stop - granule;
            if may_move(chunk) && old(chunk) {
                *left -= 1;
                match found.last_mut() {
                    Some((last, from, _)) if *last == id && *from == stop => *from = chunk,
                    _ => found.push((id, chunk, stop)),
                }
            }
            stop = chunk;
        }
    }

    /// Idle blocks with a whole chunk inside, or with `classic` idle classic segments, quiescent or not: from that one
    /// on, if it is still one, and then those before it; else all, longest idle first.
    pub(super) fn listed(&self, from: BlockId, classic: bool) -> impl Iterator<Item = BlockId> {
        let is_one =
            |block: &Block| block.listed && block.state == State::Free && block.class.is_classic() == classic;
        let head = if classic { self.idle_segments.head } else { self.idle.head };
        let start = if self.blocks.get(from).is_some_and(is_one) { from } else { head };
        let on = move |first: BlockId| {
            let some = |id: BlockId| (id != NONE).then_some(id);
            core::iter::successors(some(first), move |&id| some(self.blocks[id].list_next))
        };
        on(start).chain(on(head).take_while(move |&id| id != start))
    }

    /// The same where a choice begins; of a pool that it names, found without a look at others.
    pub(super) fn listed_for(&self, choice: Choice, classic: bool) -> impl Iterator<Item = BlockId> {
        let mut own = choice.pool.map_or_else(Vec::new, |pool| self.indexed_of(pool));
        own.retain(|&id| self.blocks[id].listed && self.blocks[id].class.is_classic() == classic);
        own.sort_by_key(|&id| (self.blocks[id].freed, self.blocks[id].addr));
        let of_all = if choice.pool.is_some() { 0 } else { usize::MAX };
        let from = choice.from[usize::from(classic)];
        own.into_iter().chain(self.listed(from, classic).take(of_all))
    }

    /// Whether the garbage collection threshold is about segments of a class.
    pub(super) fn is_collected(&self, class: Class) -> bool {
        class.is_classic_large() && !self.is_sourced(class)
    }

    /// Idle quiescent classic segments of classes that are `wanted`, of at least `bytes` bytes or all, longest
    /// idle first, but none that the others make up for.
    fn idle_segments_of(
        &mut self,
        choice: Choice,
        bytes: u64,
        wanted: impl Fn(&Self, Class) -> bool,
    ) -> Vec<BlockId> {
        let (mut found, mut ids) = (0, Vec::new());
        let (mut listed, mut look) = (self.listed_for(choice, true), choice.look);
        while found < bytes && look > 0 {
            let Some(id) = listed.next() else { break };
            look -= 1;
            let block = &self.blocks[id];
            let chosen = block.freed <= choice.since && wanted(self, block.class);
            if chosen && self.is_quiescent(id) {
                found += block.len;
                ids.push(id);
            }
        }
        let next = listed.next().unwrap_or(NONE);
        drop(listed);
        if choice.is_bounded() {
            self.decay_from[1] = next;
            return ids;
        }
        let mut over = found.saturating_sub(bytes);
        for at in (0..ids.len()).rev() {
            let len = self.blocks[ids[at]].len;
            if len <= over {
                over -= len;
                ids.remove(at);
            }
        }
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
