//! Outcomes of steps back into the heap: what came about is kept, what failed is undone.

use hashbrown::HashSet;
use smallvec::smallvec;

use super::Core;
use super::block::{BlockId, NONE, State};
use super::noting::Stretch;
use super::plan::{GiveBack, GivenBack, Outcome, Phase, Remap, Remapped, Request, Spare, granules_of};
use super::segment::{Class, Segment};
use super::stream::StreamId;
use crate::driver::{DriverError, PhysicalHandle, Stream};
use crate::error::Error;
use crate::history;
use crate::hook::Action;

/// Lets a new segment (base, bytes, class) be found by address, and says whether the address map covers it.
pub(crate) type Cover<'a> = &'a mut dyn FnMut(u64, u64, Class) -> bool;

/// So many frees after chunks were moved, large blocks go straight to the core when they are freed. Served from the front
/// they keep their places; placed anew among all that is free they find some that need no moves in the next step of the
/// program (measured on T2, see the design). Behind a slow device, where little can be moved, and where no size returns, it
/// does not help.
const SETTLING: u64 = 10_000;

impl Core {
    /// Takes the outcome of a step made for `request`.
    pub(crate) fn commit(&mut self, request: &mut Request, outcome: Outcome, cover: Cover<'_>) {
        match outcome {
            Outcome::Queried(over, failure) => {
                if request.closed {
                    self.note_promptness(&over);
                }
                self.end_epochs(over);
                if request.retried && request.failure.is_none() {
                    request.failure = failure.map(Into::into);
                }
            }
            Outcome::Recorded(recorded) => self.commit_recorded(recorded),
            Outcome::Joined(waiter, joined) => self.commit_joined(waiter, joined),
            Outcome::Reserved(class, Ok((base, len))) => {
                request.crowded = false;
                let segment = self.add_reservation(class, base, len, cover);
                request.extends = class.is_growing().then_some(segment);
            }
            Outcome::Reserved(class, Err(error)) => {
                request.no_space = true;
                request.crowded = error.is_out_of_memory();
                self.reservable &= !error.is_unsupported();
                request.failure = class.is_growing().then(|| error.into());
            }
            Outcome::Remapped(remap, done) => self.commit_remapped(request, *remap, *done),
            Outcome::Classic(class, bytes, result) => {
                self.commit_classic(request, class, bytes, result, cover);
            }
            Outcome::GivenBack(given) => {
                let GivenBack { what, unmapped, handles, kept, failure } = *given;
                if !(what.runs.is_empty() && what.classic.is_empty() && what.freed_handles == 0) {
                    request.device_full &= request.ended;
                }
                request.returned += self.commit_given_back(what, &unmapped, handles, &kept);
                match failure {
                    // Giving back is all that was asked for.
                    Some(error) if request.requested == 0 => {
                        request.failure.get_or_insert(error.into());
                    }
                    Some(error) => _ = request.refusal.get_or_insert(error),
                    None => {}
                }
            }
            Outcome::Waited(stream, event, epoch, result) => match result {
                Ok(()) => {
                    self.note_wait(self.streams[stream as usize].handle);
                    self.end_epochs(smallvec![(stream, event, epoch)]);
                }
                Err(error) => request.failure = Some(error.into()),
            },
            Outcome::WaitedStream(stream, epoch, result) => {
                self.commit_waited_stream(request, stream, epoch, result)
            }
            Outcome::Synchronized(epochs, result) => match result {
                Ok(()) => {
                    self.tally.sync_all += 1;
                    self.note_wait(Stream(0));
                    self.end_all(epochs);
                }
                Err(error) => {
                    for (stream, _) in epochs {
                        // The epochs stay open in effect: the next event or wait ends them.
                        self.keep_open(stream);
                    }
                    // While a graph is captured nobody may wait for the device: the request has to do without.
                    request.captured = error.is_captured();
                    if !request.captured {
                        request.failure = Some(error.into());
                    }
                }
            },
        }
    }

    /// Adds a reservation as one hole.
    fn add_reservation(&mut self, class: Class, base: u64, len: u64, cover: Cover<'_>) -> u32 {
        let granule = self.limits.granule;
        let start = base.next_multiple_of(granule);
        let usable = (base + len - start) & !(granule - 1);
        let covered = cover(start, usable, class);
        let mut segment = Segment::new(start, usable, class, covered);
        segment.owned = class.is_growing();
        segment.origin = base;
        segment.span = len;
        let (id, block) = self.add_segment(segment, State::Hole);
        self.tally.segment.add(class.is_small(), 1);
        self.tally.address_space += len;
        self.pools.get_mut(class.pool()).address_space += len;
        self.make_hole(block);
        id
    }

    /// Adds a segment; its number and its one block.
    fn add_segment(&mut self, mut segment: Segment, state: State) -> (u32, BlockId) {
        let (base, len, class) = (segment.base, segment.len, segment.class);
        let blocks = &mut self.blocks;
        let id = self.segments.add(|id| {
            segment.first = blocks.add(id, class, base, len, state);
            segment
        });
        let first = self.segments[id as usize].first;
        self.pools.get_mut(class.pool()).firsts.insert((base, first));
        (id, first)
    }

    fn commit_classic(
        &mut self,
        request: &mut Request,
        class: Class,
        bytes: u64,
        result: Result<Option<u64>, (DriverError, Option<u64>)>,
        cover: Cover<'_>,
    ) {
        let (sourced, elsewhere) = (self.is_sourced(class), self.is_elsewhere(class));
        self.pools.get_mut(class.pool()).fetching -= 1;
        // The device's memory was counted when it was asked for.
        let counted = if elsewhere { 0 } else { bytes };
        let base = match result {
            Ok(Some(base)) => base,
            Ok(None) => {
                self.classic -= counted;
                self.note_refused(request, bytes, None);
                request.source_dry |= request.device_full;
                return;
            }
            Err((error, free)) => {
                self.classic -= counted;
                request.source_dry = false;
                if error.is_out_of_memory() && !request.device_full {
                    self.note_refused(request, bytes, free);
                } else {
                    request.failure = Some(error.into());
                }
                return;
            }
        };
        if sourced {
            if request.overlaps || self.overlaps_another(base, bytes) {
                self.classic -= counted;
                request.failure = Some(Error::State {
                    operation: "taking memory from a pool's source",
                    reason: "it overlaps memory the allocator has already; the source must not give that twice",
                });
                return;
            }
            self.elsewhere += bytes - counted;
        }
        let covered = cover(base, bytes, class);
        let mut segment = Segment::new(base, bytes, class, covered);
        segment.mapped = bytes;
        let (_, block) = self.add_segment(segment, State::Free);
        self.blocks[block].home = request.stream;
        let small = class.is_small();
        self.tally.segment.add(small, 1);
        self.count_reserved(class, bytes as i64);
        self.tally.device_alloc += 1;
        self.note(Action::Map, base, bytes, request.handle);
        self.keep(history::Action::SegmentAlloc, base, bytes, request.handle, class);
        if bytes >= self.config.max_split_size.unwrap_or(u64::MAX) {
            self.tally.oversize_segments.add(small, 1);
        }
        self.make_free(block);
        // What was fetched for the request serves it, whatever the rules for cached blocks say.
        request.ready = Some(self.cut(block, class, request.len, request.align));
    }

    /// Notes that there was no fixed block of so many bytes for a request, and what was free, if that is known. Where a smaller
    /// one would do, that is asked for, unless there is too little for it, too.
    fn note_refused(&mut self, request: &mut Request, bytes: u64, free: Option<u64>) {
        request.exact = true;
        let least = self.classic_len(request);
        if least < bytes && free.is_none_or(|free| free >= least) {
            return;
        }
        request.device_full = true;
        // A device that refuses although it says it has enough lacks all of it in effect.
        request.lack = least - free.filter(|&free| free < least).unwrap_or(0);
        self.note_retry(request);
    }

    fn commit_remapped(&mut self, request: &mut Request, remap: Remap, done: Remapped) {
        let granule = self.limits.granule;
        self.physical -= (remap.create - done.created) as u64 * granule;
        self.physical -= self.wide_bytes(remap.wide.len() - done.wide.len() - done.stuck.len());
        self.access &= !done.no_access;
        self.note_mapped(&remap.grants, &done.mapped);
        self.note_mapped(&remap.grants, &done.wide);
        let moved = done.unmapped.len().min(done.mapped.len());
        self.tally.moved += moved as u64;
        if moved > 0 && self.patience == 0 && !self.churn.is_new() {
            self.settled_at = self.frees + SETTLING;
        }
        let gone: HashSet<u64> = done.unmapped.iter().copied().collect();
        for run in &remap.runs {
            self.commit_run(run.block, &gone);
        }
        self.cached.extend(done.spare);
        let class = self.class_of(remap.target);
        let mut stretch = Stretch::default();
        // Chunks are taken from the back: the ones that moved come first.
        for (at, &(address, handle)) in done.mapped.iter().enumerate() {
            self.back(remap.target, address, handle, remap.home);
            let (action, kept) = match at < moved {
                true => (Action::Move, history::Action::ChunkMove),
                false => (Action::Map, history::Action::SegmentMap),
            };
            self.note(action, address, granule, request.handle);
            self.stretch(&mut stretch, (kept, address, granule), request.handle, class);
        }
        for &(address, handle) in &done.wide {
            self.back_wide(remap.target, address, handle, remap.home);
            let bytes = self.wide_bytes(1);
            self.note(Action::Map, address, bytes, request.handle);
            self.stretch(&mut stretch, (history::Action::SegmentMap, address, bytes), request.handle, class);
        }
        self.end_stretch(&mut stretch, request.handle, class);
        self.keep_spares(done.stuck);
        self.busy -= 1;
        match done.failure {
            None => {
                self.tally.device_alloc += u64::from(!(remap.missing.is_empty() && remap.wide.is_empty()));
                request.ready = Some(self.cut_ready(&remap));
            }
            Some((phase, error)) => {
                self.settle(remap.target, remap.home, remap.epoch);
                match phase {
                    // The same again without wide chunks. What is missing then is known to the granule.
                    Phase::Create if !remap.wide.is_empty() && error.is_out_of_memory() => {
                        request.no_wide = true
                    }
                    Phase::Create if done.no_wide && error.is_unsupported() => {
                        request.no_wide = true;
                        self.no_wide = true;
                    }
                    // The driver below has no virtual memory after all: classic segments from now on.
                    Phase::Create | Phase::Map
                        if error.is_unsupported()
                            && request.extends.is_none()
                            && remap.grants.peers.is_empty() =>
                    {
                        self.reservable = false;
                    }
                    Phase::Create if error.is_out_of_memory() => {
                        request.device_full = true;
                        self.full_at = Some(self.frees);
                        self.note_retry(request);
                    }
                    Phase::Unmap if !request.device_full => request.no_moves = true,
                    _ => request.failure = Some(error.into()),
                }
            }
        }
    }

    /// Takes the outcome of giving memory back; how many bytes went.
    fn commit_given_back(
        &mut self,
        mut what: GiveBack,
        unmapped: &[u64],
        handles: Vec<Spare>,
        kept: &[BlockId],
    ) -> u64 {
        let granule = self.limits.granule;
        let gone: HashSet<u64> = unmapped.iter().copied().collect();
        self.rename_kept(&mut what, &gone, &handles);
        let freed = what.freed_handles + unmapped.len() - granules_of(&handles);
        let mut gone_bytes = freed as u64 * granule;
        self.physical -= gone_bytes;
        self.keep_spares(handles);
        self.tally.device_free += what.runs.len() as u64;
        for run in what.runs {
            self.commit_run(run.block, &gone);
        }
        let classic = what.classic.iter().map(|returned| returned.block);
        for block in classic.chain(what.reservations.iter().map(|&(block, _)| block)) {
            self.busy -= 1;
            if kept.contains(&block) {
                match self.class_of(block).is_classic() {
                    true => _ = self.make_free(block),
                    false => _ = self.make_hole(block),
                }
            } else {
                if self.class_of(block).is_classic() {
                    gone_bytes += self.blocks[block].len;
                }
                self.drop_segment(block);
            }
        }
        gone_bytes
    }

    /// Gives their names back to chunks that were to be freed and are still there: mapped or not (`spare`).
    fn rename_kept(&mut self, what: &mut GiveBack, unmapped: &HashSet<u64>, spare: &[Spare]) {
        let names = core::mem::take(&mut what.names);
        if names.is_empty() {
            return;
        }
        let granule = self.limits.granule;
        let in_runs = what.runs.iter().flat_map(|run| {
            let addresses = (run.addr..).step_by((u64::from(run.span) * granule) as usize);
            run.handles.iter().zip(addresses)
        });
        let mapped = in_runs.filter(|(_, address)| !unmapped.contains(address)).map(|(&handle, _)| handle);
        let here: HashSet<PhysicalHandle> = mapped.chain(spare.iter().map(|spare| spare.handle)).collect();
        self.give_names_back(names, |handle| here.contains(&handle));
    }

    /// Forgets a segment that the driver has taken back; `block` is its only block.
    fn drop_segment(&mut self, block: BlockId) {
        self.forget_vacant(self.blocks[block].segment);
        let segment = self.remove_segment(self.blocks[block].segment as usize);
        self.blocks.remove(block);
        if segment.class.is_classic() {
            self.note(Action::Unmap, segment.base, segment.len, Stream(0));
            self.keep(history::Action::SegmentFree, segment.base, segment.len, Stream(0), segment.class);
            match self.is_elsewhere(segment.class) {
                true => self.elsewhere -= segment.len,
                false => self.classic -= segment.len,
            }
            self.count_reserved(segment.class, -(segment.len as i64));
            self.tally.device_free += 1;
        }
        self.reap(segment.class.pool());
    }

    /// Takes a segment out of everything that counts or covers segments; its blocks and its memory are the caller's to see to.
    pub(super) fn remove_segment(&mut self, index: usize) -> Segment {
        let segment = self.segments.remove(index);
        let small = segment.class.is_small();
        self.tally.segment.sub(small, 1);
        let pool = self.pools.get_mut(segment.class.pool());
        pool.firsts.remove(&(segment.base, segment.first));
        if !segment.class.is_classic() {
            pool.address_space -= segment.span;
            self.tally.address_space -= segment.span;
        } else if segment.len >= self.config.max_split_size.unwrap_or(u64::MAX) {
            self.tally.oversize_segments.sub(small, 1);
        }
        self.dropped.push((segment.base, segment.len, segment.covered));
        segment
    }

    /// Ends a run of busy chunks: those whose chunk is gone become a hole, the others free again.
    pub(crate) fn commit_run(&mut self, block: BlockId, unmapped: &HashSet<u64>) {
        let (addr, end, segment) =
            (self.blocks[block].addr, self.blocks[block].end(), self.blocks[block].segment as usize);
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let class = self.segments[segment].class;
        let mut stretch = Stretch::default();
        let mut gone = 0;
        for address in (addr..end).step_by(granule as usize) {
            if unmapped.contains(&address) {
                self.wide_chunks -= usize::from(self.segments[segment].wide.contains_key(&address));
                self.segments[segment].set_chunk(address, shift, None, 0);
                gone += granule;
                self.note(Action::Unmap, address, granule, Stream(0));
                self.stretch(
                    &mut stretch,
                    (history::Action::SegmentUnmap, address, granule),
                    Stream(0),
                    class,
                );
            }
        }
        self.end_stretch(&mut stretch, Stream(0), class);
        self.segments[segment].mapped -= gone;
        self.count_reserved(self.segments[segment].class, -(gone as i64));
        self.busy -= 1;
        let (home, epoch) = (self.blocks[block].home, self.blocks[block].epoch);
        self.settle(block, home, epoch);
    }

    /// Notes a chunk behind a granule of a busy block.
    pub(super) fn back(&mut self, target: BlockId, address: u64, handle: PhysicalHandle, home: StreamId) {
        let (granule, shift) = (self.limits.granule, self.limits.shift);
        let segment = &mut self.segments[self.blocks[target].segment as usize];
        segment.set_chunk(address, shift, Some(handle), home);
        segment.mapped += granule;
        let class = segment.class;
        self.count_reserved(class, granule as i64);
    }

    /// Cuts the caller's range out of a target that is mapped throughout.
    pub(crate) fn cut_ready(&mut self, remap: &Remap) -> BlockId {
        let mut id = remap.target;
        let mut left = NONE;
        if remap.start > self.blocks[id].addr {
            left = id;
            id = self.blocks.split(id, remap.start - self.blocks[id].addr);
        }
        if remap.len < self.blocks[id].len {
            let right = self.blocks.split(id, remap.len);
            self.settle(right, remap.home, remap.epoch);
        }
        if left != NONE {
            self.settle(left, remap.home, remap.epoch);
        }
        id
    }
}
