//! What is done for no request: trimming, emptying, shutting down.

use super::device::{Caller, Device};
use crate::core::plan::{Request, Step};
use crate::error::Result;

impl Device {
    /// Gives back idle memory until `keep` bytes are held; waits for streams if `wait`.
    pub(super) fn trim(&self, caller: &Caller<'_>, keep: u64, wait: bool) -> Result<u64> {
        let mut chore = Request::chore();
        let mut core = self.core.lock();
        if core.capturing > 0 {
            return Ok(0);
        }
        let before = core.held();
        self.drain(&mut core, caller.map);
        if let Some(step) = core.close_all() {
            core = caller.perform(core, step, &mut chore);
        }
        while chore.failure.is_none() {
            let step = if wait && !chore.captured {
                core.wait_for_newest().or_else(|| core.wait_for_device())
            } else {
                core.query().filter(|_| !core::mem::replace(&mut chore.polled, true))
            };
            let Some(step) = step else { break };
            core = caller.perform(core, step, &mut chore);
        }
        if chore.failure.is_none() {
            let excess = core.held().saturating_sub(keep);
            let mut back = core.idle_memory(excess, true);
            if keep == 0 {
                // What came from elsewhere is not part of what is held of the device.
                back.classic.extend(core.idle_elsewhere(None, u64::MAX).classic);
            }
            if !back.is_empty() {
                core = caller.perform(core, Step::GiveBack(back), &mut chore);
            }
            let empty = core.empty_reservations();
            if !empty.is_empty() {
                core = caller.perform(core, Step::GiveBack(empty), &mut chore);
            }
        }
        let freed = before.saturating_sub(core.held());
        caller.tell(core);
        chore.failure.take().map_or(Ok(freed), Err)
    }

    /// Gives back what is free and destroys the events. Errors have nobody to go to: what the driver
    /// refuses stays with it.
    pub(super) fn shut_down(&self, caller: &Caller<'_>) {
        // A refusal leaves memory with the driver, which the process is about to leave as well.
        let _ = self.trim(caller, 0, true);
        caller.drop_kept();
        let events = core::mem::take(&mut self.core.lock().events);
        for event in events {
            let _ = caller.driver.destroy_event(self.limits.device, event);
        }
    }
}
