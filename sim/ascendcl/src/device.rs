//! Devices, contexts, memory information.

use crate::entry::entry;
use crate::types::{AclError, Handle, address, pointer};

/// How many devices the process sees.
///
/// # Safety
/// `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceCount(count: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetDeviceCount").gives(count, |sim| sim.device_count()) }
}

/// Makes a device current in the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetDevice(device: i32) -> AclError {
    entry("aclrtSetDevice").does(|sim| sim.set_device(device))
}

/// Drops one reference of a device.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtResetDevice(device: i32) -> AclError {
    entry("aclrtResetDevice").does(|sim| sim.reset_device(device))
}

/// Drops all references of a device.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtResetDeviceForce(device: i32) -> AclError {
    entry("aclrtResetDeviceForce").does(|sim| sim.reset_device_force(device))
}

/// The current device of the calling thread.
///
/// # Safety
/// `device` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDevice(device: *mut i32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetDevice").gives(device, |sim| sim.get_device()) }
}

/// Waits for the streams of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSynchronizeDevice() -> AclError {
    entry("aclrtSynchronizeDevice").does(|sim| sim.synchronize_device())
}

/// The same for at most so many milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSynchronizeDeviceWithTimeout(timeout: i32) -> AclError {
    entry("aclrtSynchronizeDeviceWithTimeout").does(|sim| sim.synchronize_device_with_timeout(timeout))
}

/// Makes a context and makes it current.
///
/// # Safety
/// `context` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCreateContext(context: *mut Handle, device: i32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtCreateContext").gives(context, |sim| sim.create_context(device).map(pointer)) }
}

/// Destroys a context that was made.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtDestroyContext(context: Handle) -> AclError {
    entry("aclrtDestroyContext").does(|sim| sim.destroy_context(address(context)))
}

/// Makes a context current in the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetCurrentContext(context: Handle) -> AclError {
    entry("aclrtSetCurrentContext").does(|sim| sim.set_current_context(address(context)))
}

/// The current context of the calling thread.
///
/// # Safety
/// `context` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetCurrentContext(context: *mut Handle) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetCurrentContext").gives(context, |sim| sim.get_current_context().map(pointer)) }
}

/// Free and total bytes of the current device.
///
/// # Safety
/// Each pointer is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetMemInfo(attr: u32, free: *mut usize, total: *mut usize) -> AclError {
    // SAFETY: the caller's promise.
    unsafe {
        entry("aclrtGetMemInfo").gives_two((free, total), |sim| {
            let (free, total) = sim.mem_info(attr)?;
            Ok((free as usize, total as usize))
        })
    }
}
