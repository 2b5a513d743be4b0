//! Streams.

use crate::entry::entry;
use crate::surface::{CANN_8_5, CANN_9_2};
use crate::types::{AclError, Handle, address, pointer};

/// Makes a stream of the current context.
///
/// # Safety
/// `stream` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCreateStream(stream: *mut Handle) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtCreateStream").gives(stream, |sim| sim.create_stream().map(pointer)) }
}

/// The same with a priority and flags.
///
/// # Safety
/// `stream` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCreateStreamWithConfig(
    stream: *mut Handle,
    priority: u32,
    flags: u32,
) -> AclError {
    let entry = entry("aclrtCreateStreamWithConfig");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(stream, |sim| sim.create_stream_with_config(priority, flags).map(pointer)) }
}

/// Destroys a stream.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtDestroyStream(stream: Handle) -> AclError {
    entry("aclrtDestroyStream").does(|sim| sim.destroy_stream(address(stream)))
}

/// Destroys a stream and drops what is queued to it.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtDestroyStreamForce(stream: Handle) -> AclError {
    entry("aclrtDestroyStreamForce").does(|sim| sim.destroy_stream_force(address(stream)))
}

/// Whether a stream is done: 0 is complete, 1 is not ready.
///
/// # Safety
/// `status` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtStreamQuery(stream: Handle, status: *mut u32) -> AclError {
    let entry = entry("aclrtStreamQuery");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(status, |sim| sim.stream_query(address(stream)).map(|done| u32::from(!done))) }
}

/// Waits for a stream.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSynchronizeStream(stream: Handle) -> AclError {
    entry("aclrtSynchronizeStream").does(|sim| sim.synchronize_stream(address(stream)))
}

/// Waits for a stream for at most so many milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSynchronizeStreamWithTimeout(stream: Handle, timeout: i32) -> AclError {
    entry("aclrtSynchronizeStreamWithTimeout")
        .does(|sim| sim.synchronize_stream_with_timeout(address(stream), timeout))
}

/// Lets later work of the stream wait for an event.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtStreamWaitEvent(stream: Handle, event: Handle) -> AclError {
    entry("aclrtStreamWaitEvent").does(|sim| sim.stream_wait_event(address(stream), address(event)))
}

/// The same for at most so many seconds; 0 is no limit.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtStreamWaitEventWithTimeout(stream: Handle, event: Handle, seconds: i32) -> AclError {
    entry("aclrtStreamWaitEventWithTimeout")
        .since(CANN_8_5)
        .does(|sim| sim.stream_wait_event_with_timeout(address(stream), address(event), seconds))
}

/// The same with flags.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtStreamWaitEventWithFlag(stream: Handle, event: Handle, flags: u32) -> AclError {
    entry("aclrtStreamWaitEventWithFlag")
        .since(CANN_9_2)
        .does(|sim| sim.stream_wait_event_with_flag(address(stream), address(event), flags))
}

/// Drops what is queued to a stream.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtStreamAbort(stream: Handle) -> AclError {
    entry("aclrtStreamAbort").does(|sim| sim.stream_abort(address(stream)))
}

/// The number of a stream.
///
/// # Safety
/// `id` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtStreamGetId(stream: Handle, id: *mut i32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtStreamGetId").gives(id, |sim| sim.stream_id(address(stream))) }
}

/// The priority a stream was made with.
///
/// # Safety
/// `priority` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtStreamGetPriority(stream: Handle, priority: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtStreamGetPriority").gives(priority, |sim| sim.stream_priority(address(stream))) }
}

/// The flags a stream was made with.
///
/// # Safety
/// `flags` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtStreamGetFlags(stream: Handle, flags: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtStreamGetFlags").gives(flags, |sim| sim.stream_flags(address(stream))) }
}
