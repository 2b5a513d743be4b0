//! Statistics, limits and questions about blocks.

use core::ffi::{c_char, c_int, c_void};

use allocator::stats::{Stat, StatArray};
use allocator::{DevicePtr, Stats};

use crate::arguments::{self, Versioned};
use crate::{fork, guard, pools, process, snapshot};

/// One statistic over time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AscendAllocStat {
    /// The value now.
    pub current: i64,
    /// The highest value since the peaks were reset.
    pub peak: i64,
    /// Sum of all increases since the sums were reset.
    pub allocated: i64,
    /// Sum of all decreases since the sums were reset.
    pub freed: i64,
}

/// A statistic for all blocks, and apart for small ones (at most 1 MiB) and large ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AscendAllocStatArray {
    /// All blocks.
    pub all: AscendAllocStat,
    /// Small blocks.
    pub small_pool: AscendAllocStat,
    /// Large blocks.
    pub large_pool: AscendAllocStat,
}

/// Statistics of a device, with PyTorch's names and meanings. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AscendAllocStats {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// Blocks handed out, a count.
    pub allocation: AscendAllocStatArray,
    /// Segments, a count: a reservation counts as one.
    pub segment: AscendAllocStatArray,
    /// Blocks handed out or waiting for streams, a count.
    pub active: AscendAllocStatArray,
    /// Free pieces of segments that cannot grow, a count.
    pub inactive_split: AscendAllocStatArray,
    /// Bytes handed out, rounded.
    pub allocated_bytes: AscendAllocStatArray,
    /// Bytes with physical memory behind them.
    pub reserved_bytes: AscendAllocStatArray,
    /// Bytes handed out or waiting for streams.
    pub active_bytes: AscendAllocStatArray,
    /// Free pieces of segments that cannot grow, bytes.
    pub inactive_split_bytes: AscendAllocStatArray,
    /// Bytes handed out, as asked for.
    pub requested_bytes: AscendAllocStatArray,
    /// Blocks of at least max_split_size in segments that cannot grow.
    pub oversize_allocations: AscendAllocStat,
    /// Segments of at least max_split_size that cannot grow.
    pub oversize_segments: AscendAllocStat,
    /// Requests that succeeded only after memory had been given back.
    pub num_alloc_retries: i64,
    /// Requests that failed for lack of memory.
    pub num_ooms: i64,
    /// How often all streams were waited for.
    pub num_sync_all_streams: i64,
    /// Ranges taken from the device.
    pub num_device_alloc: i64,
    /// Ranges given back to the device.
    pub num_device_free: i64,
    /// max_split_size in force, or -1.
    pub max_split_size: i64,
    /// Address space reserved.
    pub reserved_address_space: i64,
    /// Chunks held without an address.
    pub cached_handles: i64,
    /// Active blocks without memory behind them, because their pool sleeps.
    pub sleeping_bytes: i64,
    /// Chunks moved from one address to another without asking the device, a count.
    pub chunks_moved: i64,
    /// Calls of the runtime library that map memory.
    pub map_calls: i64,
    /// Calls that unmap memory.
    pub unmap_calls: i64,
    /// Calls that create physical memory.
    pub malloc_physical_calls: i64,
    /// Calls that free physical memory.
    pub free_physical_calls: i64,
    /// How often the host waited for an event, a stream or the device.
    pub wait_calls: i64,
    /// Frees whose caller said another size than it had asked for, a count; see ascend_alloc_free.
    pub size_mismatches: i64,
}

// SAFETY: `repr(C)`, the size first, and only numbers.
unsafe impl Versioned for AscendAllocStats {
    const FIRST: usize = size_of::<Self>();
}

/// The statistics of a device; all zero while it has not been used.
///
/// out->struct_size is set by the caller. Callable from any thread, also in a forked child, which
/// reads them as they were at the fork.
///
/// # Safety
///
/// out is null or points to as many bytes as its struct_size says, and at least to that field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_stats(device: c_int, out: *mut AscendAllocStats) -> c_int {
    guard::code(guard::everywhere(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { arguments::sized(out, "out") }?;
        let device = process::known_device(device)?;
        let stats = match process::if_set_up() {
            _ if fork::in_child() => fork::frozen(device),
            Some(allocator) => allocator.stats(device)?,
            None => Stats::default(),
        };
        // SAFETY: as above.
        unsafe { arguments::fill(out, size, &AscendAllocStats::from(&stats)) };
        Ok(())
    }))
}

/// Lets all peaks of the device start again from the current values. Callable from any thread. In a forked child it
/// does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_reset_peak_stats(device: c_int) -> c_int {
    guard::release(|| {
        let device = process::device(device)?;
        process::if_set_up().map_or(Ok(()), |allocator| Ok(allocator.reset_peak_stats(device)?))
    })
}

/// Lets all sums and counts of events of the device start again from zero. Callable from any thread. In a forked
/// child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_reset_accumulated_stats(device: c_int) -> c_int {
    guard::release(|| {
        let device = process::device(device)?;
        process::if_set_up().map_or(Ok(()), |allocator| Ok(allocator.reset_accumulated_stats(device)?))
    })
}

/// Limits the physical memory held on the device to a fraction of its total: more than 0, at most 1,
/// which removes this limit. Where the configuration sets one in bytes too, the smaller counts. Memory already held is
/// not given back. Sets the allocator up if nobody has.
///
/// Callable from any thread.
///
/// # Safety
///
/// Unless ascend_alloc_init was called before, what it asks of the environment holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_memory_fraction(fraction: f64, device: c_int) -> c_int {
    guard::status(|| {
        let device = process::device(device)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { process::allocator() }?.set_memory_fraction(device, fraction)?)
    })
}

/// The most physical memory, in bytes, that this library may hold on the device goes to *limit, whoever set that, the
/// configuration or ascend_alloc_set_memory_fraction; SIZE_MAX where there is no limit. Sets the allocator up if nobody has.
///
/// Callable from any thread.
///
/// # Safety
///
/// limit is null or valid for a write. Else as ascend_alloc_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_memory_limit(device: c_int, limit: *mut usize) -> c_int {
    guard::status(|| {
        let place = arguments::place(limit, "limit")?;
        let device = process::device(device)?;
        // SAFETY: the caller's promise.
        let found = unsafe { process::allocator() }?.memory_limit(device)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(found.map_or(usize::MAX, |bytes| bytes as usize)) };
        Ok(())
    })
}

/// What the library knows of a live block. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocBlockInfo {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// Its first address.
    pub ptr: *mut c_void,
    /// Bytes of the block; at least what was asked for.
    pub size: usize,
    /// Bytes asked for.
    pub requested: usize,
    /// First address of its segment.
    pub segment: *mut c_void,
    /// Bytes of address space of its segment.
    pub segment_size: usize,
    /// The stream it was allocated for.
    pub stream: *mut c_void,
    /// The pool it belongs to, by the number of ascend_alloc_pool_create; 0 for the default one.
    pub pool: u64,
    /// The device it lies on.
    pub device: c_int,
}

// SAFETY: `repr(C)`, the size first, numbers and pointers that nobody follows.
unsafe impl Versioned for AscendAllocBlockInfo {
    const FIRST: usize = size_of::<Self>();
}

/// What is known of the live block that begins at ptr. Callable from any thread.
///
/// # Safety
///
/// out is null or points to as many bytes as its struct_size says, and at least to that field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_block_info(ptr: *mut c_void, out: *mut AscendAllocBlockInfo) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { arguments::sized(out, "out") }?;
        let info = process::existing()?.block_info(DevicePtr(ptr.addr() as u64))?;
        let value = AscendAllocBlockInfo {
            struct_size: size,
            ptr: process::pointer(info.address),
            size: info.bytes as usize,
            requested: info.requested as usize,
            segment: process::pointer(info.segment),
            segment_size: info.segment_bytes as usize,
            stream: process::pointer(info.stream.0),
            pool: pools::shown(info.pool),
            device: info.device as c_int,
        };
        // SAFETY: as above.
        unsafe { arguments::fill(out, size, &value) };
        Ok(())
    })
}

/// The first address of the segment that the live block beginning at ptr lies in, and the bytes of address
/// space of that segment. Only part of it need have memory behind it. base and size may be null.
///
/// Callable from any thread.
///
/// # Safety
///
/// base and size are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_base(
    ptr: *mut c_void,
    base: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    guard::status(|| {
        arguments::writable(base, "base")?;
        arguments::writable(size, "size")?;
        let info = process::existing()?.block_info(DevicePtr(ptr.addr() as u64))?;
        // SAFETY: the caller's promise.
        unsafe { arguments::answer(base, "base", process::pointer(info.segment)) }?;
        // SAFETY: the caller's promise.
        unsafe { arguments::answer(size, "size", info.segment_bytes as usize) }
    })
}

/// All memory of a device at one moment, as JSON: {"device":0,"cached_handles":bytes,"segments":[...]}. A
/// segment has "address", "total_size", "allocated_size", "active_size", "requested_size", "segment_type"
/// ("small" or "large"), "is_expandable", "base", "pool" (its number, 0 for the default one), "is_asleep", "stream" (of its
/// first block) and "blocks"; a block has "address", "size", "requested_size", "stream" and "state":
/// "active_allocated", "active_pending_free", "inactive" or "in_transit". Numbers are decimal; sizes bytes.
///
/// Writes as snprintf does: at most room bytes with the zero behind them, and the length of the whole text
/// without the zero to length, which may be null. Memory may change between two calls, so one that asks for the
/// length and one that reads can differ. Callable from any thread.
///
/// # Safety
///
/// buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_snapshot_json(
    device: c_int,
    buffer: *mut c_char,
    room: usize,
    length: *mut usize,
) -> c_int {
    guard::status(|| {
        arguments::writable(length, "length")?;
        let id = process::device(device)?;
        let found = process::if_set_up().map(|allocator| allocator.snapshot(id)).transpose()?;
        let text = snapshot::json(id, &found.unwrap_or_default());
        // SAFETY: the caller's promise.
        unsafe { arguments::copy_text(&text, buffer, room, length) }
    })
}

impl From<Stat> for AscendAllocStat {
    fn from(stat: Stat) -> Self {
        Self { current: stat.current, peak: stat.peak, allocated: stat.allocated, freed: stat.freed }
    }
}

impl From<StatArray> for AscendAllocStatArray {
    fn from(array: StatArray) -> Self {
        Self { all: array.all.into(), small_pool: array.small.into(), large_pool: array.large.into() }
    }
}

impl From<&Stats> for AscendAllocStats {
    fn from(stats: &Stats) -> Self {
        let calls = &stats.calls;
        Self {
            struct_size: size_of::<Self>(),
            allocation: stats.allocation.into(),
            segment: stats.segment.into(),
            active: stats.active.into(),
            inactive_split: stats.inactive_split.into(),
            allocated_bytes: stats.allocated_bytes.into(),
            reserved_bytes: stats.reserved_bytes.into(),
            active_bytes: stats.active_bytes.into(),
            inactive_split_bytes: stats.inactive_split_bytes.into(),
            requested_bytes: stats.requested_bytes.into(),
            oversize_allocations: stats.oversize_allocations.into(),
            oversize_segments: stats.oversize_segments.into(),
            num_alloc_retries: stats.num_alloc_retries as i64,
            num_ooms: stats.num_ooms as i64,
            num_sync_all_streams: stats.num_sync_all_streams as i64,
            num_device_alloc: stats.num_device_alloc as i64,
            num_device_free: stats.num_device_free as i64,
            max_split_size: stats.max_split_size,
            reserved_address_space: stats.reserved_address_space as i64,
            cached_handles: stats.cached_handles as i64,
            sleeping_bytes: stats.sleeping_bytes as i64,
            chunks_moved: stats.chunks_moved as i64,
            map_calls: calls.map as i64,
            unmap_calls: calls.unmap as i64,
            malloc_physical_calls: calls.malloc_physical as i64,
            free_physical_calls: calls.free_physical as i64,
            wait_calls: (calls.wait_event + calls.wait_stream + calls.wait_device) as i64,
            size_mismatches: stats.size_mismatches as i64,
        }
    }
}
