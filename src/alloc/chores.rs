//! What is done for no request: trimming, emptying, shutting down.

use super::device::{Caller, Device};
use super::limits::{Age, EmptyOptions};
use super::requests::{Guard, Held};
use crate::core::plan::{Request, Step};
use crate::core::trim::Choice;
use crate::error::Result;

impl Caller<'_> {
    /// Does what is due after frees that the front kept to itself, as [`after_free`](Self::after_free) does after one
    /// that reached the core.
    #[cold]
    pub(super) fn after_frees(&self) {
        let mut core = self.device.core.lock();
        self.device.note_flow(&mut core, 0);
        if core.logging || core.due || core.decay_due {
            self.after_free(core);
        }
    }

    /// Gives back a little of what is past its decay time.
    pub(super) fn decay<'a>(&'a self, mut core: Guard<'a>, chore: &mut Request) -> Guard<'a> {
        if core.capturing > 0 {
            // Work that is being captured may hold any address.
            return core;
        }
        if let Some(turn) = core.resting_turn() {
            self.device.drain_in_turn(&mut core, self.map, turn);
        }
        if let Some(step) = core.decay_query() {
            core = self.perform(core, step, chore);
        }
        if let Some(step) = core.decay_close() {
            core = self.perform(core, step, chore);
        }
        drop(core);
        let now = self.driver.now();
        let mut core = self.device.core.lock();
        if let Some(step) = core.decayed(now) {
            core = self.perform(core, step, chore);
        }
        core
    }
}

/// A block that its caller does not know of yet. Where the hook panics when it is told of it, nobody ever will: then the
/// block is freed, of which the hook is told with the next call.
pub(super) struct Unheard<'a> {
    pub(super) caller: &'a Caller<'a>,
    pub(super) address: u64,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let Caller { device, map, .. } = self.caller;
        let mut core = device.core.lock();
        // One that is kept back is not known by its address, and is freed in another way.
        if let Ok((id, requested)) = device.unpublish(&mut core, map, self.address) {
            core.free(id, requested);
        }
    }
}

impl Device {
    /// Gives back idle memory until `keep` bytes are held, and waits for nothing. The bytes given back.
    pub(super) fn trim(&self, caller: &Caller<'_>, keep: u64) -> Result<u64> {
        self.give_back(caller, Choice::ALL, keep, false)
    }

    /// Gives back what the options say. The bytes given back.
    pub(super) fn empty(&self, caller: &Caller<'_>, options: &EmptyOptions) -> Result<u64> {
        let now = caller.driver.now();
        let choice = {
            let mut core = self.core.lock();
            let pool = match options.pool {
                Some(pool) => Some(super::pools::known(&core, pool)?),
                None => None,
            };
            let frees = core.all_frees();
            core.clock.note(frees, now);
            let since = match options.min_age {
                None => u64::MAX,
                Some(Age::Frees(count)) => frees.saturating_sub(count),
                Some(Age::Time(age)) => {
                    let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
                    core.frees_before(now, age)
                }
            };
            Choice { pool, since, ..Choice::ALL }
        };
        self.give_back(caller, choice, 0, options.wait)
    }

    pub(super) fn give_back(
        &self,
        caller: &Caller<'_>,
        choice: Choice,
        keep: u64,
        wait: bool,
    ) -> Result<u64> {
        let mut chore = Request::chore();
        // While the lock is left the pool must not go.
        let _held = match choice.pool {
            Some(pool) => match Held::new(self, &mut self.core.lock(), pool) {
                None => return Ok(0),
                held => held,
            },
            None => None,
        };
        let mut core = self.core.lock();
        if core.capturing > 0 {
            return Ok(0);
        }
        core.haste.end();
        self.drain(&mut core, caller.map);
        // What others free from here on is not waited for.
        let mut due = core.to_be_passed(choice);
        // Of one pool only those that hold something of it back are asked.
        let closed = match choice.pool {
            Some(_) => core.close_of(due.streams().map(|(id, _)| id)),
            None => core.close_all(),
        };
        if let Some(step) = closed {
            core = caller.perform(core, step, &mut chore);
        }
        // A capture may begin while the lock is left: from then on nothing is waited for or given back.
        while chore.failure.is_none() && core.capturing == 0 {
            let step = if wait && !chore.captured {
                core.wait_towards(&mut due, &chore)
            } else if core::mem::replace(&mut chore.polled, true) {
                None
            } else if choice.pool.is_some() {
                core.query_for(due.streams())
            } else {
                core.query()
            };
            let Some(step) = step else { break };
            core = caller.perform(core, step, &mut chore);
        }
        if chore.failure.is_none() && core.capturing == 0 {
            core.merge_unsplit(choice.pool);
            let excess = core.held().saturating_sub(keep);
            let mut back = core.idle_memory(choice, excess, true);
            if keep == 0 {
                // What came from elsewhere is not part of what is held of the device.
                back.classic.extend(core.idle_elsewhere(choice, u64::MAX).classic);
            }
            if !back.is_empty() {
                core = caller.perform(core, Step::GiveBack(back), &mut chore);
            }
            core = caller.release_empty(core, choice.pool, &mut chore);
        }
        caller.tell(core);
        chore.failure.take().map_or(Ok(chore.returned), Err)
    }

    /// Gives back what is free and destroys the events; with `last` the content of pools that sleep goes too. Errors have
    /// nobody to go to: what the driver refuses stays with it.
    pub(super) fn shut_down(&self, caller: &Caller<'_>, last: bool) {
        // A refusal leaves memory with the driver, which the process is about to leave as well.
        let _ = self.give_back(caller, Choice::ALL, 0, true);
        if last {
            caller.drop_kept();
        } else if !self.limbo.lock().is_empty() {
            // What cannot be waited for stays there for a later wait.
            let _ = caller.wait_for_copies();
        }
        let events = {
            let mut core = self.core.lock();
            core.made -= core.events.len();
            core::mem::take(&mut core.events)
        };
        for event in events {
            let _ = caller.driver.destroy_event(self.limits.device, event);
        }
    }
}
