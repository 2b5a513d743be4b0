//! Functions of the program: callbacks of streams, state callbacks, exceptions.
//!
//! Functions run as the vendor's documents say: those of `aclrtLaunchCallback` in the thread that
//! processes reports, those of `aclrtLaunchHostFunc` in a thread of this library, state callbacks in
//! the thread whose call changes the state. Nothing may unwind out of them.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use ascend_sim::{
    DeviceStateCallback, ExceptionCallback, ExceptionInfo, StreamStateCallback, TaskAbortCallback, Work,
    codes,
};

use crate::entry::entry;
use crate::surface::{CANN_8_3, CANN_8_5};
use crate::types::{AclError, Handle, address, pointer};

/// `aclrtCallback`, `aclrtHostFunc`.
pub(crate) type HostFunc = Option<unsafe extern "C" fn(*mut c_void)>;
/// `aclrtDeviceStateCallback`.
type DeviceFunc = Option<unsafe extern "C" fn(i32, u32, *mut c_void)>;
/// `aclrtStreamStateCallback`.
type StreamFunc = Option<unsafe extern "C" fn(Handle, u32, *mut c_void)>;
/// `aclrtDeviceTaskAbortCallback`.
type AbortFunc = Option<unsafe extern "C" fn(i32, u32, u32, *mut c_void) -> i32>;
/// `aclrtExceptionInfoCallback`.
type ExceptionFunc = Option<unsafe extern "C" fn(*mut c_void)>;

/// Queues a function of the host, which runs in a thread of this library.
///
/// # Safety
/// The function may be called with `user` from another thread once the stream comes to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtLaunchHostFunc(
    stream: Handle,
    function: HostFunc,
    user: *mut c_void,
) -> AclError {
    let entry = entry("aclrtLaunchHostFunc").since(CANN_8_3);
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        let Some(work) = (unsafe { work(function, user) }) else {
            return Err(entry.refuse(sim, codes::RT_PARAM_INVALID, "the function is null"));
        };
        sim.launch_host_func(address(stream), work)
    })
}

/// Queues a function of the host, which runs in the thread that has subscribed to the stream.
///
/// # Safety
/// The function may be called with `user` from that thread once the stream comes to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtLaunchCallback(
    function: HostFunc,
    user: *mut c_void,
    block_type: u32,
    stream: Handle,
) -> AclError {
    entry("aclrtLaunchCallback").does(|sim| {
        // SAFETY: the caller's promise.
        sim.launch_callback(unsafe { work(function, user) }, block_type, address(stream))
    })
}

/// Makes a thread (as `pthread_self` names it) take the callbacks of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSubscribeReport(thread: u64, stream: Handle) -> AclError {
    entry("aclrtSubscribeReport").does(|sim| sim.subscribe_report(thread, address(stream)))
}

/// Ends that.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtUnSubscribeReport(thread: u64, stream: Handle) -> AclError {
    entry("aclrtUnSubscribeReport").does(|sim| sim.unsubscribe_report(thread, address(stream)))
}

/// Runs callbacks of streams the calling thread has subscribed to; waits for one at most so many
/// milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtProcessReport(timeout: i32) -> AclError {
    entry("aclrtProcessReport").does(|sim| {
        // SAFETY: the call has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        sim.process_report(thread as u64, timeout)
    })
}

/// Has a function called around `aclrtSetDevice` and `aclrtResetDevice`; null ends it.
///
/// # Safety
/// `name` is null or a text that ends with a zero. The function may be called with `user`, from any
/// thread, until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtRegDeviceStateCallback(
    name: *const c_char,
    function: DeviceFunc,
    user: *mut c_void,
) -> AclError {
    let entry = entry("aclrtRegDeviceStateCallback").since(CANN_8_5);
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        let name = unsafe { entry.read_text(sim, name) }?;
        let user = address(user);
        let call = function.map(|function| -> DeviceStateCallback {
            // SAFETY: the caller promised that it may be called so.
            Arc::new(move |device, state| unsafe { function(device, state, pointer(user)) })
        });
        sim.set_device_state_callback(&name, call)
    })
}

/// Has a function called when streams were created and will be destroyed; null ends it.
///
/// # Safety
/// As [`aclrtRegDeviceStateCallback`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtRegStreamStateCallback(
    name: *const c_char,
    function: StreamFunc,
    user: *mut c_void,
) -> AclError {
    let entry = entry("aclrtRegStreamStateCallback").since(CANN_8_5);
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        let name = unsafe { entry.read_text(sim, name) }?;
        let user = address(user);
        let call = function.map(|function| -> StreamStateCallback {
            // SAFETY: the caller promised that it may be called so.
            Arc::new(move |stream, state| unsafe { function(pointer(stream), state, pointer(user)) })
        });
        sim.set_stream_state_callback(&name, call)
    })
}

/// Has a function called around an abort of a device's tasks; null ends it.
///
/// # Safety
/// As [`aclrtRegDeviceStateCallback`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtSetDeviceTaskAbortCallback(
    name: *const c_char,
    function: AbortFunc,
    user: *mut c_void,
) -> AclError {
    let entry = entry("aclrtSetDeviceTaskAbortCallback").since(CANN_8_5);
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        let name = unsafe { entry.read_text(sim, name) }?;
        let user = address(user);
        let call = function.map(|function| -> TaskAbortCallback {
            // SAFETY: the caller promised that it may be called so.
            Arc::new(move |device, stage, timeout| unsafe { function(device, stage, timeout, pointer(user)) })
        });
        sim.set_task_abort_callback(&name, call)
    })
}

/// Aborts what is queued on a device.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtDeviceTaskAbort(device: i32, timeout: u32) -> AclError {
    entry("aclrtDeviceTaskAbort").does(|sim| sim.device_task_abort(device, timeout))
}

/// Has a function called when a task fails; null ends it. Its argument is for the five calls below
/// and only good until it returns.
///
/// # Safety
/// The function may be called from any thread until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtSetExceptionInfoCallback(function: ExceptionFunc) -> AclError {
    entry("aclrtSetExceptionInfoCallback").does(|sim| {
        let call = function.map(|function| -> ExceptionCallback {
            Arc::new(move |info| {
                let info: *const ExceptionInfo = info;
                // SAFETY: the caller promised that it may be called so.
                unsafe { function(info.cast_mut().cast()) }
            })
        });
        sim.set_exception_callback(call)
    })
}

/// The task that failed; `u32::MAX` for null.
///
/// # Safety
/// `info` is null or what the exception callback was given, before it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetTaskIdFromExceptionInfo(info: *const c_void) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { field(info, |info| info.task) }
}

/// The stream of the task that failed; `u32::MAX` for null.
///
/// # Safety
/// `info` is null or what the exception callback was given, before it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetStreamIdFromExceptionInfo(info: *const c_void) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { field(info, |info| info.stream) }
}

/// The thread that queued the task that failed; `u32::MAX` for null.
///
/// # Safety
/// `info` is null or what the exception callback was given, before it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetThreadIdFromExceptionInfo(info: *const c_void) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { field(info, |info| info.thread) }
}

/// The device of the task that failed; `u32::MAX` for null.
///
/// # Safety
/// `info` is null or what the exception callback was given, before it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceIdFromExceptionInfo(info: *const c_void) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { field(info, |info| info.device) }
}

/// The code of the task that failed; `u32::MAX` for null.
///
/// # Safety
/// `info` is null or what the exception callback was given, before it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetErrorCodeFromExceptionInfo(info: *const c_void) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { field(info, |info| info.error) }
}

/// # Safety
/// `info` is null or what the exception callback was given, before it returns.
unsafe fn field(info: *const c_void, read: impl FnOnce(&ExceptionInfo) -> u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { info.cast::<ExceptionInfo>().as_ref() }.map_or(u32::MAX, read)
}

/// A C function as work for a stream; `None` for null.
///
/// # Safety
/// The function may be called once with `user`, from any thread.
pub(crate) unsafe fn work(function: HostFunc, user: *mut c_void) -> Option<Work> {
    let function = function?;
    let user = address(user);
    Some(Box::new(move || {
        // SAFETY: this function's caller promised that it may be called so.
        unsafe { function(pointer(user)) }
    }))
}
