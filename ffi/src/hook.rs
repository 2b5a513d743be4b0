//! The event hook, and functions that free memory when it is short.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::Arc;

use allocator::driver::DeviceId;
use allocator::hook::{Action, CallbackId, MemoryEvent};
use parking_lot::Mutex;

use crate::arguments::{self, AscendAllocRelease, Held};
use crate::process::argument;
use crate::{guard, process};

static CALLBACKS: Mutex<BTreeMap<u64, CallbackId>> = Mutex::new(BTreeMap::new());
static LAST: AtomicU64 = AtomicU64::new(0);

/// What happened to memory.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum AscendAllocAction {
    /// A block was handed out.
    Allocate = 0,
    /// A block was given back; other streams may still use it.
    FreeRequested = 1,
    /// The memory of a freed block can be used again.
    FreeCompleted = 2,
    /// Physical memory was put behind a range, or a segment that cannot grow taken.
    Map = 3,
    /// Physical memory was taken from behind a range, or a segment that cannot grow given back.
    Unmap = 4,
    /// A chunk was put at another address.
    Move = 5,
    /// The host waited for an event or the device.
    Wait = 6,
    /// A request failed for lack of memory.
    OutOfMemory = 7,
    /// Something that this version of the header has no name for.
    Other = 99,
}

/// One event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocEvent {
    /// The size of this struct as the library knows it; it may grow at the end.
    pub struct_size: usize,
    /// A value of ascend_alloc_action.
    pub action: c_int,
    /// The device.
    pub device: c_int,
    /// First address concerned; null where there is none.
    pub ptr: *mut c_void,
    /// Bytes concerned: of the block, of the range, or of the failed request.
    pub size: usize,
    /// The stream concerned.
    pub stream: *mut c_void,
}

/// A function that is told of events. The event is valid during the call only. Called without any lock, by the thread
/// that caused the event, after it happened; it may call this library, and is not told of what it causes by that. Nothing
/// may be thrown out of it.
pub type AscendAllocHook = Option<unsafe extern "C" fn(event: *const AscendAllocEvent, user: *mut c_void)>;

/// Sets the one function that is told of every event, or removes it (null). While one is set every call takes the
/// slow way. Once nobody will call it any more, which can be a moment after it was replaced, release is called with
/// user; it may be null. After a failure release is called before this returns.
///
/// Callable from any thread. Sets the allocator up if nobody has. In a forked child removing does nothing and succeeds.
///
/// # Safety
///
/// hook may be called with user from any thread until release is called, and release once from any. Else as
/// ascend_alloc_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_event_hook(
    hook: AscendAllocHook,
    user: *mut c_void,
    release: AscendAllocRelease,
) -> c_int {
    let held = Held::new(user, release);
    guard::set(hook.is_none(), move || {
        // SAFETY: the caller's promise.
        let allocator = unsafe { process::allocator() }?;
        allocator.set_event_hook(hook.map(|hook| -> allocator::hook::EventHook {
            Arc::new(move |event: &MemoryEvent| {
                let event = of(event);
                // SAFETY: the caller promised that it may be called until the pointer is released.
                unsafe { hook(&raw const event, held.user()) };
            })
        }));
        Ok(())
    })
}

/// A function that is asked to free memory of a device when a request lacks so many bytes of it; 1: it freed
/// something, blocks of this library or memory it had from the device itself, 0: not. Called without any lock, by the
/// thread whose request is short, before anything is waited for; it may call this library, also from other threads: while a
/// thread is in a callback its own requests call none, no callback is entered a second time before it has returned, and one
/// that is added meanwhile is for later requests. A request of another thread that would fail meanwhile waits for the
/// callback, one second at most. Nothing may be thrown out of it.
pub type AscendAllocMemoryCallback =
    Option<unsafe extern "C" fn(device: c_int, size: usize, user: *mut c_void) -> c_int>;

/// Adds a function that frees memory; they are called in the order they were added, one by one, until the request can be
/// served. Its number, never 0 and never used again, goes to *callback_number. Once nobody will call it any more,
/// release is called with user; it may be null. After a failure release is called before this returns.
///
/// Callable from any thread. Sets the allocator up if nobody has.
///
/// # Safety
///
/// callback may be called with user from any thread until release is called, and release once from any;
/// callback_number is null or valid for a write. Else as ascend_alloc_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_add_memory_callback(
    callback: AscendAllocMemoryCallback,
    user: *mut c_void,
    release: AscendAllocRelease,
    callback_number: *mut u64,
) -> c_int {
    let held = Held::new(user, release);
    guard::status(move || {
        let place = arguments::place(callback_number, "callback_number")?;
        let callback = callback.ok_or_else(|| argument("callback is null".to_owned()))?;
        // SAFETY: the caller's promise.
        let allocator = unsafe { process::allocator() }?;
        let id = allocator.add_memory_callback(Arc::new(move |device: DeviceId, bytes: u64| {
            // SAFETY: the caller promised that it may be called until the pointer is released.
            unsafe { callback(device as c_int, bytes as usize, held.user()) != 0 }
        }));
        let number = LAST.fetch_add(1, Relaxed) + 1;
        CALLBACKS.lock().insert(number, id);
        // SAFETY: the caller's promise.
        unsafe { place.write(number) };
        Ok(())
    })
}

/// Removes such a function; it may still be running in another thread. Callable from any thread. In a forked child it
/// does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_remove_memory_callback(callback_number: u64) -> c_int {
    guard::release(|| {
        let id = CALLBACKS.lock().remove(&callback_number).ok_or_else(|| {
            argument(format!(
                "callback is {callback_number}, expected a number from ascend_alloc_add_memory_callback"
            ))
        })?;
        process::existing()?.remove_memory_callback(id);
        Ok(())
    })
}

fn of(event: &MemoryEvent) -> AscendAllocEvent {
    let action = match event.action {
        Action::Allocate => AscendAllocAction::Allocate,
        Action::FreeRequested => AscendAllocAction::FreeRequested,
        Action::FreeCompleted => AscendAllocAction::FreeCompleted,
        Action::Map => AscendAllocAction::Map,
        Action::Unmap => AscendAllocAction::Unmap,
        Action::Move => AscendAllocAction::Move,
        Action::Wait => AscendAllocAction::Wait,
        Action::OutOfMemory => AscendAllocAction::OutOfMemory,
        _ => AscendAllocAction::Other,
    };
    AscendAllocEvent {
        struct_size: size_of::<AscendAllocEvent>(),
        action: action as c_int,
        device: event.device as c_int,
        ptr: process::pointer(event.address),
        size: event.bytes as usize,
        stream: process::pointer(event.stream.0),
    }
}
