//! Reservations, physical chunks, mappings, and sharing them with other processes.

use core::ffi::c_void;

use crate::acl::sys;
use crate::acl::table::Acl;
use crate::driver::DriverResult;

impl Acl {
    /// An address range; alignment and wish are left to the library.
    pub fn reserve(&self, bytes: usize, flags: u64) -> DriverResult<*mut c_void> {
        let mut address = core::ptr::null_mut();
        let arguments = format_args!("size={bytes}, alignment=0, expectPtr=0x0, flags={flags}");
        self.call("aclrtReserveMemAddress", self.functions.aclrtReserveMemAddress, arguments, |function| {
            // SAFETY: a place to write to; any size and flags are checked.
            unsafe { function(&mut address, bytes, 0, core::ptr::null_mut(), flags) }
        })?;
        Ok(address)
    }

    /// Gives an address range back.
    ///
    /// # Safety
    ///
    /// The range comes from [`reserve`](Self::reserve), and nobody uses it any more.
    pub unsafe fn release(&self, address: *mut c_void) -> DriverResult<()> {
        let arguments = format_args!("virPtr={address:?}");
        self.call("aclrtReleaseMemAddress", self.functions.aclrtReleaseMemAddress, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address) }
        })
    }

    /// A physical chunk with one reference.
    pub fn malloc_physical(
        &self,
        bytes: usize,
        property: &sys::aclrtPhysicalMemProp,
    ) -> DriverResult<sys::aclrtDrvMemHandle> {
        let mut handle = core::ptr::null_mut();
        let (kind, place) = (property.memAttr, property.location);
        let arguments = format_args!("size={bytes}, memAttr={kind}, location={}:{}", place.type_, place.id);
        self.call("aclrtMallocPhysical", self.functions.aclrtMallocPhysical, arguments, |function| {
            // SAFETY: a place to write to, a property that outlives the call; all is checked.
            unsafe { function(&mut handle, bytes, property, 0) }
        })?;
        Ok(handle)
    }

    /// Drops one reference of a chunk; every mapping holds one more.
    ///
    /// # Safety
    ///
    /// The caller holds that reference.
    pub unsafe fn free_physical(&self, handle: sys::aclrtDrvMemHandle) -> DriverResult<()> {
        let arguments = format_args!("handle={handle:?}");
        self.call("aclrtFreePhysical", self.functions.aclrtFreePhysical, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(handle) }
        })
    }

    /// Puts a whole chunk of `bytes` at an address of a reservation.
    ///
    /// # Safety
    ///
    /// The handle is live.
    pub unsafe fn map(
        &self,
        address: *mut c_void,
        bytes: usize,
        handle: sys::aclrtDrvMemHandle,
    ) -> DriverResult<()> {
        let arguments = format_args!("virPtr={address:?}, size={bytes}, offset=0, handle={handle:?}");
        self.call("aclrtMapMem", self.functions.aclrtMapMem, arguments, |function| {
            // SAFETY: as this function's; the range is checked.
            unsafe { function(address, bytes, 0, handle, 0) }
        })
    }

    /// Removes the mapping that starts at the address, without waiting for work that uses it.
    ///
    /// # Safety
    ///
    /// Nobody uses the range any more, no device either.
    pub unsafe fn unmap(&self, address: *mut c_void) -> DriverResult<()> {
        let arguments = format_args!("virPtr={address:?}");
        self.call("aclrtUnmapMem", self.functions.aclrtUnmapMem, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address) }
        })
    }

    /// The granule of chunks with this property, the smallest that works.
    pub fn granularity(&self, property: &sys::aclrtPhysicalMemProp) -> DriverResult<usize> {
        let mut bytes = 0;
        let mut property = *property;
        let option = sys::ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM;
        let (kind, place) = (property.memAttr, property.location);
        let arguments =
            format_args!("memAttr={kind}, location={}:{}, option={option}", place.type_, place.id);
        let function = self.functions.aclrtMemGetAllocationGranularity;
        self.call("aclrtMemGetAllocationGranularity", function, arguments, |function| {
            // SAFETY: a property that outlives the call and a place to write to.
            unsafe { function(&mut property, option, &mut bytes) }
        })?;
        Ok(bytes)
    }

    /// Reading and writing for one location, on exactly one mapping.
    // The library looks the address up and does not follow it.
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn set_access(
        &self,
        address: *mut c_void,
        bytes: usize,
        location: sys::aclrtMemLocation,
    ) -> DriverResult<()> {
        let flags = sys::ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
        let mut description = sys::aclrtMemAccessDesc { flags, location, rsv: [0; 12] };
        let (kind, number) = (location.type_, location.id);
        let arguments = format_args!(
            "virPtr={address:?}, size={bytes}, flags={flags}, location={kind}:{number}, count=1"
        );
        self.call("aclrtMemSetAccess", self.functions.aclrtMemSetAccess, arguments, |function| {
            // SAFETY: one description that outlives the call; the range is checked.
            unsafe { function(address, bytes, &mut description, 1) }
        })
    }

    /// Whether the library has the call behind [`set_access`](Self::set_access).
    #[must_use]
    pub fn has_set_access(&self) -> bool {
        self.functions.aclrtMemSetAccess.is_some()
    }

    /// The access a location has to the mapping around the address
    /// (`ACL_RT_MEM_ACCESS_FLAGS_*`).
    // The library looks the address up and does not follow it.
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn access(&self, address: *mut c_void, location: sys::aclrtMemLocation) -> DriverResult<u64> {
        let (mut flags, mut place) = (0, location);
        let arguments = format_args!("virPtr={address:?}, location={}:{}", location.type_, location.id);
        self.call("aclrtMemGetAccess", self.functions.aclrtMemGetAccess, arguments, |function| {
            // SAFETY: a location that outlives the call and a place to write to.
            unsafe { function(address, &mut place, &mut flags) }
        })?;
        Ok(flags)
    }

    /// The chunk mapped at the address, with one more reference.
    // The library looks the address up and does not follow it.
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn retain_handle(&self, address: *mut c_void) -> DriverResult<sys::aclrtDrvMemHandle> {
        let mut handle = core::ptr::null_mut();
        let arguments = format_args!("virPtr={address:?}");
        let function = self.functions.aclrtMemRetainAllocationHandle;
        self.call("aclrtMemRetainAllocationHandle", function, arguments, |function| {
            // SAFETY: a place to write to; the address is looked up.
            unsafe { function(address, &mut handle) }
        })?;
        Ok(handle)
    }

    /// The property a chunk was made with.
    ///
    /// # Safety
    ///
    /// The handle is live.
    pub unsafe fn properties(
        &self,
        handle: sys::aclrtDrvMemHandle,
    ) -> DriverResult<sys::aclrtPhysicalMemProp> {
        let location = sys::aclrtMemLocation { id: 0, type_: sys::ACL_MEM_LOCATION_TYPE_DEVICE };
        let mut property = sys::aclrtPhysicalMemProp {
            handleType: sys::ACL_MEM_HANDLE_TYPE_NONE,
            allocationType: sys::ACL_MEM_ALLOCATION_TYPE_PINNED,
            memAttr: sys::ACL_HBM_MEM_HUGE,
            location,
            reserve: 0,
        };
        let arguments = format_args!("handle={handle:?}");
        let function = self.functions.aclrtMemGetAllocationPropertiesFromHandle;
        self.call("aclrtMemGetAllocationPropertiesFromHandle", function, arguments, |function| {
            // SAFETY: as this function's, and a place to write to.
            unsafe { function(handle, &mut property) }
        })?;
        Ok(property)
    }

    /// A number by which another process can import the chunk.
    ///
    /// # Safety
    ///
    /// The handle is live.
    pub unsafe fn export(&self, handle: sys::aclrtDrvMemHandle, flags: u64) -> DriverResult<u64> {
        let mut shared = 0;
        let arguments = format_args!("handle={handle:?}, handleType=0, flags={flags}");
        let function = self.functions.aclrtMemExportToShareableHandle;
        self.call("aclrtMemExportToShareableHandle", function, arguments, |function| {
            // SAFETY: as this function's, and a place to write to.
            unsafe { function(handle, sys::ACL_MEM_HANDLE_TYPE_NONE, flags, &mut shared) }
        })?;
        Ok(shared)
    }

    /// Another process's chunk, with one reference.
    pub fn import(&self, shared: u64, device: i32) -> DriverResult<sys::aclrtDrvMemHandle> {
        let mut handle = core::ptr::null_mut();
        let arguments = format_args!("shareableHandle={shared:#x}, deviceId={device}");
        let function = self.functions.aclrtMemImportFromShareableHandle;
        self.call("aclrtMemImportFromShareableHandle", function, arguments, |function| {
            // SAFETY: a place to write to; the number is looked up.
            unsafe { function(shared, device, &mut handle) }
        })?;
        Ok(handle)
    }

    /// The processes that may import, as the physical host numbers them.
    pub fn allow_import(&self, shared: u64, processes: &mut [i32]) -> DriverResult<()> {
        let arguments = format_args!("shareableHandle={shared:#x}, pidNum={}", processes.len());
        let function = self.functions.aclrtMemSetPidToShareableHandle;
        self.call("aclrtMemSetPidToShareableHandle", function, arguments, |function| {
            // SAFETY: the list outlives the call.
            unsafe { function(shared, processes.as_mut_ptr(), processes.len()) }
        })
    }

    /// As [`export`](Self::export), for the servers that share memory over a fabric.
    ///
    /// # Safety
    ///
    /// The handle is live.
    pub unsafe fn export_to_fabric(
        &self,
        handle: sys::aclrtDrvMemHandle,
        flags: u64,
    ) -> DriverResult<sys::aclrtMemFabricHandle> {
        // SAFETY: as this function's.
        unsafe { self.export_as(sys::ACL_MEM_SHARE_HANDLE_TYPE_FABRIC, handle, flags) }
    }

    /// As [`import`](Self::import), on this thread's device.
    pub fn import_from_fabric(
        &self,
        shared: &sys::aclrtMemFabricHandle,
    ) -> DriverResult<sys::aclrtDrvMemHandle> {
        self.import_as(sys::ACL_MEM_SHARE_HANDLE_TYPE_FABRIC, shared)
    }

    /// As [`allow_import`](Self::allow_import).
    pub fn allow_import_from_fabric(
        &self,
        shared: &sys::aclrtMemFabricHandle,
        processes: &mut [i32],
    ) -> DriverResult<()> {
        self.allow_import_as(sys::ACL_MEM_SHARE_HANDLE_TYPE_FABRIC, shared, processes)
    }

    /// As [`export`](Self::export), with the call of the second version; `kind` is one of
    /// `ACL_MEM_SHARE_HANDLE_TYPE_*`. The default kind uses the first 8 bytes of the answer.
    ///
    /// # Safety
    ///
    /// The handle is live.
    pub unsafe fn export_as(
        &self,
        kind: sys::aclrtMemSharedHandleType,
        handle: sys::aclrtDrvMemHandle,
        flags: u64,
    ) -> DriverResult<sys::aclrtMemFabricHandle> {
        let mut shared = sys::aclrtMemFabricHandle { data: [0; 128] };
        let arguments = format_args!("handle={handle:?}, flags={flags}, shareType={kind}");
        let function = self.functions.aclrtMemExportToShareableHandleV2;
        self.call("aclrtMemExportToShareableHandleV2", function, arguments, |function| {
            // SAFETY: as this function's, and a place large enough for any kind.
            unsafe { function(handle, flags, kind, (&raw mut shared).cast()) }
        })?;
        Ok(shared)
    }

    /// As [`import`](Self::import) on this thread's device, with the call of the second version.
    pub fn import_as(
        &self,
        kind: sys::aclrtMemSharedHandleType,
        shared: &sys::aclrtMemFabricHandle,
    ) -> DriverResult<sys::aclrtDrvMemHandle> {
        let (mut handle, mut shared) = (core::ptr::null_mut(), *shared);
        let arguments = format_args!("shareType={kind}, flags=0");
        let function = self.functions.aclrtMemImportFromShareableHandleV2;
        self.call("aclrtMemImportFromShareableHandleV2", function, arguments, |function| {
            // SAFETY: a name as large as any kind asks for, and a place to write to.
            unsafe { function((&raw mut shared).cast(), kind, 0, &mut handle) }
        })?;
        Ok(handle)
    }

    /// As [`allow_import`](Self::allow_import), with the call of the second version.
    pub fn allow_import_as(
        &self,
        kind: sys::aclrtMemSharedHandleType,
        shared: &sys::aclrtMemFabricHandle,
        processes: &mut [i32],
    ) -> DriverResult<()> {
        let mut shared = *shared;
        let arguments = format_args!("shareType={kind}, pidNum={}", processes.len());
        let function = self.functions.aclrtMemSetPidToShareableHandleV2;
        self.call("aclrtMemSetPidToShareableHandleV2", function, arguments, |function| {
            // SAFETY: a name as large as any kind asks for; the list outlives the call.
            unsafe { function((&raw mut shared).cast(), kind, processes.as_mut_ptr(), processes.len()) }
        })
    }
}
