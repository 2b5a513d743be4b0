//! The slow ways: a request through the ladder, and a free by the core.

use super::chores::Unheard;
use super::device::{Caller, Device};
use super::pressure::UnderWay;
use crate::core::Core;
use crate::core::block::BlockId;
use crate::core::perform;
use crate::core::plan::{Outcome, Request, Rung, Step};
use crate::core::pool::{DEFAULT, PoolIndex};
use crate::core::segment::Class;
use crate::core::stream::StreamId;
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::front::Missed;
use crate::history;
use crate::hook::{Action, MemoryEvent};
use crate::stats::DriverCalls;

pub(super) type Guard<'a> = crate::sync::MutexGuard<'a, Core>;

/// A call's hold on a pool. Ends also when a callback or the hook panics. To be dropped without the core's lock.
pub(super) struct Held<'a> {
    device: &'a Device,
    pool: PoolIndex,
}

impl<'a> Held<'a> {
    /// Begins to hold a pool, if there is one of that index.
    pub(super) fn new(device: &'a Device, core: &mut Core, pool: PoolIndex) -> Option<Self> {
        if !core.pools.is_there(pool) {
            return None;
        }
        core.pools.get_mut(pool).holders += 1;
        Some(Self { device, pool })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.device.core.lock().let_go(self.pool);
    }
}

impl Caller<'_> {
    /// A block of at least `bytes` bytes at a multiple of `align` for `stream`, from the pool of that serial.
    pub(super) fn allocate(&self, pool: u64, bytes: u64, align: u64, stream: Stream) -> Result<u64> {
        loop {
            if let Some(address) = self.attempt(pool, bytes, align, stream)? {
                return Ok(address);
            }
        }
    }

    /// The same; nothing when the block had to be kept back, because its address is that of a stale one.
    fn attempt(&self, pool: u64, bytes: u64, align: u64, stream: Stream) -> Result<Option<u64>> {
        let mut core = self.device.core.lock();
        let Some(len) = core.block_len(bytes) else {
            let reason = "more than any device has; ask for less".into();
            return Err(Error::Size { requested: bytes, reason });
        };
        if pool == 0
            && let Some(address) = self.device.take_to_peak(&mut core, self.map, (bytes, len, align), stream)
        {
            return Ok(Some(address));
        }
        let hold_up = if pool == 0 { self.device.hold_up(bytes, len, align, stream) } else { None };
        let missed = if hold_up.is_some() { Missed::Waits } else { Missed::Length(len) };
        let id = self.device.enter(&mut core, self.map, stream, bytes, (pool == 0).then_some(missed));
        // What was taken back is not held up any more.
        let hold_up = hold_up.and_then(|_| self.device.hold_up(bytes, len, align, stream));
        let mut class = Class::of(bytes);
        if pool != 0 {
            let device = self.device.limits.device;
            class = class.within(super::pools::known(&core, super::PoolId { device, serial: pool })?);
        }
        let stays = pool == 0 && self.device.front.stays(stream, class.is_small());
        let any = stays || hold_up.is_some();
        // The usual case needs no ladder.
        if !hold_up.is_some_and(|hold_up| hold_up.crowded)
            && let Some(block) = take_free(&mut core, class, (len, align, id), any)
        {
            core.hand_out(block, bytes, id);
            return Ok(self.finish(core, bytes, stream, block));
        }
        let mut request = Request::new(bytes, len, align, class, id, stream);
        let may_grow = |core: &mut Core| core.flush_can_wait() || stays;
        request.room = hold_up.map_or(0, |_| core.room_to_wait());
        let calm = pool == 0 && hold_up.map_or_else(|| may_grow(&mut core), |hold_up| !hold_up.crowded);
        if calm && let Some(step) = core.grow_calmly(&mut request, stays && hold_up.is_none()) {
            core = self.perform(core, step, &mut request);
            return self.climb(core, request);
        }
        if let Some(hold_up) = hold_up {
            let generation = core.generation;
            core = self.end_wait(core, hold_up);
            if core.generation != generation {
                // The stream is another one now, or none.
                return Ok(None);
            }
            if let Some(address) = self.device.take_resting::<true>(self.map, bytes, stream) {
                self.tell(core);
                return Ok(Some(address));
            }
        }
        if class.pool() == DEFAULT {
            return self.climb(core, request);
        }
        // While the lock is left the pool must not go.
        let _held = Held::new(self.device, &mut core, class.pool());
        self.climb(core, request)
    }

    #[cold]
    #[inline(never)]
    fn climb<'a>(&'a self, core: Guard<'a>, mut request: Request) -> Result<Option<u64>> {
        match self.serve(core, &mut request) {
            Ok((core, id)) => Ok(self.finish(core, request.requested, request.handle, id)),
            Err(error) => Err(self.complete(error)),
        }
    }

    /// Climbs the ladder until the request has its block. The core's lock is held on entry and when a
    /// block is returned, and free while the driver is called.
    pub(super) fn serve<'a>(
        &'a self,
        mut core: Guard<'a>,
        request: &mut Request,
    ) -> Result<(Guard<'a>, BlockId)> {
        request.asks = self.hook.callbacks.is_any();
        core.tally.ladder.requests += 1;
        loop {
            let step = core.advance(request);
            core.tally.ladder.count(&step);
            match step {
                Step::Ready(id) => {
                    core.high_water = core.high_water.max(request.peak);
                    return Ok((core, id));
                }
                Step::Ask(bytes) => core = self.ask(core, request, bytes),
                Step::Await => core = self.await_others(core, request),
                Step::Pause => core = self.let_finish(core, request),
                Step::Reserve(class, wish, least) => core = self.reserve(core, request, class, (wish, least)),
                Step::Flush => {
                    let (frees, peak) = self.device.note_flow(&mut core, request.requested);
                    request.peak = peak;
                    let blocks = self.device.drain(&mut core, self.map);
                    core.note_flush(blocks, frees);
                }
                Step::Fail(error) => {
                    self.tell(core);
                    return Err(error);
                }
                step => core = self.perform(core, step, request),
            }
        }
    }

    /// Performs a step without the lock and commits its outcome under it.
    pub(super) fn perform<'a>(
        &'a self,
        mut core: Guard<'a>,
        mut step: Step,
        request: &mut Request,
    ) -> Guard<'a> {
        if let Step::GiveBack(back) = &mut step {
            core.take_names_in(back);
        }
        self.follow_epochs(&core, &step);
        let mut under_way =
            UnderWay::begin(self.device, &mut core, step.may_help_others(), step.records_events());
        let (generation, sourced) = (core.generation, matches!(step, Step::Classic(_, _, _, Some(_))));
        drop(core);
        let mut calls = DriverCalls::default();
        let outcome = perform::perform(self.performer(), step, &mut calls);
        let now = self.driver.now();
        // Two sources may give the same memory at the same time.
        let turn = sourced.then(|| self.sourcing.lock());
        request.overlaps = sourced && self.overlaps_elsewhere(&outcome);
        let mut core = self.device.core.lock();
        let frees = core.all_frees();
        core.clock.note(frees, now);
        core.noter.note_time(now);
        core.tally.count_calls(&calls);
        if request.requested > 0 {
            core.tally.ladder.count_waits(&calls);
        }
        if core.generation == generation {
            self.commit(&mut core, request, outcome);
        } else {
            request.fail_by_reset();
        }
        drop(turn);
        under_way.end(&mut core);
        if core.ungranted.is_empty() { core } else { self.grant_later(core, request) }
    }

    /// What performing a step needs.
    pub(super) fn performer(&self) -> perform::Caller<'_> {
        let limits = &self.device.limits;
        perform::Caller {
            driver: self.driver,
            device: limits.device,
            granule: limits.granule,
            pages: limits.pages,
            wide: limits.wide,
        }
    }

    /// Grants peers access to what was mapped before they were set; what is refused is tried again with the next step. Not
    /// waited for: the request's own plan may have the chunk.
    #[cold]
    pub(super) fn grant_later<'a>(&'a self, mut core: Guard<'a>, request: &mut Request) -> Guard<'a> {
        let generation = core.generation;
        let (chunks, peers) = (core::mem::take(&mut core.ungranted), core.peers.clone());
        drop(core);
        let refused: Vec<_> =
            chunks.into_iter().filter(|&chunk| self.try_grant(chunk, &peers).is_err()).collect();
        let mut core = self.device.core.lock();
        if core.generation == generation {
            core.ungranted.extend(refused);
        } else {
            request.fail_by_reset();
        }
        core
    }

    /// Frees the live block that begins at `address`.
    pub(super) fn deallocate(&self, address: u64) -> Result<()> {
        let mut core = self.device.core.lock();
        let (id, requested) = self.device.unpublish(&mut core, self.map, address)?;
        if core.outlast(id) {
            return Ok(());
        }
        let pool = core.class_of(id).pool();
        core.free(id, requested);
        if core.is_asleep(pool) {
            return self.free_asleep(core, pool);
        }
        if core.keeps_nothing(pool) {
            self.give_back_freed(core, pool);
            return Ok(());
        }
        self.watch(&mut core, 2);
        self.device.follow_moves(&core);
        if core.logging || core.due || core.decay_due {
            self.after_free(core);
        }
        Ok(())
    }

    /// What is now and then to be done after a free: close an epoch, give old memory back, tell the hook.
    #[cold]
    pub(super) fn after_free<'a>(&'a self, mut core: Guard<'a>) {
        let mut log = core.take_log();
        let mut chore = Request::chore();
        if let Some(step) = core.due_query() {
            core = self.perform(core, step, &mut chore);
        }
        if let Some(step) = core.due() {
            core = self.perform(core, step, &mut chore);
        }
        if core::mem::take(&mut core.decay_due) {
            core = self.decay(core, &mut chore);
        }
        log.extend(core.take_log());
        drop(core);
        self.hook.tell(&log);
    }

    /// Tells the hook what was noted, and leaves the lock before.
    pub(super) fn tell(&self, mut core: Guard<'_>) {
        let log = core.take_log();
        drop(core);
        self.hook.tell(&log);
    }

    /// Publishes a block that the core has handed out, and counts it. Nothing when it has to be kept back.
    pub(super) fn finish(
        &self,
        mut core: Guard<'_>,
        requested: u64,
        stream: Stream,
        id: BlockId,
    ) -> Option<u64> {
        let address = core.blocks[id].addr;
        let stale = !core.stale.is_empty() && core.stale.contains(&address);
        if stale {
            core.shunned.insert(address, id);
        } else {
            self.device.publish(&mut core, self.map, id);
        }
        self.count_out(&mut core, id, requested, stream);
        if !stale {
            core.keep_block(history::Action::Allocate, id, requested);
        }
        self.watch(&mut core, 2);
        if core.logging {
            let unheard = Unheard { caller: self, address };
            self.tell(core);
            core::mem::forget(unheard);
        }
        (!stale).then_some(address)
    }

    /// Counts a block that was handed out, and tells of it.
    #[inline]
    pub(super) fn count_out(&self, core: &mut Core, id: BlockId, requested: u64, stream: Stream) {
        let (address, len, small) = (core.blocks[id].addr, core.blocks[id].len, core.class_of(id).is_small());
        if core.tally.charge(small, len, requested) {
            self.device.settle_peaks(core);
        }
        if core.is_oversize(id, len) {
            core.tally.oversize_allocations.add(small, 1);
        }
        core.note(Action::Allocate, address, len, stream);
    }

    /// Lets the front know of epochs that the step closes, before any event is recorded.
    fn follow_epochs(&self, core: &Core, step: &Step) {
        let epoch = |id: u32| {
            let state = &core.streams[id as usize];
            Some((state.slot?, state.open))
        };
        let front = &self.device.front;
        match step {
            Step::Record(streams) | Step::RecordAndAsk(streams) | Step::Join(_, _, streams) => {
                front.set_epochs(streams.iter().filter_map(|stream| epoch(stream.0)));
            }
            Step::WaitStream(stream, ..) => front.set_epochs(epoch(*stream).into_iter()),
            Step::WaitDevice(streams) => {
                front.set_epochs(streams.iter().filter_map(|stream| epoch(stream.0)));
            }
            _ => {}
        }
    }

    /// Runs the heap checker in debug builds, as often as the check level asks: at 1 now and then,
    /// at 2 after every call that the core serves, at 3 after every call.
    ///
    /// # Panics
    ///
    /// When an invariant does not hold. There is no way on from a broken heap.
    pub(super) fn watch(&self, core: &mut Core, level: u8) {
        /// At level 1, one call in so many is checked.
        const NOW_AND_THEN: u64 = 64;
        let wanted = core.config.check_level;
        if !cfg!(debug_assertions) || wanted == 0 {
            return;
        }
        core.watched += 1;
        if wanted >= level || core.watched.is_multiple_of(NOW_AND_THEN) {
            let mut faults = Vec::new();
            self.device.check_core(core, self.map, &mut faults);
            assert!(faults.is_empty(), "the heap is broken: {faults:#?}");
        }
    }

    fn commit(&self, core: &mut Core, request: &mut Request, outcome: Outcome) {
        let device = self.device.limits.device;
        let mut cover = |base, len, class: Class| {
            // Entries of the map would cost more than the few blocks of growing buffers are worth.
            let covered = !class.is_growing() && self.map.cover(device, base, len, class.is_small());
            if !covered {
                self.outside.add(device, base, len);
            }
            covered
        };
        core.commit(request, outcome, &mut cover);
        self.device.tell_completed(core);
        self.device.let_wait(core);
        self.device.follow_moves(core);
        self.device.forget_dropped(core, self.map, self.outside);
    }

    /// Adds to an out-of-memory error what only the driver and the front know, and has it reported where that is
    /// wanted. No lock is held.
    pub(super) fn complete(&self, mut error: Error) -> Error {
        if let Error::OutOfMemory(report) = &mut error {
            let stats = self.device.stats();
            report.allocated = stats.allocated_bytes.all.current as u64;
            report.active = stats.active_bytes.all.current as u64;
            // What the request created was given back before it failed.
            report.reserved = stats.reserved_bytes.all.current as u64;
            report.cached_handles = stats.cached_handles;
            let info = self.driver.memory_info(self.device.limits.device);
            report.add_device(info.ok(), report.reserved + report.cached_handles);
            if let Some(reports) = self.oom {
                reports.report(report);
            }
        }
        error
    }
}

impl Core {
    /// Takes back a live block that is in no map any more; the front may have changed its requested bytes.
    pub(super) fn free(&mut self, id: BlockId, requested: Option<u64>) {
        if let Some(requested) = requested
            && self.blocks[id].requested < crate::front::map::MOST_REQUESTED
        {
            self.blocks[id].requested = requested;
        }
        self.forget_uses_asleep(id);
        let block = &self.blocks[id];
        let (len, requested, waits) = (block.len, block.requested, block.uses > 0);
        let (address, stream) = (block.addr, self.streams[block.home as usize].handle);
        let small = self.class_of(id).is_small();
        if waits {
            self.tally.wait(small, len, requested);
        } else {
            self.tally.refund(small, len, requested);
        }
        if self.is_oversize(id, len) {
            self.tally.oversize_allocations.sub(small, 1);
        }
        self.note(Action::FreeRequested, address, len, stream);
        if !waits {
            self.note(Action::FreeCompleted, address, len, stream);
        }
        let kept = if waits { history::Action::FreeRequested } else { history::Action::FreeCompleted };
        self.keep_block(kept, id, requested);
        self.take_back(id, None);
    }

    /// Remembers an event for the hook.
    pub(crate) fn note(&mut self, action: Action, address: u64, bytes: u64, stream: Stream) {
        if self.logging {
            let device = self.limits.device;
            self.log.push(MemoryEvent { action, device, address, bytes, stream });
        }
    }

    /// The events to tell the hook once the lock is free.
    #[inline]
    pub(crate) fn take_log(&mut self) -> Vec<MemoryEvent> {
        if self.logging { core::mem::take(&mut self.log) } else { Vec::new() }
    }
}

impl Request {
    pub(super) fn new(
        requested: u64,
        len: u64,
        align: u64,
        class: Class,
        stream: u32,
        handle: Stream,
    ) -> Self {
        Self {
            requested,
            len,
            align,
            class,
            extends: None,
            stream,
            handle,
            rung: Rung::Search,
            polled: false,
            closed: false,
            joined: false,
            looked: false,
            marked: false,
            ended: false,
            returned: 0,
            lack: 0,
            soft: false,
            asks: false,
            asked: 0,
            asked_until: None,
            left_out: false,
            until: None,
            awaited: false,
            asked_again: false,
            refusal: None,
            device_full: false,
            source_dry: false,
            thrifty: false,
            exact: false,
            no_moves: false,
            no_wide: false,
            no_space: false,
            crowded: false,
            overlaps: false,
            retried: false,
            reset: false,
            spared: smallvec::SmallVec::new(),
            horizon: None,
            emptied: false,
            captured: false,
            peak: 0,
            room: 0,
            failure: None,
            ready: None,
        }
    }

    /// Ends a request whose device was reset: what its last step brought is gone.
    pub(super) fn fail_by_reset(&mut self) {
        self.reset = true;
        self.ended = true;
        self.ready = None;
        self.extends = None;
        let reason = "the device was reset meanwhile; ask again";
        self.failure = Some(Error::State { operation: "using a device", reason });
    }

    /// A request for nothing, to perform steps that serve no allocation.
    pub(super) fn chore() -> Self {
        Self::new(0, crate::core::UNIT, crate::core::UNIT, Class::SMALL, 0, Stream(0))
    }
}

/// A free block of the class: of the stream itself, or also of others (`any`), whose idle memory is better used up than
/// waited for or had by a flush.
#[inline]
fn take_free(
    core: &mut Core,
    class: Class,
    (len, align, stream): (u64, u64, StreamId),
    any: bool,
) -> Option<BlockId> {
    let class = if core.expands(class) { class } else { class.classic() };
    let own = core.take(class, len, align, stream);
    own.or_else(|| if any { core.take_foreign(class, len, align, stream) } else { None })
}
