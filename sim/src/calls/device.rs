//! Initialisation, devices, contexts, and questions about the machine.

use crate::call::Call;
use crate::codes;
use crate::hooks::DeviceState;
use crate::memory::Memory;
use crate::refusal::{Answer, refuse};
use crate::sim::{Inner, Sim};
use crate::threads::{self, Current};

impl Sim {
    /// `aclInit` without a configuration.
    ///
    /// # Errors
    /// The ACL code: 100002 if it was called before (which counts all the same).
    pub fn init(&self) -> Result<(), i32> {
        self.init_with(None)
    }

    /// `aclInit` with the path of a configuration, if there is one. Its content is not looked at.
    ///
    /// # Errors
    /// The ACL code: 100002 if it was called before (which counts all the same, whatever the path);
    /// 100003 for a first call with a path at which no file can be read (which does not count).
    pub fn init_with(&self, config: Option<&str>) -> Result<(), i32> {
        self.call(Call::Init, format_args!("{}", config.unwrap_or("")), || {
            let path = config.filter(|path| !path.is_empty());
            let mut devices = self.inner.devices.lock();
            if devices.inits == 0 && path.is_some_and(|path| !std::path::Path::new(path).is_file()) {
                return refuse(codes::INVALID_FILE, "no such configuration file");
            }
            devices.inits += 1;
            devices.finalized = false;
            if devices.inits > 1 { refuse(codes::REPEAT_INITIALIZE, "initialised before") } else { Ok(()) }
        })
    }

    /// `aclFinalize`: tears everything down, whatever `aclInit` has counted.
    ///
    /// # Errors
    /// The ACL code: 100037 at the second call.
    pub fn finalize(&self) -> Result<(), i32> {
        self.call(Call::Finalize, format_args!(""), || {
            if std::mem::replace(&mut self.inner.devices.lock().finalized, true) {
                return refuse(codes::REPEAT_FINALIZE, "finalised before");
            }
            self.tear_down()
        })
    }

    /// `aclFinalizeReference`: undoes one `aclInit`, tears down with the last; the new count.
    ///
    /// # Errors
    /// The ACL code: 100037 if nothing is left to undo.
    pub fn finalize_reference(&self) -> Result<u64, i32> {
        self.call(Call::FinalizeReference, format_args!(""), || {
            let left = {
                let mut devices = self.inner.devices.lock();
                let Some(left) = devices.inits.checked_sub(1) else {
                    return refuse(codes::REPEAT_FINALIZE, "not initialised");
                };
                devices.inits = left;
                devices.finalized |= left == 0;
                left
            };
            if left == 0 {
                self.tear_down()?;
            }
            Ok(left)
        })
    }

    fn tear_down(&self) -> Answer<()> {
        let held = {
            let mut devices = self.inner.devices.lock();
            devices.inits = 0;
            devices.held()
        };
        for (user, device) in held {
            self.inner.hooks.device_changed(user as i32, DeviceState::ResetPre);
            self.inner.devices.lock().end(device);
            self.end_device(user, device)?;
        }
        self.inner.wait_while(Memory::any_in_use).reset_all();
        Ok(())
    }

    /// `aclrtGetVersion`: that of CANN 9.1 (1.17.0).
    ///
    /// # Errors
    /// Only a planned one.
    pub fn version(&self) -> Result<(i32, i32, i32), i32> {
        self.call(Call::GetVersion, format_args!(""), || Ok((1, 17, 0)))
    }

    /// `aclrtGetSocName`.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn soc_name(&self) -> Result<&'static str, i32> {
        self.call(Call::GetSocName, format_args!(""), || Ok(self.inner.config.soc.name()))
    }

    /// `aclGetRecentErrMsg`: what this thread's failed calls had to say since the last time, newest
    /// first.
    #[must_use]
    pub fn recent_error(&self) -> Option<String> {
        match self.inner.control.admit(Call::GetRecentErrMsg) {
            Ok(()) => threads::take_messages(self.inner.id),
            Err(_) => None,
        }
    }

    /// `aclrtGetDeviceCount`: how many devices the process sees.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn device_count(&self) -> Result<u32, i32> {
        self.call(Call::GetDeviceCount, format_args!(""), || Ok(self.inner.devices.lock().count()))
    }

    /// `aclrtSetDevice`.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn set_device(&self, device: i32) -> Result<(), i32> {
        self.call(Call::SetDevice, format_args!("{device}"), || {
            self.visible(device)?;
            self.inner.hooks.device_changed(device, DeviceState::SetPre);
            let current = self.inner.devices.lock().set(number(device)?)?;
            threads::replace(self.inner.id, current);
            self.inner.hooks.device_changed(device, DeviceState::SetPost);
            Ok(())
        })
    }

    /// `aclrtGetDevice`: the current device of this thread.
    ///
    /// # Errors
    /// The ACL code: 107002 if there is none.
    pub fn get_device(&self) -> Result<i32, i32> {
        self.call(Call::GetDevice, format_args!(""), || {
            let driver = self.current()?;
            let user = self.inner.devices.lock().user_id(driver);
            user.map_or(refuse(codes::RT_INVALID_DEVICEID, "the device is not visible"), |user| {
                Ok(user as i32)
            })
        })
    }

    /// `aclrtResetDevice`: drops one reference; with the last, memory, mappings and contexts of the
    /// device are gone.
    ///
    /// # Errors
    /// The ACL code: 107001, or 507007 if it is not set.
    pub fn reset_device(&self, device: i32) -> Result<(), i32> {
        self.call(Call::ResetDevice, format_args!("{device}"), || self.reset_now(number(device)?, false))
    }

    /// `aclrtResetDeviceForce`: drops all references.
    ///
    /// # Errors
    /// As [`reset_device`](Self::reset_device).
    pub fn reset_device_force(&self, device: i32) -> Result<(), i32> {
        self.call(Call::ResetDeviceForce, format_args!("{device}"), || self.reset_now(number(device)?, true))
    }

    fn reset_now(&self, user: u32, all: bool) -> Answer<()> {
        if self.inner.devices.lock().ends(user, all)? {
            self.inner.hooks.device_changed(user as i32, DeviceState::ResetPre);
        }
        let last = self.inner.devices.lock().reset(user, all)?;
        last.map_or(Ok(()), |device| self.end_device(user, device))
    }

    /// What a device has ends with its last reference.
    fn end_device(&self, user: u32, device: u32) -> Answer<()> {
        Inner::executed(self.inner.executor.reset_device(device))?;
        self.inner.wait_while(|memory| memory.pool_in_use(device as usize)).reset(device);
        self.inner.settings.lock().forget_device(device);
        self.inner.pools.lock().forget_device(device);
        if let Some(fault) = self.inner.faulted.get(device as usize) {
            fault.store(false, std::sync::atomic::Ordering::Relaxed);
        }
        self.inner.hooks.device_changed(user as i32, DeviceState::ResetPost);
        Ok(())
    }

    /// `aclrtCreateContext`: a context of the device, with streams of its own, current in this thread
    /// from now on. It ends with the device's reset.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn create_context(&self, device: i32) -> Result<u64, i32> {
        self.call(Call::CreateContext, format_args!("{device}"), || {
            let device = self.visible(device)?;
            let number = Inner::executed(self.inner.executor.open_context(device))?;
            let handle = self.inner.devices.lock().create_context(device, number);
            threads::replace(self.inner.id, Current::Explicit(handle));
            Ok(handle)
        })
    }

    /// `aclrtDestroyContext`: waits for the context's work and destroys its streams.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107002 for an unknown or a primary context, 107027 while a stream
    /// of it is captured.
    pub fn destroy_context(&self, context: u64) -> Result<(), i32> {
        self.call(Call::DestroyContext, format_args!("{context:#x}"), || {
            not_null(context)?;
            let number = self.inner.devices.lock().context_number(context)?;
            Inner::executed(self.inner.executor.check_close(number))?;
            let number = self.inner.devices.lock().destroy_context(context)?;
            Inner::executed(self.inner.executor.close_context(number))
        })
    }

    /// `aclrtSetCurrentContext`.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown context.
    pub fn set_current_context(&self, context: u64) -> Result<(), i32> {
        self.call(Call::SetCurrentContext, format_args!("{context:#x}"), || {
            not_null(context)?;
            let current = self.inner.devices.lock().enter_context(context)?;
            threads::replace(self.inner.id, current);
            Ok(())
        })
    }

    /// `aclrtGetCurrentContext`.
    ///
    /// # Errors
    /// The ACL code: 107002 if there is none.
    pub fn get_current_context(&self) -> Result<u64, i32> {
        self.call(Call::GetCurrentContext, format_args!(""), || {
            self.inner.devices.lock().context_of(threads::current(self.inner.id))
        })
    }

    /// Runs something with a device (process's number) current in this thread and then puts back
    /// what was current. Counts as no call. A device that nobody has set is held from then on.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn on_device<R>(&self, device: u32, run: impl FnOnce() -> R) -> Result<R, i32> {
        /// Puts the old state back even when `run` panics.
        struct Restore(u64, Current);
        impl Drop for Restore {
            fn drop(&mut self) {
                threads::replace(self.0, self.1);
            }
        }
        let current = self.inner.devices.lock().enter(device).map_err(|refusal| refusal.code)?;
        let _restore = Restore(self.inner.id, threads::replace(self.inner.id, current));
        Ok(run())
    }

    /// The driver's number of a device of the process.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn driver_device(&self, device: u32) -> Result<u32, i32> {
        self.inner.devices.lock().driver_id(device).map_err(|refusal| refusal.code)
    }

    /// `aclrtGetMemInfo` of the current device: free and total bytes.
    ///
    /// # Errors
    /// The ACL code: 107016 for an unknown attribute, 107002 without a current device.
    pub fn mem_info(&self, attr: u32) -> Result<(u64, u64), i32> {
        self.call(Call::GetMemInfo, format_args!("attr={attr}"), || {
            if attr > codes::attr::LAST {
                return refuse(codes::RT_INVALID_MEMORY_TYPE, "no such memory attribute");
            }
            let device = self.current()?;
            self.inner.memory.lock().info(device, attr)
        })
    }
}

/// A device number as the model takes it.
pub(super) fn number(device: i32) -> Answer<u32> {
    u32::try_from(device).or_else(|_| refuse(codes::RT_INVALID_DEVICEID, "no such device is visible"))
}

fn not_null(handle: u64) -> Answer<()> {
    if handle == 0 { refuse(codes::INVALID_PARAM, "null context") } else { Ok(()) }
}
