//! What the sleep-mode allocators of serving frameworks offer: a pair that can be plugged in, a tag for what a thread
//! allocates, and pause and resume by tag.
//!
//! Each tag is a pool of its device, made when first used; the rest is sleep and wake.

use core::cell::RefCell;
use core::ffi::{c_char, c_int, c_void};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use allocator::driver::DeviceId;
use allocator::{DeviceAllocator, PoolId, PoolOptions, SleepMode};
use parking_lot::Mutex;

use crate::process::{self, Failure, argument};
use crate::{arguments, guard};

/// The tag of threads that have set none.
const DEFAULT: &str = "default";
/// The tag that is left out when all are paused.
const PERSISTENT: &str = "sleep_persistent";

/// Pools by tag and device.
static POOLS: Mutex<BTreeMap<Arc<str>, BTreeMap<DeviceId, PoolId>>> = Mutex::new(BTreeMap::new());
/// Tags whose content is kept on the host.
static KEPT: Mutex<BTreeSet<Arc<str>>> = Mutex::new(BTreeSet::new());

thread_local! {
    static TAG: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// A block of the calling thread's tag; else as ascend_alloc_malloc, whose signature it has.
///
/// # Safety
///
/// As ascend_alloc_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_tagged_malloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let run = || {
        let (bytes, device) = (process::size(size)?, process::device(device)?);
        if bytes == 0 {
            return Ok(core::ptr::null_mut());
        }
        // SAFETY: the caller's promise.
        let allocator = unsafe { process::allocator() }?;
        let pool = pool_of(allocator, device, &current())?;
        let block = allocator.allocate_in(pool, bytes, 0, process::stream(stream))?;
        Ok(process::pointer(block.address()))
    };
    guard::run(run).unwrap_or(core::ptr::null_mut())
}

/// Gives such a block back, also while it is paused. The same as ascend_alloc_free.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_tagged_free(
    ptr: *mut c_void,
    size: usize,
    device: c_int,
    stream: *mut c_void,
) {
    crate::ascend_alloc_free(ptr, size, device, stream);
}

/// From now on ascend_alloc_tagged_malloc gives the calling thread blocks of this tag; null for "default". The
/// tag "sleep_persistent" is left out when all tags are paused. The text is copied.
///
/// # Safety
///
/// tag is null or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_tag(tag: *const c_char) -> c_int {
    guard::code(guard::everywhere(|| {
        // SAFETY: the caller's promise.
        let tag = unsafe { arguments::text(tag, "tag") }?.map(Arc::from);
        // A thread that is ending allocates nothing any more.
        let _ended = TAG.try_with(|current| *current.borrow_mut() = tag);
        Ok(())
    }))
}

/// The calling thread's tag, written as snprintf does: at most room bytes with the zero behind them, and the length
/// of the whole tag without the zero to length, which may be null.
///
/// # Safety
///
/// buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_get_tag(buffer: *mut c_char, room: usize, length: *mut usize) -> c_int {
    guard::code(guard::everywhere(|| {
        // SAFETY: the caller's promise.
        unsafe { arguments::copy_text(&current(), buffer, room, length) }
    }))
}

/// Whether the content of a tag's blocks is kept on the host when it is paused: 0, as at first, or not 0. tag is null
/// for "default". Counts for pauses from now on, also of tags nobody has used yet. Callable from any thread.
///
/// # Safety
///
/// tag is null or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_host_copy(tag: *const c_char, enabled: c_int) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let tag = unsafe { arguments::text(tag, "tag") }?.unwrap_or(DEFAULT);
        let mut kept = KEPT.lock();
        match enabled {
            0 => kept.remove(tag),
            _ => kept.insert(Arc::from(tag)),
        };
        Ok(())
    })
}

/// Gives the memory of the tag's blocks, on all devices, back and keeps their addresses; null: of all tags but
/// "sleep_persistent". host_copy: 0 loses the content, 1 keeps it on the host, -1 does for each tag as
/// ascend_alloc_set_host_copy says. Waits for work that uses the blocks. What is paused already stays so; memory that a call
/// which failed left behind it goes back.
///
/// Tags whose content is kept come first; after a failure those that were paused before it stay paused, and a resume
/// brings them back. Callable from any thread.
///
/// # Safety
///
/// tag is null or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_pause(tag: *const c_char, host_copy: c_int) -> c_int {
    guard::status(|| {
        if !(-1..=1).contains(&host_copy) {
            return Err(argument(format!("host_copy is {host_copy}, expected -1, 0 or 1")));
        }
        // SAFETY: the caller's promise.
        let mut tags = chosen(unsafe { arguments::text(tag, "tag") }?)?;
        if tag.is_null() {
            tags.retain(|tag| &**tag != PERSISTENT);
        }
        let kept = |tag: &Arc<str>| host_copy == 1 || (host_copy == -1 && KEPT.lock().contains(tag));
        let (copied, lost): (Vec<_>, Vec<_>) = tags.into_iter().partition(kept);
        for (tags, mode) in [(copied, SleepMode::Offload), (lost, SleepMode::Discard)] {
            if !tags.is_empty() {
                process::existing()?.sleep(None, &texts(&tags), mode)?;
            }
        }
        Ok(())
    })
}

/// Puts memory behind the tag's blocks again, at their old addresses and with what was kept of their content; null:
/// of all tags. What is not paused stays as it is. After ASCEND_ALLOC_STATUS_OUT_OF_MEMORY the tags are paused as
/// before, on the device without memory and those with higher numbers. Callable from any thread.
///
/// # Safety
///
/// tag is null or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_resume(tag: *const c_char) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let tags = chosen(unsafe { arguments::text(tag, "tag") }?)?;
        if !tags.is_empty() {
            process::existing()?.wake(None, &texts(&tags))?;
        }
        Ok(())
    })
}

/// The calling thread's tag.
fn current() -> Arc<str> {
    let tag = TAG.try_with(|tag| tag.borrow().clone()).ok().flatten();
    tag.unwrap_or_else(|| Arc::from(DEFAULT))
}

/// The tags that are meant; of those named, one that has been used.
fn chosen(tag: Option<&str>) -> Result<Vec<Arc<str>>, Failure> {
    let pools = POOLS.lock();
    match tag {
        None => Ok(pools.keys().cloned().collect()),
        Some(tag) => match pools.get_key_value(tag) {
            Some((known, _)) => Ok(vec![known.clone()]),
            None => Err(argument(format!("tag is {tag:?}, expected one that blocks were allocated with"))),
        },
    }
}

fn texts(tags: &[Arc<str>]) -> Vec<&str> {
    tags.iter().map(|tag| &**tag).collect()
}

/// Whether a pool is that of a tag.
pub(crate) fn owns(pool: PoolId) -> bool {
    POOLS.lock().values().any(|pools| pools.get(&pool.device) == Some(&pool))
}

/// The pool of a tag on a device.
fn pool_of(allocator: &DeviceAllocator, device: DeviceId, tag: &Arc<str>) -> Result<PoolId, Failure> {
    let known = POOLS.lock().get(tag).and_then(|pools| pools.get(&device)).copied();
    if let Some(pool) = known {
        return Ok(pool);
    }
    // Without the lock, because setting a device up calls the driver; of two the first stays.
    let mut options = PoolOptions::tagged(tag);
    // Programs set expandable_segments:False for the sake of allocators that cannot sleep with it; fixed blocks cannot here.
    options.expandable = Some(true);
    let made = allocator.create_pool(device, options)?;
    let kept = *POOLS.lock().entry(tag.clone()).or_default().entry(device).or_insert(made);
    if kept != made {
        allocator.release_pool(made)?;
    }
    Ok(kept)
}
