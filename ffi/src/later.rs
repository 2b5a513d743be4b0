//! What this version answers as unsupported: page-locked host memory, and history.

use core::ffi::{c_char, c_int, c_void};

use crate::guard;
use crate::process::{AscendAllocStatus, Failure};

/// Page-locked host memory of at least size bytes. Unsupported in this version: null, and
/// ASCEND_ALLOC_STATUS_UNSUPPORTED as last status.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_malloc(size: usize, device: c_int) -> *mut c_void {
    let _unused = (size, device);
    guard::run(|| not_yet("page-locked host memory")).unwrap_or(core::ptr::null_mut())
}

/// Gives page-locked host memory back. Unsupported in this version; null is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_free(ptr: *mut c_void) -> c_int {
    guard::release(|| if ptr.is_null() { Ok(()) } else { not_yet("page-locked host memory") })
}

/// Tells that work on the stream uses a page-locked block. Unsupported in this version.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_record_stream(
    ptr: *mut c_void,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    let _unused = (ptr, device, stream);
    guard::release(|| not_yet("page-locked host memory"))
}

/// Gives free page-locked memory back. Unsupported in this version.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_empty_cache() -> c_int {
    guard::release(|| not_yet("page-locked host memory"))
}

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
