//! Whether this process is a forked child of the one that started the machine.
//!
//! The child has the parent's memory but none of its threads, and locks as they happened to be. The
//! C library tells us of the fork, so asking costs one load instead of a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::report;

static FORKED: AtomicBool = AtomicBool::new(false);

/// What calls in a child answer: `ACL_ERROR_RT_DEV_SETUP_ERROR`.
pub(crate) const CODE: i32 = 507_033;

/// Why.
pub(crate) const WHY: &str = "this process was forked from one that uses the simulated devices; a child cannot use \
                              them: start it anew (exec, spawn) or fork before the first ACL call";

/// True in a child that was forked after [`watch`].
pub(crate) fn forked() -> bool {
    FORKED.load(Relaxed)
}

/// From now on children know that they are children.
pub(crate) fn watch() {
    extern "C" fn in_child() {
        FORKED.store(true, Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores a flag, and the library is never unmapped.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            report::say(&format!("forked children will not be recognised (code {refused})"));
        }
    });
}
