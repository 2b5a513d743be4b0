//! Capturing graphs: a pool whose addresses stay, and going back to an earlier state of it.
//!
//! A captured graph holds addresses. While it lives, nothing of its pool is unmapped or moved, unless the pool is put to
//! sleep, and its free blocks serve nothing but captures into the same pool. While a capture runs, nothing of the whole device is
//! unmapped, given back or waited for, and no event is recorded or queried (`core/capture.rs`).

use hashbrown::HashMap;

use super::device::Caller;
use super::pools::{known, unknown};
use super::requests::Guard;
use super::routes::RouteFilter;
use super::{DeviceAllocator, DevicePtr, PoolId};
use crate::core::Core;
use crate::core::block::BlockId;
use crate::core::checkpoint::{Asked, RECORDED, Saved, WAITS};
use crate::core::plan::Request;
use crate::core::pool::PoolIndex;
use crate::error::{Error, Result};

const OPERATION: &str = "restoring a checkpoint";

/// A capture in progress: the requests its filter takes go to the pool. Dropped without
/// [`finish`](Self::finish) it counts as failed and leaves nothing behind.
#[derive(Debug)]
pub struct Capture<'a> {
    allocator: &'a DeviceAllocator,
    pool: PoolId,
    number: u64,
    /// How often the device had been reset.
    generation: u64,
    finished: bool,
}

/// A captured graph's hold on its pool: while this lives, the pool's addresses stay mapped.
#[derive(Debug)]
pub struct CapturedGraph<'a> {
    allocator: &'a DeviceAllocator,
    pool: PoolId,
    /// How often the device had been reset.
    generation: u64,
}

/// The live blocks of a pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCheckpoint {
    pool: PoolId,
    /// How often the device had been reset.
    generation: u64,
    saved: Vec<Saved>,
}

/// What restoring a checkpoint changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Blocks that were live before, by address; whoever held them holds nothing now.
    pub freed: Vec<DevicePtr>,
    /// Blocks that are live now, by address: those of the checkpoint. They are the caller's to free.
    pub allocated: Vec<DevicePtr>,
}

impl Capture<'_> {
    /// The pool that is captured into.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }
}

impl<'a> Capture<'a> {
    /// Ends a capture that succeeded.
    #[must_use = "the graph's addresses stay mapped only while this lives"]
    pub fn finish(mut self) -> CapturedGraph<'a> {
        self.finished = true;
        CapturedGraph { allocator: self.allocator, pool: self.pool, generation: self.generation }
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        self.allocator.end_route_numbered(self.pool.device, self.number);
        if !self.finished {
            self.allocator.forget_graph(self.pool, self.generation);
        }
    }
}

impl CapturedGraph<'_> {
    /// The pool that holds its addresses.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }
}

impl Drop for CapturedGraph<'_> {
    fn drop(&mut self) {
        self.allocator.forget_graph(self.pool, self.generation);
    }
}

impl PoolCheckpoint {
    /// The pool it is of.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The blocks that were live: address and bytes.
    pub fn blocks(&self) -> impl Iterator<Item = (DevicePtr, u64)> {
        self.saved.iter().map(|saved| (DevicePtr(saved.address), saved.len))
    }
}

impl DeviceAllocator {
    /// Begins a capture into a pool: from now on its addresses stay mapped, and the requests that the filter
    /// takes go to it ([`RouteFilter::CapturedWith`] takes those of one capture). Several graphs may
    /// share a pool if they never run at the same time, and run in the order they were captured in or use no results of one
    /// another, as in PyTorch. To be called before the driver begins to capture: streams whose work on the pool's free memory may not be over are
    /// asked now, by an event each, because they cannot be later, and no event that another thread is recording comes into the
    /// capture. Where a route that begins inside of the capture, also that of another capture, sends a request that the filter takes
    /// to another pool, the addresses of that one stay mapped too (those of the default pool do not). Until the capture ends, nothing of the device's memory is moved or given back: a request that free and
    /// new memory cannot serve fails, and its error says so.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist, and for the default pool; [`Error::State`] while it sleeps.
    pub fn capture(&self, pool: PoolId, filter: RouteFilter) -> Result<Capture<'_>> {
        let (number, generation) = self.start_capture(pool, filter, Core::fix)?;
        Ok(Capture { allocator: self, pool, number, generation, finished: false })
    }

    /// The same for callers that cannot keep a [`Capture`]: ended by [`end_route`](Self::end_route), and the
    /// hold of the graph by [`release_graph`](Self::release_graph), once, whether the capture succeeded or not and also
    /// after a reset of the device.
    ///
    /// # Errors
    ///
    /// As [`capture`](Self::capture).
    pub fn begin_capture(&self, pool: PoolId, filter: RouteFilter) -> Result<u64> {
        self.start_capture(pool, filter, Core::fix_by_name).map(|(number, _)| number)
    }

    /// The same; says also how often the device had been reset.
    fn start_capture(
        &self,
        pool: PoolId,
        filter: RouteFilter,
        fix: fn(&mut Core, PoolIndex),
    ) -> Result<(u64, u64)> {
        if pool.serial == 0 {
            return Err(unknown(pool));
        }
        let state = self.device(pool.device)?;
        let caller = self.caller(state);
        let (mut core, index) = caller.ready_for_capture(pool)?;
        core.pools.get_mut(index).holders += 1;
        fix(&mut core, index);
        core.capturing += 1;
        let generation = core.generation;
        caller.let_record(core);
        Ok((state.routes.begin(pool.serial, filter, Some(generation)), generation))
    }

    /// A graph whose capture began with [`begin_capture`](Self::begin_capture) is gone; once for each. Which of a pool's
    /// graphs it was is not said: where a reset of the device has ended some, these come first, and a release of
    /// them does nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist, [`Error::State`] when all its graphs were released.
    pub fn release_graph(&self, pool: PoolId) -> Result<()> {
        let state = self.device(pool.device)?;
        let mut core = state.core.lock();
        let index = known(&core, pool)?;
        let left = core.unfix_by_name(index).ok_or(Error::State {
            operation: "releasing a graph's hold on a pool",
            reason: "no graph holds it; each release needs a capture before it",
        })?;
        self.pools_were_left(state, core, &left);
        Ok(())
    }

    /// Remembers which blocks of a pool are live, with their sizes and streams. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist, and for the default pool.
    pub fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint> {
        if pool.serial == 0 {
            return Err(unknown(pool));
        }
        let state = self.device(pool.device)?;
        let core = state.core.lock();
        let mut live = core.live_of(known(&core, pool)?);
        // Nobody has these any more: they live for their importers only.
        live.retain(|&id| !core.outlives_its_owner(id));
        Ok(PoolCheckpoint { pool, generation: core.generation, saved: core.saved(&live) })
    }

    /// Frees every live block of the checkpoint's pool (but not those lent to the default pool or claimed), and hands out the
    /// blocks of the checkpoint at their old addresses. The caller sees to it that work on the pool's memory runs in order across the
    /// change, as graphs that share a pool must. Where live blocks are recorded on streams, or freed ones that lie where blocks were
    /// wait for some, these are asked once, by an event each, whether they have passed what is queued (one for which no event can be had is
    /// waited for, and for a destroyed one the device is); else no driver is called.
    /// A block whose stream was destroyed meanwhile is as one whose stream is destroyed after the restore.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist; [`Error::State`] when the device was reset since, when the pool sleeps, when memory of the
    /// checkpoint is not mapped any more (the pool was not held by a graph), serves a growing buffer or the default pool by now, was claimed, or waits
    /// for other streams, when live blocks are exported, or recorded on streams that have not passed what is queued on them (during
    /// a capture no stream is asked, and all count as busy; [`erase_stream`](Self::erase_stream) helps then). Nothing has changed then.
    pub fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored> {
        let state = self.device(checkpoint.pool.device)?;
        self.caller(state).restore(checkpoint)
    }

    /// A graph is gone. One from before a reset of the device went with that.
    fn forget_graph(&self, pool: PoolId, generation: u64) {
        if let Ok(Some(state)) = self.used(pool.device) {
            let mut core = state.core.lock();
            let index = core.pools.find(pool.serial).filter(|_| core.generation == generation);
            let left = index.map_or_else(|| vec![pool.serial], |index| core.unfix(index));
            self.pools_were_left(state, core, &left);
        }
    }
}

impl<'a> Caller<'a> {
    /// The pool of a capture that begins, which can be captured into. Nobody can be asked until it ends, so first the streams
    /// that the pool's free memory may still be used on are asked whether they have passed.
    fn ready_for_capture(&'a self, pool: PoolId) -> Result<(Guard<'a>, PoolIndex)> {
        let mut core = self.device.core.lock();
        let mut asked = false;
        loop {
            let index = known(&core, pool)?;
            if core.is_asleep(index) {
                return Err(Error::State {
                    operation: "capturing into a pool",
                    reason: "it sleeps; wake it first",
                });
            }
            if core.capturing > 0 || core::mem::replace(&mut asked, true) || !core.is_in_doubt(index) {
                return Ok((core, index));
            }
            core = self.learn(core);
        }
    }
}

impl Caller<'_> {
    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored> {
        let mut core = self.device.core.lock();
        let mut answer = self.restorable(&core, checkpoint, &Asked::default());
        if let Ok((pool, Some(WAITS | RECORDED))) = answer {
            let asked;
            (core, asked) = self.ask_users_of(core, pool);
            answer = self.restorable(&core, checkpoint, &asked);
        }
        // Nothing has changed so far, and from here on nothing may stop.
        let pool = match answer? {
            (pool, None) => pool,
            (_, Some(reason)) => return Err(Error::State { operation: OPERATION, reason }),
        };
        let mut restored = Restored::default();
        for saved in core.saved(&core.live_of(pool)) {
            let (id, requested) = self.device.unpublish(&mut core, self.map, saved.address)?;
            core.forget_uses(id);
            core.free(id, requested);
            restored.freed.push(DevicePtr(saved.address));
        }
        // Both lists are in address order: each block is found by going on from the one before.
        let mut firsts = core.firsts_of(pool).into_iter().peekable();
        let (mut from, mut homes) = (None, HashMap::new());
        for saved in &checkpoint.saved {
            while let Some(first) = firsts.next_if(|&first| core.blocks[first].addr <= saved.address) {
                from = Some(first);
            }
            let Some(start) = from else { break };
            let home = core.home_of(saved, &mut homes);
            let id = core.revive(start, saved, home);
            from = Some(id);
            self.show_again(&mut core, id, saved);
            restored.allocated.push(DevicePtr(saved.address));
        }
        self.watch(&mut core, 2);
        self.tell(core);
        Ok(restored)
    }

    /// Asks the streams that use blocks of a pool whether they have passed what is queued, and waits for those that cannot be
    /// asked. During a capture nobody is.
    fn ask_users_of<'b>(&'b self, mut core: Guard<'b>, pool: PoolIndex) -> (Guard<'b>, Asked) {
        let (generation, mut chore) = (core.generation, Request::chore());
        if core.capturing > 0 {
            return (core, Asked::new());
        }
        let (mut step, asked) = core.ask_users_of(pool);
        while let Some(next) = step.or_else(|| core.wait_for_untold(&asked, &chore)) {
            core = self.perform(core, next, &mut chore);
            if core.generation != generation || core.capturing > 0 || chore.failure.is_some() {
                break;
            }
            step = None;
        }
        (core, asked)
    }

    /// The pool of a checkpoint, and why it cannot be restored now, if it cannot; `asked` says which streams have passed all
    /// that is queued.
    fn restorable(
        &self,
        core: &Core,
        checkpoint: &PoolCheckpoint,
        asked: &Asked,
    ) -> Result<(PoolIndex, Option<&'static str>)> {
        let pool = known(core, checkpoint.pool)?;
        if core.generation != checkpoint.generation {
            // What is at these addresses now has nothing to do with what was.
            let reason = "the device was reset since the checkpoint was made";
            return Err(Error::State { operation: OPERATION, reason });
        }
        let live = core.live_of(pool);
        let reason = core.unrestorable(pool, &checkpoint.saved);
        let reason = reason.or_else(|| {
            let exported = live.iter().any(|&id| core.is_exported(id));
            exported.then_some("live blocks of the pool are exported; end that first")
        });
        let reason = reason.or_else(|| core.is_recorded(pool, asked).then_some(RECORDED));
        let is_known = |&id: &BlockId| self.device.live(core, self.map, core.blocks[id].addr).is_ok();
        let reason = reason.or_else(|| {
            (!live.iter().all(is_known)).then_some(
                "a block of the pool is being grown, or is kept back for a stale one at its address; try again, or \
                 free that one",
            )
        });
        Ok((pool, reason))
    }

    /// Lets a block that was brought back be known, and counts it.
    fn show_again(&self, core: &mut Core, id: BlockId, saved: &Saved) {
        self.device.publish(core, self.map, id);
        self.count_out(core, id, saved.requested, saved.stream);
        core.keep_block(crate::history::Action::Allocate, id, saved.requested);
    }
}
