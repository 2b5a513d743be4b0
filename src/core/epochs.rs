//! Ending epochs: events that close them, waits on the device, waits of the host.
//!
//! | means | cost | when |
//! |---|---|---|
//! | an event is earned by frees and recorded | one event | now and then, while requests ask for memory |
//! | all open epochs are closed and asked for | an event and a query a stream | a request lacks memory, and the device answers promptly |
//! | a request *marks* a stream for those after it | one event | behind a slow device, when little is left that may be moved |
//! | a stream waits for others on the device | an event and a wait a stream | growing is the alternative, and it opens enough |
//! | the host waits for an event, then for a stream | the host's time | memory is short |
//! | the host waits for the device | everybody's time | memory is short, and nothing else is left |

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::Core;
use super::block::BlockId;
use super::plan::{Closing, Means, Request, Rung, Step, ToClose};
use super::pool::PoolIndex;
use super::stream::{StreamId, StreamState};

/// A few streams.
pub(super) type Ids = SmallVec<[StreamId; 32]>;

/// More tokens are not kept, so that a quiet time does not pay for a flood of events.
const MOST_TOKENS: i32 = 40;

/// These are left to requests in need.
pub(super) const RESERVE: i32 = 16;

impl Core {
    /// Asks for finished epochs on every stream that has events under way.
    pub(crate) fn query(&self) -> Option<Step> {
        let mut closing = Closing::new();
        for id in self.active.iter() {
            let state = &self.streams[id as usize];
            closing.extend(state.closing.iter().map(|&(event, epoch)| (id, event, epoch)));
        }
        (!closing.is_empty()).then_some(Step::Query(closing))
    }

    /// Closes the open epochs of all streams that need it.
    pub(crate) fn close_all(&mut self) -> Option<Step> {
        let ids = self.closable_of(self.active.iter());
        self.close_many(&ids)
    }

    /// The same of some streams.
    pub(crate) fn close_of(&mut self, streams: impl Iterator<Item = StreamId>) -> Option<Step> {
        let ids = self.closable_of(streams);
        self.close_many(&ids)
    }

    /// Those of the streams whose epochs need to be closed and can be: as many as there are events for.
    fn closable_of(&self, streams: impl Iterator<Item = StreamId>) -> Ids {
        let mut ids = Ids::new();
        for id in streams {
            let state = &self.streams[id as usize];
            // Of page-locked memory nobody waits before all of the host's is taken: the stream is tried again.
            let again = state.alive && self.limits.host_page.is_some();
            let takes = again || state.takes_events(self.frees);
            if state.has_open_work() && takes && self.has_event_beside(state, ids.len()) {
                ids.push(id);
            }
        }
        ids
    }

    fn close_many(&mut self, ids: &[StreamId]) -> Option<Step> {
        // Slow devices make this dear: what is not prompt is not given back.
        self.tokens = self.tokens.saturating_sub(ids.len() as i32).max(-64);
        (!ids.is_empty()).then(|| self.close(ids))
    }

    /// Closes the open epochs of these streams.
    pub(crate) fn close(&mut self, ids: &[StreamId]) -> Step {
        Step::Record(self.begin_closing(ids))
    }

    /// The open epochs of these streams, as epochs that are being closed.
    pub(super) fn begin_closing(&mut self, ids: &[StreamId]) -> ToClose {
        let close = |&id: &StreamId| {
            let epoch = self.close_epoch(id);
            (id, self.streams[id as usize].handle, epoch, self.means_for(id))
        };
        ids.iter().map(close).collect()
    }

    /// With what an epoch of a stream can be closed.
    fn means_for(&mut self, id: StreamId) -> Means {
        if !self.has_event_for(&self.streams[id as usize]) {
            return Means::None;
        }
        match self.events.pop() {
            Some(event) => Means::Pooled(event),
            None => {
                self.made += 1;
                Means::New
            }
        }
    }

    /// Whether there is an event for a stream. The last quarter of those there may be is for streams that have none under
    /// way.
    fn has_event_for(&self, state: &StreamState) -> bool {
        self.has_event_beside(state, 0)
    }

    /// The same when so many `more` are about to be taken.
    fn has_event_beside(&self, state: &StreamState, more: usize) -> bool {
        /// Events under way, and of one stream: some devices have 1023 in all, and the program needs some.
        const MOST: (usize, usize) = (512, 128);
        /// The same for page-locked memory.
        const MOST_OF_HOST: (usize, usize) = (256, 64);
        let (used, of_it) = (self.made - self.events.len() + more, state.closing.len());
        let (most, of_one) = if self.limits.host_page.is_some() { MOST_OF_HOST } else { MOST };
        used < most && of_it < of_one && (used < most / 4 * 3 || of_it == 0)
    }

    /// Whether the open epoch of a stream could be closed by an event.
    pub(crate) fn may_close(&self, id: StreamId) -> bool {
        let state = &self.streams[id as usize];
        state.takes_events(self.frees) && self.has_event_for(state)
    }

    /// Whether there is something that an event on the stream would close, and it could be had.
    pub(crate) fn is_closable(&self, id: StreamId) -> bool {
        self.streams[id as usize].has_open_work() && self.may_close(id)
    }

    /// Opens the next epoch of a stream, and notes when that was; the number of the one that is to be closed.
    pub(crate) fn close_epoch(&mut self, id: StreamId) -> u32 {
        let frees = self.all_frees() + self.unseen;
        let state = &mut self.streams[id as usize];
        let epoch = state.close_epoch();
        state.ages.note(u64::from(epoch), frees);
        self.active.insert(id);
        epoch
    }

    /// Asks for the oldest events of the stream whose epoch is due, if many are under way, so that events
    /// do not pile up while no request asks.
    pub(crate) fn due_query(&self) -> Option<Step> {
        /// So many may be under way unasked.
        const UNASKED: usize = 4;
        let state = &self.streams[self.heaviest as usize];
        if !self.due || self.capturing > 0 || state.closing.len() < UNASKED {
            return None;
        }
        let closing = state.closing.iter().take(UNASKED);
        Some(Step::Query(closing.map(|&(event, epoch)| (self.heaviest, event, epoch)).collect()))
    }

    /// Closes the epoch of the stream with most to gain when it is time, if somebody may want to know soon.
    pub(crate) fn due(&mut self) -> Option<Step> {
        if !core::mem::take(&mut self.due) || self.capturing > 0 {
            return None;
        }
        let id = core::mem::take(&mut self.heaviest);
        if !self.is_closable(id) {
            return None;
        }
        self.tokens -= 1;
        Some(self.close(&[id]))
    }

    pub(crate) fn can_close(&self) -> bool {
        self.active.iter().any(|id| self.is_closable(id))
    }

    /// Counts a free towards the next event, and decides whether it is time for one.
    #[inline]
    pub(super) fn earn(&mut self) {
        /// While nobody asks, one epoch in so many is closed.
        const QUIET: u32 = 8;
        self.earned += 1;
        self.paid += 1;
        if self.earned < self.config.epoch_frees {
            return;
        }
        self.earned = 0;
        self.decay_due = self.config.decays();
        self.tokens = (self.tokens + 1).min(MOST_TOKENS);
        if self.interest > 0 {
            self.interest -= 1;
            self.due = self.tokens > RESERVE && !self.joined_lately();
        } else {
            // Nobody has asked for long, but whoever asks next should not find everything in doubt.
            self.quiet += 1;
            self.due = self.quiet.is_multiple_of(QUIET);
        }
    }

    /// How many frees there were, with those of the front as far as they were counted. Ages are counted in these.
    pub(crate) fn all_frees(&self) -> u64 {
        self.frees + self.beside
    }

    /// Whether a stream was made to wait for another so lately that waits on the device do what earned events would do.
    fn joined_lately(&self) -> bool {
        /// Frees.
        const LATELY: u64 = 512;
        self.joined_at.is_some_and(|then| self.frees < then + LATELY)
    }

    /// How many chunks can be moved for a request that lacks `wanted`; or the stream to mark first, where little more
    /// than that could be moved.
    pub(super) fn look_for_moves(&self, request: &Request, wanted: u64) -> Result<u64, StreamId> {
        if request.no_moves || wanted == 0 {
            return Ok(0);
        }
        let mark = self.worth_marking(request);
        // Of what is held an eighth: enough for the requests that come until the event is over.
        let stock = mark.map_or(0, |_| (self.held() / 8) >> self.limits.shift);
        match (self.count_movable(wanted + stock), mark) {
            (found, Some(stream)) if found < wanted + stock => Err(stream),
            (found, _) => Ok(found.min(wanted)),
        }
    }

    /// The stream whose epoch a request should close for those that come after it, behind a device that is not prompt:
    /// its own, or the one with most bytes in doubt.
    fn worth_marking(&self, request: &Request) -> Option<StreamId> {
        /// Events of the stream that may be under way.
        const UNDER_WAY: usize = 2;
        /// Frees between two such events while waits on the device close epochs as well.
        const APART: u64 = 1024;
        let rarely = self.joined_lately() && self.frees < self.marked_at + APART;
        if self.slow == 0 || rarely || self.tokens <= RESERVE || request.marked || request.rung < Rung::Map {
            return None;
        }
        let much = self.held() / 32;
        [request.stream, self.heaviest].into_iter().find(|&id| {
            let state = &self.streams[id as usize];
            state.closing.len() < UNDER_WAY && state.stamped_bytes > much && self.may_close(id)
        })
    }

    /// Closes the epoch of a stream for those that come after the request.
    pub(super) fn mark(&mut self, request: &mut Request, stream: StreamId) -> Step {
        request.marked = true;
        self.marked_at = self.frees;
        self.tokens -= 1;
        self.close(&[stream])
    }

    /// Earns for the frees that the front kept to itself; `frees` are those of all parties so far.
    pub(crate) fn earn_for_all(&mut self, frees: u64) {
        let period = u64::from(self.config.epoch_frees);
        let more = frees.saturating_sub(self.paid) / period;
        self.paid += more * period;
        self.decay_due |= more > 0 && self.config.decays();
        let more = i32::try_from(more).unwrap_or(MOST_TOKENS);
        self.tokens = self.tokens.saturating_add(more).min(MOST_TOKENS);
    }

    /// The destroyed streams with open epochs, if those hold at least `bytes` of freed memory back that the request could use:
    /// what is free of theirs, and what waits for nobody else. No event can be recorded on them any more. Changes nothing:
    /// whoever waits closes the epochs.
    pub(super) fn left_behind(&self, request: &Request, bytes: u64) -> Vec<StreamId> {
        let over = |&id: &StreamId| {
            let state = &self.streams[id as usize];
            state.is_over() && state.has_open_work()
        };
        let ids: Vec<StreamId> = self.active.iter().filter(over).collect();
        if ids.is_empty() {
            return ids;
        }
        let freed: u64 = ids.iter().map(|&id| self.free_for(Some(request), id)).sum();
        // All that waits is looked at only where it decides.
        let lack = bytes.max(1).saturating_sub(freed);
        if lack == 0 {
            return ids;
        }
        let gone =
            |&(user, due): &(StreamId, u32)| self.passed(user, due) || self.streams[user as usize].is_over();
        let waits = self.waits.iter().filter(|(_, users)| users.iter().all(gone));
        let blocks = waits.map(|(&id, _)| &self.blocks[id]);
        let waiting: u64 = blocks
            .filter(|block| self.is_within_reach(block.class.pool(), Some(request)))
            .map(|block| block.len)
            .sum();
        if waiting < lack { Vec::new() } else { ids }
    }

    /// The streams on which work may be queued: those of blocks that are in use, unless they were just `asked`, and those
    /// that are not known to have passed all that was freed.
    pub(super) fn maybe_working(&self, asked: bool) -> Ids {
        let works = |state: &StreamState| {
            let used = state.out > 0 || state.recorded > 0 || state.in_front;
            let unknown = used && (!asked || state.broken);
            !state.is_over() && (unknown || state.has_open_work() || !state.passed(state.open - 1))
        };
        let states = self.streams.iter().enumerate();
        states.filter(|(_, state)| works(state)).map(|(id, _)| id as StreamId).collect()
    }

    /// Asks streams whether they have passed all that is queued on them.
    pub(super) fn ask_for_work(&mut self, request: &mut Request, mut ids: Ids) -> Step {
        request.looked = true;
        ids.retain(|&mut id| self.streams[id as usize].takes_events(self.frees));
        self.tokens = self.tokens.saturating_sub(ids.len() as i32).max(-64);
        Step::RecordAndAsk(self.begin_closing(&ids))
    }

    /// The streams that hold memory back which the request could use if its stream waited for them on
    /// the device: what they freed and what waits for them. None unless that is worth an event. `lack`: bytes that it
    /// cannot have otherwise, where memory is short.
    pub(super) fn worth_joining(&self, request: &Request, lack: Option<u64>) -> Ids {
        if !self.config.device_waits {
            return Ids::new();
        }
        // As long as little of the device is in use, growing a little is cheaper.
        let high_water = self.high_water.max(request.peak);
        let little = (self.limits.total / 6).min(high_water + high_water / 5);
        if lack.is_none() && self.held() + request.len < little {
            return Ids::new();
        }
        let stream = request.stream;
        let mut gain = 0;
        let mut others = Ids::new();
        for id in self.active.iter().filter(|&id| id != stream) {
            let state = &self.streams[id as usize];
            let before = state.open - 1;
            let open_already = state.passed(before) || self.streams[stream as usize].is_behind(id, before);
            let closed_off = if open_already { state.stamped_bytes } else { u64::MAX };
            let gained = if closed_off == 0 { 0 } else { self.free_for(Some(request), id).min(closed_off) };
            if gained > 0 {
                gain += gained;
                others.push(id);
            }
        }
        // What waits is looked at only where it can decide.
        let least = self.worth_a_wait(&[]);
        if gain + self.waiting_bytes < lack.unwrap_or(least).min(least) {
            return Ids::new();
        }
        for (id, users) in &self.waits {
            let block = &self.blocks[*id];
            if self.is_within_reach(block.class.pool(), Some(request)) {
                gain += block.len;
                others.push(block.home);
                others.extend(users.iter().map(|&(user, _)| user));
            }
        }
        let others = self.joinable(others, stream);
        let share = self.worth_a_wait(&others);
        if gain < lack.unwrap_or(share).min(share) { Ids::new() } else { others }
    }

    /// How many bytes a wait on the device for these streams has to open: 3 % of what is held, or what would be noticed on
    /// this device; below, growing is cheaper (measured on T8, see the design). Behind a device that is far behind more, so
    /// that the events that may be under way last until the first of them are over.
    fn worth_a_wait(&self, others: &[StreamId]) -> u64 {
        /// With so many events under way it is twice as much, with twice as many five times.
        const MANY: u64 = 23;
        let under_way =
            others.iter().map(|&id| self.streams[id as usize].closing.len() as u64).max().unwrap_or(0);
        let usual = self.held() / 32;
        (usual + usual * under_way * under_way / (MANY * MANY)).max(self.limits.total / 96)
    }

    /// Whether the memory of a pool can serve a request, where it is or elsewhere: as a rule it can. Without a request, any
    /// pool's counts.
    fn is_within_reach(&self, pool: PoolIndex, request: Option<&Request>) -> bool {
        self.pools.others() == 0 || request.is_none_or(|request| self.may_serve(pool, request))
    }

    /// Bytes of the free blocks of a stream that can serve a request.
    fn free_for(&self, request: Option<&Request>, id: StreamId) -> u64 {
        let state = &self.streams[id as usize];
        if request.is_none() || self.pools.others() == 0 || state.free_bytes == 0 {
            return state.free_bytes;
        }
        let bins = state.bins.iter().filter(|(class, _)| !self.is_within_reach(class.pool(), request));
        let inside = bins.flat_map(|(_, bins)| bins.ids(&self.blocks)).map(|id| self.blocks[id].len);
        state.free_bytes - inside.sum::<u64>()
    }

    /// Those of the streams that the stream can be made to wait for on the device, each once.
    pub(super) fn joinable(&self, mut others: Ids, stream: StreamId) -> Ids {
        others.sort_unstable();
        others.dedup();
        others.retain(|&mut id| id != stream && (self.may_close(id) || self.is_told_by_an_event(id)));
        others
    }

    /// Lets the request's stream wait for others on the device.
    pub(crate) fn join(&mut self, request: &Request, others: &[StreamId]) -> Step {
        let (told, open): (Ids, Ids) = others.iter().copied().partition(|&id| self.is_told_by_an_event(id));
        self.tokens = self.tokens.saturating_sub(open.len() as i32).max(-64);
        let mut list = self.begin_closing(&open);
        list.extend(told.into_iter().filter_map(|id| {
            let state = &self.streams[id as usize];
            let &(event, epoch) = state.closing.back()?;
            Some((id, state.handle, epoch, Means::UnderWay(event)))
        }));
        Step::Join(request.stream, request.handle, list)
    }

    /// Whether streams that are to wait for this one can do so by an event that is under way: it closes all that was freed,
    /// or there is no other to be had. Should it be over, and used again before they are made to wait, they wait for longer.
    fn is_told_by_an_event(&self, id: StreamId) -> bool {
        let state = &self.streams[id as usize];
        // The end of a stream may have dropped the event, and nobody would come past it.
        state.alive && !state.closing.is_empty() && !self.is_closable(id)
    }

    /// Waits for the oldest event of a stream that holds memory back which could serve, of that which holds most back; then
    /// for a stream whose epoch could not be closed by an event. Those that the request found to be captured are left alone,
    /// and so is what was queued after it first came here: others may go on for ever.
    pub(crate) fn wait_for_stream(&mut self, request: &mut Request) -> Option<Step> {
        let open = |state: &StreamState| state.open;
        let mut held: Vec<(StreamId, u64)> = self.held_back(Some(request)).into_iter().collect();
        let until = request.horizon.get_or_insert_with(|| self.streams.iter().map(open).collect());
        held.retain(|&(id, _)| until.get(id as usize).is_some_and(|&until| !self.passed(id, until)));
        held.sort_by_key(|&(id, bytes)| (core::cmp::Reverse(bytes), id));
        for &(id, _) in &held {
            if let Some(&(event, epoch)) = self.streams[id as usize].closing.front() {
                return Some(Step::WaitEvent(id, event, epoch));
            }
        }
        let able = |&(id, _): &(StreamId, u64)| {
            let state = &self.streams[id as usize];
            self.has_no_end(state) && state.takes_waits() && !request.spared.contains(&id)
        };
        let (id, _) = held.into_iter().find(able)?;
        Some(self.wait_alone(id))
    }

    /// Bytes of freed memory that each stream may still use, of what can serve a request.
    pub(super) fn held_back(&self, request: Option<&Request>) -> BTreeMap<StreamId, u64> {
        let mut held = BTreeMap::new();
        // What sleeps is in no index. Blocks in use are not looked at: there may be millions.
        for home in self.active.iter() {
            let state = &self.streams[home as usize];
            let bins = state.bins.iter().filter(|(class, _)| self.is_within_reach(class.pool(), request));
            let free = bins.flat_map(|(_, bins)| bins.ids(&self.blocks));
            let bytes: u64 = free.filter(|&id| !self.is_quiescent(id)).map(|id| self.blocks[id].len).sum();
            if bytes > 0 {
                held.insert(home, bytes);
            }
        }
        for (&id, users) in &self.waits {
            let block = &self.blocks[id];
            let pool = block.class.pool();
            if self.is_asleep(pool) || !self.is_within_reach(pool, request) {
                continue;
            }
            for &(user, epoch) in users {
                if !self.passed(user, epoch) {
                    *held.entry(user).or_default() += block.len;
                }
            }
        }
        held
    }

    pub(super) fn passed(&self, id: StreamId, epoch: u32) -> bool {
        self.streams[id as usize].passed(epoch)
    }

    /// Waits for a stream, which ends its open epoch and all before.
    pub(crate) fn wait_alone(&mut self, id: StreamId) -> Step {
        let epoch = self.close_epoch(id);
        Step::WaitStream(id, self.streams[id as usize].handle, epoch)
    }

    /// Whether a stream has an epoch that no event ends: it is open, or another thread waits for the stream or the device. An
    /// event that is being recorded can be waited for soon.
    fn has_no_end(&self, state: &StreamState) -> bool {
        state.has_open_work() || !self.transit.is_any_recording() && !state.passed(state.open - 1)
    }

    /// Waits for the device where epochs that hold memory back, which can serve a request, cannot be ended in another way:
    /// those of destroyed streams, and of streams that could not be waited for. All others can, and the device may not be the
    /// one of their streams.
    pub(crate) fn wait_for_device(&mut self, request: Option<&Request>) -> Option<Step> {
        let is_stuck = |&id: &StreamId| {
            let state = &self.streams[id as usize];
            self.has_no_end(state) && !state.takes_waits()
        };
        let holds = |&id: &StreamId| {
            // What stopped waiting because its stream waits on the device stays listed, and may be gone.
            let open = |&(due, block): &(u32, BlockId)| {
                let users = self.waits.get(&block);
                users.is_some_and(|users| users.contains(&(id, due)))
                    && self.is_within_reach(self.blocks[block].class.pool(), request)
            };
            self.free_for(request, id) > 0 || self.streams[id as usize].waiting.iter().any(open)
        };
        let stuck: Vec<StreamId> = self.active.iter().filter(is_stuck).collect();
        if !stuck.iter().any(holds) {
            return None;
        }
        Some(self.wait_for_device_to_end(&stuck))
    }

    /// Waits for the device, which ends the open epochs of these streams and all before.
    pub(super) fn wait_for_device_to_end(&mut self, ids: &[StreamId]) -> Step {
        Step::WaitDevice(ids.iter().map(|&id| (id, self.close_epoch(id))).collect())
    }
}
