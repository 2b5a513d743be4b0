//! What waits in the front for other streams: how much it may be, and how waits are ended.

use super::device::{Caller, Device};
use super::requests::Guard;
use crate::core::Core;
use crate::core::plan::Request;
use crate::front::HoldUp;

impl Device {
    /// Sets how many bytes of blocks of one size may wait in the front, in all shards together, before epochs are closed to
    /// get them back.
    pub(super) fn let_wait(&self, core: &Core) {
        /// Of the memory held. Less than the headroom.
        const SHARE: u64 = 64;
        /// Of any memory, bytes: in a small program it is part of a chunk that is there anyway.
        const LEAST: u64 = 4 << 20;
        let most = (core.held() / SHARE).max(LEAST).max(core.room_to_wait());
        self.front.set_most_waiting(most);
    }
}

impl Caller<'_> {
    /// Finds out, if that is worth its while, whether the streams have passed that keep a block in the front.
    #[cold]
    #[inline(never)]
    pub(super) fn end_wait<'a>(&'a self, mut core: Guard<'a>, hold_up: HoldUp) -> Guard<'a> {
        if !core.may_ask() {
            return core;
        }
        let tokens = core.tokens;
        let mut chore = Request::chore();
        let users = hold_up.users.into_iter().flatten();
        if let Some(step) = core.query_for(users.clone()) {
            core = self.perform(core, step, &mut chore);
        }
        if let Some(step) = core.close_for(users.clone()) {
            core = self.perform(core, step, &mut chore);
        }
        core.note_answer(users, tokens);
        core.waits_ended = core.waits_ended.wrapping_add(1);
        if core.is_time_for_haste() {
            core.note_haste(hold_up.waiting);
            self.device.let_wait(&core);
        }
        if core.is_time_for_idle() && self.device.drain_idle(&mut core, self.map) > 0 {
            // So that others may have it.
            core = self.learn(core);
        }
        core
    }
}
