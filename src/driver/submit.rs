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
use crate::hook::Inside;
use crate::sync::plain::Mutex;

/// Hands everything over that was queued for a stream before the call, or for the whole device where there is no
/// stream; answers whether that was possible. Called without any lock, by the thread that allocates or
/// frees; it may wait for other threads and call the allocator. Where it is not possible, for instance in the
/// thread that hands over, no event is recorded and memory is found elsewhere. It is not called again by a thread that is
/// in it: there it is not possible.
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
        let Some(hook) = hook else { return Ok(()) };
        // What is being handed over by this thread comes behind an event that it would record now.
        if Inside::enter(self).is_some_and(|_inside| hook(device, stream)) {
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

    #[test]
    fn a_thread_that_hands_over_is_not_asked_to_do_it_again() {
        let submit = Arc::new(Submit::default());
        let (inner, refused) = (Arc::downgrade(&submit), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&refused);
        submit.set(Some(Arc::new(move |device, stream| {
            let submit = inner.upgrade().expect("it asks");
            count.fetch_add(u32::from(submit.before(device, stream).is_err()), Relaxed);
            // Another one is nobody's business here.
            Submit::default().before(device, stream).is_ok()
        })));
        assert_eq!(submit.before(0, None), Ok(()));
        assert_eq!(refused.load(Relaxed), 1);
        assert_eq!(submit.before(0, None), Ok(()), "it is over when the function returns");
        submit.set(None);
    }
}
