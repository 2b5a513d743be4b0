//! Questions about versions, devices, contexts and memory that change nothing.

use crate::call::Call;
use crate::codes;
use crate::refusal::{Answer, refuse};
use crate::sim::Sim;
use crate::threads;

/// The toolkit that is played, as `aclsysGetVersionStr` writes it.
const VERSION: &str = "9.1.0";
/// The same as `aclsysGetVersionNum` counts it.
const VERSION_NUMBER: i32 = 90_100_000;
/// The packages that have a version.
const PACKAGES: &[&str] = &["runtime", "driver", "compiler", "toolkit", "opp", "hccl", "firmware"];
/// The longest list of addresses `aclrtCheckMemType` takes, and the kinds it knows.
const KNOWN_TYPES: u32 = memory_type::DEVICE | memory_type::DVPP | memory_type::RESERVED;

/// Masks of `aclrtCheckMemType`.
mod memory_type {
    pub(super) const DEVICE: u32 = 0x2;
    pub(super) const DVPP: u32 = 0x8;
    pub(super) const RESERVED: u32 = 0x10;
}

/// The answer of `aclrtGetDeviceUtilizationRate`: percent, or -1 for what the part has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Utilization {
    /// Cube units.
    pub cube: i32,
    /// Vector units.
    pub vector: i32,
    /// Processor cores of the device.
    pub ai_cpu: i32,
    /// Memory that is in use.
    pub memory: i32,
}

/// One entry of `aclrtGetMemUsageInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The part of the software that holds the memory.
    pub name: &'static str,
    /// Bytes held now.
    pub current: u64,
    /// The most bytes held so far.
    pub peak: u64,
}

impl Sim {
    /// `aclsysGetVersionNum`: major * 10^7 + minor * 10^5 + patch * 10^3 of the toolkit that is played.
    ///
    /// # Errors
    /// The ACL code: 100000 for a package that does not exist.
    pub fn version_number(&self, package: &str) -> Result<i32, i32> {
        self.call(Call::VersionNumber, format_args!("{package}"), || known(package).map(|()| VERSION_NUMBER))
    }

    /// `aclsysGetVersionStr`.
    ///
    /// # Errors
    /// As [`version_number`](Self::version_number).
    pub fn version_text(&self, package: &str) -> Result<&'static str, i32> {
        self.call(Call::VersionText, format_args!("{package}"), || known(package).map(|()| VERSION))
    }

    /// `aclrtGetRunMode`: 1, the program runs on the host.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn run_mode(&self) -> Result<u32, i32> {
        self.call(Call::GetRunMode, format_args!(""), || Ok(1))
    }

    /// `aclrtGetDeviceInfo`: cores (attributes 101, 102, 201) and bytes of memory (301).
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible, 107000 for other attributes.
    pub fn device_info(&self, device: u32, attribute: u32) -> Result<i64, i32> {
        self.call(Call::GetDeviceInfo, format_args!("{device}, attr={attribute}"), || {
            let device = self.inner.devices.lock().driver_id(device)?;
            match attribute {
                // A 910B3 has 20 cores with one cube and two vector units each.
                101 | 102 => Ok(20),
                201 => Ok(40),
                301 => Ok(self.inner.memory.lock().info(device, codes::attr::HBM)?.1 as i64),
                _ => refuse(codes::RT_PARAM_INVALID, "no such attribute of a device"),
            }
        })
    }

    /// `aclrtGetDeviceCapability`: 0, the device has none of the features that can be asked for.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn device_capability(&self, device: i32, feature: u32) -> Result<i32, i32> {
        self.call(Call::GetDeviceCapability, format_args!("{device}, feature={feature}"), || {
            self.visible(device).map(|_| 0)
        })
    }

    /// `aclrtQueryDeviceStatus`: 0, the device is well.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn device_status(&self, device: i32) -> Result<u32, i32> {
        self.call(Call::QueryDeviceStatus, format_args!("{device}"), || self.visible(device).map(|_| 0))
    }

    /// `aclrtGetDeviceUtilizationRate`: how much memory is in use; units are idle.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn utilization(&self, device: i32) -> Result<Utilization, i32> {
        self.call(Call::GetDeviceUtilizationRate, format_args!("{device}"), || {
            let device = self.visible(device)?;
            let (free, total) = self.inner.memory.lock().info(device, codes::attr::HBM)?;
            let percent = u128::from(total - free) * 100 / u128::from(total.max(1));
            Ok(Utilization { memory: percent as i32, ..Utilization::default() })
        })
    }

    /// `aclrtGetPrimaryCtxState`: flags (none exist) and whether the device is set.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn primary_context_state(&self, device: i32) -> Result<(u32, bool), i32> {
        self.call(Call::GetPrimaryCtxState, format_args!("{device}"), || {
            let device = self.visible(device)?;
            Ok((0, self.inner.devices.lock().is_set(device)))
        })
    }

    /// `aclrtCtxGetCurrentDefaultStream`.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device.
    pub fn current_default_stream(&self) -> Result<u64, i32> {
        self.queue(Call::CtxGetCurrentDefaultStream, format_args!(""), &[], |exec, device| {
            exec.default_stream(device)
        })
    }

    /// `aclrtDeviceGetBareTgid`: the number of this process, as the machine counts it.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn bare_tgid(&self) -> Result<i32, i32> {
        self.call(Call::DeviceGetBareTgid, format_args!(""), || Ok(std::process::id() as i32))
    }

    /// `aclrtGetStreamAvailableNum`: streams that can still be created on the current device.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device.
    pub fn stream_available(&self) -> Result<u32, i32> {
        self.queue(Call::GetStreamAvailableNum, format_args!(""), &[], |exec, device| {
            exec.available(device).map(|(streams, _)| streams)
        })
    }

    /// `aclrtGetEventAvailableNum`: events that can still be recorded on the current device.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device.
    pub fn event_available(&self) -> Result<u32, i32> {
        self.queue(Call::GetEventAvailableNum, format_args!(""), &[], |exec, device| {
            exec.available(device).map(|(_, events)| events)
        })
    }

    /// `aclrtDeviceGetStreamPriorityRange`: the least and the greatest priority.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device.
    pub fn stream_priority_range(&self) -> Result<(i32, i32), i32> {
        self.call(Call::DeviceGetStreamPriorityRange, format_args!(""), || self.current().map(|_| (7, 0)))
    }

    /// `aclrtGetMemUsageInfo`: up to `room` entries; the model knows one user of memory, the program.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible, 107000 without room.
    pub fn memory_usage(&self, device: i32, room: usize) -> Result<Vec<MemoryUsage>, i32> {
        self.call(Call::GetMemUsageInfo, format_args!("{device}, room={room}"), || {
            let device = self.visible(device)?;
            if room == 0 {
                return refuse(codes::RT_PARAM_INVALID, "no room for an entry");
            }
            let memory = self.inner.memory.lock();
            let (current, peak) = (memory.used(device), memory.peak(device));
            Ok(vec![MemoryUsage { name: "APP", current, peak }])
        })
    }

    /// `aclrtCheckMemType`: 1 if all the addresses are memory of one of the kinds in `wanted` (0x2
    /// of `aclrtMalloc`, 0x8 of the picture engines, 0x10 reserved ranges), else 0.
    ///
    /// # Errors
    /// The ACL code: 107000 for an empty list, unknown kinds and a reserved field that is not 0.
    pub fn check_memory_type(&self, addresses: &[u64], wanted: u32, reserve: u32) -> Result<u32, i32> {
        let arguments = format_args!("addresses={}, type={wanted:#x}", addresses.len());
        self.call(Call::CheckMemType, arguments, || {
            if addresses.is_empty() || wanted == 0 || wanted & !KNOWN_TYPES != 0 || reserve != 0 {
                return refuse(codes::RT_PARAM_INVALID, "an empty list, an unknown kind or a reserved field");
            }
            let memory = self.inner.memory.lock();
            let fits = |&address: &u64| {
                let reserved = memory.is_reserved(address);
                let block = !reserved && memory.is_backed_at(address);
                (reserved && wanted & memory_type::RESERVED != 0)
                    || (block && wanted & memory_type::DEVICE != 0)
            };
            Ok(u32::from(addresses.iter().all(fits)))
        })
    }

    /// `aclrtGetLastError` of this thread (level 0): the code of the last failed call, which is then
    /// forgotten.
    #[must_use]
    pub fn last_error(&self, level: u32) -> i32 {
        match self.inner.control.admit(Call::GetLastError) {
            Ok(()) if level == 0 => threads::last_error(self.inner.id, true),
            _ => codes::INVALID_PARAM,
        }
    }

    /// `aclrtPeekAtLastError` of this thread (level 0): the same, and it stays.
    #[must_use]
    pub fn peek_last_error(&self, level: u32) -> i32 {
        match self.inner.control.admit(Call::PeekAtLastError) {
            Ok(()) if level == 0 => threads::last_error(self.inner.id, false),
            _ => codes::INVALID_PARAM,
        }
    }

    /// `aclrtGetLogicDevIdByUserDevId`: the driver's number of a device of the process.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn user_to_logic_device(&self, device: i32) -> Result<i32, i32> {
        self.call(Call::GetLogicDevIdByUserDevId, format_args!("{device}"), || {
            self.visible(device).map(|device| device as i32)
        })
    }

    /// `aclrtGetUserDevIdByLogicDevId`: the process's number of a device of the driver.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn logic_to_user_device(&self, device: i32) -> Result<i32, i32> {
        self.call(Call::GetUserDevIdByLogicDevId, format_args!("{device}"), || {
            let user =
                u32::try_from(device).ok().and_then(|device| self.inner.devices.lock().user_id(device));
            user.map_or(refuse(codes::RT_INVALID_DEVICEID, "no such device is visible"), |user| {
                Ok(user as i32)
            })
        })
    }

    /// `aclrtHostMemMapCapabilities`: 1 if a unit of the device can use registered host memory.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible, 107000 for an unknown unit, 107002
    /// without a device.
    pub fn host_map_capability(&self, device: u32, unit: u32) -> Result<u32, i32> {
        /// `aclrtHacType` ends with 9; 5 and 7 are no users of host memory (RDMA, pictures).
        const LAST_UNIT: u32 = 9;
        self.call(Call::HostMemMapCapabilities, format_args!("{device}, unit={unit}"), || {
            if unit > LAST_UNIT {
                return refuse(codes::RT_PARAM_INVALID, "no such unit");
            }
            self.inner.devices.lock().driver_id(device)?;
            self.current()?;
            Ok(u32::from(unit != 5 && unit != 7))
        })
    }

    /// `aclrtGetMemUceInfo`: how many memory faults are recorded, none here.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible.
    pub fn memory_uce(&self, device: i32, room: usize) -> Result<usize, i32> {
        self.call(Call::GetMemUceInfo, format_args!("{device}, room={room}"), || {
            self.visible(device).map(|_| 0)
        })
    }

    /// `aclrtMemUceRepair`: there is nothing to repair.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible, 107000 for more than 20 records.
    pub fn repair_uce(&self, device: i32, records: usize) -> Result<(), i32> {
        /// So many records fit into the vendor's interface.
        const MOST: usize = 20;
        self.call(Call::MemUceRepair, format_args!("{device}, records={records}"), || {
            self.visible(device)?;
            if records > MOST {
                return refuse(codes::RT_PARAM_INVALID, "more records than there can be");
            }
            Ok(())
        })
    }

    /// The driver's number of a device as calls take it.
    pub(super) fn visible(&self, device: i32) -> Answer<u32> {
        self.inner.devices.lock().driver_id(super::device::number(device)?)
    }
}

fn known(package: &str) -> Answer<()> {
    if PACKAGES.contains(&package) {
        Ok(())
    } else {
        refuse(codes::INVALID_PARAM, "no package of that name is installed")
    }
}

#[cfg(test)]
mod tests {
    use crate::{Sim, SimConfig, codes};

    #[test]
    fn devices_answer_questions_by_the_number_the_process_uses() {
        let visible = Some(vec![1, 2]);
        let sim = Sim::new(SimConfig { devices: 4, visible_devices: visible, ..SimConfig::default() });
        assert_eq!(sim.device_info(0, 301), Ok(1 << 30));
        assert_eq!(sim.device_info(2, 301), Err(codes::RT_INVALID_DEVICEID));
        assert_eq!(sim.device_info(0, 9999), Err(codes::RT_PARAM_INVALID));
        assert_eq!((sim.user_to_logic_device(1), sim.logic_to_user_device(2)), (Ok(2), Ok(1)));
        assert_eq!(sim.logic_to_user_device(0), Err(codes::RT_INVALID_DEVICEID));
        assert_eq!(sim.primary_context_state(1), Ok((0, false)));
        sim.set_device(1).unwrap();
        assert_eq!(sim.primary_context_state(1), Ok((0, true)));
        let block = sim.malloc(512 << 20, codes::policy::HUGE_ONLY).unwrap();
        assert_eq!(sim.utilization(1).map(|rate| rate.memory), Ok(50));
        assert_eq!(sim.memory_usage(1, 1).map(|all| all[0].current), Ok(514 << 20));
        assert_eq!(sim.check_memory_type(&[block, block + 5], 0x2, 0), Ok(1));
        assert_eq!(sim.check_memory_type(&[block], 0x10, 0), Ok(0));
        let range = sim.reserve(2 << 20).unwrap();
        assert_eq!(sim.check_memory_type(&[range], 0x10, 0), Ok(1));
        assert_eq!(sim.check_memory_type(&[range, block], 0x10, 0), Ok(0));
    }

    #[test]
    fn the_last_error_is_the_threads_own() {
        let sim = Sim::new(SimConfig::default());
        assert_eq!(sim.last_error(0), 0);
        assert_eq!(sim.get_device(), Err(codes::RT_CONTEXT_NULL));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(sim.last_error(0), 0));
        });
        assert_eq!(sim.peek_last_error(0), codes::RT_CONTEXT_NULL);
        assert_eq!(sim.last_error(0), codes::RT_CONTEXT_NULL);
        assert_eq!(sim.last_error(0), 0);
    }
}
