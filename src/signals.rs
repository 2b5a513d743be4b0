//! Signals are the program's: no thread of the allocator takes one, and writing a file raises none.
//!
//! A thread of a library that does not block signals may be the one that the system chooses for a signal to the
//! process, even where every thread of the program blocks it because one of them waits for it. And a write can
//! raise a signal that ends the process: `SIGXFSZ` where a file grows beyond `RLIMIT_FSIZE`, `SIGPIPE` where a
//! reader went away. To threads that block them these are errors of the write.

use core::cell::Cell;
use core::mem::MaybeUninit;
use std::io;
use std::thread::{Builder, JoinHandle};

/// What a write can raise.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGXFSZ, libc::SIGPIPE];
/// What a thread's own fault raises, and what says that the process gives up.
const OF_FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];

/// A set of signals.
struct Set(libc::sigset_t);

impl Set {
    fn empty() -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the call fills the set, and fails for no argument that is valid.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            Self(set.assume_init())
        }
    }

    fn of(signals: &[libc::c_int]) -> Self {
        let mut set = Self::empty();
        for &signal in signals {
            // SAFETY: the set was filled, the numbers are signals.
            unsafe { libc::sigaddset(&raw mut set.0, signal) };
        }
        set
    }

    fn all_but(signals: &[libc::c_int]) -> Self {
        let mut set = Self::empty();
        // SAFETY: the set may be written.
        unsafe { libc::sigfillset(&raw mut set.0) };
        for &signal in signals {
            // SAFETY: the set was filled, the numbers are signals.
            unsafe { libc::sigdelset(&raw mut set.0, signal) };
        }
        set
    }

    /// Those that were raised and wait, for this thread or the process.
    fn pending() -> Self {
        let mut set = Self::empty();
        // SAFETY: the set may be written.
        unsafe { libc::sigpending(&raw mut set.0) };
        set
    }

    fn has(&self, signal: libc::c_int) -> bool {
        // SAFETY: the set was filled.
        unsafe { libc::sigismember(&raw const self.0, signal) == 1 }
    }
}

/// Blocks signals in the calling thread until dropped.
struct Blocked {
    before: Set,
}

impl Blocked {
    fn new(signals: &Set) -> Self {
        let mut before = Set::empty();
        // SAFETY: both sets were filled; the mask is the thread's own, and is put back.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals.0, &raw mut before.0) };
        Self { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is what the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before.0, core::ptr::null_mut()) };
    }
}

/// Starts a thread that takes no signal but those that a fault of its own raises.
///
/// # Errors
///
/// The system has no thread to give.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // Here already, since the thread begins with the mask of the one that starts it.
    let _blocked = Blocked::new(&Set::all_but(&OF_FAULTS));
    Builder::new().name(name.to_owned()).spawn(|| {
        OURS.set(true);
        body();
    })
}

thread_local! {
    /// Whether the thread was started here.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is one of the allocator's own: nobody misses what a driver changes in it.
pub(crate) fn is_own_thread() -> bool {
    OURS.get()
}

/// Runs something that writes, in a thread of the program: what goes wrong there is an error and no signal.
pub(crate) fn quietly<R>(write: impl FnOnce() -> R) -> R {
    let before = Set::pending();
    let _blocked = Blocked::new(&Set::of(&OF_WRITES));
    let _taken = TakesBack(before);
    write()
}

/// Takes what the writes have raised, before it can be delivered.
struct TakesBack(Set);

impl Drop for TakesBack {
    fn drop(&mut self) {
        let raised = Set::pending();
        for signal in OF_WRITES.into_iter().filter(|&signal| raised.has(signal) && !self.0.has(signal)) {
            let (it, at_once) = (Set::of(&[signal]), libc::timespec { tv_sec: 0, tv_nsec: 0 });
            // SAFETY: the set was filled; nobody wants to know more of the signal.
            unsafe { libc::sigtimedwait(&raw const it.0, core::ptr::null_mut(), &raw const at_once) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> Set {
        Blocked::new(&Set::empty()).before_copy()
    }

    impl Blocked {
        fn before_copy(&self) -> Set {
            Set(self.before.0)
        }
    }

    #[test]
    fn a_thread_of_ours_blocks_signals_and_the_starter_does_not() {
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn("signals-test", move || {
            let blocked = blocked();
            let all = [libc::SIGTERM, libc::SIGUSR1, libc::SIGSEGV].map(|signal| blocked.has(signal));
            assert!(is_own_thread());
            tell.send(all).expect("somebody listens");
        });
        thread.expect("a thread").join().expect("no panic");
        assert_eq!(told.recv(), Ok([true, true, false]));
        assert!(!blocked().has(libc::SIGTERM) && !is_own_thread());
    }

    #[test]
    fn a_signal_of_a_write_is_taken() {
        let answer = quietly(|| {
            // SAFETY: it is blocked in this thread, so nothing happens but that it is pending.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGXFSZ) };
            Set::pending().has(libc::SIGXFSZ)
        });
        assert!(answer);
        assert!(!Set::pending().has(libc::SIGXFSZ) && !blocked().has(libc::SIGXFSZ));
    }
}
