//! How much work there is, for tests: what is looked at is counted, because time says nothing on a machine that is shared.

#[cfg(test)]
use core::cell::Cell;

#[cfg(test)]
std::thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// A block, a pool or a stream is looked at.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// How many steps some work takes in this thread.
#[cfg(test)]
pub(crate) fn count<T>(work: impl FnOnce() -> T) -> u64 {
    let before = STEPS.get();
    let _result = work();
    STEPS.get() - before
}
