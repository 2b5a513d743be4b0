//! Options of devices, contexts, operators and streams, which the model keeps and gives back.

use crate::entry::entry;
use crate::types::{AclError, Handle, StreamAttrValue, address};

/// Sets how devices treat overflow.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetDeviceSatMode(mode: u32) -> AclError {
    entry("aclrtSetDeviceSatMode").does(|sim| sim.set_sat_mode(mode))
}

/// How devices treat overflow.
///
/// # Safety
/// `mode` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceSatMode(mode: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetDeviceSatMode").gives(mode, |sim| sim.sat_mode()) }
}

/// Sets how long operators wait, in seconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetOpWaitTimeout(seconds: u32) -> AclError {
    entry("aclrtSetOpWaitTimeout").does(|sim| sim.set_op_wait_timeout(seconds))
}

/// Sets how long operators run, in seconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetOpExecuteTimeOut(seconds: u32) -> AclError {
    entry("aclrtSetOpExecuteTimeOut").does(|sim| sim.set_op_execute_timeout(seconds))
}

/// Sets how long operators run, in milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetOpExecuteTimeOutWithMs(milliseconds: u32) -> AclError {
    entry("aclrtSetOpExecuteTimeOutWithMs").does(|sim| sim.set_op_execute_timeout_ms(milliseconds))
}

/// Sets how long operators run, in microseconds, and writes what it became.
///
/// # Safety
/// `actual` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtSetOpExecuteTimeOutV2(microseconds: u64, actual: *mut u64) -> AclError {
    let entry = entry("aclrtSetOpExecuteTimeOutV2");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(actual, |sim| sim.set_op_execute_timeout_v2(microseconds)) }
}

/// The unit of that time in microseconds.
///
/// # Safety
/// `interval` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetOpTimeOutInterval(interval: *mut u64) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetOpTimeOutInterval").gives(interval, |sim| sim.op_timeout_interval()) }
}

/// How long operators run, in milliseconds.
///
/// # Safety
/// `milliseconds` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetOpExecuteTimeout(milliseconds: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetOpExecuteTimeout").gives(milliseconds, |sim| sim.op_execute_timeout()) }
}

/// Sets an option of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtCtxSetSysParamOpt(option: u32, value: i64) -> AclError {
    entry("aclrtCtxSetSysParamOpt").does(|sim| sim.set_ctx_sys_param(option, value))
}

/// An option of the current context.
///
/// # Safety
/// `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCtxGetSysParamOpt(option: u32, value: *mut i64) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtCtxGetSysParamOpt").gives(value, |sim| sim.ctx_sys_param(option)) }
}

/// Sets an option of the process.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetSysParamOpt(option: u32, value: i64) -> AclError {
    entry("aclrtSetSysParamOpt").does(|sim| sim.set_sys_param(option, value))
}

/// An option of the process.
///
/// # Safety
/// `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetSysParamOpt(option: u32, value: *mut i64) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetSysParamOpt").gives(value, |sim| sim.sys_param(option)) }
}

/// Chooses the task scheduler of the current device.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetTsDevice(scheduler: u32) -> AclError {
    entry("aclrtSetTsDevice").does(|sim| sim.set_ts_device(scheduler))
}

/// Sets what a failed task does to its stream.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetStreamFailureMode(stream: Handle, mode: u64) -> AclError {
    entry("aclrtSetStreamFailureMode").does(|sim| sim.set_stream_failure_mode(address(stream), mode))
}

/// Switches the overflow check of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetStreamOverflowSwitch(stream: Handle, on: u32) -> AclError {
    entry("aclrtSetStreamOverflowSwitch").does(|sim| sim.set_stream_overflow(address(stream), on))
}

/// Whether a stream checks for overflow.
///
/// # Safety
/// `on` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetStreamOverflowSwitch(stream: Handle, on: *mut u32) -> AclError {
    let entry = entry("aclrtGetStreamOverflowSwitch");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(on, |sim| sim.stream_overflow(address(stream))) }
}

/// Sets an attribute of a stream.
///
/// # Safety
/// `value` is null or valid for a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtSetStreamAttribute(
    stream: Handle,
    attribute: u32,
    value: *const StreamAttrValue,
) -> AclError {
    let entry = entry("aclrtSetStreamAttribute");
    entry.does(|sim| {
        entry.not_null(sim, value)?;
        // SAFETY: it is not null, so it is valid for a read.
        let value = unsafe { value.read() };
        sim.set_stream_attribute(address(stream), attribute, value.first())
    })
}

/// An attribute of a stream.
///
/// # Safety
/// `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetStreamAttribute(
    stream: Handle,
    attribute: u32,
    value: *mut StreamAttrValue,
) -> AclError {
    let entry = entry("aclrtGetStreamAttribute");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(value, |sim| sim.stream_attribute(address(stream), attribute).map(StreamAttrValue::new))
    }
}
