//! A value that is set once, in a form that loom sees through: whoever finds it set has seen what made it.

use super::Mutex;
use super::atomic::{AtomicBool, Ordering};

/// What `std::sync::OnceLock` promises, and no more.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    is_set: AtomicBool,
    setting: Mutex<()>,
    /// Where the value is; waited for by nobody, since it is set under the lock.
    value: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self { is_set: AtomicBool::new(false), setting: Mutex::default(), value: std::sync::OnceLock::new() }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        if self.is_set.load(Ordering::Acquire) { self.value.get() } else { None }
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if self.get().is_none() {
            let _turn = self.setting.lock();
            if self.value.get().is_none() {
                let value = make();
                assert!(self.value.set(value).is_ok(), "it is set under the lock");
                self.is_set.store(true, Ordering::Release);
            }
        }
        self.value.get().expect("it was set")
    }
}
