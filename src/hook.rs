//! The event hook: one function that is told what happens to memory.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

use crate::driver::{DeviceId, Stream};
use crate::sync::Mutex;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Allocate,
    /// A block was given back; other streams may still use it.
    FreeRequested,
    /// The memory of a freed block can be used again.
    FreeCompleted,
    /// Physical memory was put behind a range, or a classic segment taken.
    Map,
    /// Physical memory was taken from behind a range, or a classic segment given back.
    Unmap,
    /// A chunk was put at another address.
    Move,
    /// The host waited for an event or the device.
    Wait,
    /// A request failed for lack of memory.
    OutOfMemory,
}

/// One event; sizes and addresses in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// What happened.
    pub action: Action,
    /// On which device.
    pub device: DeviceId,
    /// First address concerned; zero where there is none.
    pub address: u64,
    /// Bytes concerned: of the block, of the range, or of the failed request.
    pub bytes: u64,
    /// The stream concerned.
    pub stream: Stream,
}

/// A function that is told of events. It is called without any lock, by the thread that caused
/// the event, after it happened; it may call the allocator. A panic inside it is passed on to that
/// thread's caller; the allocator is consistent by then.
pub type EventHook = Arc<dyn Fn(&MemoryEvent) + Send + Sync>;

/// Where the hook is kept.
#[derive(Default)]
pub(crate) struct HookSlot {
    set: AtomicBool,
    hook: Mutex<Option<EventHook>>,
}

impl HookSlot {
    /// Whether there is a hook.
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Relaxed)
    }

    /// Sets or removes it.
    pub(crate) fn set(&self, hook: Option<EventHook>) {
        let present = hook.is_some();
        let before = core::mem::replace(&mut *self.hook.lock(), hook);
        self.set.store(present, Relaxed);
        drop(before);
    }

    /// Tells the hook, if there is one. No lock is held while it runs.
    pub(crate) fn tell(&self, events: &[MemoryEvent]) {
        if events.is_empty() || !self.is_set() {
            return;
        }
        let hook = self.hook.lock().clone();
        if let Some(hook) = hook {
            for event in events {
                hook(event);
            }
        }
    }
}
