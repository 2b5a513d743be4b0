//! Work that a framework keeps in a queue of its own before it hands it to the driver.
//!
//! ```text
//!  framework's thread ──► its queue ──► its launcher ──► stream
//!                                                          ▲
//!                            an event of ours is recorded ─┘  must come behind all that was queued before
//! ```
//!
//! The allocator marks points in streams with events. A framework that queues launches tells the driver's
//! implementation how to have them handed over first; without a queue nothing is to be told.

use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::Arc;

use super::{CODE_STREAM_CAPTURED, DeviceId, DriverError, DriverResult, Stream};
use crate::sync::plain::Mutex;

/// Hands everything over that was queued for a stream before the call, or for the whole device where there is no
/// stream; answers whether that was possible. Called without any lock, by the thread that allocates or
/// frees; it may wait for other threads and call the allocator. Where it is not possible, for instance in the
/// thread that hands over, no event is recorded and memory is found elsewhere.
pub type SubmitHook = Arc<dyn Fn(DeviceId, Option<Stream>) -> bool + Send + Sync>;

/// Where a driver keeps its hook.
#[derive(Default)]
pub(super) struct Submit {
    set: AtomicBool,
    hook: Mutex<Option<SubmitHook>>,
}

impl Submit {
    /// Sets the hook, or removes it.
    pub(super) fn set(&self, hook: Option<SubmitHook>) {
        let mut kept = self.hook.lock();
        self.set.store(hook.is_some(), Release);
        let old = core::mem::replace(&mut *kept, hook);
        // Dropping a hook runs code of its owner.
        drop(kept);
        drop(old);
    }

    /// To be called before a point in the stream, or in all streams of the device, is marked or waited for.
    pub(super) fn before(&self, device: DeviceId, stream: Option<Stream>) -> DriverResult<()> {
        if !self.set.load(Acquire) {
            return Ok(());
        }
        let hook = self.hook.lock().clone();
        if hook.is_none_or(|hook| hook(device, stream)) {
            return Ok(());
        }
        Err(DriverError {
            call: "the framework's submission of queued work",
            arguments: format!("device={device}, stream={stream:?}"),
            code: CODE_STREAM_CAPTURED,
            name: crate::acl::codes::name(CODE_STREAM_CAPTURED),
            message: Some("not possible in this thread".to_owned()),
            missing_symbol: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_hook_is_asked_until_it_is_removed_and_its_refusal_is_an_error() {
        let (submit, asked) = (Submit::default(), Arc::new(AtomicU32::new(0)));
        assert_eq!(submit.before(3, None), Ok(()));
        let count = Arc::clone(&asked);
        submit.set(Some(Arc::new(move |device, stream| {
            assert_eq!(device, 3);
            count.fetch_add(1, Relaxed);
            stream == Some(Stream(9))
        })));
        assert_eq!(submit.before(3, Some(Stream(9))), Ok(()));
        let refused = submit.before(3, None).unwrap_err();
        assert!(refused.to_string().contains("not possible in this thread"), "{refused}");
        assert_eq!((asked.load(Relaxed), Arc::strong_count(&asked)), (2, 2));
        submit.set(None);
        assert_eq!(submit.before(3, None), Ok(()));
        assert_eq!((asked.load(Relaxed), Arc::strong_count(&asked)), (2, 1));
    }
}
