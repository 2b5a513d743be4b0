//! What is done when the process ends: an allocator that is never dropped still has its files written.

use std::sync::OnceLock;

static AT_EXIT: OnceLock<fn()> = OnceLock::new();

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> core::ffi::c_int;
}

/// Has a function called when the process ends by `exit` or by leaving `main`. Only the first one counts.
pub(super) fn at_exit(function: fn()) {
    if AT_EXIT.set(function).is_ok() {
        // SAFETY: `run` takes and returns nothing, unwinds never, and is part of the program, or of a library that
        // is not unloaded before it has run (the C library is linked so).
        let refused = unsafe { atexit(run) } != 0;
        if refused {
            eprintln!(
                "ascend-alloc: the system calls no more functions at exit; the last events may be missing in files"
            );
        }
    }
}

extern "C" fn run() {
    if let Some(function) = AT_EXIT.get() {
        // A panic must not leave a function of C.
        let _ = std::panic::catch_unwind(function);
    }
}
