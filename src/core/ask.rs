//! What is done about a block of the right size that waits in the front for other streams: make another
//! one, or find out whether they have passed.

use smallvec::SmallVec;

use super::Core;
use super::epochs::RESERVE;
use super::ladder::Chunks;
use super::plan::{Closing, Remap, Request, Step};
use super::stream::StreamId;

impl Core {
    /// Whether it is worth asking the device now for what keeps blocks in the front: it was prompt lately, or
    /// has not been asked for long.
    pub(crate) fn may_ask(&mut self) -> bool {
        let may = self.slow == 0 && self.ask_after == 0 && self.tokens > 0 && self.capturing == 0;
        self.ask_after = self.ask_after.saturating_sub(1);
        may
    }

    /// Whether it is time to look for blocks in the front that were recorded and that nobody asks for any more: what they
    /// take of the headroom makes the waits of all others short.
    pub(crate) fn is_time_for_idle(&self) -> bool {
        /// Waits that were ended, from one time to the next: longer than a thread that goes on is kept from its processor.
        const APART: u32 = 1 << 14;
        self.waits_ended.is_multiple_of(APART)
    }

    /// Learns whether asking has helped: the streams have passed what they were asked for. `before` is how
    /// many events might be recorded then.
    pub(crate) fn note_answer(&mut self, users: impl Iterator<Item = (StreamId, u32)> + Clone, before: i32) {
        let state = |id: StreamId| &self.streams[id as usize];
        if users.clone().all(|(id, due)| state(id).passed(due)) {
            // Behind a device that is prompt, events cost nothing of what is earned.
            self.tokens = self.tokens.max(before);
            self.ask_patience = 0;
        } else if users.clone().any(|(id, due)| !state(id).passed(due) && !state(id).is_being_closed(due)) {
            self.ask_patience = (self.ask_patience * 2).clamp(16, 1024);
        }
        self.ask_after = self.ask_patience;
    }

    /// Asks for the epochs of these streams, as far as events are under way and they are not over.
    pub(crate) fn query_for(&self, users: impl Iterator<Item = (StreamId, u32)>) -> Option<Step> {
        let states = users.map(|(id, due)| (id, &self.streams[id as usize], due));
        let pending = states.filter(|(_, state, due)| !state.passed(*due));
        let closing: Closing = pending
            .flat_map(|(id, state, due)| {
                // The first event that ends the epoch tells as much as all before it.
                let first = state.closing.iter().find(|&&(_, epoch)| epoch >= due);
                first.map(|&(event, epoch)| (id, event, epoch))
            })
            .collect();
        (!closing.is_empty()).then_some(Step::Query(closing))
    }

    /// Closes the epochs of these streams that are still open, where that can be done, and asks at once whether they
    /// are over.
    pub(crate) fn close_for(&mut self, users: impl Iterator<Item = (StreamId, u32)>) -> Option<Step> {
        let ids: SmallVec<[StreamId; 2]> = users
            .filter(|&(id, due)| due == self.streams[id as usize].open && self.may_close(id))
            .map(|(id, _)| id)
            .collect();
        self.tokens -= ids.len() as i32;
        (!ids.is_empty()).then(|| Step::RecordAndAsk(self.begin_closing(&ids)))
    }

    /// Learns that a flush of the front for a request brought back so many blocks, when `frees` had been freed in all.
    pub(crate) fn note_flush(&mut self, blocks: usize, frees: u64) {
        /// Frees between two flushes that are worth their work, and the events that may follow.
        const APART: u64 = 64;
        /// So many in a row that are not have a reason that will last.
        const ROW: u32 = 4;
        /// Requests that do without a flush after these, and after each one more.
        const PAUSE: u32 = 8;
        let soon = blocks > 0 && frees < self.flushed_at + APART;
        self.flushed_at = frees;
        self.flushed_soon = if soon { self.flushed_soon.saturating_add(1) } else { 0 };
        self.flush_after = if self.flushed_soon >= ROW { PAUSE } else { 0 };
    }

    /// Whether a request for which nothing is free should grow within the headroom before it has the front flushed:
    /// lately flushes took out what was asked for again at once.
    pub(crate) fn flush_can_wait(&mut self) -> bool {
        let waits = self.flush_after > 0;
        self.flush_after = self.flush_after.saturating_sub(1);
        waits
    }

    /// The step to serve a request with chunks that are cached or within the headroom, or idle; without waiting for anybody,
    /// if that can be done. For a large request idle ones are moved only where what rests in the front `stays` there: it is
    /// asked for again, so that the request needs memory of its own. Where those might do of which it is not known that
    /// other streams have passed, the step learns that, for requests like this that follow.
    pub(crate) fn grow_calmly(&mut self, request: &mut Request, stays: bool) -> Option<Step> {
        let granule = self.limits.granule;
        if self.capturing > 0 || !self.uses_reservations(request) {
            return None;
        }
        let goal = (self.high_water as f64 * (1.0 + self.config.headroom)) as u64;
        let goal = (goal + request.room).min(self.limit.unwrap_or(u64::MAX));
        let room = goal.saturating_sub(self.held()) / granule + self.cached.len() as u64;
        let small = request.class.is_small();
        let hopeless = match small {
            true => room == 0 && self.count_movable(1) == 0,
            false => !stays && room < request.len / granule,
        };
        if hopeless {
            return None;
        }
        let place = self.place(request)?;
        let mut remap: Remap = self.occupy(place, request);
        let need = remap.missing.len() as u64;
        let idle = if (small || stays) && need > room { self.count_movable(need - room) } else { 0 };
        let enough = need <= room + idle;
        if enough && matches!(self.chunks_for(request, &mut remap), Chunks::Found) {
            return Some(Step::Remap(Box::new(remap)));
        }
        self.abandon(remap);
        if !stays || enough || self.slow > 0 || self.tokens <= 0 {
            return None;
        }
        self.query().or_else(|| if self.tokens > RESERVE { self.close_all() } else { None })
    }
}
