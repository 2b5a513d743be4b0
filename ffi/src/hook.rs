//! The event hook.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use allocator::hook::{Action, MemoryEvent};

use crate::arguments::{AscendAllocRelease, Held};
use crate::{guard, process};

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
/// that caused the event, after it happened; it may call this library. Nothing may be thrown out of it.
pub type AscendAllocHook = Option<unsafe extern "C" fn(event: *const AscendAllocEvent, user: *mut c_void)>;

/// Sets the one function that is told of every event, or removes it (null). While one is set every call takes the
/// slow way. Once nobody will call it any more, which can be a moment after it was replaced, release is called with
/// user; it may be null. After a failure release is called before this returns.
///
/// Callable from any thread. Sets the allocator up if nobody has.
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
    guard::status(move || {
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
