//! `aclrtMalloc` and its kin, and questions about pointers.

use ascend_sim::codes;

use crate::entry::entry;
use crate::surface::{CANN_8_5, CANN_9_0};
use crate::types::{AclError, Handle, PtrAttributes, address, pointer};

/// Allocates device memory; the part's pad is added.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMalloc(out: *mut Handle, size: usize, policy: u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { entry("aclrtMalloc").gives(out, |sim| sim.malloc(size as u64, policy).map(pointer)) }
}

/// Allocates device memory without a pad.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocAlign32(out: *mut Handle, size: usize, policy: u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe {
        entry("aclrtMallocAlign32").gives(out, |sim| sim.malloc_align32(size as u64, policy).map(pointer))
    }
}

/// Frees device memory. Waits for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFree(start: Handle) -> AclError {
    entry("aclrtFree").does(|sim| sim.free(address(start)))
}

/// Waits for the current device and frees device memory.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFreeWithDevSync(start: Handle) -> AclError {
    entry("aclrtFreeWithDevSync").since(CANN_8_5).does(|sim| sim.free_with_dev_sync(address(start)))
}

/// Where the memory at an address is.
///
/// # Safety
/// `attributes` is null or valid for a write. The address is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtPointerGetAttributes(
    start: Handle,
    attributes: *mut PtrAttributes,
) -> AclError {
    let entry = entry("aclrtPointerGetAttributes");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(attributes, |sim| sim.pointer_attributes(address(start)).map(PtrAttributes::from)) }
}

/// Start and length of the mapping around an address. One of the outputs may be null.
///
/// # Safety
/// Each output is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemGetAddressRange(
    start: Handle,
    base: *mut Handle,
    size: *mut usize,
) -> AclError {
    let entry = entry("aclrtMemGetAddressRange").since(CANN_9_0);
    entry.does(|sim| {
        entry.not_null(sim, start)?;
        if base.is_null() && size.is_null() {
            return Err(entry.refuse(sim, codes::RT_PARAM_INVALID, "both outputs are null"));
        }
        let (found, len) = sim.address_range(address(start))?;
        if !base.is_null() {
            // SAFETY: it is not null, so it is valid for a write.
            unsafe { base.write(pointer(found)) };
        }
        if !size.is_null() {
            // SAFETY: it is not null, so it is valid for a write.
            unsafe { size.write(len as usize) };
        }
        Ok(())
    })
}
