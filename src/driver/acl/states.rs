//! ACL's state callbacks: what they say is noted in [`StateChanges`], and nothing else is done inside.

use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::sync::Arc;

use super::{AclDriver, number};
use crate::acl::sys;
use crate::driver::{DeviceId, StateChanges, Stream};

impl AclDriver {
    /// Registers both callbacks under a name of their own. False where the library has neither.
    pub(super) fn register_states(&self, changes: &Arc<StateChanges>) -> bool {
        // The library may be inside of a callback at any time, so what it points to is never given back.
        let shared = Arc::into_raw(Arc::clone(changes));
        let name = CString::new(format!("ascend_alloc_{:x}", shared.addr())).unwrap_or_default();
        let args = shared.cast_mut().cast::<c_void>();
        // SAFETY: the functions only read what `args` points to, which stays for ever.
        let streams = unsafe { self.acl.on_stream_state(&name, Some(stream_state), args) };
        // SAFETY: as above.
        let devices = unsafe { self.acl.on_device_state(&name, Some(device_state), args) };
        let registered = streams.is_ok() || devices.is_ok();
        if registered {
            self.watches.lock().push(name);
        }
        registered
    }

    /// Ends what [`register_states`](Self::register_states) began.
    pub(super) fn unregister_states(&mut self) {
        for name in core::mem::take(self.watches.get_mut()) {
            self.unregister(&name);
        }
    }

    fn unregister(&self, name: &CStr) {
        // An error says that there is no such registration: then there is nothing to end.
        // SAFETY: no function is registered.
        let _ended = unsafe { self.acl.on_stream_state(name, None, core::ptr::null_mut()) };
        // SAFETY: as above.
        let _ended = unsafe { self.acl.on_device_state(name, None, core::ptr::null_mut()) };
    }

    /// Whether a device of which a reset was told has really lost its memory. Should a library tell of every
    /// reference that is given back, the primary context is still there.
    pub(super) fn has_lost(&self, device: DeviceId, set_again: bool) -> bool {
        let there = |(_, active): (u32, bool)| active;
        if !set_again && self.acl.primary_context_state(number(device)).is_ok_and(there) {
            return false;
        }
        self.opened.lock().retain(|entry| entry.device != device);
        true
    }
}

/// Called by the library when a stream was made, and before one is destroyed.
unsafe extern "C" fn stream_state(stream: sys::aclrtStream, state: sys::aclrtStreamState, args: *mut c_void) {
    if state == sys::ACL_RT_STREAM_STATE_DESTROY_PRE {
        // SAFETY: the registration gave this pointer, and what it points to stays for ever.
        unsafe { &*args.cast::<StateChanges>() }.stream_ends(Stream(stream.expose_provenance() as u64));
    }
}

/// Called by the library around setting and resetting a device.
unsafe extern "C" fn device_state(device: i32, state: sys::aclrtDeviceState, args: *mut c_void) {
    let Ok(device) = DeviceId::try_from(device) else { return };
    // SAFETY: the registration gave this pointer, and what it points to stays for ever.
    let changes = unsafe { &*args.cast::<StateChanges>() };
    match state {
        sys::ACL_RT_DEVICE_STATE_SET_POST => changes.device_was_set(device),
        sys::ACL_RT_DEVICE_STATE_RESET_POST => changes.device_was_reset(device),
        _ => {}
    }
}
