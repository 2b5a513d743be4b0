//! The ways of calls while events are kept: as the usual ones, and what happens is noted.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::OnceLock;

use super::{DeviceAllocator, DevicePtr};
use crate::driver::{DeviceId, Stream};
use crate::error::Result;
use crate::history::OfCall;
use crate::history::log::STACKS;

impl DeviceAllocator {
    /// Whether calls go this way.
    #[inline]
    pub(super) fn is_noting(&self) -> bool {
        self.noting.load(Relaxed)
    }

    /// Whether frees do: also where idle memory goes back now and then.
    #[inline]
    pub(super) fn goes_aside(&self) -> bool {
        self.aside.load(Relaxed)
    }

    /// Sends calls this way, or no longer, as the history wants it. To be called after each change of that.
    pub(super) fn follow_history(&self) {
        // Under a lock: of two changes at the same time the later look counts.
        let _turn = self.tellers.following.lock();
        let noting = self.history.is_on();
        self.noting.store(noting, Relaxed);
        self.aside.store(noting || self.config.decays(), Relaxed);
    }

    /// [`allocate`](Self::allocate) while events are kept.
    #[inline]
    pub(super) fn allocate_noted(
        &self,
        device: DeviceId,
        bytes: u64,
        align: u64,
        stream: Stream,
    ) -> Result<DevicePtr> {
        let _context = self.begin_noted();
        if let Some(Some(state)) = self.devices.get(device as usize).map(OnceLock::get)
            && align <= crate::core::UNIT
            && align & align.wrapping_sub(1) == 0
            && !state.routes.any()
            && !self.changes.any()
            && let Some(address) = state.take_resting::<true>(&self.map, bytes, stream)
        {
            self.watch(state, 3);
            return Ok(DevicePtr(address));
        }
        self.allocate_by_core(device, bytes, align, stream)
    }

    /// [`deallocate`](Self::deallocate) while events are kept.
    #[inline]
    pub(super) fn deallocate_noted(&self, ptr: DevicePtr) -> Result<()> {
        let _context = self.begin_noted();
        self.deallocate_aside::<true>(ptr)
    }

    /// The same where idle memory goes back now and then as well, or only that. `LOG`: whether events are kept.
    pub(super) fn deallocate_aside<const LOG: bool>(&self, ptr: DevicePtr) -> Result<()> {
        if let Some((owner, entry)) = self.map.find(ptr.0)
            && let Some(Some(state)) = self.devices.get(owner.device() as usize).map(OnceLock::get)
            && state.rest::<LOG>(entry, ptr.0)
        {
            if self.config.decays() && state.front.is_time(entry) {
                self.caller(state).after_frees();
            }
            self.watch(state, 3);
            return Ok(());
        }
        self.deallocate_by_core(ptr)
    }

    /// [`record_stream`](Self::record_stream) while events are kept.
    #[inline]
    pub(super) fn record_noted(&self, ptr: DevicePtr, stream: Stream) -> Result<()> {
        let _context = self.begin_noted();
        if let Some((owner, entry)) = self.map.find(ptr.0)
            && let Some(Some(state)) = self.devices.get(owner.device() as usize).map(OnceLock::get)
            && !self.changes.any()
            && state.front.record(entry, ptr.0, stream)
        {
            state.front.note_use(entry, ptr.0, stream);
            self.watch(state, 3);
            return Ok(());
        }
        self.record_by_core(ptr, stream)
    }

    /// Reads the driver's clock for the next events, if it has not been read for some of them, and captures the
    /// stack for what is noted until the answer is dropped, if that is wanted. No lock is held.
    #[inline]
    fn begin_noted(&self) -> Option<OfCall> {
        if self.history.is_clock_due() {
            self.history.note_time(self.driver.now());
        }
        if self.history.wants(STACKS) { OfCall::captured() } else { None }
    }
}
