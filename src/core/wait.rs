//! Blocks that other streams use: recorded while live, waiting once freed.

use smallvec::SmallVec;

use super::Core;
use super::block::{BlockId, State};
use super::stream::StreamId;
use crate::history;
use crate::hook::Action;

impl Core {
    /// Notes that work on another stream uses a live block.
    pub(crate) fn record(&mut self, id: BlockId, user: StreamId) {
        let streams = self.recorded.entry(id).or_default();
        if !streams.contains(&user) {
            streams.push(user);
            self.blocks[id].uses += 1;
            self.streams[user as usize].recorded += 1;
        }
    }

    /// Takes back a block that has waited in the front since its home's `epoch`, for streams that must still
    /// pass an epoch of their own.
    pub(crate) fn take_waiting(
        &mut self,
        id: BlockId,
        epoch: u32,
        requested: u64,
        users: impl Iterator<Item = (StreamId, u32)>,
    ) {
        let (home, len, small) = (self.blocks[id].home, self.blocks[id].len, self.class_of(id).is_small());
        self.weigh(home, len);
        self.earn();
        self.blocks[id].epoch = epoch;
        self.blocks[id].requested = requested;
        self.tally.take_over(small, len, requested);
        self.wait_for(id, users);
    }

    /// Ends the wait of a block if all streams that used it are known to have passed its free, or
    /// are behind `waiter` on the device; in the second case the block becomes the waiter's.
    pub(crate) fn end_wait(&mut self, id: BlockId, waiter: Option<StreamId>) {
        let Some(users) = self.waits.get(&id) else { return };
        let block = &self.blocks[id];
        debug_assert_eq!(block.state, State::Waiting);
        let passed = |stream: StreamId, epoch: u32| self.streams[stream as usize].passed(epoch);
        let mut home = block.home;
        let mut epoch = block.epoch;
        if !users.iter().all(|&(user, due)| passed(user, due)) {
            let Some(waiter) = waiter else { return };
            let state = &self.streams[waiter as usize];
            let open = |stream: StreamId, due: u32| {
                stream == waiter || passed(stream, due) || state.is_behind(stream, due)
            };
            if !(open(home, epoch) && users.iter().all(|&(user, due)| open(user, due))) {
                return;
            }
            // From here on the waiter's own epochs cover what the others did.
            (home, epoch) = (waiter, self.stamp_open(waiter).open);
        }
        self.waits.remove(&id);
        self.waiting_bytes -= self.blocks[id].len;
        self.count_passed(id);
        let block = &mut self.blocks[id];
        let (before, len, requested) = (block.home, block.len, block.requested);
        (block.home, block.epoch, block.requested, block.uses) = (home, epoch, 0, 0);
        let address = block.addr;
        let small = self.blocks[id].class.is_small();
        self.tally.wait_over(small, len, requested);
        self.streams[before as usize].out -= 1;
        let handle = self.streams[before as usize].handle;
        self.note(Action::FreeCompleted, address, len, handle);
        let class = self.class_of(id);
        let kept = history::Action::FreeCompleted;
        self.keep_of(kept, address, (len, requested), handle, class);
        self.stamp(id);
        self.make_free(id);
    }

    /// Lets a freed block wait for the streams it was recorded on.
    pub(super) fn start_wait(&mut self, id: BlockId) {
        let users = self.recorded.remove(&id).unwrap_or_default();
        let due: SmallVec<[(StreamId, u32); 4]> = users
            .into_iter()
            .map(|user| {
                let state = &mut self.streams[user as usize];
                state.recorded -= 1;
                (user, state.open)
            })
            .collect();
        self.wait_for(id, due.into_iter());
    }

    /// Lets a freed block wait until each of these streams has passed an epoch.
    pub(super) fn wait_for(&mut self, id: BlockId, users: impl Iterator<Item = (StreamId, u32)>) {
        self.blocks[id].state = State::Waiting;
        let mut waits = SmallVec::new();
        for (user, due) in users {
            if due == self.streams[user as usize].open {
                // Memory that waits serves nobody: closing this epoch matters more than others.
                self.weigh(user, self.blocks[id].len.saturating_mul(4));
            }
            let waiting = &mut self.streams[user as usize].waiting;
            // What the front had may be older than what came here at once.
            let later = waiting.iter().rev().take_while(|&&(epoch, _)| epoch > due).count();
            waiting.insert(waiting.len() - later, (due, id));
            waits.push((user, due));
        }
        self.blocks[id].uses = waits.len() as u32;
        self.waits.insert(id, waits);
        self.waiting_bytes += self.blocks[id].len;
        self.interest = self.interest.max(4);
    }
}
