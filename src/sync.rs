//! The locks and atomics of the allocator, all in one place so that a model checker can be put under them.
//!
//! [`Mutex`] guards the core of a device. [`Flag`] guards one shard of a front cache: taking it
//! is one atomic read-modify-write and leaving it a plain store, half the cost of a mutex pair,
//! which is what the hot path has to spend. On the way of a call that the front serves it is held for
//! a few dozen instructions; a thread that also holds the core's lock takes a shard's blocks back under it.
//! No driver call is made under either.
//!
//! Built with `--cfg ascend_alloc_shuttle` all of this is shuttle's, which then decides at each lock and each
//! atomic which thread goes on. With `--cfg ascend_alloc_loom` it is loom's, which also decides which of the values
//! that the memory order allows a load sees, and goes through all of it. The front is much smaller in both
//! ([`SMALL`]), so that schedules are short. What is [`plain`] stays as it is: statics, and what threads of our own
//! use. A plain lock is never held while another of these is taken.

#[cfg(any(ascend_alloc_shuttle, ascend_alloc_loom))]
mod checked;
mod flag;
#[cfg(ascend_alloc_loom)]
mod once;

/// Whether a model checker runs this, for which everything is to be small.
pub(crate) const SMALL: bool = cfg!(any(ascend_alloc_shuttle, ascend_alloc_loom));
/// Whether that is loom, for which it is to be smaller still.
pub(crate) const SMALLEST: bool = cfg!(ascend_alloc_loom);

/// Locks of the operating system's threads in every build.
pub(crate) mod plain {
    pub(crate) use parking_lot::{Condvar, Mutex};
}

#[cfg(any(ascend_alloc_shuttle, ascend_alloc_loom))]
pub(crate) use checked::{Condvar, Mutex, MutexGuard};
#[cfg(ascend_alloc_loom)]
pub(crate) use once::OnceLock;
#[cfg(not(any(ascend_alloc_shuttle, ascend_alloc_loom)))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(ascend_alloc_loom))]
pub(crate) use std::sync::OnceLock;

/// Atomics.
pub(crate) mod atomic {
    #[cfg(not(any(ascend_alloc_shuttle, ascend_alloc_loom)))]
    pub(crate) use core::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(ascend_alloc_loom)]
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(ascend_alloc_shuttle)]
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Stores into atomics in which other threads exchange values at the same time.
///
/// Where an exchange has not seen a store, the store comes after it. Loom leaves that open and would find faults that
/// cannot be, so to loom such a store is an exchange itself.
pub(crate) trait StoreAmongSwaps<T> {
    /// As `store`.
    fn store_among_swaps(&self, value: T, order: atomic::Ordering);
}

macro_rules! store_among_swaps {
    ($($atomic:ident: $value:ty),*) => {
        $(impl StoreAmongSwaps<$value> for atomic::$atomic {
            #[inline(always)]
            fn store_among_swaps(&self, value: $value, order: atomic::Ordering) {
                if cfg!(ascend_alloc_loom) {
                    self.swap(value, order);
                } else {
                    self.store(value, order);
                }
            }
        })*
    };
}

store_among_swaps!(AtomicBool: bool, AtomicU8: u8);

/// Threads.
pub(crate) mod thread {
    #[cfg(ascend_alloc_loom)]
    pub(crate) use loom::thread::{ThreadId, current, yield_now};
    #[cfg(ascend_alloc_shuttle)]
    pub(crate) use shuttle::{thread::*, thread_local};
    #[cfg(not(any(ascend_alloc_shuttle, ascend_alloc_loom)))]
    pub(crate) use std::thread::{ThreadId, current, yield_now};
    #[cfg(not(ascend_alloc_shuttle))]
    pub(crate) use std::thread_local;
}

pub(crate) use flag::{Flag, FlagGuard};

/// Goes through everything that threads and memory orders allow in a model, with at most five preemptions.
#[cfg(all(test, ascend_alloc_loom))]
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_with(5, model);
}

/// The same with another bound, for models with more to look at. Loom's own variable `LOOM_MAX_PREEMPTIONS` changes
/// both.
#[cfg(all(test, ascend_alloc_loom))]
pub(crate) fn explore_with(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 50_000;
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(model);
}
