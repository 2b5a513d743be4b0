//! The ways of calls while events are kept: as the usual ones, and what happens is noted.

use std::sync::OnceLock;

use super::{DeviceAllocator, DevicePtr};
use crate::driver::{DeviceId, Stream};
use crate::history::OfCall;
use crate::history::log::STACKS;

impl DeviceAllocator {
    /// A block from the front, as [`allocate`](Self::allocate) tries it first.
    #[inline]
    pub(super) fn allocate_noted(
        &self,
        device: DeviceId,
        bytes: u64,
        align: u64,
        stream: Stream,
    ) -> Option<DevicePtr> {
        self.note_clock();
        let state = self.devices.get(device as usize)?.get()?;
        let usual = align <= crate::core::UNIT && align & align.wrapping_sub(1) == 0;
        if !usual || state.routes.any() || self.changes.any() {
            return None;
        }
        let address = state.take_resting::<true>(&self.map, bytes, stream)?;
        self.watch(state, 3);
        Some(DevicePtr(address))
    }

    /// Lets a freed block rest in the front, as [`deallocate`](Self::deallocate) tries it first.
    #[inline]
    pub(super) fn deallocate_noted(&self, ptr: DevicePtr) -> bool {
        self.note_clock();
        let Some((owner, entry)) = self.map.find(ptr.0) else { return false };
        let Some(state) = self.devices.get(owner.device() as usize).and_then(OnceLock::get) else {
            return false;
        };
        let done = state.rest::<true>(entry, ptr.0, owner.is_small());
        if done {
            self.watch(state, 3);
        }
        done
    }

    /// Notes a use on another stream in the front, as [`record_stream`](Self::record_stream) tries it first.
    #[inline]
    pub(super) fn record_noted(&self, ptr: DevicePtr, stream: Stream) -> bool {
        self.note_clock();
        let Some((owner, entry)) = self.map.find(ptr.0) else { return false };
        let Some(state) = self.devices.get(owner.device() as usize).and_then(OnceLock::get) else {
            return false;
        };
        if self.changes.any() || !state.front.record(entry, ptr.0, owner.is_small(), stream) {
            return false;
        }
        state.front.note_use(entry, ptr.0, stream);
        self.watch(state, 3);
        true
    }

    /// Captures the stack for what is noted until the answer is dropped, if that is wanted. No lock is held.
    #[inline]
    pub(super) fn capture_context(&self) -> Option<OfCall> {
        if self.history.wants(STACKS) { OfCall::captured() } else { None }
    }

    /// Reads the driver's clock for the next events, if it has not been read for some of them. No lock is held.
    #[inline]
    fn note_clock(&self) {
        if self.history.is_clock_due() {
            self.history.note_time(self.driver.now());
        }
    }
}
