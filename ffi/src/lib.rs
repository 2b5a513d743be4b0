//! The C library of ascend-alloc: `libascend_alloc.so` and `libascend_alloc.a`.
//!
//! ```text
//!   C caller ─► entry points (here) ─► guard: catches panics, keeps the error's text
//!                      │
//!                      └─► process: the one allocator of the process, on the vendor's runtime library
//! ```
//!
//! The header `include/ascend_alloc.h` is generated from this file; its comments are written for readers of
//! the header. No panic leaves an entry point. Nothing else is exported: neither an `acl*` name, which
//! would take the place of the vendor's function in the whole process, nor Rust symbols.

mod guard;
mod process;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

use allocator::DevicePtr;
use allocator::driver::Stream;

pub use process::AscendAllocStatus;

/// The version of this library as text, such as "0.1.0".
///
/// The text is valid as long as the library is loaded. Callable from any thread at any time.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => panic!("a version has no zero byte"),
        };
    VERSION.as_ptr()
}

/// What went wrong in the calling thread's last call of this library, as text in UTF-8; null if that call
/// succeeded. This function and ascend_alloc_version are no such calls.
///
/// The text is valid until the thread's next call of this library. It is meant for people: its wording
/// may change.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_last_error() -> *const c_char {
    guard::last_error()
}

/// Loads the vendor's runtime library, initialises it if nobody has, and sets the allocator of this process
/// up. Without this call the first ascend_alloc_malloc does the same with a null conf.
///
/// conf is a configuration text as in the environment variable ASCEND_ALLOC_CONF, ended by a zero byte,
/// or null. What it says goes before what the environment variables say, key by key. Warnings about
/// settings without effect are written to standard error.
///
/// The allocator is set up once and stays until the process ends: a second call is refused with
/// ASCEND_ALLOC_STATUS_STATE and changes nothing. After any other failure nothing is set up, and the call
/// may be tried again. Callable from any thread; of several at once one succeeds.
///
/// # Safety
///
/// conf is null or points to a text that ends with a zero byte. The library that the environment
/// names, or that the process has loaded, is the vendor's runtime library or behaves like it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_init(conf: *const c_char) -> AscendAllocStatus {
    let run = || {
        // SAFETY: the caller's promise; the text is copied before this returns.
        let text = (!conf.is_null()).then(|| unsafe { CStr::from_ptr(conf) });
        // SAFETY: the caller's promise.
        unsafe { process::init(text) }
    };
    match guard::run(run) {
        Ok(()) => AscendAllocStatus::Ok,
        Err(status) => status,
    }
}

/// A block of at least size bytes of memory of the device for work on the stream; its address is a
/// multiple of 512. The content is not defined.
///
/// device is the number that aclrtSetDevice takes; stream an aclrtStream of that device, null for its
/// default stream. A size of 0 gives null and is no error. For every other size null means that
/// there is no block: ascend_alloc_last_error says why. A negative size or device is refused.
///
/// Callable from any thread. The thread's current device and context are not changed. The signature is
/// the one that torch_npu's NPUPluggableAllocator and MindSpore's PluggableAllocator ask for.
///
/// # Safety
///
/// stream is null or a live stream of the device. Unless ascend_alloc_init was called before, what it
/// asks of the environment holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_malloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let run = || {
        let bytes = process::size(size)?;
        let device = process::device(device)?;
        if bytes == 0 {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the caller's promise.
        let allocator = unsafe { process::allocator() }?;
        let block = allocator.allocate(device, bytes, 0, Stream(stream.expose_provenance() as u64))?;
        Ok(ptr::with_exposed_provenance_mut(block.address() as usize))
    };
    guard::run(run).unwrap_or(ptr::null_mut())
}

/// Gives a block back that ascend_alloc_malloc returned. Null is accepted.
///
/// Work already queued on the block's stream may still run: the memory is handed out again only where that
/// is in order. The caller queues no new work on it.
///
/// The block knows its size, device and stream, so device and stream are not looked at (the stream may be
/// destroyed by then) and a size that differs from the one asked for does no harm; a negative size is
/// refused. What is refused changes nothing, and ascend_alloc_last_error says why: a pointer that is
/// not the start of a live block, also one that was given back before.
///
/// Callable from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_free(ptr: *mut c_void, size: isize, device: c_int, stream: *mut c_void) {
    let (_device, _stream) = (device, stream);
    let run = || {
        process::size(size)?;
        if ptr.is_null() {
            return Ok(());
        }
        Ok(process::existing()?.deallocate(DevicePtr(ptr.addr() as u64))?)
    };
    // The signature has no room for an answer; the text is kept.
    let _kept: Result<(), AscendAllocStatus> = guard::run(run);
}
