//! A driver around a driver, that counts or times the calls of the allocator.
//!
//! The program that is replayed talks to the simulator beside this wrapper, so what is seen here
//! was asked for by the allocator and by nobody else.

use std::sync::atomic::{AtomicU64, Ordering};

use ascend_alloc::driver::{
    DeviceId, Driver, DriverResult, Event, HostCopy, MemoryInfo, PageKind, PhysicalHandle, Stream,
};
use rustix::time::{ClockId, clock_gettime};

/// A driver call, as far as replays tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Call {
    /// Reserve an address range.
    Reserve,
    /// Give one back.
    Release,
    /// Take a chunk.
    MallocPhysical,
    /// Give a chunk back.
    FreePhysical,
    /// Map a chunk.
    Map,
    /// Unmap one.
    Unmap,
    /// Grant access.
    SetAccess,
    /// Take a fixed block.
    Malloc,
    /// Give a fixed block back.
    Free,
    /// Record an event.
    RecordEvent,
    /// Ask whether an event has completed.
    QueryEvent,
    /// The host waits for an event.
    WaitEvent,
    /// A stream waits for an event.
    StreamWaitEvent,
    /// The host waits for a stream.
    WaitStream,
    /// The host waits for the device.
    WaitDevice,
    /// Questions, and making and destroying events.
    Other,
}

const CALLS: usize = Call::Other as usize + 1;

/// What happens around each driver call.
pub trait Probe: Send + Sync {
    /// Runs the call, and notes what is wanted of it.
    fn around<T>(&self, call: Call, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T>;
}

/// Counts calls, tried and successful apart.
#[derive(Default)]
pub struct Counting {
    tried: [AtomicU64; CALLS],
    done: [AtomicU64; CALLS],
}

impl Counting {
    /// How often the call was made.
    #[must_use]
    pub fn tried(&self, call: Call) -> u64 {
        self.tried[call as usize].load(Ordering::Relaxed)
    }

    /// How often it succeeded.
    #[must_use]
    pub fn done(&self, call: Call) -> u64 {
        self.done[call as usize].load(Ordering::Relaxed)
    }
}

impl Probe for Counting {
    fn around<T>(&self, call: Call, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        self.tried[call as usize].fetch_add(1, Ordering::Relaxed);
        let answer = run();
        if answer.is_ok() {
            self.done[call as usize].fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// Adds up the CPU time spent in driver calls.
///
/// A call is enclosed by two readings of the clock, of which one whole reading falls outside of
/// what they enclose; its cost, measured at the start, is added to each call, so that the timing
/// itself does not count as work of the allocator.
pub struct Timing {
    nanos: AtomicU64,
    reading: u64,
}

impl Timing {
    /// Measures the clock and starts at zero.
    #[must_use]
    pub fn new() -> Self {
        const READINGS: u64 = 2_000;
        let start = cpu_nanos();
        for _ in 0..READINGS {
            std::hint::black_box(cpu_nanos());
        }
        Timing { nanos: AtomicU64::new(0), reading: (cpu_nanos() - start) / READINGS }
    }

    /// CPU nanoseconds in driver calls so far.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::new()
    }
}

impl Probe for Timing {
    fn around<T>(&self, _call: Call, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let start = cpu_nanos();
        let answer = run();
        let spent = cpu_nanos().saturating_sub(start) + self.reading;
        self.nanos.fetch_add(spent, Ordering::Relaxed);
        answer
    }
}

/// CPU time of this process in nanoseconds, all threads together.
#[must_use]
pub fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A driver whose calls go through a [`Probe`].
///
/// [`Driver::now`] and [`Driver::owner_access_is_addressable`] are passed on without it: they are
/// no device calls, and far cheaper than a reading of the clock.
pub struct Metered<D, P> {
    inner: D,
    probe: P,
}

impl<D: Driver, P: Probe> Metered<D, P> {
    /// Puts the probe around the driver.
    #[must_use]
    pub fn new(inner: D, probe: P) -> Self {
        Metered { inner, probe }
    }

    /// The probe.
    #[must_use]
    pub fn probe(&self) -> &P {
        &self.probe
    }
}

impl<D: Driver, P: Probe> Driver for Metered<D, P> {
    fn now(&self) -> u64 {
        self.inner.now()
    }

    fn owner_access_is_addressable(&self, device: DeviceId) -> bool {
        self.inner.owner_access_is_addressable(device)
    }

    fn device_count(&self) -> DriverResult<u32> {
        self.probe.around(Call::Other, || self.inner.device_count())
    }

    fn memory_info(&self, device: DeviceId) -> DriverResult<MemoryInfo> {
        self.probe.around(Call::Other, || self.inner.memory_info(device))
    }

    fn granularity(&self, device: DeviceId, pages: PageKind) -> DriverResult<u64> {
        self.probe.around(Call::Other, || self.inner.granularity(device, pages))
    }

    fn tail_pad(&self, device: DeviceId) -> DriverResult<u64> {
        self.probe.around(Call::Other, || self.inner.tail_pad(device))
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.probe.around(Call::Reserve, || self.inner.reserve(device, bytes))
    }

    fn release(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.probe.around(Call::Release, || self.inner.release(device, address))
    }

    fn malloc_physical(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<PhysicalHandle> {
        self.probe.around(Call::MallocPhysical, || self.inner.malloc_physical(device, bytes, pages))
    }

    fn free_physical(&self, device: DeviceId, handle: PhysicalHandle) -> DriverResult<()> {
        self.probe.around(Call::FreePhysical, || self.inner.free_physical(device, handle))
    }

    fn map(&self, device: DeviceId, address: u64, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        self.probe.around(Call::Map, || self.inner.map(device, address, bytes, handle))
    }

    fn unmap(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.probe.around(Call::Unmap, || self.inner.unmap(device, address))
    }

    fn set_access(&self, device: DeviceId, address: u64, bytes: u64, peer: DeviceId) -> DriverResult<()> {
        self.probe.around(Call::SetAccess, || self.inner.set_access(device, address, bytes, peer))
    }

    fn malloc(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<u64> {
        self.probe.around(Call::Malloc, || self.inner.malloc(device, bytes, pages))
    }

    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.probe.around(Call::Free, || self.inner.free(device, address))
    }

    fn create_event(&self, device: DeviceId) -> DriverResult<Event> {
        self.probe.around(Call::Other, || self.inner.create_event(device))
    }

    fn destroy_event(&self, device: DeviceId, event: Event) -> DriverResult<()> {
        self.probe.around(Call::Other, || self.inner.destroy_event(device, event))
    }

    fn record_event(&self, device: DeviceId, event: Event, stream: Stream) -> DriverResult<()> {
        self.probe.around(Call::RecordEvent, || self.inner.record_event(device, event, stream))
    }

    fn query_event(&self, device: DeviceId, event: Event) -> DriverResult<bool> {
        self.probe.around(Call::QueryEvent, || self.inner.query_event(device, event))
    }

    fn synchronize_event(&self, device: DeviceId, event: Event) -> DriverResult<()> {
        self.probe.around(Call::WaitEvent, || self.inner.synchronize_event(device, event))
    }

    fn stream_wait_event(&self, device: DeviceId, stream: Stream, event: Event) -> DriverResult<()> {
        self.probe.around(Call::StreamWaitEvent, || self.inner.stream_wait_event(device, stream, event))
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream) -> DriverResult<()> {
        self.probe.around(Call::WaitStream, || self.inner.synchronize_stream(device, stream))
    }

    fn synchronize_device(&self, device: DeviceId) -> DriverResult<()> {
        self.probe.around(Call::WaitDevice, || self.inner.synchronize_device(device))
    }

    fn malloc_host(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.probe.around(Call::Other, || self.inner.malloc_host(device, bytes))
    }

    fn free_host(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.probe.around(Call::Other, || self.inner.free_host(device, address))
    }

    unsafe fn copy_async(&self, device: DeviceId, copy: HostCopy, stream: Stream) -> DriverResult<()> {
        // SAFETY: passed on.
        self.probe.around(Call::Other, || unsafe { self.inner.copy_async(device, copy, stream) })
    }

    fn capture_of(&self, device: DeviceId, stream: Stream) -> DriverResult<Option<u64>> {
        self.probe.around(Call::Other, || self.inner.capture_of(device, stream))
    }
}
