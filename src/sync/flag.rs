//! The flag of a shard.

use super::atomic::{AtomicBool, Ordering};
use super::thread::yield_now;

/// A lock that spins; the data it guards are relaxed atomics.
#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

/// Holds a [`Flag`] until dropped.
pub(crate) struct FlagGuard<'a>(&'a Flag);

impl Flag {
    /// Takes the flag if it is free or becomes free within a few tries.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<FlagGuard<'_>> {
        if !self.0.swap(true, Ordering::Acquire) || self.spin() {
            return Some(FlagGuard(self));
        }
        None
    }

    /// Tries some more; apart, so that the usual way stays short.
    #[cold]
    #[inline(never)]
    fn spin(&self) -> bool {
        /// Tries before the caller does something else.
        const TRIES: u32 = 16;
        (0..TRIES).any(|_| {
            core::hint::spin_loop();
            !self.0.swap(true, Ordering::Acquire)
        })
    }

    /// Takes the flag, giving up the processor while another thread has it.
    pub(crate) fn lock(&self) -> FlagGuard<'_> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            yield_now();
        }
    }
}

impl Drop for FlagGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}
