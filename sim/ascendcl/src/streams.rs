//! Streams, and functions of the host in them.

use std::ffi::c_void;

use ascend_sim::{Work, codes};

use crate::entry::entry;
use crate::surface::CANN_8_3;
use crate::types::{AclError, Handle, address, pointer};

/// `aclrtCallback`, `aclrtHostFunc`.
pub(crate) type HostFunc = Option<unsafe extern "C" fn(*mut c_void)>;

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
