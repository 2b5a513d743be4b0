//! How much memory is held: limits, giving memory back, and callbacks that free some.

use std::time::Duration;

use super::{DeviceAllocator, PoolId};
use crate::driver::DeviceId;
use crate::error::{Error, Result};
use crate::hook::{CallbackId, MemoryCallback};

/// How long memory has been idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Counted in frees that the core served since. Those that stayed in the front cache count only where memory decays
    /// (`decay_ms`, `decay_ops`).
    Frees(u64),
    /// By the driver's clock. It is looked at when the driver is called and at each emptying, so memory may be
    /// taken for younger than it is, never for older.
    Time(Duration),
}

/// What [`DeviceAllocator::empty_cache_with`] gives back. By default everything that is free, with waiting.
#[derive(Clone, Debug)]
pub struct EmptyOptions {
    /// Memory of one pool only.
    pub pool: Option<PoolId>,
    /// Only memory that has been idle for at least so long.
    pub min_age: Option<Age>,
    /// Whether to wait for the streams that used the memory, and for no others. Without it, what they may still use
    /// stays.
    pub wait: bool,
}

impl Default for EmptyOptions {
    fn default() -> Self {
        Self { pool: None, min_age: None, wait: true }
    }
}

impl DeviceAllocator {
    /// Gives idle memory of the device back until at most `keep_bytes` are held, or nothing more is
    /// known to be idle. Waits for nothing. Memory in the middle of a segment goes too; its
    /// neighbours keep their bytes. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device, [`Error::Driver`] when the driver refuses; what it
    /// took before that is given back.
    pub fn trim(&self, device: DeviceId, keep_bytes: u64) -> Result<u64> {
        match self.used(device)? {
            Some(state) => {
                let freed = state.trim(&self.caller(state), keep_bytes)?;
                self.watch(state, 2);
                Ok(freed)
            }
            None => Ok(0),
        }
    }

    /// Gives all free memory of one device, or of all, back. Waits for the streams that used it; what is freed meanwhile
    /// may stay. Host memory goes back as well where content of pools lay that a reset or a failure has ended the sleep of.
    ///
    /// # Errors
    ///
    /// As [`trim`](Self::trim).
    pub fn empty_cache(&self, device: Option<DeviceId>) -> Result<()> {
        self.empty_cache_with(device, &EmptyOptions::default()).map(|_| ())
    }

    /// Gives free memory of one device, or of all, back: of one pool, of a minimum age, with or without waiting, as
    /// the options say. Returns the bytes of the device given back; nothing is while a graph is being captured on it.
    ///
    /// # Errors
    ///
    /// As [`trim`](Self::trim), and [`Error::Argument`] for a pool that does not exist or is not on the device.
    pub fn empty_cache_with(&self, device: Option<DeviceId>, options: &EmptyOptions) -> Result<u64> {
        let device = match (device, options.pool) {
            (Some(device), Some(pool)) if device != pool.device => {
                return Err(Error::Argument {
                    name: "pool",
                    value: format!("a pool of device {}", pool.device),
                    expected: "a pool of the device that is emptied",
                });
            }
            (None, Some(pool)) => Some(pool.device),
            (device, _) => device,
        };
        self.collect_imports(options.wait);
        let mut freed = 0;
        for id in self.chosen(device)? {
            if let Some(state) = self.used(id)? {
                let caller = self.caller(state);
                freed += state.empty(&caller, options)?;
                if options.wait {
                    caller.settle_copies()?;
                }
                self.watch(state, 2);
            }
        }
        Ok(freed)
    }

    /// Limits the physical memory this allocator may hold on the device to a fraction of its total; 1 removes the
    /// limit. Memory already held is not given back. Where a limit in bytes is set too, the smaller counts.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] unless 0 < `fraction` <= 1, or for an unknown device.
    pub fn set_memory_fraction(&self, device: DeviceId, fraction: f64) -> Result<()> {
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(Error::Argument {
                name: "fraction",
                value: fraction.to_string(),
                expected: "more than 0 and at most 1",
            });
        }
        let state = self.device(device)?;
        state.core.lock().set_share_limit(fraction);
        Ok(())
    }

    /// Limits the physical memory this allocator may hold on the device to so many bytes; `None` removes the
    /// limit. Memory already held is not given back. Where a fraction is set too, the smaller counts.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a limit of zero bytes or an unknown device, [`Error::Driver`] when the device
    /// cannot be set up.
    pub fn set_memory_limit(&self, device: DeviceId, bytes: Option<u64>) -> Result<()> {
        not_zero(bytes)?;
        self.device(device)?.core.lock().set_byte_limit(bytes);
        Ok(())
    }

    /// The most physical memory this allocator may hold on the device, bytes, if a limit is set.
    ///
    /// # Errors
    ///
    /// As [`set_memory_limit`](Self::set_memory_limit).
    pub fn memory_limit(&self, device: DeviceId) -> Result<Option<u64>> {
        Ok(self.device(device)?.core.lock().limit)
    }

    /// Sets the physical memory of the device, in bytes, beyond which idle memory is moved or given back,
    /// callbacks are asked and streams wait on the device before more is taken; `None` removes it. Nothing fails
    /// and no host waits because of it. Memory already held is not given back; [`trim`](Self::trim) does that.
    ///
    /// # Errors
    ///
    /// As [`set_memory_limit`](Self::set_memory_limit).
    pub fn set_soft_limit(&self, device: DeviceId, bytes: Option<u64>) -> Result<()> {
        not_zero(bytes)?;
        self.device(device)?.core.lock().soft = bytes;
        Ok(())
    }

    /// Adds a function that frees memory when a request lacks some. Callbacks are called in the order they were
    /// added, one by one, until the request can be served; see [`MemoryCallback`].
    pub fn add_memory_callback(&self, callback: MemoryCallback) -> CallbackId {
        self.hook.callbacks.add(callback)
    }

    /// Removes a callback; false when it was removed before. It may still be running in another thread.
    pub fn remove_memory_callback(&self, id: CallbackId) -> bool {
        self.hook.callbacks.remove(id)
    }
}

fn not_zero(bytes: Option<u64>) -> Result<()> {
    if bytes != Some(0) {
        return Ok(());
    }
    Err(Error::Argument {
        name: "bytes",
        value: "0".to_owned(),
        expected: "more than 0, or none for no limit",
    })
}
