//! Classic segments for requests: what is tried before one is fetched of the driver, and how long it is.

use super::Core;
use super::block::BlockId;
use super::epochs::Ids;
use super::ladder::Chunks;
use super::plan::{Request, Rung, Step};
use super::segment::Class;
use super::stream::{StreamId, StreamState};

impl Core {
    /// A classic segment for the request.
    pub(super) fn classic_step(&mut self, request: &mut Request) -> Option<Step> {
        let class = request.class.classic();
        let bytes = self.classic_len(request);
        if let Some(step) = self.heed_soft_limit(class, bytes, request) {
            return Some(step);
        }
        if self.is_sourced(class) {
            return self.new_classic(request);
        }
        if self.garbage(class, bytes) > 0 && !request.closed && self.can_close() {
            // Segments freed just now can be collected if their streams have passed; nobody waits.
            return self.close_for_request(request);
        }
        if request.may_give_back(self.limits.total)
            && let Some(step) = self.collect_garbage(class, bytes)
        {
            return Some(step);
        }
        if !request.closed && self.tokens > 0 && self.can_close() {
            // Like the pools people know, look what has finished before growing.
            return self.close_for_request(request);
        }
        let others = self.joins_before_classic(request);
        if !others.is_empty() {
            request.joined = true;
            return Some(self.join(request, &others));
        }
        // Of page-locked memory nobody waits before all of the host's is taken.
        let first = if self.limits.host_page.is_none() { self.look_behind(request, bytes) } else { None };
        match first {
            Some(Chunks::AskFirst(ids)) => Some(self.ask_for_work(request, ids)),
            Some(Chunks::WaitFirst(gone)) => Some(self.wait_for_device_to_end(&gone)),
            _ => self.new_classic(request),
        }
    }

    /// The streams that the request's stream is made to wait for on the device before more than twice the peak is held. So much
    /// may lie in pieces between live blocks; beyond that it is what waits that piles up. None where all of that is too short,
    /// since nothing moves here.
    fn joins_before_classic(&self, request: &Request) -> Ids {
        /// Streams: a segment is one call, and each of these would take two.
        const MOST: usize = 8;
        let piled_up = self.held() > 2 * self.high_water.max(request.peak);
        if !piled_up || request.joined || !self.fits_held_back(request) {
            return Ids::new();
        }
        let others = self.worth_joining(request, None);
        if others.len() > MOST { Ids::new() } else { others }
    }

    /// Whether a block that waits, or that is another stream's, is long enough for the request.
    fn fits_held_back(&self, request: &Request) -> bool {
        let classes = self.classes_for(request);
        let waits = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.len >= request.len && classes.contains(&block.class)
        };
        let free = |state: &StreamState| {
            let bins = classes.iter().filter_map(|&class| state.bins.get(class));
            bins.map(|bins| bins.largest(&self.blocks)).any(|len| len >= request.len)
        };
        let others = self.streams.iter().enumerate().filter(|&(id, _)| id as StreamId != request.stream);
        self.waits.keys().any(waits) || others.map(|(_, state)| state).any(free)
    }

    /// What a pool has to give back before it gets a classic segment beyond its own soft limit.
    fn heed_soft_limit(&mut self, class: Class, bytes: u64, request: &mut Request) -> Option<Step> {
        let over = self.over_soft_limit(class.pool(), bytes);
        if over == 0 || !request.may_give_back(self.limits.total) {
            return None;
        }
        if !request.closed && self.can_close() {
            return self.close_for_request(request);
        }
        let back = self.idle_of_pool(class.pool(), over);
        (!back.is_empty()).then_some(Step::GiveBack(back))
    }

    /// A new classic segment, if the device and the limit have room.
    pub(super) fn new_classic(&mut self, request: &mut Request) -> Option<Step> {
        let class = request.class.classic();
        let source = self.pools.get(class.pool()).rules.source.clone();
        let of_device = !self.is_elsewhere(class);
        if of_device {
            let excess = |limit: Option<u64>, bytes: u64| {
                limit.map_or(0, |limit| (self.held() + bytes).saturating_sub(limit))
            };
            let careful = request.rung < Rung::Joined && self.capturing == 0;
            let usual = self.classic_len(request);
            request.exact |= excess(self.limit, usual) > 0 || careful && excess(self.soft_limit(), usual) > 0;
            let bytes = self.classic_len(request);
            let (over, over_soft) = (excess(self.limit, bytes), excess(self.soft_limit(), bytes));
            request.soft = over == 0 && careful && over_soft > 0 && !request.device_full;
            if over > 0 || request.soft {
                request.lack = if over > 0 { over } else { over_soft };
                return None;
            }
        }
        if request.device_full {
            return None;
        }
        let bytes = self.classic_len(request);
        if of_device {
            self.classic += bytes;
        }
        self.pools.get_mut(class.pool()).fetching += 1;
        Some(Step::Classic(class, bytes, request.handle, source))
    }

    /// Bytes of the classic segment a request needs.
    pub(super) fn classic_len(&self, request: &Request) -> u64 {
        const STEP: u64 = 2 << 20;
        // Page-locked memory is not taken in chunks: pages are enough, and every byte is taken from the host.
        let step = self.limits.host_page.map_or(STEP, |page| page.max(super::UNIT));
        let small = self.limits.host_page.map_or(STEP, |page| page.max(1 << 20));
        let room = request.len + if request.align > super::UNIT { request.align } else { 0 };
        if request.class.is_small() && room <= small {
            small
        } else if !request.class.is_small()
            && !self.pools.get(request.class.pool()).rules.uncached
            && request.requested < 10 << 20
            && !request.exact
            && room <= self.config.large_segment_size
        {
            // Decided by the size without the pad, like small and large.
            self.config.large_segment_size
        } else {
            room.next_multiple_of(step)
        }
    }
}
