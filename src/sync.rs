//! The locks and atomics of the allocator, all in one place so that a model checker can be put under them.
//!
//! [`Mutex`] guards the core of a device. [`Flag`] guards one shard of a front cache: taking it
//! is one atomic read-modify-write and leaving it a plain store, half the cost of a mutex pair,
//! which is what the hot path has to spend. On the way of a call that the front serves it is held for
//! a few dozen instructions; a thread that also holds the core's lock takes a shard's blocks back under it.
//! No driver call is made under either.
//!
//! Built with `--cfg ascend_alloc_shuttle` all of this is shuttle's, which then decides at each lock and each atomic
//! which thread goes on, and the front is much smaller, so that schedules are short. What is [`plain`] stays as it is: statics, and what threads of our own use. A
//! plain lock is never held while another of these is taken.

mod flag;
#[cfg(ascend_alloc_shuttle)]
mod shuttled;

/// Locks of the operating system's threads in every build.
pub(crate) mod plain {
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
}

#[cfg(not(ascend_alloc_shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(ascend_alloc_shuttle)]
pub(crate) use shuttled::{Condvar, Mutex, MutexGuard};

/// Atomics.
pub(crate) mod atomic {
    #[cfg(not(ascend_alloc_shuttle))]
    pub(crate) use core::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
    #[cfg(ascend_alloc_shuttle)]
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
}

/// Threads.
pub(crate) mod thread {
    #[cfg(ascend_alloc_shuttle)]
    pub(crate) use shuttle::{thread::*, thread_local};
    #[cfg(not(ascend_alloc_shuttle))]
    pub(crate) use std::{
        thread::{ThreadId, current, yield_now},
        thread_local,
    };
}

pub(crate) use flag::{Flag, FlagGuard};
