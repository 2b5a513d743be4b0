//! Who touched which bytes: the interval map behind the use checker.
//!
//! ```text
//!  address   0x1000      0x1800      0x3000            0x4000
//!            |-----------|-----------|     (nothing)   |------- ...
//!  uses      A           A B                           C
//! ```
//!
//! Intervals do not overlap; each has the uses that a later access could still conflict with. A use
//! leaves the list of an interval when no later access can conflict with it without also
//! conflicting with another one in the list, or when none can conflict with it at all:
//!
//! - **known**: the host knows it to be done, so it happened before all that comes.
//! - **superseded**: a later use is ordered behind it, conflicts with whatever it conflicts with
//!   (writes, or both only read), and has the same tag or none.
//! - **covered twice**: two later uses as above, with different tags. Whatever is unordered with
//!   the first use is unordered with both, and its tag differs from one of them.
//!
//! So an interval holds at most two writes and two reads a stream, and what is reported is exact in
//! this sense: every pair reported conflicts, and an access that conflicts with anything on some
//! byte is reported with at least one partner on that byte.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::clock::{Clock, HostClock, Place};
use crate::made::Made;

/// One use of an interval's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// The task's place.
    pub(super) place: Place,
    /// The program object; zero conflicts with everything.
    pub(super) tag: u64,
    /// When the task was queued, in ticks.
    pub(super) tick: u64,
    /// Index of the task's label.
    pub(super) label: u32,
    /// Whether the bytes are written.
    pub(super) write: bool,
    /// The call that queued the task.
    pub(super) made: Made,
    /// The tag of a later use that supersedes this one but for the tag; zero while there is none.
    covered_by: u64,
}

impl Use {
    /// A use that nothing has covered yet.
    pub(super) fn new(place: Place, (tag, write): (u64, bool), tick: u64, label: u32, made: Made) -> Self {
        Self { place, tag, tick, label, write, made, covered_by: 0 }
    }

    /// Whether two unordered uses conflict.
    fn conflicts(&self, later: &Self) -> bool {
        (self.write || later.write) && (self.tag != later.tag || self.tag == 0)
    }

    /// Takes note that `later` is ordered behind this use; false when this use may be forgotten.
    fn stays_under(&mut self, later: &Self) -> bool {
        if !later.write && self.write {
            return true;
        }
        if later.tag == 0 || later.tag == self.tag {
            return false;
        }
        if self.covered_by != 0 && self.covered_by != later.tag {
            return false;
        }
        self.covered_by = later.tag;
        true
    }
}

/// An earlier use that conflicts with a new one, on `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) earlier: Use,
    pub(super) start: u64,
    pub(super) end: u64,
}

type Uses = SmallVec<[Use; 2]>;

#[derive(Debug)]
struct Interval {
    end: u64,
    uses: Uses,
}

/// The uses of every byte that later accesses may conflict with.
#[derive(Debug, Default)]
pub(super) struct History {
    intervals: BTreeMap<u64, Interval>,
    /// Intervals left by the last sweep; the next one comes when there are twice as many.
    swept: usize,
    /// Scratch lists, kept to avoid allocations.
    gaps: Vec<(u64, u64)>,
    merged: Vec<u64>,
}

/// Fewer intervals than this are never swept.
const SWEEP_FLOOR: usize = 4096;

impl History {
    /// Enters a use of `start..end` by a stream that knows `clock`; conflicts with earlier uses are
    /// added to `conflicts`.
    pub(super) fn access(
        &mut self,
        (start, end): (u64, u64),
        new: Use,
        clock: &Clock,
        host: &HostClock,
        conflicts: &mut Vec<Conflict>,
    ) {
        if start >= end {
            return;
        }
        if let Some(interval) = self.intervals.get_mut(&start)
            && interval.end == end
        {
            enter(&mut interval.uses, (start, end), &new, clock, host, conflicts);
            return;
        }
        self.split(start);
        self.split(end);
        self.walk((start, end), &new, clock, host, conflicts);
        for at in self.merged.drain(..) {
            self.intervals.remove(&at);
        }
        for (from, to) in self.gaps.drain(..) {
            self.intervals.insert(from, Interval { end: to, uses: SmallVec::from_slice(&[new]) });
        }
        if self.intervals.len() > (2 * self.swept).max(SWEEP_FLOOR) {
            self.sweep(host);
        }
    }

    /// A host operation on `start..end`: uses that the host does not know to be done and that it
    /// conflicts with are added to `conflicts`; with `clear` the range's history ends.
    pub(super) fn host_access(
        &mut self,
        (start, end): (u64, u64),
        write: bool,
        clear: bool,
        host: &HostClock,
        conflicts: &mut Vec<Conflict>,
    ) {
        if start >= end {
            return;
        }
        if clear {
            self.split(start);
            self.split(end);
        }
        let before = self.intervals.range(..start).next_back().map_or(start, |(at, _)| *at);
        for (at, interval) in self.intervals.range_mut(before..end) {
            if interval.end <= start {
                continue;
            }
            interval.uses.retain(|earlier| !host.knows(earlier.place));
            for earlier in interval.uses.iter().filter(|earlier| write || earlier.write) {
                let conflict =
                    Conflict { earlier: *earlier, start: (*at).max(start), end: interval.end.min(end) };
                report(conflicts, conflict);
            }
            if clear || interval.uses.is_empty() {
                self.merged.push(*at);
            }
        }
        for at in self.merged.drain(..) {
            self.intervals.remove(&at);
        }
    }

    /// How many intervals there are.
    pub(super) fn len(&self) -> usize {
        self.intervals.len()
    }

    /// Makes `at` a boundary.
    fn split(&mut self, at: u64) {
        if let Some((start, interval)) = self.intervals.range_mut(..at).next_back()
            && interval.end > at
        {
            debug_assert!(*start < at);
            let upper = Interval { end: interval.end, uses: interval.uses.clone() };
            interval.end = at;
            self.intervals.insert(at, upper);
        }
    }

    /// Enters the use into every interval of the range, whose ends are boundaries; leaves gaps to
    /// fill in `gaps` and intervals that went into their left neighbour in `merged`.
    fn walk(
        &mut self,
        (start, end): (u64, u64),
        new: &Use,
        clock: &Clock,
        host: &HostClock,
        conflicts: &mut Vec<Conflict>,
    ) {
        let mut reached = start;
        let mut left: Option<&mut Interval> = None;
        for (at, interval) in self.intervals.range_mut(start..end) {
            if reached < *at {
                fill(&mut left, &mut self.gaps, (reached, *at), new);
            }
            enter(&mut interval.uses, (*at, interval.end), new, clock, host, conflicts);
            reached = interval.end;
            match &mut left {
                Some(before) if before.end == *at && before.uses == interval.uses => {
                    before.end = interval.end;
                    self.merged.push(*at);
                }
                _ => left = Some(interval),
            }
        }
        if reached < end {
            fill(&mut left, &mut self.gaps, (reached, end), new);
        }
    }

    /// Forgets what the host has learnt to be done.
    fn sweep(&mut self, host: &HostClock) {
        self.intervals.retain(|_, interval| {
            interval.uses.retain(|earlier| !host.knows(earlier.place));
            !interval.uses.is_empty()
        });
        self.swept = self.intervals.len();
    }
}

/// A part of the range that had no history now has one use: added to the left neighbour where
/// that has just this use too, else to `gaps`.
fn fill(left: &mut Option<&mut Interval>, gaps: &mut Vec<(u64, u64)>, (from, to): (u64, u64), new: &Use) {
    match left {
        Some(before) if before.end == from && before.uses.as_slice() == [*new] => before.end = to,
        _ => gaps.push((from, to)),
    }
}

/// Checks a use against those of one interval and enters it there.
fn enter(
    uses: &mut Uses,
    (start, end): (u64, u64),
    new: &Use,
    clock: &Clock,
    host: &HostClock,
    conflicts: &mut Vec<Conflict>,
) {
    uses.retain(|earlier| {
        if host.knows(earlier.place) {
            return false;
        }
        let Place { slot, number } = earlier.place;
        if slot == new.place.slot || clock.get(slot) >= number {
            return earlier.stays_under(new);
        }
        if earlier.conflicts(new) {
            report(conflicts, Conflict { earlier: *earlier, start, end });
        }
        true
    });
    uses.push(*new);
}

/// Adds a conflict, as one with the last where both are with the same use and touch.
fn report(conflicts: &mut Vec<Conflict>, new: Conflict) {
    let same = |old: &&mut Conflict| {
        old.end == new.start
            && old.earlier.place == new.earlier.place
            && old.earlier.tag == new.earlier.tag
            && old.earlier.write == new.earlier.write
    };
    match conflicts.iter_mut().rev().take(4).find(same) {
        Some(old) => old.end = new.end,
        None => conflicts.push(new),
    }
}
