//! Pools of a user: memory that is exchanged only among itself.

use std::sync::Arc;

use super::DeviceAllocator;
use super::DevicePtr;
use super::device::Device;
use super::requests::Guard;
use super::routes::RouteFilter;
use crate::core::Core;
use crate::core::pool::{Pool, PoolIndex, Rules};
use crate::core::source::{PoolSource, Source};
use crate::core::trim::Choice;
use crate::driver::{DeviceId, Stream};
use crate::error::{Error, Result};
use crate::stats::StatArray;

/// A pool of one device. Names are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId {
    /// The device.
    pub device: DeviceId,
    /// Which of its pools; 0 is the default one.
    pub serial: u64,
}

impl PoolId {
    /// The pool of requests that name none and that no route takes.
    #[must_use]
    pub fn default_of(device: DeviceId) -> Self {
        Self { device, serial: 0 }
    }
}

/// What can be chosen for a pool. Sizes in bytes.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct PoolOptions {
    /// A name for people, and for putting pools to sleep; several pools may have the same.
    pub tag: String,
    /// Free blocks are handed out whole or not at all, and merged only when whole chunks of them are wanted elsewhere.
    pub no_split: bool,
    /// Its free blocks serve the default pool before that runs out of memory. While any lent block lives, the pool cannot be
    /// put to sleep; a restored checkpoint leaves lent blocks alone. Lent blocks do not grow in place.
    pub use_on_oom: bool,
    /// Above this it takes idle memory from elsewhere before it asks the device; fixed blocks (`expandable_segments:False`,
    /// or of a source), for which nothing can be moved, are given back first where they are idle. Nothing fails because of it.
    pub soft_limit: Option<u64>,
    /// Where its memory comes from, if not from the device's driver. Its segments neither grow nor move then, and
    /// count towards no limit.
    pub source: Option<Arc<dyn PoolSource>>,
    /// The kind of its segments where the setting `expandable_segments` does not decide it: `Some(true)` for a pool that
    /// is to sleep or to be exported whatever the setting says, because fixed blocks can be neither; `Some(false)` for fixed
    /// blocks. Where the device has no virtual memory all blocks are fixed, and so are those of a source.
    pub expandable: Option<bool>,
}

impl core::fmt::Debug for PoolOptions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PoolOptions")
            .field("tag", &self.tag)
            .field("no_split", &self.no_split)
            .field("use_on_oom", &self.use_on_oom)
            .field("soft_limit", &self.soft_limit)
            .field("source", &self.source.is_some())
            .field("expandable", &self.expandable)
            .finish()
    }
}

impl PoolOptions {
    /// The options of a pool with a tag.
    #[must_use]
    pub fn tagged(tag: &str) -> Self {
        Self { tag: tag.to_owned(), ..Self::default() }
    }
}

/// Statistics of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Its tag.
    pub tag: String,
    /// Bytes handed out, rounded.
    pub allocated_bytes: StatArray,
    /// Bytes handed out or waiting for streams.
    pub active_bytes: StatArray,
    /// Bytes with physical memory behind them.
    pub reserved_bytes: StatArray,
    /// Address space reserved, bytes.
    pub reserved_address_space: u64,
    /// Graphs whose addresses are baked in; those of another pool that have some through a route inside of their captures count as
    /// one.
    pub graphs: u32,
}

impl PoolStats {
    fn of(pool: &Pool) -> Self {
        Self {
            tag: pool.rules.tag.clone(),
            allocated_bytes: pool.allocated.array(),
            active_bytes: pool.active.array(),
            reserved_bytes: pool.reserved.array(),
            reserved_address_space: pool.address_space,
            graphs: pool.graphs + pool.guests,
        }
    }
}

/// All pools but the default one, by serial. Under the core's lock.
pub(super) fn all(core: &Core) -> Vec<(u64, PoolStats)> {
    let others = core.pools.indices().map(|index| core.pools.get(index)).filter(|pool| pool.serial != 0);
    let mut all: Vec<_> = others.map(|pool| (pool.serial, PoolStats::of(pool))).collect();
    all.sort_by_key(|&(serial, _)| serial);
    all
}

/// A route that ends when this is dropped.
#[derive(Debug)]
pub struct PoolRoute<'a> {
    allocator: &'a DeviceAllocator,
    device: DeviceId,
    number: u64,
}

impl Drop for PoolRoute<'_> {
    fn drop(&mut self) {
        self.allocator.end_route_numbered(self.device, self.number);
    }
}

impl DeviceAllocator {
    /// A new pool, empty. It is held until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device, [`Error::Driver`] when the device cannot be set up.
    pub fn create_pool(&self, device: DeviceId, options: PoolOptions) -> Result<PoolId> {
        let state = self.device(device)?;
        let rules = Rules {
            tag: options.tag,
            no_split: options.no_split,
            use_on_oom: options.use_on_oom,
            soft_limit: options.soft_limit,
            source: options.source.map(Source::new),
            expandable: options.expandable,
            uncached: false,
        };
        let mut core = state.core.lock();
        let index = core.pools.add(rules);
        Ok(PoolId { device, serial: core.pools.get(index).serial })
    }

    /// A block from a pool, whatever routes there are; else as [`allocate`](Self::allocate).
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate), and [`Error::Argument`] for a pool that does not exist.
    pub fn allocate_in(&self, pool: PoolId, bytes: u64, align: u64, stream: Stream) -> Result<DevicePtr> {
        let Some((state, align)) = self.asked(pool.device, bytes, align)? else {
            return Ok(DevicePtr::NULL);
        };
        self.caller(state).allocate(pool.serial, bytes, align, stream).map(DevicePtr)
    }

    /// Gives up the hold on a pool that [`create_pool`](Self::create_pool) made. Live blocks stay valid; what
    /// is idle serves other pools, and the pool is gone with its last memory. Until then other calls still take its name.
    /// Once nobody holds it any more, idle memory of a source goes back, because it serves no other pool (while a graph is captured
    /// on the device, when that has ended); what is in use, or refused, then goes with [`empty_cache`](Self::empty_cache).
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist or was released before, and for the default pool; [`Error::State`]
    /// for the pool that serves requests while [caching is off](Self::set_caching).
    pub fn release_pool(&self, pool: PoolId) -> Result<()> {
        let state = self.device(pool.device)?;
        let core = state.core.lock();
        if core.uncached.is_some_and(|(serial, _)| serial == pool.serial) {
            return Err(Error::State { operation: "releasing a pool", reason: SWITCHED });
        }
        self.release(state, core, pool)
    }

    /// The same, whatever the pool is for.
    pub(super) fn release(&self, state: &Device, mut core: Guard<'_>, pool: PoolId) -> Result<()> {
        let index = known(&core, pool)?;
        // Routes and captures hold it as well: their hold is not the caller's to give up.
        if pool.serial == 0 || core::mem::replace(&mut core.pools.get_mut(index).released, true) {
            return Err(unknown(pool));
        }
        core.let_go(index);
        self.pools_were_left(state, core, &[pool.serial]);
        Ok(())
    }

    /// Statistics of a pool. Those of the default pool are what [`stats`](Self::stats) says less those of all others;
    /// asking for it is an error.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist, and for the default pool.
    pub fn pool_stats(&self, pool: PoolId) -> Result<PoolStats> {
        let state = self.device(pool.device)?;
        let core = state.core.lock();
        let index = known(&core, pool)?;
        if pool.serial == 0 {
            return Err(unknown(pool));
        }
        Ok(PoolStats::of(core.pools.get(index)))
    }

    /// Sends the requests that the filter takes to a pool, until the route is dropped. The newest route that
    /// takes a request wins. The pool is held meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist.
    pub fn route(&self, pool: PoolId, filter: RouteFilter) -> Result<PoolRoute<'_>> {
        let number = self.begin_route(pool, filter)?;
        Ok(PoolRoute { allocator: self, device: pool.device, number })
    }

    /// The same for callers that cannot keep a [`PoolRoute`]; ended by [`end_route`](Self::end_route).
    /// Returns the route's number.
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route).
    pub fn begin_route(&self, pool: PoolId, filter: RouteFilter) -> Result<u64> {
        let state = self.device(pool.device)?;
        let mut core = state.core.lock();
        let index = known(&core, pool)?;
        core.pools.get_mut(index).holders += 1;
        drop(core);
        Ok(state.routes.begin(pool.serial, filter, None))
    }

    /// Ends the newest route to a pool that this thread began, or if it began none the newest of all.
    ///
    /// # Errors
    ///
    /// [`Error::State`] when there is none, or when the same thread has begun another after it: those of a thread end
    /// from the inside; and when only that of [switched-off caching](Self::set_caching) leads there. Nothing has changed then.
    pub fn end_route(&self, pool: PoolId) -> Result<()> {
        let state = self.device(pool.device)?;
        let newest = state.routes.newest_to(pool.serial);
        let switch = state.core.lock().uncached;
        if newest.is_some() && newest == switch.map(|(_, route)| route) {
            return Err(Error::State { operation: "ending a route to a pool", reason: SWITCHED });
        }
        if newest.is_some_and(|number| self.end_route_numbered(pool.device, number)) {
            return Ok(());
        }
        Err(Error::State {
            operation: "ending a route to a pool",
            reason: "none leads to it, or one inside it has not ended; each end needs its own begin",
        })
    }

    pub(super) fn end_route_numbered(&self, device: DeviceId, number: u64) -> bool {
        let Ok(Some(state)) = self.used(device) else { return false };
        let Some((serial, capture)) = state.routes.end(number) else { return false };
        let mut core = state.core.lock();
        // A reset of the device has ended all captures from before it.
        let captured = capture == Some(core.generation);
        core.capturing -= u32::from(captured);
        let left = match captured && core.capturing == 0 {
            // Nothing has gone back while they ran.
            true => core.pools.serials_elsewhere(),
            false => vec![serial],
        };
        if let Some(index) = core.pools.find(serial) {
            core.let_go(index);
        }
        self.pools_were_left(state, core, &left);
        true
    }

    /// Ends a call that has given up a hold on pools, or a graph's on their addresses. If it was the last one, idle memory of
    /// such a pool that is none of the device's goes back: no other pool can use it, and no request for this one comes any
    /// more. Pools that slept for their graphs alone wake.
    pub(super) fn pools_were_left(&self, state: &Device, mut core: Guard<'_>, serials: &[u64]) {
        let unwanted = core.rouse_emptied();
        let unheld = |pool: PoolIndex| {
            let of = core.pools.get(pool);
            of.rules.is_elsewhere() && of.holders == 0 && !of.is_fixed()
        };
        let mut left = serials.to_vec();
        left.retain(|&serial| core.pools.find(serial).is_some_and(unheld));
        drop(core);
        self.caller(state).drop_content(unwanted);
        for serial in left {
            // Others may have come and gone meanwhile.
            let pool = state.core.lock().pools.find(serial);
            if pool.is_some() {
                // What is refused stays idle with the pool; emptying the cache tries again and says why.
                let _refused = state.give_back(&self.caller(state), Choice { pool, ..Choice::ALL }, 0, false);
            }
        }
        state.departed.part();
    }
}

/// Why a pool or a route is nobody's to give up.
const SWITCHED: &str = "it serves requests while caching is off; switch caching on with set_caching";

/// The index of a pool that exists.
pub(super) fn known(core: &crate::core::Core, pool: PoolId) -> Result<PoolIndex> {
    core.pools.find(pool.serial).ok_or_else(|| unknown(pool))
}

pub(super) fn unknown(pool: PoolId) -> Error {
    Error::Argument {
        name: "pool",
        value: format!("{} of device {}", pool.serial, pool.device),
        expected: "a pool made by create_pool and not released since",
    }
}
