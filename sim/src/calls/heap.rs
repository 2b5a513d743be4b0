//! `aclrtMalloc` and its kin, pinned and registered host memory.

use super::handles::Handle;
use crate::call::Call;
use crate::codes;
use crate::config::Soc;
use crate::exec::HostOp;
use crate::made::Made;
use crate::refusal::{Answer, refuse};
use crate::report::MisuseKind;
use crate::sim::{Inner, Sim};

/// One entry of `aclrtMallocConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MallocAttribute {
    /// 0 reserved, 1 module, 2 device, 3 address flag.
    pub kind: u32,
    /// The eight bytes of the value as a little-endian number; only those of the kind count.
    pub value: u64,
}

/// Values of `aclrtMallocAttrType`.
mod malloc_attribute {
    pub(super) const MODULE_ID: u32 = 1;
    pub(super) const DEVICE_ID: u32 = 2;
    pub(super) const VA_FLAG: u32 = 3;
}

/// The value of the last attribute of that kind, cut to its 32 bits.
fn last_of(config: &[MallocAttribute], kind: u32) -> Option<u64> {
    let last = config.iter().rev().find(|attribute| attribute.kind == kind);
    last.map(|attribute| attribute.value & u64::from(u32::MAX))
}

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

    /// `aclrtMallocCached`: as [`malloc`](Self::malloc); the model has no caches.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc).
    pub fn malloc_cached(&self, size: u64, policy: u32) -> Result<u64, i32> {
        self.call(Call::MallocCached, format_args!("size={size}, policy={policy}"), || {
            self.block(size, policy, true)
        })
    }

    /// `aclrtMallocWithCfg`: without the pad. Of several attributes of a kind the last counts.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc); 107000 for a device that is not the current one, for the address
    /// flag and for unknown kinds.
    pub fn malloc_with_config(&self, size: u64, policy: u32, config: &[MallocAttribute]) -> Result<u64, i32> {
        let arguments = format_args!("size={size}, policy={policy}, {config:?}");
        self.call(Call::MallocWithCfg, arguments, || self.configured_block(size, policy, config))
    }

    /// `aclrtMallocForTaskScheduler`: as [`malloc_with_config`](Self::malloc_with_config).
    ///
    /// # Errors
    /// As [`malloc_with_config`](Self::malloc_with_config).
    pub fn malloc_for_task_scheduler(
        &self,
        size: u64,
        policy: u32,
        config: &[MallocAttribute],
    ) -> Result<u64, i32> {
        let arguments = format_args!("size={size}, policy={policy}, {config:?}");
        self.call(Call::MallocForTaskScheduler, arguments, || self.configured_block(size, policy, config))
    }

    fn configured_block(&self, size: u64, policy: u32, config: &[MallocAttribute]) -> Answer<u64> {
        if size == 0 {
            return refuse(codes::INVALID_PARAM, "size 0");
        }
        let device = self.current()?;
        let unknown = config.iter().any(|attribute| attribute.kind > malloc_attribute::DEVICE_ID);
        let named = last_of(config, malloc_attribute::DEVICE_ID);
        let own = |user| self.inner.devices.lock().driver_id(user as u32).is_ok_and(|named| named == device);
        if unknown || named.is_some_and(|user| !own(user)) {
            return refuse(
                codes::RT_PARAM_INVALID,
                "another device, the address flag or an unknown attribute",
            );
        }
        self.block(size, policy, false)
    }

    /// A block on the current device. When it is full the pools give back what they do not use, once.
    fn block(&self, size: u64, policy: u32, padded: bool) -> Answer<u64> {
        crate::memory::check_block_size(size)?;
        let device = self.current()?;
        let first = self.inner.memory.lock().malloc(device, size, policy, padded);
        match first {
            Err(refusal) if refusal.code == codes::RT_MEMORY_ALLOCATION && self.trim_pools(device) => {
                self.inner.memory.lock().malloc(device, size, policy, padded)
            }
            answer => answer,
        }
    }

    /// `aclrtMemFlush`: there is no cache to flush.
    ///
    /// # Errors
    /// The ACL code: 100000 for null and size 0, 107002 without a device, 107000 for memory that is
    /// not mapped.
    pub fn mem_flush(&self, start: u64, size: u64) -> Result<(), i32> {
        self.call(Call::MemFlush, format_args!("{start:#x}, size={size}"), || self.cached_range(start, size))
    }

    /// `aclrtMemInvalidate`: there is no cache to invalidate.
    ///
    /// # Errors
    /// As [`mem_flush`](Self::mem_flush).
    pub fn mem_invalidate(&self, start: u64, size: u64) -> Result<(), i32> {
        self.call(Call::MemInvalidate, format_args!("{start:#x}, size={size}"), || {
            self.cached_range(start, size)
        })
    }

    fn cached_range(&self, start: u64, size: u64) -> Answer<()> {
        if start == 0 || size == 0 {
            return refuse(codes::INVALID_PARAM, "null address or size 0");
        }
        self.current()?;
        match self.inner.memory.lock().first_hole(start, size) {
            None => Ok(()),
            Some(_) => refuse(codes::RT_PARAM_INVALID, "the range is not wholly mapped device memory"),
        }
    }

    /// `aclrtMemAllocManaged` and the calls around it: the parts have no managed memory.
    ///
    /// # Errors
    /// The ACL code: 100000 for size 0, else 207000.
    pub fn managed_alloc(&self, size: u64, flags: u64) -> Result<u64, i32> {
        self.call(Call::MemAllocManaged, format_args!("size={size}, flags={flags}"), || {
            if size == 0 {
                return refuse(codes::INVALID_PARAM, "size 0");
            }
            refuse(codes::RT_FEATURE_NOT_SUPPORT, "no managed memory")
        })
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
            self.wait_for_current(start)?;
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
        if pinned {
            return self.free_pinned(start, len);
        }
        self.inner.executor.host_touch(HostOp::Free, start, len);
        self.inner.wait_unused(start, len).free(start)
    }

    /// `aclrtMallocHost`: pinned memory of this process, readable and writable in every mode.
    ///
    /// # Errors
    /// The ACL code: 100000 for size 0, 107002 without a device, 207001 when too much is pinned.
    pub fn malloc_host(&self, size: u64) -> Result<u64, i32> {
        self.call(Call::MallocHost, format_args!("size={size}"), || {
            if size == 0 {
                return refuse(codes::INVALID_PARAM, "size 0");
            }
            self.current()?;
            self.inner.memory.lock().malloc_host(size)
        })
    }

    /// `aclrtMallocHostWithCfg`.
    ///
    /// # Errors
    /// As [`malloc_host`](Self::malloc_host); 107000 for the device attribute, the reserved one and
    /// unknown ones, 207000 for the address flag where the part has it not.
    pub fn malloc_host_with_config(&self, size: u64, config: &[MallocAttribute]) -> Result<u64, i32> {
        self.call(Call::MallocHostWithCfg, format_args!("size={size}, {config:?}"), || {
            if size == 0 {
                return refuse(codes::INVALID_PARAM, "size 0");
            }
            self.current()?;
            let known = |kind| matches!(kind, malloc_attribute::MODULE_ID | malloc_attribute::VA_FLAG);
            if config.iter().any(|attribute| !known(attribute.kind)) {
                return refuse(codes::RT_PARAM_INVALID, "an attribute that host memory has not");
            }
            match last_of(config, malloc_attribute::VA_FLAG) {
                None | Some(0) => {}
                Some(1) if self.inner.config.soc == Soc::Ascend910B => {}
                Some(1) => {
                    return refuse(codes::RT_FEATURE_NOT_SUPPORT, "no addresses common to host and device");
                }
                Some(_) => return refuse(codes::RT_PARAM_INVALID, "no such address flag"),
            }
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
            self.wait_for_current(start)?;
            self.free_host_now(start)
        })
    }

    fn free_host_now(&self, start: u64) -> Answer<()> {
        let len = self.inner.memory.lock().host_len(start)?;
        self.free_pinned(start, len)
    }

    /// Frees a pinned block. What is registered of it ends too, and is a finding.
    fn free_pinned(&self, start: u64, len: u64) -> Answer<()> {
        self.inner.executor.host_touch(HostOp::Free, start, len);
        let mut memory = self.inner.wait_unused(start, len);
        let registered = memory.registered_in(start);
        let answer = memory.free_host(start);
        drop(memory);
        if let Some(registered) = registered.filter(|_| answer.is_ok()) {
            let text = format!("{} of {start:#x} while {registered}", Made::now());
            self.inner.found(MisuseKind::FreeWhileRegistered, text);
        }
        answer
    }

    /// What is to be freed must not be null, which is seen before the wait.
    fn wait_for_current(&self, start: u64) -> Answer<()> {
        let context = self.context_for(&[Handle::Other(start)])?;
        Inner::executed(self.inner.executor.synchronize_device(context, -1))
    }

    /// `aclrtHostRegister`: the address devices use for it, here the same.
    ///
    /// # Errors
    /// The ACL code: 507899 for a range that is registered already, 207000 for unknown kinds.
    pub fn host_register(&self, start: u64, size: u64, kind: u32) -> Result<u64, i32> {
        self.call(Call::HostRegister, format_args!("{start:#x}, size={size}, type={kind}"), || {
            crate::memory::check_registration(start, size)?;
            crate::memory::check_register_kind(kind)?;
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
            crate::memory::check_register_flags(flags)?;
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
