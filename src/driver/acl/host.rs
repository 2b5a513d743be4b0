//! ACL's calls around host memory.

use super::super::{
    DeviceId, DriverResult, Engine, HostCalls, HostCopy, KernelVersion, MemoryInfo, PhysicalHandle,
    RegisterKind, not_offered,
};
use super::{AclDriver, address_of, pointer, refuses_memory, size};
use crate::acl::{Acl, sys};

/// Where the kernel says its version.
const RELEASE: &str = "/proc/sys/kernel/osrelease";
/// Where the kernel says how much memory there is.
const MEMORY: &str = "/proc/meminfo";

impl AclDriver {
    /// Runs a call with the kind of physical memory that the host has.
    fn with_host_memory<R: Send>(
        &self,
        device: DeviceId,
        call: impl Fn(&Acl, &sys::aclrtPhysicalMemProp) -> DriverResult<R> + Sync,
    ) -> DriverResult<R> {
        let with = |kind| {
            let property = sys::aclrtPhysicalMemProp {
                handleType: sys::ACL_MEM_HANDLE_TYPE_NONE,
                allocationType: sys::ACL_MEM_ALLOCATION_TYPE_PINNED,
                memAttr: kind,
                location: sys::aclrtMemLocation { id: 0, type_: sys::ACL_MEM_LOCATION_TYPE_HOST },
                reserve: 0,
            };
            self.anywhere(device, &|acl: &Acl| call(acl, &property))
        };
        match with(sys::ACL_DDR_MEM_HUGE) {
            Err(error) if refuses_memory(&error) => with(sys::ACL_MEM_HUGE).map_err(|_| error),
            answer => answer,
        }
    }
}

impl HostCalls for AclDriver {
    fn memory(&self) -> DriverResult<MemoryInfo> {
        let text = std::fs::read_to_string(MEMORY).unwrap_or_default();
        match (field(&text, "MemAvailable:"), field(&text, "MemTotal:")) {
            (Some(free), Some(total)) => Ok(MemoryInfo { free, total }),
            _ => Err(not_offered("the machine's memory", format_args!("{MEMORY}"))),
        }
    }

    fn kernel_version(&self) -> Option<KernelVersion> {
        KernelVersion::parse(&std::fs::read_to_string(RELEASE).ok()?)
    }

    fn malloc_common(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.on_device(device, &|acl: &Acl| {
            let flag = sys::aclrtMallocAttribute {
                attr: sys::ACL_RT_MEM_ATTR_VA_FLAG,
                value: sys::aclrtMallocAttrValue { vaFlag: 1 },
            };
            acl.malloc_host_with(bytes, &mut [flag]).map(address_of)
        })
    }

    fn free_synchronized(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.on_device(device, &|acl: &Acl| {
            // SAFETY: as `attach`.
            unsafe { acl.free_host_with_device_sync(pointer(address)) }
        })
    }

    unsafe fn register(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        kind: RegisterKind,
    ) -> DriverResult<Option<u64>> {
        let mapped = if kind.mapped { sys::ACL_HOST_REG_MAPPED } else { 0 };
        let flags = mapped | if kind.pinned { sys::ACL_HOST_REG_PINNED } else { 0 };
        let answer = self.on_device(device, &|acl: &Acl| {
            // SAFETY: the caller's promise.
            unsafe { acl.register_host_v2(pointer(address), bytes, flags) }
        });
        match answer {
            // Before CANN 8.5 there is a call for mappings alone.
            Err(error) if error.missing_symbol.is_some() && !kind.pinned => {
                self.on_device(device, &|acl: &Acl| {
                    // SAFETY: the caller's promise.
                    unsafe { acl.register_host(pointer(address), bytes) }.map(address_of)
                })
                .map(Some)
            }
            answer => answer.map(|()| None),
        }
    }

    fn unregister(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.on_device(device, &|acl: &Acl| unsafe { acl.unregister_host(pointer(address)) })
    }

    fn device_pointer(&self, device: DeviceId, address: u64) -> DriverResult<u64> {
        self.on_device(device, &|acl: &Acl| acl.host_device_pointer(pointer(address)).map(address_of))
    }

    fn can_reach_host(&self, device: DeviceId, engine: Engine) -> DriverResult<bool> {
        self.on_device(device, &|acl: &Acl| acl.host_map_capability(device, engine as u32))
            .map(|answer| answer == sys::ACL_RT_HOST_MEM_MAP_SUPPORTED)
    }

    fn granularity(&self, device: DeviceId) -> DriverResult<u64> {
        self.with_host_memory(device, |acl, property| acl.granularity(property).map(|bytes| bytes as u64))
    }

    fn malloc_physical(&self, device: DeviceId, bytes: u64) -> DriverResult<PhysicalHandle> {
        self.with_host_memory(device, |acl, property| {
            acl.malloc_physical(size(bytes), property).map(address_of).map(PhysicalHandle)
        })
    }

    unsafe fn copy(&self, device: DeviceId, copy: HostCopy) -> DriverResult<()> {
        let HostCopy { host, device: address, bytes, to_host } = copy;
        let (target, source, kind) = match to_host {
            true => (host, address, sys::ACL_MEMCPY_DEVICE_TO_HOST),
            false => (address, host, sys::ACL_MEMCPY_HOST_TO_DEVICE),
        };
        self.on_device(device, &move |acl: &Acl| {
            // SAFETY: the caller vouches for the host range; the rest as `attach`.
            unsafe { acl.copy(pointer(target), pointer(source), size(bytes), kind) }
        })
    }
}

/// The bytes that a line such as `MemTotal: 131072 kB` says.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kilobytes() {
        let text = "MemTotal:       131072 kB\nMemFree: 1 kB\nMemAvailable:  65536 kB\n";
        assert_eq!(
            (field(text, "MemTotal:"), field(text, "MemAvailable:")),
            (Some(128 << 20), Some(64 << 20))
        );
        assert_eq!(field(text, "Cached:"), None);
        assert_eq!(field("MemTotal: much kB", "MemTotal:"), None);
    }
}
