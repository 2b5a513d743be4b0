//! The allocator of page-locked memory.

use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

use super::emptying::keep_at_most;
use super::ends::Ends;
use super::front::{Front, Put};
use super::options::PinnedOptions;
use super::source::HostDriver;
use super::stats::PinnedStats;
use super::streams::HOST;
use super::worker::Worker;
use super::{HostPtr, KernelPtr};
use crate::alloc::{DeviceAllocator, DevicePtr};
use crate::config::Config;
use crate::core::UNIT;
use crate::driver::{DeviceId, Driver, DriverResult, Stream};
use crate::error::{Error, PointerKind, Result};
use crate::stats::Stat;

/// The number of the only "device" of the allocator below.
pub(super) const ONLY: DeviceId = 0;

/// A caching allocator for page-locked host memory.
///
/// Blocks are multiples of 512 bytes at multiples of 512, cut from larger regions and merged when they are free.
/// A block that a copy uses is told to the allocator with [`record_use`](Self::record_use); once freed it is
/// reused only when that stream has passed the free. Streams do not wait for one another: each has epochs of its
/// own, closed by events.
///
/// Any method may be called from any thread. No lock is held while the driver is called. When the allocator is dropped,
/// everything that is free goes back to the driver; blocks that are still live stay valid until the process ends.
///
/// ```
/// use std::sync::Arc;
/// use ascend_alloc::driver::{SimDriver, Stream};
/// use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
///
/// # fn main() -> ascend_alloc::Result<()> {
/// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
/// let pinned = PinnedAllocator::new(PinnedOptions::default(), driver)?;
/// let ptr = pinned.allocate(3 << 20, 0)?;
/// // ... queue a copy from or to the block on the default stream of device 0, and tell the allocator:
/// pinned.record_use(ptr, 0, Stream(0))?;
/// pinned.deallocate(ptr)?;
/// pinned.process_events()?;
/// assert_eq!(pinned.stats().active_bytes.current, 0);
/// # Ok(())
/// # }
/// ```
pub struct PinnedAllocator {
    pub(super) options: PinnedOptions,
    pub(super) heap: Arc<DeviceAllocator>,
    pub(super) source: Arc<HostDriver>,
    front: Arc<Front>,
    pub(super) ends: Arc<Ends>,
    /// Whether freed blocks may rest in the front.
    rests: bool,
    /// Whether a history is kept: then none rests.
    pub(super) noted: AtomicBool,
    page: u64,
    /// How many the driver knows.
    devices: u32,
    worker: Option<Worker>,
}

impl PinnedAllocator {
    /// An allocator; it takes memory of the driver only for the start-up reserve.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a device the driver does not know and for a limit or a largest request of 0, and what
    /// [`allocate`](Self::allocate) answers when there is no memory for the reserve.
    pub fn new(options: PinnedOptions, driver: Arc<dyn Driver>) -> Result<Self> {
        let devices = driver.device_count()?;
        known(options.device, devices)?;
        let zero = |name, expected| Err(Error::Argument { name, value: "0".to_owned(), expected });
        if options.max_total == Some(0) {
            return zero("max_total", "more than 0, or none for no limit");
        }
        if options.largest_request == 0 {
            return zero("largest_request", "more than 0");
        }
        let page = os_page();
        let source = Arc::new(HostDriver::new(driver, &options));
        let below: Arc<dyn Driver> = source.clone();
        let heap = Arc::new(DeviceAllocator::for_host(options.below(), options.max_total, below, page)?);
        let mut allocator = Self {
            rests: options.max_cached.is_none() && options.decay.is_none(),
            noted: AtomicBool::new(false),
            ends: Arc::new(Ends::new(&source, &heap)),
            heap,
            source,
            front: Arc::new(Front::new()),
            page,
            devices,
            worker: None,
            options,
        };
        if allocator.options.reserve > 0 {
            let ptr = allocator.take_of_heap(allocator.options.reserve, 0)?;
            allocator.deallocate(ptr)?;
            allocator.bring_back();
        }
        if allocator.options.background {
            allocator.worker = Some(Worker::start(
                Arc::clone(&allocator.heap),
                Arc::clone(&allocator.ends),
                allocator.options.max_cached,
            )?);
        }
        Ok(allocator)
    }

    /// An allocator as the `pinned_*` and `pin_memory_*` settings of a configuration say.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`Error::Config`] when the configuration contradicts itself.
    pub fn from_config(config: &Config, driver: Arc<dyn Driver>) -> Result<Self> {
        config.validate()?;
        Self::new(PinnedOptions::from_config(config), driver)
    }

    /// A block of at least `bytes` bytes at a multiple of `align` (0 or 1: the least alignment, 512; up to 1 GiB;
    /// [`page_size`](Self::page_size) for whole pages). Zero bytes give [`HostPtr::NULL`]. The content is not defined.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] when the machine or the limit has no more, after what was free went back;
    /// [`Error::Size`] above `largest_request` of the options; [`Error::Argument`] for an alignment that is no power of
    /// two; [`Error::Driver`] when the driver refuses for another reason. Nothing has changed then.
    #[inline]
    pub fn allocate(&self, bytes: u64, align: u64) -> Result<HostPtr> {
        if align <= UNIT
            && align & align.wrapping_sub(1) == 0
            && bytes.wrapping_sub(1) < self.options.largest_request
            && !self.noted.load(Relaxed)
            && let Some(ptr) = self.front.take(self.rounded(bytes))
        {
            return Ok(ptr);
        }
        self.allocate_slowly(bytes, align)
    }

    /// Blocks of at most `most` bytes (0: the largest request) that have `bytes` bytes together, for data larger
    /// than one region can be. Bytes of each block and the block, in order.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate); blocks taken before that are given back.
    pub fn allocate_split(&self, bytes: u64, most: u64) -> Result<Vec<(u64, HostPtr)>> {
        let most =
            if most == 0 { self.options.largest_request } else { most.min(self.options.largest_request) };
        let mut blocks = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let part = left.min(most);
            match self.allocate(part, 0) {
                Ok(ptr) => blocks.push((part, ptr)),
                Err(error) => {
                    for (_, ptr) in blocks {
                        let given_back = self.deallocate(ptr);
                        debug_assert!(given_back.is_ok(), "{given_back:?}");
                    }
                    return Err(error);
                }
            }
            left -= part;
        }
        Ok(blocks)
    }

    /// Gives a block back. Copies that were recorded may still run. [`HostPtr::NULL`] is accepted.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the pointer is not that of a live block. Nothing has changed then.
    #[inline]
    pub fn deallocate(&self, ptr: HostPtr) -> Result<()> {
        match self.front.put(ptr, self.rests && !self.noted.load(Relaxed)) {
            Put::Rests => Ok(()),
            Put::Claimed => self.give_to_heap(ptr),
            Put::NotLive => self.refuse(ptr),
        }
    }

    /// Waits until the device that memory is taken through, and those of which streams were recorded, have done everything
    /// queued, then gives a block back: for blocks with uses there that were not recorded. See [`FreeOrder`](super::FreeOrder) for what regions wait for.
    ///
    /// # Errors
    ///
    /// As [`deallocate`](Self::deallocate), and [`Error::Driver`] when a device cannot be waited for; the block is
    /// live then.
    pub fn deallocate_synchronized(&self, ptr: HostPtr) -> Result<()> {
        self.source.below().synchronize_device(self.options.device)?;
        self.source.wait_for_devices()?;
        self.deallocate(ptr)
    }

    /// Tells that work queued on a stream of a device uses the block: once freed, it is not reused before that
    /// stream has passed the free. To be called when the work is queued, before the block is freed.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a device the driver does not know; [`Error::Pointer`] when the pointer is not that of a
    /// live block.
    pub fn record_use(&self, ptr: HostPtr, device: DeviceId, stream: Stream) -> Result<()> {
        self.know(device)?;
        if ptr.is_null() {
            return Ok(());
        }
        if !self.front.mark_used(ptr) {
            return self.refuse(ptr);
        }
        if !self.options.stream_order {
            return Ok(());
        }
        self.ends.heed();
        let number = self.source.streams.number(device, stream);
        self.heap.record_stream(DevicePtr(ptr.address), number)
    }

    /// Tells that a stream is being destroyed, where the runtime does not tell by itself (before CANN 8.5): to be called
    /// before it is, while nobody records it. Its handle is never given to the driver again, nor by copies in flight. What
    /// waits for it is free once the device has been waited for, which happens when that memory is needed.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a device the driver does not know.
    pub fn stream_destroyed(&self, device: DeviceId, stream: Stream) -> Result<()> {
        self.know(device)?;
        match self.source.streams.forget(device, stream) {
            Some(number) => self.heap.stream_destroyed(ONLY, number),
            None => Ok(()),
        }
    }

    /// Refuses devices that the driver does not know.
    pub(super) fn know(&self, device: DeviceId) -> Result<()> {
        known(device, self.devices)
    }

    /// The number of a stream that uses memory from now on, to be waited for.
    pub(super) fn number(&self, device: DeviceId, stream: Stream) -> Stream {
        self.ends.heed();
        self.source.streams.number(device, stream)
    }

    /// Waits for a stream by its number, or for its device where the stream is gone.
    pub(super) fn wait_for(&self, number: Stream) -> DriverResult<()> {
        self.ends.heed();
        self.source.streams.wait(&**self.driver(), number)
    }

    /// The live block that begins at an address, for callers that know only that.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when no live block begins there.
    pub fn find(&self, address: u64) -> Result<HostPtr> {
        match self.front.find(address) {
            Some(ptr) => Ok(ptr),
            None => Err(self.unknown(HostPtr { address, slot: u32::MAX })),
        }
    }

    /// Bytes of a live block: at least what was asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the pointer is not that of a live block.
    pub fn block_bytes(&self, ptr: HostPtr) -> Result<u64> {
        self.front.len(ptr).ok_or_else(|| self.unknown(ptr))
    }

    /// Where kernels on the device find a live block.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the pointer is not that of a live block; [`Error::State`] when its region is neither
    /// registered nor at one address for host and device, as the options or the driver have it.
    pub fn kernel_ptr(&self, ptr: HostPtr) -> Result<KernelPtr> {
        self.block_bytes(ptr)?;
        match self.source.device_address(ptr.address) {
            Some((address, common)) => Ok(KernelPtr::new(address, common)),
            None => Err(Error::State {
                operation: "asking for the device address of page-locked memory",
                reason: "its region is not mapped for the device; set registered or common_addresses, where the \
                         driver has them",
            }),
        }
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> PinnedStats {
        let flow = self.front.flow();
        // The only device is known, so there is an answer.
        let below = self.heap.stats(ONLY).unwrap_or_default();
        let waiting_bytes = self.heap.waiting_bytes(ONLY).unwrap_or(0);
        let times = self.source.times.lock();
        let merged = |stat: Stat, part: fn((i64, i64)) -> i64| {
            let (taken, put, drained) = (part(flow.taken), part(flow.put), part(flow.drained));
            let current = stat.current - (put - taken - drained);
            Stat {
                current,
                peak: stat.peak.max(current),
                allocated: stat.allocated + taken,
                freed: stat.freed + put - drained,
            }
        };
        PinnedStats {
            active_requests: merged(below.active.all, |(count, _)| count),
            active_bytes: merged(below.active_bytes.all, |(_, bytes)| bytes),
            allocations: below.segment.all,
            allocated_bytes: below.reserved_bytes.all,
            num_host_alloc: below.num_device_alloc,
            num_host_free: below.num_device_free,
            host_alloc_time: times.alloc,
            host_free_time: times.free,
            waiting_bytes,
            lost: times.lost,
        }
    }

    /// Lets all peaks start again from the current values.
    pub fn reset_peak_stats(&self) {
        self.bring_back();
        // The only device is known.
        let _known = self.heap.reset_peak_stats(ONLY);
    }

    /// Bytes of a page of the operating system.
    #[must_use]
    pub fn page_size(&self) -> u64 {
        self.page
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &PinnedOptions {
        &self.options
    }

    /// The driver that gives the memory.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.source.below()
    }

    /// The heap checker: recomputes everything from the blocks up.
    ///
    /// # Errors
    ///
    /// One line for each invariant that does not hold.
    pub fn check(&self) -> core::result::Result<(), Vec<String>> {
        self.heap.check()
    }

    /// The length of the block for a request.
    #[inline]
    fn rounded(&self, bytes: u64) -> u64 {
        let stepped = match self.options.round_up_to {
            Some(most) if bytes <= most => step_up(bytes),
            _ => bytes,
        };
        // The heap refuses what does not fit.
        stepped.saturating_add(UNIT - 1) & !(UNIT - 1)
    }

    #[cold]
    #[inline(never)]
    fn allocate_slowly(&self, bytes: u64, align: u64) -> Result<HostPtr> {
        if bytes == 0 && (align <= 1 || align.is_power_of_two()) {
            return Ok(HostPtr::NULL);
        }
        if bytes > self.options.largest_request {
            let most = self.options.largest_request;
            let reason = format!(
                "more than one page-locked block may have (largest_request: {most}); drivers fail to lock single \
                 regions of 200 GB and more, so ask for several blocks (allocate_split)"
            );
            return Err(Error::Size { requested: bytes, reason: reason.into() });
        }
        self.ends.heed();
        self.bring_back();
        let taken = self.take_of_heap(self.rounded(bytes), align);
        // It may have found streams that have passed.
        keep_at_most(&self.heap, self.options.max_cached);
        taken.map_err(|error| asked_for(bytes, error))
    }

    fn take_of_heap(&self, bytes: u64, align: u64) -> Result<HostPtr> {
        let taken =
            self.heap.allocate(ONLY, bytes, align, HOST).map_err(|error| self.named_for_the_host(error))?;
        let len = bytes.next_multiple_of(UNIT);
        debug_assert_eq!(self.heap.block_info(taken).map(|info| info.bytes).ok(), Some(len));
        self.front.admit(taken.0, len).ok_or_else(|| {
            let given_back = self.heap.deallocate(taken);
            debug_assert!(given_back.is_ok(), "{given_back:?}");
            Error::State {
                operation: "allocating page-locked memory",
                reason: "16 million blocks are live; free some",
            }
        })
    }

    /// Gives a claimed block to the heap.
    fn give_to_heap(&self, ptr: HostPtr) -> Result<()> {
        self.ends.heed();
        self.give_back_claimed(ptr)?;
        // An event that cannot be recorded now is recorded when memory is wanted.
        let _closed = self.heap.close_used_streams(ONLY);
        if let Some(worker) = &self.worker {
            worker.wake();
        }
        keep_at_most(&self.heap, self.options.max_cached);
        Ok(())
    }

    fn give_back_claimed(&self, ptr: HostPtr) -> Result<()> {
        self.front.dismiss(ptr);
        self.heap.deallocate(DevicePtr(ptr.address))
    }

    /// Brings all resting blocks back to the heap.
    pub(super) fn bring_back(&self) {
        for ptr in self.front.drain() {
            let given_back = self.give_back_claimed(ptr);
            debug_assert!(given_back.is_ok(), "{given_back:?}");
        }
    }

    /// Says of an error that it is about the host, with the streams as the caller knows them.
    #[cold]
    fn named_for_the_host(&self, error: Error) -> Error {
        let mut report = match error {
            Error::OutOfMemory(report) => report,
            Error::Size { requested, reason } => {
                let reason = reason.replace("any device", "any machine").into();
                return Error::Size { requested, reason };
            }
            other => return other,
        };
        report.is_of_host();
        for held in &mut report.pending {
            // Uses of the host itself are over at once, so every stream that holds memory back is a device's.
            if let Some((device, stream)) = self.source.streams.stream(held.stream) {
                (held.device, held.stream) = (device, stream);
            }
        }
        Error::OutOfMemory(report)
    }

    #[cold]
    fn refuse(&self, ptr: HostPtr) -> Result<()> {
        if ptr.is_null() { Ok(()) } else { Err(self.unknown(ptr)) }
    }

    /// In which way a pointer is wrong.
    #[cold]
    fn unknown(&self, ptr: HostPtr) -> Error {
        let address = ptr.address;
        let kind = match self.heap.block_info(DevicePtr(address)) {
            // The heap takes resting blocks for live.
            Ok(_) => PointerKind::NotLive,
            Err(Error::Pointer { kind, .. }) => kind,
            Err(error) => return error,
        };
        Error::Pointer { address, kind }
    }
}

impl core::fmt::Debug for PinnedAllocator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PinnedAllocator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Drop for PinnedAllocator {
    fn drop(&mut self) {
        // The thread first: it uses the heap.
        self.worker = None;
        self.bring_back();
    }
}

/// Refuses devices beyond the number of those that the driver knows.
pub(super) fn known(device: DeviceId, devices: u32) -> Result<()> {
    if device < devices {
        return Ok(());
    }
    Err(Error::Argument { name: "device", value: device.to_string(), expected: "a device the driver knows" })
}

/// The error of a request, with the bytes that were asked for where it has those of the block.
#[cold]
fn asked_for(bytes: u64, error: Error) -> Error {
    match error {
        Error::OutOfMemory(mut report) => {
            report.requested = bytes;
            Error::OutOfMemory(report)
        }
        Error::Size { reason, .. } => Error::Size { requested: bytes, reason },
        other => other,
    }
}

/// Rounds up to a step of an eighth of the power of two below: by at most 12.5 %.
#[inline]
fn step_up(bytes: u64) -> u64 {
    let below = 1u64 << (63 - (bytes | 1).leading_zeros());
    let step = (below / 8).max(1);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// The page of the operating system; 4096 where it does not say.
pub(super) fn os_page() -> u64 {
    rustix_page().map_or(4096, |page| page.get() as u64)
}

fn rustix_page() -> Option<NonZeroUsize> {
    NonZeroUsize::new(rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_waste_an_eighth_at_most() {
        for bytes in (1..20_000).chain([(128 << 20) - 1, (128 << 20) + 1, 204 << 20, u64::from(u32::MAX)]) {
            let stepped = step_up(bytes);
            assert!(stepped >= bytes && (stepped - bytes) * 8 < bytes, "{bytes}: {stepped}");
        }
        assert_eq!(step_up(100 << 20), 104 << 20);
        assert_eq!(step_up(128 << 20), 128 << 20);
    }
}
