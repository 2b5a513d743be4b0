//! The device model as a drop-in `libascendcl.so`.
//!
//! A skeleton: initialisation, devices, memory information and the virtual-memory calls, over one
//! simulator for the whole process. A program that needs more finds the symbols missing, as on an
//! old library. Every function checks its pointers, asks the [`Sim`] and turns the answer into a code.
//!
//! The machine has the devices that `ASCEND_SIM_DEVICES` says (default 1) with
//! `ASCEND_SIM_CAPACITY` bytes each (default 1 GiB); the process sees those that
//! `ASCEND_RT_VISIBLE_DEVICES` lists.

// The names are those of the vendor's interface.
#![allow(non_snake_case)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use ascend_sim::{AccessDescriptor, Location, PhysicalProp, Sim, SimConfig, codes};

/// `aclError`.
type AclError = c_int;

/// `aclrtMemLocation`: the number comes before the kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemLocation {
    id: u32,
    kind: u32,
}

/// `aclrtPhysicalMemProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PhysicalMemProp {
    handle_type: u32,
    allocation_type: u32,
    attr: u32,
    location: MemLocation,
    reserve: u64,
}

/// `aclrtMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemAccessDesc {
    flags: u32,
    location: MemLocation,
    rsv: [u8; 12],
}

const _: () = {
    assert!(size_of::<MemLocation>() == 8);
    assert!(size_of::<PhysicalMemProp>() == 32);
    assert!(size_of::<MemAccessDesc>() == 24);
};

/// The one machine of the process.
fn sim() -> &'static Sim {
    static SIM: OnceLock<Sim> = OnceLock::new();
    SIM.get_or_init(|| {
        let number = |name: &str| std::env::var(name).ok()?.trim().parse::<u64>().ok();
        let mut config = SimConfig::default();
        if let Some(devices) = number("ASCEND_SIM_DEVICES").and_then(|devices| u32::try_from(devices).ok()) {
            config.devices = devices;
        }
        if let Some(capacity) = number("ASCEND_SIM_CAPACITY") {
            config.capacity = capacity;
        }
        config.visible_devices = std::env::var("ASCEND_RT_VISIBLE_DEVICES").ok().map(|text| visible(&text));
        Sim::new(config)
    })
}

/// The devices a list names, up to the first entry that is no number.
fn visible(text: &str) -> Vec<u32> {
    text.split(',').map_while(|entry| entry.trim().parse().ok()).collect()
}

fn code(answer: Result<(), i32>) -> AclError {
    answer.err().unwrap_or(codes::SUCCESS)
}

/// Writes what was answered to `out`, or returns the code.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn give<T>(out: *mut T, ask: impl FnOnce() -> Result<T, i32>) -> AclError {
    if out.is_null() {
        return codes::INVALID_PARAM;
    }
    match ask() {
        Ok(value) => {
            // SAFETY: `out` is not null, so it is valid for a write.
            unsafe { out.write(value) };
            codes::SUCCESS
        }
        Err(code) => code,
    }
}

fn address(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// # Safety
/// `prop` is null or valid for a read.
unsafe fn read_prop(prop: *const PhysicalMemProp) -> Option<PhysicalProp> {
    // SAFETY: the caller's promise.
    let prop = unsafe { prop.as_ref() }?;
    Some(PhysicalProp {
        handle_type: prop.handle_type,
        allocation_type: prop.allocation_type,
        attr: prop.attr,
        location: Location { id: prop.location.id, kind: prop.location.kind },
        reserve: prop.reserve,
    })
}

/// Initialises the library; the configuration file is not read.
///
/// # Safety
/// Any pointer will do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclInit(_config: *const c_char) -> AclError {
    code(sim().init())
}

/// Tears everything down.
#[unsafe(no_mangle)]
pub extern "C" fn aclFinalize() -> AclError {
    code(sim().finalize())
}

/// What the calling thread's failed calls had to say; valid until the thread asks again.
#[unsafe(no_mangle)]
pub extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }
    let Some(text) = sim().recent_error().and_then(|text| CString::new(text).ok()) else {
        return ptr::null();
    };
    let last = LAST.try_with(|last| {
        *last.borrow_mut() = text;
        last.borrow().as_ptr()
    });
    last.unwrap_or(ptr::null())
}

/// Version of the interface.
///
/// # Safety
/// Each pointer is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> AclError {
    if major.is_null() || minor.is_null() || patch.is_null() {
        return codes::INVALID_PARAM;
    }
    match sim().version() {
        Ok(version) => {
            // SAFETY: none of them is null, so all are valid for a write.
            unsafe {
                major.write(version.0);
                minor.write(version.1);
                patch.write(version.2);
            }
            codes::SUCCESS
        }
        Err(code) => code,
    }
}

/// Name of the part.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    static NAME: OnceLock<CString> = OnceLock::new();
    let name = NAME
        .get_or_init(|| sim().soc_name().ok().and_then(|name| CString::new(name).ok()).unwrap_or_default());
    let name: &CStr = name;
    if name.is_empty() { ptr::null() } else { name.as_ptr() }
}

/// How many devices the process sees.
///
/// # Safety
/// `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceCount(count: *mut u32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { give(count, || sim().device_count()) }
}

/// Makes a device current in the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetDevice(device: i32) -> AclError {
    code(sim().set_device(device))
}

/// Drops one reference of a device.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtResetDevice(device: i32) -> AclError {
    code(sim().reset_device(device))
}

/// The current device of the calling thread.
///
/// # Safety
/// `device` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDevice(device: *mut i32) -> AclError {
    // SAFETY: the caller's promise.
    unsafe { give(device, || sim().get_device()) }
}

/// Free and total bytes of the current device.
///
/// # Safety
/// Each pointer is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetMemInfo(attr: u32, free: *mut usize, total: *mut usize) -> AclError {
    if free.is_null() || total.is_null() {
        return codes::INVALID_PARAM;
    }
    match sim().mem_info(attr) {
        Ok((left, all)) => {
            // SAFETY: neither is null, so both are valid for a write.
            unsafe {
                free.write(left as usize);
                total.write(all as usize);
            }
            codes::SUCCESS
        }
        Err(code) => code,
    }
}

/// Reserves addresses.
///
/// # Safety
/// `start` is null or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtReserveMemAddress(
    start: *mut *mut c_void,
    size: usize,
    alignment: usize,
    expect: *mut c_void,
    flags: u64,
) -> AclError {
    if start.is_null() {
        return codes::INVALID_PARAM;
    }
    // SAFETY: `start` is not null, so it is valid for a read.
    let mut found = address(unsafe { start.read() });
    let answer = sim().reserve_into(&mut found, size as u64, alignment as u64, address(expect), flags);
    // SAFETY: as above, for a write; a refused expectation is written too.
    unsafe { start.write(pointer(found)) };
    code(answer)
}

/// Gives a reservation back.
///
/// # Safety
/// Any pointer will do; addresses of the reservation must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtReleaseMemAddress(start: *mut c_void) -> AclError {
    code(sim().release(address(start)))
}

/// Allocates a chunk of physical memory.
///
/// # Safety
/// `handle` is null or valid for a write, `prop` is null or valid for a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocPhysical(
    handle: *mut *mut c_void,
    size: usize,
    prop: *const PhysicalMemProp,
    flags: u64,
) -> AclError {
    // SAFETY: the caller's promise.
    let Some(prop) = (unsafe { read_prop(prop) }) else { return codes::INVALID_PARAM };
    // SAFETY: the caller's promise.
    unsafe { give(handle, || sim().malloc_physical(size as u64, &prop, flags).map(pointer)) }
}

/// Drops one reference of a chunk.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFreePhysical(handle: *mut c_void) -> AclError {
    code(sim().free_physical(address(handle)))
}

/// Maps a chunk.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMapMem(
    start: *mut c_void,
    size: usize,
    offset: usize,
    handle: *mut c_void,
    flags: u64,
) -> AclError {
    code(sim().map(address(start), size as u64, offset as u64, address(handle), flags))
}

/// Removes a mapping.
///
/// # Safety
/// Any pointer will do; addresses of the mapping must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtUnmapMem(start: *mut c_void) -> AclError {
    code(sim().unmap(address(start)))
}

/// The granule of an attribute.
///
/// # Safety
/// `prop` is null or valid for a read, `granule` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemGetAllocationGranularity(
    prop: *const PhysicalMemProp,
    option: u32,
    granule: *mut usize,
) -> AclError {
    // SAFETY: the caller's promise.
    let Some(prop) = (unsafe { read_prop(prop) }) else { return codes::INVALID_PARAM };
    // SAFETY: the caller's promise.
    unsafe { give(granule, || sim().granularity(&prop, option).map(|bytes| bytes as usize)) }
}

/// Grants access to one mapping.
///
/// # Safety
/// `grants` is null or valid for reads of `count` descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemSetAccess(
    start: *mut c_void,
    size: usize,
    grants: *const MemAccessDesc,
    count: usize,
) -> AclError {
    let grants = if grants.is_null() || count == 0 {
        &[]
    } else {
        // More than two descriptors are answered as two are, so that a wild count reads no further.
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(grants, count.min(2)) }
    };
    let translate = |grant: &MemAccessDesc| AccessDescriptor {
        flags: u64::from(grant.flags),
        location: Location { id: grant.location.id, kind: grant.location.kind },
    };
    let grants: Vec<AccessDescriptor> = grants.iter().map(translate).collect();
    code(sim().set_access(address(start), size as u64, &grants))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reserved_mapped_and_given_back() {
        let (mut start, mut handle) = (ptr::null_mut(), ptr::null_mut());
        let location = MemLocation { id: 0, kind: codes::location::DEVICE };
        let prop = PhysicalMemProp {
            handle_type: 0,
            allocation_type: 0,
            attr: codes::attr::HBM_HUGE,
            location,
            reserve: 0,
        };
        let mut granule = 0;
        // SAFETY: every pointer is null or to a live variable of the right type.
        unsafe {
            assert_eq!(aclInit(ptr::null()), 0);
            assert_eq!(aclrtMemGetAllocationGranularity(&prop, 0, &mut granule), 0);
            assert_eq!(granule, 2 << 20);
            assert_eq!(aclrtReserveMemAddress(ptr::null_mut(), granule, 0, ptr::null_mut(), 0), 100_000);
            assert_eq!(aclrtReserveMemAddress(&mut start, granule, 0, ptr::null_mut(), 0), 0);
            assert_eq!(aclrtMallocPhysical(&mut handle, granule, ptr::null(), 0), 100_000);
            assert_eq!(aclrtMallocPhysical(&mut handle, granule, &prop, 0), 0);
            assert_eq!(aclrtMapMem(start, granule, 0, handle, 0), 0);
            let grant = MemAccessDesc { flags: 3, location, rsv: [0; 12] };
            assert_eq!(aclrtMemSetAccess(start, granule, &grant, 1), 0);
            assert_eq!(aclrtMemSetAccess(start, granule, ptr::null(), 1), 107_000);
            assert_eq!(aclrtReleaseMemAddress(start), 507_899);
            let text = CStr::from_ptr(aclGetRecentErrMsg()).to_str().unwrap();
            assert!(text.starts_with("aclrtReleaseMemAddress"), "{text}");
            assert!(aclGetRecentErrMsg().is_null());
            assert_eq!(aclrtUnmapMem(start), 0);
            assert_eq!(aclrtFreePhysical(handle), 0);
            assert_eq!(aclrtReleaseMemAddress(start), 0);
        }
    }

    #[test]
    fn devices_and_versions_are_told() {
        let (mut major, mut minor, mut patch, mut count) = (0, 0, 0, 0);
        let (mut free, mut total) = (0, 0);
        // SAFETY: every pointer is null or to a live variable of the right type.
        unsafe {
            assert_eq!(aclrtGetVersion(&mut major, &mut minor, &mut patch), 0);
            assert_eq!((major, minor, patch), (1, 17, 0));
            assert_eq!(aclrtGetVersion(&mut major, ptr::null_mut(), &mut patch), 100_000);
            assert_eq!(aclrtGetDeviceCount(&mut count), 0);
            assert_eq!(aclrtGetDeviceCount(ptr::null_mut()), 100_000);
            assert!(count >= 1);
            assert_eq!(aclrtSetDevice(0), 0);
            assert_eq!(aclrtGetMemInfo(1, &mut free, &mut total), 0);
            assert!(free <= total && total > 0);
            assert!(!aclrtGetSocName().is_null());
        }
        assert_eq!(visible("3, 5,x,7"), [3, 5]);
    }
}
