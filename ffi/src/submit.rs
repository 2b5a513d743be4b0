//! Frameworks that queue work before they hand it to the runtime library.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use allocator::driver::{DeviceId, Stream, SubmitHook};

use crate::arguments::{AscendAllocRelease, Held};
use crate::{guard, process};

/// Hands everything over to the runtime library that was queued before the call, for the stream, or for the whole
/// device where all is not 0; answers 0, or another number where that is not possible in this thread. Called without
/// any lock, by the thread that allocates or frees; it may wait for other threads and call this library, which does not
/// call it again in that thread: there it counts as not possible. Nothing may be thrown out of it.
pub type AscendAllocSubmit =
    Option<unsafe extern "C" fn(device: c_int, stream: *mut c_void, all: c_int, user: *mut c_void) -> c_int>;

/// For frameworks that keep work in a queue of their own before the runtime library gets it, as torch_npu does: sets
/// the one function that is called before this library records an event on a stream or waits for a stream or a
/// device, or removes it (null). Without it memory could be handed to another stream before work that
/// is still queued has used it. Where the function cannot do it, no event is recorded, and memory is
/// found elsewhere. Once nobody will call it any more, release is called with user; it may be null.
/// After a failure release is called before this returns.
///
/// Callable from any thread. Sets the allocator up if nobody has. In a forked child removing does nothing and succeeds.
///
/// # Safety
///
/// submit may be called with user from any thread until release is called, and release once from any. Else as
/// ascend_alloc_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_submit_hook(
    submit: AscendAllocSubmit,
    user: *mut c_void,
    release: AscendAllocRelease,
) -> c_int {
    let held = Held::new(user, release);
    guard::set(submit.is_none(), move || {
        // SAFETY: the caller's promise.
        let process = unsafe { process::process() }?;
        process.driver.set_submit_hook(submit.map(|submit| -> SubmitHook {
            Arc::new(move |device: DeviceId, stream: Option<Stream>| {
                let all = c_int::from(stream.is_none());
                let stream = process::pointer(stream.map_or(0, |stream| stream.0));
                // SAFETY: the caller promised that it may be called until the pointer is released.
                unsafe { submit(device as c_int, stream, all, held.user()) == 0 }
            })
        }));
        Ok(())
    })
}
