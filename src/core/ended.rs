//! Outcomes of asking and waiting: epochs that are over, and what they free.

use smallvec::SmallVec;

use super::Core;
use super::block::{BlockId, State};
use super::plan::{Closed, Closing, Recorded, Request, Rung};
use super::stream::StreamId;
use crate::driver::{DriverError, Event};

impl Core {
    /// Takes the outcome of waiting for a stream. What refuses is not waited for alone again.
    pub(super) fn commit_waited_stream(
        &mut self,
        request: &mut Request,
        id: StreamId,
        epoch: u32,
        result: Option<Result<(), DriverError>>,
    ) {
        if let Some(Ok(())) = result {
            self.note_wait(self.streams[id as usize].handle);
            return self.end_all(vec![(id, epoch)]);
        }
        self.keep_open(id);
        if result.is_none() {
            return request.spared.push(id);
        }
        self.streams[id as usize].lost = true;
        // The device may have been waited for before this was known.
        request.rung = request.rung.min(Rung::Waited);
    }

    /// The epoch of a stream that was closed for a wait stays open in effect, because nobody could wait.
    pub(super) fn keep_open(&mut self, id: StreamId) {
        self.active.insert(id);
        self.streams[id as usize].keep_open();
    }

    /// Learns from the answer to events just recorded whether closing epochs early helps here.
    pub(super) fn note_promptness(&mut self, over: &[(StreamId, Event, u32)]) {
        // An event that another thread is recording at this moment is not known yet and says nothing.
        let newest = |&&(id, _, epoch): &&(StreamId, Event, u32)| {
            self.streams[id as usize].closing.back().is_none_or(|&(_, last)| last <= epoch)
        };
        let prompt = over.iter().filter(newest).count();
        if prompt > 0 {
            self.tokens += prompt as i32;
            self.patience = 0;
        } else {
            self.patience = (self.patience * 2).clamp(16, 1024);
            self.slow_at = Some(self.frees);
        }
        self.slow = self.patience;
    }

    /// Takes the outcome of recording events, whoever asked for it.
    pub(super) fn commit_recorded(&mut self, recorded: Closed) {
        let mut over = Closing::new();
        for (id, epoch, result) in recorded {
            self.active.insert(id);
            let state = &mut self.streams[id as usize];
            match result {
                Recorded::Done(event) => {
                    state.took_event();
                    state.note_event(event, epoch);
                }
                Recorded::Over(event) => {
                    state.took_event();
                    state.note_event(event, epoch);
                    over.push((id, event, epoch));
                }
                // The next event of the stream closes this epoch too.
                Recorded::Captured(event) => {
                    state.keep_open();
                    self.made -= usize::from(event.is_none());
                    self.events.extend(event);
                }
                Recorded::Refused(event) => {
                    state.keep_open();
                    state.refused_event(self.frees);
                    self.events.push(event);
                }
                Recorded::Gone(event) => {
                    state.keep_open();
                    state.refused_event(self.frees);
                    (state.lost, state.gone) = (true, true);
                    self.made -= usize::from(event.is_none());
                    self.events.extend(event);
                }
                Recorded::Without => state.keep_open(),
                Recorded::Before => {}
            }
        }
        if !over.is_empty() {
            self.end_epochs(over);
        }
    }

    /// Takes the outcome of letting a stream wait for others: what they used until then is open to it.
    pub(super) fn commit_joined(
        &mut self,
        waiter: StreamId,
        joined: SmallVec<[(StreamId, u32, Recorded, bool); 2]>,
    ) {
        self.joined_at = Some(self.frees);
        let recorded = joined.iter().map(|&(id, epoch, result, _)| (id, epoch, result)).collect();
        self.commit_recorded(recorded);
        for (other, epoch, _, waited) in joined {
            if waited {
                self.streams[waiter as usize].set_behind(other, epoch);
            }
        }
        let mut waiting: SmallVec<[BlockId; 32]> = self.waits.keys().copied().collect();
        // The order decides how blocks merge; it must not depend on a hash.
        waiting.sort_unstable();
        for block in waiting {
            self.end_wait(block, Some(waiter));
        }
    }

    /// Takes the outcome of asking for finished epochs.
    pub(crate) fn end_epochs(&mut self, over: Closing) {
        for (id, event, epoch) in over {
            let state = &mut self.streams[id as usize];
            // Another thread may have seen the same event complete before.
            if let Some(at) = state.closing.iter().position(|&entry| entry == (event, epoch)) {
                state.closing.remove(at);
                self.events.push(event);
                self.end_epoch(id, epoch);
                self.take_events(id, epoch);
                self.rest(id);
            }
        }
        self.rejoin();
    }

    /// Everything of these streams is done up to the epochs given.
    pub(super) fn end_all(&mut self, epochs: Vec<(StreamId, u32)>) {
        for (stream, epoch) in epochs {
            let state = &mut self.streams[stream as usize];
            state.took_event();
            self.end_epoch(stream, epoch);
            self.take_events(stream, epoch);
            self.rest(stream);
        }
        self.rejoin();
    }

    /// A stream that has become idle is not looked at any more.
    pub(super) fn rest(&mut self, id: StreamId) {
        if self.streams[id as usize].is_idle() {
            self.active.remove(id);
        }
    }

    /// Takes the events of a stream back that closed epochs up to one that is over: they have completed.
    fn take_events(&mut self, id: StreamId, epoch: u32) {
        let state = &mut self.streams[id as usize];
        while let Some(&(event, before)) = state.closing.front() {
            if before > epoch {
                break;
            }
            state.closing.pop_front();
            self.events.push(event);
        }
    }

    /// Everything of the stream up to `epoch` is done.
    pub(crate) fn end_epoch(&mut self, id: StreamId, epoch: u32) {
        let state = &mut self.streams[id as usize];
        state.completed = state.completed.max(epoch);
        if !self.streams[id as usize].alive {
            self.bequeath(id);
        }
        while let Some(&(due, block)) = self.streams[id as usize].waiting.front() {
            if due > self.streams[id as usize].completed {
                break;
            }
            self.streams[id as usize].waiting.pop_front();
            self.end_wait(block, None);
        }
    }

    /// Gives the quiescent free blocks of a destroyed stream to the default stream.
    pub(crate) fn bequeath(&mut self, id: StreamId) {
        let bins = self.streams[id as usize].bins.iter();
        let free: Vec<BlockId> = bins.flat_map(|(_, bins)| bins.ids(&self.blocks)).collect();
        for block in free {
            // Merging may have taken it meanwhile.
            let there = self.blocks.get(block).is_some_and(|b| b.state == State::Free && b.home == id);
            if there && self.is_quiescent(block) {
                self.withdraw(block);
                self.blocks[block].home = 0;
                self.blocks[block].epoch = 0;
                self.make_free(block);
            }
        }
    }
}
