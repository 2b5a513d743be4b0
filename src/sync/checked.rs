//! Locks in the form the allocator uses them, over those of a model checker: shuttle's or loom's.

use core::ops::{Deref, DerefMut};
use std::time::Instant;

#[cfg(ascend_alloc_loom)]
use loom::sync as checker;
#[cfg(ascend_alloc_shuttle)]
use shuttle::sync as checker;

/// A lock.
#[derive(Debug)]
pub(crate) struct Mutex<T: ?Sized>(checker::Mutex<T>);

/// Holds a [`Mutex`] until dropped. It is empty only while a condition is waited for.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T: ?Sized>(Option<checker::MutexGuard<'a, T>>);

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(checker::Mutex::new(value))
    }
}

impl<T> Mutex<T> {
    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)))
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("a condition gives the lock back")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("a condition gives the lock back")
    }
}

/// A condition.
#[derive(Debug, Default)]
pub(crate) struct Condvar(checker::Condvar);

/// What a wait with a deadline came to: a model checker knows no time, so it never runs out.
pub(crate) struct Waited;

impl Waited {
    pub(crate) fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(checker::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("it is locked");
        guard.0 = Some(self.0.wait(held).unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> Waited {
        self.wait(guard);
        Waited
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
