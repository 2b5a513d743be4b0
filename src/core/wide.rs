//! Wide chunks: physical handles of several granules, for large growth with few driver calls.
//!
//! ```text
//! granules   |   0   |   1   |   2   |   3   |   4   |   5   |   6   |
//! chunks     |  h17  |<------------- h18 ----------->|  h3   |  h90  |     h18 is wide: four granules
//! blocks     |live|<------------------ live ------------------>|  free  |
//! ```
//!
//! They are made only inside the block of the request that grows, where at that moment no single granule of
//! theirs could be moved anyway, and where `large_segment_size_mb` or `page_size:1g` asks for them. Later, small
//! blocks may come to lie in them: a wide chunk is unmapped only whole, when all of it is free. It is never mapped
//! elsewhere; where its memory is wanted it is given back to the device and taken anew as what is needed, so
//! none of it is ever out of reach because of its width.

use std::collections::BTreeMap;

use super::Core;
use super::block::{BlockId, NONE, State};
use super::plan::{GiveBack, Remap, Request, Run, Spare};
use super::stream::StreamId;
use super::trim::Choice;
use crate::driver::{PageKind, PhysicalHandle};

/// What wide chunks of a device are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide {
    /// Granules of one.
    pub(crate) span: u32,
    /// What their addresses are multiples of, bytes.
    pub(crate) align: u64,
    /// The pages behind them.
    pub(crate) pages: PageKind,
}

impl Core {
    /// Wide chunks, if the request may have some.
    pub(super) fn wide_for(&self, request: &Request) -> Option<Wide> {
        let usual = request.extends.is_none() && !request.class.is_small() && !request.no_wide;
        self.limits.wide.filter(|wide| {
            usual && !self.no_wide && request.len >= u64::from(wide.span) * self.limits.granule
        })
    }

    /// Replaces new chunks of a remap by wide ones where these lie wholly inside the request's block.
    pub(super) fn widen(&self, request: &Request, remap: &mut Remap) {
        let Some(wide) = self.wide_for(request) else { return };
        let granule = self.limits.granule;
        let (span, bytes) = (wide.span as usize, u64::from(wide.span) * granule);
        let (first, end) = self.whole_chunks(remap.start, remap.start + remap.len);
        let mut singles = Vec::with_capacity(remap.missing.len());
        let mut at = 0;
        while at < remap.missing.len() {
            let address = remap.missing[at];
            let fits = remap.create >= wide.span
                && address >= first
                && address + bytes <= end
                && address.is_multiple_of(wide.align)
                && remap.missing.get(at + span - 1) == Some(&(address + bytes - granule));
            if fits {
                remap.wide.push(address);
                remap.create -= wide.span;
                at += span;
            } else {
                singles.push(address);
                at += 1;
            }
        }
        remap.missing = singles;
    }

    /// Bytes of the wide chunks of a remap.
    pub(super) fn wide_bytes(&self, count: usize) -> u64 {
        self.limits.wide.map_or(0, |wide| count as u64 * u64::from(wide.span) * self.limits.granule)
    }

    /// Notes a wide chunk behind granules of a busy block.
    pub(super) fn back_wide(
        &mut self,
        target: BlockId,
        address: u64,
        handle: PhysicalHandle,
        home: StreamId,
    ) {
        let Some(wide) = self.limits.wide else { return };
        for granule in 0..u64::from(wide.span) {
            self.back(target, address + granule * self.limits.granule, handle, home);
        }
        let segment = self.blocks[target].segment as usize;
        self.segments[segment].wide.insert(address, wide.span);
        self.wide_chunks += 1;
    }

    /// Takes quiescent wide chunks of at least `wanted` granules together, or all there are, out of idle blocks,
    /// longest idle first, and marks them busy.
    pub(super) fn idle_wide(&mut self, choice: Choice, wanted: u64) -> Vec<Run> {
        if self.wide_chunks == 0 {
            return Vec::new();
        }
        let mut found: Vec<(BlockId, u64, u32)> = Vec::new();
        let (mut left, mut look) = (wanted, choice.look);
        let mut listed = self.listed_for(choice, false);
        while left > 0 && look > 0 {
            let Some(id) = listed.next() else { break };
            look -= 1;
            let block = &self.blocks[id];
            let segment = &self.segments[block.segment as usize];
            if !segment.wide.is_empty() {
                // From the far end, so that the block itself keeps its place.
                for (&address, &span) in segment.wide.range(block.addr..block.end()).rev() {
                    if left > 0 && self.is_wide_idle(id, address, span, choice.since) {
                        found.push((id, address, span));
                        left = left.saturating_sub(u64::from(span));
                    }
                }
            }
        }
        drop(listed);
        found.into_iter().map(|(id, address, span)| self.seize_wide(id, address, span)).collect()
    }

    /// The same of one segment, all there are.
    pub(super) fn idle_wide_in(&mut self, segment: u32) -> Vec<Run> {
        let state = &self.segments[segment as usize];
        let mut found: Vec<(BlockId, u64, u32)> = Vec::new();
        let first = if state.wide.is_empty() { NONE } else { state.first };
        let listed = |id: &BlockId| self.blocks[*id].listed && self.blocks[*id].state == State::Free;
        for id in self.blocks.from(first).filter(listed) {
            let block = &self.blocks[id];
            let inside = state.wide.range(block.addr..block.end()).rev();
            let idle = inside.filter(|&(&address, &span)| self.is_wide_idle(id, address, span, u64::MAX));
            found.extend(idle.map(|(&address, &span)| (id, address, span)));
        }
        found.into_iter().map(|(id, address, span)| self.seize_wide(id, address, span)).collect()
    }

    /// Wide chunks to be given back for a request that lacks so many granules.
    pub(super) fn wide_to_break(&mut self, lack: u64) -> GiveBack {
        let mut back = GiveBack::default();
        back.set_handles(core::mem::take(&mut self.stuck));
        let left = lack.saturating_sub(back.freed_handles as u64);
        back.runs = if left > 0 { self.idle_wide(Choice::ALL, left) } else { Vec::new() };
        back
    }

    /// Chunks without an address that are put aside: those of one granule serve the next request, wide ones
    /// wait until the driver takes them.
    pub(crate) fn keep_spares(&mut self, spares: impl IntoIterator<Item = Spare>) {
        for spare in spares {
            if spare.span == 1 { self.cached.push(spare) } else { self.stuck.push(spare) }
        }
    }

    /// Bytes of all chunks without an address.
    pub(crate) fn cached_bytes(&self) -> u64 {
        let stuck: u64 = self.stuck.iter().map(|spare| u64::from(spare.span)).sum();
        (self.cached.len() as u64 + stuck) * self.limits.granule
    }

    /// Whether a wide chunk lies wholly in a free block and no queued work can touch it.
    fn is_wide_idle(&self, id: BlockId, address: u64, span: u32, since: u64) -> bool {
        let (block, shift) = (&self.blocks[id], self.limits.shift);
        let end = address + (u64::from(span) << shift);
        if end > block.end() {
            return false;
        }
        let home = &self.streams[block.home as usize];
        let whole = home.passed(block.epoch);
        if whole && since == u64::MAX {
            return true;
        }
        let segment = &self.segments[block.segment as usize];
        (address..end).step_by(self.limits.granule as usize).all(|granule| {
            let stamp = segment.stamp(granule, shift);
            let known = &self.streams[stamp.stream as usize];
            (whole || stamp.stream == block.home && home.passed(stamp.epoch))
                && (since == u64::MAX || u64::from(stamp.epoch) <= known.ages.until(since))
        })
    }

    /// Takes one wide chunk out of a free block and marks it busy.
    fn seize_wide(&mut self, id: BlockId, address: u64, span: u32) -> Run {
        let bytes = u64::from(span) << self.limits.shift;
        let block = self.carve(id, address, bytes);
        self.blocks[block].state = State::Busy;
        self.busy += 1;
        let segment = &self.segments[self.blocks[block].segment as usize];
        let handle = segment.chunk(address, self.limits.shift).unwrap_or(PhysicalHandle(0));
        Run { block, addr: address, span, handles: smallvec::smallvec![handle] }
    }

    /// I3 for wide chunks: each has one handle behind all its granules, and nobody else has that handle.
    pub(super) fn check_wide(&self, faults: &mut Vec<String>) {
        let granule = self.limits.granule;
        let mut count = 0;
        for (_, segment) in self.segments.iter() {
            let mut handles: BTreeMap<u64, u64> = BTreeMap::new();
            for (&address, &span) in &segment.wide {
                count += 1;
                let end = address + u64::from(span) * granule;
                let handle = segment.chunk(address, self.limits.shift);
                let same = |at: u64| segment.chunk(at, self.limits.shift) == handle;
                if handle.is_none() || !(address..end).step_by(granule as usize).all(same) {
                    faults.push(format!("I3: the wide chunk at {address:#x} is not whole"));
                }
                if handles.insert(handle.map_or(0, |handle| handle.0), address).is_some() {
                    faults.push(format!("I3: the wide chunk at {address:#x} is at two places"));
                }
            }
            if segment.wide.is_empty() {
                continue;
            }
            for (at, handle) in segment.chunks.iter().enumerate() {
                let address = segment.base + at as u64 * granule;
                let wide = handle.is_some_and(|handle| handles.contains_key(&handle.0));
                if wide != segment.is_wide(address, self.limits.shift) {
                    faults.push(format!("I3: granule {address:#x} and the wide chunks disagree"));
                }
            }
        }
        if count != self.wide_chunks {
            faults.push(format!("I3: wide chunks: {} counted, {count} found", self.wide_chunks));
        }
    }
}
