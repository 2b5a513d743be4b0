//! Memory information, blocks that cannot move, copies and fills.

use core::ffi::c_void;

use crate::acl::sys;
use crate::acl::table::Acl;
use crate::driver::DriverResult;

impl Acl {
    /// Free and total bytes of a kind of memory of this thread's device.
    pub fn memory_info(&self, kind: sys::aclrtMemAttr) -> DriverResult<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        let arguments = format_args!("attr={kind}");
        self.call("aclrtGetMemInfo", self.functions.aclrtGetMemInfo, arguments, |function| {
            // SAFETY: two places to write to; any kind is checked.
            unsafe { function(kind, &mut free, &mut total) }
        })?;
        Ok((free, total))
    }

    /// A block of `bytes`, rounded up to 32 and with 32 more on parts that want them.
    pub fn malloc(&self, bytes: usize, policy: sys::aclrtMemMallocPolicy) -> DriverResult<*mut c_void> {
        let mut address = core::ptr::null_mut();
        let arguments = format_args!("size={bytes}, policy={policy}");
        self.call("aclrtMalloc", self.functions.aclrtMalloc, arguments, |function| {
            // SAFETY: a place to write to; any size and policy is checked.
            unsafe { function(&mut address, bytes, policy) }
        })?;
        Ok(address)
    }

    /// A block of `bytes`, rounded up to 32.
    pub fn malloc_align_32(
        &self,
        bytes: usize,
        policy: sys::aclrtMemMallocPolicy,
    ) -> DriverResult<*mut c_void> {
        let mut address = core::ptr::null_mut();
        let arguments = format_args!("size={bytes}, policy={policy}");
        self.call("aclrtMallocAlign32", self.functions.aclrtMallocAlign32, arguments, |function| {
            // SAFETY: a place to write to; any size and policy is checked.
            unsafe { function(&mut address, bytes, policy) }
        })?;
        Ok(address)
    }

    /// A block of `bytes` with attributes.
    pub fn malloc_with(
        &self,
        bytes: usize,
        policy: sys::aclrtMemMallocPolicy,
        attributes: &mut [sys::aclrtMallocAttribute],
    ) -> DriverResult<*mut c_void> {
        let mut address = core::ptr::null_mut();
        let arguments = format_args!("size={bytes}, policy={policy}, numAttrs={}", attributes.len());
        let mut config = config_of(attributes);
        self.call("aclrtMallocWithCfg", self.functions.aclrtMallocWithCfg, arguments, |function| {
            // SAFETY: a place to write to; the attributes outlive the call.
            unsafe { function(&mut address, bytes, policy, &mut config) }
        })?;
        Ok(address)
    }

    /// Gives a block back at once, without waiting for work that uses it.
    ///
    /// # Safety
    ///
    /// Nobody uses the block any more, no device either.
    pub unsafe fn free(&self, address: *mut c_void) -> DriverResult<()> {
        let arguments = format_args!("devPtr={address:?}");
        self.call("aclrtFree", self.functions.aclrtFree, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address) }
        })
    }

    /// Waits for the device, then gives a block back.
    ///
    /// # Safety
    ///
    /// Nobody uses the block once the device is idle.
    pub unsafe fn free_with_device_sync(&self, address: *mut c_void) -> DriverResult<()> {
        let arguments = format_args!("devPtr={address:?}");
        self.call("aclrtFreeWithDevSync", self.functions.aclrtFreeWithDevSync, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(address) }
        })
    }

    /// Where a pointer points.
    ///
    /// # Safety
    ///
    /// The pointer is no device address that a host registration gave.
    pub unsafe fn pointer_attributes(&self, pointer: *const c_void) -> DriverResult<sys::aclrtPtrAttributes> {
        let location = sys::aclrtMemLocation { id: 0, type_: sys::ACL_MEM_LOCATION_TYPE_UNREGISTERED };
        let mut attributes = sys::aclrtPtrAttributes { location, pageSize: 0, rsv: [0; 4] };
        let arguments = format_args!("ptr={pointer:?}");
        let function = self.functions.aclrtPointerGetAttributes;
        self.call("aclrtPointerGetAttributes", function, arguments, |function| {
            // SAFETY: as this function's, and a place to write to.
            unsafe { function(pointer, &mut attributes) }
        })?;
        Ok(attributes)
    }

    /// Start and bytes of the block or mapping around an address.
    // The library looks the address up and does not follow it.
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn address_range(&self, address: *mut c_void) -> DriverResult<(*mut c_void, usize)> {
        let (mut start, mut bytes) = (core::ptr::null_mut(), 0);
        let arguments = format_args!("ptr={address:?}");
        self.call(
            "aclrtMemGetAddressRange",
            self.functions.aclrtMemGetAddressRange,
            arguments,
            |function| {
                // SAFETY: two places to write to; the address is looked up, not used.
                unsafe { function(address, &mut start, &mut bytes) }
            },
        )?;
        Ok((start, bytes))
    }

    /// Copies at once, without waiting for any stream.
    ///
    /// # Safety
    ///
    /// Both ranges are valid for `bytes`, and no queued work touches them.
    pub unsafe fn copy(
        &self,
        target: *mut c_void,
        source: *const c_void,
        bytes: usize,
        kind: sys::aclrtMemcpyKind,
    ) -> DriverResult<()> {
        let arguments = format_args!("dst={target:?}, src={source:?}, count={bytes}, kind={kind}");
        self.call("aclrtMemcpy", self.functions.aclrtMemcpy, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(target, bytes, source, bytes, kind) }
        })
    }

    /// Queues a copy.
    ///
    /// # Safety
    ///
    /// Both ranges stay valid for `bytes` until the copy is done; the stream is null or live.
    pub unsafe fn copy_async(
        &self,
        target: *mut c_void,
        source: *const c_void,
        bytes: usize,
        kind: sys::aclrtMemcpyKind,
        stream: sys::aclrtStream,
    ) -> DriverResult<()> {
        let arguments =
            format_args!("dst={target:?}, src={source:?}, count={bytes}, kind={kind}, stream={stream:?}");
        self.call("aclrtMemcpyAsync", self.functions.aclrtMemcpyAsync, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(target, bytes, source, bytes, kind, stream) }
        })
    }

    /// Fills with a byte at once.
    ///
    /// # Safety
    ///
    /// The range is valid for `bytes`, and no queued work touches it.
    pub unsafe fn fill(&self, target: *mut c_void, byte: u8, bytes: usize) -> DriverResult<()> {
        let arguments = format_args!("devPtr={target:?}, value={byte}, count={bytes}");
        self.call("aclrtMemset", self.functions.aclrtMemset, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(target, bytes, i32::from(byte), bytes) }
        })
    }

    /// Queues a fill.
    ///
    /// # Safety
    ///
    /// The range stays valid for `bytes` until the fill is done; the stream is null or live.
    pub unsafe fn fill_async(
        &self,
        target: *mut c_void,
        byte: u8,
        bytes: usize,
        stream: sys::aclrtStream,
    ) -> DriverResult<()> {
        let arguments = format_args!("devPtr={target:?}, value={byte}, count={bytes}, stream={stream:?}");
        self.call("aclrtMemsetAsync", self.functions.aclrtMemsetAsync, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(target, bytes, i32::from(byte), bytes, stream) }
        })
    }
}

/// The C form of a list of attributes.
pub(super) fn config_of(attributes: &mut [sys::aclrtMallocAttribute]) -> sys::aclrtMallocConfig {
    let first = if attributes.is_empty() { core::ptr::null_mut() } else { attributes.as_mut_ptr() };
    sys::aclrtMallocConfig { attrs: first, numAttrs: attributes.len() }
}
