//! Host callbacks of the older kind: a callback queued to a stream runs in a thread of the program
//! that has subscribed to the stream, when that thread asks for it.
//!
//! A blocking callback holds its stream up until it has returned. Nobody but the program can go on
//! from there, so in deterministic mode a wait that would need it answers `INTERNAL_ERROR`; on a
//! device it would hang unless another thread processes reports.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::clock::Place;
use super::event::refuse_if;
use super::scheduler::Guard;
use super::stream::Op;
use super::task::Work;
use super::{ExecMode, Executor, State, WAIT_FOREVER, codes, deadline, refuse_in_work};

/// A callback whose turn on its stream has come.
pub(super) struct Report {
    work: Work,
    /// The blocking callback's place, which is done when the work is.
    blocks: Option<Place>,
}

/// Reports of each subscribed thread.
#[derive(Default)]
pub(super) struct Reports(HashMap<u64, VecDeque<Report>>);

impl Reports {
    /// A callback's turn has come.
    pub(super) fn push(&mut self, thread: u64, work: Work, blocks: Option<Place>) {
        self.0.entry(thread).or_default().push_back(Report { work, blocks });
    }
}

/// More threads than this cannot subscribe.
const MOST_THREADS: usize = 1024;

impl Executor {
    /// The program's thread with the number `thread` takes the callbacks of a stream.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`; `STREAM_SUBSCRIBE` for a stream that is
    /// subscribed to or has had a host function; `THREAD_SUBSCRIBE` when 1024 threads have.
    pub fn subscribe_report(&self, thread: u64, device: u32, stream: u64) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        let stream = state.stream(slot);
        refuse_if(stream.subscriber.is_some() || stream.host_functions, codes::STREAM_SUBSCRIBE)?;
        let threads = state.reports.0.len();
        refuse_if(
            threads >= MOST_THREADS && !state.reports.0.contains_key(&thread),
            codes::THREAD_SUBSCRIBE,
        )?;
        state.reports.0.entry(thread).or_default();
        state.stream_mut(slot).subscriber = Some(thread);
        Ok(())
    }

    /// The thread takes no more callbacks of the stream. Those already queued still come to it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`; `STREAM_SUBSCRIBE` if this thread is
    /// not the stream's.
    pub fn unsubscribe_report(&self, thread: u64, device: u32, stream: u64) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        refuse_if(state.stream(slot).subscriber != Some(thread), codes::STREAM_SUBSCRIBE)?;
        state.stream_mut(slot).subscriber = None;
        let others = state.streams.iter().any(|stream| stream.subscriber == Some(thread));
        if !others && state.reports.0.get(&thread).is_some_and(VecDeque::is_empty) {
            state.reports.0.remove(&thread);
        }
        Ok(())
    }

    /// Queues a callback to a stream; with `block` the stream goes on only when it has returned.
    ///
    /// # Errors
    /// `STREAM_NO_CALLBACK` for a stream nobody has subscribed to, else as [`Executor::submit`].
    pub fn launch_callback(&self, device: u32, stream: u64, work: Work, block: bool) -> Result<(), i32> {
        refuse_in_work()?;
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        let thread = state.stream(slot).subscriber.ok_or(codes::STREAM_NO_CALLBACK)?;
        if state.capture_submit(slot, ("callback", &[]), None)? {
            return Ok(());
        }
        self.enqueue(&mut state, slot, Op::Callback { work: Some(work), thread, block });
        Ok(())
    }

    /// Runs one callback in the calling thread, which has the number `thread`. Waits for one up to
    /// `timeout` milliseconds ([`WAIT_FOREVER`] for ever); in deterministic mode not at all.
    ///
    /// # Errors
    /// `INVALID_PARAM` for a timeout of zero or less than -1; `THREAD_SUBSCRIBE` for a thread that
    /// has not subscribed; `REPORT_TIMEOUT`; `INTERNAL_ERROR` inside a closure.
    ///
    /// # Panics
    /// When the callback does.
    pub fn process_report(&self, thread: u64, timeout: i32) -> Result<(), i32> {
        refuse_if(timeout == 0 || timeout < WAIT_FOREVER, codes::INVALID_PARAM)?;
        refuse_in_work()?;
        let deadline = deadline(timeout);
        let mut state = self.shared.lock();
        loop {
            let queue = state.reports.0.get_mut(&thread).ok_or(codes::THREAD_SUBSCRIBE)?;
            if let Some(report) = queue.pop_front() {
                self.run_report(&mut state, report);
                return Ok(());
            }
            let late = deadline.is_some_and(|deadline| deadline <= Instant::now());
            refuse_if(late || state.config.mode != ExecMode::Threads, codes::REPORT_TIMEOUT)?;
            match deadline {
                Some(deadline) => drop(self.shared.done.wait_until(&mut state, deadline).timed_out()),
                None => self.shared.done.wait(&mut state),
            }
        }
    }

    fn run_report(&self, state: &mut Guard<'_>, report: Report) {
        let panic = self.shared.run_work(state, report.work);
        if let Some(place) = report.blocks {
            state.end_blocking_callback(place);
            self.shared.wake_waiters(state, place.slot);
            self.shared.go_on(state, place.slot);
        }
        self.shared.done.notify_all();
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }
}

impl State {
    /// The blocking callback at the head of a stream has returned.
    fn end_blocking_callback(&mut self, place: Place) {
        let stream = self.stream_mut(place.slot);
        // A forced destruction may have let the stream go on before.
        if stream.done + 1 == place.number && matches!(stream.queue.front(), Some((_, Op::Callback { .. }))) {
            stream.queue.pop_front();
            stream.done = place.number;
        }
    }
}
