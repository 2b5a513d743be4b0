//! Virtual memory: reservations, chunks, mappings, access.

use ascend_sim::AccessDescriptor;

use crate::entry::entry;
use crate::surface::{CANN_8_5, CANN_9_0, CANN_9_1, CANN_9_2};
use crate::types::{AclError, Handle, MemAccessDesc, MemLocation, PhysicalMemProp, address, pointer};

/// Reserves addresses. Where the driver writes the wanted address although it refuses, so does this.
///
/// # Safety
/// `start` is null or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtReserveMemAddress(
    start: *mut Handle,
    size: usize,
    alignment: usize,
    expect: Handle,
    flags: u64,
) -> AclError {
    let entry = entry("aclrtReserveMemAddress");
    entry.does(|sim| {
        entry.not_null(sim, start)?;
        // SAFETY: `start` is not null, so it is valid for a read.
        let mut found = address(unsafe { start.read() });
        let answer = sim.reserve_into(&mut found, size as u64, alignment as u64, address(expect), flags);
        // SAFETY: as above, for a write.
        unsafe { start.write(pointer(found)) };
        answer
    })
}

/// Gives a reservation back.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtReleaseMemAddress(start: Handle) -> AclError {
    entry("aclrtReleaseMemAddress").does(|sim| sim.release(address(start)))
}

/// Allocates a chunk of physical memory.
///
/// # Safety
/// `handle` is null or valid for a write, `prop` is null or valid for a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocPhysical(
    handle: *mut Handle,
    size: usize,
    prop: *const PhysicalMemProp,
    flags: u64,
) -> AclError {
    let entry = entry("aclrtMallocPhysical");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(handle, |sim| {
            entry.not_null(sim, prop)?;
            // SAFETY: `prop` is not null, so it is valid for a read.
            let prop = prop.read().into();
            sim.malloc_physical(size as u64, &prop, flags).map(pointer)
        })
    }
}

/// Drops one reference of a chunk.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFreePhysical(handle: Handle) -> AclError {
    entry("aclrtFreePhysical").does(|sim| sim.free_physical(address(handle)))
}

/// Maps a chunk.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMapMem(
    start: Handle,
    size: usize,
    offset: usize,
    handle: Handle,
    flags: u64,
) -> AclError {
    entry("aclrtMapMem")
        .does(|sim| sim.map(address(start), size as u64, offset as u64, address(handle), flags))
}

/// Removes a mapping.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtUnmapMem(start: Handle) -> AclError {
    entry("aclrtUnmapMem").does(|sim| sim.unmap(address(start)))
}

/// The granule of a kind of memory.
///
/// # Safety
/// `prop` is null or valid for a read, `granule` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemGetAllocationGranularity(
    prop: *const PhysicalMemProp,
    option: u32,
    granule: *mut usize,
) -> AclError {
    let entry = entry("aclrtMemGetAllocationGranularity");
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(granule, |sim| {
            entry.not_null(sim, prop)?;
            // SAFETY: `prop` is not null, so it is valid for a read.
            let prop = prop.read().into();
            sim.granularity(&prop, option).map(|bytes| bytes as usize)
        })
    }
}

/// Grants access to one mapping.
///
/// # Safety
/// `grants` is null or valid for reads of `count` descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemSetAccess(
    start: Handle,
    size: usize,
    grants: *const MemAccessDesc,
    count: usize,
) -> AclError {
    entry("aclrtMemSetAccess").since(CANN_8_5).does(|sim| {
        let mut read: Vec<AccessDescriptor> = Vec::new();
        if !grants.is_null() {
            // More than two descriptors are answered as two are, so that a wild count reads no further.
            for index in 0..count.min(2) {
                // SAFETY: the caller promised `count` descriptors.
                read.push(unsafe { grants.add(index).read() }.into());
            }
        }
        sim.set_access(address(start), size as u64, &read)
    })
}

/// What access a place has to the mapping around an address: 3 or 0 in the low bits of `flags`.
///
/// # Safety
/// `place` is null or valid for a read, `flags` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemGetAccess(
    start: Handle,
    place: *const MemLocation,
    flags: *mut u64,
) -> AclError {
    let entry = entry("aclrtMemGetAccess").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(flags, |sim| {
            entry.not_null(sim, place)?;
            // SAFETY: `place` is not null, so it is valid for a read.
            sim.get_access(address(start), place.read().into())
        })
    }
}

/// The chunk mapped at exactly that address, with one more reference.
///
/// # Safety
/// `handle` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemRetainAllocationHandle(start: Handle, handle: *mut Handle) -> AclError {
    let entry = entry("aclrtMemRetainAllocationHandle").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(handle, |sim| sim.retain_handle(address(start)).map(pointer)) }
}

/// What a chunk was asked for with.
///
/// # Safety
/// `prop` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemGetAllocationPropertiesFromHandle(
    handle: Handle,
    prop: *mut PhysicalMemProp,
) -> AclError {
    let entry = entry("aclrtMemGetAllocationPropertiesFromHandle").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(prop, |sim| sim.handle_properties(address(handle)).map(PhysicalMemProp::from)) }
}

/// Reserves addresses without the memory of the user's control plane, which the parts played do not have.
///
/// # Safety
/// `start` is null or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtReserveMemAddressNoUCMemory(
    start: *mut Handle,
    size: usize,
    alignment: usize,
    expect: Handle,
    flags: u64,
) -> AclError {
    let entry = entry("aclrtReserveMemAddressNoUCMemory").since(CANN_9_0);
    entry.does(|sim| {
        entry.not_null(sim, start)?;
        // SAFETY: `start` is not null, so it is valid for a read.
        let mut found = address(unsafe { start.read() });
        sim.reserve_no_uc_into(&mut found, size as u64, alignment as u64, address(expect), flags)?;
        // SAFETY: as above, for a write.
        unsafe { start.write(pointer(found)) };
        Ok(())
    })
}

/// Maps a chunk without access, which the drivers played cannot.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemMapNoAccess(
    start: Handle,
    size: usize,
    offset: usize,
    handle: Handle,
    flags: u64,
) -> AclError {
    let entry = entry("aclrtMemMapNoAccess").since(CANN_9_2);
    entry.does(|sim| sim.map_no_access(address(start), size as u64, offset as u64, address(handle), flags))
}

/// Maps over a chosen link, of which the parts played have one kind only. The arguments are not read.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemMapSelectedLink() -> AclError {
    entry("aclrtMemMapSelectedLink").since(CANN_9_1).does(|sim| sim.map_selected_link())
}

/// Chooses a link for mappings, of which the parts played have one kind only. The arguments are not read.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemMapSetLink() -> AclError {
    entry("aclrtMemMapSetLink").since(CANN_9_2).does(|sim| sim.map_set_link())
}
