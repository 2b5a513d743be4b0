//! `aclrtMalloc` and its kin, pinned and registered host memory.

use crate::call::Call;
use crate::exec::HostOp;
use crate::refusal::Answer;
use crate::sim::{Inner, Sim};

impl Sim {
    /// `aclrtMalloc` on the current device: an address. The size grows by the part's pad.
    ///
    /// # Errors
    /// The ACL code: 100000 for size 0 and overflow, 107002 without a device, 207001 when it is full.
    pub fn malloc(&self, size: u64, policy: u32) -> Result<u64, i32> {
        self.call(Call::Malloc, format_args!("size={size}, policy={policy}"), || {
            self.block(size, policy, true)
        })
    }

    /// `aclrtMallocAlign32`: the same without the pad.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc).
    pub fn malloc_align32(&self, size: u64, policy: u32) -> Result<u64, i32> {
        self.call(Call::MallocAlign32, format_args!("size={size}, policy={policy}"), || {
            self.block(size, policy, false)
        })
    }

    fn block(&self, size: u64, policy: u32, padded: bool) -> Answer<u64> {
        crate::memory::check_block_size(size)?;
        let device = self.current()?;
        self.inner.memory.lock().malloc(device, size, policy, padded)
    }

    /// `aclrtFree`: of a block of `aclrtMalloc`, or of a pinned block. Waits for nothing.
    ///
    /// # Errors
    /// The ACL code: 107000 for every other address.
    pub fn free(&self, start: u64) -> Result<(), i32> {
        self.call(Call::Free, format_args!("{start:#x}"), || self.free_now(start))
    }

    /// `aclrtFreeWithDevSync`: waits for the current device first.
    ///
    /// # Errors
    /// As [`free`](Self::free), and those of the wait.
    pub fn free_with_dev_sync(&self, start: u64) -> Result<(), i32> {
        self.call(Call::FreeWithDevSync, format_args!("{start:#x}"), || {
            self.wait_for_current()?;
            self.free_now(start)
        })
    }

    fn free_now(&self, start: u64) -> Answer<()> {
        let (len, pinned) = {
            let memory = self.inner.memory.lock();
            match memory.host_len(start) {
                Ok(len) => (len, true),
                Err(_) => (memory.free_len(start)?, false),
            }
        };
        self.inner.executor.host_touch(HostOp::Free, start, len);
        let mut memory = self.inner.wait_unused(start, len);
        if pinned { memory.free_host(start) } else { memory.free(start) }
    }

    /// `aclrtMallocHost`: pinned memory of this process, readable and writable in every mode.
    ///
    /// # Errors
    /// The ACL code: 100000 for size 0, 107002 without a device, 207001 when too much is pinned.
    pub fn malloc_host(&self, size: u64) -> Result<u64, i32> {
        self.call(Call::MallocHost, format_args!("size={size}"), || {
            crate::memory::check_block_size(size)?;
            self.current()?;
            self.inner.memory.lock().malloc_host(size)
        })
    }

    /// `aclrtFreeHost`.
    ///
    /// # Errors
    /// The ACL code: 107000 if it is not the start of a pinned block.
    pub fn free_host(&self, start: u64) -> Result<(), i32> {
        self.call(Call::FreeHost, format_args!("{start:#x}"), || self.free_host_now(start))
    }

    /// `aclrtFreeHostWithDevSync`: waits for the current device first.
    ///
    /// # Errors
    /// As [`free_host`](Self::free_host), and those of the wait.
    pub fn free_host_with_dev_sync(&self, start: u64) -> Result<(), i32> {
        self.call(Call::FreeHostWithDevSync, format_args!("{start:#x}"), || {
            self.wait_for_current()?;
            self.free_host_now(start)
        })
    }

    fn free_host_now(&self, start: u64) -> Answer<()> {
        let len = self.inner.memory.lock().host_len(start)?;
        self.inner.executor.host_touch(HostOp::Free, start, len);
        self.inner.wait_unused(start, len).free_host(start)
    }

    fn wait_for_current(&self) -> Answer<()> {
        let device = self.current()?;
        Inner::executed(self.inner.executor.synchronize_device(device, -1))
    }

    /// `aclrtHostRegister`: the address devices use for it, here the same.
    ///
    /// # Errors
    /// The ACL code: 507899 for a range that is registered already, 207000 for unknown kinds.
    pub fn host_register(&self, start: u64, size: u64, kind: u32) -> Result<u64, i32> {
        self.call(Call::HostRegister, format_args!("{start:#x}, size={size}, type={kind}"), || {
            crate::memory::check_registration(start, size)?;
            self.current()?;
            self.inner.memory.lock().host_register(start, size, kind)
        })
    }

    /// `aclrtHostRegisterV2`.
    ///
    /// # Errors
    /// The ACL code: 507910 for a range that is registered already, 107000 for unknown flags.
    pub fn host_register_v2(&self, start: u64, size: u64, flags: u32) -> Result<(), i32> {
        self.call(Call::HostRegisterV2, format_args!("{start:#x}, size={size}, flags={flags:#x}"), || {
            crate::memory::check_registration(start, size)?;
            self.current()?;
            self.inner.memory.lock().host_register_v2(start, size, flags)
        })
    }

    /// `aclrtHostUnregister`.
    ///
    /// # Errors
    /// The ACL code: 507911 if no registered range starts there.
    pub fn host_unregister(&self, start: u64) -> Result<(), i32> {
        self.call(Call::HostUnregister, format_args!("{start:#x}"), || {
            let len = self.inner.memory.lock().registered_len(start)?;
            self.inner.executor.host_touch(HostOp::Release, start, len);
            self.inner.wait_unused(start, len).host_unregister(start)
        })
    }

    /// `aclrtHostGetDevicePointer`.
    ///
    /// # Errors
    /// The ACL code: 107000 if the address is not registered for devices.
    pub fn host_device_pointer(&self, address: u64, flags: u32) -> Result<u64, i32> {
        self.call(Call::HostGetDevicePointer, format_args!("{address:#x}, flags={flags}"), || {
            self.inner.memory.lock().host_device_pointer(address, flags)
        })
    }
}
