//! Threads mode: workers run the heads of streams as soon as nothing blocks them.
//!
//! Streams with something to run stand in a list. A worker takes one, runs some of its operations
//! and looks for the next. A stream whose head waits for an event is noted at the stream it waits
//! for. Workers are started when a stream has work and no worker is free, so that closures that
//! block (a test holding work back) do not stop other streams, up to [`MOST_WORKERS`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::ExecMode;
use super::clock::Place;
use super::scheduler::{Guard, Shared, refuse_in_work};
use super::state::{Head, State};
use super::stream::Op;

/// More workers than this are never started.
const MOST_WORKERS: usize = 128;
/// Operations that a worker runs of one stream before it looks at the others.
const TURN: usize = 64;

/// The workers and their list of streams.
#[derive(Default)]
pub(super) struct Crew {
    ready: VecDeque<u32>,
    idle: usize,
    stop: bool,
    threads: Vec<JoinHandle<()>>,
}

impl State {
    /// Whether a thread that waits for a stream may run its head.
    fn may_help(&self, slot: u32) -> bool {
        let own = match self.stream(slot).queue.front() {
            Some((_, Op::Task { work, own })) => *own || work.is_none(),
            Some((_, Op::Record { .. } | Op::Wait { .. })) => true,
            Some((_, Op::Callback { .. })) | None => false,
        };
        own && self.head(slot) == Head::Ready
    }
}

impl Shared {
    /// Queues an operation (threads mode).
    pub(super) fn queue_threads(self: &Arc<Self>, state: &mut Guard<'_>, place: Place, op: Op) {
        let tick = state.now;
        state.stream_mut(place.slot).queue.push_back((tick, op));
        self.list(state, place.slot);
    }

    /// Somebody waits for a place: what is before it need not wait for the lag.
    fn force(self: &Arc<Self>, state: &mut Guard<'_>, place: Place) {
        let stream = state.stream_mut(place.slot);
        if stream.forced < place.number {
            stream.forced = place.number;
            self.list(state, place.slot);
        }
    }

    /// Time has passed, or the lag is another: streams whose heads are due can go on.
    pub(super) fn go_on_all(self: &Arc<Self>, state: &mut Guard<'_>) {
        for slot in 0..state.streams.len() as u32 {
            self.list(state, slot);
        }
    }

    /// Puts a stream into the workers' list, if it has anything to run and no worker is at it.
    fn list(self: &Arc<Self>, state: &mut Guard<'_>, slot: u32) {
        let stream = state.stream(slot);
        if stream.listed || stream.queue.is_empty() || stream.runner.is_some() {
            return;
        }
        state.stream_mut(slot).listed = true;
        state.crew.ready.push_back(slot);
        if state.crew.ready.len() <= state.crew.idle {
            self.work.notify_one();
        } else if state.crew.threads.len() < MOST_WORKERS && !state.crew.stop {
            let shared = Arc::clone(self);
            let spawned = thread::Builder::new().name("sim-device".into()).spawn(move || shared.serve());
            // Without a thread the work is done by those that exist, later.
            state.crew.threads.extend(spawned);
        }
    }

    /// What held a stream up may be gone: lets it go on, in either mode.
    pub(super) fn go_on(self: &Arc<Self>, state: &mut Guard<'_>, slot: u32) {
        match state.config.mode {
            ExecMode::Threads => self.list(state, slot),
            ExecMode::Deterministic { .. } => self.run_due(state),
        }
    }

    /// Streams that waited for operations of `slot` that are done now can go on.
    pub(super) fn wake_waiters(self: &Arc<Self>, state: &mut Guard<'_>, slot: u32) {
        let stream = state.stream_mut(slot);
        if stream.waiters.is_empty() {
            return;
        }
        let done = stream.done;
        let woken: Vec<_> = stream.waiters.extract_if(.., |(number, _)| *number <= done).collect();
        for (_, waiter) in woken {
            self.list(state, waiter);
        }
    }

    /// A worker's life.
    fn serve(self: Arc<Self>) {
        let mut state = self.lock();
        while !state.crew.stop {
            match state.crew.ready.pop_front() {
                Some(slot) => {
                    state.stream_mut(slot).listed = false;
                    self.run_turn(&mut state, slot);
                }
                None => {
                    state.crew.idle += 1;
                    self.work.wait(&mut state);
                    state.crew.idle -= 1;
                }
            }
        }
    }

    fn run_turn(self: &Arc<Self>, state: &mut Guard<'_>, slot: u32) {
        for _ in 0..TURN {
            if state.crew.stop {
                return;
            }
            match state.head(slot) {
                Head::Empty | Head::Running | Head::Callback | Head::Early => return,
                Head::Behind(on) => {
                    let stream = state.stream(slot);
                    if stream.done < stream.forced {
                        self.force(state, on);
                    }
                    let entry = (on.number, slot);
                    let waiters = &mut state.stream_mut(on.slot).waiters;
                    if !waiters.contains(&entry) {
                        waiters.push(entry);
                    }
                    return;
                }
                Head::Ready => self.run_head(state, slot),
            }
            self.wake_waiters(state, slot);
        }
        self.list(state, slot);
    }

    /// Waits until a place is done (threads mode); false when the deadline passed first.
    pub(super) fn wait_threads(
        self: &Arc<Self>,
        state: &mut Guard<'_>,
        place: Place,
        deadline: Option<Instant>,
    ) -> Result<bool, i32> {
        refuse_in_work()?;
        if state.config.lag != 0 {
            self.force(state, place);
        }
        while !state.is_done(place) {
            match deadline {
                // Sooner done than handed over and waited for. Functions of the program are left to
                // the workers: they may need what this thread holds.
                None if state.may_help(place.slot) => {
                    self.run_head(state, place.slot);
                    self.wake_waiters(state, place.slot);
                    // A worker that came by meanwhile has left the rest to this thread.
                    if state.is_done(place) || !state.may_help(place.slot) {
                        self.list(state, place.slot);
                    }
                }
                None => self.done.wait(state),
                Some(deadline) => {
                    if self.done.wait_until(state, deadline).timed_out() {
                        return Ok(state.is_done(place));
                    }
                }
            }
        }
        Ok(true)
    }

    /// Ends the workers: operations that have not begun stay undone, those that run are waited for.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.crew.stop = true;
        let threads = core::mem::take(&mut state.crew.threads);
        drop(state);
        self.work.notify_all();
        for thread in threads {
            // The last owner may be a task's closure: a worker cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
