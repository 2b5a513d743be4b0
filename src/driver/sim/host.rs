//! The simulator's calls around host memory.

use core::sync::atomic::Ordering::Relaxed;

use ascend_sim::codes::attr;
use ascend_sim::{Location, MallocAttribute, PhysicalProp};

use super::super::{
    DeviceId, DriverResult, Engine, HostCalls, HostCopy, KernelVersion, MemoryInfo, PhysicalHandle,
    RegisterKind, not_offered,
};
use super::{MEMCPY_DEVICE_TO_HOST, MEMCPY_HOST_TO_DEVICE, SimDriver};

/// The kernel played unless told otherwise: 6.6.
pub(super) const KERNEL: u64 = (6 << 32) | 6;

/// `ACL_HOST_REG_MAPPED`.
const MAPPED: u32 = 0x2;
/// `ACL_HOST_REG_PINNED`.
const PINNED: u32 = 0x1000_0000;
/// `ACL_RT_MEM_ATTR_VA_FLAG`: one address for host and device.
const VA_FLAG: u32 = 3;

impl SimDriver {
    /// Plays another kernel version, for all clones of this driver.
    pub fn set_kernel_version(&self, version: KernelVersion) {
        self.kernel.store((u64::from(version.major) << 32) | u64::from(version.minor), Relaxed);
    }
}

/// Physical host memory.
fn prop() -> PhysicalProp {
    PhysicalProp { location: Location::host(), ..PhysicalProp::device(0) }.with_attr(attr::DDR_HUGE)
}

impl HostCalls for SimDriver {
    fn memory(&self) -> DriverResult<MemoryInfo> {
        let (free, total) = self.sim.host_memory();
        Ok(MemoryInfo { free, total })
    }

    fn kernel_version(&self) -> Option<KernelVersion> {
        let packed = self.kernel.load(Relaxed);
        Some(KernelVersion { major: (packed >> 32) as u32, minor: packed as u32 })
    }

    fn malloc_common(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        let arguments = format_args!("size={bytes}, address flag 1, device={device}");
        let common = MallocAttribute { kind: VA_FLAG, value: 1 };
        self.on(device, "aclrtMallocHostWithCfg", arguments, |sim| {
            sim.malloc_host_with_config(bytes, &[common])
        })
    }

    fn free_synchronized(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        let arguments = format_args!("{address:#x}, device={device}");
        self.on(device, "aclrtFreeHostWithDevSync", arguments, |sim| sim.free_host_with_dev_sync(address))
    }

    unsafe fn register(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        kind: RegisterKind,
    ) -> DriverResult<Option<u64>> {
        let flags = if kind.pinned { PINNED } else { 0 } | if kind.mapped { MAPPED } else { 0 };
        let arguments = format_args!("{address:#x}, size={bytes}, flags={flags:#x}, device={device}");
        let answer = self
            .on(device, "aclrtHostRegisterV2", arguments, |sim| sim.host_register_v2(address, bytes, flags));
        match answer {
            Err(error) if error.missing_symbol.is_some() && !kind.pinned => {
                let arguments = format_args!("{address:#x}, size={bytes}, type=0, device={device}");
                self.on(device, "aclrtHostRegister", arguments, |sim| sim.host_register(address, bytes, 0))
                    .map(Some)
            }
            answer => answer.map(|()| None),
        }
    }

    fn unregister(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        let arguments = format_args!("{address:#x}, device={device}");
        self.on(device, "aclrtHostUnregister", arguments, |sim| sim.host_unregister(address))
    }

    fn device_pointer(&self, device: DeviceId, address: u64) -> DriverResult<u64> {
        let arguments = format_args!("{address:#x}, flag=0, device={device}");
        self.on(device, "aclrtHostGetDevicePointer", arguments, |sim| sim.host_device_pointer(address, 0))
    }

    fn can_reach_host(&self, device: DeviceId, engine: Engine) -> DriverResult<bool> {
        let arguments = format_args!("device={device}, {engine:?}");
        let answer = self.on(device, "aclrtHostMemMapCapabilities", arguments, |sim| {
            sim.host_map_capability(device, engine as u32)
        });
        answer.map(|supported| supported == 1)
    }

    fn granularity(&self, device: DeviceId) -> DriverResult<u64> {
        let arguments = format_args!("host, minimum");
        self.on(device, "aclrtMemGetAllocationGranularity", arguments, |sim| sim.granularity(&prop(), 0))
    }

    fn malloc_physical(&self, device: DeviceId, bytes: u64) -> DriverResult<PhysicalHandle> {
        let arguments = format_args!("size={bytes}, host, device={device}");
        if !self.sim.is_mapped() {
            // Addresses are numbers then, and what is for the host must be memory.
            return Err(not_offered("aclrtMallocPhysical", arguments));
        }
        self.on(device, "aclrtMallocPhysical", arguments, |sim| sim.malloc_physical(bytes, &prop(), 0))
            .map(PhysicalHandle)
    }

    unsafe fn copy(&self, device: DeviceId, copy: HostCopy) -> DriverResult<()> {
        let HostCopy { host, device: address, bytes, to_host } = copy;
        let (to, from, kind) = if to_host {
            (host, address, MEMCPY_DEVICE_TO_HOST)
        } else {
            (address, host, MEMCPY_HOST_TO_DEVICE)
        };
        let arguments = format_args!("dst={to:#x}, src={from:#x}, count={bytes}, kind={kind}");
        self.on(device, "aclrtMemcpy", arguments, |sim| {
            // SAFETY: the caller vouches for the host range; device ranges are checked by the simulator.
            unsafe { sim.memcpy(to, bytes, from, bytes, kind) }
        })
    }
}
