//! The flag of a shard.

use super::StoreAmongSwaps;
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
        const TRIES: u32 = if super::SMALLEST { 0 } else { 16 };
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
        self.0.0.store_among_swaps(false, Ordering::Release);
    }
}

#[cfg(all(test, ascend_alloc_loom))]
mod models {
    use super::Flag;
    use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use crate::sync::explore;
    use std::sync::Arc;

    #[test]
    fn what_a_flag_guards_is_seen_whole_by_the_next() {
        explore(|| {
            let shared = Arc::new((Flag::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let step = |(flag, [one, two]): &(Flag, [AtomicU64; 2])| {
                let _guard = flag.lock();
                let before = one.load(Relaxed);
                assert_eq!(before, two.load(Relaxed));
                one.store(before + 1, Relaxed);
                two.store(before + 1, Relaxed);
            };
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || step(&other));
            step(&shared);
            thread.join().expect("no panic");
            let _guard = shared.0.lock();
            assert_eq!(shared.1[0].load(Relaxed), 2);
        });
    }

    #[test]
    fn one_at_a_time_gets_it() {
        explore(|| {
            let shared = Arc::new((Flag::default(), AtomicU64::new(0)));
            let step = |(flag, inside): &(Flag, AtomicU64)| {
                let Some(_guard) = flag.try_lock() else { return };
                assert_eq!(inside.load(Relaxed), 0);
                inside.store(1, Relaxed);
                inside.store(0, Relaxed);
            };
            let threads = [0, 1].map(|_| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || step(&shared))
            });
            step(&shared);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
    }
}
