//! Where a request goes when no mapped block fits, and which chunks move there.
//!
//! ```text
//! run     |<- free, mapped ->|<---- hole ---->|<- free, mapped ->|
//! request      |<------------------------------>|                     missing: the hole's granules
//! ```
//!
//! A *run* is a stretch of neighbouring blocks that are free for the request's stream or holes. The
//! request goes where it needs the fewest new chunks; among equals a stretch that is not the far end of
//! a reservation, then the lowest address. Where it cannot have that many, whole chunks that lie idle there count as
//! needed, too: elsewhere they could be had for the rest. Chunks to fill it come from the far ends of idle blocks, and
//! only when no queued work can touch them.

use super::Core;
use super::block::{BlockId, NONE, State};
use super::plan::{Remap, Request, Run};
use super::pool::DEFAULT;
use super::segment::Class;
use super::stream::StreamId;
use crate::driver::PhysicalHandle;

/// Frees after which a block counts as not wanted for long; about a step of the larger traces.
const LONG: u64 = 8192;
/// Blocks looked at among those that became free last.
const LATEST: usize = 512;
/// Holes looked at before settling for the best so far.
const HOLES: usize = 512;

/// A place for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// First block of the run that is used.
    first: BlockId,
    /// Where the request's block begins.
    start: u64,
    /// Granules to be mapped.
    pub(crate) missing: u64,
    /// Chunks it takes that could be moved to another place; counted only for thrifty requests.
    idle: u64,
    /// Whether the run ends in the last hole of its reservation.
    far_end: bool,
}

impl Place {
    /// Chunks that it takes from all others.
    fn need(&self) -> u64 {
        self.missing + self.idle
    }
}

impl Core {
    /// The cheapest place for a request in the segments of its reserved class.
    pub(crate) fn place(&self, request: &Request) -> Option<Place> {
        // Wide chunks may need an alignment that the caller does not; without it they are done without.
        let wide = self.wide_for(request).filter(|wide| wide.align > request.align.max(self.limits.granule));
        let aligned = wide.and_then(|wide| self.place_aligned(request, wide.align));
        match aligned {
            Some(place) if !request.thrifty => Some(place),
            // Where memory is short they are not worth more of it.
            Some(place) => {
                self.place_aligned(request, request.align).filter(|any| any.need() < place.need()).or(aligned)
            }
            None => self.place_aligned(request, request.align),
        }
    }

    /// The same with the start of the block at a multiple of `align`.
    fn place_aligned(&self, request: &Request, align: u64) -> Option<Place> {
        let mut best: Option<Place> = None;
        let mut hole = self.pools[request.class].head;
        let mut seen = 0;
        while hole != NONE && (seen < HOLES || best.is_none() || request.thrifty) {
            for candidate in self.places_at(hole, request, align) {
                let key = |place: &Place| (place.need(), place.far_end, place.start);
                if best.is_none_or(|known| key(&candidate) < key(&known)) {
                    best = Some(candidate);
                }
            }
            hole = self.blocks[hole].list_next;
            seen += 1;
        }
        best
    }

    /// The place that begins where a live block ends, if everything there is free.
    pub(crate) fn place_behind(&self, id: BlockId, request: &Request) -> Option<Place> {
        self.place_from(self.blocks[id].next, request, request.align)
    }

    /// Marks the place's blocks busy and lists what must be mapped.
    pub(crate) fn occupy(&mut self, place: Place, request: &Request) -> Remap {
        let (granule, end) = (self.limits.granule, place.start + request.len);
        let mask = granule - 1;
        let mut missing = Vec::new();
        let mut epoch = 0;
        // Cut the run's first and last pieces so that what is left of them stays free.
        let mut id = place.first;
        let mut target = NONE;
        loop {
            let (addr, last, state) = (self.blocks[id].addr, self.blocks[id].end(), self.blocks[id].state);
            let piece = if state == State::Hole {
                let from = addr.max(place.start & !mask);
                let to = last.min((end + mask) & !mask);
                missing.extend((from..to).step_by(granule as usize));
                self.cut_hole(id, from, to)
            } else {
                let foreign = self.blocks[id].home != request.stream && !self.is_quiescent(id);
                let piece = self.carve(id, addr.max(place.start), last.min(end) - addr.max(place.start));
                if foreign {
                    // The stream waits on the device for the other: its own epochs cover that. The chunks have to say
                    // so, too, because an older stamp of the stream may hide what the other did before.
                    let open = self.stamp_open(request.stream).open;
                    (self.blocks[piece].home, self.blocks[piece].epoch) = (request.stream, open);
                    self.stamp(piece);
                }
                if self.blocks[piece].home == request.stream {
                    epoch = epoch.max(self.blocks[piece].epoch);
                }
                piece
            };
            self.blocks[piece].state = State::Busy;
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
        self.busy += 1;
        Remap {
            target,
            start: place.start,
            len: request.len,
            home: request.stream,
            epoch,
            missing,
            wide: Vec::new(),
            runs: Vec::new(),
            handles: Vec::new(),
            create: 0,
            grants: self.grants(),
        }
    }

    /// Takes up to `wanted` chunks from idle blocks for another place, and marks them busy: first those
    /// that nobody wanted for long, then those that became free last, then the rest.
    ///
    /// In a step that repeats, what was freed last is needed again last, and what a whole step did not
    /// touch is not needed at all. Taking simply what is longest idle made such steps move the same chunks
    /// to and fro; taking only what was freed last did not come to rest either (see the design).
    pub(crate) fn gather_to_move(&mut self, wanted: u64) -> Vec<Run> {
        if self.churn.is_restless() {
            return self.gather_whole(wanted);
        }
        let mut found: Vec<(BlockId, u64, u64)> = Vec::new();
        let mut left = wanted;
        let mut old = self.idle.head;
        while old != NONE && left > 0 && self.blocks[old].freed + LONG <= self.frees {
            self.movable(old, &mut left, &mut found);
            old = self.blocks[old].list_next;
        }
        // From here on, blocks from `old` to the tail.
        let mut latest = if old == NONE { NONE } else { self.idle.tail };
        let mut seen = 0;
        while latest != NONE && left > 0 && seen < LATEST {
            self.movable(latest, &mut left, &mut found);
            latest = if latest == old { NONE } else { self.blocks[latest].list_prev };
            seen += 1;
        }
        // Behind a slow device the latest blocks are all in use; then the oldest of the others are taken.
        while latest != NONE && left > 0 {
            self.movable(old, &mut left, &mut found);
            if old == latest {
                break;
            }
            old = self.blocks[old].list_next;
        }
        found.into_iter().map(|(id, addr, end)| self.seize(id, addr, end)).collect()
    }

    /// The same where sizes do not return: first blocks that are needed as a whole and were free for a while,
    /// longest idle first; then the smallest, so that the larger ones stay large.
    fn gather_whole(&mut self, wanted: u64) -> Vec<Run> {
        /// Frees after which a block is no longer expected to grow together with its neighbours.
        const WHILE: u64 = 256;
        let mut found: Vec<(BlockId, u64, u64)> = Vec::new();
        let mut left = wanted;
        let mut others: Vec<(u64, BlockId)> = Vec::new();
        let mut id = self.idle.head;
        while id != NONE && left > 0 {
            let block = &self.blocks[id];
            let (first, end) = self.whole_chunks(block.addr, block.end());
            let chunks = (end - first) >> self.limits.shift;
            if chunks <= wanted && block.freed + WHILE < self.frees {
                self.movable(id, &mut left, &mut found);
            } else {
                others.push((chunks, id));
            }
            id = block.list_next;
        }
        // Among equals the sort keeps the order: longest idle first.
        others.sort_by_key(|&(chunks, _)| chunks);
        for (_, id) in others {
            if left == 0 {
                break;
            }
            self.movable(id, &mut left, &mut found);
        }
        found.into_iter().map(|(id, addr, end)| self.seize(id, addr, end)).collect()
    }

    /// How many chunks could be moved now, up to `wanted`.
    pub(crate) fn count_movable(&self, wanted: u64) -> u64 {
        let mut left = wanted;
        let mut id = self.idle.head;
        let mut found = Vec::new();
        while id != NONE && left > 0 {
            self.movable(id, &mut left, &mut found);
            id = self.blocks[id].list_next;
        }
        wanted - left
    }

    /// Makes a busy block free memory, holes, or both, as the chunks behind it are now.
    pub(crate) fn settle(&mut self, target: BlockId, home: StreamId, epoch: u32) {
        let mut id = target;
        let end = self.blocks[target].end();
        loop {
            let (addr, segment) = (self.blocks[id].addr, self.blocks[id].segment as usize);
            let shift = self.limits.shift;
            let backed = self.segments[segment].chunk(addr, shift).is_some();
            let mut to = (addr | (self.limits.granule - 1)) + 1;
            while to < end && self.segments[segment].chunk(to, shift).is_some() == backed {
                to += self.limits.granule;
            }
            let rest = if to < end { self.blocks.split(id, to - addr) } else { NONE };
            if backed {
                self.blocks[id].home = home;
                self.blocks[id].epoch = epoch;
                self.make_free(id);
            } else {
                self.make_hole(id);
            }
            if rest == NONE {
                return;
            }
            id = rest;
        }
    }

    /// The ways to use a hole: begin with the free block before it, or end with the one behind.
    fn places_at(&self, hole: BlockId, request: &Request, align: u64) -> impl Iterator<Item = Place> {
        let before = self.blocks[hole].prev;
        let first = if before != NONE && self.is_usable(before, request.stream) { before } else { hole };
        let behind = self.blocks[hole].next;
        let ends = behind != NONE && self.is_usable(behind, request.stream);
        let mut forward = self.place_from(first, request, align);
        if forward.is_none() && first != hole {
            // An aligned block may begin behind the free one.
            forward = self.place_from(hole, request, align);
        }
        let backward = if ends { self.place_to(behind, request, align) } else { None };
        [forward, backward].into_iter().flatten()
    }

    /// The place that begins where a block does.
    pub(crate) fn place_from(&self, first: BlockId, request: &Request, align: u64) -> Option<Place> {
        let start = self.blocks.get(first)?.addr.next_multiple_of(align);
        let end = start + request.len;
        let uncut = self.leaves_whole(request);
        let (mut missing, mut idle) = (0, 0);
        let mut far_end = false;
        let mut id = first;
        loop {
            if id == NONE {
                return None;
            }
            let block = &self.blocks[id];
            if block.state == State::Hole {
                missing += self.granules(block.addr.max(start), block.end().min(end));
                far_end = block.next == NONE;
            } else if !self.is_usable(id, request.stream)
                || uncut && (block.addr < start || block.end() > end)
            {
                return None;
            } else if request.thrifty {
                idle += self.idle_inside(id, start, end);
            }
            if block.end() >= end {
                let first = if start >= self.blocks[first].end() { return None } else { first };
                return Some(Place { first, start, missing, idle, far_end });
            }
            id = block.next;
        }
    }

    fn place_to(&self, last: BlockId, request: &Request, align: u64) -> Option<Place> {
        let end = self.blocks[last].end();
        let start = end.checked_sub(request.len)? & !(align - 1);
        let uncut = self.leaves_whole(request);
        if uncut && start + request.len < end {
            return None;
        }
        let (mut missing, mut idle) = (0, 0);
        let mut id = last;
        loop {
            if id == NONE {
                return None;
            }
            let block = &self.blocks[id];
            if block.state == State::Hole {
                missing += self.granules(block.addr.max(start), block.end());
            } else if !self.is_usable(id, request.stream) || uncut && block.addr < start {
                return None;
            } else if request.thrifty {
                idle += self.idle_inside(id, start, start + request.len);
            }
            if block.addr <= start {
                return Some(Place { first: id, start, missing, idle, far_end: false });
            }
            id = block.prev;
        }
    }

    /// Whether free blocks are used whole or not at all: in pools that do not split, but for buffers, which have their
    /// segments for themselves.
    fn leaves_whole(&self, request: &Request) -> bool {
        let class = request.class;
        class.pool() != DEFAULT && !class.is_growing() && self.pools.get(class.pool()).rules.no_split
    }

    /// Chunks of a free block that could be had for another place if nothing were put at `start..end`.
    fn idle_inside(&self, id: BlockId, start: u64, end: u64) -> u64 {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let block = &self.blocks[id];
        let (first, last) = self.whole_chunks(block.addr, block.end());
        let (mut at, last) = (first.max(start & !(granule - 1)), last.min(end.next_multiple_of(granule)));
        // What is in no list stays where it is: a graph holds addresses of its pool.
        if at >= last || !block.listed {
            return 0;
        }
        let wide = &self.segments[block.segment as usize].wide;
        if wide.is_empty() && self.is_quiescent(id) {
            return (last - at) >> shift;
        }
        let may_move = self.mover(id);
        let mut idle = 0;
        while at < last {
            let chunk =
                wide.range(..=at).next_back().map(|(&first, &span)| (first, u64::from(span) << shift));
            match chunk.filter(|&(first, bytes)| at < first + bytes) {
                // A wide chunk goes whole or not at all.
                Some((first, bytes)) => {
                    let whole = first >= block.addr && first + bytes <= block.end() && self.is_quiescent(id);
                    idle += if whole { bytes >> shift } else { 0 };
                    at = first + bytes;
                }
                None => {
                    idle += u64::from(may_move(at));
                    at += granule;
                }
            }
        }
        idle
    }

    /// Granules that `from..to`, which lies in one hole, touches.
    fn granules(&self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let shift = self.limits.shift;
        ((to - 1) >> shift) - (from >> shift) + 1
    }

    /// Whether a block is free and may be used by the stream without waiting.
    fn is_usable(&self, id: BlockId, stream: StreamId) -> bool {
        let block = &self.blocks[id];
        block.state == State::Free && self.is_open_to(id, stream)
    }

    /// Cuts `from..to`, at granule borders, out of a hole; what is left stays holes.
    fn cut_hole(&mut self, id: BlockId, from: u64, to: u64) -> BlockId {
        let class = self.class_of(id);
        self.pools[class].remove(&mut self.blocks, id);
        let mut target = id;
        if from > self.blocks[id].addr {
            target = self.blocks.split(id, from - self.blocks[id].addr);
            self.pools[class].push(&mut self.blocks, id);
        }
        if to < self.blocks[target].end() {
            let tail = self.blocks.split(target, to - from);
            self.pools[class].push(&mut self.blocks, tail);
        }
        target
    }

    /// Adds stretches of chunks of an idle block that may move, from its far end.
    pub(crate) fn movable(&self, id: BlockId, left: &mut u64, found: &mut Vec<(BlockId, u64, u64)>) {
        let block = &self.blocks[id];
        let granule = self.limits.granule;
        let (first, end) = self.whole_chunks(block.addr, block.end());
        let wide = !self.segments[block.segment as usize].wide.is_empty();
        if self.is_quiescent(id) && !wide {
            let chunks = ((end - first) / granule).min(*left);
            found.push((id, end - chunks * granule, end));
            *left -= chunks;
            return;
        }
        let may_move = self.mover(id);
        let mut stop = end;
        while stop > first && *left > 0 {
            let mut start = stop;
            while start > first && *left > 0 && may_move(start - granule) {
                start -= granule;
                *left -= 1;
            }
            if start < stop {
                found.push((id, start, stop));
            }
            stop = start.max(first + granule) - granule;
        }
    }

    /// Tells of the chunk at an address inside a free block whether it may move.
    pub(super) fn mover(&self, id: BlockId) -> impl Fn(u64) -> bool {
        let block = &self.blocks[id];
        let home = &self.streams[block.home as usize];
        let segment = &self.segments[block.segment as usize];
        let (whole, wide) = (home.passed(block.epoch), !segment.wide.is_empty());
        move |addr| {
            let stamp = segment.stamp(addr, self.limits.shift);
            // A wide chunk moves whole or not at all.
            (whole || stamp.stream == block.home && home.passed(stamp.epoch))
                && !(wide && segment.is_wide(addr, self.limits.shift))
        }
    }

    /// Takes a stretch of whole chunks out of a free block and marks it busy. Stretches of one block
    /// are given from its far end, so that the block itself keeps its place.
    pub(crate) fn seize(&mut self, id: BlockId, addr: u64, end: u64) -> Run {
        let target = self.carve(id, addr, end - addr);
        self.blocks[target].state = State::Busy;
        self.busy += 1;
        let segment = &self.segments[self.blocks[target].segment as usize];
        let chunks = (addr..end).step_by(self.limits.granule as usize);
        let handles = chunks.map(|at| segment.chunk(at, self.limits.shift).unwrap_or(PhysicalHandle(0)));
        Run { block: target, addr, span: 1, handles: handles.collect() }
    }

    /// The bytes of address space to ask for when a class has no room: the wish and the least.
    pub(crate) fn reservation_for(&self, class: Class, len: u64, align: u64) -> (u64, u64) {
        /// What is reserved for small requests at a time, bytes.
        const SMALL: u64 = 8 << 30;
        /// What a pool other than the default one reserves first, bytes.
        const FIRST: u64 = 4 << 30;
        /// The same for small requests.
        const FIRST_OF_SMALL: u64 = 1 << 30;
        let least = (len + align.max(self.limits.granule)).next_multiple_of(self.limits.granule);
        let wish = if self.config.reservation > 0 {
            self.config.reservation
        } else {
            let most = if class.is_small() { SMALL } else { 128 << 30 };
            let usual = self.limits.total.next_multiple_of(1 << 30).clamp(1 << 30, most);
            if class.pool() == DEFAULT {
                usual
            } else {
                // There may be many pools: each begins small and doubles what it has.
                let first = if class.is_small() { FIRST_OF_SMALL } else { FIRST };
                self.pools.get(class.pool()).address_space.clamp(first, most).min(usual)
            }
        };
        (wish.next_multiple_of(self.limits.granule).max(least), least)
    }
}
