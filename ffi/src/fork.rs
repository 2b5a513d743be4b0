//! Forked children: known by a handler of the C library, so that asking costs one load and no lock.
//!
//! ```text
//!  parent                                 child
//!  before: reads the statistics ──fork──► after: keeps them, sets the flag
//!                                         every call looks at the flag before anything else
//! ```
//!
//! A child has none of the parent's threads and may find locks held for ever; the devices are its parent's. So
//! it takes no lock of the allocator and never calls the driver. Only a child forked before the allocator was
//! set up is no such child: it sets one up for itself.

use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::OnceLock;

use allocator::Stats;

use crate::process::{self, AscendAllocStatus, Failure};

/// Whether the allocator is set up, or about to be.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether this process is a child of the one that set it up.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The statistics of the devices at the fork.
static FROZEN: OnceLock<Vec<Stats>> = OnceLock::new();

thread_local! {
    /// Read by the thread that forks, for itself as the child.
    static BEFORE: RefCell<Vec<Stats>> = const { RefCell::new(Vec::new()) };
}

/// Whether this is a forked child, which cannot use the devices.
#[inline]
pub(crate) fn in_child() -> bool {
    FORKED.load(Relaxed)
}

/// The statistics of a device at the moment of the fork.
pub(crate) fn frozen(device: u32) -> Stats {
    FROZEN.get().and_then(|all| all.get(device as usize)).cloned().unwrap_or_default()
}

/// What a call that needs the devices answers in a child.
pub(crate) fn refusal() -> Failure {
    Failure {
        status: AscendAllocStatus::Fork,
        text: "this process was forked from one that uses the devices and cannot use them; start it anew (exec, \
               spawn), or fork before the first allocation"
            .to_owned(),
    }
}

/// To be called before the allocator is set up, and before any lock is taken for that.
pub(crate) fn begin() {
    // The reference keeps the entry below in a program that is linked with the archive.
    core::hint::black_box(&WATCH);
    BEGUN.store(true, Relaxed);
}

/// Setting up has failed: children may try for themselves.
pub(crate) fn give_up() {
    BEGUN.store(false, Relaxed);
}

/// Run by the dynamic loader, before anybody can have called the library or forked through it.
#[used]
#[unsafe(link_section = ".init_array")]
static WATCH: extern "C" fn() = watch;

extern "C" fn watch() {
    // SAFETY: the handlers stay, because the library is never unloaded.
    let _refused_for_lack_of_memory = unsafe { libc::pthread_atfork(Some(before), None, Some(after)) };
}

extern "C" fn before() {
    if !BEGUN.load(Relaxed) || in_child() {
        return;
    }
    // Nothing may leave this function but its return; without the figures children say zero.
    let read = std::panic::catch_unwind(process::all_stats);
    if let Ok(stats) = read {
        let _ended = BEFORE.try_with(|before| before.try_borrow_mut().map(|mut before| *before = stats));
    }
}

extern "C" fn after() {
    if !BEGUN.load(Relaxed) || in_child() {
        return;
    }
    let stats =
        BEFORE.try_with(|before| before.try_borrow_mut().map(|mut before| core::mem::take(&mut *before)));
    if let Ok(Ok(stats)) = stats {
        let _first = FROZEN.set(stats);
    }
    FORKED.store(true, Relaxed);
}
