//! What is to be told when a device was reset.

use super::DeviceAllocator;
use super::device::Device;
use super::outside::Outside;
use crate::core::block::{BlockId, State};
use crate::driver::DeviceId;
use crate::error::Result;

impl DeviceAllocator {
    /// Tells that the device was reset: all its memory, streams and events are gone. Nothing is asked of the driver
    /// for any of it. Blocks that were live are stale: freeing one is accepted once and does nothing, and no
    /// new block has its address before that. Pools stay, empty; graphs and sleep have ended. It has no peers any more and is
    /// nobody's peer: its links went with it, so they are to be [set](Self::set_peers) again. Calls of other threads
    /// that were waiting for the driver fail with [`Error::State`](crate::Error::State). A second call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) for an unknown device.
    pub fn device_was_reset(&self, device: DeviceId) -> Result<()> {
        let used = self.used(device)?;
        self.end_links(device);
        if let Some(state) = used {
            state.forget(&self.map, &self.outside);
            state.departed.part();
            self.watch(state, 2);
        }
        Ok(())
    }

    /// Whether the address is that of a block that was live when its device was reset; it is forgotten with this.
    pub(super) fn was_stale(&self, address: u64) -> bool {
        let mut states = self.devices.iter().filter_map(std::sync::OnceLock::get);
        states.any(|state| {
            let mut core = state.core.lock();
            let stale = core.stale.remove(&address);
            if let Some(id) = core.shunned.remove(&address) {
                self.caller(state).free_unpublished(core, id);
            }
            stale
        })
    }
}

impl Device {
    /// Whether it was reset since it had been reset so often.
    pub(super) fn was_reset(&self, generation: u64) -> bool {
        self.core.lock().generation != generation
    }

    pub(super) fn forget(&self, map: &crate::front::AddressMap, outside: &Outside) {
        let mut core = self.core.lock();
        self.drain(&mut core, map);
        let live: Vec<(u64, BlockId)> = core
            .blocks
            .iter()
            .filter(|(_, block)| block.state == State::Live)
            .map(|(id, block)| (block.addr, id))
            .collect();
        for (address, id) in live {
            match self.unpublish(&mut core, map, address) {
                Ok((id, requested)) => {
                    core.free(id, requested);
                    core.stale.insert(address);
                }
                // Not to be freed by its address: a growing buffer's, kept back, or freed by its owner. Else it is
                // being grown in place, and its owner frees it later.
                Err(_) => {
                    let has_owner = !core.class_of(id).is_growing()
                        && !core.outlives_its_owner(id)
                        && core.shunned.get(&address) != Some(&id);
                    core.starts.remove(&address);
                    core.free(id, None);
                    if has_owner {
                        core.stale.insert(address);
                    }
                }
            }
        }
        // Host memory outlives the device; it is given back with the next wait, since nothing is asked now.
        let unwanted = core.forget_kept();
        self.limbo.lock().extend(unwanted.free.into_iter().chain(unwanted.read));
        for place in core.forget_device() {
            self.front.dismiss(place);
        }
        self.give_up_columns(&mut core, map);
        // The default stream stays, with another epoch.
        self.front.set_epochs(std::iter::once((0, core.streams[0].open)));
        self.tell_completed(&core);
        self.forget_dropped(&mut core, map, outside);
    }
}
