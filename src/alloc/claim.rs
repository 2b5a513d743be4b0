//! Blocks that are asked for by address.

use super::device::Caller;
use super::{DeviceAllocator, DevicePtr};
use crate::driver::DeviceId;
use crate::error::Result;

impl DeviceAllocator {
    /// Hands out free memory that lies in `bytes` bytes from `address` on, as one block: so that nobody else gets it,
    /// when the memory there is bad. Returns the block and its bytes, which may reach beyond the range: whole chunks,
    /// and as much as a block needs. Nothing when none of the range is free. To be called until then, since a range may
    /// hold several pieces.
    ///
    /// Live blocks are left alone, memory that waits for streams too; what is freed there later has to be claimed then.
    /// The block counts as allocated, is freed like any other, and no work may use it: what was queued on its memory need
    /// not be over. Waits for nothing, and asks nothing of the device. Memory of a pool that sleeps is with the device; the
    /// chunks of what was claimed before stay when a pool falls asleep.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) for an unknown device.
    pub fn claim(&self, device: DeviceId, address: u64, bytes: u64) -> Result<Option<(DevicePtr, u64)>> {
        let Some(state) = self.used(device)?.filter(|_| bytes > 0) else { return Ok(None) };
        let claimed = self.caller(state).claim(address, address.saturating_add(bytes));
        self.watch(state, 2);
        Ok(claimed)
    }
}

impl Caller<'_> {
    fn claim(&self, from: u64, to: u64) -> Option<(DevicePtr, u64)> {
        loop {
            let mut core = self.device.core.lock();
            self.device.drain(&mut core, self.map);
            let id = core.claim(from, to)?;
            let block = &core.blocks[id];
            let (len, stream) = (block.len, core.streams[block.home as usize].handle);
            // One whose address a stale block has is kept back, and then it is nobody's either.
            if let Some(address) = self.finish(core, len, stream, id) {
                return Some((DevicePtr(address), len));
            }
        }
    }
}
