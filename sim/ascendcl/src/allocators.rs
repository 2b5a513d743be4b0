//! The hook for allocators of others: descriptors, and which stream uses which.
//!
//! The functions in a descriptor are kept and given back, never called.

use ascend_sim::AllocatorField;

use crate::entry::entry;
use crate::surface::CANN_8_5;
use crate::types::{AclError, Handle, address, pointer};

/// A new descriptor; null on failure.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorCreateDesc() -> Handle {
    let made = entry("aclrtAllocatorCreateDesc").asks(|sim| Ok(sim.allocator_create_desc()));
    pointer(made.unwrap_or(0))
}

/// Destroys a descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorDestroyDesc(desc: Handle) -> AclError {
    entry("aclrtAllocatorDestroyDesc").does(|sim| sim.allocator_destroy_desc(address(desc)))
}

/// Sets the allocator that the functions get.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorSetObjToDesc(desc: Handle, object: Handle) -> AclError {
    set("aclrtAllocatorSetObjToDesc", desc, AllocatorField::Object, object)
}

/// Sets the function that allocates.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorSetAllocFuncToDesc(desc: Handle, function: Handle) -> AclError {
    set("aclrtAllocatorSetAllocFuncToDesc", desc, AllocatorField::Alloc, function)
}

/// Sets the function that frees.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorSetFreeFuncToDesc(desc: Handle, function: Handle) -> AclError {
    set("aclrtAllocatorSetFreeFuncToDesc", desc, AllocatorField::Free, function)
}

/// Sets the function that allocates at a wanted address.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorSetAllocAdviseFuncToDesc(desc: Handle, function: Handle) -> AclError {
    set("aclrtAllocatorSetAllocAdviseFuncToDesc", desc, AllocatorField::Advise, function)
}

/// Sets the function that tells a block's address.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc: Handle, function: Handle) -> AclError {
    set("aclrtAllocatorSetGetAddrFromBlockFuncToDesc", desc, AllocatorField::GetAddress, function)
}

/// Makes a stream use an allocator; the descriptor is copied.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorRegister(stream: Handle, desc: Handle) -> AclError {
    entry("aclrtAllocatorRegister").does(|sim| sim.allocator_register(address(stream), address(desc)))
}

/// Ends that.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorUnregister(stream: Handle) -> AclError {
    entry("aclrtAllocatorUnregister").does(|sim| sim.allocator_unregister(address(stream)))
}

/// The allocator that a stream uses. All outputs but `desc` may be null.
///
/// # Safety
/// Each output is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtAllocatorGetByStream(
    stream: Handle,
    desc: *mut Handle,
    object: *mut Handle,
    alloc: *mut Handle,
    free: *mut Handle,
    advise: *mut Handle,
    get_address: *mut Handle,
) -> AclError {
    let entry = entry("aclrtAllocatorGetByStream").since(CANN_8_5);
    entry.does(|sim| {
        entry.not_null(sim, desc)?;
        let found = sim.allocator_by_stream(address(stream))?;
        let outputs = [
            (desc, found.desc),
            (object, found.object),
            (alloc, found.alloc),
            (free, found.free),
            (advise, found.advise),
            (get_address, found.get_address),
        ];
        for (out, value) in outputs.into_iter().filter(|(out, _)| !out.is_null()) {
            // SAFETY: it is not null, so it is valid for a write.
            unsafe { out.write(pointer(value)) };
        }
        Ok(())
    })
}

fn set(name: &'static str, desc: Handle, field: AllocatorField, value: Handle) -> AclError {
    entry(name).does(|sim| sim.allocator_set(address(desc), field, address(value)))
}
