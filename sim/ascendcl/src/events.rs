//! Events.

use crate::entry::entry;
use crate::surface::CANN_9_2;
use crate::types::{AclError, Handle, address, pointer};

/// Makes an event of the old mode.
///
/// # Safety
/// `event` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCreateEvent(event: *mut Handle) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtCreateEvent").gives(event, |sim| sim.create_event().map(pointer)) }
}

/// Makes an event of the old mode with flags.
///
/// # Safety
/// `event` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCreateEventWithFlag(event: *mut Handle, flags: u32) -> AclError {
    let entry = entry("aclrtCreateEventWithFlag");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(event, |sim| sim.create_event_with_flag(flags).map(pointer)) }
}

/// Makes an event of the new mode.
///
/// # Safety
/// `event` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCreateEventExWithFlag(event: *mut Handle, flags: u32) -> AclError {
    let entry = entry("aclrtCreateEventExWithFlag");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(event, |sim| sim.create_event_ex(flags).map(pointer)) }
}

/// Destroys an event. Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtDestroyEvent(event: Handle) -> AclError {
    entry("aclrtDestroyEvent").does(|sim| sim.destroy_event(address(event)))
}

/// Records an event in a stream.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtRecordEvent(event: Handle, stream: Handle) -> AclError {
    entry("aclrtRecordEvent").does(|sim| sim.record_event(address(event), address(stream)))
}

/// The same with flags.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtRecordEventWithFlag(event: Handle, stream: Handle, flags: u32) -> AclError {
    entry("aclrtRecordEventWithFlag")
        .since(CANN_9_2)
        .does(|sim| sim.record_event_with_flag(address(event), address(stream), flags))
}

/// Makes an event of the old mode unrecorded.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtResetEvent(event: Handle, stream: Handle) -> AclError {
    entry("aclrtResetEvent").does(|sim| sim.reset_event(address(event), address(stream)))
}

/// Whether the last record is done: 1 is complete, 0 is not ready.
///
/// # Safety
/// `status` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtQueryEventStatus(event: Handle, status: *mut u32) -> AclError {
    let entry = entry("aclrtQueryEventStatus");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(status, |sim| sim.query_event_status(address(event)).map(u32::from)) }
}

/// Whether the last record of an event of the old mode is done: 0 is complete, 1 is not ready.
///
/// # Safety
/// `status` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtQueryEvent(event: Handle, status: *mut u32) -> AclError {
    let entry = entry("aclrtQueryEvent");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(status, |sim| sim.query_event(address(event)).map(|done| u32::from(!done))) }
}

/// Whether all waits of streams for an event of the old mode are done: 0 is complete, 1 is not ready.
///
/// # Safety
/// `status` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtQueryEventWaitStatus(event: Handle, status: *mut u32) -> AclError {
    let entry = entry("aclrtQueryEventWaitStatus");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(status, |sim| sim.query_event_wait_status(address(event)).map(|done| u32::from(!done)))
    }
}

/// Waits for an event.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSynchronizeEvent(event: Handle) -> AclError {
    entry("aclrtSynchronizeEvent").does(|sim| sim.synchronize_event(address(event)))
}

/// Waits for an event for at most so many milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSynchronizeEventWithTimeout(event: Handle, timeout: i32) -> AclError {
    entry("aclrtSynchronizeEventWithTimeout")
        .does(|sim| sim.synchronize_event_with_timeout(address(event), timeout))
}

/// Milliseconds between two records.
///
/// # Safety
/// `milliseconds` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtEventElapsedTime(
    milliseconds: *mut f32,
    start: Handle,
    end: Handle,
) -> AclError {
    let entry = entry("aclrtEventElapsedTime");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(milliseconds, |sim| sim.event_elapsed_time(address(start), address(end))) }
}

/// When the last record was done, in microseconds.
///
/// # Safety
/// `microseconds` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtEventGetTimestamp(event: Handle, microseconds: *mut u64) -> AclError {
    let entry = entry("aclrtEventGetTimestamp");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(microseconds, |sim| sim.event_timestamp(address(event))) }
}

/// The number of an event.
///
/// # Safety
/// `id` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetEventId(event: Handle, id: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetEventId").gives(id, |sim| sim.event_id(address(event))) }
}
