//! Live blocks that become longer or shorter where they are.

use super::device::Caller;
use super::{DeviceAllocator, DevicePtr};
use crate::core::UNIT;
use crate::core::plan::Request;
use crate::core::segment::{Class, SMALL_LIMIT};
use crate::error::{Error, Result};
use crate::hook::Action;

impl DeviceAllocator {
    /// Grows a live block to `bytes` bytes without moving it; false when there is no room behind it. What is put behind
    /// the block is, as a new block, in order for the block's own stream: other streams, recorded before or not, must be
    /// made to wait for that stream anew before they touch it. What the block has beyond its size already
    /// ([`BlockInfo::bytes`](super::BlockInfo::bytes)) is as in order as the rest of it; a shrink before has not freed
    /// that.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate), and [`Error::Pointer`]. The block is unchanged then.
    pub fn grow_in_place(&self, ptr: DevicePtr, bytes: u64) -> Result<bool> {
        let device = self.owner(ptr.0)?;
        let grown = self.caller(device).grow(ptr.0, bytes)?;
        self.watch(device, 2);
        Ok(grown)
    }

    /// Shrinks a live block to `bytes` bytes without moving it; what is cut off is freed like a block.
    /// A block of more than 1 MiB keeps at least 1 MiB, because its segment holds no smaller ones, every block its
    /// last 512 bytes, and one that is not cached (see [`set_caching`](Self::set_caching)) all.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`], and [`Error::Size`] when `bytes` is zero or more than was asked for before.
    pub fn shrink_in_place(&self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let device = self.owner(ptr.0)?;
        self.caller(device).shrink(ptr.0, bytes)?;
        self.watch(device, 2);
        Ok(())
    }
}

impl Caller<'_> {
    /// Grows a live block in place; false when there is no room behind it.
    pub(super) fn grow(&self, address: u64, bytes: u64) -> Result<bool> {
        let device = self.device;
        let mut core = device.core.lock();
        let id = device.live(&core, self.map, address)?;
        device.adopt(&mut core, self.map, id, address);
        let (old, requested, home) = {
            let block = &core.blocks[id];
            (block.len, block.requested, block.home)
        };
        if core.is_asleep(core.class_of(id).pool()) {
            let reason = "its pool sleeps; wake it first";
            return Err(Error::State { operation: "growing a block", reason });
        }
        let small = core.class_of(id).is_small();
        let Some(len) = core.block_len(bytes).filter(|_| !small || Class::of(bytes).is_small()) else {
            return Ok(false);
        };
        if bytes < requested {
            let reason = format!("to grow, ask for the present size, {requested}, or more").into();
            return Err(Error::Size { requested: bytes, reason });
        }
        // While memory is put behind it the block cannot be freed.
        device.unpublish(&mut core, self.map, address)?;
        let handle = core.streams[home as usize].handle;
        let mut request = Request::new(bytes, len.saturating_sub(old), UNIT, core.class_of(id), home, handle);
        let mut fits = len <= old;
        if !fits && let Some(step) = core.extend(id, &mut request) {
            core.extended.push(id);
            core = self.perform(core, step, &mut request);
            if request.reset {
                return Err(request.failure.take().unwrap_or_else(|| unreachable!("a reset is a failure")));
            }
            core.extended.retain(|known| *known != id);
            if let Some(more) = request.ready.take() {
                core.blocks.join(id, more);
                core.count_grown(id, old);
                fits = true;
            }
        }
        if fits {
            core.blocks[id].requested = bytes;
            let len = core.blocks[id].len;
            core.keep_resized(id, (old, requested));
            if len > old {
                core.note(Action::Allocate, address + old, len - old, handle);
            }
            if core.tally.resize(small, (old, len), (requested, bytes)) {
                device.settle_peaks(&mut core);
            }
        }
        device.publish(&mut core, self.map, id);
        if let Some(step) = core.spare() {
            core = self.perform(core, step, &mut Request::chore());
        }
        self.tell(core);
        match request.failure.take() {
            Some(error) => Err(error),
            None => Ok(fits),
        }
    }

    /// Shortens a live block; what is cut off is free in stream order.
    pub(super) fn shrink(&self, address: u64, bytes: u64) -> Result<()> {
        let device = self.device;
        let mut core = device.core.lock();
        let id = device.live(&core, self.map, address)?;
        device.adopt(&mut core, self.map, id, address);
        let (old, requested) = (core.blocks[id].len, core.blocks[id].requested);
        if bytes == 0 || bytes > requested {
            let reason = format!("to shrink, ask for 1 byte up to the present size, {requested}").into();
            return Err(Error::Size { requested: bytes, reason });
        }
        if core.is_exported(id) {
            let reason = "it is exported to other processes; end that first";
            return Err(Error::State { operation: "shrinking a block", reason });
        }
        let class = core.class_of(id);
        let small = class.is_small();
        let least = if small { 0 } else { SMALL_LIMIT + 1 };
        let len = core.block_len(bytes.max(least)).unwrap_or(u64::MAX);
        device.unpublish(&mut core, self.map, address)?;
        core.blocks[id].requested = bytes;
        let oversize = old >= core.config.max_split_size.unwrap_or(u64::MAX);
        let splittable = !class.is_classic() || small || (!oversize && old.saturating_sub(len) > SMALL_LIMIT);
        // Where nothing is kept, what is cut off could not go back alone.
        let splittable = splittable && !core.keeps_nothing(class.pool());
        let cut = len < old && splittable;
        let waits = cut && core.cut_tail(id, len);
        core.keep_resized(id, (old, requested));
        if cut {
            let home = core.blocks[id].home;
            core.note_cut(address + len, old - len, home, class, waits);
        }
        let len = core.blocks[id].len;
        core.tally.resize(small, (old, len), (requested, bytes));
        if waits {
            device.settle_peaks(&mut core);
        }
        device.publish(&mut core, self.map, id);
        self.tell(core);
        Ok(())
    }
}
