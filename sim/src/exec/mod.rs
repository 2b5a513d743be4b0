//! Execution: streams, events, host callbacks, captures, virtual time, and the use checker.
//!
//! This half of the simulator knows nothing of device memory but address ranges, and the other
//! half nothing of streams.
//!
//! ```text
//!   Executor (this file, *_calls, reset)   one method for each call
//!      |
//!   Shared (scheduler, workers)    runs queued work: by seed, ticks and waits, or by threads
//!      |
//!   State  (state)  -- streams on slots (stream), events (event), handles (table),
//!      |               captures (capture)
//!   Checker (checker, history, finding) -- clocks (clock): who is ordered behind whom
//! ```
//!
//! # Words
//! - **operation**: what is queued to a stream: a task, a record, a wait, a host function.
//! - **place**: slot and number of an operation; names it for ever.
//! - **done**: the operation has run. **known**: the host has learnt so; only that orders anything.
//! - **tick**: virtual time moves in ticks, and only by [`Executor::tick`].
//!
//! # What orders two uses of memory
//! A task is ordered behind everything queued before it on its stream, behind the record of each
//! event its stream waited for before, and behind all that the host knew to be done when it was
//! queued. The host learns by a wait that returns and by a query that answers "complete"; all
//! threads of the program are one host. Nothing else orders: not that work has really finished, not
//! that a stream was destroyed. Two uses conflict when they overlap, one writes, nothing orders
//! them, and they are not of the same program object (see [`Access::tag`]).
//!
//! # Threads
//! All methods take `&self` and may be called from any thread. The closures of tasks run without
//! the executor's lock. Inside them nothing may be queued or waited for (on a device: a deadlock);
//! such calls answer [`codes::INTERNAL_ERROR`].

use std::sync::Arc;
use std::time::{Duration, Instant};

mod callback_calls;
mod capture;
mod capture_calls;
mod checker;
mod clock;
pub mod codes;
mod event;
mod event_calls;
#[cfg(test)]
mod face_tests;
mod finding;
mod history;
#[cfg(test)]
mod oracle;
mod reset;
mod scheduler;
mod state;
mod stream;
mod stream_calls;
mod table;
mod task;
#[cfg(test)]
mod tests;
mod workers;

pub use capture::{CaptureMode, CaptureStatus};
pub use event::{
    EVENT_CAPTURE_STREAM_PROGRESS, EVENT_DEFAULT, EVENT_DEVICE_USE_ONLY, EVENT_EXTERNAL, EVENT_IPC,
    EVENT_SYNC, EVENT_TIME_LINE, EventMirror, check_event_flags,
};
pub use finding::{Finding, HostOp, Party, TaskUse};
pub use stream_calls::{Mark, StreamInfo};
pub use task::{Access, Repeat, Task, Work};

use clock::{Place, Snapshot};
use event::refuse_if;
use scheduler::{Guard, Shared, refuse_in_work};
use state::State;
use stream::{Life, Op};

/// For [`ExecConfig::lag`]: time alone never finishes anything.
pub const LAG_NEVER: u64 = u64::MAX;

/// For timeouts: wait as long as it takes.
pub const WAIT_FOREVER: i32 = -1;

/// Stream flag: what is queued stays; a wait for the stream does not wait.
pub const STREAM_PERSISTENT: u32 = 0x4;
/// Stream flag: the device's processors take the work; a wait for the stream does not wait.
pub const STREAM_CPU_SCHEDULE: u32 = 0x10;

/// How an [`Executor`] is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecConfig {
    /// How many devices there are.
    pub devices: u32,
    /// How queued work runs.
    pub mode: ExecMode,
    /// Whether the use checker looks at tasks and host operations.
    pub checker: bool,
    /// An operation is done (deterministic mode) or begins (threads mode) this many ticks after it was
    /// queued, or when somebody waits for it; at once with zero, never by time alone with
    /// [`LAG_NEVER`].
    pub lag: u64,
    /// Events of a device that may hold a hardware event, which they do from their first record on.
    pub max_events: u32,
    /// Streams of a device that may exist, without the default stream.
    pub max_streams: u32,
}

impl Default for ExecConfig {
    fn default() -> Self {
        Self {
            devices: 1,
            mode: ExecMode::Deterministic { seed: 0 },
            checker: true,
            lag: 0,
            max_events: 65_536,
            max_streams: 1984,
        }
    }
}

/// How queued work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecMode {
    /// Only by ticks, waits and [`Executor::run_some`]; the same calls give the same run.
    Deterministic {
        /// Chooses among streams in [`Executor::run_some`].
        seed: u64,
    },
    /// By threads, some time after it was queued and the lag has passed in ticks.
    Threads,
}

/// Streams, events and the use checker of some devices.
///
/// Handles are never zero. A `stream` of zero is the default stream of `device` in every call. Where a
/// method takes a `device`, it also takes the number of a context of one (see
/// [`open_context`](Self::open_context)), whose streams are its own; only
/// [`reset_device`](Self::reset_device) and [`abort_device`](Self::abort_device) are about devices.
/// Dropping the executor drops work that has not begun.
pub struct Executor {
    shared: Arc<Shared>,
}

impl Executor {
    /// An executor with nothing but the default streams.
    #[must_use]
    pub fn new(config: ExecConfig) -> Self {
        Self { shared: Arc::new(Shared::new(State::new(config))) }
    }

    // ---- streams ----

    /// A new stream.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `NO_STREAM_RESOURCE` when the device has no more.
    pub fn create_stream(&self, device: u32) -> Result<u64, i32> {
        self.create_stream_with(device, 0, 0)
    }

    /// A new stream with a priority (0 is the highest) and flags, which are remembered; two of them count
    /// for [`synchronize_stream`](Self::synchronize_stream).
    ///
    /// # Errors
    /// As [`create_stream`](Self::create_stream).
    pub fn create_stream_with(&self, device: u32, priority: u32, flags: u32) -> Result<u64, i32> {
        let mut state = self.shared.lock();
        let owner = state.device_of(device)? as usize;
        refuse_if(state.stream_counts[owner] >= state.config.max_streams, codes::NO_STREAM_RESOURCE)?;
        let handle = state.add_stream(device, false)?;
        state.stream_counts[owner] += 1;
        let slot = state.slot(device, handle)?;
        let stream = state.stream_mut(slot);
        (stream.priority, stream.flags) = (priority, flags);
        Ok(handle)
    }

    /// The handle of a device's default stream.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn default_stream(&self, device: u32) -> Result<u64, i32> {
        let state = self.shared.lock();
        let slot = state.slot(device, 0)?;
        Ok(state.stream(slot).handle)
    }

    /// Whether the handle is one of a stream, of any device; zero stands for a default stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn check_stream(&self, stream: u64) -> Result<(), i32> {
        let known = stream == 0 || self.shared.lock().stream_handles.index(stream).is_some();
        event::refuse_if(!known, codes::INVALID_HANDLE)
    }

    /// Destroys a stream. Its work is first waited for, unless [`Self::set_destroy_waits`] says
    /// otherwise; with `force` work that has not begun is dropped instead. The host learns nothing
    /// by it.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `PARAM_INVALID` for a default stream, `INVALID_HANDLE`,
    /// `STREAM_CONTEXT`, `STREAM_CAPTURED`.
    pub fn destroy_stream(&self, device: u32, stream: u64, force: bool) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.may_destroy(device, stream)?;
        if force {
            state.stream_mut(slot).drop_work();
            // A callback may have held it up.
            self.shared.go_on(&mut state, slot);
        } else if state.destroy_waits {
            let place = state.stream(slot).snapshot(slot).place;
            self.wait_for(&mut state, place, WAIT_FOREVER)?;
            // Another thread may have destroyed it meanwhile.
            refuse_if(state.own_slot(device, stream)? != slot, codes::INVALID_HANDLE)?;
        }
        state.detach_stream(slot);
        Ok(())
    }

    /// Whether everything queued to the stream is done; if so the host knows it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`, `STREAM_CAPTURED`.
    pub fn stream_query(&self, device: u32, stream: u64) -> Result<bool, i32> {
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        refuse_if(state.stream(slot).capture.is_some(), codes::STREAM_CAPTURED)?;
        let idle = state.stream(slot).is_idle();
        if idle {
            let all = state.stream(slot).snapshot(slot);
            state.learn(&all);
        }
        Ok(idle)
    }

    /// The host waits for everything queued to a stream, of any device. `timeout` is in
    /// milliseconds, [`WAIT_FOREVER`] for none. Deterministic mode runs the work and never times out.
    /// For a stream created with [`STREAM_PERSISTENT`] or [`STREAM_CPU_SCHEDULE`] it comes back at once,
    /// having waited for nothing.
    ///
    /// # Errors
    /// `PARAM_INVALID` for a timeout of zero or less than -1, `INVALID_DEVICE`, `INVALID_HANDLE`,
    /// `STREAM_CAPTURED`, `STREAM_SYNC_TIMEOUT`, `AICORE_EXCEPTION` after a task panicked.
    pub fn synchronize_stream(&self, device: u32, stream: u64, timeout: i32) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.slot(device, stream)?;
        refuse_if(!is_timeout(timeout), codes::PARAM_INVALID)?;
        refuse_if(state.stream(slot).capture.is_some(), codes::STREAM_CAPTURED)?;
        if state.stream(slot).flags & (STREAM_PERSISTENT | STREAM_CPU_SCHEDULE) != 0 {
            return Ok(());
        }
        let all = state.stream(slot).snapshot(slot);
        self.wait_and_learn(&mut state, &[all], timeout, codes::STREAM_SYNC_TIMEOUT)
    }

    /// The host waits for everything queued to a device; `timeout` as in
    /// [`Self::synchronize_stream`].
    ///
    /// # Errors
    /// `PARAM_INVALID` for a timeout of zero or less than -1, `INVALID_DEVICE`, `STREAM_CAPTURED`
    /// while a stream of the device is, `STREAM_SYNC_TIMEOUT`, `AICORE_EXCEPTION`.
    pub fn synchronize_device(&self, device: u32, timeout: i32) -> Result<(), i32> {
        let mut state = self.shared.lock();
        state.device_of(device)?;
        refuse_if(!is_timeout(timeout), codes::PARAM_INVALID)?;
        refuse_if(state.context_captures(device), codes::STREAM_CAPTURED)?;
        let all = state.context_snapshots(device);
        self.wait_and_learn(&mut state, &all, timeout, codes::STREAM_SYNC_TIMEOUT)
    }

    // ---- work ----

    /// Queues a task to a stream.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`, `STREAM_CAPTURE_INVALIDATED`,
    /// `INTERNAL_ERROR` inside the closure of a task.
    pub fn submit(&self, device: u32, stream: u64, task: Task) -> Result<(), i32> {
        self.submit_work(device, stream, task, None)
    }

    /// Queues a task whose work can be repeated: in a captured graph it is done every time the graph
    /// runs. The task's own work is dropped.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_repeatable(&self, device: u32, stream: u64, task: Task, work: Repeat) -> Result<(), i32> {
        self.submit_work(device, stream, task, Some(work))
    }

    fn submit_work(&self, device: u32, stream: u64, task: Task, repeat: Option<Repeat>) -> Result<(), i32> {
        refuse_in_work()?;
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        if state.stream(slot).capture.is_some()
            && state.capture_submit(slot, (task.label, &task.accesses), repeat.as_ref())?
        {
            return Ok(());
        }
        if state.stream(slot).updating {
            return Ok(());
        }
        state.check_task(slot, task.label, &task.accesses);
        let own = repeat.is_some();
        let again = |repeat: Repeat| -> Work { Box::new(move || repeat()) };
        self.enqueue(&mut state, slot, Op::Task { work: repeat.map(again).or(task.work), own });
        Ok(())
    }

    /// Queues a host function to a stream: later work on the stream waits for it to return.
    ///
    /// # Errors
    /// As [`Self::submit`], and `STREAM_SUBSCRIBE` for a stream that somebody takes callbacks of.
    pub fn launch_host_func(&self, device: u32, stream: u64, work: Work) -> Result<(), i32> {
        {
            let mut state = self.shared.lock();
            let slot = state.own_slot(device, stream)?;
            refuse_if(state.stream(slot).subscriber.is_some(), codes::STREAM_SUBSCRIBE)?;
            state.stream_mut(slot).host_functions = true;
        }
        let task = Task { label: "host function", work: Some(work), ..Task::default() };
        self.submit(device, stream, task)
    }

    /// The number of the last operation queued to a stream; findings name tasks by it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn submitted(&self, device: u32, stream: u64) -> Result<u64, i32> {
        let state = self.shared.lock();
        let slot = state.slot(device, stream)?;
        Ok(state.stream(slot).last)
    }

    // ---- time and running ----

    /// Moves virtual time on by `n` ticks and runs what has become due.
    pub fn tick(&self, n: u64) {
        let mut state = self.shared.lock();
        state.now = state.now.saturating_add(n);
        self.time_passed(&mut state);
    }

    /// Virtual time in ticks.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.shared.lock().now
    }

    /// Sets the lag (see [`ExecConfig::lag`]), also for what is queued already, and runs what is
    /// due by it.
    pub fn set_lag(&self, lag: u64) {
        let mut state = self.shared.lock();
        state.config.lag = lag;
        self.time_passed(&mut state);
    }

    fn time_passed(&self, state: &mut Guard<'_>) {
        match state.config.mode {
            ExecMode::Threads => self.shared.go_on_all(state),
            ExecMode::Deterministic { .. } => self.shared.run_due(state),
        }
    }

    /// Runs up to `max` operations, each the head of a stream chosen by the seed. Returns how many
    /// ran; fewer than `max` when nothing is left. Zero in threads mode and inside closures.
    pub fn run_some(&self, max: u64) -> u64 {
        let mut state = self.shared.lock();
        if state.config.mode == ExecMode::Threads {
            return 0;
        }
        self.shared.run_some(&mut state, max).unwrap_or(0)
    }

    /// Runs everything queued, in an order chosen by the seed.
    pub fn run_all(&self) {
        self.run_some(u64::MAX);
    }

    /// Runs everything queued to one stream and what it depends on, without the host learning of
    /// it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `INTERNAL_ERROR` inside the closure of a task.
    pub fn run_stream(&self, device: u32, stream: u64) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.slot(device, stream)?;
        let place = state.stream(slot).snapshot(slot).place;
        self.wait_for(&mut state, place, WAIT_FOREVER).map(|_| ())
    }

    // ---- switches ----

    /// Whether destroying a stream waits for its work (the default). Otherwise the work stays
    /// queued without a handle, runs as if the stream were there, and only a device-wide wait or an
    /// event recorded before teaches the host that it is done.
    pub fn set_destroy_waits(&self, waits: bool) {
        self.shared.lock().destroy_waits = waits;
    }

    /// Whether the handle of a destroyed stream is given to the next stream created (off at first).
    pub fn set_stream_handle_reuse(&self, reuse: bool) {
        self.shared.lock().stream_handles.set_reuse(reuse);
    }

    /// Whether the handle of a destroyed event is given to the next event created (off at first).
    pub fn set_event_handle_reuse(&self, reuse: bool) {
        self.shared.lock().events.set_reuse(reuse);
    }

    /// Switches the use checker. What was queued while it was off is not in its history.
    pub fn set_checker(&self, on: bool) {
        self.shared.lock().config.checker = on;
    }

    // ---- use checker ----

    /// To be called before the host does something with `len` bytes of device memory from `start`:
    /// reports tasks that touch them and that the host does not know to be done. `Unmap`, `Free` and
    /// `Release` end the range's history.
    pub fn host_touch(&self, operation: HostOp, start: u64, len: u64) {
        self.shared.lock().check_host(operation, start, len);
    }

    /// The findings so far. At most 1000 are kept until they are taken.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.shared.lock().checker.findings().to_vec()
    }

    /// Takes the findings kept so far out.
    #[must_use]
    pub fn take_findings(&self) -> Vec<Finding> {
        self.shared.lock().checker.take_findings()
    }

    /// How many findings there were, also those taken or not kept.
    #[must_use]
    pub fn finding_count(&self) -> u64 {
        self.shared.lock().checker.count()
    }

    /// How many intervals of memory the checker keeps a history of.
    #[must_use]
    pub fn checker_intervals(&self) -> usize {
        self.shared.lock().checker.intervals()
    }

    // ---- shared by the calls ----

    /// Gives an operation the next place of a stream and queues it, or finishes it at once where
    /// nothing is before it and time is not needed.
    fn enqueue(&self, state: &mut Guard<'_>, slot: u32, op: Op) {
        let place = state.next_place(slot);
        let threads = state.config.mode == ExecMode::Threads;
        let ready = match &op {
            Op::Task { work, .. } => work.is_none(),
            Op::Record { .. } => true,
            Op::Callback { .. } => false,
            Op::Wait { on, .. } => state.is_done(*on),
        };
        let stream = state.stream(slot);
        if ready && state.config.lag == 0 && stream.done + 1 == place.number && stream.runner.is_none() {
            state.stream_mut(slot).done = place.number;
            state.finish_op(place, &op);
        } else if threads {
            self.shared.queue_threads(state, place, op);
        } else {
            self.shared.queue_deterministic(state, place, op);
        }
    }

    /// Waits until a place is done; false after `timeout` milliseconds (threads mode).
    fn wait_for(&self, state: &mut Guard<'_>, place: Place, timeout: i32) -> Result<bool, i32> {
        self.wait_until(state, place, deadline(timeout))
    }

    fn wait_until(
        &self,
        state: &mut Guard<'_>,
        place: Place,
        deadline: Option<Instant>,
    ) -> Result<bool, i32> {
        match state.config.mode {
            ExecMode::Deterministic { .. } => self.shared.complete(state, place).map(|()| true),
            ExecMode::Threads => self.shared.wait_threads(state, place, deadline),
        }
    }

    /// Waits for all the points; the host then knows them.
    fn wait_and_learn(
        &self,
        state: &mut Guard<'_>,
        points: &[Snapshot],
        timeout: i32,
        timed_out: i32,
    ) -> Result<(), i32> {
        let deadline = deadline(timeout);
        for point in points {
            if !self.wait_until(state, point.place, deadline)? {
                return Err(timed_out);
            }
        }
        let mut result = Ok(());
        for point in points {
            let stream = state.stream_mut(point.place.slot);
            let failure = stream.failure.take().or(stream.aborted);
            result = result.and(failure.map_or(Ok(()), Err));
            state.learn(point);
        }
        result
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl core::fmt::Debug for Executor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = self.shared.lock();
        let live = state.streams.iter().filter(|stream| stream.life == Life::Live).count();
        f.debug_struct("Executor")
            .field("config", &state.config)
            .field("now", &state.now)
            .field("streams", &live)
            .field("findings", &state.checker.count())
            .finish_non_exhaustive()
    }
}

/// Whether this thread is inside the closure of a task, where a device forbids almost every call.
#[must_use]
pub fn in_callback() -> bool {
    refuse_in_work().is_err()
}

/// Whether a timeout is one: milliseconds above 0, or [`WAIT_FOREVER`].
#[must_use]
pub fn is_timeout(timeout: i32) -> bool {
    timeout == WAIT_FOREVER || timeout > 0
}

fn deadline(timeout: i32) -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(u64::try_from(timeout).ok()?))
}
