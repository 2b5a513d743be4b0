//! Steps of the ladder that are no driver calls: framework callbacks, and waiting for other threads' plans.
//!
//! A plan calls the driver, or the functions of a pool's source, which may call the allocator. What is called from
//! there cannot wait for the plan it is called from, and for others not to the end, because they may be waiting for
//! that one in the same way.

use core::cell::Cell;
use std::time::{Duration, Instant};

use super::device::{Caller, Device};
use super::requests::Guard;
use crate::core::Core;
use crate::core::plan::Request;
use crate::error::Error;
use crate::hook::Asked;
use crate::sync::thread;

/// How long a request that would fail waits for a framework callback that runs in another thread. The
/// callback may in turn be waiting for this thread, so it cannot be waited for to the end. As long, each, for other
/// threads' plans, if it comes from a function of a source.
const PATIENCE: Duration = Duration::from_secs(1);

thread::thread_local! {
    /// Plans that this thread performs, of any device. Above zero in functions of a source only.
    static PERFORMED: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is in a function of a pool's source, called for a plan of its own.
pub(super) fn is_in_plan() -> bool {
    PERFORMED.with(Cell::get) > 0
}

/// A plan that holds memory while the driver is called for it. Ends also when the driver panics, so that
/// nobody waits for it for ever.
pub(super) struct UnderWay<'a> {
    device: &'a Device,
    plan: Option<u64>,
}

impl<'a> UnderWay<'a> {
    /// A plan of this thread begins, if it holds memory; whether it `records` events.
    pub(super) fn begin(device: &'a Device, core: &mut Core, holds: bool, records: bool) -> Self {
        PERFORMED.with(|plans| plans.set(plans.get() + u32::from(holds)));
        Self { device, plan: holds.then(|| core.transit.begin(thread::current().id(), records)) }
    }

    /// The plan is committed.
    pub(super) fn end(&mut self, core: &mut Core) {
        if let Some(plan) = self.plan.take() {
            PERFORMED.with(|plans| plans.set(plans.get() - 1));
            core.transit.end(plan);
            if core.transit.waiting > 0 {
                self.device.settled.notify_all();
            }
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.plan.is_some() {
            let device = self.device;
            self.end(&mut device.core.lock());
        }
    }
}

impl Caller<'_> {
    /// Calls the next framework callback, without the lock.
    pub(super) fn ask<'a>(&'a self, core: Guard<'a>, request: &mut Request, bytes: u64) -> Guard<'a> {
        let (device, generation) = (self.device.limits.device, core.generation);
        // What the hook is to know comes first.
        self.tell(core);
        // A callback that adds itself anew would be asked for ever.
        let until = *request.asked_until.get_or_insert_with(|| self.hook.callbacks.last());
        let asked = self.hook.callbacks.call_next(device, bytes, request.asked, until);
        let mut core = self.device.core.lock();
        if core.generation != generation {
            request.fail_by_reset();
        }
        match asked {
            Asked::Called { id, freed } => {
                request.asked = id;
                core.tally.ladder.asked += 1;
                if freed {
                    // It may have freed blocks, and memory of the device that is none of ours.
                    self.device.drain(&mut core, self.map);
                    request.climb_again();
                }
            }
            Asked::Nobody { left_out } => {
                request.asks = false;
                request.left_out |= left_out;
            }
        }
        core
    }

    /// Lets other threads finish what they do with memory that the request cannot do without.
    pub(super) fn let_finish<'a>(&'a self, mut core: Guard<'a>, request: &mut Request) -> Guard<'a> {
        if is_in_plan() {
            let operation = "waiting for memory that is being moved";
            let reason =
                "a function of a pool's source asks for it, and it may be moved by the call that called that";
            request.failure = Some(Error::State { operation, reason });
            return core;
        }
        let generation = core.generation;
        if core.transit.is_any_under_way() {
            core.transit.waiting += 1;
            self.device.settled.wait(&mut core);
            core.transit.waiting -= 1;
        } else {
            // Whoever has it is between two steps.
            drop(core);
            thread::yield_now();
            core = self.device.core.lock();
        }
        if core.generation != generation {
            request.fail_by_reset();
        }
        core
    }

    /// Waits until no other thread records events any more that it began to record before; one second at most, because
    /// what hands queued work over for them may in turn wait for this thread.
    pub(super) fn let_record(&self, mut core: Guard<'_>) {
        let (until, this) = (core.transit.last(), thread::current().id());
        if !core.transit.is_recording(until, this) {
            return;
        }
        let deadline = Instant::now() + PATIENCE;
        core.transit.waiting += 1;
        while core.transit.is_recording(until, this)
            && !self.device.settled.wait_until(&mut core, deadline).timed_out()
        {}
        core.transit.waiting -= 1;
    }

    /// Before a request fails: waits for one of the plans, of any thread, that were made before it came
    /// that far, or for a callback in another thread. What they leave may be what it lacks.
    pub(super) fn await_others<'a>(&'a self, mut core: Guard<'a>, request: &mut Request) -> Guard<'a> {
        let generation = core.generation;
        let this = thread::current().id();
        let until = *request.until.get_or_insert(core.transit.last());
        let before = core.transit.count_until(until, this);
        if before > 0 {
            core.tally.ladder.awaited += 1;
            // Plans made later end as well. To climb again after each of those, two such requests would wake each
            // other for as long as the plan of a third takes.
            let deadline = is_in_plan().then(|| Instant::now() + PATIENCE);
            core.transit.waiting += 1;
            while core.transit.count_until(until, this) == before && core.generation == generation {
                match deadline {
                    Some(deadline) if self.device.settled.wait_until(&mut core, deadline).timed_out() => {
                        break;
                    }
                    Some(_) => {}
                    None => self.device.settled.wait(&mut core),
                }
            }
            core.transit.waiting -= 1;
            if core.transit.count_until(until, this) == before {
                request.awaited = true;
            } else {
                request.climb_again();
            }
            if core.generation != generation {
                request.fail_by_reset();
            }
            return core;
        }
        if core::mem::take(&mut request.left_out) {
            core.tally.ladder.awaited += 1;
            drop(core);
            let over = self.hook.callbacks.wait_for_end(PATIENCE);
            core = self.device.core.lock();
            if core.generation != generation {
                request.fail_by_reset();
            }
            if over {
                request.asks = true;
                self.device.drain(&mut core, self.map);
                request.climb_again();
                return core;
            }
        }
        if !core::mem::replace(&mut request.emptied, true) && self.device.drain(&mut core, self.map) > 0 {
            // What others have freed while this one waited.
            core.tally.ladder.flushed += 1;
            request.climb_again();
            return core;
        }
        request.awaited = true;
        core
    }
}
