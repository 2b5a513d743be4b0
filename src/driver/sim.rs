//! The device simulator as an in-process driver.
//!
//! [`SimDriver`] adds nothing to the model: it makes the ACL calls an allocator on a device would
//! make, with the same arguments, and turns codes into [`DriverError`]s. Calls that need a current
//! device run with the right one set and put back what the thread had; that switching counts as no
//! call.

use core::fmt;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

use ascend_sim::codes::{self, attr, policy};
use ascend_sim::{AccessDescriptor, CaptureStatus, Location, PhysicalProp, Sim};

use super::{
    CODE_NOT_SUPPORTED, DeviceId, Driver, DriverError, DriverResult, Event, HostCopy, MemoryInfo, PageKind,
    PhysicalHandle, ShareForm, ShareName, Stream,
};

mod host;

/// `ACL_EVENT_SYNC`: the event can be waited for by streams.
const EVENT_SYNC: u32 = 0x1;

/// `ACL_MEMCPY_HOST_TO_DEVICE`.
const MEMCPY_HOST_TO_DEVICE: u32 = 1;

/// `ACL_MEMCPY_DEVICE_TO_HOST`.
const MEMCPY_DEVICE_TO_HOST: u32 = 2;

/// Simulated devices as a [`Driver`].
///
/// A clone drives the same machine.
#[derive(Clone, Debug)]
pub struct SimDriver {
    sim: Sim,
    /// The kernel that is played: major and minor number, 32 bits each.
    kernel: Arc<AtomicU64>,
}

impl SimDriver {
    /// Drives that machine.
    #[must_use]
    pub fn new(sim: Sim) -> Self {
        Self { sim, kernel: Arc::new(AtomicU64::new(host::KERNEL)) }
    }

    /// The machine behind the driver, for its controls and counters.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Runs a call with the device current.
    fn on<T>(
        &self,
        device: DeviceId,
        call: &'static str,
        arguments: fmt::Arguments<'_>,
        run: impl FnOnce(&Sim) -> Result<T, i32>,
    ) -> DriverResult<T> {
        let answer = self.sim.on_device(device, || run(&self.sim));
        self.answer(call, arguments, answer.and_then(|answer| answer))
    }

    fn answer<T>(
        &self,
        call: &'static str,
        arguments: fmt::Arguments<'_>,
        answer: Result<T, i32>,
    ) -> DriverResult<T> {
        answer.map_err(|code| self.error(call, arguments, code))
    }

    #[cold]
    fn error(&self, call: &'static str, arguments: fmt::Arguments<'_>, code: i32) -> DriverError {
        let missing = code == codes::MISSING_SYMBOL;
        let code = if missing { CODE_NOT_SUPPORTED } else { code };
        DriverError {
            call,
            arguments: arguments.to_string(),
            code,
            name: codes::name(code),
            message: self.sim.recent_error(),
            missing_symbol: missing.then_some(call),
        }
    }
}

/// The chunk attribute of a page kind.
fn prop(device: DeviceId, pages: PageKind) -> PhysicalProp {
    PhysicalProp::device(device).with_attr(match pages {
        PageKind::Huge => attr::HBM_HUGE,
        PageKind::Huge1G => attr::HBM_HUGE1G,
    })
}

impl Driver for SimDriver {
    fn now(&self) -> u64 {
        self.sim.now()
    }

    fn device_count(&self) -> DriverResult<u32> {
        self.answer("aclrtGetDeviceCount", format_args!(""), self.sim.device_count())
    }

    fn memory_info(&self, device: DeviceId) -> DriverResult<MemoryInfo> {
        let arguments = format_args!("device={device}, attr={}", attr::HBM);
        let (free, total) = self.on(device, "aclrtGetMemInfo", arguments, |sim| sim.mem_info(attr::HBM))?;
        Ok(MemoryInfo { free, total })
    }

    fn granularity(&self, device: DeviceId, pages: PageKind) -> DriverResult<u64> {
        let answer = self.sim.granularity(&prop(device, pages), 0);
        let arguments = format_args!("device={device}, {pages:?}, minimum");
        self.answer("aclrtMemGetAllocationGranularity", arguments, answer)
    }

    fn tail_pad(&self, _device: DeviceId) -> DriverResult<u64> {
        Ok(self.sim.soc().tail_pad())
    }

    fn owner_access_is_addressable(&self, device: DeviceId) -> bool {
        self.sim.driver_device(device) == Ok(device)
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        let arguments = format_args!("size={bytes}, alignment=0, expect=null, flags=0, device={device}");
        self.answer("aclrtReserveMemAddress", arguments, self.sim.reserve(bytes))
    }

    fn release(&self, _device: DeviceId, address: u64) -> DriverResult<()> {
        self.answer("aclrtReleaseMemAddress", format_args!("{address:#x}"), self.sim.release(address))
    }

    fn malloc_physical(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<PhysicalHandle> {
        let answer = self.sim.malloc_physical(bytes, &prop(device, pages), 0);
        let arguments = format_args!("size={bytes}, device={device}, {pages:?}");
        self.answer("aclrtMallocPhysical", arguments, answer).map(PhysicalHandle)
    }

    fn free_physical(&self, _device: DeviceId, handle: PhysicalHandle) -> DriverResult<()> {
        let answer = self.sim.free_physical(handle.0);
        self.answer("aclrtFreePhysical", format_args!("{:#x}", handle.0), answer)
    }

    fn map(&self, _device: DeviceId, address: u64, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        let answer = self.sim.map(address, bytes, 0, handle.0, 0);
        let arguments = format_args!("{address:#x}, size={bytes}, offset=0, handle={:#x}, flags=0", handle.0);
        self.answer("aclrtMapMem", arguments, answer)
    }

    fn unmap(&self, _device: DeviceId, address: u64) -> DriverResult<()> {
        self.answer("aclrtUnmapMem", format_args!("{address:#x}"), self.sim.unmap(address))
    }

    fn set_access(&self, _device: DeviceId, address: u64, bytes: u64, peer: DeviceId) -> DriverResult<()> {
        // The call takes the driver's device numbers, which ACL does not translate.
        let answer = self.sim.driver_device(peer).and_then(|peer| {
            let grant = AccessDescriptor { flags: codes::ACCESS_READWRITE, location: Location::device(peer) };
            self.sim.set_access(address, bytes, &[grant])
        });
        let arguments = format_args!("{address:#x}, size={bytes}, device={peer} read and write, count=1");
        self.answer("aclrtMemSetAccess", arguments, answer)
    }

    fn malloc(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<u64> {
        let kind = match pages {
            PageKind::Huge => policy::HUGE_FIRST,
            PageKind::Huge1G => policy::HUGE1G_ONLY,
        };
        let arguments = format_args!("size={bytes}, policy={kind}, device={device}");
        self.on(device, "aclrtMallocAlign32", arguments, |sim| sim.malloc_align32(bytes, kind))
    }

    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.on(device, "aclrtFree", format_args!("{address:#x}"), |sim| sim.free(address))
    }

    fn create_event(&self, device: DeviceId) -> DriverResult<Event> {
        let arguments = format_args!("flags={EVENT_SYNC}, device={device}");
        self.on(device, "aclrtCreateEventExWithFlag", arguments, |sim| sim.create_event_ex(EVENT_SYNC))
            .map(Event)
    }

    fn destroy_event(&self, _device: DeviceId, event: Event) -> DriverResult<()> {
        self.answer("aclrtDestroyEvent", format_args!("{:#x}", event.0), self.sim.destroy_event(event.0))
    }

    fn record_event(&self, device: DeviceId, event: Event, stream: Stream) -> DriverResult<()> {
        let arguments = format_args!("{:#x}, stream={:#x}, device={device}", event.0, stream.0);
        self.on(device, "aclrtRecordEvent", arguments, |sim| sim.record_event(event.0, stream.0))
    }

    fn query_event(&self, _device: DeviceId, event: Event) -> DriverResult<bool> {
        let answer = self.sim.query_event_status(event.0);
        self.answer("aclrtQueryEventStatus", format_args!("{:#x}", event.0), answer)
    }

    fn synchronize_event(&self, _device: DeviceId, event: Event) -> DriverResult<()> {
        let answer = self.sim.synchronize_event(event.0);
        self.answer("aclrtSynchronizeEvent", format_args!("{:#x}", event.0), answer)
    }

    fn stream_wait_event(&self, device: DeviceId, stream: Stream, event: Event) -> DriverResult<()> {
        let arguments = format_args!("{:#x}, event={:#x}, device={device}", stream.0, event.0);
        self.on(device, "aclrtStreamWaitEvent", arguments, |sim| sim.stream_wait_event(stream.0, event.0))
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream) -> DriverResult<()> {
        let arguments = format_args!("{:#x}, device={device}", stream.0);
        self.on(device, "aclrtSynchronizeStream", arguments, |sim| sim.synchronize_stream(stream.0))
    }

    fn synchronize_device(&self, device: DeviceId) -> DriverResult<()> {
        self.on(device, "aclrtSynchronizeDevice", format_args!("device={device}"), Sim::synchronize_device)
    }

    fn malloc_host(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        let arguments = format_args!("size={bytes}, device={device}");
        self.on(device, "aclrtMallocHost", arguments, |sim| sim.malloc_host(bytes))
    }

    fn free_host(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.on(device, "aclrtFreeHost", format_args!("{address:#x}"), |sim| sim.free_host(address))
    }

    unsafe fn copy_async(&self, device: DeviceId, copy: HostCopy, stream: Stream) -> DriverResult<()> {
        let HostCopy { host, device: address, bytes, to_host } = copy;
        let (to, from, kind) = if to_host {
            (host, address, MEMCPY_DEVICE_TO_HOST)
        } else {
            (address, host, MEMCPY_HOST_TO_DEVICE)
        };
        let arguments = format_args!("dst={to:#x}, src={from:#x}, count={bytes}, kind={kind}");
        self.on(device, "aclrtMemcpyAsync", arguments, |sim| {
            // SAFETY: the caller vouches for the host range; device ranges are checked by the simulator.
            unsafe { sim.memcpy_async(to, bytes, from, bytes, kind, stream.0) }
        })
    }

    fn driver_device(&self, device: DeviceId) -> DriverResult<u32> {
        let answer = self.sim.driver_device(device);
        self.answer("the driver's number of a device", format_args!("device={device}"), answer)
    }

    fn can_set_access(&self) -> bool {
        // Null is refused where the call exists.
        self.sim.set_access(0, 0, &[]) != Err(codes::MISSING_SYMBOL)
    }

    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> DriverResult<bool> {
        let arguments = format_args!("device={device}, peer={peer}");
        let answer = self.sim.can_access_peer(number(device), number(peer));
        self.answer("aclrtDeviceCanAccessPeer", arguments, answer)
    }

    fn enable_peer_access(&self, device: DeviceId, peer: DeviceId) -> DriverResult<()> {
        let arguments = format_args!("peer={peer}, flags=0, device={device}");
        self.on(device, "aclrtDeviceEnablePeerAccess", arguments, |sim| {
            sim.enable_peer_access(number(peer), 0)
        })
    }

    fn process_id(&self, _device: DeviceId) -> DriverResult<i32> {
        self.answer("aclrtDeviceGetBareTgid", format_args!(""), self.sim.bare_tgid())
    }

    fn export_chunk(
        &self,
        device: DeviceId,
        handle: PhysicalHandle,
        form: ShareForm,
        for_all: bool,
    ) -> DriverResult<ShareName> {
        let (handle, flags) = (handle.0, u64::from(for_all));
        let arguments = format_args!("{handle:#x}, flags={flags}, {form:?}, device={device}");
        match share_kind(form) {
            None => {
                let answer = self.sim.export_handle(handle, 0, flags);
                let number = self.answer("aclrtMemExportToShareableHandle", arguments, answer)?;
                Ok(ShareName::of_number(form, number))
            }
            Some(kind) => {
                let call = "aclrtMemExportToShareableHandleV2";
                let bytes =
                    self.on(device, call, arguments, |sim| sim.export_handle_v2(handle, flags, kind))?;
                Ok(ShareName { form, bytes })
            }
        }
    }

    fn allow_import(&self, device: DeviceId, name: &ShareName, processes: &[i32]) -> DriverResult<()> {
        let arguments = format_args!("{:?}, processes={}, device={device}", name.form, processes.len());
        match share_kind(name.form) {
            None => {
                let answer = self.sim.set_share_pids(name.number(), processes);
                self.answer("aclrtMemSetPidToShareableHandle", arguments, answer)
            }
            Some(kind) => {
                let call = "aclrtMemSetPidToShareableHandleV2";
                self.on(device, call, arguments, |sim| sim.set_share_pids_v2(&name.bytes, kind, processes))
            }
        }
    }

    fn import_chunk(&self, device: DeviceId, name: &ShareName) -> DriverResult<PhysicalHandle> {
        let arguments = format_args!("{:?}, device={device}", name.form);
        let handle = match share_kind(name.form) {
            None => {
                let answer = self.sim.import_handle(name.number(), number(device));
                self.answer("aclrtMemImportFromShareableHandle", arguments, answer)
            }
            Some(kind) => {
                let call = "aclrtMemImportFromShareableHandleV2";
                self.on(device, call, arguments, |sim| sim.import_handle_v2(&name.bytes, kind, 0))
            }
        };
        handle.map(PhysicalHandle)
    }

    fn host_calls(&self) -> Option<&dyn super::HostCalls> {
        Some(self)
    }

    fn capture_of(&self, device: DeviceId, stream: Stream) -> DriverResult<Option<u64>> {
        if stream.0 == 0 {
            return Ok(None);
        }
        let arguments = format_args!("{:#x}, device={device}", stream.0);
        let answer =
            self.on(device, "aclmdlRICaptureGetInfo", arguments, |sim| sim.capture_get_info(stream.0));
        match answer {
            Ok((CaptureStatus::None, _)) => Ok(None),
            Ok((_, graph)) => Ok(Some(graph)),
            Err(error) if error.missing_symbol.is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A device as ACL numbers it; one that does not fit becomes one that it refuses.
fn number(device: DeviceId) -> i32 {
    i32::try_from(device).unwrap_or(-1)
}

/// The kind that calls of the second version take; none for the first version.
fn share_kind(form: ShareForm) -> Option<u32> {
    match form {
        ShareForm::V1 => None,
        ShareForm::V2 => Some(1),
        ShareForm::Fabric => Some(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ascend_sim::SimConfig;

    fn driver() -> SimDriver {
        SimDriver::new(Sim::new(SimConfig { devices: 2, capacity: 64 << 20, ..SimConfig::default() }))
    }

    #[test]
    fn a_chunk_is_mapped_and_given_back() {
        let driver = driver();
        let range = driver.reserve(1, 8 << 20).unwrap();
        let chunk = driver.malloc_physical(1, 2 << 20, PageKind::Huge).unwrap();
        driver.map(1, range + (2 << 20), 2 << 20, chunk).unwrap();
        assert_eq!(driver.memory_info(1).unwrap().free, 62 << 20);
        assert_eq!(driver.memory_info(0).unwrap().free, 64 << 20);
        driver.unmap(1, range + (2 << 20)).unwrap();
        driver.free_physical(1, chunk).unwrap();
        driver.release(1, range).unwrap();
        assert_eq!(driver.memory_info(1).unwrap().free, 64 << 20);
        assert_eq!(driver.sim().count("aclrtMapMem"), 1);
    }

    #[test]
    fn an_error_says_what_was_asked_and_why_it_failed() {
        let driver = driver();
        let error = driver.malloc_physical(0, 1 << 40, PageKind::Huge).unwrap_err();
        assert!(error.is_out_of_memory());
        assert_eq!((error.call, error.name), ("aclrtMallocPhysical", "ACL_ERROR_RT_MEMORY_ALLOCATION"));
        assert!(error.arguments.contains("size=1099511627776"));
        assert!(error.message.unwrap().contains("no physical memory"));
        assert_eq!(driver.memory_info(9).unwrap_err().code, codes::RT_INVALID_DEVICEID);
    }

    #[test]
    fn the_callers_device_stays_what_it_was() {
        let driver = driver();
        driver.create_event(1).unwrap();
        assert_eq!(driver.sim().get_device(), Err(codes::RT_CONTEXT_NULL));
        driver.sim().set_device(0).unwrap();
        driver.synchronize_device(1).unwrap();
        assert!(driver.malloc(1, 1 << 40, PageKind::Huge).is_err());
        assert_eq!(driver.sim().get_device(), Ok(0));
    }

    #[test]
    fn a_missing_symbol_is_unsupported() {
        let driver = driver();
        driver.sim().set_missing(&["aclrtMemSetAccess", "aclmdlRICaptureGetInfo"]).unwrap();
        let error = driver.set_access(0, 0x1000, 4096, 0).unwrap_err();
        assert!(error.is_unsupported());
        assert_eq!(error.missing_symbol, Some("aclrtMemSetAccess"));
        assert!(!driver.is_capturing(0, Stream(0)).unwrap());
    }

    #[test]
    fn renumbered_devices_are_translated() {
        let config = SimConfig { devices: 4, visible_devices: Some(vec![1, 3]), ..SimConfig::default() };
        let driver = SimDriver::new(Sim::new(config));
        assert_eq!(driver.device_count().unwrap(), 2);
        assert!(!driver.owner_access_is_addressable(0));
        let chunk = driver.malloc_physical(1, 2 << 20, PageKind::Huge).unwrap();
        let range = driver.reserve(1, 2 << 20).unwrap();
        driver.map(1, range, 2 << 20, chunk).unwrap();
        driver.set_access(1, range, 2 << 20, 0).unwrap();
        assert_eq!(driver.sim().get_access(range, Location::device(1)), Ok(3));
        assert_eq!(driver.sim().get_access(range, Location::device(0)), Ok(0));
        assert_eq!(driver.sim().physical_bytes(3), 2 << 20);
        assert_eq!(driver.sim().physical_bytes(1), 0);
    }
}
