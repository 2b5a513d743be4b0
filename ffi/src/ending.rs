//! The end of a process whose framework gives its last blocks back while it shuts down.
//!
//! MindSpore and torch_npu free their blocks, reset the devices and end, all in one function of theirs. Nobody can
//! empty the cache between the last two, so the last free does it, once it was said that the process is ending.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use allocator::DeviceAllocator;

use crate::{acl_allocator, guard, one_handle, process};

static ENDING: AtomicBool = AtomicBool::new(false);

/// Tells that the process is ending: everything free goes back to the devices now, and from now on whenever the
/// last live block of all devices has been given back. Waits for the streams that used it. Everything else
/// works as before. The library's own holds on devices end too, so that the framework's reset of a device resets it.
/// For frameworks that give their last blocks back while they shut down and then reset the devices; to be called
/// before that begins.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
///
/// # Safety
///
/// The caller has open (aclrtSetDevice) the devices on which there are live blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_finish() -> c_int {
    guard::release(|| {
        ENDING.store(true, Relaxed);
        acl_allocator::heed();
        if let Some(process) = process::process_if_set_up() {
            process.allocator.shut_down();
            // Nobody is left to be told.
            let _refused = one_handle::try_again(&process.driver, None);
            // SAFETY: the caller's promise.
            unsafe { process.driver.close_devices() };
        }
        Ok(())
    })
}

/// To be called after a block was given back.
#[inline]
pub(crate) fn after_free(allocator: &DeviceAllocator) {
    if ENDING.load(Relaxed) {
        clear(allocator);
    }
}

#[cold]
fn clear(allocator: &DeviceAllocator) {
    let live = |device| allocator.stats(device).map_or(0, |stats| stats.allocation.all.current);
    if (0..allocator.device_count()).all(|device| live(device) == 0) {
        allocator.shut_down();
    }
}
