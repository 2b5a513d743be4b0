//! Process, devices and contexts.

use core::ffi::{CStr, c_void};

use crate::acl::table::Acl;
use crate::acl::{codes, sys};
use crate::driver::DriverResult;

impl Acl {
    /// Initialises ACL for the process. `REPEAT_INITIALIZE` says that it was before.
    pub fn init(&self, config: Option<&CStr>) -> DriverResult<()> {
        let path = config.map_or(core::ptr::null(), CStr::as_ptr);
        self.call("aclInit", self.functions.aclInit, format_args!("configPath={config:?}"), |function| {
            // SAFETY: null, or a text that outlives the call.
            unsafe { function(path) }
        })
    }

    /// The version of the interface: major, minor, patch.
    pub fn version(&self) -> DriverResult<(i32, i32, i32)> {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        self.call("aclrtGetVersion", self.functions.aclrtGetVersion, format_args!(""), |function| {
            // SAFETY: three places to write to.
            unsafe { function(&mut major, &mut minor, &mut patch) }
        })?;
        Ok((major, minor, patch))
    }

    /// The version of an installed package ("runtime", "driver") as one number, 9.0.0 being
    /// 90 000 000.
    pub fn package_version(&self, package: &CStr) -> DriverResult<i32> {
        let mut number = 0;
        let arguments = format_args!("pkgName={package:?}");
        self.call("aclsysGetVersionNum", self.functions.aclsysGetVersionNum, arguments, |function| {
            // SAFETY: the text outlives the call and is only read, though C's type does not say so.
            unsafe { function(package.as_ptr().cast_mut(), &mut number) }
        })?;
        Ok(number)
    }

    /// The name of the chip of device 0, for instance "Ascend910B3", if it can be read.
    #[must_use]
    pub fn soc_name(&self) -> Option<&CStr> {
        let function = self.functions.aclrtGetSocName?;
        // SAFETY: no arguments; the answer is null or a text that is never changed or freed.
        let name = unsafe { function() };
        // SAFETY: as above.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    }

    /// How many devices the process sees.
    pub fn device_count(&self) -> DriverResult<u32> {
        let mut count = 0;
        self.call("aclrtGetDeviceCount", self.functions.aclrtGetDeviceCount, format_args!(""), |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut count) }
        })?;
        Ok(count)
    }

    /// The device of this thread's context; `RT_CONTEXT_NULL` without one.
    pub fn device(&self) -> DriverResult<i32> {
        let mut device = -1;
        self.call("aclrtGetDevice", self.functions.aclrtGetDevice, format_args!(""), |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut device) }
        })?;
        Ok(device)
    }

    /// The same, `None` if the thread has no context. Unlike an error, that costs no text.
    #[inline]
    #[must_use]
    pub fn device_if_any(&self) -> Option<i32> {
        let function = self.functions.aclrtGetDevice?;
        let mut device = -1;
        // SAFETY: a place to write to.
        let code = unsafe { function(&mut device) };
        if code == codes::SUCCESS {
            return Some(device);
        }
        self.forget_last_error();
        if let Some(function) = self.functions.aclGetRecentErrMsg {
            // The library has written a message about this; read away, it cannot turn up later.
            // SAFETY: no arguments, and the answer is not looked at.
            unsafe { function() };
        }
        None
    }

    /// Takes a reference of the device and makes its primary context this thread's.
    pub fn set_device(&self, device: i32) -> DriverResult<()> {
        let arguments = format_args!("deviceId={device}");
        self.call("aclrtSetDevice", self.functions.aclrtSetDevice, arguments, |function| {
            // SAFETY: any number is checked.
            unsafe { function(device) }
        })
    }

    /// Gives one reference of the device back.
    ///
    /// # Safety
    ///
    /// The caller took one with [`set_device`](Self::set_device). With the last, all that this
    /// process has on the device is gone: nobody may use it then.
    pub unsafe fn reset_device(&self, device: i32) -> DriverResult<()> {
        let arguments = format_args!("deviceId={device}");
        self.call("aclrtResetDevice", self.functions.aclrtResetDevice, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(device) }
        })
    }

    /// Waits for the streams of this thread's context.
    pub fn synchronize_device(&self) -> DriverResult<()> {
        let function = self.functions.aclrtSynchronizeDevice;
        self.call("aclrtSynchronizeDevice", function, format_args!(""), |function| {
            // SAFETY: no arguments.
            unsafe { function() }
        })
    }

    /// The same for at most so many milliseconds; 0 is refused, -1 waits for ever.
    pub fn synchronize_device_with_timeout(&self, milliseconds: i32) -> DriverResult<()> {
        let function = self.functions.aclrtSynchronizeDeviceWithTimeout;
        let arguments = format_args!("timeout={milliseconds}");
        self.call("aclrtSynchronizeDeviceWithTimeout", function, arguments, |function| {
            // SAFETY: any number is checked.
            unsafe { function(milliseconds) }
        })
    }

    /// This process as the physical host numbers it; whoever shares memory with it names it so.
    pub fn bare_process_id(&self) -> DriverResult<i32> {
        let mut process = 0;
        let function = self.functions.aclrtDeviceGetBareTgid;
        self.call("aclrtDeviceGetBareTgid", function, format_args!(""), |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut process) }
        })?;
        Ok(process)
    }

    /// The flags of the device's primary context, and whether it is active.
    pub fn primary_context_state(&self, device: i32) -> DriverResult<(u32, bool)> {
        let (mut flags, mut active) = (0, 0);
        let arguments = format_args!("deviceId={device}");
        self.call(
            "aclrtGetPrimaryCtxState",
            self.functions.aclrtGetPrimaryCtxState,
            arguments,
            |function| {
                // SAFETY: two places to write to.
                unsafe { function(device, &mut flags, &mut active) }
            },
        )?;
        Ok((flags, active != 0))
    }

    /// A new context on the device, current in this thread.
    pub fn create_context(&self, device: i32) -> DriverResult<sys::aclrtContext> {
        let mut context = core::ptr::null_mut();
        let arguments = format_args!("deviceId={device}");
        self.call("aclrtCreateContext", self.functions.aclrtCreateContext, arguments, |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut context, device) }
        })?;
        Ok(context)
    }

    /// Destroys a context.
    ///
    /// # Safety
    ///
    /// It comes from [`create_context`](Self::create_context), and nothing made in it is used
    /// afterwards.
    pub unsafe fn destroy_context(&self, context: sys::aclrtContext) -> DriverResult<()> {
        let arguments = format_args!("context={context:?}");
        self.call("aclrtDestroyContext", self.functions.aclrtDestroyContext, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(context) }
        })
    }

    /// The context of this thread; `RT_CONTEXT_NULL` without one.
    pub fn current_context(&self) -> DriverResult<sys::aclrtContext> {
        let mut context = core::ptr::null_mut();
        let function = self.functions.aclrtGetCurrentContext;
        self.call("aclrtGetCurrentContext", function, format_args!(""), |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut context) }
        })?;
        Ok(context)
    }

    /// Makes a context this thread's.
    ///
    /// # Safety
    ///
    /// It comes from this library; one that is destroyed is answered with a code.
    pub unsafe fn set_current_context(&self, context: sys::aclrtContext) -> DriverResult<()> {
        let arguments = format_args!("context={context:?}");
        self.call("aclrtSetCurrentContext", self.functions.aclrtSetCurrentContext, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(context) }
        })
    }

    /// The default stream of this thread's context.
    pub fn default_stream(&self) -> DriverResult<sys::aclrtStream> {
        let mut stream = core::ptr::null_mut();
        let function = self.functions.aclrtCtxGetCurrentDefaultStream;
        self.call("aclrtCtxGetCurrentDefaultStream", function, format_args!(""), |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut stream) }
        })?;
        Ok(stream)
    }

    /// Whether `device` can reach the memory of `peer`.
    pub fn can_access_peer(&self, device: i32, peer: i32) -> DriverResult<bool> {
        let mut can = 0;
        let arguments = format_args!("deviceId={device}, peerDeviceId={peer}");
        let function = self.functions.aclrtDeviceCanAccessPeer;
        self.call("aclrtDeviceCanAccessPeer", function, arguments, |function| {
            // SAFETY: a place to write to; any numbers are checked.
            unsafe { function(&mut can, device, peer) }
        })?;
        Ok(can != 0)
    }

    /// Lets this thread's device reach `peer`, in the whole process.
    pub fn enable_peer_access(&self, peer: i32) -> DriverResult<()> {
        let arguments = format_args!("peerDeviceId={peer}, flags=0");
        let function = self.functions.aclrtDeviceEnablePeerAccess;
        self.call("aclrtDeviceEnablePeerAccess", function, arguments, |function| {
            // SAFETY: any number is checked.
            unsafe { function(peer, 0) }
        })
    }

    /// Undoes [`enable_peer_access`](Self::enable_peer_access).
    pub fn disable_peer_access(&self, peer: i32) -> DriverResult<()> {
        let arguments = format_args!("peerDeviceId={peer}");
        let function = self.functions.aclrtDeviceDisablePeerAccess;
        self.call("aclrtDeviceDisablePeerAccess", function, arguments, |function| {
            // SAFETY: any number is checked.
            unsafe { function(peer) }
        })
    }

    /// Has `callback` called around setting and resetting a device; `None` removes it.
    ///
    /// # Safety
    ///
    /// Until it is removed, the callback may be called from any thread with `context`. It must
    /// not call ACL.
    pub unsafe fn on_device_state(
        &self,
        name: &CStr,
        callback: sys::aclrtDeviceStateCallback,
        context: *mut c_void,
    ) -> DriverResult<()> {
        let arguments = format_args!("regName={name:?}, callback={}", callback.is_some());
        let function = self.functions.aclrtRegDeviceStateCallback;
        self.call("aclrtRegDeviceStateCallback", function, arguments, |function| {
            // SAFETY: as this function's; the text outlives the call.
            unsafe { function(name.as_ptr(), callback, context) }
        })
    }

    /// Has `callback` called after a stream is made and before one is destroyed; `None` removes it.
    ///
    /// # Safety
    ///
    /// As [`on_device_state`](Self::on_device_state).
    pub unsafe fn on_stream_state(
        &self,
        name: &CStr,
        callback: sys::aclrtStreamStateCallback,
        context: *mut c_void,
    ) -> DriverResult<()> {
        let arguments = format_args!("regName={name:?}, callback={}", callback.is_some());
        let function = self.functions.aclrtRegStreamStateCallback;
        self.call("aclrtRegStreamStateCallback", function, arguments, |function| {
            // SAFETY: as this function's; the text outlives the call.
            unsafe { function(name.as_ptr(), callback, context) }
        })
    }
}
