//! Calls that set values and read them back; nothing else in the model depends on them.

use super::handles::Handle;
use crate::call::Call;
use crate::codes;
use crate::refusal::{Answer, refuse};
use crate::sim::{Inner, Sim};
use crate::threads;

/// The highest option of the system parameters.
const LAST_PARAMETER: u32 = 2;
/// The unit of the device's operator timer, in microseconds.
const TIMER_UNIT: u64 = 1;
/// The default time limit of an operator, in milliseconds.
const EXECUTE_TIMEOUT: u64 = 1_200_000;

/// Attributes of streams: the failure mode, the overflow switch, the user's tag, cache settings.
mod stream_attribute {
    pub(super) const FAILURE_MODE: u32 = 1;
    pub(super) const OVERFLOW: u32 = 2;
    pub(super) const LAST: u32 = 4;
}

impl Sim {
    /// `aclrtSetDeviceSatMode` of the current device.
    ///
    /// # Errors
    /// The ACL code: 107000 for a mode above 1. Without a device the call is accepted, as frameworks
    /// make it before they set one; it then counts for all devices without a mode of their own.
    pub fn set_sat_mode(&self, mode: u32) -> Result<(), i32> {
        self.call(Call::SetDeviceSatMode, format_args!("{mode}"), || {
            if mode > 1 {
                return refuse(codes::RT_PARAM_INVALID, "no such mode");
            }
            let device = self.current().unwrap_or(u32::MAX);
            self.inner.settings.lock().saturation.insert(device, mode);
            Ok(())
        })
    }

    /// `aclrtGetDeviceSatMode` of the current device; 0 unless it was set.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device.
    pub fn sat_mode(&self) -> Result<u32, i32> {
        self.call(Call::GetDeviceSatMode, format_args!(""), || {
            let device = self.current()?;
            let modes = &self.inner.settings.lock().saturation;
            Ok(modes.get(&device).or_else(|| modes.get(&u32::MAX)).copied().unwrap_or_default())
        })
    }

    /// `aclrtSetOpWaitTimeout`, in seconds.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn set_op_wait_timeout(&self, seconds: u32) -> Result<(), i32> {
        self.call(Call::SetOpWaitTimeout, format_args!("{seconds}"), || {
            self.inner.settings.lock().wait_timeout = seconds;
            Ok(())
        })
    }

    /// `aclrtSetOpExecuteTimeOut`, in seconds; 0 is the longest time.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn set_op_execute_timeout(&self, seconds: u32) -> Result<(), i32> {
        self.call(Call::SetOpExecuteTimeOut, format_args!("{seconds}"), || {
            self.inner.settings.lock().execute_timeout = u64::from(seconds) * 1000;
            Ok(())
        })
    }

    /// `aclrtSetOpExecuteTimeOutWithMs`, in milliseconds; 0 is the longest time.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn set_op_execute_timeout_ms(&self, milliseconds: u32) -> Result<(), i32> {
        self.call(Call::SetOpExecuteTimeOutWithMs, format_args!("{milliseconds}"), || {
            self.inner.settings.lock().execute_timeout = u64::from(milliseconds);
            Ok(())
        })
    }

    /// `aclrtSetOpExecuteTimeOutV2`, in microseconds: the limit that counts, in whole units of the
    /// device's timer.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn set_op_execute_timeout_v2(&self, microseconds: u64) -> Result<u64, i32> {
        self.call(Call::SetOpExecuteTimeOutV2, format_args!("{microseconds}"), || {
            self.inner.settings.lock().execute_timeout = microseconds.div_ceil(1000);
            Ok(microseconds.next_multiple_of(TIMER_UNIT))
        })
    }

    /// `aclrtGetOpTimeOutInterval`: the unit of the device's timer in microseconds.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn op_timeout_interval(&self) -> Result<u64, i32> {
        self.call(Call::GetOpTimeOutInterval, format_args!(""), || Ok(TIMER_UNIT))
    }

    /// `aclrtGetOpExecuteTimeout`, in milliseconds.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn op_execute_timeout(&self) -> Result<u32, i32> {
        self.call(Call::GetOpExecuteTimeout, format_args!(""), || {
            let set = self.inner.settings.lock().execute_timeout;
            let limit = if set == 0 { EXECUTE_TIMEOUT } else { set };
            Ok(u32::try_from(limit).unwrap_or(u32::MAX))
        })
    }

    /// `aclrtCtxSetSysParamOpt` of the current context.
    ///
    /// # Errors
    /// The ACL code: 107000 for an unknown option, 107002 without a context.
    pub fn set_ctx_sys_param(&self, option: u32, value: i64) -> Result<(), i32> {
        self.call(Call::CtxSetSysParamOpt, format_args!("{option}, {value}"), || {
            check_parameter(option)?;
            let context = self.current_context()?;
            self.inner.settings.lock().context_parameters.insert((context, option), value);
            Ok(())
        })
    }

    /// `aclrtCtxGetSysParamOpt` of the current context; 0 unless it was set.
    ///
    /// # Errors
    /// As [`set_ctx_sys_param`](Self::set_ctx_sys_param).
    pub fn ctx_sys_param(&self, option: u32) -> Result<i64, i32> {
        self.call(Call::CtxGetSysParamOpt, format_args!("{option}"), || {
            check_parameter(option)?;
            let context = self.current_context()?;
            let settings = self.inner.settings.lock();
            Ok(settings.context_parameters.get(&(context, option)).copied().unwrap_or_default())
        })
    }

    /// `aclrtSetSysParamOpt`, for the process.
    ///
    /// # Errors
    /// The ACL code: 107000 for an unknown option.
    pub fn set_sys_param(&self, option: u32, value: i64) -> Result<(), i32> {
        self.call(Call::SetSysParamOpt, format_args!("{option}, {value}"), || {
            check_parameter(option)?;
            self.inner.settings.lock().parameters.insert(option, value);
            Ok(())
        })
    }

    /// `aclrtGetSysParamOpt`; 0 unless it was set.
    ///
    /// # Errors
    /// The ACL code: 107000 for an unknown option.
    pub fn sys_param(&self, option: u32) -> Result<i64, i32> {
        self.call(Call::GetSysParamOpt, format_args!("{option}"), || {
            check_parameter(option)?;
            Ok(self.inner.settings.lock().parameters.get(&option).copied().unwrap_or_default())
        })
    }

    /// `aclrtDeviceSetLimit`: a limit of a device, of the kinds 0 to 2, in bytes.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible, 107000 for an unknown kind.
    pub fn set_device_limit(&self, device: i32, kind: u32, value: u64) -> Result<(), i32> {
        self.call(Call::DeviceSetLimit, format_args!("{device}, kind={kind}, {value}"), || {
            let device = self.visible(device)?;
            check_parameter(kind)?;
            self.inner.settings.lock().limits.insert((device, kind), value);
            Ok(())
        })
    }

    /// `aclrtDeviceGetLimit`; 0 unless it was set.
    ///
    /// # Errors
    /// As [`set_device_limit`](Self::set_device_limit).
    pub fn device_limit(&self, device: i32, kind: u32) -> Result<u64, i32> {
        self.call(Call::DeviceGetLimit, format_args!("{device}, kind={kind}"), || {
            let device = self.visible(device)?;
            check_parameter(kind)?;
            Ok(self.inner.settings.lock().limits.get(&(device, kind)).copied().unwrap_or_default())
        })
    }

    /// `aclrtSetTsDevice`: the scheduler of the device that takes the work; 0 is the only one.
    ///
    /// # Errors
    /// The ACL code: 107000 for a number above 1, 207000 for 1.
    pub fn set_ts_device(&self, scheduler: u32) -> Result<(), i32> {
        self.call(Call::SetTsDevice, format_args!("{scheduler}"), || match scheduler {
            0 => Ok(()),
            1 => refuse(codes::RT_FEATURE_NOT_SUPPORT, "the part has no second scheduler"),
            _ => refuse(codes::RT_PARAM_INVALID, "no such scheduler"),
        })
    }

    /// `aclrtSetStreamFailureMode`: 0 goes on after a failed task, 1 stops.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle, 107000 for another mode and for the default stream.
    pub fn set_stream_failure_mode(&self, stream: u64, mode: u64) -> Result<(), i32> {
        self.call(Call::SetStreamFailureMode, format_args!("{stream:#x}, {mode}"), || {
            if mode > 1 {
                return refuse(codes::RT_PARAM_INVALID, "no such mode");
            }
            self.set_attribute(stream, stream_attribute::FAILURE_MODE, mode)
        })
    }

    /// `aclrtSetStreamOverflowSwitch`: 0 or 1.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle, 107000 for another value.
    pub fn set_stream_overflow(&self, stream: u64, on: u32) -> Result<(), i32> {
        self.call(Call::SetStreamOverflowSwitch, format_args!("{stream:#x}, {on}"), || {
            if on > 1 {
                return refuse(codes::RT_PARAM_INVALID, "the switch is 0 or 1");
            }
            self.set_attribute(stream, stream_attribute::OVERFLOW, u64::from(on))
        })
    }

    /// `aclrtGetStreamOverflowSwitch`.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle.
    pub fn stream_overflow(&self, stream: u64) -> Result<u32, i32> {
        self.call(Call::GetStreamOverflowSwitch, format_args!("{stream:#x}"), || {
            self.attribute(stream, stream_attribute::OVERFLOW).map(|value| value as u32)
        })
    }

    /// `aclrtSetStreamAttribute`; of the value only the first eight bytes count.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle, 107000 for an unknown attribute.
    pub fn set_stream_attribute(&self, stream: u64, attribute: u32, value: u64) -> Result<(), i32> {
        self.call(Call::SetStreamAttribute, format_args!("{stream:#x}, attr={attribute}, {value}"), || {
            check_attribute(attribute)?;
            self.set_attribute(stream, attribute, value)
        })
    }

    /// `aclrtGetStreamAttribute`; 0 unless it was set.
    ///
    /// # Errors
    /// As [`set_stream_attribute`](Self::set_stream_attribute).
    pub fn stream_attribute(&self, stream: u64, attribute: u32) -> Result<u64, i32> {
        self.call(Call::GetStreamAttribute, format_args!("{stream:#x}, attr={attribute}"), || {
            check_attribute(attribute)?;
            self.attribute(stream, attribute)
        })
    }

    fn set_attribute(&self, stream: u64, attribute: u32, value: u64) -> Answer<()> {
        let stream = self.stream_of(stream)?;
        self.inner.settings.lock().stream_attributes.insert((stream, attribute), value);
        Ok(())
    }

    fn attribute(&self, stream: u64, attribute: u32) -> Answer<u64> {
        let stream = self.stream_of(stream)?;
        let settings = self.inner.settings.lock();
        Ok(settings.stream_attributes.get(&(stream, attribute)).copied().unwrap_or_default())
    }

    /// The handle of a live stream; 0 is the default stream of the current device.
    fn stream_of(&self, stream: u64) -> Answer<u64> {
        let context = self.context_for(&[Handle::Stream(stream)])?;
        let executor = &self.inner.executor;
        if stream == 0 {
            return Inner::executed(executor.default_stream(context));
        }
        Inner::executed(executor.submitted(context, stream)).map(|_| stream)
    }

    fn current_context(&self) -> Answer<u64> {
        self.inner.devices.lock().context_of(threads::current(self.inner.id))
    }
}

fn check_parameter(option: u32) -> Answer<()> {
    if option > LAST_PARAMETER { refuse(codes::RT_PARAM_INVALID, "no such option") } else { Ok(()) }
}

fn check_attribute(attribute: u32) -> Answer<()> {
    if attribute == 0 || attribute > stream_attribute::LAST {
        return refuse(codes::RT_PARAM_INVALID, "no such attribute of a stream");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Sim, SimConfig, codes};

    #[test]
    fn what_is_set_is_read_back_where_it_belongs() {
        let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
        assert_eq!(sim.set_sat_mode(1), Ok(()), "frameworks call it before they set a device");
        assert_eq!(sim.set_ctx_sys_param(0, 1), Err(codes::RT_CONTEXT_NULL));
        sim.set_device(0).unwrap();
        sim.set_ctx_sys_param(0, 5).unwrap();
        assert_eq!((sim.ctx_sys_param(0), sim.ctx_sys_param(1)), (Ok(5), Ok(0)));
        assert_eq!(sim.ctx_sys_param(3), Err(codes::RT_PARAM_INVALID));
        let stream = sim.create_stream().unwrap();
        sim.set_stream_failure_mode(stream, 1).unwrap();
        assert_eq!(sim.stream_attribute(stream, 1), Ok(1));
        assert_eq!(sim.set_stream_failure_mode(stream, 2), Err(codes::RT_PARAM_INVALID));
        sim.destroy_stream(stream).unwrap();
        assert_eq!(sim.stream_attribute(stream, 1), Err(codes::RT_INVALID_HANDLE));
        sim.set_device(1).unwrap();
        assert_eq!((sim.ctx_sys_param(0), sim.sat_mode()), (Ok(0), Ok(1)));
        assert_eq!(sim.set_sat_mode(2), Err(codes::RT_PARAM_INVALID));
        sim.set_op_execute_timeout(3).unwrap();
        assert_eq!(sim.op_execute_timeout(), Ok(3000));
        assert_eq!(sim.set_op_execute_timeout_v2(1500), Ok(1500));
        assert_eq!(sim.op_execute_timeout(), Ok(2));
    }
}
