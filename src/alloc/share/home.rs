//! Whose objects imported chunks are.
//!
//! To the driver all imports of a chunk are one object, which belongs to the device that was first, as does the reservation
//! that it is mapped in. So all that is imported of one device of an exporter is imported for one device here, its *home*,
//! while any of it is left: no import mixes objects of several devices, and it is known which device needs a grant, and
//! which reset takes what.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use super::super::DeviceAllocator;
use super::handle::{Parts, SharedHandle};
use super::process::Process;
use crate::driver::{DeviceId, DriverResult, ShareForm};

/// The device that imports of one device of an exporter are made for.
pub(super) struct Home {
    /// Says in which order they were chosen.
    pub(super) number: u64,
    pub(super) device: DeviceId,
    /// How often the device had been reset.
    generation: u64,
}

/// The homes of exporters' devices.
#[derive(Default)]
pub(super) struct Homes {
    by_exporter: HashMap<(Process, u32), Weak<Home>>,
    chosen: u64,
}

impl Homes {
    fn get(&self, exporter: (Process, u32)) -> Option<Arc<Home>> {
        self.by_exporter.get(&exporter).and_then(Weak::upgrade)
    }
}

impl DeviceAllocator {
    /// The home of what a handle names: `device`, which was reset so often, unless another one was chosen before.
    pub(super) fn home_of(&self, device: DeviceId, generation: u64, parts: &Parts) -> Arc<Home> {
        let exporter = (parts.exporter, parts.device);
        let known = self.imports.lock().homes.get(exporter);
        if let Some(home) = &known
            && self.stands(home)
        {
            return home.clone();
        }
        let mut imports = self.imports.lock();
        let homes = &mut imports.homes;
        let is_gone = |home: &Arc<Home>| known.as_ref().is_some_and(|known| Arc::ptr_eq(known, home));
        if let Some(home) = homes.get(exporter).filter(|home| !is_gone(home)) {
            return home;
        }
        homes.chosen += 1;
        let home = Arc::new(Home { number: homes.chosen, device, generation });
        homes.by_exporter.retain(|_, home| home.strong_count() > 0);
        homes.by_exporter.insert(exporter, Arc::downgrade(&home));
        home
    }

    /// Whether its device was not reset since.
    pub(super) fn stands(&self, home: &Home) -> bool {
        self.has_not_been_reset(home.device, home.generation)
    }

    /// Whether a device was not reset since it had been reset so often.
    pub(super) fn has_not_been_reset(&self, device: DeviceId, generation: u64) -> bool {
        let state = self.devices.get(device as usize).and_then(OnceLock::get);
        state.is_some_and(|state| !state.was_reset(generation))
    }

    /// Opens the link from a device to the home of what it imports, if that is a third one.
    pub(super) fn link_home(&self, device: DeviceId, home: &Home, handle: &SharedHandle) -> DriverResult<()> {
        let is_exporters = || Ok(self.driver.driver_device(home.device)? == handle.parts().device);
        if home.device == device || handle.form() != ShareForm::Fabric && is_exporters()? {
            return Ok(());
        }
        self.driver.enable_peer_access(device, home.device)
    }
}
