//! Vector clocks, kept small.
//!
//! Every operation queued to a stream has a place: the stream's *slot* and its *number* in that
//! slot, counted from 1 and never used twice, not even when a slot passes to a new stream. A clock
//! says for each slot up to which number the operations happened before.
//!
//! Three facts keep clocks small and joins rare:
//!
//! - A stream's own component is its last number; only what it learnt from other streams (by
//!   waiting for events) is stored. A [`Snapshot`] shares that part.
//! - What the *host* knows happened before everything that is queued later. So nothing the host
//!   knows is ever stored in a stream's clock: it is looked up in the [`HostClock`] instead, and
//!   [`Clock::join`] drops it.
//! - A slot passes to a new stream only when the host knows its last operation to be done; the new
//!   stream counts on from there. An old component of that slot thus claims nothing about the new.

use std::sync::Arc;

/// Where an operation stands: slot and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u32,
    pub(super) number: u64,
}

/// What one stream knows of other streams, beyond what the host knows; sorted by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Vec<(u32, u64)>);

impl Clock {
    /// Up to which number the operations of a slot happened before.
    pub(super) fn get(&self, slot: u32) -> u64 {
        // Clocks have few components: a scan beats a binary search until about a dozen.
        if self.0.len() <= 12 {
            return self.0.iter().find(|(s, _)| *s == slot).map_or(0, |(_, number)| *number);
        }
        self.0.binary_search_by_key(&slot, |(s, _)| *s).map_or(0, |at| self.0[at].1)
    }

    /// Takes in one component.
    fn raise(&mut self, place: Place) {
        match self.0.binary_search_by_key(&place.slot, |(s, _)| *s) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(place.number),
            Err(at) => self.0.insert(at, (place.slot, place.number)),
        }
    }

    /// The clock of a stream on `own` slot after it waited for `other`, a point of another stream
    /// that it did not know. Components that the host knows, and the stream's own, are left out.
    fn join(&self, other: &Snapshot, own: u32, host: &HostClock) -> Self {
        let mut joined = Self(Vec::with_capacity(self.0.len() + other.clock.0.len() + 1));
        let (mut left, mut right) = (self.0.iter().peekable(), other.clock.0.iter().peekable());
        loop {
            let (slot, number) = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some((ls, ln)), Some((rs, rn))) if ls == rs => {
                    let both = (*ls, *ln.max(rn));
                    left.next();
                    right.next();
                    both
                }
                (Some((ls, ln)), Some((rs, _))) if ls < rs => {
                    let one = (*ls, *ln);
                    left.next();
                    one
                }
                (Some((ls, ln)), None) => {
                    let one = (*ls, *ln);
                    left.next();
                    one
                }
                (_, Some((rs, rn))) => {
                    let one = (*rs, *rn);
                    right.next();
                    one
                }
            };
            if slot != own && !host.knows(Place { slot, number }) {
                joined.0.push((slot, number));
            }
        }
        joined.raise(other.place);
        joined
    }

    /// How many components are stored.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Everything that happened before one point of a stream.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// The point itself.
    pub(super) place: Place,
    /// What the stream knew of others.
    pub(super) clock: Arc<Clock>,
}

impl Snapshot {
    /// Makes `clock`, of the stream on slot `own`, know all that happened before this point.
    pub(super) fn join_into(&self, clock: &mut Arc<Clock>, own: u32, host: &HostClock) {
        // Who knows a point knows all that happened before it.
        let known = self.place.slot == own
            || clock.get(self.place.slot) >= self.place.number
            || host.knows(self.place);
        if !known {
            *clock = Arc::new(clock.join(self, own, host));
        }
    }
}

/// What the host, seen as one agent, knows to be done; one component for each slot.
#[derive(Debug, Default)]
pub(super) struct HostClock(Vec<u64>);

impl HostClock {
    /// Whether the host knows this operation, and so all before it, to be done.
    pub(super) fn knows(&self, place: Place) -> bool {
        self.up_to(place.slot) >= place.number
    }

    /// The last operation of a slot the host knows to be done.
    pub(super) fn up_to(&self, slot: u32) -> u64 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    /// The host has learnt that everything before the snapshot is done. Calls `risen` with every
    /// slot whose component grew.
    pub(super) fn learn(&mut self, snapshot: &Snapshot, mut risen: impl FnMut(u32)) {
        let own = (snapshot.place.slot, snapshot.place.number);
        for (slot, number) in snapshot.clock.0.iter().copied().chain([own]) {
            let at = slot as usize;
            if self.0.len() <= at {
                self.0.resize(at + 1, 0);
            }
            if self.0[at] < number {
                self.0[at] = number;
                risen(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(slot: u32, number: u64, clock: &Arc<Clock>) -> Snapshot {
        Snapshot { place: Place { slot, number }, clock: Arc::clone(clock) }
    }

    #[test]
    fn waits_carry_knowledge_on() {
        let host = HostClock::default();
        let (mut two, mut three) = (Arc::new(Clock::default()), Arc::new(Clock::default()));
        snapshot(1, 5, &Arc::new(Clock::default())).join_into(&mut two, 2, &host);
        snapshot(2, 7, &two).join_into(&mut three, 3, &host);
        assert_eq!((three.get(1), three.get(2), three.get(3)), (5, 7, 0));
        let before = Arc::clone(&three);
        snapshot(1, 4, &Arc::new(Clock::default())).join_into(&mut three, 3, &host);
        assert!(Arc::ptr_eq(&before, &three), "an older point teaches nothing");
    }

    #[test]
    fn what_the_host_knows_is_not_stored() {
        let mut host = HostClock::default();
        let none = Arc::new(Clock::default());
        let mut clock = Arc::new(Clock::default());
        for slot in 1..50 {
            snapshot(slot, 3, &none).join_into(&mut clock, 0, &host);
        }
        assert_eq!(clock.len(), 49);
        let mut risen = Vec::new();
        for slot in 1..49 {
            host.learn(&snapshot(slot, 3, &none), |s| risen.push(s));
        }
        assert_eq!(risen, (1..49).collect::<Vec<_>>());
        snapshot(50, 1, &none).join_into(&mut clock, 0, &host);
        assert_eq!((clock.len(), clock.get(49), clock.get(50)), (2, 3, 1));
        assert!(host.knows(Place { slot: 7, number: 3 }) && !host.knows(Place { slot: 7, number: 4 }));
    }

    #[test]
    fn a_stream_does_not_store_itself() {
        let host = HostClock::default();
        let mut one = Arc::new(Clock::default());
        let mut two = Arc::new(Clock::default());
        snapshot(1, 5, &one).join_into(&mut two, 2, &host);
        snapshot(2, 9, &two).join_into(&mut one, 1, &host);
        assert_eq!((one.len(), one.get(2), one.get(1)), (1, 9, 0));
    }
}
