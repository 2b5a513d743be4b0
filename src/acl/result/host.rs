//! Page-locked host memory.

use core::ffi::c_void;

use super::memory::config_of;
use crate::acl::sys;
use crate::acl::table::Acl;
use crate::driver::DriverResult;

impl Acl {
    /// Page-locked host memory.
    pub fn malloc_host(&self, bytes: usize) -> DriverResult<*mut c_void> {
        let mut address = core::ptr::null_mut();
        let arguments = format_args!("size={bytes}");
        self.call("aclrtMallocHost", self.functions.aclrtMallocHost, arguments, |function| {
            // SAFETY: a place to write to; any size is checked.
            unsafe { function(&mut address, bytes) }
        })?;
        Ok(address)
    }

    /// Page-locked host memory with attributes.
    pub fn malloc_host_with(
        &self,
        bytes: u64,
        attributes: &mut [sys::aclrtMallocAttribute],
    ) -> DriverResult<*mut c_void> {
        let mut address = core::ptr::null_mut();
        let arguments = format_args!("size={bytes}, numAttrs={}", attributes.len());
        let mut config = config_of(attributes);
        self.call("aclrtMallocHostWithCfg", self.functions.aclrtMallocHostWithCfg, arguments, |function| {
            // SAFETY: a place to write to; the attributes outlive the call.
            unsafe { function(&mut address, bytes, &mut config) }
        })?;
        Ok(address)
    }

    /// Gives page-locked memory back at once.
    ///
    /// # Safety
    ///
    /// Nobody uses the memory any more, no device either.
    pub unsafe fn free_host(&self, address: *mut c_void) -> DriverResult<()> {
        let arguments = format_args!("hostPtr={address:?}");
        self.call("aclrtFreeHost", self.functions.aclrtFreeHost, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address) }
        })
    }

    /// Waits for the device, then gives page-locked memory back.
    ///
    /// # Safety
    ///
    /// Nobody uses the memory once the device is idle.
    pub unsafe fn free_host_with_device_sync(&self, address: *mut c_void) -> DriverResult<()> {
        let arguments = format_args!("hostPtr={address:?}");
        let function = self.functions.aclrtFreeHostWithDevSync;
        self.call("aclrtFreeHostWithDevSync", function, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address) }
        })
    }

    /// Makes host memory reachable for this thread's device; answers the address kernels use.
    ///
    /// # Safety
    ///
    /// The range is valid for `bytes` until it is unregistered, and starts at a multiple of 4 KiB.
    pub unsafe fn register_host(&self, address: *mut c_void, bytes: u64) -> DriverResult<*mut c_void> {
        let mut device = core::ptr::null_mut();
        let kind = sys::ACL_HOST_REGISTER_MAPPED;
        let arguments = format_args!("ptr={address:?}, size={bytes}, type={kind}");
        self.call("aclrtHostRegister", self.functions.aclrtHostRegister, arguments, |function| {
            // SAFETY: as this function's, and a place to write to.
            unsafe { function(address, bytes, kind, &mut device) }
        })?;
        Ok(device)
    }

    /// Registers host memory; flags are `ACL_HOST_REG_*`.
    ///
    /// # Safety
    ///
    /// As [`register_host`](Self::register_host).
    pub unsafe fn register_host_v2(&self, address: *mut c_void, bytes: u64, flags: u32) -> DriverResult<()> {
        let arguments = format_args!("ptr={address:?}, size={bytes}, flag={flags:#x}");
        self.call("aclrtHostRegisterV2", self.functions.aclrtHostRegisterV2, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address, bytes, flags) }
        })
    }

    /// Ends a registration.
    ///
    /// # Safety
    ///
    /// No device uses the memory any more.
    pub unsafe fn unregister_host(&self, address: *mut c_void) -> DriverResult<()> {
        let arguments = format_args!("ptr={address:?}");
        self.call("aclrtHostUnregister", self.functions.aclrtHostUnregister, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address) }
        })
    }

    /// The address kernels use for registered host memory.
    // The library looks the address up and does not follow it.
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn host_device_pointer(&self, address: *mut c_void) -> DriverResult<*mut c_void> {
        let mut device = core::ptr::null_mut();
        let arguments = format_args!("pHost={address:?}, flag=0");
        let function = self.functions.aclrtHostGetDevicePointer;
        self.call("aclrtHostGetDevicePointer", function, arguments, |function| {
            // SAFETY: a place to write to; the address is looked up, not used.
            unsafe { function(address, &mut device, 0) }
        })?;
        Ok(device)
    }

    /// Whether a part of a device (`ACL_RT_HAC_TYPE_*`) can reach registered host memory
    /// (`ACL_RT_HOST_MEM_MAP_*`).
    pub fn host_map_capability(
        &self,
        device: u32,
        part: sys::aclrtHacType,
    ) -> DriverResult<sys::aclrtHostMemMapCapability> {
        let mut answer = sys::ACL_RT_HOST_MEM_MAP_NOT_SUPPORTED;
        let arguments = format_args!("deviceId={device}, hacType={part}");
        let function = self.functions.aclrtHostMemMapCapabilities;
        self.call("aclrtHostMemMapCapabilities", function, arguments, |function| {
            // SAFETY: a place to write to; numbers are checked.
            unsafe { function(device, part, &mut answer) }
        })?;
        Ok(answer)
    }
}
