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

use super::Core;
use super::block::{BlockId, NONE, State};
use super::plan::{Remap, Remapped, Spare};
use super::pool::{DEFAULT, PoolIndex};
use super::segment::Segment;
use super::stream::StreamId;
use crate::driver::PhysicalHandle;

/// How far a pool is asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Its memory is being given back.
    Falling,
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
}

/// A block of page-locked host memory with the content of a stretch of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Address on the host.
    pub(crate) host: u64,
    /// Address on the device.
    pub(crate) device: u64,
    /// Bytes of both.
    pub(crate) bytes: u64,
    /// Whether the memory on the host is that of a content store, not the driver's.
    pub(crate) stored: bool,
}

impl Core {
    /// Whether a pool sleeps, in whatever depth.
    #[inline]
    pub(crate) fn is_asleep(&self, pool: PoolIndex) -> bool {
        pool != DEFAULT && self.pools.get(pool).sleep.is_some()
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
        if of.is_fixed() {
            return Some("a captured graph uses its addresses; release the graph first");
        }
        if of.rules.source.is_some() {
            return Some("its memory comes from functions of its owner, who alone can take it away");
        }
        if of.rules.use_on_oom && self.has_lent(pool) {
            return Some(
                "live blocks of it are lent to the default pool, which does not sleep; free those first",
            );
        }
        let classic = |segment: &Segment| segment.class.pool() == pool && segment.class.is_classic();
        if self.segments.iter().any(|(_, segment)| classic(segment)) {
            return Some("it has fixed blocks, whose memory cannot be taken from under their addresses");
        }
        None
    }

    /// Begins to put a pool to sleep: from now on nothing is placed in it, and what is free belongs to nobody.
    pub(crate) fn lull(&mut self, pool: PoolIndex) {
        for id in self.free_of(pool) {
            self.withdraw(id);
        }
        self.pools.get_mut(pool).sleep = Some(Sleep { depth: Depth::Falling, kept: Vec::new() });
    }

    /// Whether driver calls run for memory of a pool.
    pub(crate) fn is_moving(&self, pool: PoolIndex) -> bool {
        self.blocks_of(pool).any(|id| self.blocks[id].state == State::Busy)
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

    /// The chunks of a pool, with the address of each.
    pub(crate) fn chunks_of(&self, pool: PoolIndex) -> Vec<(u64, Spare)> {
        let mut chunks = Vec::new();
        for (_, segment) in self.segments.iter().filter(|(_, segment)| segment.class.pool() == pool) {
            let each = segment.each_chunk(self.limits.shift);
            chunks
                .extend(each.map(|(address, handle, span)| (address, Spare { handle, fresh: false, span })));
        }
        chunks
    }

    /// Stretches of live memory of a pool: address and bytes, in address order within a segment.
    pub(crate) fn live_stretches(&self, pool: PoolIndex) -> Vec<(u64, u64)> {
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        for id in self.blocks_of(pool).filter(|&id| self.blocks[id].state == State::Live) {
            let block = &self.blocks[id];
            match stretches.last_mut() {
                Some((start, bytes)) if *start + *bytes == block.addr => *bytes += block.len,
                _ => stretches.push((block.addr, block.len)),
            }
        }
        stretches
    }

    /// Granules that live blocks of a pool touch and that have no chunk.
    pub(crate) fn bare_granules(&self, pool: PoolIndex) -> Vec<u64> {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let mut bare: Vec<u64> = Vec::new();
        for id in self.blocks_of(pool).filter(|&id| self.blocks[id].state == State::Live) {
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

    /// Notes that sleeping pools have lost the chunks that were at these addresses.
    pub(crate) fn strip(&mut self, chunks: &[(u64, Spare)]) {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let mut index = 0;
        for &(first, spare) in chunks {
            let Some(there) = self.segment_index(first, index) else { continue };
            index = there;
            let bytes = u64::from(spare.span) * granule;
            self.wide_chunks -= usize::from(self.segments[index].wide.contains_key(&first));
            for address in (first..first + bytes).step_by(granule as usize) {
                self.segments[index].set_chunk(address, shift, None, 0);
            }
            self.segments[index].mapped -= bytes;
            self.count_reserved(self.segments[index].class, -(bytes as i64));
        }
    }

    /// Notes chunks behind granules of sleeping pools.
    pub(crate) fn clothe(&mut self, chunks: &[(u64, PhysicalHandle)]) {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let mut index = 0;
        for &(address, handle) in chunks {
            let Some(there) = self.segment_index(address, index) else { continue };
            index = there;
            self.segments[index].set_chunk(address, shift, Some(handle), 0);
            self.segments[index].mapped += granule;
            self.count_reserved(self.segments[index].class, granule as i64);
        }
    }

    /// Ends the sleep of a pool: what is free is free memory or holes again, by what is behind it. Returns where
    /// content was kept.
    pub(crate) fn rouse(&mut self, pool: PoolIndex) -> Vec<Kept> {
        let Some(sleep) = self.pools.get_mut(pool).sleep.take() else { return Vec::new() };
        let mut runs: Vec<BlockId> = Vec::new();
        for id in self.free_of(pool) {
            match runs.last() {
                Some(&run) if self.blocks[run].next == id => self.blocks.join(run, id),
                _ => runs.push(id),
            }
        }
        for run in runs {
            // Whatever was queued on it was waited for.
            let home = self.blocks[run].home;
            self.blocks[run].state = State::Busy;
            self.settle(run, home, 0);
        }
        sleep.kept
    }

    /// Ends the falling asleep of a pool whose memory stays: what is free is as it was, freed in the epochs it was freed
    /// in, because what is queued on it need not be over. Returns where content was kept.
    pub(crate) fn stay_awake(&mut self, pool: PoolIndex) -> Vec<Kept> {
        let Some(sleep) = self.pools.get_mut(pool).sleep.take() else { return Vec::new() };
        let free = self.free_of(pool);
        // None is merged with one that is in no index yet.
        free.iter().for_each(|&id| self.blocks[id].state = State::Busy);
        for id in free {
            self.make_free(id);
        }
        sleep.kept
    }

    /// Lets go of the content of all pools that sleep; where it is kept. What is being copied back belongs to who
    /// does that.
    pub(crate) fn forget_kept(&mut self) -> Vec<Kept> {
        let pools: Vec<_> = self.pools.indices().collect();
        let mut all = Vec::new();
        for pool in pools {
            let sleep = self.pools.get_mut(pool).sleep.as_mut();
            if let Some(sleep) = sleep.filter(|sleep| sleep.depth == Depth::Asleep) {
                all.append(&mut sleep.kept);
            }
        }
        all
    }

    /// Where the content of a pool that sleeps is kept.
    pub(crate) fn kept_of(&self, pool: PoolIndex) -> &[Kept] {
        self.pools.get(pool).sleep.as_ref().map_or(&[], |sleep| &sleep.kept)
    }

    /// Ends the sleep of a pool that has no live block any more; where its content was kept.
    pub(crate) fn rouse_if_empty(&mut self, pool: PoolIndex) -> Vec<Kept> {
        let of = self.pools.get(pool);
        let deep = of.sleep.as_ref().is_some_and(|sleep| sleep.depth == Depth::Asleep);
        if !deep || of.active.stats[0].current > 0 {
            return Vec::new();
        }
        let kept = self.rouse(pool);
        self.reap(pool);
        kept
    }

    /// What is needed to put chunks behind the granules: cached ones, new ones as far as the limit allows
    /// (none if the device is `full`), idle ones of other pools. Nothing when there are too few.
    pub(crate) fn refill(&mut self, missing: Vec<u64>, full: bool) -> Option<Remap> {
        let granule = self.limits.granule;
        let need = missing.len() as u64;
        let cached = need.min(self.cached.len() as u64);
        let hard = if full {
            0
        } else {
            self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.held()) / granule)
        };
        let create = (need - cached).min(hard);
        let moves = need - cached - create;
        if self.count_movable(moves) < moves {
            return None;
        }
        let runs = self.gather_to_move(moves);
        let handles = self.cached.split_off(self.cached.len() - cached as usize);
        self.physical += create * granule;
        let (grants, create) = (self.grants(), create as u32);
        let remap = Remap {
            target: NONE,
            start: 0,
            len: 0,
            home: 0,
            epoch: 0,
            missing,
            wide: Vec::new(),
            runs,
            handles,
            create,
            grants,
        };
        Some(remap)
    }

    /// Takes the outcome of such a remap.
    pub(crate) fn commit_refill(&mut self, remap: Remap, done: Remapped) {
        self.physical -= (remap.create - done.created) as u64 * self.limits.granule;
        self.access &= !done.no_access;
        self.tally.moved += done.unmapped.len() as u64;
        let gone = done.unmapped.iter().copied().collect();
        for run in &remap.runs {
            self.commit_run(run.block, &gone);
        }
        self.cached.extend(done.spare);
        self.note_mapped(&remap.grants, &done.mapped);
        self.clothe(&done.mapped);
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
        if self.blocks[id].uses == 0 || !self.is_at_rest(id) {
            return;
        }
        for user in self.recorded.remove(&id).unwrap_or_default() {
            self.streams[user as usize].recorded -= 1;
        }
        self.blocks[id].uses = 0;
    }

    /// Bytes of live and waiting blocks of pools that sleep.
    pub(crate) fn sleeping_bytes(&self) -> i64 {
        let asleep = self.pools.indices().filter(|&pool| self.is_asleep(pool));
        asleep.map(|pool| self.pools.get(pool).active.stats[0].current).sum()
    }

    /// All blocks of a pool, in address order within a segment.
    fn blocks_of(&self, pool: PoolIndex) -> impl Iterator<Item = BlockId> {
        self.firsts_of(pool).into_iter().flat_map(|first| {
            let next = |&id: &BlockId| Some(self.blocks[id].next).filter(|&next| next != NONE);
            core::iter::successors(Some(first), next)
        })
    }

    /// The segment that contains an address of a pool that sleeps, if the device was not reset meanwhile; `guess` is
    /// looked at first.
    fn segment_index(&self, address: u64, guess: usize) -> Option<usize> {
        let inside = |segment: &Segment| address.wrapping_sub(segment.base) < segment.len;
        if self.segments.get(guess).is_some_and(inside) {
            return Some(guess);
        }
        let mut segments = self.segments.iter();
        segments.find(|(_, segment)| inside(segment)).map(|(index, _)| index)
    }
}
