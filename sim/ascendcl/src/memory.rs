//! `aclrtMalloc` and its kin, and questions about pointers.

use ascend_sim::{MallocAttribute, Sim, codes};

use crate::entry::{Entry, entry};
use crate::surface::{CANN_8_5, CANN_9_0};
use crate::types::{AclError, Handle, MallocConfig, PtrAttributes, address, pointer};

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

/// Allocates device memory that the processor caches.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocCached(out: *mut Handle, size: usize, policy: u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe {
        entry("aclrtMallocCached").gives(out, |sim| sim.malloc_cached(size as u64, policy).map(pointer))
    }
}

/// Allocates device memory with attributes.
///
/// # Safety
/// `out` is null or valid for a write; `config` is null or valid for a read, and so is its list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocWithCfg(
    out: *mut Handle,
    size: usize,
    policy: u32,
    config: *const MallocConfig,
) -> AclError {
    let entry = entry("aclrtMallocWithCfg");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(out, |sim| {
            let attributes = attributes(entry, sim, config)?;
            sim.malloc_with_config(size as u64, policy, &attributes).map(pointer)
        })
    }
}

/// Allocates device memory for the task scheduler.
///
/// # Safety
/// As [`aclrtMallocWithCfg`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocForTaskScheduler(
    out: *mut Handle,
    size: usize,
    policy: u32,
    config: *const MallocConfig,
) -> AclError {
    let entry = entry("aclrtMallocForTaskScheduler");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(out, |sim| {
            let attributes = attributes(entry, sim, config)?;
            sim.malloc_for_task_scheduler(size as u64, policy, &attributes).map(pointer)
        })
    }
}

/// Allocates managed memory, which the parts played do not have.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemAllocManaged(out: *mut Handle, size: u64, flags: u32) -> AclError {
    let entry = entry("aclrtMemAllocManaged").since(CANN_9_0);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(out, |sim| sim.managed_alloc(size, u64::from(flags)).map(pointer)) }
}

/// Writes cached device memory back.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemFlush(start: Handle, size: usize) -> AclError {
    entry("aclrtMemFlush").does(|sim| sim.mem_flush(address(start), size as u64))
}

/// Drops cached copies of device memory.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemInvalidate(start: Handle, size: usize) -> AclError {
    entry("aclrtMemInvalidate").does(|sim| sim.mem_invalidate(address(start), size as u64))
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

/// The attributes in a configuration; none if it is null.
///
/// # Safety
/// `config` is null or valid for a read, and so is its list.
pub(crate) unsafe fn attributes(
    entry: Entry,
    sim: &Sim,
    config: *const MallocConfig,
) -> Result<Vec<MallocAttribute>, i32> {
    if config.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: it is not null, so it is valid for a read.
    let config = unsafe { config.read() };
    if config.count == 0 {
        return Ok(Vec::new());
    }
    entry.not_null(sim, config.attributes)?;
    // SAFETY: the caller promised that the list is valid for its count.
    let list = unsafe { entry.read_list(config.attributes, config.count) };
    Ok(list.into_iter().map(MallocAttribute::from).collect())
}
