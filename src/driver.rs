//! The contract between the allocator and a device: one method per driver call it needs.
//!
//! Everything that touches a device or a clock goes through [`Driver`], so that the allocator can
//! be read, tested and fuzzed without one. `AclDriver` calls the vendor's library;
//! `SimDriver` (feature `sim`) the simulator of the package `ascend-sim`.
//!
//! A driver never changes what the caller can observe of the current device and context of a
//! thread: an implementation that must set a device restores what was there.

use core::fmt;

mod acl;
mod host;
#[cfg(any(feature = "sim", test))]
mod sim;
mod states;
mod submit;

pub use acl::AclDriver;
pub use host::{Engine, HostCalls, KernelVersion, RegisterKind};
#[cfg(any(feature = "sim", test))]
pub use sim::SimDriver;
pub use states::StateChanges;
pub use submit::SubmitHook;

/// A device, as the process numbers them (after `ASCEND_RT_VISIBLE_DEVICES`).
pub type DeviceId = u32;

/// A stream, by its raw handle. Zero is the default stream of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub u64);

/// An event, by its raw handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// A physical chunk, by its raw handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhysicalHandle(pub u64);

/// The size of the pages behind a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PageKind {
    /// The usual pages: a granule of 2 MiB on all parts seen so far.
    #[default]
    Huge,
    /// Pages of 1 GiB, on parts that have them.
    Huge1G,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free for new physical memory.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

/// A copy between host and device memory; addresses and sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCopy {
    /// The host range's first byte.
    pub host: u64,
    /// The device range's first byte.
    pub device: u64,
    /// How much is copied.
    pub bytes: u64,
    /// From the device to the host; else the other way.
    pub to_host: bool,
}

/// How a chunk is named for other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShareForm {
    /// The calls of the first version: a number, on one server. All versions have it.
    #[default]
    V1,
    /// The calls of the second version (CANN 8.5 and later): a number, on one server.
    V2,
    /// The calls of the second version for servers that share memory over a fabric: 128 bytes.
    Fabric,
}

/// A chunk's name for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareName {
    /// Its kind.
    pub form: ShareForm,
    /// The name: 8 bytes in this machine's order, or 128 for [`ShareForm::Fabric`]; zeros behind.
    pub bytes: [u8; 128],
}

impl ShareName {
    /// A name that is a number.
    #[must_use]
    pub fn of_number(form: ShareForm, number: u64) -> Self {
        let mut bytes = [0; 128];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        Self { form, bytes }
    }

    /// The number that the name is.
    #[must_use]
    pub fn number(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.bytes;
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }
}

/// ACL's code for "out of memory, out of address space, or size too large".
pub const CODE_OUT_OF_MEMORY: i32 = 207_001;
/// ACL's code for "this chip, driver or symbol does not support it".
pub const CODE_NOT_SUPPORTED: i32 = 207_000;
/// `ACL_ERROR_RT_STREAM_CAPTURED`: not while a graph is being captured.
pub const CODE_STREAM_CAPTURED: i32 = 107_027;
/// `ACL_ERROR_RT_STREAM_CONTEXT`: the stream is one of another context.
pub const CODE_STREAM_CONTEXT: i32 = 107_003;
/// `ACL_ERROR_RT_INVALID_HANDLE`: no stream or event, or one that was destroyed.
pub const CODE_INVALID_HANDLE: i32 = 107_017;

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The call, by its ACL name.
    pub call: &'static str,
    /// Its arguments as text.
    pub arguments: String,
    /// The code the driver answered; [`CODE_NOT_SUPPORTED`] for a missing symbol.
    pub code: i32,
    /// The code's name.
    pub name: &'static str,
    /// What the driver itself says about it (`aclGetRecentErrMsg`), if anything, and what the allocator knows to help.
    pub message: Option<String>,
    /// The symbol that the loaded library lacks, if that is the reason.
    pub missing_symbol: Option<&'static str>,
}

impl DriverError {
    /// Whether the driver said that memory or address space is used up.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code == CODE_OUT_OF_MEMORY
    }

    /// Whether the call was refused because a graph is being captured.
    #[must_use]
    pub fn is_captured(&self) -> bool {
        self.code == CODE_STREAM_CAPTURED
    }

    /// Whether the driver does not know the stream or event: it was destroyed, also by a reset of its device.
    #[must_use]
    pub fn is_unknown_handle(&self) -> bool {
        self.code == CODE_INVALID_HANDLE
    }

    /// Whether the stream belongs to another context than the one the call was made in: to another device, or to a
    /// context of somebody's own.
    #[must_use]
    pub fn is_of_another_context(&self) -> bool {
        self.code == CODE_STREAM_CONTEXT
    }

    /// Whether the call does not exist here, so that the caller must do without it.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.missing_symbol.is_some() || self.code == CODE_NOT_SUPPORTED
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(symbol) = self.missing_symbol {
            return write!(f, "{}({}): the loaded library has no symbol {symbol}", self.call, self.arguments);
        }
        write!(f, "{}({}) answered {} ({})", self.call, self.arguments, self.code, self.name)?;
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for DriverError {}

/// The result of a driver call.
pub type DriverResult<T> = core::result::Result<T, DriverError>;

/// The driver calls the allocator needs; all sizes and addresses in bytes.
///
/// Every method may be called from any thread. None waits for work on a stream unless its name
/// says so (`synchronize_*`). The allocator never holds a lock while it calls one.
pub trait Driver: Send + Sync {
    /// Nanoseconds since an arbitrary start; never decreases. Virtual under simulation.
    fn now(&self) -> u64;

    /// How many devices this process sees.
    fn device_count(&self) -> DriverResult<u32>;

    /// Physical memory of the device.
    fn memory_info(&self, device: DeviceId) -> DriverResult<MemoryInfo>;

    /// The granule of the page kind: handle sizes and map addresses are multiples of it.
    fn granularity(&self, device: DeviceId, pages: PageKind) -> DriverResult<u64>;

    /// Bytes an engine may read past the end of a block, so that each block needs them as slack:
    /// 32 on most parts, 0 on Ascend950.
    fn tail_pad(&self, device: DeviceId) -> DriverResult<u64>;

    /// Whether `set_access` for the owner can name the right device: it takes the driver's own
    /// device number, so this is false where visible devices are renumbered.
    fn owner_access_is_addressable(&self, device: DeviceId) -> bool;

    /// `aclrtReserveMemAddress`: an address range for `device`.
    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64>;

    /// `aclrtReleaseMemAddress`: gives a range from [`reserve`](Self::reserve) back; nothing may be mapped in it.
    fn release(&self, device: DeviceId, address: u64) -> DriverResult<()>;

    /// `aclrtMallocPhysical`: a chunk of physical memory.
    fn malloc_physical(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<PhysicalHandle>;

    /// `aclrtFreePhysical`: drops the owner's reference of a chunk.
    fn free_physical(&self, device: DeviceId, handle: PhysicalHandle) -> DriverResult<()>;

    /// `aclrtMapMem`: puts the whole chunk of `bytes` at `address`.
    fn map(&self, device: DeviceId, address: u64, bytes: u64, handle: PhysicalHandle) -> DriverResult<()>;

    /// `aclrtUnmapMem`: removes the mapping that starts at `address`. Does not wait for work.
    fn unmap(&self, device: DeviceId, address: u64) -> DriverResult<()>;

    /// `aclrtMemSetAccess`: read and write access for `peer` to exactly one mapping.
    fn set_access(&self, device: DeviceId, address: u64, bytes: u64, peer: DeviceId) -> DriverResult<()>;

    /// `aclrtMallocAlign32`: a block that cannot move or shrink.
    fn malloc(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<u64>;

    /// `aclrtFree`: gives back a block from [`malloc`](Self::malloc). Does not wait for work.
    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()>;

    /// A new event on `device` that can be recorded again and waited on by streams.
    fn create_event(&self, device: DeviceId) -> DriverResult<Event>;

    /// `aclrtDestroyEvent`.
    fn destroy_event(&self, device: DeviceId, event: Event) -> DriverResult<()>;

    /// `aclrtRecordEvent`: the event completes when the work now in `stream` has.
    fn record_event(&self, device: DeviceId, event: Event, stream: Stream) -> DriverResult<()>;

    /// `aclrtQueryEventStatus`: whether the last record has completed.
    fn query_event(&self, device: DeviceId, event: Event) -> DriverResult<bool>;

    /// `aclrtSynchronizeEvent`: the host waits for the last record.
    fn synchronize_event(&self, device: DeviceId, event: Event) -> DriverResult<()>;

    /// `aclrtStreamWaitEvent`: later work in `stream` waits for the event; the host does not.
    fn stream_wait_event(&self, device: DeviceId, stream: Stream, event: Event) -> DriverResult<()>;

    /// `aclrtSynchronizeStream`: the host waits for one stream.
    fn synchronize_stream(&self, device: DeviceId, stream: Stream) -> DriverResult<()>;

    /// `aclrtSynchronizeDevice`: the host waits for the whole device.
    fn synchronize_device(&self, device: DeviceId) -> DriverResult<()>;

    /// `aclrtMallocHost`: page-locked host memory that the device can copy from and to; its address.
    fn malloc_host(&self, device: DeviceId, bytes: u64) -> DriverResult<u64>;

    /// `aclrtFreeHost`.
    fn free_host(&self, device: DeviceId, address: u64) -> DriverResult<()>;

    /// `aclrtMemcpyAsync` between page-locked host memory and device memory, queued on a stream.
    ///
    /// # Safety
    ///
    /// The host range lies in one block of [`malloc_host`](Self::malloc_host) that is not freed, and that nobody else
    /// touches, before the copy is done.
    unsafe fn copy_async(&self, device: DeviceId, copy: HostCopy, stream: Stream) -> DriverResult<()>;

    /// The number the machine's driver has for a device of this process (after `ASCEND_RT_VISIBLE_DEVICES`).
    fn driver_device(&self, device: DeviceId) -> DriverResult<u32> {
        Ok(device)
    }

    /// Whether [`set_access`](Self::set_access) exists here.
    fn can_set_access(&self) -> bool {
        true
    }

    /// `aclrtDeviceCanAccessPeer`: whether work on `device` can reach memory of `peer`.
    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> DriverResult<bool> {
        Err(not_offered("aclrtDeviceCanAccessPeer", format_args!("device={device}, peer={peer}")))
    }

    /// `aclrtDeviceEnablePeerAccess`: opens the link over which work on `device` reaches `peer`.
    fn enable_peer_access(&self, device: DeviceId, peer: DeviceId) -> DriverResult<()> {
        Err(not_offered("aclrtDeviceEnablePeerAccess", format_args!("device={device}, peer={peer}")))
    }

    /// `aclrtDeviceGetBareTgid`: this process as the physical host numbers it, which is how others
    /// name it when they share memory with it.
    fn process_id(&self, device: DeviceId) -> DriverResult<i32> {
        Err(not_offered("aclrtDeviceGetBareTgid", format_args!("device={device}")))
    }

    /// `aclrtMemExportToShareableHandle` or its second version: a name for a chunk, which any process can import,
    /// or only those that [`allow_import`](Self::allow_import) names. Some drivers name a chunk only once.
    fn export_chunk(
        &self,
        device: DeviceId,
        handle: PhysicalHandle,
        form: ShareForm,
        for_all: bool,
    ) -> DriverResult<ShareName> {
        let arguments = format_args!("{:#x}, device={device}, {form:?}, for all: {for_all}", handle.0);
        Err(not_offered("aclrtMemExportToShareableHandle", arguments))
    }

    /// `aclrtMemSetPidToShareableHandle` or its second version: more processes that may import, as
    /// [`process_id`](Self::process_id) numbers them.
    fn allow_import(&self, device: DeviceId, name: &ShareName, processes: &[i32]) -> DriverResult<()> {
        let arguments = format_args!("{name:?}, device={device}, processes={}", processes.len());
        Err(not_offered("aclrtMemSetPidToShareableHandle", arguments))
    }

    /// `aclrtMemImportFromShareableHandle` or its second version: another process's chunk, with one reference for
    /// [`free_physical`](Self::free_physical), to be mapped for `device`.
    fn import_chunk(&self, device: DeviceId, name: &ShareName) -> DriverResult<PhysicalHandle> {
        Err(not_offered("aclrtMemImportFromShareableHandle", format_args!("{name:?}, device={device}")))
    }

    /// More calls around page-locked host memory, where the driver offers them.
    fn host_calls(&self) -> Option<&dyn HostCalls> {
        None
    }

    /// The graph that the stream is being captured into, as `aclmdlRICaptureGetInfo` names it; nothing while it
    /// is not captured, and where the call is missing. A capture that has failed and was not ended yet is
    /// still one, of graph 0 where it has lost its name.
    fn capture_of(&self, device: DeviceId, stream: Stream) -> DriverResult<Option<u64>>;

    /// From now on ends of streams and resets of devices are noted in `changes`, if the runtime tells of them;
    /// whether it does.
    fn watch_states(&self, changes: &std::sync::Arc<StateChanges>) -> bool {
        let _changes = changes;
        false
    }

    /// Whether a device whose reset was noted has lost its memory. `set_again`: it was set since.
    fn has_lost_memory(&self, device: DeviceId, set_again: bool) -> bool {
        let _whichever = (device, set_again);
        true
    }

    /// Whether the stream is being captured into a graph.
    fn is_capturing(&self, device: DeviceId, stream: Stream) -> DriverResult<bool> {
        self.capture_of(device, stream).map(|graph| graph.is_some())
    }
}

/// The error of a call that a driver does not offer.
#[cold]
fn not_offered(call: &'static str, arguments: fmt::Arguments<'_>) -> DriverError {
    DriverError {
        call,
        arguments: arguments.to_string(),
        code: CODE_NOT_SUPPORTED,
        name: crate::acl::codes::name(CODE_NOT_SUPPORTED),
        message: Some("this driver does not offer the call".to_owned()),
        missing_symbol: None,
    }
}
