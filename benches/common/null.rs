//! A driver that does nothing but number things, so that all that is left is the allocator.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ascend_alloc::driver::{
    DeviceId, Driver, DriverResult, Event, HostCopy, MemoryInfo, PageKind, PhysicalHandle, Stream,
};

/// Bytes of a granule.
const GRANULE: u64 = 2 << 20;
/// Where the first reservation lies, and what each is rounded up to.
const FIRST: u64 = 1 << 40;
/// Events told apart.
const EVENTS: usize = 1 << 16;

/// One device of any size without memory. No call allocates on the heap or fails.
pub struct NullDriver {
    capacity: u64,
    lag: u64,
    /// The next address to hand out.
    address: AtomicU64,
    /// The last handle or event handed out.
    number: AtomicU64,
    /// Events recorded so far.
    records: AtomicU64,
    /// For each event, how many had been recorded when it last was.
    stamps: Box<[AtomicU64]>,
}

impl NullDriver {
    /// A device with so many bytes, on which an event completes when `lag` more were recorded.
    pub fn new(capacity: u64, lag: u64) -> NullDriver {
        NullDriver {
            capacity,
            lag,
            address: AtomicU64::new(FIRST),
            number: AtomicU64::new(0),
            records: AtomicU64::new(0),
            stamps: (0..EVENTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, Relaxed) + 1
    }

    fn stamp(&self, event: Event) -> &AtomicU64 {
        &self.stamps[event.0 as usize % EVENTS]
    }
}

impl Driver for NullDriver {
    fn now(&self) -> u64 {
        0
    }

    fn device_count(&self) -> DriverResult<u32> {
        Ok(1)
    }

    fn memory_info(&self, _device: DeviceId) -> DriverResult<MemoryInfo> {
        Ok(MemoryInfo { free: self.capacity, total: self.capacity })
    }

    fn granularity(&self, _device: DeviceId, _pages: PageKind) -> DriverResult<u64> {
        Ok(GRANULE)
    }

    fn tail_pad(&self, _device: DeviceId) -> DriverResult<u64> {
        Ok(32)
    }

    fn owner_access_is_addressable(&self, _device: DeviceId) -> bool {
        true
    }

    fn reserve(&self, _device: DeviceId, bytes: u64) -> DriverResult<u64> {
        Ok(self.address.fetch_add(bytes.next_multiple_of(FIRST), Relaxed))
    }

    fn release(&self, _device: DeviceId, _address: u64) -> DriverResult<()> {
        Ok(())
    }

    fn malloc_physical(&self, _: DeviceId, _bytes: u64, _pages: PageKind) -> DriverResult<PhysicalHandle> {
        Ok(PhysicalHandle(self.next()))
    }

    fn free_physical(&self, _device: DeviceId, _handle: PhysicalHandle) -> DriverResult<()> {
        Ok(())
    }

    fn map(&self, _: DeviceId, _address: u64, _bytes: u64, _handle: PhysicalHandle) -> DriverResult<()> {
        Ok(())
    }

    fn unmap(&self, _device: DeviceId, _address: u64) -> DriverResult<()> {
        Ok(())
    }

    fn set_access(&self, _: DeviceId, _address: u64, _bytes: u64, _peer: DeviceId) -> DriverResult<()> {
        Ok(())
    }

    fn malloc(&self, device: DeviceId, bytes: u64, _pages: PageKind) -> DriverResult<u64> {
        self.reserve(device, bytes)
    }

    fn free(&self, _device: DeviceId, _address: u64) -> DriverResult<()> {
        Ok(())
    }

    fn create_event(&self, _device: DeviceId) -> DriverResult<Event> {
        Ok(Event(self.next()))
    }

    fn destroy_event(&self, _device: DeviceId, _event: Event) -> DriverResult<()> {
        Ok(())
    }

    fn record_event(&self, _device: DeviceId, event: Event, _stream: Stream) -> DriverResult<()> {
        let records = self.records.fetch_add(1, Relaxed) + 1;
        self.stamp(event).store(records, Relaxed);
        Ok(())
    }

    fn query_event(&self, _device: DeviceId, event: Event) -> DriverResult<bool> {
        Ok(self.records.load(Relaxed) - self.stamp(event).load(Relaxed) >= self.lag)
    }

    fn synchronize_event(&self, _device: DeviceId, _event: Event) -> DriverResult<()> {
        Ok(())
    }

    fn stream_wait_event(&self, _: DeviceId, _stream: Stream, _event: Event) -> DriverResult<()> {
        Ok(())
    }

    fn synchronize_stream(&self, _device: DeviceId, _stream: Stream) -> DriverResult<()> {
        Ok(())
    }

    fn synchronize_device(&self, _device: DeviceId) -> DriverResult<()> {
        Ok(())
    }

    fn malloc_host(&self, _device: DeviceId, bytes: u64) -> DriverResult<u64> {
        Ok(bytes)
    }

    fn free_host(&self, _device: DeviceId, _address: u64) -> DriverResult<()> {
        Ok(())
    }

    unsafe fn copy_async(&self, _device: DeviceId, _copy: HostCopy, _stream: Stream) -> DriverResult<()> {
        Ok(())
    }

    fn capture_of(&self, _device: DeviceId, _stream: Stream) -> DriverResult<Option<u64>> {
        Ok(None)
    }
}
