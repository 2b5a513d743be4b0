//! Which call a thread is in, so that what it makes and what goes wrong can be traced back to it.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::call::Call;

/// A call by name: the function, the how-manieth call of it, and the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    call: Option<Call>,
    number: u64,
    thread: u32,
}

/// What [`Made`] says where no call was.
pub(crate) const NO_CALL: &str = "no call";

thread_local! {
    static NOW: Cell<Made> = const { Cell::new(Made::NOWHERE) };
}

impl Made {
    /// Outside every call: the simulator itself, or a test's own look.
    const NOWHERE: Self = Self { call: None, number: 0, thread: 0 };

    /// The call this thread is in, or was in last.
    pub(crate) fn now() -> Self {
        NOW.try_with(Cell::get).unwrap_or(Self::NOWHERE)
    }

    /// This thread has entered a call, the `number`-th of its function.
    pub(crate) fn enter(call: Call, number: u64) {
        // A thread that is ending has no place for it any more.
        let _ = NOW.try_with(|now| {
            let thread = match now.get().thread {
                0 => next_thread(),
                known => known,
            };
            now.set(Self { call: Some(call), number, thread });
        });
    }

    /// What this thread does from now on is no call's.
    pub(crate) fn leave() {
        let _ = NOW.try_with(|now| now.set(Self { thread: now.get().thread, ..Self::NOWHERE }));
    }

    /// The thread, by the order in which threads first called, counted from 1.
    pub(crate) fn thread(self) -> u32 {
        self.thread
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Some(call) => write!(f, "{} (call {} of it, thread {})", call.name(), self.number, self.thread),
            None => f.write_str(NO_CALL),
        }
    }
}

/// The next number in the order in which findings are made, over all machines of the process.
pub(crate) fn next_finding() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

#[cold]
fn next_thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_its_call() {
        Made::enter(Call::MapMem, 3);
        let here = Made::now();
        assert_eq!(here.number, 3);
        let there = std::thread::spawn(|| {
            let before = Made::now();
            Made::enter(Call::Free, 1);
            (before, Made::now())
        });
        let (before, there) = there.join().unwrap();
        assert_eq!(before, Made::NOWHERE);
        assert_ne!(there.thread(), here.thread());
        assert!(here.to_string().starts_with("aclrtMapMem (call 3 of it, thread "));
        Made::leave();
        assert_eq!((Made::now().to_string().as_str(), Made::now().thread()), ("no call", here.thread()));
    }
}
