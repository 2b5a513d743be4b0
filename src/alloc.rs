//! The public allocator: device memory through `&self`, for any number of devices and threads.

use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

mod asked;
mod buffer;
mod caching;
mod captures;
#[cfg(test)]
mod checks;
mod chores;
mod claim;
#[cfg(test)]
mod credit;
mod device;
mod device_stats;
mod events;
mod figures;
mod frees;
mod growable;
mod host;
#[cfg(test)]
mod in_turn;
mod kind;
mod limits;
mod observe;
mod offload;
mod oom_report;
mod outside;
mod peaks;
mod peers;
mod pools;
mod pressure;
mod requests;
mod reset;
mod resize;
mod routes;
#[cfg(test)]
mod scale;
mod share;
mod sleep;
mod space;
mod states;
mod stats_export;
mod waiting;

pub use crate::core::source::PoolSource;
pub use buffer::{DeviceAlloc, DeviceBuffer};
pub use captures::{Capture, CapturedGraph, PoolCheckpoint, Restored};
pub use growable::{GrowableBuffer, GrowableOptions};
pub use limits::{Age, EmptyOptions};
pub use offload::ContentStore;
pub use pools::{PoolId, PoolOptions, PoolRoute, PoolStats};
pub use routes::RouteFilter;
pub use share::{Export, ExportOptions, ImportedBlock, Importers, Life, SharedHandle};
pub use sleep::{SleepMode, Slept, Woken};

use crate::config::Config;
use crate::core::snapshot::Snapshot;
use crate::driver::{DeviceId, Driver, StateChanges, Stream};
use crate::error::{Error, PointerKind, Result};
use crate::front::AddressMap;
use crate::history::log::{History, Lists, Noter};
use crate::hook::EventHook;
use crate::stats::Stats;
use crate::sync::Mutex;

use self::device::Device;

/// An address in device memory. Never dereferenced by this crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// What a request of zero bytes gives.
    pub const NULL: Self = Self(0);

    /// The address.
    #[must_use]
    pub fn address(self) -> u64 {
        self.0
    }

    /// Whether this is [`NULL`](Self::NULL).
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// What the allocator knows of a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The device it lies on.
    pub device: DeviceId,
    /// Its first address.
    pub address: u64,
    /// Bytes of the block; at least what was asked for, plus the pad.
    pub bytes: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// The stream it was allocated for.
    pub stream: Stream,
    /// First address of its segment.
    pub segment: u64,
    /// Bytes of address space of its segment.
    pub segment_bytes: u64,
    /// The pool it belongs to.
    pub pool: PoolId,
}

/// A caching allocator for the memory of all devices a driver knows.
///
/// Memory freed on a stream serves the same stream at once, and every stream as soon as the freeing
/// stream is known to have passed the free. Freed memory stays with the allocator until
/// [`trim`](Self::trim) or [`empty_cache`](Self::empty_cache), or until somebody needs it elsewhere.
///
/// # When memory is short
///
/// A request takes the first of these that gives it memory, and looks at the free blocks again after each:
///
/// 1. free blocks of its stream, then, with the front cache flushed, quiescent ones of other streams;
/// 2. epochs that are found to be over, of events under way and of events recorded now;
/// 3. chunks without an address, new ones within the headroom, quiescent idle ones moved from elsewhere,
///    new ones beyond the headroom (with room to spare, a wait of the stream on the device comes before
///    these where it opens much); where there are none, free blocks among large ones for a small request and the
///    other way round, and those of pools that lend;
/// 4. idle memory that cannot be moved is given back (classic segments; for a classic request idle chunks);
/// 5. framework callbacks are asked to free something ([`add_memory_callback`](Self::add_memory_callback)), and what was
///    imported, dropped and is not in use any more is released;
/// 6. its stream waits for others on the device;
/// 7. the host waits for single events;
/// 8. the host waits for the device, where an epoch can be ended in no other way;
/// 9. driver calls of other threads that hold memory end.
///
/// Each step takes no more than the request lacks. The soft limit is a reason for steps up to 6, only the
/// limit and the device itself for the others. [`Stats::ladder`](crate::Stats::ladder) counts the steps.
///
/// Any method may be called from any thread. No lock is held while the driver, the event hook, a callback
/// or a destructor runs. The caller's current device and context are never changed.
///
/// ```
/// use std::sync::Arc;
/// use ascend_alloc::driver::{SimDriver, Stream};
/// use ascend_alloc::{Config, DeviceAllocator};
///
/// # fn main() -> ascend_alloc::Result<()> {
/// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
/// let allocator = DeviceAllocator::new(Config::default(), driver)?;
/// let stream = Stream(0);
/// let ptr = allocator.allocate(0, 3 << 20, 0, stream)?;
/// assert_eq!(allocator.stats(0)?.requested_bytes.all.current, 3 << 20);
/// allocator.deallocate(ptr)?;
/// assert_eq!(allocator.stats(0)?.allocated_bytes.all.current, 0);
/// # Ok(())
/// # }
/// ```
pub struct DeviceAllocator {
    config: Config,
    /// Whether new segments grow, now. Held while that is told to devices, before their cores.
    growable: Mutex<bool>,
    driver: Arc<dyn Driver>,
    map: AddressMap,
    /// The segments that the map does not cover.
    outside: outside::Outside,
    /// One place for each device the driver knows, filled when the device is first used.
    devices: Arc<[OnceLock<Device>]>,
    hook: crate::hook::HookSlot,
    /// Blocks of other processes.
    imports: Mutex<share::Imports>,
    /// Whoever takes in memory that a source gave, which is compared with that of other devices.
    sourcing: Mutex<()>,
    /// Streams and devices that ended, as far as the driver tells of them.
    changes: Arc<StateChanges>,
    /// For host memory: the bytes of a page.
    host_page: Option<u64>,
    /// Whether calls have to note what they do.
    noting: AtomicBool,
    /// Whether frees go another way than the usual one: because of that, or to give idle memory back now and then.
    aside: AtomicBool,
    /// What happened, as far as anybody wants to know.
    history: Arc<History>,
    /// Where is noted what belongs to no shard and no core.
    marks: Noter,
    /// What is told to the outside in the background.
    tellers: observe::Tellers,
    /// Where the content of sleeping pools is kept, if not in memory of the driver.
    store: OnceLock<Arc<dyn ContentStore>>,
    /// How often a reset has ended the links of a device.
    resets: AtomicU64,
}

impl core::fmt::Debug for DeviceAllocator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceAllocator")
            .field("config", &self.config)
            .field("devices", &self.devices.len())
            .finish_non_exhaustive()
    }
}

impl DeviceAllocator {
    /// An allocator that uses no memory yet; devices are set up when they are first used.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when the configuration contradicts itself, [`Error::Driver`] when the devices
    /// cannot be counted. A file or socket that the settings name and that cannot be had is no error: that is said
    /// on standard error and tried again.
    pub fn new(config: Config, driver: Arc<dyn Driver>) -> Result<Self> {
        let mut allocator = Self::silent(config, driver)?;
        allocator.tell_as_configured();
        Ok(allocator)
    }

    /// One that tells nothing to the outside, whatever the settings say.
    fn silent(config: Config, driver: Arc<dyn Driver>) -> Result<Self> {
        config.validate()?;
        let count = driver.device_count()?;
        let changes = Arc::new(StateChanges::default());
        let history = Arc::new(History::default());
        let decays = config.decays();
        driver.watch_states(&changes);
        Ok(Self {
            growable: Mutex::new(config.expandable_segments),
            config,
            driver,
            map: AddressMap::new(),
            outside: outside::Outside::default(),
            devices: (0..count).map(|_| OnceLock::new()).collect(),
            hook: crate::hook::HookSlot::default(),
            imports: Mutex::default(),
            sourcing: Mutex::default(),
            changes,
            host_page: None,
            noting: AtomicBool::new(false),
            aside: AtomicBool::new(decays),
            marks: Noter::new(&Lists::new(&history, 0, 0), 0),
            history,
            tellers: observe::Tellers::default(),
            store: OnceLock::new(),
            resets: AtomicU64::new(0),
        })
    }

    /// A block of at least `bytes` bytes for use on `stream`, its address a multiple of `align` (0 or 1:
    /// the least alignment, 512; at most 1 GiB). Zero bytes give [`DevicePtr::NULL`]. The content is not defined.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] after everything that could be given back was; [`Error::Size`] for a
    /// size that no device can have; [`Error::Argument`] for an alignment that is not a power of two
    /// or a device the driver does not know; [`Error::Driver`] when the driver refuses a call for
    /// another reason. Nothing has changed then.
    #[inline]
    pub fn allocate(&self, device: DeviceId, bytes: u64, align: u64, stream: Stream) -> Result<DevicePtr> {
        if let Some(Some(state)) = self.devices.get(device as usize).map(OnceLock::get)
            && align <= crate::core::UNIT
            && align & align.wrapping_sub(1) == 0
            && !state.routes.any()
            && !self.changes.any()
            && !self.is_noting()
            && let Some(address) = state.take_resting::<false>(&self.map, bytes, stream)
        {
            self.watch(state, 3);
            return Ok(DevicePtr(address));
        }
        self.allocate_slowly(device, bytes, align, stream)
    }

    /// Gives a block back. Work already queued on the streams the block was used on may still run; the
    /// memory is handed out again only where that is in order. [`DevicePtr::NULL`] is accepted.
    ///
    /// Whoever frees a block must not queue new work on it. That is the only duty: the allocator
    /// itself never reads or writes device memory, so this is not `unsafe`.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the pointer is not the start of a live block. Nothing has changed then.
    #[inline]
    pub fn deallocate(&self, ptr: DevicePtr) -> Result<()> {
        self.free::<false>(ptr, 0)
    }

    /// Tells that work on `stream` uses the block too: after it is freed it is not reused before that
    /// stream has passed the free. Recording a block's own stream changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the pointer is not the start of a live block.
    #[inline]
    pub fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<()> {
        if let Some((owner, entry)) = self.map.find(ptr.0)
            && let Some(Some(state)) = self.devices.get(owner.device() as usize).map(OnceLock::get)
            && !self.changes.any()
            && !self.is_noting()
            && state.front.record(entry, ptr.0, stream)
        {
            self.watch(state, 3);
            return Ok(());
        }
        self.record_slowly(ptr, stream)
    }

    /// The statistics of a device; all zero while it has not been used.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device.
    pub fn stats(&self, device: DeviceId) -> Result<Stats> {
        let unused =
            || Stats { max_split_size: device_stats::shown(self.config.max_split_size), ..Stats::default() };
        Ok(self.used(device)?.map_or_else(unused, Device::stats))
    }

    /// Lets all peaks of the device and its pools start again from the current values.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device.
    pub fn reset_peak_stats(&self, device: DeviceId) -> Result<()> {
        if let Some(state) = self.used(device)? {
            state.reset_peaks();
        }
        Ok(())
    }

    /// Lets all sums and event counts of the device and its pools start again from zero.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device.
    pub fn reset_accumulated_stats(&self, device: DeviceId) -> Result<()> {
        if let Some(state) = self.used(device)? {
            state.reset_accumulated();
        }
        Ok(())
    }

    /// The segments and blocks of a device as plain data.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device.
    pub fn snapshot(&self, device: DeviceId) -> Result<Snapshot> {
        Ok(self.used(device)?.map(Device::snapshot).unwrap_or_default())
    }

    /// What is known of the live block that begins at `ptr`.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the pointer is not the start of a live block.
    pub fn block_info(&self, ptr: DevicePtr) -> Result<BlockInfo> {
        self.owner(ptr.0)?.block_info(&self.map, ptr.0)
    }

    /// Tells that a stream is being destroyed: to be called before it is, while no other call that could
    /// record an event on it is in progress. Its handle is never given to the driver again, and its memory
    /// belongs to everybody once the work queued on it is over. A new stream with the same
    /// handle value is another stream. Of a stream that is destroyed without a word the driver tells when an event is to be
    /// recorded on it; but a new one with its handle is taken for the old one then.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device or the default stream.
    pub fn stream_destroyed(&self, device: DeviceId, stream: Stream) -> Result<()> {
        if stream == Stream(0) {
            return Err(Error::Argument {
                name: "stream",
                value: "0".to_owned(),
                expected: "a stream that can be destroyed; the default stream lives as long as its device",
            });
        }
        if let Some(state) = self.used(device)? {
            state.stream_destroyed(&self.map, stream);
            self.watch(state, 2);
        }
        self.forget_importers(Some(device), Some(stream));
        Ok(())
    }

    /// Sets or removes the hook that is told of every event. It is called without any lock and may call
    /// the allocator. While a hook is set, the front cache is bypassed.
    pub fn set_event_hook(&self, hook: Option<EventHook>) {
        let active = hook.is_some();
        self.hook.set(hook);
        for state in self.devices.iter().filter_map(OnceLock::get) {
            state.follow_hook(&self.map, &self.config, active);
        }
    }

    /// The configuration the allocator was made with. What changes while it runs has functions of its own.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many devices the allocator serves.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// The heap checker: recomputes everything on all devices from the blocks up.
    ///
    /// # Errors
    ///
    /// One line for each invariant that does not hold, named as in ALLOCATOR_DESIGN.md.
    pub fn check(&self) -> core::result::Result<(), Vec<String>> {
        let mut faults = Vec::new();
        for state in self.devices.iter().filter_map(OnceLock::get) {
            state.check(&self.map, &mut faults);
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// A layout with a size and alignment that a request can have.
    pub(crate) fn parts(layout: Layout) -> (u64, u64) {
        (layout.size() as u64, layout.align() as u64)
    }

    /// The device's state, set up if need be.
    fn device(&self, id: DeviceId) -> Result<&Device> {
        self.heed();
        let place = self.place(id)?;
        match place.get() {
            Some(state) => Ok(state),
            None => self.set_up(id, place),
        }
    }

    #[cold]
    #[inline(never)]
    fn set_up<'a>(&'a self, id: DeviceId, place: &'a OnceLock<Device>) -> Result<&'a Device> {
        // Two threads may both ask the driver; the first to finish wins, the other's answer is dropped.
        let hooked = self.hook.is_set();
        let state = Device::new(id, &self.config, &*self.driver, hooked, self.host_page, &self.history)?;
        let state = self.put_in_place(place, state);
        if self.hook.is_set() != hooked {
            // The hook was set or removed before it could be told to this device.
            state.follow_hook(&self.map, &self.config, !hooked);
        }
        Ok(state)
    }

    /// The device's state, if it has been used.
    fn used(&self, id: DeviceId) -> Result<Option<&Device>> {
        self.heed();
        Ok(self.place(id)?.get())
    }

    fn place(&self, id: DeviceId) -> Result<&OnceLock<Device>> {
        self.devices.get(id as usize).ok_or_else(|| Error::Argument {
            name: "device",
            value: id.to_string(),
            expected: "a device the driver knows",
        })
    }

    fn chosen(&self, device: Option<DeviceId>) -> Result<core::ops::Range<DeviceId>> {
        match device {
            Some(id) => self.place(id).map(|_| id..id + 1),
            None => Ok(0..self.device_count()),
        }
    }

    /// The device one of whose segments contains the address. No other device is asked, because each has a lock.
    fn owner(&self, address: u64) -> Result<&Device> {
        self.heed();
        let state = |device: DeviceId| self.devices.get(device as usize).and_then(OnceLock::get);
        if let Some(state) = self.map.find(address).and_then(|(owner, _)| state(owner.device())) {
            return Ok(state);
        }
        let covered = self.map.owner_of(address).and_then(|owner| state(owner.device()));
        let outside = self.outside.find(address).and_then(state);
        let has_it = |state: &Device| state.core.lock().starts.contains_key(&address);
        let owner = match (outside, covered) {
            // The memory of one of them is on its way back, and was given out again before that was noted.
            (Some(one), Some(other)) if !core::ptr::eq(one, other) && !has_it(one) => Some(other),
            (one, other) => one.or(other),
        };
        owner.ok_or(Error::Pointer { address, kind: PointerKind::Foreign })
    }

    fn caller<'a>(&'a self, device: &'a Device) -> device::Caller<'a> {
        device::Caller {
            driver: &*self.driver,
            map: &self.map,
            outside: &self.outside,
            hook: &self.hook,
            oom: self.tellers.oom.as_ref(),
            store: self.store.get().map(|store| &**store),
            all: &self.devices,
            sourcing: &self.sourcing,
            device,
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_slowly(&self, device: DeviceId, bytes: u64, align: u64, stream: Stream) -> Result<DevicePtr> {
        if self.is_noting() {
            return self.allocate_noted(device, bytes, align, stream);
        }
        self.allocate_by_core(device, bytes, align, stream)
    }

    /// A block from the core.
    fn allocate_by_core(
        &self,
        device: DeviceId,
        bytes: u64,
        align: u64,
        stream: Stream,
    ) -> Result<DevicePtr> {
        let Some((state, align)) = self.asked(device, bytes, align)? else { return Ok(DevicePtr::NULL) };
        let request = |pool| self.caller(state).allocate(pool, bytes, align, stream);
        self.routed(state, stream, request).map(DevicePtr)
    }

    /// Checks the heap after a call that took no lock (level 3) or has left it (level 2), if that is wanted.
    #[inline]
    fn watch(&self, device: &Device, level: u8) {
        if cfg!(debug_assertions) && self.config.check_level >= level {
            self.caller(device).watch(&mut device.core.lock(), level);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_slowly(&self, ptr: DevicePtr, stream: Stream) -> Result<()> {
        if self.is_noting() {
            return self.record_noted(ptr, stream);
        }
        self.record_by_core(ptr, stream)
    }

    /// Has the core note a use on another stream.
    fn record_by_core(&self, ptr: DevicePtr, stream: Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let device = self.owner(ptr.0)?;
        device.record_stream(&self.map, ptr.0, stream)?;
        self.watch(device, 2);
        Ok(())
    }
}

impl DeviceAllocator {
    /// Gives everything back that is free, and the events, as dropping does; what is live stays, also the content of
    /// pools that sleep. For allocators that are never dropped, when the process ends. The allocator can still be used.
    pub fn shut_down(&self) {
        self.wind_up(false);
    }

    /// The same; with `last` nobody can wake a pool any more.
    fn wind_up(&self, last: bool) {
        self.collect_imports(true);
        for state in self.devices.iter().filter_map(OnceLock::get) {
            state.shut_down(&self.caller(state), last);
        }
        self.flush_files();
    }
}

impl Drop for DeviceAllocator {
    /// Gives everything that is free back; memory of blocks that are still live stays with the driver.
    fn drop(&mut self) {
        self.wind_up(true);
    }
}
