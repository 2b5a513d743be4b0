//! Taking blocks from the free index and giving them back: split, merge, stamp.

use super::Core;
use super::block::{BlockId, NONE, State};
use super::segment::Class;
use super::stream::StreamId;

impl Core {
    /// Whether no queued work of its home can touch the free block.
    #[inline]
    pub(crate) fn is_quiescent(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        self.streams[block.home as usize].passed(block.epoch)
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
        let id = self.find(class, len, align, stream, stream)?;
        Some(self.cut(id, class, len, align))
    }

    /// The same among the quiescent blocks of other streams. Looks at no more than a few streams.
    pub(crate) fn take_foreign(
        &mut self,
        class: Class,
        len: u64,
        align: u64,
        stream: StreamId,
    ) -> Option<BlockId> {
        /// Streams looked at before giving up; the rest is left to the moving of chunks.
        const STREAMS: usize = 64;
        let best = (0..self.streams.len() as StreamId)
            .filter(|&other| other != stream && self.streams[other as usize].bins[class.index()].is_some())
            .take(STREAMS)
            .filter_map(|other| self.find(class, len, align, other, stream))
            .min_by_key(|&id| (self.blocks[id].len, self.blocks[id].addr))?;
        let id = self.cut(best, class, len, align);
        self.blocks[id].home = stream;
        self.blocks[id].epoch = 0;
        Some(id)
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
                (true, false) => self.idle.remove(&mut self.blocks, id),
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
                self.idle.remove(&mut self.blocks, id);
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
        self.streams[stream as usize].out += 1;
    }

    /// Takes back a live block that its home stream last used in `epoch` or earlier (the open epoch,
    /// if none is given). Blocks that other streams used wait for them.
    #[inline]
    pub(crate) fn take_back(&mut self, id: BlockId, epoch: Option<u32>) {
        let (home, uses) = (self.blocks[id].home, self.blocks[id].uses);
        let stream = &mut self.streams[home as usize];
        let epoch = epoch.unwrap_or(stream.open);
        stream.stamped += 1;
        if stream.stamped >= self.config.epoch_frees {
            self.due = Some(home);
        }
        self.earn();
        self.blocks[id].epoch = epoch;
        if uses > 0 {
            return self.start_wait(id);
        }
        self.streams[home as usize].out -= 1;
        self.blocks[id].requested = 0;
        self.stamp(id);
        self.make_free(id);
    }

    /// Cuts a live block after `len` bytes; the rest is freed in the open epoch of its home.
    pub(crate) fn cut_tail(&mut self, id: BlockId, len: u64) {
        let tail = self.blocks.split(id, len);
        let home = self.blocks[id].home as usize;
        self.blocks[tail].epoch = self.streams[home].open;
        self.streams[home].stamped += 1;
        if self.blocks[id].uses > 0 {
            let users = self.recorded.get(&id).cloned().unwrap_or_default();
            self.blocks[tail].uses = users.len() as u32;
            self.recorded.insert(tail, users);
            let (bytes, small) = (self.blocks[tail].len, self.class_of(tail).is_small());
            self.streams[home].out += 1;
            self.tally.wait_only(small, bytes);
            return self.start_wait(tail);
        }
        self.stamp(tail);
        self.make_free(tail);
    }

    /// Ends the wait of a block whose last use is over.
    pub(crate) fn end_wait(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        debug_assert_eq!(block.state, State::Waiting);
        let (home, len, requested, segment) = (block.home, block.len, block.requested, block.segment);
        let small = self.segments[segment as usize].class.is_small();
        self.tally.wait_over(small, len, requested);
        self.streams[home as usize].out -= 1;
        self.blocks[id].requested = 0;
        self.stamp(id);
        self.make_free(id);
    }

    /// Puts a block that is in no list into the free index, merged with free neighbours of the same
    /// home or quiescent ones. Returns the block it became.
    pub(crate) fn make_free(&mut self, id: BlockId) -> BlockId {
        self.frees += 1;
        self.blocks[id].state = State::Free;
        self.blocks[id].freed = self.frees;
        let mut id = id;
        let prev = self.blocks[id].prev;
        if prev != NONE && self.blocks[prev].state == State::Free && self.unify(prev, id) {
            self.withdraw(prev);
            self.blocks.join(prev, id);
            self.blocks[prev].freed = self.frees;
            id = prev;
        }
        let next = self.blocks[id].next;
        if next != NONE && self.blocks[next].state == State::Free && self.unify(id, next) {
            self.withdraw(next);
            self.blocks.join(id, next);
        }
        self.bin(id);
        if self.holds_chunk(id) {
            self.idle.push(&mut self.blocks, id);
        }
        id
    }

    /// Puts a block that is in no list and has nothing mapped among the holes, merged with
    /// neighbouring holes. Returns the hole it became.
    pub(crate) fn make_hole(&mut self, id: BlockId) -> BlockId {
        let class = self.segments[self.blocks[id].segment as usize].class.index();
        self.blocks[id].state = State::Hole;
        let mut id = id;
        let prev = self.blocks[id].prev;
        if prev != NONE && self.blocks[prev].state == State::Hole {
            self.holes[class].remove(&mut self.blocks, prev);
            self.blocks.join(prev, id);
            id = prev;
        }
        let next = self.blocks[id].next;
        if next != NONE && self.blocks[next].state == State::Hole {
            self.holes[class].remove(&mut self.blocks, next);
            self.blocks.join(id, next);
        }
        self.holes[class].push(&mut self.blocks, id);
        id
    }

    /// The class of a block's segment.
    #[inline]
    pub(crate) fn class_of(&self, id: BlockId) -> Class {
        self.segments[self.blocks[id].segment as usize].class
    }

    /// Whether a block of a reserved segment has a whole chunk inside, which could be moved.
    #[inline]
    pub(crate) fn holds_chunk(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        if block.len < self.limits.granule || self.class_of(id).is_classic() {
            return false;
        }
        let (first, end) = self.whole_chunks(block.addr, block.end());
        first < end
    }

    /// The best free block of home `home` in which the request fits, for use by `stream`.
    #[inline]
    fn find(&self, class: Class, len: u64, align: u64, home: StreamId, stream: StreamId) -> Option<BlockId> {
        let bins = self.streams[home as usize].bins[class.index()].as_ref()?;
        let ordered = home == stream || !self.config.stream_order;
        if class.is_classic() {
            let oversize = self.config.max_split_size.unwrap_or(u64::MAX);
            let slack = self.config.max_non_split_rounding.unwrap_or(self.config.large_segment_size);
            return bins.find(&self.blocks, len, |id| {
                let block = &self.blocks[id];
                let fits_rule =
                    if len < oversize { block.len < oversize } else { block.len < len.saturating_add(slack) };
                fits_rule
                    && block.addr.next_multiple_of(align) + len <= block.end()
                    && (ordered || self.is_quiescent(id))
            });
        }
        if align <= UNIT_ALIGN && ordered {
            return bins.find(&self.blocks, len, |_| true);
        }
        bins.find(&self.blocks, len, |id| {
            let block = &self.blocks[id];
            block.addr.next_multiple_of(align) + len <= block.end() && (ordered || self.is_quiescent(id))
        })
    }

    /// Cuts what is asked for out of the free block that was found.
    #[inline]
    fn cut(&mut self, id: BlockId, class: Class, len: u64, align: u64) -> BlockId {
        let block = &self.blocks[id];
        let start = block.addr.next_multiple_of(align);
        let rest = block.end() - start - len;
        let whole = class == Class::CLASSIC_LARGE
            && (rest <= super::segment::SMALL_LIMIT || len >= self.config.max_split_size.unwrap_or(u64::MAX));
        let len = if whole { block.end() - start } else { len };
        self.carve(id, start, len)
    }

    /// Whether two free neighbours may become one; sets the home and epoch of both to the whole's.
    fn unify(&mut self, first: BlockId, second: BlockId) -> bool {
        let (a, b) = (&self.blocks[first], &self.blocks[second]);
        let (home, epoch) = if a.home == b.home {
            (a.home, a.epoch.max(b.epoch))
        } else if self.is_quiescent(first) {
            (b.home, b.epoch)
        } else if self.is_quiescent(second) {
            (a.home, a.epoch)
        } else {
            return false;
        };
        if a.home != home {
            self.rehome(first, home);
        }
        if self.blocks[second].home != home {
            self.rehome(second, home);
        }
        self.blocks[first].epoch = epoch;
        self.blocks[second].epoch = epoch;
        true
    }

    /// Changes the home of a free block, in the index if it is there.
    fn rehome(&mut self, id: BlockId, home: StreamId) {
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
    fn stamp(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let segment = &mut self.segments[block.segment as usize];
        if !segment.class.is_classic() {
            segment.stamp(block.addr, block.end(), self.limits.shift, block.home, block.epoch);
        }
    }

    #[inline]
    fn bin(&mut self, id: BlockId) {
        let (home, class) = (self.blocks[id].home, self.class_of(id));
        self.blocks[id].indexed = true;
        let bins = self.streams[home as usize].bins[class.index()].get_or_insert_default();
        bins.insert(&mut self.blocks, id);
        if class.is_classic() {
            self.count_inactive(id, true);
        }
    }

    #[inline]
    fn unbin(&mut self, id: BlockId) {
        let (home, class) = (self.blocks[id].home, self.class_of(id));
        self.blocks[id].indexed = false;
        if let Some(bins) = &mut self.streams[home as usize].bins[class.index()] {
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

    /// Lets a freed block wait for the streams it was recorded on.
    fn start_wait(&mut self, id: BlockId) {
        let streams = self.recorded.remove(&id).unwrap_or_default();
        debug_assert_eq!(streams.len() as u32, self.blocks[id].uses);
        self.blocks[id].state = State::Waiting;
        for user in streams {
            let state = &mut self.streams[user as usize];
            state.stamped += 1;
            let epoch = state.open;
            state.waiting.push_back((epoch, id));
            if state.stamped >= self.config.epoch_frees {
                self.due = Some(user);
            }
        }
        self.interest = self.interest.max(self.config.epoch_frees * 4);
    }

    /// Earns the right to close an epoch early, once in a while.
    #[inline]
    fn earn(&mut self) {
        self.earned += 1;
        self.interest = self.interest.saturating_sub(1);
        if self.earned >= self.config.epoch_frees {
            self.earned = 0;
            self.tokens = (self.tokens + 1).min(16);
        }
    }
}

/// Alignment every block has anyway.
const UNIT_ALIGN: u64 = super::UNIT;
