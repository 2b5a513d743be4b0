//! Address space: reservations, and making room for them.
//!
//! All reservations of a process share one space, whatever device they are of. Where one is refused for lack of it, what
//! nobody needs goes back first: vacant segments of growing buffers, those of pools that nobody holds any more, and
//! reservations with nothing in them. A buffer and an import, which have no other way, have all caches emptied before they
//! fail.

use std::sync::OnceLock;

use super::device::{Caller, Device};
use super::requests::Guard;
use crate::core::plan::{Outcome, Request, Step};
use crate::core::pool::PoolIndex;
use crate::core::segment::Class;
use crate::core::trim::Choice;

impl Caller<'_> {
    /// Reserves address space for a class: the wish, with room made for it if need be, else less, down to the least.
    /// Bytes. While the lock is left, the caller keeps the pool.
    pub(super) fn reserve<'a>(
        &'a self,
        mut core: Guard<'a>,
        request: &mut Request,
        class: Class,
        (wish, least): (u64, u64),
    ) -> Guard<'a> {
        core = self.perform(core, Step::Reserve(class, wish, wish), request);
        if !request.crowded || request.reset {
            return core;
        }
        let generation = core.generation;
        drop(core);
        let freed = self.free_address_space();
        core = self.device.core.lock();
        if core.generation != generation {
            request.fail_by_reset();
            return core;
        }
        // The wish is refused again where nothing has changed.
        let next = if freed > 0 { wish } else { (wish / 2).next_multiple_of(core.limits.granule) };
        if freed > 0 || wish > least {
            (request.no_space, request.failure) = (false, None);
            core = self.perform(core, Step::Reserve(class, next.max(least), least), request);
        }
        // What grows cannot do without: all that is idle goes, and what streams still use is waited for.
        if !(class.is_growing() && request.crowded) || request.reset || core.capturing > 0 {
            return core;
        }
        drop(core);
        let freed = self.empty_all();
        core = self.device.core.lock();
        if core.generation != generation {
            request.fail_by_reset();
        } else if freed > 0 {
            (request.no_space, request.failure) = (false, None);
            core = self.perform(core, Step::Reserve(class, wish, least), request);
        }
        core
    }

    /// Empties the caches of all devices; the bytes of address space that came free. What a driver refuses stays.
    pub(super) fn empty_all(&self) -> u64 {
        let space = |device: &Device| device.core.lock().tally.address_space;
        let devices = self.all.iter().filter_map(OnceLock::get);
        let empty = |device: &Device| {
            let before = space(device);
            let _ = device.give_back(&Caller { device, ..*self }, Choice::ALL, 0, true);
            before.saturating_sub(space(device))
        };
        devices.map(empty).sum()
    }

    /// Gives address space of all devices back that nobody needs; the bytes. No lock is held.
    pub(super) fn free_address_space(&self) -> u64 {
        let devices = self.all.iter().filter_map(OnceLock::get);
        devices.map(|device| Caller { device, ..*self }.free_own_address_space()).sum()
    }

    /// The same of one device.
    fn free_own_address_space(&self) -> u64 {
        let mut core = self.device.core.lock();
        let before = core.tally.address_space;
        core = self.retire_all(core);
        core = self.release_empty(core, None, &mut Request::chore());
        let freed = before.saturating_sub(core.tally.address_space);
        self.tell(core);
        freed
    }

    /// Releases the reservations with nothing in them, of one pool or of all. None during a capture, which may have begun
    /// whenever the lock was left.
    pub(super) fn release_empty<'a>(
        &'a self,
        mut core: Guard<'a>,
        pool: Option<PoolIndex>,
        chore: &mut Request,
    ) -> Guard<'a> {
        if core.capturing == 0 {
            let empty = core.empty_reservations(pool);
            if !empty.is_empty() {
                core = self.perform(core, Step::GiveBack(empty), chore);
            }
        }
        core
    }

    /// Whether memory that a source gave overlaps what another device has: a block is found by its address alone. No lock
    /// of a device is held.
    pub(super) fn overlaps_elsewhere(&self, outcome: &Outcome) -> bool {
        let Outcome::Classic(_, bytes, Ok(Some(base))) = *outcome else { return false };
        let others = self.all.iter().filter_map(OnceLock::get);
        let mut others = others.filter(|&other| !core::ptr::eq(other, self.device));
        others.any(|other| other.core.lock().overlaps_another(base, bytes))
    }

    /// Lets all segments go that nobody needs, as far as their memory is known to be idle.
    fn retire_all<'a>(&'a self, mut core: Guard<'a>) -> Guard<'a> {
        if core.capturing == 0 && !core.deserted_segments().is_empty() {
            core = self.learn(core);
            core.merge_unsplit(None);
        }
        for segment in core.deserted_segments() {
            core = self.retire(core, segment);
        }
        core
    }

    /// Asks which work is over, without waiting for any.
    pub(super) fn learn<'a>(&'a self, mut core: Guard<'a>) -> Guard<'a> {
        let mut chore = Request::chore();
        chore.closed = true;
        if let Some(step) = core.close_all() {
            core = self.perform(core, step, &mut chore);
        }
        if let Some(step) = core.query() {
            core = self.perform(core, step, &mut chore);
        }
        core
    }

    /// Lets a segment go that nobody needs, as far as its memory is known to be idle.
    pub(super) fn retire<'a>(&'a self, mut core: Guard<'a>, segment: u32) -> Guard<'a> {
        // Twice: first what is mapped, then the reservation.
        for _ in 0..2 {
            // It may be owned again, or gone, since the lock was left. Nothing is unmapped during captures.
            if !core.is_deserted(segment) || core.capturing > 0 {
                break;
            }
            let back = core.retire(segment);
            if back.is_empty() {
                break;
            }
            core = self.perform(core, Step::GiveBack(back), &mut Request::chore());
        }
        core
    }
}
