//! What is published of each device.

use std::sync::OnceLock;

use super::DeviceAllocator;
use super::device::Device;
use crate::publish::{DeviceFigures, PoolFigures};

impl DeviceAllocator {
    /// Of each device that has been used. Its lock is held for the copy only.
    fn figures(&self) -> Vec<DeviceFigures> {
        self.devices.iter().filter_map(OnceLock::get).map(Device::figures).collect()
    }

    /// The same for metrics: with what is gone since the last time.
    pub(crate) fn figures_to_publish(&self) -> Vec<DeviceFigures> {
        // Held for the copies too: who copied first is also told first what is gone.
        let mut published = self.tellers.published.lock();
        published.renew(self.figures())
    }

    /// The same for metrics that need a look at each block.
    pub(crate) fn figures_to_look_at(&self) -> Vec<DeviceFigures> {
        let mut published = self.tellers.published_blocks.lock();
        published.renew(self.figures())
    }
}

impl Device {
    pub(super) fn figures(&self) -> DeviceFigures {
        let core = self.core.lock();
        let (stats, limit) = (self.stats_under(&core), core.limit);
        let pools = super::pools::all(&core);
        drop(core);
        DeviceFigures {
            device: self.limits.device,
            total_bytes: self.limits.total,
            limit_bytes: limit,
            stats,
            pools: pools.iter().map(|(serial, pool)| PoolFigures::of(*serial, pool)).collect(),
            blocks: Vec::new(),
        }
    }
}
