//! Running queued work: what both modes share, and the deterministic scheduler.
//!
//! In deterministic mode nothing runs by itself. An operation is done when
//!
//! - virtual time has moved `lag` ticks past the tick at which it was queued ([`Shared::run_due`]),
//! - somebody waits for it ([`Shared::complete`], which runs only what it depends on), or
//! - a test asks for a random step ([`Shared::run_some`], chosen by the seed).
//!
//! An operation depends only on operations queued before it (on its own stream, or a record it
//! waits for). So the order of queueing is an order in which everything can run, which is what
//! `run_due` goes by, and `complete` ends.
//!
//! A task's closure runs without the lock; `runner` marks its stream meanwhile.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::{SmallVec, smallvec};

use super::clock::Place;
use super::codes;
use super::state::{Head, State};
use super::stream::Op;
use super::task::Work;
use super::{ExecMode, LAG_NEVER};

thread_local! {
    /// Whether this thread is inside the closure of a task.
    static IN_WORK: Cell<bool> = const { Cell::new(false) };
}

/// The state with what threads wait on.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Told whenever an operation is done.
    pub(super) done: Condvar,
    /// Told when a stream has something for a worker.
    pub(super) work: Condvar,
}

pub(super) type Guard<'a> = MutexGuard<'a, State>;

impl Shared {
    pub(super) fn new(state: State) -> Self {
        Self { state: Mutex::new(state), done: Condvar::new(), work: Condvar::new() }
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// Runs the operation at the head of a stream. There is one, nothing blocks it, and no other
    /// thread runs it. In deterministic mode a panic of its closure goes on to the caller.
    pub(super) fn run_head(&self, state: &mut Guard<'_>, slot: u32) {
        let stream = state.stream_mut(slot);
        let Some((tick, mut op)) = stream.queue.pop_front() else { return };
        let place = Place { slot, number: stream.done + 1 };
        let mut panic = None;
        match &mut op {
            Op::Task { work, .. } => {
                if let Some(work) = work.take() {
                    stream.runner = Some(thread::current().id());
                    panic = self.run_work(state, work);
                    state.stream_mut(slot).runner = None;
                }
            }
            Op::Callback { work, thread, block } => {
                let (thread, block) = (*thread, *block);
                if let Some(work) = work.take() {
                    state.reports.push(thread, work, block.then_some(place));
                }
                if block {
                    state.stream_mut(slot).queue.push_front((tick, op));
                    self.done.notify_all();
                    return;
                }
            }
            Op::Record { .. } | Op::Wait { .. } => {}
        }
        state.stream_mut(slot).done = place.number;
        state.finish_op(place, &op);
        self.done.notify_all();
        if let Some(panic) = panic {
            if state.config.mode != ExecMode::Threads {
                resume_unwind(panic);
            }
            state.stream_mut(slot).failure = Some(codes::AICORE_EXCEPTION);
        }
    }

    /// Runs a closure without the lock; returns its panic.
    pub(super) fn run_work(&self, state: &mut Guard<'_>, work: Work) -> Option<Box<dyn Any + Send>> {
        MutexGuard::unlocked(state, || {
            IN_WORK.set(true);
            let result = catch_unwind(AssertUnwindSafe(work));
            IN_WORK.set(false);
            result.err()
        })
    }

    /// Queues an operation (deterministic mode) and runs what is due by now.
    pub(super) fn queue_deterministic(&self, state: &mut Guard<'_>, place: Place, op: Op) {
        let tick = state.now;
        state.stream_mut(place.slot).queue.push_back((tick, op));
        state.fifo.push_back((tick, place));
        if !state.stream(place.slot).listed {
            state.stream_mut(place.slot).listed = true;
            state.busy.push(place.slot);
        }
        if state.config.lag == 0 {
            self.run_due(state);
        }
    }

    /// Runs what was queued `lag` ticks ago or earlier (deterministic mode).
    pub(super) fn run_due(&self, state: &mut Guard<'_>) {
        let mut at = 0;
        while let Some((tick, place)) = state.fifo.get(at).copied() {
            if at == 0 && state.is_done(place) {
                state.fifo.pop_front();
                continue;
            }
            let due = tick.saturating_add(state.config.lag);
            if due > state.now || state.config.lag == LAG_NEVER {
                break;
            }
            // What a callback holds up is left for later; other streams go on.
            if self.complete(state, place).is_err() {
                at += 1;
            } else if at > 0 {
                state.fifo.remove(at);
            }
        }
    }

    /// Runs a place and all that it depends on, and nothing else (deterministic mode).
    pub(super) fn complete(&self, state: &mut Guard<'_>, place: Place) -> Result<(), i32> {
        refuse_in_work()?;
        let mut stack: SmallVec<[Place; 8]> = smallvec![place];
        while let Some(place) = stack.last().copied() {
            if state.is_done(place) {
                stack.pop();
                continue;
            }
            match state.head(place.slot) {
                Head::Ready => self.run_head(state, place.slot),
                Head::Running => self.done.wait(state),
                Head::Behind(on) => stack.push(on),
                Head::Callback | Head::Empty | Head::Early => return Err(codes::INTERNAL_ERROR),
            }
        }
        Ok(())
    }

    /// Runs up to `max` operations (deterministic mode), each time the head of a stream chosen by
    /// the seed. Returns how many ran: less than `max` when nothing could run any more.
    pub(super) fn run_some(&self, state: &mut Guard<'_>, max: u64) -> Result<u64, i32> {
        refuse_in_work()?;
        let mut ran = 0;
        while ran < max && self.run_random(state) {
            ran += 1;
        }
        Ok(ran)
    }

    fn run_random(&self, state: &mut Guard<'_>) -> bool {
        let mut at = usize::try_from(next_random(&mut state.random) >> 33).unwrap_or(0);
        let mut blocked = 0;
        while blocked < state.busy.len() {
            at %= state.busy.len();
            let slot = state.busy[at];
            match state.head(slot) {
                Head::Ready => {
                    self.run_head(state, slot);
                    return true;
                }
                Head::Empty => {
                    state.stream_mut(slot).listed = false;
                    state.busy.swap_remove(at);
                }
                Head::Running | Head::Behind(_) | Head::Callback | Head::Early => {
                    at += 1;
                    blocked += 1;
                }
            }
        }
        false
    }
}

/// Refuses what would wait inside the closure of a task.
pub(super) fn refuse_in_work() -> Result<(), i32> {
    if IN_WORK.get() { Err(codes::INTERNAL_ERROR) } else { Ok(()) }
}

/// The next of a sequence of random numbers (splitmix64).
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
