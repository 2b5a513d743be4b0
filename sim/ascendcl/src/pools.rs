//! Stream-ordered pools.

use std::ffi::c_void;

use crate::entry::entry;
use crate::surface::{CANN_9_0, CANN_9_1};
use crate::types::{AclError, Handle, MemPoolProps, address, pointer};

/// The highest attribute that is a number of 4 bytes; those above have 8.
const LAST_SHORT_ATTRIBUTE: u32 = 3;

/// Makes a pool.
///
/// # Safety
/// `pool` is null or valid for a write, `props` is null or valid for a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemPoolCreate(pool: *mut Handle, props: *const MemPoolProps) -> AclError {
    let entry = entry("aclrtMemPoolCreate").since(CANN_9_0);
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(pool, |sim| {
            entry.not_null(sim, props)?;
            sim.pool_create(&props.read().into()).map(pointer)
        })
    }
}

/// Destroys a pool.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemPoolDestroy(pool: Handle) -> AclError {
    entry("aclrtMemPoolDestroy").since(CANN_9_0).does(|sim| sim.pool_destroy(address(pool)))
}

/// Sets an attribute of a pool.
///
/// # Safety
/// `value` is null or valid for a read of the attribute's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemPoolSetAttr(pool: Handle, attribute: u32, value: *mut c_void) -> AclError {
    let entry = entry("aclrtMemPoolSetAttr").since(CANN_9_0);
    entry.does(|sim| {
        entry.not_null(sim, value)?;
        let number = if attribute <= LAST_SHORT_ATTRIBUTE {
            // SAFETY: it is not null, so it is valid for a read of 4 bytes.
            u64::from(unsafe { value.cast::<u32>().read() })
        } else {
            // SAFETY: it is not null, so it is valid for a read of 8 bytes.
            unsafe { value.cast::<u64>().read() }
        };
        sim.pool_set_attr(address(pool), attribute, number)
    })
}

/// An attribute of a pool.
///
/// # Safety
/// `value` is null or valid for a write of the attribute's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemPoolGetAttr(pool: Handle, attribute: u32, value: *mut c_void) -> AclError {
    let entry = entry("aclrtMemPoolGetAttr").since(CANN_9_0);
    entry.does(|sim| {
        entry.not_null(sim, value)?;
        let number = sim.pool_attr(address(pool), attribute)?;
        if attribute <= LAST_SHORT_ATTRIBUTE {
            // SAFETY: it is not null, so it is valid for a write of 4 bytes.
            unsafe { value.cast::<u32>().write(number as u32) };
        } else {
            // SAFETY: it is not null, so it is valid for a write of 8 bytes.
            unsafe { value.cast::<u64>().write(number) };
        }
        Ok(())
    })
}

/// Allocates from a pool in stream order.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemPoolMallocAsync(
    out: *mut Handle,
    size: usize,
    pool: Handle,
    stream: Handle,
) -> AclError {
    let entry = entry("aclrtMemPoolMallocAsync").since(CANN_9_1);
    // SAFETY: the caller's promise.
    unsafe {
        entry
            .gives(out, |sim| sim.pool_malloc_async(size as u64, address(pool), address(stream)).map(pointer))
    }
}

/// Gives memory back to its pool in stream order.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemPoolFreeAsync(start: Handle, stream: Handle) -> AclError {
    let entry = entry("aclrtMemPoolFreeAsync").since(CANN_9_1);
    entry.does(|sim| sim.pool_free_async(address(start), address(stream)))
}

/// Gives what a pool holds in reserve back to the device, but for so many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemPoolTrimTo(pool: Handle, keep: usize) -> AclError {
    entry("aclrtMemPoolTrimTo").since(CANN_9_1).does(|sim| sim.pool_trim_to(address(pool), keep as u64))
}
