//! The driver calls around page-locked host memory that only some drivers have.
//!
//! Taking and giving back such memory, and copying from and to it, are part of [`Driver`](super::Driver)
//! itself; what is here may be missing, with the library or with the part.

use core::fmt;

use super::{DeviceId, DriverResult, HostCopy, MemoryInfo, PhysicalHandle};

/// The version of the operating system's kernel: its first two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl KernelVersion {
    /// Up to this version only memory from `aclrtMallocHost` may be registered.
    pub const LAST_WITHOUT_REGISTRATION: Self = Self { major: 5, minor: 10 };

    /// Reads a release such as `5.10.0-60.18.0.50.oe2203.aarch64`; nothing when it does not begin with two numbers.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.trim().split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?;
        let digits = minor.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(minor.len());
        Some(Self { major, minor: minor[..digits].parse().ok()? })
    }

    /// Whether memory of any origin may be registered with this kernel.
    #[must_use]
    pub fn allows_registration(self) -> bool {
        self > Self::LAST_WITHOUT_REGISTRATION
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What a registration of host memory brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegisterKind {
    /// `ACL_HOST_REG_PINNED`: pages stay where they are, so that copies can be asynchronous. Not for memory that is
    /// page-locked already.
    pub pinned: bool,
    /// `ACL_HOST_REG_MAPPED`: kernels on the device can reach the memory.
    pub mapped: bool,
}

/// A part of a device that reads and writes memory: `aclrtHacType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Engine {
    /// The task scheduler.
    Stars = 0,
    /// The device's own processors.
    AiCpu = 1,
    /// The cube cores.
    AiCube = 2,
    /// The vector cores.
    AiVector = 3,
    /// Copies over PCIe.
    PcieDma = 4,
    /// Remote memory access.
    Rdma = 5,
    /// Copies within the system.
    Sdma = 6,
    /// Image and video processing.
    Dvpp = 7,
    /// Copies over the unified bus.
    Udma = 8,
    /// The collective communication unit.
    Ccu = 9,
}

impl Engine {
    /// All of them, in ACL's order.
    pub const ALL: [Self; 10] = [
        Self::Stars,
        Self::AiCpu,
        Self::AiCube,
        Self::AiVector,
        Self::PcieDma,
        Self::Rdma,
        Self::Sdma,
        Self::Dvpp,
        Self::Udma,
        Self::Ccu,
    ];
}

/// Calls around page-locked host memory. Sizes and addresses in bytes; every method may be called from any thread,
/// and none changes what the caller can observe of the current device.
///
/// A call that the library or the part lacks answers an error that
/// [`is_unsupported`](super::DriverError::is_unsupported).
pub trait HostCalls: Send + Sync {
    /// The machine's memory that could be page-locked: what is free and all there is.
    fn memory(&self) -> DriverResult<MemoryInfo>;

    /// The version of the running kernel, or nothing when it cannot be read. The only place where it comes from.
    fn kernel_version(&self) -> Option<KernelVersion>;

    /// `aclrtMallocHostWithCfg` with the address flag: page-locked memory that has the same address for the device.
    /// Given back like that of [`malloc_host`](super::Driver::malloc_host).
    fn malloc_common(&self, device: DeviceId, bytes: u64) -> DriverResult<u64>;

    /// `aclrtFreeHostWithDevSync`: waits for the device, then gives a block back.
    fn free_synchronized(&self, device: DeviceId, address: u64) -> DriverResult<()>;

    /// `aclrtHostRegisterV2`, or `aclrtHostRegister` where only that is there and only a mapping is asked for. The
    /// address that kernels use, where the call itself gives it.
    ///
    /// # Safety
    ///
    /// The range is memory of this process until it is unregistered.
    unsafe fn register(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        kind: RegisterKind,
    ) -> DriverResult<Option<u64>>;

    /// `aclrtHostUnregister`: ends the registration that starts at `address`. Does not wait for work.
    fn unregister(&self, device: DeviceId, address: u64) -> DriverResult<()>;

    /// `aclrtHostGetDevicePointer`: the address that kernels use for memory registered as mapped.
    fn device_pointer(&self, device: DeviceId, address: u64) -> DriverResult<u64>;

    /// `aclrtHostMemMapCapabilities`: whether an engine of the device can reach registered host memory.
    fn can_reach_host(&self, device: DeviceId, engine: Engine) -> DriverResult<bool>;

    /// The granule of physical host memory.
    fn granularity(&self, device: DeviceId) -> DriverResult<u64>;

    /// `aclrtMallocPhysical` with the host as its place: a chunk of page-locked host memory.
    fn malloc_physical(&self, device: DeviceId, bytes: u64) -> DriverResult<PhysicalHandle>;

    /// `aclrtMemcpy`: copies at once between device memory and any host memory, behind nothing that is queued.
    ///
    /// # Safety
    ///
    /// The host range is memory of this process, and nobody else writes what is read or touches what is written.
    unsafe fn copy(&self, device: DeviceId, copy: HostCopy) -> DriverResult<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_by_their_first_two_numbers() {
        let version = |text| KernelVersion::parse(text).map(|version| (version.major, version.minor));
        assert_eq!(version("5.10.0-60.18.0.50.oe2203.aarch64"), Some((5, 10)));
        assert_eq!(version("6.1-rc3\n"), Some((6, 1)));
        assert_eq!(version("4.19"), Some((4, 19)));
        for none in ["", "5", "x.1", "5.x", "5.-1"] {
            assert_eq!(version(none), None, "{none}");
        }
    }

    #[test]
    fn registration_of_any_memory_begins_above_5_10() {
        let allows = |major, minor| KernelVersion { major, minor }.allows_registration();
        assert!(!allows(5, 10) && !allows(4, 19) && !allows(5, 9));
        assert!(allows(5, 11) && allows(6, 0));
    }
}
