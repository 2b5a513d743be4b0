//! Values that programs set and read back and that change nothing else in the model: saturation
//! mode, time limits of operators, system parameters, limits of devices, attributes of streams.

use std::collections::HashMap;

/// What was set, for one process.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// `aclrtSetDeviceSatMode`, by the driver's device number.
    pub(crate) saturation: HashMap<u32, u32>,
    /// Seconds; 0 is no limit.
    pub(crate) wait_timeout: u32,
    /// Milliseconds; 0 is the default.
    pub(crate) execute_timeout: u64,
    /// `aclrtCtxSetSysParamOpt`, by context and option.
    pub(crate) context_parameters: HashMap<(u64, u32), i64>,
    /// `aclrtSetSysParamOpt`, by option.
    pub(crate) parameters: HashMap<u32, i64>,
    /// `aclrtDeviceSetLimit`, by the driver's device number and kind.
    pub(crate) limits: HashMap<(u32, u32), u64>,
    /// `aclrtSetStreamAttribute`, by stream and attribute.
    pub(crate) stream_attributes: HashMap<(u64, u32), u64>,
}

impl Settings {
    /// The device was reset: what was set for it is gone.
    pub(crate) fn forget_device(&mut self, device: u32) {
        self.saturation.remove(&device);
        self.limits.retain(|(owner, _), _| *owner != device);
    }

    /// The stream was destroyed.
    pub(crate) fn forget_stream(&mut self, stream: u64) {
        if !self.stream_attributes.is_empty() {
            self.stream_attributes.retain(|(owner, _), _| *owner != stream);
        }
    }
}
