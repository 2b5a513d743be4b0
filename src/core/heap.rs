//! Taking blocks from the free index and giving them back: split, merge, stamp.

use smallvec::SmallVec;

use super::Core;
use super::block::{BlockId, NONE, State};
use super::epochs::Ids;
use super::pool::DEFAULT;
use super::segment::{Class, Stamp};
use super::stream::{StreamId, StreamState};

/// Other streams looked at before giving up; the rest is left to the moving of chunks, and to `take_any`.
const STREAMS: usize = 64;

impl Core {
    /// Whether no queued work of its home can touch the free block.
    #[inline]
    pub(crate) fn is_quiescent(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        self.streams[block.home as usize].passed(block.epoch)
    }

    /// Whether a free block may be used by the stream without the host waiting.
    #[inline]
    pub(crate) fn is_open_to(&self, id: BlockId, stream: StreamId) -> bool {
        let block = &self.blocks[id];
        block.home == stream
            || !self.config.stream_order
            || self.is_quiescent(id)
            || self.streams[stream as usize].is_behind(block.home, block.epoch)
    }

    /// First granule border at or after `addr`, and last at or before `end`: the whole chunks inside.
    #[inline]
    pub(crate) fn whole_chunks(&self, addr: u64, end: u64) -> (u64, u64) {
        let mask = self.limits.granule - 1;
        ((addr + mask) & !mask, end & !mask)
    }

    /// A free block of `class` for `stream`, taken out of the index, of exactly `len` bytes at
    /// a multiple of `align`; in classic segments it may be longer.
    #[inline]
    pub(crate) fn take(&mut self, class: Class, len: u64, align: u64, stream: StreamId) -> Option<BlockId> {
        let id = self.find::<false>(class, len, align, stream, stream)?;
        Some(self.cut(id, class, len, align))
    }

    /// The same among blocks of other streams that are open to this one. Looks at no more than a few streams.
    pub(crate) fn take_foreign(
        &mut self,
        class: Class,
        len: u64,
        align: u64,
        stream: StreamId,
    ) -> Option<BlockId> {
        let others = self.others_with_free(class, stream);
        let found = others.iter().filter_map(|&other| self.find::<false>(class, len, align, other, stream));
        let best = self.smallest(found)?;
        Some(self.cut(best, class, len, align))
    }

    /// The same of any stream, this one too, where memory is short: looks at all streams and all blocks, so that none
    /// that would do is passed over.
    pub(crate) fn take_any(
        &mut self,
        class: Class,
        len: u64,
        align: u64,
        stream: StreamId,
    ) -> Option<BlockId> {
        let homes = self.homes_of(class);
        let found = homes.filter_map(|home| self.find::<true>(class, len, align, home, stream));
        let best = self.smallest(found)?;
        Some(self.cut(best, class, len, align))
    }

    /// Some streams other than this one that have free blocks of a class. Those that have none any more are met once for each
    /// time they got one.
    fn others_with_free(&mut self, class: Class, stream: StreamId) -> SmallVec<[StreamId; STREAMS]> {
        let (mut with, mut without) = (SmallVec::new(), Ids::new());
        for other in self.homes_of(class) {
            match self.streams[other as usize].bins.get(class) {
                _ if other == stream => {}
                Some(bins) if bins.count() > 0 => with.push(other),
                _ => without.push(other),
            }
            if with.len() == STREAMS {
                break;
            }
        }
        for home in without {
            self.pools.get_mut(class.pool()).homes[class.kind()].remove(home);
            if let Some(bins) = self.streams[home as usize].bins.get_mut(class) {
                bins.listed = false;
            }
        }
        with
    }

    /// The streams that may have free blocks of a class.
    pub(super) fn homes_of(&self, class: Class) -> impl Iterator<Item = StreamId> {
        self.pools.get(class.pool()).homes[class.kind()].iter()
    }

    /// The smallest of these blocks, the lower address among equals.
    fn smallest(&self, ids: impl Iterator<Item = BlockId>) -> Option<BlockId> {
        ids.min_by_key(|&id| (self.blocks[id].len, self.blocks[id].addr))
    }

    /// Cuts `start..start + len` out of a free indexed block; what is left stays free.
    pub(crate) fn carve(&mut self, id: BlockId, start: u64, len: u64) -> BlockId {
        self.unbin(id);
        let mut target = id;
        if start > self.blocks[id].addr {
            target = self.blocks.split(id, start - self.blocks[id].addr);
        }
        let mut tail = NONE;
        if len < self.blocks[target].len {
            tail = self.blocks.split(target, len);
        }
        let listed = self.blocks[id].listed;
        if target == id {
            match (listed, tail != NONE && self.holds_chunk(tail)) {
                (true, true) => self.idle.replace(&mut self.blocks, id, tail),
                (true, false) => self.unlist(id),
                (false, _) => {}
            }
        } else {
            let head_holds = self.holds_chunk(id);
            if listed && tail != NONE && self.holds_chunk(tail) {
                if head_holds {
                    // Both remain idle for as long as the whole was; the order among them is free.
                    self.idle.insert_after(&mut self.blocks, id, tail);
                } else {
                    self.idle.replace(&mut self.blocks, id, tail);
                }
            } else if listed && !head_holds {
                self.unlist(id);
            }
            self.bin(id);
        }
        if tail != NONE {
            self.bin(tail);
        }
        target
    }

    /// Takes a whole free block out of the index and the idle list.
    pub(crate) fn withdraw(&mut self, id: BlockId) {
        self.unbin(id);
        if self.blocks[id].listed {
            self.unlist(id);
        }
    }

    /// Takes a free block out of the list of idle memory it is in.
    pub(crate) fn unlist(&mut self, id: BlockId) {
        let class = self.blocks[id].class;
        if class.is_classic() {
            self.collectable -= usize::from(self.is_collected(class));
            self.idle_segments.remove(&mut self.blocks, id);
        } else {
            self.idle.remove(&mut self.blocks, id);
        }
    }

    /// Marks a taken block as handed out.
    #[inline]
    pub(crate) fn hand_out(&mut self, id: BlockId, requested: u64, stream: StreamId) {
        let block = &mut self.blocks[id];
        block.state = State::Live;
        block.requested = requested;
        block.home = stream;
        block.uses = 0;
        let (class, len) = (block.class, block.len as i64);
        self.streams[stream as usize].out += 1;
        if class.pool() != DEFAULT {
            let pool = self.pools.get_mut(class.pool());
            pool.allocated.add(class.is_small(), len);
            pool.active.add(class.is_small(), len);
        }
    }

    /// Takes back a live block that its home stream last used in `epoch` or earlier (the open epoch,
    /// if none is given). Blocks that other streams used wait for them.
    #[inline]
    pub(crate) fn take_back(&mut self, id: BlockId, epoch: Option<u32>) {
        let (home, uses) = (self.blocks[id].home, self.blocks[id].uses);
        let epoch = epoch.unwrap_or(self.streams[home as usize].open);
        self.weigh(home, self.blocks[id].len);
        self.earn();
        self.blocks[id].epoch = epoch;
        (self.blocks[id].lent, self.blocks[id].claimed) = (false, false);
        self.count_freed(id, uses > 0);
        if uses > 0 {
            return self.start_wait(id);
        }
        self.streams[home as usize].out -= 1;
        self.blocks[id].requested = 0;
        self.stamp(id);
        self.make_free(id);
    }

    /// Cuts a live block after `len` bytes; the rest is freed in the open epoch of its home. Whether it waits for
    /// other streams, as a block of its own: then there is one more active block than before.
    pub(crate) fn cut_tail(&mut self, id: BlockId, len: u64) -> bool {
        let tail = self.blocks.split(id, len);
        let home = self.blocks[id].home as usize;
        self.blocks[tail].epoch = self.streams[home].open;
        self.weigh(home as StreamId, self.blocks[tail].len);
        let waits = self.blocks[id].uses > 0 && !self.is_at_rest(id);
        self.count_freed(tail, waits);
        if waits {
            let users = self.recorded.get(&id).cloned().unwrap_or_default();
            for &user in &users {
                self.streams[user as usize].recorded += 1;
            }
            self.blocks[tail].uses = users.len() as u32;
            self.recorded.insert(tail, users);
            let (bytes, small) = (self.blocks[tail].len, self.class_of(tail).is_small());
            self.streams[home].out += 1;
            self.tally.wait_only(small, bytes, bytes);
            self.start_wait(tail);
        } else {
            self.stamp(tail);
            self.make_free(tail);
        }
        waits
    }

    /// Puts a block that is in no list into the free index, merged with free neighbours of the same
    /// home or quiescent ones. Returns the block it became.
    pub(crate) fn make_free(&mut self, id: BlockId) -> BlockId {
        self.frees += 1;
        self.blocks[id].state = State::Free;
        self.blocks[id].freed = self.frees;
        if self.is_asleep(self.blocks[id].class.pool()) {
            return id;
        }
        let mut id = id;
        let prev = self.blocks[id].prev;
        if prev != NONE && self.blocks[prev].state == State::Free && self.unify(prev, id) {
            self.withdraw(prev);
            self.blocks.join(prev, id);
            self.blocks[prev].freed = self.frees;
            id = prev;
        }
        // A neighbour of another home takes this one's, so its own neighbour may be next.
        loop {
            let next = self.blocks[id].next;
            if next == NONE || self.blocks[next].state != State::Free || !self.unify(id, next) {
                break;
            }
            self.withdraw(next);
            self.blocks.join(id, next);
        }
        self.bin(id);
        self.list_idle(id);
        id
    }

    /// Puts a block that is in no list and has nothing mapped among the holes, merged with
    /// neighbouring holes. Returns the hole it became.
    pub(crate) fn make_hole(&mut self, id: BlockId) -> BlockId {
        let class = self.blocks[id].class;
        self.blocks[id].state = State::Hole;
        let mut id = id;
        let prev = self.blocks[id].prev;
        if prev != NONE && self.blocks[prev].state == State::Hole {
            self.pools[class].remove(&mut self.blocks, prev);
            self.blocks.join(prev, id);
            id = prev;
        }
        let next = self.blocks[id].next;
        if next != NONE && self.blocks[next].state == State::Hole {
            self.pools[class].remove(&mut self.blocks, next);
            self.blocks.join(id, next);
        }
        self.pools[class].push(&mut self.blocks, id);
        id
    }

    /// The class of a block's segment.
    #[inline]
    pub(crate) fn class_of(&self, id: BlockId) -> Class {
        self.blocks[id].class
    }

    /// Puts a free block that is in no list into the list of idle memory it belongs to, if any.
    #[inline]
    pub(crate) fn list_idle(&mut self, id: BlockId) {
        if self.holds_chunk(id) {
            self.idle.push(&mut self.blocks, id);
        } else if self.is_idle_segment(id) {
            // Its age is compared with all frees, those of the front too.
            self.blocks[id].freed = self.all_frees() + self.unseen;
            self.idle_segments.push(&mut self.blocks, id);
            self.collectable += usize::from(self.is_collected(self.class_of(id)));
        }
    }

    /// Whether a free block is all of a classic segment, which could be given back.
    pub(crate) fn is_idle_segment(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        block.class.is_classic()
            && block.prev == NONE
            && block.next == NONE
            && !self.pools.get(block.class.pool()).is_fixed()
    }

    /// Whether a block of a reserved segment has a whole chunk inside, which could be moved.
    #[inline]
    pub(crate) fn holds_chunk(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        if block.len < self.limits.granule || block.class.is_classic() {
            return false;
        }
        if block.class.pool() != DEFAULT && self.pools.get(block.class.pool()).is_fixed() {
            return false;
        }
        let (first, end) = self.whole_chunks(block.addr, block.end());
        first < end
    }

    /// The best free block of home `home` in which the request fits, for use by `stream`.
    #[inline]
    fn find<const ALL: bool>(
        &self,
        class: Class,
        len: u64,
        align: u64,
        home: StreamId,
        stream: StreamId,
    ) -> Option<BlockId> {
        let bins = self.streams[home as usize].bins.get(class)?;
        let ordered = home == stream;
        let uncut = class.pool() != DEFAULT && self.pools.get(class.pool()).rules.no_split;
        if class.is_classic() || uncut {
            let oversize = if uncut { 0 } else { self.config.max_split_size.unwrap_or(u64::MAX) };
            let slack = self.config.max_non_split_rounding.unwrap_or(self.config.large_segment_size);
            return bins.find::<ALL>(&self.blocks, len, |id| {
                let block = &self.blocks[id];
                let fits_rule =
                    if len < oversize { block.len < oversize } else { block.len < len.saturating_add(slack) };
                fits_rule
                    && block.addr.next_multiple_of(align) + len <= block.end()
                    && (ordered || self.is_open_to(id, stream))
            });
        }
        if align <= UNIT_ALIGN && ordered {
            return bins.find::<ALL>(&self.blocks, len, |_| true);
        }
        bins.find::<ALL>(&self.blocks, len, |id| {
            let block = &self.blocks[id];
            block.addr.next_multiple_of(align) + len <= block.end()
                && (ordered || self.is_open_to(id, stream))
        })
    }

    /// Cuts what is asked for out of the free block that was found.
    #[inline]
    pub(crate) fn cut(&mut self, id: BlockId, class: Class, len: u64, align: u64) -> BlockId {
        let block = &self.blocks[id];
        let start = block.addr.next_multiple_of(align);
        let rest = block.end() - start - len;
        let uncut = class.pool() != DEFAULT && self.pools.get(class.pool()).rules.no_split;
        let whole = uncut
            || class.is_classic_large()
                // Of host memory every byte is locked: what is left is cut off, and merged again later.
                && self.limits.host_page.is_none()
                && (rest <= super::segment::SMALL_LIMIT && len > super::segment::SMALL_LIMIT
                    || len >= self.config.max_split_size.unwrap_or(u64::MAX));
        let len = if whole { block.end() - start } else { len };
        self.carve(id, start, len)
    }

    /// Changes the home of a free block, in the index if it is there.
    pub(super) fn rehome(&mut self, id: BlockId, home: StreamId) {
        let indexed = self.blocks[id].indexed;
        if indexed {
            self.unbin(id);
        }
        self.blocks[id].home = home;
        if indexed {
            self.bin(id);
        }
    }

    #[inline]
    pub(super) fn stamp(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let segment = &mut self.segments[block.segment as usize];
        if !segment.class.is_classic() {
            let open = self.streams[block.home as usize].open;
            let stamp = Stamp { stream: block.home, epoch: block.epoch };
            segment.set_stamps(block.addr, block.end(), self.limits.shift, stamp, open);
        }
    }

    #[inline]
    fn bin(&mut self, id: BlockId) {
        let (home, class) = (self.blocks[id].home, self.class_of(id));
        self.blocks[id].indexed = true;
        let state = &mut self.streams[home as usize];
        state.free_bytes += self.blocks[id].len;
        match state.bins.get_mut(class) {
            Some(bins) if bins.listed => bins.insert(&mut self.blocks, id),
            _ => self.bin_first(id, class, home),
        }
        if class.is_classic() {
            self.count_inactive(id, true);
        }
    }

    /// Puts the first free block of a class and home, since that was last found to have none, into bins of their own.
    #[cold]
    fn bin_first(&mut self, id: BlockId, class: Class, home: StreamId) {
        let pool = self.pools.get_mut(class.pool());
        pool.binned[class.kind()].insert(home);
        pool.homes[class.kind()].reach(home as usize + 1);
        pool.homes[class.kind()].insert(home);
        let bins = self.streams[home as usize].bins.get_or_make(class);
        bins.listed = true;
        bins.insert(&mut self.blocks, id);
    }

    #[inline]
    fn unbin(&mut self, id: BlockId) {
        let (home, class) = (self.blocks[id].home, self.class_of(id));
        self.blocks[id].indexed = false;
        let state = &mut self.streams[home as usize];
        state.free_bytes -= self.blocks[id].len;
        if let Some(bins) = state.bins.get_mut(class) {
            bins.remove(&mut self.blocks, id);
        }
        if class.is_classic() {
            self.count_inactive(id, false);
        }
    }

    /// Keeps the statistics of free pieces of classic segments.
    fn count_inactive(&mut self, id: BlockId, up: bool) {
        let block = &self.blocks[id];
        let segment = &self.segments[block.segment as usize];
        if block.len == segment.len {
            return;
        }
        let (small, len) = (segment.class.is_small(), block.len as i64);
        if up {
            self.tally.inactive.add(small, 1);
            self.tally.inactive_bytes.add(small, len);
        } else {
            self.tally.inactive.sub(small, 1);
            self.tally.inactive_bytes.sub(small, len);
        }
    }

    /// Counts a block of another pool than the default one that is freed; `waits` says for streams.
    fn count_freed(&mut self, id: BlockId, waits: bool) {
        let (class, len) = (self.blocks[id].class, self.blocks[id].len as i64);
        if class.pool() != DEFAULT {
            let pool = self.pools.get_mut(class.pool());
            pool.allocated.sub(class.is_small(), len);
            if !waits {
                pool.active.sub(class.is_small(), len);
            }
        }
    }

    /// Whether a block of so many bytes, where that one is, counts as too large to be split.
    pub(crate) fn is_oversize(&self, id: BlockId, len: u64) -> bool {
        self.class_of(id).is_classic() && len >= self.config.max_split_size.unwrap_or(u64::MAX)
    }

    /// Counts what a live block has gained since it had `old` bytes, for its pool if that is not the default one.
    pub(crate) fn count_grown(&mut self, id: BlockId, old: u64) {
        let (class, more) = (self.blocks[id].class, (self.blocks[id].len - old) as i64);
        if self.is_oversize(id, self.blocks[id].len) && !self.is_oversize(id, old) {
            self.tally.oversize_allocations.add(class.is_small(), 1);
        }
        if class.pool() != DEFAULT {
            let pool = self.pools.get_mut(class.pool());
            pool.allocated.add(class.is_small(), more);
            pool.active.add(class.is_small(), more);
        }
    }

    /// Counts a block of another pool that has waited long enough.
    pub(super) fn count_passed(&mut self, id: BlockId) {
        let (class, len) = (self.blocks[id].class, self.blocks[id].len as i64);
        if class.pool() != DEFAULT {
            self.pools.get_mut(class.pool()).active.sub(class.is_small(), len);
        }
    }

    /// Counts physical memory put behind, or taken from, a segment of a class.
    pub(crate) fn count_reserved(&mut self, class: Class, bytes: i64) {
        let small = class.is_small();
        let of_pool = (class.pool() != DEFAULT).then(|| &mut self.pools.get_mut(class.pool()).reserved);
        for gauge in [Some(&mut self.tally.reserved), of_pool].into_iter().flatten() {
            if bytes >= 0 {
                gauge.add(small, bytes);
            } else {
                gauge.sub(small, -bytes);
            }
        }
    }

    /// Counts something that is stamped with the open epoch of a stream.
    #[inline]
    pub(super) fn stamp_open(&mut self, id: StreamId) -> &mut StreamState {
        let state = &mut self.streams[id as usize];
        if state.stamped == 0 {
            self.active.insert(id);
        }
        state.stamped += 1;
        state
    }

    /// Notes that bytes were stamped with the open epoch of a stream.
    #[inline]
    pub(super) fn weigh(&mut self, id: StreamId, bytes: u64) {
        self.stamp_open(id).stamped_bytes += bytes;
        if self.heaviest != id {
            let weight = self.streams[id as usize].stamped_bytes;
            if self.streams[self.heaviest as usize].stamped_bytes < weight {
                self.heaviest = id;
            }
        }
    }
}

/// Alignment every block has anyway.
const UNIT_ALIGN: u64 = super::UNIT;
