//! The error of a request that nothing could serve: what was there, who holds it, and what would help.
//!
//! It is made once for a request that fails, and walks all blocks.

use std::collections::BTreeMap;

use super::block::{Block, BlockId, State};
use super::plan::Request;
use super::pool::PoolIndex;
use super::remedies::is_idle;
use super::segment::{ALIGNED_FROM, Class, Segment};
use super::stream::StreamId;
use super::{Core, UNIT};
use crate::error::{Error, HeldBack, Holder, OutOfMemory, OutOfMemoryCause, PoolShare};
use crate::hook::Action;

/// As many entries of a list as a person wants to read.
const MOST: usize = 8;

impl Core {
    /// The error for a request that nothing could serve; the facade adds the device's own figures.
    pub(crate) fn out_of_memory(&mut self, request: &Request) -> Error {
        self.tally.ooms += 1;
        self.note(Action::OutOfMemory, 0, request.requested, request.handle);
        self.keep_failure(request.requested, request.handle, request.class);
        let cause = self.cause_of(request);
        let pools = self.shares();
        let idle: u64 = pools.iter().map(|share| share.idle).sum();
        Error::OutOfMemory(Box::new(OutOfMemory {
            device: self.limits.device,
            requested: request.requested,
            align: (request.align > UNIT).then_some(request.align),
            lacking: if request.lack > 0 { request.lack } else { request.len },
            cause,
            during_capture: self.capturing > 0,
            allocated: 0,
            active: 0,
            asleep: self.bare_and_behind().0,
            reserved: self.tally.reserved.stats[0].current as u64,
            elsewhere: self.elsewhere,
            idle,
            scattered: self.scattered(),
            cached_handles: self.cached_bytes(),
            largest_free: pools.iter().map(|share| share.largest_fit).max().unwrap_or(0),
            device_free: 0,
            device_total: self.limits.total,
            held_by_others: 0,
            limit: self.limit,
            soft_limit: self.soft_limit(),
            address_space: self.tally.address_space,
            holders: self.holders(),
            pending: self.pending(),
            remedies: self.remedies(request, cause),
            wanted: self.wanted_of_device(request),
            pools: top(pools, |share| share.reserved),
        }))
    }

    /// What stopped a request.
    fn cause_of(&self, request: &Request) -> OutOfMemoryCause {
        // A fixed block, and a chunk, may be larger than what it is for; what was lacking of them is noted.
        let over = self.limit.is_some_and(|limit| self.held() + request.len > limit || request.lack > 0);
        // What grows needs an address; others do without.
        let no_place = request.no_space && request.class.is_growing() && request.extends.is_none();
        if no_place {
            OutOfMemoryCause::AddressSpace
        } else if request.source_dry && request.device_full || self.is_elsewhere(request.class) {
            OutOfMemoryCause::Source
        } else if over && !request.device_full && request.len <= self.limits.total {
            OutOfMemoryCause::Limit
        } else {
            OutOfMemoryCause::Device
        }
    }

    /// Bytes that the device would have had to have free for a request: what it gave of them goes back before the request
    /// fails.
    fn wanted_of_device(&self, request: &Request) -> u64 {
        match request.lack {
            0 => request.len,
            _ if self.uses_reservations(request) => request.lack + self.cached_bytes(),
            _ => self.classic_len(request),
        }
    }

    /// What each pool has.
    fn shares(&self) -> Vec<PoolShare> {
        let mut shares: BTreeMap<PoolIndex, PoolShare> = BTreeMap::new();
        for index in self.pools.indices() {
            let pool = self.pools.get(index);
            // What is free behind a growing buffer is for that buffer alone.
            let classes = Class::all(index).into_iter().filter(|class| !class.is_growing());
            let largest_fit = classes.map(|class| self.largest_fit(class)).max();
            let share = PoolShare {
                pool: pool.serial,
                tag: pool.rules.tag.clone(),
                reserved: 0,
                idle: 0,
                largest_fit: largest_fit.unwrap_or(0),
            };
            shares.insert(index, share);
        }
        for (_, segment) in self.segments.iter() {
            if let Some(share) = shares.get_mut(&segment.class.pool()) {
                share.reserved += segment.mapped;
            }
        }
        for block in self.idle_blocks() {
            if let Some(share) = shares.get_mut(&block.class.pool()) {
                share.idle += block.len;
            }
        }
        shares.into_values().collect()
    }

    /// The largest request that a free block of a class, of any stream, could serve; bytes.
    fn largest_fit(&self, class: Class) -> u64 {
        let bins = self.homes_of(class).filter_map(|home| self.streams[home as usize].bins.get(class));
        if self.config.expandable_segments && self.config.base_addr_aligned > UNIT {
            let blocks = bins.flat_map(|bins| bins.ids(&self.blocks)).map(|id| &self.blocks[id]);
            blocks.map(|block| self.aligned_fit(block)).max().unwrap_or(0)
        } else {
            self.fit_of(bins.map(|bins| bins.largest(&self.blocks)).max().unwrap_or(0))
        }
    }

    /// The largest request that a block of so many bytes could serve.
    fn fit_of(&self, bytes: u64) -> u64 {
        let divisions = self.config.roundup_divisions_for(bytes);
        let bytes = if divisions > 1 { round_down_to_division(bytes, divisions) } else { bytes };
        bytes.saturating_sub(self.limits.pad)
    }

    /// The same of a free block where large requests are aligned further than others.
    fn aligned_fit(&self, block: &Block) -> u64 {
        let start = block.addr.next_multiple_of(self.config.base_addr_aligned);
        let aligned = self.fit_of(block.end().saturating_sub(start));
        if aligned >= ALIGNED_FROM {
            return aligned;
        }
        self.fit_of(block.len).min(ALIGNED_FROM - self.limits.pad.max(1))
    }

    /// Free bytes of growable segments that share their chunk with something that is not free. Neighbours that are not
    /// one, because of their streams or their pool, are together here.
    fn scattered(&self) -> u64 {
        let reserved = |segment: &&Segment| {
            !segment.class.is_classic() && segment.mapped > 0 && !self.is_asleep(segment.class.pool())
        };
        let segments = self.segments.iter().map(|(_, segment)| segment).filter(reserved);
        let runs = segments.flat_map(|segment| {
            self.runs_in(segment, is_idle)
                .into_iter()
                .map(move |run| run.1 - run.0 - self.whole_in(segment, run))
        });
        runs.sum()
    }

    /// Who holds most, by pool and stream.
    fn holders(&self) -> Vec<Holder> {
        let mut sums: BTreeMap<(PoolIndex, StreamId), (u64, u64)> = BTreeMap::new();
        let held = |block: &&Block| matches!(block.state, State::Live | State::Waiting);
        for block in self.present_blocks().map(|(_, block)| block).filter(held) {
            let sum = sums.entry((block.class.pool(), block.home)).or_default();
            *sum = (sum.0 + block.len, sum.1 + 1);
        }
        let holders = sums.into_iter().map(|((pool, stream), (bytes, blocks))| {
            let pool = self.pools.get(pool);
            let stream = self.streams[stream as usize].handle;
            Holder { pool: pool.serial, tag: pool.rules.tag.clone(), stream, bytes, blocks }
        });
        top(holders.collect(), |holder| holder.bytes)
    }

    /// The streams that hold freed memory back.
    fn pending(&self) -> Vec<HeldBack> {
        let pending = self.held_back(None).into_iter().map(|(stream, bytes)| {
            let state = &self.streams[stream as usize];
            let device = self.limits.device;
            HeldBack { device, stream: state.handle, bytes, events: state.closing.len() }
        });
        top(pending.collect(), |held| held.bytes)
    }

    /// The blocks that have memory: those of pools that sleep have none.
    pub(super) fn present_blocks(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.blocks.iter().filter(|(_, block)| !self.is_asleep(block.class.pool()))
    }

    /// Free blocks that have memory.
    pub(super) fn idle_blocks(&self) -> impl Iterator<Item = &Block> {
        self.present_blocks().map(|(_, block)| block).filter(|block| block.state == State::Free)
    }
}

/// The largest length up to `len` that is one of `divisions` equal steps between powers of two.
fn round_down_to_division(len: u64, divisions: u64) -> u64 {
    if len / super::UNIT <= divisions {
        return len;
    }
    let below = 1u64 << (63 - len.leading_zeros());
    let step = (below / divisions).max(super::UNIT);
    len / step * step
}

/// The entries with most, largest first.
fn top<T>(mut entries: Vec<T>, bytes: impl Fn(&T) -> u64) -> Vec<T> {
    entries.retain(|entry| bytes(entry) > 0);
    entries.sort_by_key(|entry| core::cmp::Reverse(bytes(entry)));
    entries.truncate(MOST);
    entries
}
