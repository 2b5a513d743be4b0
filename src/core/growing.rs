//! Segments of growing buffers: one reservation each, with one live block at its start.
//!
//! ```text
//! reservation  |<----------------------- the buffer's maximum ----------------------->|
//! blocks       |<- live: the buffer ->|<- free: cut off ->|<--------- hole ---------->|
//! chunks       |  h7  |  h2  |  h31   |  h5   |           |                           |
//! ```
//!
//! Such a segment is of a *growing* class, in which no request is ever placed, so the rest of it is the
//! buffer's alone. What is cut off is free in stream order like any block: the buffer takes it back
//! when it grows again, and its chunks are idle for everybody until then.
//!
//! A segment without an owner is *vacant*: the next buffer of about that size takes it over, with the chunks that
//! are still in it, so that buffers that come and go cost no driver calls. It is released when address
//! space is short, when too much of it is vacant, and when the cache is emptied.

use std::collections::BTreeMap;

use super::Core;
use super::block::{BlockId, State};
use super::epochs::Ids;
use super::place::Place;
use super::plan::{GiveBack, Request, Step};
use super::pool::{DEFAULT, PoolIndex};
use super::segment::Class;
use super::stream::StreamId;

/// Address space kept in vacant segments, bytes; above it each one that is added lets one go.
const MOST_VACANT: u64 = 256 << 30;

/// Growing segments without an owner.
#[derive(Debug, Default)]
pub(crate) struct Vacant {
    /// By pool and bytes of address space; the one left last is taken first.
    segments: BTreeMap<(PoolIndex, u64), Vec<u32>>,
    /// Bytes of address space in all of them.
    bytes: u64,
}

impl Core {
    /// Bytes of whole chunks for a buffer of `bytes` bytes and the pad, or nothing beyond what any device has.
    pub(crate) fn growing_len(&self, bytes: u64) -> Option<u64> {
        let with_pad = if bytes == 0 { 0 } else { self.block_end(bytes)? };
        Some(with_pad.next_multiple_of(self.limits.granule))
    }

    /// The most bytes a buffer in a segment can have.
    pub(crate) fn growing_most(&self, segment: u32) -> u64 {
        self.segments[segment as usize].len - self.limits.pad
    }

    /// The live block of a growing segment; none while the buffer is empty.
    pub(crate) fn buffer_block(&self, segment: u32) -> Option<BlockId> {
        let first = self.segments[segment as usize].first;
        (self.blocks[first].state == State::Live && !self.blocks[first].claimed).then_some(first)
    }

    /// Joins what was handed out behind the buffer's block to it; the block that both are.
    pub(crate) fn attach(&mut self, segment: u32, more: BlockId) -> BlockId {
        let first = self.segments[segment as usize].first;
        if first != more {
            // One live block less than was handed out.
            self.streams[self.blocks[more].home as usize].out -= 1;
            self.blocks[first].requested += self.blocks[more].requested;
            self.blocks.join(first, more);
        }
        first
    }

    /// The place for a request: behind the block that it extends, or the cheapest in its class.
    pub(crate) fn place_for(&self, request: &Request) -> Option<Place> {
        match request.extends {
            Some(segment) => self.place_in(segment, request),
            None => self.place(request),
        }
    }

    /// The place right behind the buffer's block, if nothing there is in use by anybody but its stream.
    fn place_in(&self, segment: u32, request: &Request) -> Option<Place> {
        self.place_from(self.rest_of(segment), request, request.align)
    }

    /// What lies behind the buffer's block, if it is mapped already and open to the request's stream.
    pub(crate) fn take_behind(&mut self, segment: u32, request: &Request) -> Option<BlockId> {
        if self.is_asleep(request.class.pool()) {
            return None;
        }
        let place = self.place_in(segment, request).filter(|place| place.missing == 0)?;
        let remap = self.occupy(place, request);
        self.busy -= 1;
        Some(self.cut_ready(&remap))
    }

    /// What to do so that the place behind the buffer's block, which other streams or a running plan have
    /// in use, becomes free for it: unlike other requests it cannot go elsewhere.
    pub(crate) fn clear_way(&mut self, segment: u32, request: &mut Request) -> Option<Step> {
        let mut others = Ids::new();
        for id in self.behind(segment, request.len) {
            let block = &self.blocks[id];
            match block.state {
                State::Busy => return Some(Step::Pause),
                State::Waiting => {
                    others.push(block.home);
                    others.extend(self.waits[&id].iter().map(|&(user, _)| user));
                }
                State::Free if !self.is_open_to(id, request.stream) => others.push(block.home),
                _ => {}
            }
        }
        if !request.closed && self.can_close() {
            request.closed = true;
            request.polled = false;
            return self.close_all();
        }
        if !self.config.device_waits || core::mem::replace(&mut request.joined, true) {
            return None;
        }
        let others = self.joinable(others, request.stream);
        (!others.is_empty()).then(|| self.join(request, &others))
    }

    /// The same while a graph is being captured, when only another thread's plan is waited for.
    pub(crate) fn let_pass(&self, segment: u32, request: &Request) -> Option<Step> {
        let busy = self.behind(segment, request.len).any(|id| self.blocks[id].state == State::Busy);
        busy.then_some(Step::Pause)
    }

    /// Leaves a growing segment whose live block is freed to others.
    pub(crate) fn vacate(&mut self, segment: u32) {
        let state = &mut self.segments[segment as usize];
        state.owned = false;
        let (key, len) = ((state.class.pool(), state.len), state.len);
        self.vacant.segments.entry(key).or_default().push(segment);
        self.vacant.bytes += len;
    }

    /// Takes over a vacant segment of `len` bytes, or up to twice that, which the stream can use at once.
    pub(crate) fn take_over(&mut self, class: Class, len: u64, stream: StreamId) -> Option<u32> {
        /// Sizes, and segments of each, that are looked at.
        const LOOKS: usize = 4;
        let pool = class.pool();
        let sizes = self.vacant.segments.range((pool, len)..=(pool, len.saturating_mul(2))).take(LOOKS);
        let mut candidates = sizes.flat_map(|(_, list)| list.iter().rev().take(LOOKS).copied());
        let segment = candidates.find(|&segment| self.is_open(segment, stream))?;
        self.forget_vacant(segment);
        self.segments[segment as usize].owned = true;
        Some(segment)
    }

    /// Takes a segment out of the vacant ones, if it is among them.
    pub(crate) fn forget_vacant(&mut self, segment: u32) {
        let state = &self.segments[segment as usize];
        let key = (state.class.pool(), state.len);
        let Some(list) = self.vacant.segments.get_mut(&key) else { return };
        let Some(at) = list.iter().rposition(|&other| other == segment) else { return };
        list.remove(at);
        self.vacant.bytes -= key.1;
        if list.is_empty() {
            self.vacant.segments.remove(&key);
        }
    }

    /// A vacant segment to let go because there are too many: the largest that no other process uses.
    pub(crate) fn surplus_vacant(&self) -> Option<u32> {
        if self.vacant.bytes <= MOST_VACANT {
            return None;
        }
        let is_live = |id: BlockId| self.blocks[id].state == State::Live;
        let can_go = |&segment: &u32| !self.blocks.from(self.segments[segment as usize].first).any(is_live);
        let all = self.vacant.segments.values().flatten().copied();
        all.filter(can_go).max_by_key(|&segment| self.segments[segment as usize].len)
    }

    /// Whether a segment exists and nobody needs its addresses: it is vacant, or of a pool that nobody holds any more, and
    /// nothing in it is in use.
    pub(crate) fn is_deserted(&self, segment: u32) -> bool {
        let Some(state) = self.segments.get(segment as usize) else { return false };
        let pool = self.pools.get(state.class.pool());
        let unheld = state.class.pool() != DEFAULT && pool.holders == 0 && !pool.is_fixed();
        match state.class {
            class if class.is_growing() => !state.owned,
            class => unheld && !class.is_classic() && self.is_unused(state.first),
        }
    }

    /// All segments whose addresses nobody needs.
    pub(crate) fn deserted_segments(&self) -> Vec<u32> {
        let all = self.segments.iter().map(|(index, _)| index as u32);
        all.filter(|&segment| self.is_deserted(segment)).collect()
    }

    /// Whether a block and all behind it are free or holes.
    fn is_unused(&self, first: BlockId) -> bool {
        self.blocks.from(first).all(|id| matches!(self.blocks[id].state, State::Free | State::Hole))
    }

    /// The chunks of a deserted segment that may go, to be given back, or the reservation once nothing is in it.
    pub(crate) fn retire(&mut self, segment: u32) -> GiveBack {
        let mut back = GiveBack::default();
        let state = &self.segments[segment as usize];
        let (first, origin, class) = (state.first, state.origin, state.class);
        if self.blocks[first].state == State::Hole && self.blocks[first].len == state.len {
            self.pools[class].remove(&mut self.blocks, first);
            self.blocks[first].state = State::Busy;
            self.busy += 1;
            back.reservations.push((first, origin));
            return back;
        }
        let (mut all, mut found) = (u64::MAX, Vec::new());
        let listed = |id: &BlockId| self.blocks[*id].listed && self.blocks[*id].state == State::Free;
        self.blocks.from(first).filter(listed).for_each(|id| self.movable(id, &mut all, &mut found));
        back.runs = found.into_iter().map(|(id, addr, end)| self.seize(id, addr, end)).collect();
        back.runs.extend(self.idle_wide_in(segment));
        back
    }

    /// The blocks in the next `len` bytes behind the buffer's.
    fn behind(&self, segment: u32, len: u64) -> impl Iterator<Item = BlockId> {
        let first = self.rest_of(segment);
        let end = self.blocks.get(first).map_or(0, |block| block.addr + len);
        self.blocks.from(first).take_while(move |&id| self.blocks[id].addr < end)
    }

    /// The first block behind the buffer's.
    fn rest_of(&self, segment: u32) -> BlockId {
        match self.buffer_block(segment) {
            Some(block) => self.blocks[block].next,
            None => self.segments[segment as usize].first,
        }
    }

    /// Whether a stream may use everything in a vacant segment.
    fn is_open(&self, segment: u32, stream: StreamId) -> bool {
        self.blocks.from(self.segments[segment as usize].first).all(|id| match self.blocks[id].state {
            State::Hole => true,
            State::Free => self.is_open_to(id, stream),
            State::Live | State::Waiting | State::Busy => false,
        })
    }
}
