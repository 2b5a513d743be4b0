//! Sleep: pools that keep their addresses and live blocks while their physical memory is elsewhere.
//!
//! ```text
//! awake    |<- live ->|<- free ->|<- live ->|<--- hole --->     every granule but the hole's has a chunk
//! asleep   |   live   |   free   |   live   |     hole          no granule has one
//!              |                      |
//!              +----- host copy ------+                         where the content is kept
//! ```
//!
//! While a pool sleeps, its free blocks are in no index and no list, and holes stay where they are; nothing is
//! placed in it. A live block can be freed: it becomes a free block like the others. Waking puts chunks behind
//! the granules that live blocks touch; what is free then becomes free memory or holes by what is behind it.
//!
//! A captured graph uses free memory of its pool as well: what was freed in its capture. So while a pool is fixed its free
//! blocks count like live ones here: their content is kept, and they get memory again.

use super::Core;
use super::block::{Block, BlockId, State};
use super::noting::Stretch;
use super::plan::Spare;
use super::pool::{DEFAULT, PoolIndex};
use super::segment::{Class, Segment, Stamp};
use super::stream::StreamId;
use crate::driver::{PhysicalHandle, Stream};
use crate::{history, hook};

/// How far a pool is asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Nothing is placed in it any more; queued work may still touch its memory.
    Falling,
    /// Its memory, which no queued work can touch any more, is being given back.
    Emptying,
    /// It has no memory.
    Asleep,
    /// It is getting memory.
    Waking,
}

/// A pool that sleeps.
#[derive(Debug)]
pub(crate) struct Sleep {
    /// How far.
    pub(crate) depth: Depth,
    /// Where the content of its blocks is.
    pub(crate) kept: Vec<Kept>,
    /// Whether copies of the content to the device may still run, because waiting for them was refused.
    pub(crate) copying: bool,
}

/// Where content was that nobody wants any more.
#[derive(Debug, Default)]
pub(crate) struct Unwanted {
    /// What can be freed.
    pub(crate) free: Vec<Kept>,
    /// What copies may still read.
    pub(crate) read: Vec<Kept>,
}

impl Unwanted {
    /// Adds the content of a pool.
    fn add(&mut self, mut kept: Vec<Kept>, copying: bool) {
        if copying { &mut self.read } else { &mut self.free }.append(&mut kept);
    }

    /// Adds all of another one.
    pub(crate) fn append(&mut self, other: Self) {
        self.add(other.free, false);
        self.add(other.read, true);
    }
}

/// Page-locked host memory with the content of a stretch of device memory. Several may lie in one block of the host; all
/// of those go from hand to hand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Address on the host.
    pub(crate) host: u64,
    /// Address on the device.
    pub(crate) device: u64,
    /// Bytes of both.
    pub(crate) bytes: u64,
    /// Whether a block of the host begins with it, and goes back with it.
    pub(crate) owns: bool,
    /// Whether the memory on the host is that of a content store, not the driver's.
    pub(crate) stored: bool,
}

impl Core {
    /// Whether a pool sleeps, in whatever depth.
    #[inline]
    pub(crate) fn is_asleep(&self, pool: PoolIndex) -> bool {
        pool != DEFAULT && self.pools.get(pool).sleep.is_some()
    }

    /// Whether a pool has memory behind it that sleep takes away.
    pub(crate) fn has_memory(&self, pool: PoolIndex) -> bool {
        self.pools.get(pool).reserved.stats[0].current > 0 && !self.chunks_of(pool).is_empty()
    }

    /// Whether a pool is one of those that are meant where none is named: one that a program has made and that might sleep.
    pub(crate) fn is_meant_by_all(&self, pool: PoolIndex) -> bool {
        let rules = &self.pools.get(pool).rules;
        pool != DEFAULT && rules.source.is_none() && !rules.uncached
    }

    /// Why a pool cannot be put to sleep.
    pub(crate) fn insomnia(&self, pool: PoolIndex) -> Option<&'static str> {
        let of = self.pools.get(pool);
        if self.capturing > 0 {
            return Some("a graph is being captured on this device; end that first");
        }
        if pool == DEFAULT {
            return Some("the default pool cannot sleep; make a pool for what is to sleep");
        }
        if self.exported_blocks().any(|id| self.class_of(id).pool() == pool) {
            return Some("blocks of it are exported to other processes; end that first");
        }
        if of.rules.source.is_some() {
            return Some("its memory comes from functions of its owner, who alone can take it away");
        }
        if of.rules.uncached && !of.firsts.is_empty() {
            return Some("it holds what was asked for without caching, where no pool was named");
        }
        if of.rules.use_on_oom && self.has_lent(pool) {
            return Some(
                "live blocks of it are lent to the default pool, which does not sleep; free those first",
            );
        }
        if of.fetching > 0 {
            return Some(
                "a fixed block is on its way to it, whose memory cannot be taken from under its address",
            );
        }
        if of.firsts.iter().any(|&(_, first)| self.blocks[first].class.is_classic()) {
            return Some("it has fixed blocks, whose memory cannot be taken from under their addresses");
        }
        None
    }

    /// Begins to put a pool to sleep: from now on nothing is placed in it, and what is free belongs to nobody.
    pub(crate) fn lull(&mut self, pool: PoolIndex) {
        for id in self.free_of(pool) {
            self.withdraw(id);
        }
        let sleep = Sleep { depth: Depth::Falling, kept: Vec::new(), copying: false };
        self.pools.set_sleep(pool, Some(sleep));
    }

    /// Whether free memory of a pool that falls asleep is of that stream, whose work need not be over: such blocks are
    /// in no index, so the stream does not know of them.
    pub(crate) fn is_home_of_falling(&self, stream: StreamId) -> bool {
        let falls = |&pool: &PoolIndex| {
            self.pools.get(pool).sleep.as_ref().is_some_and(|sleep| sleep.depth == Depth::Falling)
        };
        let mut blocks = self.pools.asleep().filter(falls).flat_map(|pool| self.blocks_of(pool));
        blocks.any(|id| self.blocks[id].state == State::Free && self.blocks[id].home == stream)
    }

    /// Whether driver calls run for memory of a pool.
    pub(crate) fn is_moving(&self, pool: PoolIndex) -> bool {
        self.blocks_of(pool).any(|id| self.blocks[id].state == State::Busy)
    }

    /// Notes that all work is over that was queued on memory of a pool that falls asleep.
    pub(crate) fn set_emptying(&mut self, pool: PoolIndex) {
        if let Some(sleep) = &mut self.pools.get_mut(pool).sleep {
            sleep.depth = Depth::Emptying;
        }
    }

    /// Notes whether copies of the content of a pool that wakes may still run.
    pub(crate) fn set_copying(&mut self, pool: PoolIndex, copying: bool) {
        if let Some(sleep) = &mut self.pools.get_mut(pool).sleep {
            sleep.copying = copying;
        }
    }

    /// Whether copies of the content of a pool may still run.
    pub(crate) fn is_copying(&self, pool: PoolIndex) -> bool {
        self.pools.get(pool).sleep.as_ref().is_some_and(|sleep| sleep.copying)
    }

    /// Notes that copies on the default stream may still read memory of a pool that was about to sleep, which was live
    /// when they were queued: none of it is moved or handed out before that stream has passed them.
    pub(crate) fn shield(&mut self, pool: PoolIndex, pieces: &[Kept]) {
        let copied = |addr: u64, end: u64| {
            pieces.iter().any(|piece| piece.device < end && addr < piece.device + piece.bytes)
        };
        // From here on uses count again: these are not over.
        if let Some(sleep) = &mut self.pools.get_mut(pool).sleep {
            sleep.depth = Depth::Falling;
        }
        let blocks: Vec<BlockId> = self.blocks_of(pool).collect();
        for id in blocks {
            let block = &self.blocks[id];
            let (home, len, small) = (block.home as usize, block.len, block.class.is_small());
            if block.home == 0 || !copied(block.addr, block.end()) {
                continue;
            }
            match block.state {
                State::Live => self.record(id, 0),
                // Freed since.
                State::Free => {
                    self.streams[home].out += 1;
                    self.tally.wait_only(small, len, 0);
                    self.pools.get_mut(pool).active.add(small, len as i64);
                    let open = self.streams[0].open;
                    self.wait_for(id, core::iter::once((0, open)));
                }
                State::Waiting | State::Hole | State::Busy => {}
            }
        }
    }

    /// Whether freed blocks of a pool still wait for streams.
    pub(crate) fn is_waiting(&self, pool: PoolIndex) -> bool {
        self.blocks_of(pool).any(|id| self.blocks[id].state == State::Waiting)
    }

    /// The streams whose work may touch memory of a pool.
    pub(crate) fn users_of(&self, pool: PoolIndex) -> Vec<StreamId> {
        let mut users = Vec::new();
        for id in self.blocks_of(pool).filter(|&id| self.blocks[id].state != State::Hole) {
            users.push(self.blocks[id].home);
            users.extend(self.recorded.get(&id).into_iter().flatten());
            users.extend(self.waits.get(&id).into_iter().flatten().map(|&(user, _)| user));
        }
        users.sort_unstable();
        users.dedup();
        users
    }

    /// The chunks of a pool that sleep takes away, with the address of each. Those with claimed memory stay, so that
    /// nobody gets it.
    pub(crate) fn chunks_of(&self, pool: PoolIndex) -> Vec<(u64, Spare)> {
        let claimed = self.blocks_of(pool).filter(|&id| self.blocks[id].claimed);
        let claimed: Vec<(u64, u64)> =
            claimed.map(|id| (self.blocks[id].addr, self.blocks[id].end())).collect();
        let mut chunks = Vec::new();
        for &(_, first) in &self.pools.get(pool).firsts {
            let segment = &self.segments[self.blocks[first].segment as usize];
            for (address, handle, span) in segment.each_chunk(self.limits.shift) {
                let end = address + u64::from(span) * self.limits.granule;
                if !claimed.iter().any(|&(first, last)| first < end && address < last) {
                    chunks.push((address, Spare { handle, fresh: false, span }));
                }
            }
        }
        chunks
    }

    /// Whether memory in that state has to be there when a pool is awake.
    fn is_needed(&self, pool: PoolIndex, state: State) -> bool {
        match state {
            State::Live | State::Waiting => true,
            State::Free => self.pools.get(pool).is_fixed(),
            State::Hole | State::Busy => false,
        }
    }

    /// Stretches of a pool whose content somebody may want: address and bytes, in the order of addresses. What was claimed
    /// is not touched.
    pub(crate) fn live_stretches(&self, pool: PoolIndex) -> Vec<(u64, u64)> {
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        let used = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.state != State::Waiting && self.is_needed(pool, block.state) && !block.claimed
        };
        for id in self.blocks_of(pool).filter(used) {
            let block = &self.blocks[id];
            match stretches.last_mut() {
                Some((start, bytes)) if *start + *bytes == block.addr => *bytes += block.len,
                _ => stretches.push((block.addr, block.len)),
            }
        }
        stretches
    }

    /// Granules of a pool that need a chunk, when it is awake, and have none.
    pub(crate) fn bare_granules(&self, pool: PoolIndex) -> Vec<u64> {
        self.bare_of(pool, |state| self.is_needed(pool, state))
    }

    /// Whether all of a pool but its holes has memory behind it.
    pub(crate) fn is_whole(&self, pool: PoolIndex) -> bool {
        self.bare_of(pool, |state| state != State::Hole).is_empty()
    }

    /// Granules that blocks in some states touch and that have no chunk.
    fn bare_of(&self, pool: PoolIndex, wanted: impl Fn(State) -> bool) -> Vec<u64> {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let mut bare: Vec<u64> = Vec::new();
        for id in self.blocks_of(pool).filter(|&id| wanted(self.blocks[id].state)) {
            let block = &self.blocks[id];
            let segment = &self.segments[block.segment as usize];
            if segment.class.is_classic() {
                continue;
            }
            for at in (block.addr & !(granule - 1)..block.end()).step_by(granule as usize) {
                if segment.chunk(at, shift).is_none() && bare.last() != Some(&at) {
                    bare.push(at);
                }
            }
        }
        bare
    }

    /// Notes that sleeping pools have lost the chunks that were at these addresses, in the order of addresses.
    pub(crate) fn strip(&mut self, chunks: &[(u64, Spare)]) {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let mut stretch = Stretch::default();
        let (mut index, mut class) = (0, Class::SMALL);
        for &(first, spare) in chunks {
            let Some(there) = self.segment_index(first, index) else { continue };
            if there != index {
                self.end_stretch(&mut stretch, Stream(0), class);
            }
            (index, class) = (there, self.segments[there].class);
            let bytes = u64::from(spare.span) * granule;
            self.wide_chunks -= usize::from(self.segments[index].wide.contains_key(&first));
            for address in (first..first + bytes).step_by(granule as usize) {
                self.segments[index].set_chunk(address, shift, None, 0);
            }
            self.segments[index].mapped -= bytes;
            self.count_reserved(class, -(bytes as i64));
            self.note(hook::Action::Unmap, first, bytes, Stream(0));
            self.stretch(&mut stretch, (history::Action::SegmentUnmap, first, bytes), Stream(0), class);
        }
        self.end_stretch(&mut stretch, Stream(0), class);
    }

    /// Notes chunks behind granules of sleeping pools; the first `moved` of them were at other addresses before.
    pub(crate) fn clothe(&mut self, chunks: &[(u64, PhysicalHandle)], moved: usize) {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let mut stretch = Stretch::default();
        let (mut index, mut class) = (0, Class::SMALL);
        for (at, &(address, handle)) in chunks.iter().enumerate() {
            let Some(there) = self.segment_index(address, index) else { continue };
            if there != index {
                self.end_stretch(&mut stretch, Stream(0), class);
            }
            (index, class) = (there, self.segments[there].class);
            self.segments[index].set_chunk(address, shift, Some(handle), 0);
            self.segments[index].mapped += granule;
            self.count_reserved(class, granule as i64);
            let (action, kept) = match at < moved {
                true => (hook::Action::Move, history::Action::ChunkMove),
                false => (hook::Action::Map, history::Action::SegmentMap),
            };
            self.note(action, address, granule, Stream(0));
            self.stretch(&mut stretch, (kept, address, granule), Stream(0), class);
        }
        self.end_stretch(&mut stretch, Stream(0), class);
    }

    /// Ends the sleep of a pool: what is free is free memory or holes again, by what is behind it. Returns where
    /// content was kept.
    pub(crate) fn rouse(&mut self, pool: PoolIndex) -> Unwanted {
        let mut unwanted = Unwanted::default();
        let Some(sleep) = self.pools.set_sleep(pool, None) else { return unwanted };
        if sleep.copying {
            self.stamp_copied(pool);
        }
        let (apart, shift) = (self.pools.get(pool).keeps_apart(), self.limits.shift);
        let mut runs: Vec<BlockId> = Vec::new();
        for id in self.free_of(pool) {
            let Block { addr, segment, .. } = self.blocks[id];
            // Holes consist of granules, so blocks that share one without memory are merged all the same.
            let stays = apart && self.segments[segment as usize].chunk(addr, shift).is_some();
            match runs.last() {
                Some(&run) if self.blocks[run].next == id && !stays => self.blocks.join(run, id),
                _ => runs.push(id),
            }
        }
        // None is merged with one that is in no index yet.
        runs.iter().for_each(|&run| self.blocks[run].state = State::Busy);
        for run in runs {
            // Whatever was queued on it was waited for, but perhaps copies.
            let (home, epoch) =
                if sleep.copying { (0, self.streams[0].open) } else { (self.blocks[run].home, 0) };
            self.settle(run, home, epoch);
        }
        unwanted.add(sleep.kept, sleep.copying);
        unwanted
    }

    /// Stamps all chunks of a pool without live blocks as freed on the default stream now: copies there may write them.
    fn stamp_copied(&mut self, pool: PoolIndex) {
        let stamp = Stamp { stream: 0, epoch: self.streams[0].open };
        let mut bytes = 0;
        for first in self.firsts_of(pool) {
            let segment = &mut self.segments[self.blocks[first].segment as usize];
            segment.stamp_all(stamp);
            bytes += segment.mapped;
        }
        self.weigh(0, bytes);
    }

    /// Ends the falling asleep of a pool whose memory stays: what is free is as it was, freed in the epochs it was freed
    /// in, because what is queued on it need not be over.
    pub(crate) fn stay_awake(&mut self, pool: PoolIndex) {
        self.pools.set_sleep(pool, None);
        let free = self.free_of(pool);
        // None is merged with one that is in no index yet.
        free.iter().for_each(|&id| self.blocks[id].state = State::Busy);
        for id in free {
            self.make_free(id);
        }
    }

    /// Lets go of the content of all pools that sleep; where it is kept. What is being copied back belongs to who
    /// does that.
    pub(crate) fn forget_kept(&mut self) -> Unwanted {
        let pools: Vec<_> = self.pools.asleep().collect();
        let mut all = Unwanted::default();
        for pool in pools {
            let sleep = self.pools.get_mut(pool).sleep.as_mut();
            if let Some(sleep) = sleep.filter(|sleep| sleep.depth == Depth::Asleep) {
                all.add(core::mem::take(&mut sleep.kept), sleep.copying);
            }
        }
        all
    }

    /// Where the content of a pool that sleeps is kept.
    pub(crate) fn kept_of(&self, pool: PoolIndex) -> &[Kept] {
        self.pools.get(pool).sleep.as_ref().map_or(&[], |sleep| &sleep.kept)
    }

    /// Ends the sleep of all pools that nobody needs memory of any more; where their content was kept.
    pub(crate) fn rouse_emptied(&mut self) -> Unwanted {
        let mut unwanted = Unwanted::default();
        let asleep: Vec<PoolIndex> = self.pools.asleep().collect();
        asleep.into_iter().for_each(|pool| unwanted.append(self.rouse_if_empty(pool)));
        unwanted
    }

    /// Ends the sleep of a pool that has no live block and no graph any more; where its content was kept.
    pub(crate) fn rouse_if_empty(&mut self, pool: PoolIndex) -> Unwanted {
        let of = self.pools.get(pool);
        let deep = of.sleep.as_ref().is_some_and(|sleep| sleep.depth == Depth::Asleep);
        if !deep || of.active.stats[0].current > 0 || of.is_fixed() {
            return Unwanted::default();
        }
        let kept = self.rouse(pool);
        self.reap(pool);
        kept
    }

    /// Notes that so many bytes of chunks were freed, and those the driver did not take.
    pub(crate) fn forget_chunks(&mut self, freed: u64, kept: Vec<Spare>) {
        self.physical -= freed;
        self.keep_spares(kept);
    }

    /// Whether no queued work can touch a block, because its pool sleeps.
    pub(crate) fn is_at_rest(&self, id: BlockId) -> bool {
        let pool = self.blocks[id].class.pool();
        pool != DEFAULT
            && self.pools.get(pool).sleep.as_ref().is_some_and(|sleep| sleep.depth != Depth::Falling)
    }

    /// Forgets on which streams a block is recorded, if its pool sleeps: all of them were waited for, and nobody has
    /// queued work on it since.
    pub(crate) fn forget_uses_asleep(&mut self, id: BlockId) {
        if self.blocks[id].uses > 0 && self.is_at_rest(id) {
            self.forget_uses(id);
        }
    }

    /// Of live and waiting blocks of pools that sleep, the bytes without memory; and the bytes that are behind such
    /// pools all the same, and could go.
    pub(crate) fn bare_and_behind(&self) -> (u64, u64) {
        self.pools.asleep().fold((0, 0), |(bare, behind), pool| {
            let of = self.pools.get(pool);
            let without = (of.active.stats[0].current - of.reserved.stats[0].current).max(0) as u64;
            let granules: u64 = self.chunks_of(pool).iter().map(|(_, spare)| u64::from(spare.span)).sum();
            (bare + without, behind + granules * self.limits.granule)
        })
    }

    /// Bytes of live and waiting blocks of pools that sleep.
    pub(crate) fn sleeping_bytes(&self) -> i64 {
        self.pools.asleep().map(|pool| self.pools.get(pool).active.stats[0].current).sum()
    }

    /// All blocks of a pool, in the order of addresses.
    pub(super) fn blocks_of(&self, pool: PoolIndex) -> impl Iterator<Item = BlockId> {
        self.firsts_of(pool).into_iter().flat_map(|first| self.blocks.from(first))
    }

    /// The segment that contains an address of a pool that sleeps, if the device was not reset meanwhile; `guess` is
    /// looked at first.
    fn segment_index(&self, address: u64, guess: usize) -> Option<usize> {
        let inside = |segment: &Segment| address.wrapping_sub(segment.base) < segment.len;
        if self.segments.get(guess).is_some_and(inside) { Some(guess) } else { self.segment_at(address) }
    }
}
