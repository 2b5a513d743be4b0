//! Blocks that come from the driver one by one and go back to it with their free, while caching is switched off.

use super::DeviceAllocator;
use super::device::{Caller, Device};
use super::requests::Guard;
use super::routes::RouteFilter;
use crate::core::Core;
use crate::core::pool::{DEFAULT, PoolIndex, Rules};
use crate::core::trim::Choice;
use crate::driver::DeviceId;
use crate::error::{Error, Result};

impl DeviceAllocator {
    /// Whether requests of a device are served from memory that is kept, as they are from the beginning (`true`), or each from
    /// a fixed block of the driver's, which goes back to it once it is freed (`false`): to look for programs that use memory
    /// after its free, or to see how much a program needs at least. Answers what it was before.
    ///
    /// Each block remembers where it came from: one that was handed out before goes back there, whatever the switch says by
    /// then. While caching is off, requests that name no pool get such blocks, unless a route that was begun later takes them,
    /// and a free waits for the streams that used the block; growing buffers give back what is cut off of them. Their memory is that of a pool with the tag `uncached`, in whole
    /// 2 MiB, and counts towards limits as any other. What was kept before stays kept; [`empty_cache`](Self::empty_cache)
    /// gives it back. What is freed while a graph is captured goes back later, with the next such free or
    /// [`empty_cache`](Self::empty_cache).
    ///
    /// Callable from any thread; requests that run meanwhile may still be served as before.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device, [`Error::Driver`] when it cannot be set up, [`Error::State`] while a graph is
    /// captured: its requests would get memory that goes.
    pub fn set_caching(&self, device: DeviceId, on: bool) -> Result<bool> {
        let state = self.device(device)?;
        let mut core = state.core.lock();
        let before = core.uncached.is_none();
        if before == on {
            return Ok(before);
        }
        if core.capturing > 0 {
            let reason = "a graph is being captured on the device; switch it before or after";
            return Err(Error::State { operation: "switching caching", reason });
        }
        if let Some((serial, route)) = core.uncached.take() {
            drop(core);
            self.end_route_numbered(device, route);
            self.release(state, state.core.lock(), super::PoolId { device, serial })?;
            return Ok(before);
        }
        state.keep_nothing(&mut core);
        Ok(before)
    }
}

impl Device {
    /// Has requests served by the driver from now on, one by one.
    pub(super) fn keep_nothing(&self, core: &mut Core) {
        let rules = Rules {
            tag: "uncached".to_owned(),
            no_split: true,
            expandable: Some(false),
            uncached: true,
            ..Rules::default()
        };
        let pool = core.pools.add(rules);
        core.pools.get_mut(pool).holders += 1;
        let serial = core.pools.get(pool).serial;
        core.uncached = Some((serial, self.routes.begin(serial, RouteFilter::All, None)));
    }
}

impl Core {
    /// Whether what is freed in a pool goes back to the driver at once.
    #[inline]
    pub(super) fn keeps_nothing(&self, pool: PoolIndex) -> bool {
        pool != DEFAULT && self.pools.get(pool).rules.uncached
    }
}

impl Caller<'_> {
    /// Ends a free of a block of a pool that keeps nothing.
    #[cold]
    pub(super) fn give_back_freed(&self, mut core: Guard<'_>, pool: PoolIndex) {
        self.watch(&mut core, 2);
        self.tell(core);
        // What is refused stays idle with the pool; the next free, or emptying the cache, tries again.
        let _refused = self.device.give_back(self, Choice { pool: Some(pool), ..Choice::ALL }, 0, true);
    }
}
