//! In which context a call is made: the calling thread's own, or the primary one of the device.

use core::sync::atomic::Ordering;

use super::{AclDriver, address_of, number, pointer};
use crate::acl::{Acl, codes, sys};
use crate::driver::{DeviceId, DriverError, DriverResult};
use crate::signals::is_own_thread;

/// A device that the driver has set, on a thread that is gone.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    pub(super) device: DeviceId,
    /// The address of the primary context.
    pub(super) context: u64,
    /// How often it was set; two threads may have done so at once.
    references: u32,
    /// Tells this opening from a later one that got the same address.
    serial: u32,
}

impl AclDriver {
    /// Runs a call that means the device of the thread's context.
    pub(super) fn on_device<R: Send>(
        &self,
        device: DeviceId,
        call: &(impl Fn(&Acl) -> DriverResult<R> + Sync),
    ) -> DriverResult<R> {
        match self.acl.device_if_any() {
            Some(current) if current == number(device) => call(&self.acl),
            Some(_) => self.in_primary_context(device, call),
            None if is_own_thread() => self.in_primary_context(device, call),
            None => self.on_other_thread(|| self.in_primary_context(device, call)),
        }
    }

    /// Runs a call that means a stream. A stream belongs to a context, not just to a device: where
    /// the thread's context is the wrong one of two on this device, the primary one is tried.
    pub(super) fn with_stream<R: Send>(
        &self,
        device: DeviceId,
        call: &(impl Fn(&Acl) -> DriverResult<R> + Sync),
    ) -> DriverResult<R> {
        match self.on_device(device, call) {
            Err(error) if error.code == codes::RT_STREAM_CONTEXT && self.acl.device_if_any().is_some() => {
                self.in_primary_context(device, call).or(Err(error))
            }
            answer => answer,
        }
    }

    /// Runs a call that names its device or an address, so that any context or none will do as
    /// long as the device is open. Should a library want a context all the same, it gets one; so does one that
    /// says that the device is not open: somebody has reset it, and the context brings that to light.
    pub(super) fn anywhere<R: Send>(
        &self,
        device: DeviceId,
        call: &(impl Fn(&Acl) -> DriverResult<R> + Sync),
    ) -> DriverResult<R> {
        if self.acl.device_if_any() != Some(number(device)) {
            self.primary_context(device)?;
        }
        match call(&self.acl) {
            Err(error) if matches!(error.code, codes::RT_CONTEXT_NULL | codes::RT_INVALID_HANDLE) => {
                self.on_device(device, call)
            }
            answer => answer,
        }
    }

    /// Runs a call in the primary context of the device and puts the thread's own back.
    pub(super) fn in_primary_context<R>(
        &self,
        device: DeviceId,
        call: &impl Fn(&Acl) -> DriverResult<R>,
    ) -> DriverResult<R> {
        let has_context = self.acl.device_if_any().is_some();
        let own = if has_context { Some(self.acl.current_context()?) } else { None };
        let primary = self.primary_context(device)?;
        if let Err(error) = self.enter(&primary) {
            if error.code != codes::RT_PARAM_INVALID {
                return Err(error);
            }
            // Somebody has reset the device by force: the context is gone, and with it the
            // reference. The new one may well have the same address.
            self.opened.lock().retain(|entry| entry.serial != primary.serial);
            self.enter(&self.primary_context(device)?)?;
        }
        let _own = own.map(|context| Restore { acl: &self.acl, context });
        call(&self.acl)
    }

    /// Makes a primary context this thread's.
    fn enter(&self, primary: &Opened) -> DriverResult<()> {
        // SAFETY: the library gave this context.
        unsafe { self.acl.set_current_context(pointer(primary.context)) }
    }

    /// The primary context of a device, which is opened if it was not.
    fn primary_context(&self, device: DeviceId) -> DriverResult<Opened> {
        if let Some(known) = self.known_context(device) {
            return Ok(known);
        }
        let context = self.on_other_thread(|| {
            self.acl.set_device(number(device))?;
            self.acl.current_context().map(address_of)
        })?;
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let mut opened = self.opened.lock();
        if let Some(entry) = opened.iter_mut().find(|entry| entry.device == device) {
            entry.references += 1;
            return Ok(*entry);
        }
        let entry = Opened { device, context, references: 1, serial };
        opened.push(entry);
        Ok(entry)
    }

    pub(super) fn known_context(&self, device: DeviceId) -> Option<Opened> {
        self.opened.lock().iter().find(|entry| entry.device == device).copied()
    }

    /// Runs something on a thread whose context nobody will miss.
    fn on_other_thread<R: Send>(&self, run: impl FnOnce() -> DriverResult<R> + Send) -> DriverResult<R> {
        std::thread::scope(|scope| {
            match std::thread::Builder::new().name("ascend-alloc".to_owned()).spawn_scoped(scope, run) {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => Err(DriverError {
                    call: "aclrtSetDevice",
                    arguments: String::new(),
                    code: codes::BAD_ALLOC,
                    name: codes::name(codes::BAD_ALLOC),
                    message: Some(format!("no thread could be started to call ACL on: {error}")),
                    missing_symbol: None,
                }),
            }
        })
    }

    /// Gives back the references of devices that the driver has taken; a later call takes new ones. A device
    /// that nobody else has open is reset with that.
    ///
    /// # Safety
    ///
    /// For each device that this driver has opened: somebody else has it open too, or nothing on it is used any more.
    pub unsafe fn close_devices(&self) {
        let opened = core::mem::take(&mut *self.opened.lock());
        for entry in opened {
            for _ in 0..entry.references {
                // On another thread, as it was taken: this one's context is not ours to drop. An
                // error says that the device is gone already.
                let _given_back = self.on_other_thread(|| {
                    // SAFETY: this driver took the reference; the rest is the caller's promise.
                    unsafe { self.acl.reset_device(number(entry.device)) }
                });
            }
        }
    }
}

/// Puts a thread's context back, also if the call between panics.
struct Restore<'a> {
    acl: &'a Acl,
    context: sys::aclrtContext,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        // It fails only if another thread has destroyed the context meanwhile: then there is
        // nothing to put back.
        // SAFETY: the context was current in this thread.
        let _restored = unsafe { self.acl.set_current_context(self.context) };
    }
}
