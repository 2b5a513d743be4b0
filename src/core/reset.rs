//! A device that was reset: everything on it is gone, and nothing may be asked of it for what was.

use super::Core;
use super::block::{NONE, State};
use super::stream::StreamId;
use crate::driver::Stream;

impl Core {
    /// Forgets all memory, events and streams (but the default one) without a driver call. Live blocks were
    /// taken back before. Returns the front's places of the streams.
    pub(crate) fn forget_device(&mut self) -> Vec<u16> {
        self.generation += 1;
        self.capturing = 0;
        for id in 0..self.streams.len() as StreamId {
            // No work is left that could touch anything.
            let state = &mut self.streams[id as usize];
            let epoch = state.close_epoch();
            state.closing.clear();
            state.took_event();
            self.end_epoch(id, epoch);
            self.rest(id);
        }
        self.events.clear();
        self.made = 0;
        let segments: Vec<usize> = self.segments.iter().map(|(index, _)| index).collect();
        for index in segments {
            self.forget_segment(index);
        }
        self.exports = super::export::Exports::default();
        self.ungranted.clear();
        self.vacant = super::growing::Vacant::default();
        self.cached.clear();
        self.stuck.clear();
        self.wide_chunks = 0;
        self.apart.clear();
        self.shunned.clear();
        self.extended.clear();
        self.haste.end();
        (self.physical, self.classic, self.elsewhere, self.busy) = (0, 0, 0, 0);
        let pools: Vec<_> = self.pools.indices().collect();
        for pool in pools {
            self.pools.end_graphs(pool);
            self.pools.get_mut(pool).fetching = 0;
            self.reap(pool);
        }
        self.forget_streams()
    }

    /// Removes a segment and its blocks, whatever they are.
    fn forget_segment(&mut self, index: usize) {
        let mut id = self.segments[index].first;
        while id != NONE {
            let (next, class) = (self.blocks[id].next, self.blocks[id].class);
            match self.blocks[id].state {
                State::Free if self.blocks[id].indexed => self.withdraw(id),
                State::Hole => self.pools[class].remove(&mut self.blocks, id),
                State::Free | State::Busy | State::Live | State::Waiting => {}
            }
            self.blocks.remove(id);
            id = next;
        }
        let segment = self.remove_segment(index);
        self.count_reserved(segment.class, -(segment.mapped as i64));
    }

    /// Lets all streams but the default one end; the front's places of them.
    fn forget_streams(&mut self) -> Vec<u16> {
        let gone: Vec<(Stream, StreamId)> = self
            .stream_ids
            .iter()
            .map(|(&handle, &id)| (handle, id))
            .filter(|&(handle, _)| handle != Stream(0))
            .collect();
        let mut places = Vec::new();
        for (handle, id) in gone {
            self.stream_ids.remove(&handle);
            self.streams[id as usize].alive = false;
            places.extend(self.streams[id as usize].slot);
            self.dead.push(id);
        }
        // The numbers are used again; the order must not depend on a hash.
        self.dead.sort_unstable();
        places
    }
}
