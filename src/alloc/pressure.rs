//! Steps of the ladder that are no driver calls: framework callbacks, and waiting for other threads' plans.

use std::time::Duration;

use super::device::{Caller, Device};
use super::requests::Guard;
use crate::core::Core;
use crate::core::plan::Request;
use crate::hook::Asked;

/// How long a request that would fail waits for a framework callback that runs in another thread. The
/// callback may in turn be waiting for this thread, so it cannot be waited for to the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// A plan that holds memory while the driver is called for it. Ends also when the driver panics, so that
/// nobody waits for it for ever.
pub(super) struct UnderWay<'a> {
    pub(super) device: &'a Device,
    pub(super) plan: Option<u64>,
}

impl UnderWay<'_> {
    /// The plan is committed.
    pub(super) fn end(&mut self, core: &mut Core) {
        if let Some(plan) = self.plan.take() {
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
        let asked = self.hook.callbacks.call_next(device, bytes, request.asked);
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
        let generation = core.generation;
        if core.transit.is_under_way(core.transit.last()) {
            core.transit.waiting += 1;
            self.device.settled.wait(&mut core);
            core.transit.waiting -= 1;
        } else {
            // A pool is falling asleep or waking, which is no plan.
            drop(core);
            crate::sync::thread::yield_now();
            core = self.device.core.lock();
        }
        if core.generation != generation {
            request.fail_by_reset();
        }
        core
    }

    /// Before a request fails: waits for one of the plans, of any thread, that were made before it came
    /// that far, or for a callback in another thread. What they leave may be what it lacks.
    pub(super) fn await_others<'a>(&'a self, mut core: Guard<'a>, request: &mut Request) -> Guard<'a> {
        let generation = core.generation;
        let until = *request.until.get_or_insert(core.transit.last());
        let before = core.transit.count_until(until);
        if before > 0 {
            core.tally.ladder.awaited += 1;
            core.transit.waiting += 1;
            // Plans made later end as well. To climb again after each of those, two such requests would wake each
            // other for as long as the plan of a third takes.
            while core.transit.count_until(until) == before && core.generation == generation {
                self.device.settled.wait(&mut core);
            }
            core.transit.waiting -= 1;
            if core.generation != generation {
                request.fail_by_reset();
            }
            request.climb_again();
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
        request.awaited = true;
        core
    }
}
