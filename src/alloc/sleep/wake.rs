//! Memory for pools that wake: the ladder of [`Core::refill`](crate::core::Core), climbed without the lock where it
//! calls the driver.

use super::super::device::Caller;
use super::super::pressure::UnderWay;
use super::super::requests::Guard;
use super::was_reset;
use crate::core::perform;
use crate::core::plan::{Phase, Remap, Request, Step};
use crate::core::pool::PoolIndex;
use crate::core::refill::Refill;
use crate::driver::DriverError;
use crate::error::Result;
use crate::stats::DriverCalls;

impl Caller<'_> {
    /// Puts chunks behind all live blocks of the pools; the bytes mapped.
    pub(super) fn provide(&self, pools: &[PoolIndex]) -> Result<u64> {
        let mut request = Request::chore();
        request.asks = self.hook.callbacks.is_any();
        let mut core = self.device.core.lock();
        core.tally.ladder.requests += 1;
        loop {
            if let Some(error) = request.failure.take() {
                return Err(error);
            }
            self.device.drain(&mut core, self.map);
            match core.refill(pools, &mut request) {
                Refill::Whole => return Ok(0),
                Refill::Ready(remap) => {
                    core.tally.ladder.mapped += 1;
                    let (guard, failure) = self.remap(core, *remap)?;
                    core = guard;
                    match failure {
                        None => return Ok(request.requested),
                        Some((_, error)) if error.is_out_of_memory() && !request.device_full => {
                            request.device_full = true;
                            core.note_retry(&mut request);
                        }
                        Some((Phase::Unmap, error)) if !request.no_moves => {
                            // What others have idle cannot be had; perhaps there is enough without it.
                            request.no_moves = true;
                            request.refusal.get_or_insert(error);
                        }
                        Some((_, error)) => return Err(error.into()),
                    }
                }
                Refill::First(step) => core = self.press(core, step, &mut request),
                Refill::Again => {}
                Refill::Missing => {
                    core.tally.ladder.failed += 1;
                    let error = match request.refusal.take() {
                        Some(refusal) => refusal.into(),
                        None => core.out_of_memory(&request),
                    };
                    if let Some(step) = core.spare() {
                        // What was created in vain is free again before the error says what is.
                        core = self.perform(core, step, &mut request);
                    }
                    drop(core);
                    return Err(self.complete(error));
                }
            }
        }
    }

    /// Takes a step that makes room.
    fn press<'a>(&'a self, mut core: Guard<'a>, step: Step, request: &mut Request) -> Guard<'a> {
        core.tally.ladder.count(&step);
        match step {
            Step::Ask(bytes) => self.ask(core, request, bytes),
            Step::Await => self.await_others(core, request),
            step => self.perform(core, step, request),
        }
    }

    /// Performs a remap of pools that wake; what failed, if anything did, and in which phase.
    fn remap<'a>(
        &'a self,
        mut core: Guard<'a>,
        remap: Remap,
    ) -> Result<(Guard<'a>, Option<(Phase, DriverError)>)> {
        let generation = core.generation;
        let mut under_way = UnderWay::begin(self.device, &mut core, true, false);
        drop(core);
        let mut calls = DriverCalls::default();
        let mut done = perform::remap_chunks(self.performer(), &remap, &mut calls);
        let failure = done.failure.take();
        let mut core = self.device.core.lock();
        core.tally.count_calls(&calls);
        under_way.end(&mut core);
        if core.generation != generation {
            return Err(was_reset("waking a pool"));
        }
        core.commit_refill(remap, done);
        if !core.ungranted.is_empty() {
            // Peers were set meanwhile. Nobody has the memory yet.
            let mut chore = Request::chore();
            core = self.grant_later(core, &mut chore);
            if let Some(error) = chore.failure {
                return Err(error);
            }
        }
        Ok((core, failure))
    }
}
