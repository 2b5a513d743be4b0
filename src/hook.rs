//! What a framework hooks in: a function that is told what happens to memory, and functions that free some.

use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::{DeviceId, Stream};
use crate::sync::{Condvar, Mutex};

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
/// the event, after it happened; it may call the allocator. What that thread does there while it is in the
/// function is not told. A panic inside it is passed on to that
/// thread's caller; the allocator is consistent by then.
pub type EventHook = Arc<dyn Fn(&MemoryEvent) + Send + Sync>;

/// A function that is asked to free memory of a device when a request lacks so many bytes of it. Answers
/// whether it freed anything: blocks of the allocator, or memory that it had from the device itself.
///
/// It is called without any lock, by the thread whose request is short, before anything is waited for. It
/// may call the allocator, also from other threads: while a thread is in a callback its own requests call
/// none, no callback is entered a second time before it has returned, and one that is added meanwhile is for later
/// requests. A request of another thread
/// that would fail meanwhile waits for the callback, one second at most. A panic inside it is
/// passed on to the thread's caller; the allocator is consistent by then.
pub type MemoryCallback = Arc<dyn Fn(DeviceId, u64) -> bool + Send + Sync>;

/// Names a callback that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallbackId(u64);

/// Where the hook and the callbacks are kept.
#[derive(Default)]
pub(crate) struct HookSlot {
    set: AtomicBool,
    hook: Mutex<Option<EventHook>>,
    /// Functions that free memory.
    pub(crate) callbacks: Callbacks,
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

    /// Tells the hook, if there is one and this thread is not in it already. No lock is held while it runs.
    pub(crate) fn tell(&self, events: &[MemoryEvent]) {
        if events.is_empty() || !self.is_set() {
            return;
        }
        let Some(_inside) = Inside::enter(self) else { return };
        let hook = self.hook.lock().clone();
        if let Some(hook) = hook {
            for event in events {
                hook(event);
            }
        }
    }
}

/// The most owners whose functions a thread is in, one inside of the other.
const MOST_INSIDE: usize = 8;

crate::sync::thread::thread_local! {
    /// Their addresses, and how many there are.
    static OWNERS: Cell<([usize; MOST_INSIDE], usize)> = const { Cell::new(([0; MOST_INSIDE], 0)) };
}

/// This thread is in a function of somebody's; ends with it, also by a panic. What calls back into the allocator would
/// be called again for what it does there, and so on until the stack ends.
pub(crate) struct Inside(());

impl Inside {
    /// Nothing if the thread is in a function of that owner already, or in too many.
    pub(crate) fn enter<T>(owner: &T) -> Option<Self> {
        let address = core::ptr::from_ref(owner).addr();
        OWNERS.with(|inside| {
            let (mut owners, count) = inside.get();
            if owners[..count].contains(&address) || count == MOST_INSIDE {
                return None;
            }
            owners[count] = address;
            inside.set((owners, count + 1));
            Some(Self(()))
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        OWNERS.with(|inside| {
            let (owners, count) = inside.get();
            inside.set((owners, count - 1));
        });
    }
}

/// What came of asking for memory.
pub(crate) enum Asked {
    /// A callback was called, and says whether it freed anything.
    Called {
        /// Its number.
        id: u64,
        /// Its answer.
        freed: bool,
    },
    /// There is none left to be called.
    Nobody {
        /// Whether another thread is in one.
        left_out: bool,
    },
}

/// The functions that free memory, in the order they were added.
#[derive(Default)]
pub(crate) struct Callbacks {
    any: AtomicBool,
    list: Mutex<List>,
    /// Told when a callback returns.
    ended: Condvar,
}

#[derive(Default)]
struct List {
    /// The number given out last.
    last: u64,
    entries: Vec<(u64, MemoryCallback)>,
    /// Those being called.
    running: Vec<u64>,
    /// How many calls are over.
    ended: u64,
}

crate::sync::thread::thread_local! {
    /// Whether this thread is in a callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A callback being called; ends with it, also by a panic.
struct Running<'a>(&'a Callbacks, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(false));
        let mut list = self.0.list.lock();
        list.running.retain(|&id| id != self.1);
        list.ended += 1;
        self.0.ended.notify_all();
    }
}

impl Callbacks {
    /// Adds one behind the others.
    pub(crate) fn add(&self, callback: MemoryCallback) -> CallbackId {
        let mut list = self.list.lock();
        list.last += 1;
        let id = list.last;
        list.entries.push((id, callback));
        self.any.store(true, Relaxed);
        CallbackId(id)
    }

    /// Removes one; false if it is not there.
    pub(crate) fn remove(&self, id: CallbackId) -> bool {
        let mut list = self.list.lock();
        let Some(at) = list.entries.iter().position(|&(known, _)| known == id.0) else { return false };
        let removed = list.entries.remove(at);
        self.any.store(!list.entries.is_empty(), Relaxed);
        drop(list);
        drop(removed);
        true
    }

    /// Whether there is one that this thread could call.
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Relaxed) && !INSIDE.with(Cell::get)
    }

    /// The number of the one that was added last.
    pub(crate) fn last(&self) -> u64 {
        self.list.lock().last
    }

    /// Calls the next one behind number `after`, and not behind `until`, that nobody is in.
    pub(crate) fn call_next(&self, device: DeviceId, bytes: u64, after: u64, until: u64) -> Asked {
        if INSIDE.with(Cell::get) {
            return Asked::Nobody { left_out: false };
        }
        let mut list = self.list.lock();
        let meant = |id: &u64| *id > after && *id <= until && !list.running.contains(id);
        let next = list.entries.iter().find(|(id, _)| meant(id)).cloned();
        let Some((id, callback)) = next else {
            return Asked::Nobody { left_out: !list.running.is_empty() };
        };
        list.running.push(id);
        drop(list);
        INSIDE.with(|inside| inside.set(true));
        let running = Running(self, id);
        let freed = callback(device, bytes);
        drop(running);
        Asked::Called { id, freed }
    }

    /// Waits until a callback that runs now in another thread returns, or none runs; false when none did in time.
    pub(crate) fn wait_for_end(&self, patience: Duration) -> bool {
        if INSIDE.with(Cell::get) {
            return false;
        }
        let deadline = Instant::now() + patience;
        let mut list = self.list.lock();
        let before = list.ended;
        while list.ended == before && !list.running.is_empty() {
            if self.ended.wait_until(&mut list, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}
