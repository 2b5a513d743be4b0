//! Copies and fills.
//!
//! Host memory that a call names must be as the call needs it, as with the vendor's library; device
//! memory is checked by the model.

use crate::entry::entry;
use crate::surface::CANN_9_1;
use crate::types::{AclError, Handle, address};

/// Copies at once.
///
/// # Safety
/// A side that is host memory is valid for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpy(
    to: Handle,
    room: usize,
    from: Handle,
    count: usize,
    kind: u32,
) -> AclError {
    entry("aclrtMemcpy").does(|sim| {
        // SAFETY: the caller's promise.
        unsafe { sim.memcpy(address(to), room as u64, address(from), count as u64, kind) }
    })
}

/// Copies in stream order.
///
/// # Safety
/// A side that is host memory is valid for `count` bytes until the copy has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpyAsync(
    to: Handle,
    room: usize,
    from: Handle,
    count: usize,
    kind: u32,
    stream: Handle,
) -> AclError {
    entry("aclrtMemcpyAsync").does(|sim| {
        let stream = address(stream);
        // SAFETY: the caller's promise.
        unsafe { sim.memcpy_async(address(to), room as u64, address(from), count as u64, kind, stream) }
    })
}

/// Sets bytes at once.
///
/// # Safety
/// Host memory is valid for writes of `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemset(to: Handle, room: usize, value: i32, count: usize) -> AclError {
    entry("aclrtMemset").does(|sim| {
        // SAFETY: the caller's promise.
        unsafe { sim.memset(address(to), room as u64, value, count as u64) }
    })
}

/// Sets bytes in stream order.
///
/// # Safety
/// Host memory is valid for writes of `count` bytes until the fill has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemsetAsync(
    to: Handle,
    room: usize,
    value: i32,
    count: usize,
    stream: Handle,
) -> AclError {
    entry("aclrtMemsetAsync").does(|sim| {
        // SAFETY: the caller's promise.
        unsafe { sim.memset_async(address(to), room as u64, value, count as u64, address(stream)) }
    })
}

/// Copies in stream order, at once where the memory does not allow that.
///
/// # Safety
/// As [`aclrtMemcpyAsync`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpyAsyncWithCondition(
    to: Handle,
    room: usize,
    from: Handle,
    count: usize,
    kind: u32,
    stream: Handle,
) -> AclError {
    entry("aclrtMemcpyAsyncWithCondition").does(|sim| {
        let (to, from, stream) = (address(to), address(from), address(stream));
        // SAFETY: the caller's promise.
        unsafe { sim.memcpy_async_with_condition(to, room as u64, from, count as u64, kind, stream) }
    })
}

/// Sets words of 4 bytes at once; `count` is in words.
///
/// # Safety
/// Host memory is valid for writes of `count` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemsetD32(to: Handle, room: usize, value: u32, count: usize) -> AclError {
    entry("aclrtMemsetD32").since(CANN_9_1).does(|sim| {
        // SAFETY: the caller's promise.
        unsafe { sim.memset_d32(address(to), room as u64, value, count as u64) }
    })
}

/// Sets words of 4 bytes in stream order; `count` is in words.
///
/// # Safety
/// Host memory is valid for writes of `count` words until the fill has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemsetD32Async(
    to: Handle,
    room: usize,
    value: u32,
    count: usize,
    stream: Handle,
) -> AclError {
    entry("aclrtMemsetD32Async").since(CANN_9_1).does(|sim| {
        // SAFETY: the caller's promise.
        unsafe { sim.memset_d32_async(address(to), room as u64, value, count as u64, address(stream)) }
    })
}
