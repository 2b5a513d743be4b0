//! Allocators that others offer to ACL: one object and its functions for a stream.

use crate::acl::sys;
use crate::acl::table::Acl;
use crate::driver::{CODE_NOT_SUPPORTED, DriverResult};

/// An allocator as ACL takes it.
#[derive(Clone, Copy, Debug)]
pub struct AllocatorFunctions {
    /// What the functions get to know for whom they work. Not null.
    pub object: sys::aclrtAllocator,
    /// Hands out a block.
    pub alloc: sys::aclrtAllocatorAllocFunc,
    /// Takes a block back.
    pub free: sys::aclrtAllocatorFreeFunc,
    /// Hands out a block, at an address if that can be.
    pub advise: sys::aclrtAllocatorAllocAdviseFunc,
    /// The address of a block.
    pub address: sys::aclrtAllocatorGetAddrFromBlockFunc,
}

impl Acl {
    /// Makes a stream take the workspaces of operators and graphs from an allocator. Replaces the one it had.
    ///
    /// # Safety
    ///
    /// The stream is live and not the default one. Until it is unregistered the functions may be called with the
    /// object from any thread.
    pub unsafe fn register_allocator(
        &self,
        stream: sys::aclrtStream,
        allocator: &AllocatorFunctions,
    ) -> DriverResult<()> {
        let descriptor = self.create_allocator_descriptor()?;
        let set = self.fill_allocator_descriptor(descriptor, allocator);
        let arguments = format_args!("stream={stream:?}, allocatorDesc={descriptor:?}");
        let registered = set.and_then(|()| {
            self.call(
                "aclrtAllocatorRegister",
                self.functions.aclrtAllocatorRegister,
                arguments,
                |function| {
                    // SAFETY: as this function's; the descriptor was just made.
                    unsafe { function(stream, descriptor) }
                },
            )
        });
        // The library has copied it.
        let arguments = format_args!("allocatorDesc={descriptor:?}");
        let destroy = self.functions.aclrtAllocatorDestroyDesc;
        let destroyed = self.call("aclrtAllocatorDestroyDesc", destroy, arguments, |function| {
            // SAFETY: the descriptor was made above and is not used any more.
            unsafe { function(descriptor) }
        });
        registered.and(destroyed)
    }

    /// Ends that. A stream without an allocator is no error.
    ///
    /// # Safety
    ///
    /// The stream is live, or was one.
    pub unsafe fn unregister_allocator(&self, stream: sys::aclrtStream) -> DriverResult<()> {
        let arguments = format_args!("stream={stream:?}");
        let function = self.functions.aclrtAllocatorUnregister;
        self.call("aclrtAllocatorUnregister", function, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(stream) }
        })
    }

    /// The object of the allocator that a stream has; an error when it has none.
    ///
    /// # Safety
    ///
    /// The stream is live, or was one.
    pub unsafe fn allocator_object(&self, stream: sys::aclrtStream) -> DriverResult<sys::aclrtAllocator> {
        let (mut descriptor, mut object) = (core::ptr::null_mut(), core::ptr::null_mut());
        let (mut alloc, mut free, mut advise, mut address) = (None, None, None, None);
        let arguments = format_args!("stream={stream:?}");
        let function = self.functions.aclrtAllocatorGetByStream;
        self.call("aclrtAllocatorGetByStream", function, arguments, |function| {
            let functions = (&mut alloc, &mut free, &mut advise, &mut address);
            // SAFETY: as this function's, and six places to write to.
            unsafe {
                function(
                    stream,
                    &mut descriptor,
                    &mut object,
                    functions.0,
                    functions.1,
                    functions.2,
                    functions.3,
                )
            }
        })?;
        Ok(object)
    }

    fn create_allocator_descriptor(&self) -> DriverResult<sys::aclrtAllocatorDesc> {
        let mut descriptor = core::ptr::null_mut();
        let function = self.functions.aclrtAllocatorCreateDesc;
        self.call("aclrtAllocatorCreateDesc", function, format_args!(""), |function| {
            // SAFETY: no arguments.
            descriptor = unsafe { function() };
            0
        })?;
        match descriptor.is_null() {
            false => Ok(descriptor),
            true => Err(self.failure("aclrtAllocatorCreateDesc", CODE_NOT_SUPPORTED, format_args!(""))),
        }
    }

    fn fill_allocator_descriptor(
        &self,
        descriptor: sys::aclrtAllocatorDesc,
        allocator: &AllocatorFunctions,
    ) -> DriverResult<()> {
        macro_rules! set {
            ($function:ident, $value:expr) => {
                self.call(
                    stringify!($function),
                    self.functions.$function,
                    format_args!("allocatorDesc={descriptor:?}"),
                    // SAFETY: the descriptor is live; what is null is refused by the library.
                    |function| unsafe { function(descriptor, $value) },
                )?
            };
        }
        set!(aclrtAllocatorSetObjToDesc, allocator.object);
        set!(aclrtAllocatorSetAllocFuncToDesc, allocator.alloc);
        set!(aclrtAllocatorSetFreeFuncToDesc, allocator.free);
        set!(aclrtAllocatorSetAllocAdviseFuncToDesc, allocator.advise);
        set!(aclrtAllocatorSetGetAddrFromBlockFuncToDesc, allocator.address);
        Ok(())
    }
}
