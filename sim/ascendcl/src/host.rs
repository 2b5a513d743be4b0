//! Pinned and registered host memory.

use crate::entry::entry;
use crate::memory::attributes;
use crate::surface::CANN_8_5;
use crate::types::{AclError, Handle, MallocConfig, address, pointer};

/// Allocates pinned memory.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocHost(out: *mut Handle, size: usize) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtMallocHost").gives(out, |sim| sim.malloc_host(size as u64).map(pointer)) }
}

/// Allocates pinned memory with attributes.
///
/// # Safety
/// `out` is null or valid for a write; `config` is null or valid for a read, and so is its list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocHostWithCfg(
    out: *mut Handle,
    size: u64,
    config: *const MallocConfig,
) -> AclError {
    let entry = entry("aclrtMallocHostWithCfg");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(out, |sim| {
            let attributes = attributes(entry, sim, config)?;
            sim.malloc_host_with_config(size, &attributes).map(pointer)
        })
    }
}

/// Frees pinned memory. Waits for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFreeHost(start: Handle) -> AclError {
    entry("aclrtFreeHost").does(|sim| sim.free_host(address(start)))
}

/// Waits for the current device and frees pinned memory.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFreeHostWithDevSync(start: Handle) -> AclError {
    entry("aclrtFreeHostWithDevSync").since(CANN_8_5).does(|sim| sim.free_host_with_dev_sync(address(start)))
}

/// Registers host memory; the address devices use for it.
///
/// # Safety
/// `device` is null or valid for a write. The memory is neither read nor written by the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtHostRegister(
    start: Handle,
    size: u64,
    kind: u32,
    device: *mut Handle,
) -> AclError {
    let entry = entry("aclrtHostRegister");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(device, |sim| sim.host_register(address(start), size, kind).map(pointer)) }
}

/// Registers host memory.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtHostRegisterV2(start: Handle, size: u64, flags: u32) -> AclError {
    entry("aclrtHostRegisterV2").since(CANN_8_5).does(|sim| sim.host_register_v2(address(start), size, flags))
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtHostUnregister(start: Handle) -> AclError {
    entry("aclrtHostUnregister").does(|sim| sim.host_unregister(address(start)))
}

/// The address devices use for registered memory.
///
/// # Safety
/// `device` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtHostGetDevicePointer(
    host: Handle,
    device: *mut Handle,
    flags: u32,
) -> AclError {
    let entry = entry("aclrtHostGetDevicePointer").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(device, |sim| sim.host_device_pointer(address(host), flags).map(pointer)) }
}
