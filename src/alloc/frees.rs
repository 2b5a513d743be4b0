//! Frees: by the front where it has room, by the core otherwise; and what a caller says of the size.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use super::device::Device;
use super::{DeviceAllocator, DevicePtr};
use crate::error::{Error, Result};
use crate::front::MOST_REQUESTED;

impl DeviceAllocator {
    /// The same as [`deallocate`](Self::deallocate), for callers that also say how many bytes they had asked for. The
    /// block's own record decides all the same; where the two differ, that is counted
    /// ([`Stats::size_mismatches`](crate::Stats::size_mismatches)), because it tells of a caller that confuses blocks. Zero says
    /// nothing.
    ///
    /// # Errors
    ///
    /// As for `deallocate`. Nothing has changed then, and nothing is counted.
    #[inline]
    pub fn deallocate_sized(&self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.free::<true>(ptr, bytes)
    }

    /// Gives a block back. `SIZED`: whether the caller says how many bytes it had asked for.
    #[inline(always)]
    pub(super) fn free<const SIZED: bool>(&self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        if let Some((owner, entry)) = self.map.find(ptr.0)
            && let Some(Some(state)) = self.devices.get(owner.device() as usize).map(OnceLock::get)
            && !self.goes_aside()
        {
            // Afterwards the entry may tell of the next owner.
            let differs = SIZED && bytes != 0 && bytes != entry.head().requested();
            if state.rest::<false>(entry, ptr.0) {
                if differs {
                    state.note_mismatch();
                }
                self.watch(state, 3);
                return Ok(());
            }
        }
        if SIZED { self.deallocate_sized_slowly(ptr, bytes) } else { self.deallocate_slowly(ptr) }
    }

    #[cold]
    #[inline(never)]
    fn deallocate_sized_slowly(&self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let differing = if bytes == 0 { None } else { self.differing(ptr, bytes) };
        self.deallocate_slowly(ptr)?;
        differing.into_iter().for_each(Device::note_mismatch);
        Ok(())
    }

    /// The device of a block for which another size was asked.
    fn differing(&self, ptr: DevicePtr, bytes: u64) -> Option<&Device> {
        let state = self.owner(ptr.0).ok()?;
        let entry = self.map.find(ptr.0).map(|(_, entry)| entry);
        let requested = match entry.map(|entry| entry.head().requested()) {
            Some(requested) if requested < MOST_REQUESTED - 1 => requested,
            _ => state.block_info(&self.map, ptr.0).ok()?.requested,
        };
        (requested != bytes).then_some(state)
    }

    #[cold]
    #[inline(never)]
    fn deallocate_slowly(&self, ptr: DevicePtr) -> Result<()> {
        if self.is_noting() {
            return self.deallocate_noted(ptr);
        }
        if self.config.decays() {
            return self.deallocate_aside::<false>(ptr);
        }
        self.deallocate_by_core(ptr)
    }

    /// Gives a block back to the core.
    pub(super) fn deallocate_by_core(&self, ptr: DevicePtr) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let freed = self.owner(ptr.0).and_then(|device| self.caller(device).deallocate(ptr.0));
        if matches!(freed, Err(Error::Pointer { .. } | Error::State { .. })) && self.was_stale(ptr.0) {
            return Ok(());
        }
        freed
    }
}

impl Device {
    /// Counts a free whose caller asked for another size, as it says.
    #[cold]
    pub(super) fn note_mismatch(&self) {
        self.size_mismatches.fetch_add(1, Relaxed);
    }
}
