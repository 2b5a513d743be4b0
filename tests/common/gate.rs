//! A driver on which a task ends when the test says so, and everything else when its turn comes.
//!
//! The simulated machine either lets work end by time or, with an endless lag, not by itself. A script
//! wants both: its tasks stay, and an event behind nothing unfinished is complete at once. So this
//! driver, asked about an event, first lets the event's stream run unless a task holds it up.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use ascend_alloc::driver::{
    DeviceId, Driver, DriverResult, Event, HostCopy, MemoryInfo, PageKind, PhysicalHandle, ShareForm,
    ShareName, SimDriver, Stream,
};
use ascend_alloc::{DeviceAllocator, Error, Result};
use ascend_sim::Sim;

/// Which tasks hold which streams up. A task is named by its stream.
#[derive(Debug, Default)]
struct Holds {
    streams: HashMap<Stream, HashSet<Stream>>,
    events: HashMap<Event, Stream>,
}

impl Holds {
    fn over(&mut self, stream: Stream) {
        let ended = self.streams.remove(&stream).unwrap_or_default();
        for tasks in self.streams.values_mut() {
            tasks.retain(|task| !ended.contains(task) && *task != stream);
        }
    }
}

/// What is told when a wait for a stream is over.
pub const WAITED: &str = "a stream was waited for";
/// What is told when a wait for the device is over.
pub const WAITED_FOR_ALL: &str = "the device was waited for";
/// What is told when a wait for an event is over.
pub const PASSED: &str = "an event was waited for";
/// What is told when page-locked memory was given back.
pub const FREED: &str = "page-locked memory was given back";
/// What is told when a chunk was named for other processes.
pub const NAMED: &str = "a chunk was named";
/// What is told when a chunk of another process was imported.
pub const IMPORTED: &str = "a chunk was imported";

/// A function that is told of a call that moves, names, imports or copies memory, records an event or asks about a
/// capture, by its ACL name, before it is made; and of [`WAITED`], [`WAITED_FOR_ALL`], [`PASSED`], [`FREED`], [`NAMED`] and [`IMPORTED`].
pub type Watcher = Arc<dyn Fn(&'static str) + Send + Sync>;

/// See the module's documentation.
pub struct GatedDriver {
    inner: SimDriver,
    /// Whether events behind nothing unfinished complete when asked about.
    prompt: bool,
    /// Whether it has more than the basic calls for host memory.
    offers_host_calls: bool,
    holds: Mutex<Holds>,
    watcher: Mutex<Option<Watcher>>,
    /// Where the next reservation begins.
    place: Mutex<Option<u64>>,
}

impl GatedDriver {
    pub fn new(inner: SimDriver) -> Self {
        let (holds, watcher, place) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { inner, prompt: true, offers_host_calls: false, holds, watcher, place }
    }

    /// One with all calls for host memory.
    pub fn with_host_calls(inner: SimDriver) -> Self {
        Self { offers_host_calls: true, ..Self::new(inner) }
    }

    /// One that leaves it to the machine when work ends.
    pub fn passive(inner: SimDriver) -> Self {
        Self { prompt: false, ..Self::new(inner) }
    }

    /// Sets or removes the function that is told of calls that move memory. It may block: no lock is held.
    pub fn watch(&self, watcher: Option<Watcher>) {
        *self.watcher.lock().unwrap() = watcher;
    }

    /// Takes a reservation of the allocator's and all that is mapped in it away, as some resets do; the next one begins
    /// there again.
    pub fn take_reservation(&self, start: u64, mapped: impl Iterator<Item = u64>) {
        mapped.for_each(|address| self.inner.sim().unmap(address).unwrap());
        self.inner.sim().release(start).unwrap();
        *self.place.lock().unwrap() = Some(start);
    }

    fn tell(&self, call: &'static str) {
        let watcher = self.watcher.lock().unwrap().clone();
        if let Some(watcher) = watcher {
            watcher(call);
        }
    }

    /// A task was queued to the stream that ends only when told.
    pub fn hold(&self, stream: Stream) {
        self.holds.lock().unwrap().streams.entry(stream).or_default().insert(stream);
    }

    /// A stream waits on the device for another.
    pub fn order(&self, first: Stream, then: Stream) {
        let mut holds = self.holds.lock().unwrap();
        let tasks = holds.streams.get(&first).cloned().unwrap_or_default();
        holds.streams.entry(then).or_default().extend(tasks);
    }

    /// All tasks of the stream end, and those it waits for.
    pub fn finish(&self, device: DeviceId, stream: Stream) -> Result<(), i32> {
        self.holds.lock().unwrap().over(stream);
        self.inner.sim().executor().run_stream(device, stream.0)
    }

    /// A handle was given back: whoever gets it again is another stream.
    pub fn forget(&self, stream: Stream) {
        let mut holds = self.holds.lock().unwrap();
        holds.streams.remove(&stream);
        holds.events.retain(|_, recorded| *recorded != stream);
    }
}

impl Driver for GatedDriver {
    fn now(&self) -> u64 {
        self.inner.now()
    }

    fn device_count(&self) -> DriverResult<u32> {
        self.inner.device_count()
    }

    fn memory_info(&self, device: DeviceId) -> DriverResult<MemoryInfo> {
        self.inner.memory_info(device)
    }

    fn granularity(&self, device: DeviceId, pages: PageKind) -> DriverResult<u64> {
        self.inner.granularity(device, pages)
    }

    fn tail_pad(&self, device: DeviceId) -> DriverResult<u64> {
        self.inner.tail_pad(device)
    }

    fn owner_access_is_addressable(&self, device: DeviceId) -> bool {
        self.inner.owner_access_is_addressable(device)
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        let Some(start) = self.place.lock().unwrap().take() else { return self.inner.reserve(device, bytes) };
        let mut found = 0;
        self.inner.sim().reserve_into(&mut found, bytes, 0, start, 0).unwrap();
        Ok(found)
    }

    fn release(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.inner.release(device, address)
    }

    fn malloc_physical(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<PhysicalHandle> {
        self.tell("aclrtMallocPhysical");
        self.inner.malloc_physical(device, bytes, pages)
    }

    fn free_physical(&self, device: DeviceId, handle: PhysicalHandle) -> DriverResult<()> {
        self.tell("aclrtFreePhysical");
        self.inner.free_physical(device, handle)
    }

    fn map(&self, device: DeviceId, address: u64, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        self.tell("aclrtMapMem");
        self.inner.map(device, address, bytes, handle)
    }

    fn unmap(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.tell("aclrtUnmapMem");
        self.inner.unmap(device, address)
    }

    fn set_access(&self, device: DeviceId, address: u64, bytes: u64, peer: DeviceId) -> DriverResult<()> {
        self.tell("aclrtMemSetAccess");
        self.inner.set_access(device, address, bytes, peer)
    }

    fn malloc(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<u64> {
        self.tell("aclrtMallocAlign32");
        self.inner.malloc(device, bytes, pages)
    }

    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.tell("aclrtFree");
        self.inner.free(device, address)
    }

    fn create_event(&self, device: DeviceId) -> DriverResult<Event> {
        self.inner.create_event(device)
    }

    fn destroy_event(&self, device: DeviceId, event: Event) -> DriverResult<()> {
        self.inner.destroy_event(device, event)
    }

    fn record_event(&self, device: DeviceId, event: Event, stream: Stream) -> DriverResult<()> {
        self.tell("aclrtRecordEvent");
        self.inner.record_event(device, event, stream)?;
        self.holds.lock().unwrap().events.insert(event, stream);
        Ok(())
    }

    fn query_event(&self, device: DeviceId, event: Event) -> DriverResult<bool> {
        let holds = self.holds.lock().unwrap();
        let stream = holds.events.get(&event).copied();
        let free = |stream: &Stream| holds.streams.get(stream).is_none_or(HashSet::is_empty);
        let stream = stream.filter(free).filter(|_| self.prompt);
        drop(holds);
        if let Some(stream) = stream {
            // A stream that is gone answers that it is, and has nothing more to run.
            let _ = self.inner.sim().executor().run_stream(device, stream.0);
        }
        self.inner.query_event(device, event)
    }

    fn synchronize_event(&self, device: DeviceId, event: Event) -> DriverResult<()> {
        self.inner.synchronize_event(device, event)?;
        let mut holds = self.holds.lock().unwrap();
        if let Some(stream) = holds.events.get(&event).copied() {
            holds.over(stream);
        }
        drop(holds);
        self.tell(PASSED);
        Ok(())
    }

    fn stream_wait_event(&self, device: DeviceId, stream: Stream, event: Event) -> DriverResult<()> {
        self.inner.stream_wait_event(device, stream, event)?;
        let first = self.holds.lock().unwrap().events.get(&event).copied();
        if let Some(first) = first {
            self.order(first, stream);
        }
        Ok(())
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream) -> DriverResult<()> {
        self.inner.synchronize_stream(device, stream)?;
        self.holds.lock().unwrap().over(stream);
        self.tell(WAITED);
        Ok(())
    }

    fn synchronize_device(&self, device: DeviceId) -> DriverResult<()> {
        self.inner.synchronize_device(device)?;
        self.holds.lock().unwrap().streams.clear();
        self.tell(WAITED_FOR_ALL);
        Ok(())
    }

    fn malloc_host(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.inner.malloc_host(device, bytes)
    }

    fn free_host(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        let freed = self.inner.free_host(device, address);
        self.tell(FREED);
        freed
    }

    fn host_calls(&self) -> Option<&dyn ascend_alloc::driver::HostCalls> {
        self.offers_host_calls.then(|| self.inner.host_calls()).flatten()
    }

    unsafe fn copy_async(&self, device: DeviceId, copy: HostCopy, stream: Stream) -> DriverResult<()> {
        self.tell("aclrtMemcpyAsync");
        // SAFETY: passed on.
        unsafe { self.inner.copy_async(device, copy, stream) }
    }

    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> DriverResult<bool> {
        self.inner.can_access_peer(device, peer)
    }

    fn enable_peer_access(&self, device: DeviceId, peer: DeviceId) -> DriverResult<()> {
        self.tell("aclrtDeviceEnablePeerAccess");
        self.inner.enable_peer_access(device, peer)
    }

    fn export_chunk(
        &self,
        device: DeviceId,
        handle: PhysicalHandle,
        form: ShareForm,
        for_all: bool,
    ) -> DriverResult<ShareName> {
        let name = self.inner.export_chunk(device, handle, form, for_all);
        self.tell(NAMED);
        name
    }

    fn import_chunk(&self, device: DeviceId, name: &ShareName) -> DriverResult<PhysicalHandle> {
        self.tell("aclrtMemImportFromShareableHandle");
        let handle = self.inner.import_chunk(device, name);
        self.tell(IMPORTED);
        handle
    }

    fn capture_of(&self, device: DeviceId, stream: Stream) -> DriverResult<Option<u64>> {
        self.tell("aclmdlRICaptureGetInfo");
        self.inner.capture_of(device, stream)
    }
}

/// Resets the first device, and tells the allocator.
pub fn reset(sim: &Sim, alloc: &DeviceAllocator) {
    sim.reset_device_force(0).unwrap();
    sim.set_device(0).unwrap();
    alloc.device_was_reset(0).unwrap();
}

/// A call that a reset came before says so.
#[track_caller]
pub fn was_reset<T: std::fmt::Debug>(answer: Result<T>) {
    match answer {
        Err(Error::State { reason, .. }) if reason.contains("reset meanwhile") => {}
        other => panic!("{other:?}"),
    }
}
