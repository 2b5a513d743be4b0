//! Requests while a graph is being captured.
//!
//! Work that is being captured has not run and may hold any address of the device, also of pools that no graph
//! is captured into. So nothing is unmapped, given back or waited for, and no event is recorded or queried,
//! until the last capture has ended: requests get what is free or new, or fail.

use super::Core;
use super::block::State;
use super::plan::{GiveBack, Remap, Request, Step};
use super::pool::PoolIndex;

impl Core {
    /// Whether streams may still use free memory of a pool, as far as is known.
    pub(crate) fn is_in_doubt(&self, pool: PoolIndex) -> bool {
        self.blocks_of(pool).any(|id| match self.blocks[id].state {
            State::Waiting => true,
            State::Free => !self.is_quiescent(id),
            State::Live | State::Busy | State::Hole => false,
        })
    }

    /// The next step of a request while a graph is being captured.
    pub(crate) fn step_during_capture(&mut self, request: &mut Request) -> Step {
        let step = match self.uses_reservations(request) {
            true => self.map_new(request),
            false => self.new_classic(request),
        };
        if let Some(step) = step {
            return step;
        }
        let found = self.search_all(request).or_else(|| self.search_other_size(request));
        if let Some(id) = found.or_else(|| self.borrow(request)) {
            return Step::Ready(id);
        }
        let error = self.out_of_memory(request);
        self.give_up(request, error)
    }

    /// Chunks without an address and new ones behind a place for the request.
    fn map_new(&mut self, request: &mut Request) -> Option<Step> {
        let Some(place) = self.place_for(request) else {
            if let Some(segment) = request.extends {
                return self.let_pass(segment, request);
            }
            let (wish, least) = self.reservation_for(request.class, request.len, request.align);
            return Some(Step::Reserve(request.class, wish, least));
        };
        let mut remap = self.occupy(place, request);
        if self.fill_with_new(request, &mut remap) {
            return Some(Step::Remap(Box::new(remap)));
        }
        self.abandon(remap);
        None
    }

    /// Fills a remap with chunks that have no address and new ones; false when the device or the limit has no room.
    pub(super) fn fill_with_new(&mut self, request: &mut Request, remap: &mut Remap) -> bool {
        let need = remap.missing.len();
        let cached = need.min(self.cached.len());
        let bytes = (need - cached) as u64 * self.limits.granule;
        let over = self.limit.map_or(0, |limit| (self.held() + bytes).saturating_sub(limit));
        let lack = if request.device_full { bytes } else { over.min(bytes) };
        if lack > 0 {
            request.lack = lack;
            return false;
        }
        remap.handles = self.cached.split_off(self.cached.len() - cached);
        remap.create = (need - cached) as u32;
        self.widen(request, remap);
        self.physical += bytes;
        true
    }

    /// Chunks that a request created and could not use; those that were mapped once stay.
    pub(super) fn unused_chunks(&mut self) -> Option<Step> {
        let (fresh, used) = core::mem::take(&mut self.cached).into_iter().partition(|spare| spare.fresh);
        self.cached = used;
        let mut back = GiveBack::default();
        back.set_handles(fresh);
        (!back.is_empty()).then_some(Step::GiveBack(back))
    }
}
