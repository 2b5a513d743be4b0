//! The host as a device: where regions and chunks of page-locked memory come from.
//!
//! [`HostDriver`] is a [`Driver`] of one device, which is the host. So the same heap, streams, epochs and ladder
//! manage page-locked memory that manage the memory of devices:
//!
//! | the allocator asks for | it gets |
//! |---|---|
//! | a classic segment | a region of `aclrtMallocHost`, as the options say with one address for host and device, or registered |
//! | a reservation, a chunk | address space, and physical memory of the host |
//! | an event on stream 0 | one that is over: the host has done what it did |
//! | an event on another stream | one of that stream's device |
//!
//! No lock is held while the driver below is called.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::options::{FreeOrder, PinnedOptions};
use super::stats::Times;
use super::streams::{HOST, Streams};
use crate::driver::{
    CODE_NOT_SUPPORTED, DeviceId, Driver, DriverError, DriverResult, Event, HostCalls, HostCopy, MemoryInfo,
    PageKind, PhysicalHandle, RegisterKind, Stream,
};
use crate::sync::Mutex;

/// What the host has when nobody can say.
const UNKNOWN_MEMORY: u64 = 1 << 40;
/// What registering a region brings: it is page-locked already.
const MAPPED: RegisterKind = RegisterKind { pinned: false, mapped: true };

/// See the module's documentation.
pub(super) struct HostDriver {
    driver: Arc<dyn Driver>,
    /// The device through which memory is taken.
    device: DeviceId,
    common: bool,
    registered: bool,
    order: FreeOrder,
    pub(super) streams: Streams,
    /// Regions by their first address.
    regions: Mutex<BTreeMap<u64, Region>>,
    pub(super) times: Mutex<Times>,
}

/// One region of the driver.
#[derive(Clone, Copy, Debug)]
struct Region {
    bytes: u64,
    /// Whether it is registered for the device.
    registered: bool,
    /// At which address kernels find it then.
    kernel: Option<u64>,
    /// Whether the device uses the same addresses.
    common: bool,
}

impl HostDriver {
    pub(super) fn new(driver: Arc<dyn Driver>, options: &PinnedOptions) -> Self {
        Self {
            driver,
            device: options.device,
            common: options.common_addresses,
            registered: options.registered,
            order: options.free_order,
            streams: Streams::default(),
            regions: Mutex::default(),
            times: Mutex::default(),
        }
    }

    /// The driver below.
    pub(super) fn below(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Whether the byte at `address` lies in a region.
    pub(super) fn is_in_region(&self, address: u64) -> bool {
        let regions = self.regions.lock();
        regions.range(..=address).next_back().is_some_and(|(&base, region)| address - base < region.bytes)
    }

    /// Where the device finds the byte at `address`, if it does at all, and whether by the host's address.
    pub(super) fn device_address(&self, address: u64) -> Option<(u64, bool)> {
        let regions = self.regions.lock();
        let (&base, region) = regions.range(..=address).next_back()?;
        let offset = address - base;
        if offset >= region.bytes {
            return None;
        }
        if region.common {
            return Some((address, true));
        }
        region.kernel.map(|start| (start + offset, false))
    }

    /// Waits for every device whose streams have used memory.
    pub(super) fn wait_for_devices(&self) -> DriverResult<()> {
        self.streams.devices().into_iter().try_for_each(|device| self.driver.synchronize_device(device))
    }

    fn calls(&self, call: &'static str) -> DriverResult<&dyn HostCalls> {
        self.driver.host_calls().ok_or_else(|| not_here(call))
    }

    /// Runs a call, and counts what it took if it succeeded.
    fn timed<T>(
        &self,
        of: fn(&mut Times) -> &mut super::stats::DurationStat,
        run: impl FnOnce() -> DriverResult<T>,
    ) -> DriverResult<T> {
        let start = self.driver.now();
        let answer = run()?;
        let spent = self.driver.now().saturating_sub(start);
        of(&mut self.times.lock()).add(spent);
        Ok(answer)
    }

    /// A region, registered if that is wanted.
    fn take(&self, bytes: u64) -> DriverResult<u64> {
        let (address, common) = self.take_plain(bytes)?;
        let mut region = Region { bytes, registered: false, kernel: None, common };
        if self.registered && !common {
            match self.register(address, bytes) {
                Ok(start) => (region.registered, region.kernel) = (true, Some(start)),
                Err((error, stays)) => {
                    // What cannot be given back either is kept: it is memory of this process still. What the device may
                    // still reach must not be.
                    if stays || self.driver.free_host(self.device, address).is_err() {
                        self.times.lock().lost += 1;
                    }
                    return Err(error);
                }
            }
        }
        self.regions.lock().insert(address, region);
        Ok(address)
    }

    fn take_plain(&self, bytes: u64) -> DriverResult<(u64, bool)> {
        if self.common
            && let Some(calls) = self.driver.host_calls()
        {
            match calls.malloc_common(self.device, bytes) {
                // Without the feature the region is a plain one, and asks for its device address say so.
                Err(error) if error.is_unsupported() => {}
                answer => return answer.map(|address| (address, true)),
            }
        }
        self.driver.malloc_host(self.device, bytes).map(|address| (address, false))
    }

    /// Makes a region known to the device; the address that kernels use. A refusal says also whether the region stays
    /// registered all the same.
    fn register(&self, address: u64, bytes: u64) -> Result<u64, (DriverError, bool)> {
        let calls = self.calls("aclrtHostRegisterV2").map_err(|error| (error, false))?;
        // SAFETY: the region is memory of this process, and is unregistered before it is freed.
        let given = unsafe { calls.register(self.device, address, bytes, MAPPED) };
        let given = given.map_err(|error| (error, false))?;
        given
            .map_or_else(|| calls.device_pointer(self.device, address), Ok)
            .map_err(|error| (error, calls.unregister(self.device, address).is_err()))
    }

    /// Gives a region back: first its registration, then the memory.
    fn give_back(&self, address: u64) -> DriverResult<()> {
        let region = self.regions.lock().get(&address).copied();
        if region.is_some_and(|region| region.registered) {
            self.calls("aclrtHostUnregister")?.unregister(self.device, address)?;
        }
        // Before the driver has it: another thread may get the same addresses as soon as it does.
        self.regions.lock().remove(&address);
        let answer = self.free(address);
        if answer.is_err()
            && let Some(mut region) = region
        {
            // The region stays in use: as it was, if that can be had.
            if region.registered {
                let again = self.register(address, region.bytes);
                region.registered = match again {
                    Ok(_) => true,
                    Err((_, stays)) => stays,
                };
                region.kernel = again.ok();
            }
            self.regions.lock().insert(address, region);
        }
        answer
    }

    fn free(&self, address: u64) -> DriverResult<()> {
        if self.order == FreeOrder::DeviceSync {
            match self.driver.host_calls().map(|calls| calls.free_synchronized(self.device, address)) {
                None => {}
                Some(Err(error)) if error.is_unsupported() => {}
                Some(answer) => return answer,
            }
            self.driver.synchronize_device(self.device)?;
        }
        self.driver.free_host(self.device, address)
    }
}

impl HostDriver {
    /// An event that the device does not know any more went with a reset, which nobody has to tell of here. When
    /// all that the device has to do is done, so is what came before the event.
    #[cold]
    fn outwait(&self, device: DeviceId, event: Event) -> DriverResult<()> {
        self.driver.synchronize_device(device)?;
        self.streams.lose(event);
        Ok(())
    }
}

/// Waits for a stream, or for its device where the stream is gone: then its work is over when the device's is.
pub(super) fn wait_for_stream(driver: &dyn Driver, device: DeviceId, stream: Stream) -> DriverResult<()> {
    match driver.synchronize_stream(device, stream) {
        Err(error) if error.is_unknown_handle() => driver.synchronize_device(device),
        answer => answer,
    }
}

#[cold]
fn not_here(call: &'static str) -> DriverError {
    DriverError {
        call,
        arguments: String::new(),
        code: CODE_NOT_SUPPORTED,
        name: crate::acl::codes::name(CODE_NOT_SUPPORTED),
        message: Some("this driver has no such call for host memory".to_owned()),
        missing_symbol: None,
    }
}

impl Driver for HostDriver {
    fn now(&self) -> u64 {
        self.driver.now()
    }

    fn device_count(&self) -> DriverResult<u32> {
        Ok(1)
    }

    fn memory_info(&self, _device: DeviceId) -> DriverResult<MemoryInfo> {
        let unknown = MemoryInfo { free: UNKNOWN_MEMORY, total: UNKNOWN_MEMORY };
        match self.driver.host_calls().map(HostCalls::memory) {
            None => Ok(unknown),
            Some(Err(error)) if error.is_unsupported() => Ok(unknown),
            Some(answer) => answer,
        }
    }

    fn granularity(&self, _device: DeviceId, _pages: PageKind) -> DriverResult<u64> {
        self.calls("aclrtMemGetAllocationGranularity")?.granularity(self.device)
    }

    fn tail_pad(&self, _device: DeviceId) -> DriverResult<u64> {
        // Engines read past the end of device memory; host memory they reach by copies of exact sizes.
        Ok(0)
    }

    fn owner_access_is_addressable(&self, _device: DeviceId) -> bool {
        false
    }

    fn reserve(&self, _device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.driver.reserve(self.device, bytes)
    }

    fn release(&self, _device: DeviceId, address: u64) -> DriverResult<()> {
        self.driver.release(self.device, address)
    }

    fn malloc_physical(
        &self,
        _device: DeviceId,
        bytes: u64,
        _pages: PageKind,
    ) -> DriverResult<PhysicalHandle> {
        let calls = self.calls("aclrtMallocPhysical")?;
        self.timed(|times| &mut times.alloc, || calls.malloc_physical(self.device, bytes))
    }

    fn free_physical(&self, _device: DeviceId, handle: PhysicalHandle) -> DriverResult<()> {
        self.timed(|times| &mut times.free, || self.driver.free_physical(self.device, handle))
    }

    fn map(&self, _device: DeviceId, address: u64, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        self.driver.map(self.device, address, bytes, handle)
    }

    fn unmap(&self, _device: DeviceId, address: u64) -> DriverResult<()> {
        if self.order == FreeOrder::DeviceSync {
            self.driver.synchronize_device(self.device)?;
        }
        self.driver.unmap(self.device, address)
    }

    fn set_access(&self, _device: DeviceId, _address: u64, _bytes: u64, _peer: DeviceId) -> DriverResult<()> {
        Err(not_here("aclrtMemSetAccess"))
    }

    fn malloc(&self, _device: DeviceId, bytes: u64, _pages: PageKind) -> DriverResult<u64> {
        self.timed(|times| &mut times.alloc, || self.take(bytes))
    }

    fn free(&self, _device: DeviceId, address: u64) -> DriverResult<()> {
        self.timed(|times| &mut times.free, || self.give_back(address))
    }

    fn create_event(&self, _device: DeviceId) -> DriverResult<Event> {
        Ok(self.streams.create())
    }

    fn destroy_event(&self, _device: DeviceId, event: Event) -> DriverResult<()> {
        match self.streams.destroy(event) {
            Some((device, event)) => self.driver.destroy_event(device, event),
            None => Ok(()),
        }
    }

    fn record_event(&self, _device: DeviceId, event: Event, stream: Stream) -> DriverResult<()> {
        self.streams.record(&*self.driver, event, stream)
    }

    fn query_event(&self, _device: DeviceId, event: Event) -> DriverResult<bool> {
        match self.streams.recorded(event) {
            Some((device, behind)) => match self.driver.query_event(device, behind) {
                Err(error) if error.is_unknown_handle() => self.outwait(device, event).map(|()| true),
                answer => answer,
            },
            None => Ok(true),
        }
    }

    fn synchronize_event(&self, _device: DeviceId, event: Event) -> DriverResult<()> {
        match self.streams.recorded(event) {
            Some((device, behind)) => match self.driver.synchronize_event(device, behind) {
                Err(error) if error.is_unknown_handle() => self.outwait(device, event),
                answer => answer,
            },
            None => Ok(()),
        }
    }

    fn stream_wait_event(&self, _device: DeviceId, _stream: Stream, _event: Event) -> DriverResult<()> {
        Err(not_here("aclrtStreamWaitEvent"))
    }

    fn synchronize_stream(&self, _device: DeviceId, stream: Stream) -> DriverResult<()> {
        match self.streams.stream(stream) {
            Some((device, stream)) => self.driver.synchronize_stream(device, stream),
            None => Ok(()),
        }
    }

    fn synchronize_device(&self, _device: DeviceId) -> DriverResult<()> {
        self.wait_for_devices()
    }

    fn malloc_host(&self, _device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.driver.malloc_host(self.device, bytes)
    }

    fn free_host(&self, _device: DeviceId, address: u64) -> DriverResult<()> {
        self.driver.free_host(self.device, address)
    }

    unsafe fn copy_async(&self, _device: DeviceId, copy: HostCopy, stream: Stream) -> DriverResult<()> {
        let (device, stream) = self.streams.stream(stream).unwrap_or((self.device, HOST));
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy_async(device, copy, stream) }
    }

    fn can_set_access(&self) -> bool {
        false
    }

    fn capture_of(&self, _device: DeviceId, stream: Stream) -> DriverResult<Option<u64>> {
        match self.streams.stream(stream) {
            Some((device, stream)) => self.driver.capture_of(device, stream),
            None => Ok(None),
        }
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        for (device, event) in self.streams.take_spare() {
            // An event that cannot be destroyed is gone with its device.
            let _destroyed = self.driver.destroy_event(device, event);
        }
    }
}
