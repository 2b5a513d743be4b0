//! The locks of this crate, all in one place so that a model checker can be put under them.
//!
//! [`Mutex`] guards the core of a device. [`Flag`] guards one shard of a front cache: taking it
//! is one atomic read-modify-write and leaving it a plain store, half the cost of a mutex pair,
//! which is what the hot path has to spend. On the way of a call that the front serves it is held for
//! a few dozen instructions; a thread that also holds the core's lock takes a shard's blocks back under it.
//! No driver call is made under either.

use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

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
            std::thread::yield_now();
        }
    }
}

impl Drop for FlagGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}
