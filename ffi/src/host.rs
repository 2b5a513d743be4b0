//! Page-locked host memory: one allocator for each device through which memory is taken.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::Arc;

use allocator::driver::{AclDriver, DeviceId, Stream};
use allocator::host::{DurationStat, HostPtr, PinnedAllocator, PinnedOptions};
use allocator::{Config, ContentStore, Error};
use parking_lot::Mutex;

use crate::arguments::{self, Versioned};
use crate::process::Failure;
use crate::stats::AscendAllocStat;
use crate::{guard, process};

/// The allocators made so far. Never dropped, as the one of device memory.
static PINNED: Mutex<BTreeMap<DeviceId, Arc<PinnedAllocator>>> = Mutex::new(BTreeMap::new());

/// Page-locked host memory of at least size bytes at a multiple of 512, taken through the device, which
/// copies with any device may use. The content is not defined; freed memory is kept for later requests as
/// the pinned_* settings say. A size of 0 gives null and is no error; for every other size null
/// means that ascend_alloc_last_status says why. Callable from any thread.
///
/// # Safety
///
/// As ascend_alloc_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_host_malloc(size: usize, device: c_int) -> *mut c_void {
    let run = || {
        let (bytes, device) = (process::size(size)?, process::device(device)?);
        // SAFETY: the caller's promise.
        let pinned = unsafe { pinned(device) }?;
        Ok(process::pointer(pinned.allocate(bytes, 0)?.address()))
    };
    guard::run(run).unwrap_or(core::ptr::null_mut())
}

/// Gives page-locked host memory back; null is accepted. Copies that were told with
/// ascend_alloc_host_record_stream may still run: the memory is reused when their streams have passed.
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_free(ptr: *mut c_void) -> c_int {
    guard::release(|| match ptr.is_null() {
        true => Ok(()),
        false => {
            let (pinned, block) = find(ptr)?;
            Ok(pinned.deallocate(block)?)
        }
    })
}

/// Tells that work queued on a stream of a device uses a page-locked block: once freed, it is not reused before that
/// stream has passed the free. Null is accepted. Callable from any thread. In a forked child it does nothing and
/// succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_record_stream(
    ptr: *mut c_void,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    guard::release(|| match ptr.is_null() {
        true => Ok(()),
        false => {
            let (pinned, block) = find(ptr)?;
            Ok(pinned.record_use(block, process::device(device)?, process::stream(stream))?)
        }
    })
}

/// Gives free page-locked memory of all devices back. Waits for nothing (but for a device that was reset since, because
/// its events are gone): what streams may still use stays.
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_empty_cache() -> c_int {
    guard::release(|| all().iter().try_for_each(|pinned| Ok(pinned.empty_cache().map(drop)?)))
}

/// The same, but waits for the streams that used the memory. Callable from any thread. In a forked child it does nothing
/// and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_empty_cache_waiting() -> c_int {
    guard::release(|| all().iter().try_for_each(|pinned| Ok(pinned.empty_cache_waiting().map(drop)?)))
}

/// How long calls of one kind took, in microseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AscendAllocDurationStat {
    /// All calls together.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest; 0 when there was none.
    pub min: u64,
    /// How many.
    pub count: u64,
    /// The mean; 0 when there was none.
    pub avg: u64,
}

/// Statistics of page-locked memory taken through a device, with the names and meanings of PyTorch's host
/// allocator. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AscendAllocHostStats {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// Blocks in use or waiting for streams, a count.
    pub active_requests: AscendAllocStat,
    /// Their bytes, as rounded.
    pub active_bytes: AscendAllocStat,
    /// Regions held, a count.
    pub allocations: AscendAllocStat,
    /// Page-locked memory held, in use or free.
    pub allocated_bytes: AscendAllocStat,
    /// How often memory was taken of the runtime library.
    pub num_host_alloc: i64,
    /// How often it was given back.
    pub num_host_free: i64,
    /// How long the calls took that took memory.
    pub host_alloc_time: AscendAllocDurationStat,
    /// How long the calls took that gave it back.
    pub host_free_time: AscendAllocDurationStat,
}

// SAFETY: `repr(C)`, the size first, all else numbers.
unsafe impl Versioned for AscendAllocHostStats {
    const FIRST: usize = size_of::<Self>();
}

/// The statistics of page-locked memory taken through a device; all zero while there is none. Callable from any
/// thread.
///
/// # Safety
///
/// stats is null or points to as many bytes as its struct_size says, and at least to that field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_host_get_stats(
    device: c_int,
    stats: *mut AscendAllocHostStats,
) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { arguments::sized(stats, "stats") }?;
        let device = process::known_device(device)?;
        let found = PINNED.lock().get(&device).map(|pinned| pinned.stats()).unwrap_or_default();
        let filled = AscendAllocHostStats {
            struct_size: size_of::<AscendAllocHostStats>(),
            active_requests: found.active_requests.into(),
            active_bytes: found.active_bytes.into(),
            allocations: found.allocations.into(),
            allocated_bytes: found.allocated_bytes.into(),
            num_host_alloc: found.num_host_alloc as i64,
            num_host_free: found.num_host_free as i64,
            host_alloc_time: duration(found.host_alloc_time),
            host_free_time: duration(found.host_free_time),
        };
        // SAFETY: the caller's promise; the size was answered above.
        unsafe { arguments::fill(stats, size, &filled) };
        Ok(())
    })
}

fn duration(stat: DurationStat) -> AscendAllocDurationStat {
    let DurationStat { total, max, min, count, .. } = stat;
    AscendAllocDurationStat { total, max, min, count, avg: stat.avg() }
}

/// The allocator that takes memory through a device, made if need be.
///
/// # Safety
///
/// As [`process::process`].
unsafe fn pinned(device: DeviceId) -> Result<Arc<PinnedAllocator>, Failure> {
    // SAFETY: as this function's.
    let process = unsafe { process::process() }?;
    Ok(made(device, process.allocator.config(), process.driver.clone())?)
}

/// The allocator that takes memory through a device, made unless there is one.
fn made(device: DeviceId, config: &Config, driver: Arc<AclDriver>) -> Result<Arc<PinnedAllocator>, Error> {
    if let Some(pinned) = PINNED.lock().get(&device) {
        return Ok(Arc::clone(pinned));
    }
    let options = PinnedOptions { device, ..PinnedOptions::from_config(config) };
    // Without the lock, because a reserve is taken of the driver. The loser of a race gives its own back.
    let made = Arc::new(PinnedAllocator::new(options, driver)?);
    let kept = Arc::clone(PINNED.lock().entry(device).or_insert_with(|| Arc::clone(&made)));
    Ok(kept)
}

/// Keeps the content of sleeping pools in the page-locked memory that the functions here give out.
pub(crate) struct Content {
    /// The settings of the process.
    pub(crate) config: Config,
    /// What page-locked memory is taken of.
    pub(crate) driver: Arc<AclDriver>,
}

// SAFETY: an allocator of page-locked memory is such a store, and what one gave out it takes back: there is one for
// each device, for ever.
unsafe impl ContentStore for Content {
    fn take(&self, device: DeviceId, bytes: u64) -> Result<u64, Error> {
        made(device, &self.config, self.driver.clone())?.take(device, bytes)
    }

    fn give_back(&self, device: DeviceId, address: u64) {
        if let Ok(pinned) = made(device, &self.config, self.driver.clone()) {
            pinned.give_back(device, address);
        }
    }
}

/// Tells all allocators that a stream ends.
pub(crate) fn stream_destroyed(device: DeviceId, stream: Stream) -> Result<(), Failure> {
    for pinned in all() {
        pinned.stream_destroyed(device, stream)?;
    }
    Ok(())
}

fn all() -> Vec<Arc<PinnedAllocator>> {
    PINNED.lock().values().map(Arc::clone).collect()
}

/// The live block that begins there, and whose it is.
fn find(ptr: *mut c_void) -> Result<(Arc<PinnedAllocator>, HostPtr), Failure> {
    process::existing()?;
    let address = ptr.addr() as u64;
    let mut wrong = None;
    for pinned in all() {
        match pinned.find(address) {
            Ok(block) => return Ok((pinned, block)),
            Err(error) => wrong = Some(error),
        }
    }
    Err(wrong.map_or_else(
        || process::argument(format!("pointer {address:#x} is no page-locked memory of this allocator")),
        Failure::from,
    ))
}
