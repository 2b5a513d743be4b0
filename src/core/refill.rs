//! Memory for pools that wake.
//!
//! It climbs the ladder of a request, but for many granules at once, all of which must be had, at addresses that are
//! given. Chunks without an address come first, then new ones, then idle ones moved; what stands in the way of
//! these is done in the order of the ladder, and no more of it than is lacking.

use super::Core;
use super::block::NONE;
use super::plan::{Remap, Remapped, Request, Rung, Step};
use super::pool::PoolIndex;

/// What comes next for pools that wake.
#[derive(Debug)]
pub(crate) enum Refill {
    /// All of their blocks have memory.
    Whole,
    /// What to map, which is all that is missing.
    Ready(Box<Remap>),
    /// What to do first.
    First(Step),
    /// Something has changed: to be asked again.
    Again,
    /// There is too little.
    Missing,
}

impl Core {
    /// What comes next so that all blocks of some pools get memory. `request` says how far the ladder was climbed.
    pub(crate) fn refill(&mut self, pools: &[PoolIndex], request: &mut Request) -> Refill {
        let granule = self.limits.granule;
        let mut missing = Vec::new();
        let mut past = false;
        for &pool in pools {
            let bare = self.bare_granules(pool);
            past |= !bare.is_empty() && self.past_soft_limit(pool, bare.len() as u64 * granule);
            missing.extend(bare);
        }
        if missing.is_empty() {
            return Refill::Whole;
        }
        request.requested = missing.len() as u64 * granule;
        request.len = request.requested;
        if past && let Some(step) = self.look_around(request) {
            return Refill::First(step);
        }
        match self.fill(missing, past, request) {
            Some(remap) => Refill::Ready(Box::new(remap)),
            // During a capture nothing is moved, given back or waited for.
            None if self.capturing > 0 => Refill::Missing,
            None => self.press(request),
        }
    }

    /// What to ask so that memory that others have just freed is known to be idle.
    fn look_around(&mut self, request: &mut Request) -> Option<Step> {
        if self.capturing > 0 {
            return None;
        }
        if !core::mem::replace(&mut request.closed, true)
            && let Some(step) = self.close_all()
        {
            request.polled = false;
            return Some(step);
        }
        if core::mem::replace(&mut request.polled, true) { None } else { self.query() }
    }

    /// Chunks for all of the granules, or nothing when there are too few. Those of others are moved before new ones are
    /// made if a pool is `past` its soft limit.
    fn fill(&mut self, missing: Vec<u64>, past: bool, request: &mut Request) -> Option<Remap> {
        let granule = self.limits.granule;
        let need = missing.len() as u64;
        let cached = need.min(self.cached.len() as u64);
        let room =
            |limit: Option<u64>| limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.held()) / granule);
        let hard = if request.device_full { 0 } else { room(self.limit) };
        let careful = request.rung < Rung::Joined && self.capturing == 0;
        let most = if careful { hard.min(room(self.soft_limit())) } else { hard };
        // Work that is being captured may hold any address.
        let fixed = request.no_moves || self.capturing > 0;
        let movable = |wanted| if fixed || wanted == 0 { 0 } else { self.count_movable(wanted) };
        let wanted = need - cached;
        let first = if past { movable(wanted) } else { 0 };
        let create = (wanted - first).min(most);
        let moves = movable(wanted - create);
        let lack = wanted - create - moves;
        if lack > 0 {
            request.lack = lack * granule + self.beyond_limit(request);
            return None;
        }
        let runs = self.gather_to_move(moves);
        let handles = self.cached.split_off(self.cached.len() - cached as usize);
        self.physical += create * granule;
        let (grants, create) = (self.grants(), create as u32);
        Some(Remap {
            target: NONE,
            start: 0,
            len: 0,
            home: 0,
            epoch: 0,
            missing,
            wide: Vec::new(),
            runs,
            handles,
            create,
            grants,
        })
    }

    /// The next rung for what is lacking.
    fn press(&mut self, request: &mut Request) -> Refill {
        if let Some(step) = self.look_around(request) {
            return Refill::First(step);
        }
        if request.may_give_back(self.limits.total) {
            let back = self.wide_to_break(request.lack / self.limits.granule);
            if !back.is_empty() {
                return Refill::First(Step::GiveBack(back));
            }
        }
        if self.merge_unsplit(None) {
            return Refill::Again;
        }
        // Chunks that cannot be had are not given back: what is created next would be given back again, for ever.
        if let Some(step) = self.relief_step(request, true) {
            return Refill::First(step);
        }
        if request.rung < Rung::Joined {
            request.rung = Rung::Joined;
            return Refill::Again;
        }
        if let Some(step) = self.wait_step(request) {
            return Refill::First(step);
        }
        if request.retries_device() {
            return Refill::Again;
        }
        match request.awaited {
            true => Refill::Missing,
            false => Refill::First(Step::Await),
        }
    }

    /// Takes the outcome of a remap of pools that wake.
    pub(crate) fn commit_refill(&mut self, remap: Remap, done: Remapped) {
        self.physical -= (remap.create - done.created) as u64 * self.limits.granule;
        self.access &= !done.no_access;
        self.tally.moved += done.unmapped.len() as u64;
        let gone = done.unmapped.iter().copied().collect();
        for run in &remap.runs {
            self.commit_run(run.block, &gone);
        }
        self.cached.extend(done.spare);
        self.note_mapped(&remap.grants, &done.mapped);
        // Chunks are taken from the back: the ones that moved come first.
        self.clothe(&done.mapped, done.unmapped.len().min(done.mapped.len()));
    }
}
