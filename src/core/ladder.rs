//! The ladder: what is tried, in which order, until a request is served or refused.
//!
//! | rung | what is tried |
//! |---|---|
//! | `Search` | free blocks of the stream, then quiescent ones of other streams |
//! | `Flushed` | the same, after the front cache gave its blocks back |
//! | `Map` | finished epochs; then chunks: cached ones, new ones within the headroom, idle ones moved, new ones beyond it; then free blocks among those of the other size, and of pools that lend |
//! | `Released` | idle classic segments, idle wide chunks, and for a classic request idle chunks, are given back |
//! | `Asked` | framework callbacks are asked to free something, one after the other |
//! | `Joined` | the request's stream waits for others on the device; from here on the soft limit does not count |
//! | `Waited` | the host waits for the oldest event of the stream that holds most memory back, or for a stream that got no event, one at a time |
//! | `Synchronized` | the host waits for the device, where an epoch can be ended in no other way |
//!
//! After every step the free blocks are searched again, from `Released` on all of them, and each step takes no more than
//! the request lacks. Steps from `Released` on are taken only when the device, the limit, or the soft limit has no
//! room; a wait of the host is never spent on the soft limit. No request has more given back than the device has, because
//! others may take it each time. Before a request fails, plans of other threads that hold memory are waited for, because
//! what they leave may be what it lacks.

use super::Core;
use super::block::BlockId;
use super::epochs::Ids;
use super::plan::{GiveBack, Remap, Request, Rung, Step};
use super::segment::Class;
use super::stream::StreamId;
use super::trim::Choice;
use crate::error::Error;
use crate::stats::{DriverCalls, LadderSteps};

impl LadderSteps {
    /// Counts a step taken for a request.
    pub(crate) fn count(&mut self, step: &Step) {
        let counter = match step {
            Step::Ready(_) => return,
            Step::Flush => &mut self.flushed,
            Step::Query(_) => &mut self.queried,
            Step::Record(_) | Step::RecordAndAsk(_) => &mut self.closed,
            Step::Reserve(..) => &mut self.reserved,
            Step::Join(..) => &mut self.joined,
            Step::Remap(_) => &mut self.mapped,
            Step::Classic(..) => &mut self.fetched,
            Step::GiveBack(_) => &mut self.released,
            // Counted where one was there to be called, or something to be waited for.
            Step::Ask(_) | Step::Await | Step::Pause => return,
            Step::WaitEvent(..) | Step::WaitStream(..) | Step::WaitDevice(_) => return,
            Step::Fail(_) => &mut self.failed,
        };
        *counter += 1;
    }

    /// Counts the waits of the host among the calls made for a request.
    pub(crate) fn count_waits(&mut self, calls: &DriverCalls) {
        self.waited += calls.wait_event + calls.wait_stream;
        self.synchronized += calls.wait_device;
    }
}

/// What [`Core::chunks_for`] found.
pub(super) enum Chunks {
    /// The remap is complete.
    Found,
    /// Idle wide chunks, which cannot be moved, are to be given back so that others can be had.
    BreakFirst(GiveBack),
    /// Epochs should be closed before growing beyond the headroom.
    CloseFirst,
    /// The epoch of the stream should be closed for those that come later.
    MarkFirst(StreamId),
    /// These streams should be asked whether they are idle, so that a wait for the device would hold nobody up.
    AskFirst(Ids),
    /// The device should be waited for, because that alone opens the memory of these destroyed streams.
    WaitFirst(Vec<StreamId>),
    /// The stream should wait for others on the device before growing beyond the headroom.
    JoinFirst(Ids),
    /// There are too few.
    Missing,
}

impl Core {
    /// The next step for a request. To be called again after each step's outcome is committed.
    pub(crate) fn advance(&mut self, request: &mut Request) -> Step {
        if let Some(error) = request.failure.take() {
            return self.give_up(request, error);
        }
        if self.limits.host_page.is_some() {
            // Taking host memory of the driver is so slow that looking for passed streams always comes first.
            self.tokens = self.tokens.max(16);
            self.slow = 0;
        }
        // Trying a place and giving it up cuts merged blocks again, so merging helps once between two steps.
        let mut merged = false;
        loop {
            if let Some(id) = request.ready.take().or_else(|| self.search(request)) {
                self.hand_out(id, request.requested, request.stream);
                return Step::Ready(id);
            }
            if self.is_asleep(request.class.pool()) {
                let reason = "the pool sleeps; wake it first";
                return self.give_up(request, Error::State { operation: "allocating from a pool", reason });
            }
            match request.rung {
                Rung::Search => {
                    request.rung = Rung::Flushed;
                    return Step::Flush;
                }
                Rung::Flushed => {
                    request.rung = Rung::Map;
                    self.interest = self.interest.max(32);
                    continue;
                }
                _ => {}
            }
            if self.capturing > 0 {
                return self.step_during_capture(request);
            }
            if request.len > self.most_for(request) {
                self.note_retry(request);
                request.lack = self.lack_of_all(request);
                let error = self.out_of_memory(request);
                return self.give_up(request, error);
            }
            if !request.polled {
                request.polled = true;
                if let Some(step) = self.query() {
                    return step;
                }
            }
            let waits = !self.waits.is_empty() && self.slow == 0 && self.tokens > 0;
            if waits && !request.closed && self.can_close() {
                // What waits for a stream that has passed is cheaper than new or moved chunks.
                if let Some(step) = self.close_for_request(request) {
                    return step;
                }
            }
            let step = if self.uses_reservations(request) {
                self.map_step(request)
            } else {
                self.classic_step(request)
            };
            if let Some(step) = step {
                return step;
            }
            if !merged && self.merge_unsplit(None) {
                merged = true;
                continue;
            }
            if let Some(id) = self.search_all(request) {
                return Step::Ready(id);
            }
            if !request.soft
                && let Some(id) = self.search_other_size(request).or_else(|| self.borrow(request))
            {
                return Step::Ready(id);
            }
            let grows = self.uses_reservations(request);
            if let Some(step) = self.relief_step(request, grows) {
                return step;
            }
            if request.rung < Rung::Joined {
                request.rung = Rung::Joined;
                continue;
            }
            if let Some(step) = self.wait_step(request) {
                return step;
            }
            if request.retries_device() {
                continue;
            }
            if !request.awaited {
                return Step::Await;
            }
            let error = match request.refusal.take() {
                Some(refusal) => refusal.into(),
                None => self.out_of_memory(request),
            };
            return self.give_up(request, error);
        }
    }

    /// The next step to put memory directly behind a block, or nothing when there is none to be had
    /// without pressing anybody.
    pub(crate) fn extend(&mut self, id: BlockId, request: &mut Request) -> Option<Step> {
        if self.blocks[id].lent || self.blocks[id].claimed {
            // What is behind it is not its owner's to take: another pool's, perhaps a graph's, or a buffer's.
            return None;
        }
        let place = self.place_behind(id, request)?;
        let mut remap = self.occupy(place, request);
        let found = match self.capturing > 0 {
            false => self.chunks_for(request, &mut remap),
            true if self.fill_with_new(request, &mut remap) => Chunks::Found,
            true => Chunks::Missing,
        };
        match found {
            Chunks::Found => Some(Step::Remap(Box::new(remap))),
            _ => {
                self.abandon(remap);
                None
            }
        }
    }

    pub(super) fn uses_reservations(&self, request: &Request) -> bool {
        let driven = !self.is_sourced(request.class);
        let reserves = self.expands(request.class) && self.reservable && !request.no_space && driven;
        reserves || request.extends.is_some()
    }

    /// A free block for the request: of its own stream, then a quiescent one; reserved segments
    /// first where they are in use, classic ones first where not.
    fn search(&mut self, request: &Request) -> Option<BlockId> {
        if let Some(segment) = request.extends {
            return self.take_behind(segment, request);
        }
        let order = self.classes_for(request);
        for class in order {
            let found = self.take(class, request.len, request.align, request.stream);
            if found.is_some() {
                return found;
            }
        }
        if request.rung < Rung::Flushed {
            return None;
        }
        order
            .into_iter()
            .find_map(|class| self.take_foreign(class, request.len, request.align, request.stream))
    }

    /// The classes of segments that serve a request, in the order in which they are looked at.
    pub(super) fn classes_for(&self, request: &Request) -> [Class; 2] {
        let (reserved, classic) = (request.class, request.class.classic());
        if self.expands(request.class) { [reserved, classic] } else { [classic, reserved] }
    }

    /// A free block for a request that can neither grow nor move enough: the searches before pass over some where there
    /// are many, this one does not.
    pub(super) fn search_all(&mut self, request: &Request) -> Option<BlockId> {
        if request.extends.is_some() {
            return None;
        }
        self.take_any_of(self.classes_for(request), request)
    }

    /// The same among what is free for requests of the other size: what it pins there matters less than that
    /// the request is served.
    pub(super) fn search_other_size(&mut self, request: &Request) -> Option<BlockId> {
        if request.extends.is_some() || request.class.is_growing() {
            return None;
        }
        self.take_any_of(self.classes_for(request).map(Class::other_size), request)
    }

    fn take_any_of(&mut self, classes: [Class; 2], request: &Request) -> Option<BlockId> {
        let (len, align, stream) = (request.len, request.align, request.stream);
        let id = classes.into_iter().find_map(|class| self.take_any(class, len, align, stream))?;
        self.hand_out(id, request.requested, stream);
        Some(id)
    }

    /// Chunks behind a place for the request, or the address space for one.
    fn map_step(&mut self, request: &mut Request) -> Option<Step> {
        let Some(place) = self.place_for(request) else {
            if let Some(segment) = request.extends {
                return self.clear_way(segment, request);
            }
            let (wish, least) = self.reservation_for(request.class, request.len, request.align);
            return Some(Step::Reserve(request.class, wish, least));
        };
        let mut remap = self.occupy(place, request);
        match self.chunks_for(request, &mut remap) {
            Chunks::Found => return Some(Step::Remap(Box::new(remap))),
            Chunks::CloseFirst => {
                self.abandon(remap);
                return self.close_for_request(request);
            }
            Chunks::JoinFirst(others) => {
                self.abandon(remap);
                request.joined = true;
                return Some(self.join(request, &others));
            }
            Chunks::MarkFirst(stream) => {
                self.abandon(remap);
                return Some(self.mark(request, stream));
            }
            Chunks::AskFirst(ids) => {
                self.abandon(remap);
                return Some(self.ask_for_work(request, ids));
            }
            Chunks::WaitFirst(gone) => {
                self.abandon(remap);
                return Some(self.wait_for_device_to_end(&gone));
            }
            Chunks::BreakFirst(back) => {
                self.abandon(remap);
                return Some(Step::GiveBack(back));
            }
            Chunks::Missing => {
                self.abandon(remap);
                if request.extends.is_none() && !core::mem::replace(&mut request.thrifty, true) {
                    return self.map_step(request);
                }
            }
        }
        None
    }

    /// Fills a remap with chunks: cached, new within the headroom, idle, new beyond it.
    pub(super) fn chunks_for(&mut self, request: &mut Request, remap: &mut Remap) -> Chunks {
        /// Chunks.
        const MUCH: u64 = 16;
        let granule = self.limits.granule;
        let need = remap.missing.len() as u64;
        let cached = need.min(self.cached.len() as u64);
        let mut left = need - cached;
        let chunks =
            |limit: Option<u64>| limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.held()) / granule);
        let hard = if request.device_full { 0 } else { chunks(self.limit) };
        let soft = if request.rung < Rung::Joined { hard.min(chunks(self.soft_limit())) } else { hard };
        let (goal, peak) = (self.goal(request.peak), self.high_water.max(request.peak));
        let within =
            if self.past_soft_limit(request.class.pool(), left * granule) { 0 } else { goal + request.room };
        let mut grow = left.min(soft).min(within.saturating_sub(self.held() + self.elsewhere) / granule);
        left -= grow;
        let pressed = soft - grow < left;
        let moves = match self.look_for_moves(request, left) {
            Ok(moves) => moves,
            Err(stream) => return Chunks::MarkFirst(stream),
        };
        left -= moves;
        if left > 0 && request.rung >= Rung::Map && request.may_give_back(self.limits.total) {
            let back = self.wide_to_break(left);
            if !back.is_empty() {
                return Chunks::BreakFirst(back);
            }
        }
        if left > 0 && !request.closed && self.can_close() {
            self.slow = self.slow.saturating_sub(1);
            // A prompt device answers at once: events may be had on credit before much more than the headroom is held.
            let may_ask = self.tokens > 0 || self.held() > goal + peak / 64;
            if pressed || (self.slow == 0 && may_ask) {
                return Chunks::CloseFirst;
            }
        }
        // While memory is short, waits on the device have their own rung. Each new chunk costs three calls, so for many of
        // them a wait is cheaper however few frees have earned one.
        let dear = left >= MUCH && self.held() > peak + peak / 8;
        let may_join = if pressed { request.rung >= Rung::Joined } else { self.tokens > 0 || dear };
        if left > 0 && !request.joined && may_join {
            let others = self.worth_joining(request, pressed.then_some(left * granule));
            if !others.is_empty() {
                return Chunks::JoinFirst(others);
            }
        }
        if left > 0
            && !pressed
            && let Some(first) = self.look_behind(request, left * granule)
        {
            return first;
        }
        let extra = left.min(soft - grow);
        grow += extra;
        if left > extra {
            request.lack = (left - extra) * granule + self.beyond_limit(request);
            request.soft = hard >= grow + left - extra;
            return Chunks::Missing;
        }
        if pressed {
            self.note_retry(request);
        }
        remap.runs = self.gather_to_move(moves);
        remap.handles = self.cached.split_off(self.cached.len() - cached as usize);
        remap.create = grow as u32;
        self.widen(request, remap);
        let moved: u64 = remap.runs.iter().map(|run| run.handles.len() as u64).sum();
        debug_assert_eq!(cached + moved + grow, need, "chunks were counted that cannot be had");
        self.physical += grow * granule;
        Chunks::Found
    }

    /// Bytes held beyond a limit that was set later: these, too, must go before a request gets new memory.
    pub(super) fn beyond_limit(&self, request: &Request) -> u64 {
        let limit = self.limit.filter(|_| !request.device_full);
        limit.map_or(0, |limit| self.held().saturating_sub(limit))
    }

    /// By what the limit would have to be higher for a request that is larger than it, beside all that is held; nothing where
    /// no limit helps.
    fn lack_of_all(&self, request: &mut Request) -> u64 {
        let Some(limit) = self.limit.filter(|_| request.len <= self.limits.total) else { return 0 };
        request.exact = true;
        let need = match self.uses_reservations(request) {
            true => request.len.next_multiple_of(self.limits.granule),
            false => self.classic_len(request),
        };
        (self.held() + need).saturating_sub(limit)
    }

    /// The most bytes that a request can get: what comes from elsewhere is bounded by neither device nor limit, and more
    /// than a limit may be held that was set later.
    fn most_for(&self, request: &Request) -> u64 {
        match self.is_elsewhere(request.class) {
            true => u64::MAX,
            false => self.limit.unwrap_or(u64::MAX).min(self.limits.total).max(self.held()),
        }
    }

    /// Counts a request that cannot be served from what is free or new.
    pub(crate) fn note_retry(&mut self, request: &mut Request) {
        if !request.retried {
            request.retried = true;
            self.tally.retries += 1;
            self.haste.end();
        }
    }

    /// Gives up a place that was occupied.
    pub(super) fn abandon(&mut self, remap: Remap) {
        self.busy -= 1;
        self.settle(remap.target, remap.home, remap.epoch);
    }

    /// Closes all open epochs for a request, which does that once; their events are asked then.
    pub(super) fn close_for_request(&mut self, request: &mut Request) -> Option<Step> {
        request.closed = true;
        request.polled = false;
        self.close_all()
    }

    /// What is to be done first where destroyed streams hold so many bytes back. With room to spare nobody is held up for it:
    /// while others work, the request grows. While a graph is captured on the device nobody may wait for it; what is refused
    /// once is not asked for again.
    pub(super) fn look_behind(&self, request: &Request, bytes: u64) -> Option<Chunks> {
        let gone = if request.captured { Vec::new() } else { self.left_behind(request, bytes) };
        if gone.is_empty() {
            return None;
        }
        let working = self.maybe_working(request.looked);
        match working.is_empty() {
            true => Some(Chunks::WaitFirst(gone)),
            false => (!request.looked).then_some(Chunks::AskFirst(working)),
        }
    }

    /// What is left when neither free blocks nor new memory will do, and costs no wait. What is idle in chunks serves
    /// requests that `grows` says of without being given back, as far as it can be had at all.
    pub(super) fn relief_step(&mut self, request: &mut Request, grows: bool) -> Option<Step> {
        if !request.closed && self.can_close() {
            return self.close_for_request(request);
        }
        if request.may_give_back(self.limits.total) {
            let back = if self.is_elsewhere(request.class) {
                self.idle_of_source(request.class.pool(), request.lack)
            } else {
                let back = self.idle_memory(Choice::ALL, request.lack, !grows);
                // A place for the request may lie across one of these, whose rest it needs elsewhere.
                let across = grows && back.is_empty();
                if across { self.wide_to_break(request.lack.div_ceil(self.limits.granule)) } else { back }
            };
            if !back.is_empty() {
                self.note_retry(request);
                request.rung = request.rung.max(Rung::Released);
                return Some(Step::GiveBack(back));
            }
        }
        if request.asks {
            self.note_retry(request);
            request.rung = request.rung.max(Rung::Asked);
            return Some(Step::Ask(request.lack));
        }
        None
    }

    /// Waits of the host.
    pub(super) fn wait_step(&mut self, request: &mut Request) -> Option<Step> {
        self.note_retry(request);
        if let Some(step) = self.wait_for_stream(request) {
            request.rung = request.rung.max(Rung::Waited);
            return Some(step);
        }
        if request.rung < Rung::Synchronized {
            request.rung = Rung::Synchronized;
            return self.wait_for_device(Some(request));
        }
        None
    }

    /// Ends a request: chunks it created are given back first.
    pub(super) fn give_up(&mut self, request: &mut Request, error: Error) -> Step {
        let spare = if request.ended { None } else { self.spare() };
        let Some(step) = spare else { return Step::Fail(error) };
        request.ended = true;
        request.failure = Some(error);
        step
    }

    /// Frees chunks that a request created and could not use.
    pub(crate) fn spare(&mut self) -> Option<Step> {
        if self.capturing > 0 {
            return self.unused_chunks();
        }
        if self.cached.is_empty() {
            return None;
        }
        let mut back = GiveBack::default();
        back.set_handles(core::mem::take(&mut self.cached));
        Some(Step::GiveBack(back))
    }
}
