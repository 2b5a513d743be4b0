//! A snapshot told piece by piece, for callers that build something of their own from it.

use core::ffi::{c_int, c_void};

use allocator::{BlockSnapshot, BlockState, PoolId, SegmentSnapshot};

use crate::process::argument;
use crate::{guard, pools, process};

/// The state of a block in a snapshot.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum AscendAllocBlockState {
    /// Free.
    Inactive = 0,
    /// Handed out.
    Allocated = 1,
    /// Given back; other streams may still use it.
    PendingFree = 2,
    /// Between two states, in another thread's call.
    InTransit = 3,
}

/// A segment of a snapshot: a stretch with memory behind it. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocSegmentEntry {
    /// The size of this struct as the library knows it; it may grow at the end.
    pub struct_size: usize,
    /// Its first address.
    pub ptr: *mut c_void,
    /// Its size; the blocks tile it.
    pub size: usize,
    /// Bytes of blocks handed out.
    pub allocated: usize,
    /// Bytes of blocks handed out or waiting for streams.
    pub active: usize,
    /// Bytes asked for in active blocks.
    pub requested: usize,
    /// First address of the reservation it is part of.
    pub base: *mut c_void,
    /// The stream of its first block.
    pub stream: *mut c_void,
    /// The pool it belongs to, by the number of ascend_alloc_pool_create; 0 for the default one.
    pub pool: u64,
    /// The device.
    pub device: c_int,
    /// Not 0: its blocks count as small.
    pub is_small: c_int,
    /// Not 0: it grows and shrinks.
    pub is_expandable: c_int,
    /// Not 0: its pool sleeps.
    pub is_asleep: c_int,
}

/// A block of a snapshot. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocBlockEntry {
    /// The size of this struct as the library knows it; it may grow at the end.
    pub struct_size: usize,
    /// Its first address.
    pub ptr: *mut c_void,
    /// Its size.
    pub size: usize,
    /// The size asked for, while it is active.
    pub requested: usize,
    /// Its stream.
    pub stream: *mut c_void,
    /// A value of ascend_alloc_block_state.
    pub state: c_int,
}

/// Is told of a segment, before its blocks, or of a block of the segment told last; the other is null. Both are valid
/// during the call only. Called without any lock; it may call this library. Nothing may be thrown out of it.
pub type AscendAllocVisit = Option<
    unsafe extern "C" fn(
        segment: *const AscendAllocSegmentEntry,
        block: *const AscendAllocBlockEntry,
        user: *mut c_void,
    ),
>;

/// Tells visit of all memory of a device at one moment: segments by address, each followed by its blocks by address.
///
/// Callable from any thread.
///
/// # Safety
///
/// visit may be called with user, by this thread, until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_snapshot_visit(
    device: c_int,
    visit: AscendAllocVisit,
    user: *mut c_void,
) -> c_int {
    guard::status(|| {
        let Some(visit) = visit else { return Err(argument("visit is null".to_owned())) };
        let device = process::device(device)?;
        let Some(allocator) = process::if_set_up() else { return Ok(()) };
        for segment in &allocator.snapshot(device)?.segments {
            let told = of_segment(segment);
            // SAFETY: the caller's promise.
            unsafe { visit(&raw const told, core::ptr::null(), user) };
            for block in &segment.blocks {
                let told = of_block(block);
                // SAFETY: the caller's promise.
                unsafe { visit(core::ptr::null(), &raw const told, user) };
            }
        }
        Ok(())
    })
}

fn of_segment(segment: &SegmentSnapshot) -> AscendAllocSegmentEntry {
    AscendAllocSegmentEntry {
        struct_size: size_of::<AscendAllocSegmentEntry>(),
        ptr: process::pointer(segment.address),
        size: segment.total_size as usize,
        allocated: segment.allocated_size as usize,
        active: segment.active_size as usize,
        requested: segment.requested_size as usize,
        base: process::pointer(segment.base),
        stream: process::pointer(segment.blocks.first().map_or(0, |block| block.stream.0)),
        pool: pools::shown(PoolId { device: segment.device, serial: segment.pool }),
        device: segment.device as c_int,
        is_small: c_int::from(segment.is_small),
        is_expandable: c_int::from(segment.is_expandable),
        is_asleep: c_int::from(segment.is_asleep),
    }
}

fn of_block(block: &BlockSnapshot) -> AscendAllocBlockEntry {
    let state = match block.state {
        BlockState::Inactive => AscendAllocBlockState::Inactive,
        BlockState::ActiveAllocated => AscendAllocBlockState::Allocated,
        BlockState::ActivePendingFree => AscendAllocBlockState::PendingFree,
        BlockState::InTransit => AscendAllocBlockState::InTransit,
    };
    AscendAllocBlockEntry {
        struct_size: size_of::<AscendAllocBlockEntry>(),
        ptr: process::pointer(block.address),
        size: block.size as usize,
        requested: block.requested_size as usize,
        stream: process::pointer(block.stream.0),
        state: state as c_int,
    }
}
