//! What stands behind the executor's lock: streams, events, clocks, checker, captures, queues.
//!
//! Everything here works on plain data; running work (which happens without the lock) is the
//! business of the two schedulers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::callback_calls::Reports;
use super::capture::Captures;
use super::checker::{Checker, StreamNames};
use super::clock::{HostClock, Place, Snapshot};
use super::codes;
use super::event::{Event, refuse_if};
use super::stream::{Life, Op, Stream};
use super::table::Table;
use super::workers::Crew;
use super::{ExecConfig, ExecMode, LAG_NEVER};

/// All of the executor's state.
pub(super) struct State {
    pub(super) config: ExecConfig,
    /// Virtual time.
    pub(super) now: u64,
    /// Real time at the start, for event times in threads mode.
    pub(super) born: Instant,
    pub(super) streams: Vec<Stream>,
    pub(super) stream_handles: Table<u32>,
    pub(super) free_slots: Vec<u32>,
    /// By number; the first ones are those of the devices themselves.
    pub(super) contexts: Vec<Context>,
    /// Live streams of each device, without default streams.
    pub(super) stream_counts: Vec<u32>,
    pub(super) events: Table<Event>,
    /// Events of each device that hold a hardware event.
    pub(super) event_counts: Vec<u32>,
    pub(super) host: HostClock,
    pub(super) checker: Checker,
    pub(super) captures: Captures,
    /// Whether destroying a stream first lets its work end.
    pub(super) destroy_waits: bool,
    /// Deterministic mode: operations in the order they were queued, with the tick.
    pub(super) fifo: VecDeque<(u64, Place)>,
    /// Deterministic mode: slots that may have something queued.
    pub(super) busy: Vec<u32>,
    /// Deterministic mode: state of the random numbers.
    pub(super) random: u64,
    /// Callbacks that wait for their threads.
    pub(super) reports: Reports,
    /// Threads mode: workers and what they shall do.
    pub(super) crew: Crew,
}

/// A device with streams of its own: the device itself, or a further context of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) device: u32,
    /// The slot of its default stream.
    pub(super) default_slot: u32,
    pub(super) open: bool,
}

/// What is to be done with the head of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Nothing is queued.
    Empty,
    /// It can run.
    Ready,
    /// A thread runs it.
    Running,
    /// It waits for a place on another stream.
    Behind(Place),
    /// It waits for a callback to return.
    Callback,
    /// Threads mode: not enough ticks have passed since it was queued, and nobody waits for it.
    Early,
}

struct Names<'a>(&'a [Stream]);

impl StreamNames for Names<'_> {
    fn stream_name(&self, slot: u32) -> (u32, u64, bool) {
        self.0.get(slot as usize).map_or((0, 0, false), |s| (s.device, s.handle, s.default))
    }
}

impl State {
    pub(super) fn new(config: ExecConfig) -> Self {
        let random = match config.mode {
            ExecMode::Deterministic { seed } => seed,
            ExecMode::Threads => 0,
        };
        let devices = config.devices as usize;
        let mut state = Self {
            config,
            now: 0,
            born: Instant::now(),
            streams: Vec::new(),
            stream_handles: Table::new(0x51),
            free_slots: Vec::new(),
            contexts: Vec::new(),
            stream_counts: vec![0; devices],
            events: Table::new(0x52),
            event_counts: vec![0; devices],
            host: HostClock::default(),
            checker: Checker::default(),
            captures: Captures::default(),
            destroy_waits: true,
            fifo: VecDeque::new(),
            busy: Vec::new(),
            random,
            reports: Reports::default(),
            crew: Crew::default(),
        };
        for device in 0..state.config.devices {
            let made = state.add_context(device);
            debug_assert!(made.is_ok(), "an empty table has room");
        }
        state
    }

    // ---- streams ----

    /// A new context of a device: its number.
    pub(super) fn add_context(&mut self, device: u32) -> Result<u32, i32> {
        refuse_if(device >= self.config.devices, codes::INVALID_DEVICE)?;
        let number = u32::try_from(self.contexts.len()).map_err(|_| codes::NO_STREAM_RESOURCE)?;
        self.contexts.push(Context { device, default_slot: 0, open: true });
        let handle = self.add_stream(number, true)?;
        let slot = self.slot(number, handle)?;
        self.contexts[number as usize].default_slot = slot;
        Ok(number)
    }

    /// The device of an open context.
    pub(super) fn device_of(&self, context: u32) -> Result<u32, i32> {
        let found = self.contexts.get(context as usize).filter(|context| context.open);
        found.map(|context| context.device).ok_or(codes::INVALID_DEVICE)
    }

    /// Puts a stream of a context on a slot and gives it a handle.
    pub(super) fn add_stream(&mut self, context: u32, default: bool) -> Result<u64, i32> {
        let device = self.device_of(context)?;
        let (slot, last) = match self.free_slots.last() {
            Some(slot) => (*slot, self.host.up_to(*slot)),
            None => (u32::try_from(self.streams.len()).map_err(|_| codes::NO_STREAM_RESOURCE)?, 0),
        };
        let handle = self.stream_handles.insert(slot).ok_or(codes::NO_STREAM_RESOURCE)?;
        let mut stream = Stream::new(device, default, last);
        stream.context = context;
        stream.handle = handle;
        if self.free_slots.pop().is_some() {
            debug_assert_eq!(self.streams[slot as usize].last, last);
            // The slot may still stand in the list of busy ones.
            stream.listed = self.streams[slot as usize].listed;
            self.streams[slot as usize] = stream;
        } else {
            self.streams.push(stream);
        }
        Ok(handle)
    }

    /// The slot of a stream of any context; zero is the default stream of `context`.
    pub(super) fn slot(&self, context: u32, stream: u64) -> Result<u32, i32> {
        let found = self.contexts.get(context as usize).filter(|context| context.open);
        let default = found.ok_or(codes::INVALID_DEVICE)?.default_slot;
        if stream == 0 {
            return Ok(default);
        }
        self.stream_handles.get(stream).copied().ok_or(codes::INVALID_HANDLE)
    }

    /// The slot of a stream of this context.
    pub(super) fn own_slot(&self, context: u32, stream: u64) -> Result<u32, i32> {
        let slot = self.slot(context, stream)?;
        refuse_if(self.stream(slot).context != context, codes::STREAM_CONTEXT)?;
        Ok(slot)
    }

    pub(super) fn stream(&self, slot: u32) -> &Stream {
        &self.streams[slot as usize]
    }

    pub(super) fn stream_mut(&mut self, slot: u32) -> &mut Stream {
        &mut self.streams[slot as usize]
    }

    /// Whether the operation at a place is done.
    pub(super) fn is_done(&self, place: Place) -> bool {
        self.stream(place.slot).done >= place.number
    }

    /// Gives a stream another handle; the old one is stale.
    pub(super) fn rename_stream(&mut self, slot: u32) {
        if let Some(index) = self.stream_handles.index(self.stream(slot).handle) {
            self.stream_handles.retire(index);
            self.stream_handles.free(index);
        }
        if let Some(handle) = self.stream_handles.insert(slot) {
            self.stream_mut(slot).handle = handle;
        }
    }

    /// Takes the handle away; what is queued stays.
    pub(super) fn detach_stream(&mut self, slot: u32) {
        let (device, handle) = (self.stream(slot).device, self.stream(slot).handle);
        if let Some(index) = self.stream_handles.index(handle) {
            self.stream_handles.retire(index);
            self.stream_handles.free(index);
        }
        self.stream_mut(slot).life = Life::Destroyed;
        self.stream_counts[device as usize] -= u32::from(!self.stream(slot).default);
        self.free_slot_if_known(slot);
    }

    fn free_slot_if_known(&mut self, slot: u32) {
        let known = self.host.up_to(slot);
        let stream = &mut self.streams[slot as usize];
        if stream.life == Life::Destroyed && stream.is_idle() && known >= stream.last {
            stream.life = Life::Free;
            stream.clock = Arc::default();
            self.free_slots.push(slot);
        }
    }

    /// The host has learnt that everything before the snapshot is done.
    pub(super) fn learn(&mut self, snapshot: &Snapshot) {
        let mut destroyed = SmallVec::<[u32; 4]>::new();
        let Self { host, streams, .. } = self;
        host.learn(snapshot, |slot| {
            if streams[slot as usize].life == Life::Destroyed {
                destroyed.push(slot);
            }
        });
        for slot in destroyed {
            self.free_slot_if_known(slot);
        }
    }

    /// Everything queued to each stream of a device that the host does not know to be done.
    pub(super) fn device_snapshots(&self, device: u32) -> Vec<Snapshot> {
        self.snapshots(|stream| stream.device == device)
    }

    /// The same for the streams of one context.
    pub(super) fn context_snapshots(&self, context: u32) -> Vec<Snapshot> {
        self.snapshots(|stream| stream.context == context)
    }

    fn snapshots(&self, wanted: impl Fn(&Stream) -> bool) -> Vec<Snapshot> {
        let unknown = |slot: u32, stream: &Stream| {
            self.host.up_to(slot) < stream.last || stream.failure.is_some() || stream.aborted.is_some()
        };
        (0u32..)
            .zip(&self.streams)
            .filter(|(slot, stream)| stream.life != Life::Free && wanted(stream) && unknown(*slot, stream))
            .map(|(slot, stream)| stream.snapshot(slot))
            .collect()
    }

    // ---- events ----

    /// The index of a live event.
    pub(super) fn event(&self, event: u64) -> Result<u32, i32> {
        refuse_if(event == 0, codes::INVALID_PARAM)?;
        self.events.index(event).ok_or(codes::INVALID_HANDLE)
    }

    /// One operation queued for an event is done.
    pub(super) fn event_done(&mut self, index: u32, place: Place, wait: bool) {
        let time = self.time();
        let Some(event) = self.events.at_mut(index) else { return };
        event.pending -= 1;
        if let Some(mirror) = event.mirror.as_ref().filter(|_| !wait) {
            mirror.done();
        }
        if wait {
            event.pending_waits -= 1;
        } else if event.record.as_ref().is_some_and(|record| record.place == place) {
            event.time = Some(time);
        }
        self.drop_event_if_dead(index);
    }

    /// Takes an event's handle away; the event goes when nothing is queued for it.
    pub(super) fn retire_event(&mut self, index: u32) {
        if let Some(event) = self.events.at_mut(index) {
            event.destroyed = true;
        }
        self.events.retire(index);
        self.drop_event_if_dead(index);
    }

    /// Frees a destroyed event for which nothing is queued.
    fn drop_event_if_dead(&mut self, index: u32) {
        let Some(event) = self.events.at(index) else { return };
        if event.destroyed && event.pending == 0 {
            if event.hardware {
                self.event_counts[event.device as usize] -= 1;
            }
            self.events.free(index);
        }
    }

    // ---- queues ----

    /// Gives an operation the next place of a stream.
    pub(super) fn next_place(&mut self, slot: u32) -> Place {
        let stream = self.stream_mut(slot);
        stream.last += 1;
        Place { slot, number: stream.last }
    }

    /// What is to be done with the head of a stream.
    pub(super) fn head(&self, slot: u32) -> Head {
        let stream = self.stream(slot);
        match stream.queue.front() {
            _ if stream.runner.is_some() => Head::Running,
            None => Head::Empty,
            Some((tick, _)) if self.is_early(stream, *tick) => Head::Early,
            Some((_, Op::Wait { on, .. })) if !self.is_done(*on) => Head::Behind(*on),
            Some((_, Op::Callback { work: None, .. })) => Head::Callback,
            Some(_) => Head::Ready,
        }
    }

    /// Whether the head of a stream, queued at that tick, must wait for time to pass. In deterministic
    /// mode the scheduler looks after that.
    fn is_early(&self, stream: &Stream, tick: u64) -> bool {
        let lag = self.config.lag;
        lag != 0
            && self.config.mode == ExecMode::Threads
            && stream.done >= stream.forced
            && (lag == LAG_NEVER || self.now < tick.saturating_add(lag))
    }

    /// Does what a queued operation other than a task does when its turn comes.
    pub(super) fn finish_op(&mut self, place: Place, op: &Op) {
        match op {
            Op::Task { .. } | Op::Callback { .. } => {}
            Op::Record { event } => self.event_done(*event, place, false),
            Op::Wait { event, .. } => self.event_done(*event, place, true),
        }
    }

    /// Time in nanoseconds: a tick is a microsecond in deterministic mode.
    pub(super) fn time(&self) -> u64 {
        match self.config.mode {
            ExecMode::Deterministic { .. } => self.now.saturating_mul(1000),
            ExecMode::Threads => u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    // ---- checker ----

    /// Tells the checker of a task that is about to take the next place of a stream.
    pub(super) fn check_task(&mut self, slot: u32, label: &'static str, accesses: &[super::Access]) {
        if !self.config.checker {
            return;
        }
        let Self { checker, streams, host, now, .. } = self;
        let stream = &streams[slot as usize];
        let place = Place { slot, number: stream.last + 1 };
        checker.task((place, *now), label, accesses, (&stream.clock, host), &Names(streams));
    }

    /// Tells the checker of a host operation.
    pub(super) fn check_host(&mut self, operation: super::HostOp, start: u64, len: u64) {
        if self.config.checker {
            let Self { checker, streams, host, now, .. } = self;
            checker.host(operation, (start, len), *now, host, &Names(streams));
        }
    }
}
