//! Taking up what the driver has noted of streams and devices that ended.

use std::sync::OnceLock;

use super::DeviceAllocator;
use super::device::Device;
use crate::driver::{DeviceId, Stream};
use crate::error::Result;
use crate::front::AddressMap;

impl DeviceAllocator {
    /// Deals with ends of streams and resets of devices that the driver has noted, before anything is asked of
    /// it. The caller holds no lock.
    #[inline]
    pub(super) fn heed(&self) {
        if self.changes.any() {
            self.take_up();
        }
    }

    /// Undoes [`record_stream`](Self::record_stream): whoever calls this has seen to it that the stream's work with
    /// the block is over, or comes before what the block's own stream does next. A stream that was not
    /// recorded, also the block's own, changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`](crate::Error::Pointer) when the pointer is not the start of a live block.
    pub fn erase_stream(&self, ptr: super::DevicePtr, stream: Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let device = self.owner(ptr.0)?;
        device.erase_stream(&self.map, ptr.0, stream)?;
        self.watch(device, 2);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn take_up(&self) {
        // The driver is asked before the turn is taken: no lock is held during its calls.
        let reset = |id: &DeviceId| self.changes.reset_of(*id).is_some();
        let told: Vec<DeviceId> = (0..self.device_count()).filter(reset).collect();
        let lost: Vec<DeviceId> = told
            .iter()
            .copied()
            .filter(|&id| self.driver.has_lost_memory(id, self.changes.reset_of(id).unwrap_or(false)))
            .collect();
        let _turn = self.changes.turn();
        if !self.changes.any() {
            return;
        }
        let taken = self.changes.take();
        for state in self.devices.iter().filter_map(OnceLock::get) {
            for &stream in &taken.streams {
                state.stream_destroyed(&self.map, stream);
            }
            if taken.all_streams {
                state.all_streams_destroyed(&self.map);
            }
        }
        taken.streams.iter().for_each(|&stream| self.forget_importers(None, Some(stream)));
        if taken.all_streams {
            self.forget_importers(None, None);
        }
        for &id in &lost {
            if self.changes.reset_of(id).is_none() {
                continue;
            }
            self.end_links(id);
            if let Some(state) = self.devices[id as usize].get() {
                state.forget(&self.map, &self.outside);
            }
        }
        self.changes.done(&taken, told.into_iter());
    }
}

impl Device {
    /// Treats every stream but the default one as destroyed.
    fn all_streams_destroyed(&self, map: &AddressMap) {
        let mut known: Vec<Stream> = self.core.lock().stream_ids.keys().copied().collect();
        known.retain(|&stream| stream != Stream(0));
        known.sort_unstable();
        for stream in known {
            self.stream_destroyed(map, stream);
        }
    }

    fn erase_stream(&self, map: &AddressMap, address: u64, stream: Stream) -> Result<()> {
        let mut core = self.core.lock();
        let id = self.live(&core, map, address)?;
        // A stream that nobody knows is recorded nowhere.
        if let Some(user) = core.stream_ids.get(&stream).copied() {
            if let Some((_, entry)) = map.find(address)
                && let Some((column, _)) = self.front.attached().find(|&(_, id)| id == user)
            {
                entry.erase(column);
            }
            core.erase(id, user);
        }
        Ok(())
    }
}

impl crate::core::Core {
    /// Forgets that a live block is recorded on a stream.
    fn erase(&mut self, id: crate::core::block::BlockId, user: u32) {
        let Some(users) = self.recorded.get_mut(&id) else { return };
        let before = users.len();
        users.retain(|known| *known != user);
        if users.len() == before {
            return;
        }
        if users.is_empty() {
            self.recorded.remove(&id);
        }
        self.blocks[id].uses -= 1;
        self.streams[user as usize].recorded -= 1;
    }
}
