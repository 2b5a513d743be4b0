//! Checkpoints of pools.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::Arc;

use allocator::{DevicePtr, PoolCheckpoint};
use parking_lot::Mutex;

use crate::process::{self, Failure, argument};
use crate::{arguments, guard, pools};

static CHECKPOINTS: Mutex<BTreeMap<u64, Arc<PoolCheckpoint>>> = Mutex::new(BTreeMap::new());
static LAST: AtomicU64 = AtomicU64::new(0);

/// Remembers which blocks of the pool are live, with their sizes and streams; changes nothing. The checkpoint's
/// number, never 0 and never used again, goes to *checkpoint. The default pool has none.
///
/// Callable from any thread. Forgotten with ascend_alloc_checkpoint_release.
///
/// # Safety
///
/// checkpoint is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_checkpoint(pool: u64, checkpoint: *mut u64) -> c_int {
    guard::status(|| {
        let place = arguments::place(checkpoint, "checkpoint")?;
        let made = process::existing()?.checkpoint(pools::id(pool)?)?;
        let number = LAST.fetch_add(1, Relaxed) + 1;
        CHECKPOINTS.lock().insert(number, Arc::new(made));
        // SAFETY: the caller's promise.
        unsafe { place.write(number) };
        Ok(())
    })
}

/// Frees every live block of the checkpoint's pool (but not those lent to the default pool or claimed), and hands out the
/// blocks of the checkpoint at their old addresses; they are then the caller's to free. The caller sees to it that work
/// on the pool's memory runs in order across the change. Streams that live blocks are recorded on, or freed ones wait for,
/// are asked whether they have passed what is queued on them.
///
/// The freed addresses go to freed, at most freed_room of them, and the number of all to *freed_count; those handed
/// out likewise. Arrays may be null with a room of 0, counts may be null.
///
/// ASCEND_ALLOC_STATUS_STATE when other streams have not passed what uses blocks of the pool, when live blocks are
/// exported, when memory of the checkpoint is not mapped any more, was claimed, or serves a growing buffer or the default
/// pool by now, when the pool sleeps, and when the device was reset since: nothing has changed then. Callable from any
/// thread. The checkpoint can be restored again.
///
/// # Safety
///
/// The arrays are null, with a room of 0, or valid for writes of so many addresses; counts are null or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_checkpoint_restore(
    checkpoint: u64,
    freed: *mut *mut c_void,
    freed_room: usize,
    freed_count: *mut usize,
    allocated: *mut *mut c_void,
    allocated_room: usize,
    allocated_count: *mut usize,
) -> c_int {
    guard::status(|| {
        list(freed, freed_room, "freed")?;
        list(allocated, allocated_room, "allocated")?;
        arguments::writable(freed_count, "freed_count")?;
        arguments::writable(allocated_count, "allocated_count")?;
        let found = CHECKPOINTS.lock().get(&checkpoint).cloned().ok_or_else(|| unknown(checkpoint))?;
        let restored = process::existing()?.restore(&found)?;
        // SAFETY: the caller's promise; checked above.
        unsafe {
            write(&restored.freed, freed, freed_room);
            write(&restored.allocated, allocated, allocated_room);
            arguments::answer(freed_count, "freed_count", restored.freed.len())?;
            arguments::answer(allocated_count, "allocated_count", restored.allocated.len())
        }
    })
}

/// Forgets a checkpoint; no block changes. Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_checkpoint_release(checkpoint: u64) -> c_int {
    guard::release(|| {
        let found = CHECKPOINTS.lock().remove(&checkpoint);
        found.map(drop).ok_or_else(|| unknown(checkpoint))
    })
}

fn unknown(checkpoint: u64) -> Failure {
    argument(format!("checkpoint is {checkpoint}, expected a number from ascend_alloc_checkpoint"))
}

fn list(array: *mut *mut c_void, room: usize, name: &str) -> Result<(), Failure> {
    if room == 0 { Ok(()) } else { arguments::place(array, name).map(drop) }
}

/// # Safety
///
/// The array is valid for writes of `room` addresses.
unsafe fn write(blocks: &[DevicePtr], array: *mut *mut c_void, room: usize) {
    for (index, block) in blocks.iter().take(room).enumerate() {
        // SAFETY: the index is below the room.
        unsafe { array.add(index).write(process::pointer(block.address())) };
    }
}
