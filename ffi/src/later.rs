//! What this version answers as unsupported: history.

use core::ffi::{c_char, c_int};

use crate::guard;
use crate::process::{AscendAllocStatus, Failure};

/// Keeps the last so many events from now on; 0 ends that. Unsupported in this version.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_history_record(entries: usize) -> c_int {
    let _unused = entries;
    guard::status(|| not_yet("history"))
}

/// The events kept, as JSON, written as ascend_alloc_snapshot_json does. Unsupported in this version.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_history_json(
    device: c_int,
    buffer: *mut c_char,
    room: usize,
    length: *mut usize,
) -> c_int {
    let _unused = (device, buffer, room, length);
    guard::status(|| not_yet("history"))
}

fn not_yet<T>(what: &str) -> Result<T, Failure> {
    let text = format!("{what} is not supported in this version of the library");
    Err(Failure { status: AscendAllocStatus::Unsupported, text })
}
