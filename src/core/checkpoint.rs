//! Checkpoints: which blocks of a pool are live at one moment, to be made so again later.
//!
//! Graphs that share a pool and branch need the pool as it was when the branch began. Restoring frees every
//! live block of the pool and hands out those of the checkpoint at their old addresses. It costs time in
//! proportion to the blocks of the pool, and calls no driver.

use hashbrown::HashMap;

use super::Core;
use super::block::{BlockId, NONE, State};
use super::plan::{Request, Step};
use super::pool::PoolIndex;
use super::steps;
use super::stream::StreamId;
use crate::driver::Stream;

/// Why a checkpoint cannot be restored where blocks of the pool wait for streams.
pub(crate) const WAITS: &str = "blocks of the pool wait for streams; synchronize these first";
/// The same where live ones are recorded on streams.
pub(crate) const RECORDED: &str = "live blocks of the pool are recorded on streams that have not passed what is queued; \
                                   synchronize these first";

/// Streams that were asked whether they have passed all that was queued on them, and the epoch that this closed.
pub(crate) type Asked = HashMap<StreamId, u32>;

/// One live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    /// First address.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes asked for.
    pub(crate) requested: u64,
    /// The stream it was allocated for.
    pub(crate) stream: Stream,
}

impl Core {
    /// The live blocks of a pool, by address, but not those of growing buffers, which have owners who know
    /// their size, those lent to the default pool, whose owners know nothing of this one, and those claimed.
    pub(crate) fn live_of(&self, pool: PoolIndex) -> Vec<BlockId> {
        let is_meant = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.state == State::Live && !block.class.is_growing() && !block.lent && !block.claimed
        };
        self.blocks_of(pool).filter(is_meant).collect()
    }

    /// Whether live blocks of a pool are lent to the default pool.
    pub(crate) fn has_lent(&self, pool: PoolIndex) -> bool {
        self.blocks_of(pool).any(|id| self.blocks[id].lent)
    }

    /// What is to be remembered of these blocks.
    pub(crate) fn saved(&self, blocks: &[BlockId]) -> Vec<Saved> {
        let save = |&id: &BlockId| {
            let block = &self.blocks[id];
            let stream = self.streams[block.home as usize].handle;
            Saved { address: block.addr, len: block.len, requested: block.requested, stream }
        };
        blocks.iter().map(save).collect()
    }

    /// Why the blocks, sorted by address, cannot be brought back now: each must lie in mapped memory of the
    /// pool that no other stream still uses.
    pub(crate) fn unrestorable(&self, pool: PoolIndex, saved: &[Saved]) -> Option<&'static str> {
        const ELSEWHERE: &str = "memory of the checkpoint does not belong to the pool any more";
        if self.is_asleep(pool) {
            return Some("the pool sleeps; wake it first");
        }
        let mut saved = saved.iter().peekable();
        for first in self.firsts_of(pool) {
            let (mut id, mut end) = (first, self.blocks[first].addr);
            // What begins before this segment is in none.
            if saved.peek().is_some_and(|next| next.address < end) {
                return Some(ELSEWHERE);
            }
            while id != NONE {
                let block = &self.blocks[id];
                let here = saved.peek().is_some_and(|next| next.address < block.end());
                match block.state {
                    _ if !here => {}
                    // Segments go, and buffers may lie where blocks were.
                    _ if block.class.is_growing() => return Some(ELSEWHERE),
                    State::Hole => return Some("memory of the checkpoint is not mapped any more"),
                    State::Waiting => return Some(WAITS),
                    State::Live if block.lent => {
                        return Some(
                            "a block lent to the default pool lies where blocks were; free it first",
                        );
                    }
                    State::Live if block.claimed => {
                        return Some("a claimed block lies where blocks were; free it first");
                    }
                    State::Busy => return Some("another thread is moving memory of the pool; try again"),
                    State::Live | State::Free => {}
                }
                end = block.end();
                while saved.next_if(|next| next.address + next.len <= end).is_some() {}
                id = block.next;
            }
            // What goes on behind this segment is in none either.
            if saved.peek().is_some_and(|next| next.address < end) {
                return Some(ELSEWHERE);
            }
        }
        saved.peek().map(|_| ELSEWHERE)
    }

    /// Whether live blocks of a pool may be in use on streams that they are recorded on.
    pub(crate) fn is_recorded(&self, pool: PoolIndex, asked: &Asked) -> bool {
        let over = |user: &StreamId| {
            asked.get(user).is_some_and(|&epoch| self.streams[*user as usize].passed(epoch))
        };
        let recorded = |id: BlockId| self.recorded.get(&id).is_some_and(|users| !users.iter().all(over));
        self.live_of(pool).into_iter().any(recorded)
    }

    /// How to ask the streams that waiting blocks of a pool wait for and live ones are recorded on whether they have passed
    /// what is queued, by an event each where one may be had; which streams these are.
    pub(crate) fn ask_users_of(&mut self, pool: PoolIndex) -> (Option<Step>, Asked) {
        let mut users: Vec<StreamId> = Vec::new();
        for id in self.blocks_of(pool) {
            users.extend(self.recorded.get(&id).into_iter().flatten());
            users.extend(self.waits.get(&id).into_iter().flatten().map(|&(user, _)| user));
        }
        users.sort_unstable();
        users.dedup();
        let asked = users.iter().map(|&id| (id, self.streams[id as usize].open)).collect();
        users.retain(|&id| self.may_close(id));
        ((!users.is_empty()).then(|| Step::RecordAndAsk(self.begin_closing(&users))), asked)
    }

    /// What is waited for next because no event tells of it: one of the asked streams alone, in the end the device for those
    /// that are gone. Streams that `chore` found to be captured are left alone.
    pub(crate) fn wait_for_untold(&mut self, asked: &Asked, chore: &Request) -> Option<Step> {
        let is_untold = |(&id, &epoch): (&StreamId, &u32)| {
            let state = &self.streams[id as usize];
            let told = state.closing.back().is_some_and(|&(_, closed)| closed >= epoch);
            (!state.passed(epoch) && !told && !chore.spared.contains(&id)).then_some(id)
        };
        let mut untold: Vec<StreamId> = asked.iter().filter_map(is_untold).collect();
        untold.sort_unstable();
        let takes_waits = |&&id: &&StreamId| self.streams[id as usize].takes_waits();
        match untold.iter().find(takes_waits) {
            Some(&id) => Some(self.wait_alone(id)),
            None if untold.is_empty() || chore.captured => None,
            None => Some(self.wait_for_device_to_end(&untold)),
        }
    }

    /// Forgets on which streams a live block is recorded: they are known to be done with it.
    pub(crate) fn forget_uses(&mut self, id: BlockId) {
        for user in self.recorded.remove(&id).unwrap_or_default() {
            self.streams[user as usize].recorded -= 1;
        }
        self.blocks[id].uses = 0;
    }

    /// The stream that a block of a checkpoint is for. One that is not known any more has been destroyed since, and its
    /// handle must not come to the driver: then it is the destroyed one still. `found` has all that were destroyed, once the first
    /// is looked for.
    pub(crate) fn home_of(&mut self, saved: &Saved, found: &mut HashMap<Stream, StreamId>) -> StreamId {
        let handle = saved.stream;
        if let Some(&id) = self.stream_ids.get(&handle).or_else(|| found.get(&handle)) {
            return id;
        }
        if found.is_empty() {
            for &id in &self.dead {
                steps::step();
                found.entry(self.streams[id as usize].handle).or_insert(id);
            }
            if let Some(&id) = found.get(&handle) {
                return id;
            }
        }
        let id = self.stream_id(handle);
        self.stream_ids.remove(&handle);
        self.streams[id as usize].alive = false;
        self.dead.push(id);
        found.insert(handle, id);
        id
    }

    /// Takes `saved` out of the free blocks that cover it, and hands it out to its stream.
    pub(crate) fn revive(&mut self, start: BlockId, saved: &Saved, home: StreamId) -> BlockId {
        let end = saved.address + saved.len;
        let mut id = start;
        while self.blocks[id].end() <= saved.address {
            id = self.blocks[id].next;
        }
        let mut target = NONE;
        loop {
            let (addr, last) = (self.blocks[id].addr, self.blocks[id].end());
            let from = addr.max(saved.address);
            let piece = self.carve(id, from, last.min(end) - from);
            if target == NONE {
                target = piece;
            } else {
                self.blocks.join(target, piece);
            }
            if self.blocks[target].end() >= end {
                break;
            }
            id = self.blocks[target].next;
        }
        self.blocks[target].epoch = 0;
        self.hand_out(target, saved.requested, home);
        target
    }

    /// The first blocks of the pool's segments, by address.
    pub(crate) fn firsts_of(&self, pool: PoolIndex) -> Vec<BlockId> {
        self.pools.get(pool).firsts.iter().map(|&(_, first)| first).collect()
    }
}
