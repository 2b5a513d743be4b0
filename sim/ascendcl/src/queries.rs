//! Questions about devices that change nothing.

use std::ffi::c_void;

use crate::entry::entry;
use crate::surface::{CANN_8_3, CANN_8_5, CANN_9_0};
use crate::text;
use crate::types::{AclError, Handle, MemUsageInfo, UtilizationInfo, address, pointer};

/// Whether the program runs on the host (1) or on a device (0).
///
/// # Safety
/// `mode` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetRunMode(mode: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetRunMode").gives(mode, |sim| sim.run_mode()) }
}

/// An attribute of a device.
///
/// # Safety
/// `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceInfo(device: u32, attribute: u32, value: *mut i64) -> AclError {
    let entry = entry("aclrtGetDeviceInfo").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(value, |sim| sim.device_info(device, attribute)) }
}

/// Whether a device has a feature.
///
/// # Safety
/// `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceCapability(device: i32, feature: u32, value: *mut i32) -> AclError {
    let entry = entry("aclrtGetDeviceCapability");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(value, |sim| sim.device_capability(device, feature)) }
}

/// Whether a device works: 0.
///
/// # Safety
/// `status` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtQueryDeviceStatus(device: i32, status: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtQueryDeviceStatus").gives(status, |sim| sim.device_status(device)) }
}

/// How busy a device is.
///
/// # Safety
/// `info` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceUtilizationRate(device: i32, info: *mut UtilizationInfo) -> AclError {
    let entry = entry("aclrtGetDeviceUtilizationRate");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(info, |sim| sim.utilization(device).map(UtilizationInfo::from)) }
}

/// Whether a device's primary context is active.
///
/// # Safety
/// Each output is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetPrimaryCtxState(device: i32, flags: *mut u32, active: *mut i32) -> AclError {
    let entry = entry("aclrtGetPrimaryCtxState").since(CANN_8_3);
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives_two((flags, active), |sim| {
            let (flags, active) = sim.primary_context_state(device)?;
            Ok((flags, i32::from(active)))
        })
    }
}

/// The default stream of the current context.
///
/// # Safety
/// `stream` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCtxGetCurrentDefaultStream(stream: *mut Handle) -> AclError {
    let entry = entry("aclrtCtxGetCurrentDefaultStream").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(stream, |sim| sim.current_default_stream().map(pointer)) }
}

/// This process as the white lists of shared memory name it.
///
/// # Safety
/// `pid` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtDeviceGetBareTgid(pid: *mut i32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtDeviceGetBareTgid").gives(pid, |sim| sim.bare_tgid()) }
}

/// How many more streams there can be.
///
/// # Safety
/// `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetStreamAvailableNum(count: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetStreamAvailableNum").gives(count, |sim| sim.stream_available()) }
}

/// How many more events there can be.
///
/// # Safety
/// `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetEventAvailableNum(count: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetEventAvailableNum").gives(count, |sim| sim.event_available()) }
}

/// The priorities that streams can have.
///
/// # Safety
/// Each output is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> AclError {
    let entry = entry("aclrtDeviceGetStreamPriorityRange");
    // SAFETY: the caller's promise.
    unsafe { entry.gives_two((least, greatest), |sim| sim.stream_priority_range()) }
}

/// What parts of the software hold of a device.
///
/// # Safety
/// `infos` is null or valid for writes of `room` entries, `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetMemUsageInfo(
    device: i32,
    infos: *mut MemUsageInfo,
    room: usize,
    count: *mut usize,
) -> AclError {
    let entry = entry("aclrtGetMemUsageInfo").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(count, |sim| {
            entry.not_null(sim, infos)?;
            let found = sim.memory_usage(device, room)?;
            for (index, usage) in found.iter().take(room).enumerate() {
                let mut info = MemUsageInfo::default();
                info.current = usage.current;
                info.peak = usage.peak;
                text::print(usage.name, info.name.as_mut_ptr().cast(), info.name.len());
                infos.add(index).write(info);
            }
            Ok(found.len().min(room))
        })
    }
}

/// Whether all addresses are memory of the kinds asked for.
///
/// # Safety
/// `addresses` is null or valid for reads of `count` pointers, `result` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtCheckMemType(
    addresses: *const Handle,
    count: u32,
    wanted: u32,
    result: *mut u32,
    reserve: u32,
) -> AclError {
    let entry = entry("aclrtCheckMemType").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(result, |sim| {
            entry.not_null(sim, addresses)?;
            let list = entry.read_list(addresses, count as usize);
            let list: Vec<u64> = list.into_iter().map(|entry| address(entry)).collect();
            sim.check_memory_type(&list, wanted, reserve)
        })
    }
}

/// The driver's number of a device of the process.
///
/// # Safety
/// `logic` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetLogicDevIdByUserDevId(user: i32, logic: *mut i32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetLogicDevIdByUserDevId").gives(logic, |sim| sim.user_to_logic_device(user)) }
}

/// The process's number of a device of the driver.
///
/// # Safety
/// `user` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetUserDevIdByLogicDevId(logic: i32, user: *mut i32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtGetUserDevIdByLogicDevId").gives(user, |sim| sim.logic_to_user_device(logic)) }
}

/// Whether a unit of a device can use registered host memory.
///
/// # Safety
/// `capability` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtHostMemMapCapabilities(
    device: u32,
    unit: u32,
    capability: *mut u32,
) -> AclError {
    let entry = entry("aclrtHostMemMapCapabilities").since(CANN_9_0);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(capability, |sim| sim.host_map_capability(device, unit)) }
}

/// Memory faults on record: none.
///
/// # Safety
/// `infos` is null or valid for writes of `room` records, `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetMemUceInfo(
    device: i32,
    infos: *mut c_void,
    room: usize,
    count: *mut usize,
) -> AclError {
    let entry = entry("aclrtGetMemUceInfo");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(count, |sim| {
            entry.not_null(sim, infos)?;
            sim.memory_uce(device, room)
        })
    }
}

/// Repairs memory faults, of which there are none.
///
/// # Safety
/// `infos` is null or valid for reads of `count` records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemUceRepair(device: i32, infos: *mut c_void, count: usize) -> AclError {
    let entry = entry("aclrtMemUceRepair");
    entry.does(|sim| {
        entry.not_null(sim, infos)?;
        sim.repair_uce(device, count)
    })
}
