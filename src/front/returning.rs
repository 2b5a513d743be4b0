//! Whether the large blocks of a shard would serve all that is asked for, if they were left where they are.
//!
//! ```text
//! asked for    A  B  C  A  B  C  A  B  C ...      each time the core took the queue back before it served;
//! taken back   .  A  B  C  A  B  C  A  B ...      what is asked for next is always among the last that it took
//! ```
//!
//! Programs that go through a few large lengths in turn find nothing in a queue that the core takes back with each request.
//! Once enough requests in a row could have been served from what was taken back, the queue *stays*, until one could not.
//! A request whose length is there, but waits for other streams, counts among these.
//! So a program whose lengths do not all come again keeps its placement, and one whose lengths do leaves the core alone.
//! Where few come again, nothing is noted most of the time.
//!
//! Changed under the device's lock only.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Keys that are remembered: as many as the queue has room for.
const KEYS: usize = super::shard::QUEUE;
/// So many requests in a row must have found their length.
const ENOUGH: u32 = 64;
/// Requests that did not find their length until nothing is noted for a while, which spares those whose lengths do not
/// come again the search.
const STRIKES: u32 = 24;
/// Requests for which nothing is noted then.
const PAUSE: u32 = 1 << 13;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Returning {
    /// Keys of blocks taken back that were not asked for since.
    taken: [Taken; KEYS],
    /// Which of them the next one replaces, where there is no room.
    next: AtomicU32,
    /// Requests in a row that are still to find their key; zero where the queue stays.
    missing: AtomicU32,
    /// Requests that did not find their key since it was begun to note, or the queue stayed.
    strikes: AtomicU32,
    /// Requests until it is begun again.
    paused: AtomicU32,
}

/// Blocks of one key that were taken back.
#[derive(Debug, Default)]
struct Taken {
    key: AtomicU64,
    /// How many; where there are none the place is vacant.
    blocks: AtomicU32,
}

impl Taken {
    fn blocks_of(&self, key: u64) -> u32 {
        if self.key.load(Relaxed) == key { self.blocks.load(Relaxed) } else { 0 }
    }

    fn is_vacant(&self) -> bool {
        self.blocks.load(Relaxed) == 0
    }
}

impl Default for Returning {
    fn default() -> Self {
        Self {
            taken: Default::default(),
            next: AtomicU32::new(0),
            missing: AtomicU32::new(ENOUGH),
            strikes: AtomicU32::new(0),
            paused: AtomicU32::new(0),
        }
    }
}

impl Returning {
    /// Whether the queue stays.
    #[inline]
    pub(super) fn stays(&self) -> bool {
        self.missing.load(Relaxed) == 0
    }

    /// Whether it is noted what is taken back.
    #[inline]
    pub(super) fn is_noting(&self) -> bool {
        self.paused.load(Relaxed) == 0
    }

    /// Notes that the core took a block of this key back.
    #[inline]
    pub(super) fn note_taken(&self, key: u64) {
        self.note(key, 1);
    }

    /// The same of a block that had waited for other streams. Of those a lane has now more and now fewer, by when somebody
    /// looks, so that they are not counted: there may be many.
    pub(super) fn note_passed(&self, key: u64) {
        const MANY: u32 = 1 << 10;
        self.note(key, MANY);
    }

    #[inline]
    fn note(&self, key: u64, least: u32) {
        if self.is_noting() {
            self.add(key, least);
        }
    }

    #[inline(never)]
    fn add(&self, key: u64, least: u32) {
        let mut all = self.taken.iter();
        let known = all.find(|taken| taken.blocks_of(key) > 0);
        let taken =
            known.or_else(|| self.taken.iter().find(|taken| taken.is_vacant())).unwrap_or_else(|| {
                let next = self.next.load(Relaxed);
                self.next.store(next.wrapping_add(1), Relaxed);
                &self.taken[next as usize % KEYS]
            });
        taken.blocks.store((taken.blocks_of(key) + 1).max(least), Relaxed);
        taken.key.store(key, Relaxed);
    }

    /// Notes that the core is asked for a block of this key.
    pub(super) fn note_asked(&self, key: u64) {
        if self.pauses() {
            return;
        }
        let found = self.taken.iter().find(|taken| taken.blocks_of(key) > 0);
        let Some(taken) = found else { return self.strike() };
        taken.blocks.store(taken.blocks_of(key) - 1, Relaxed);
        self.come_again();
    }

    /// Notes that the core is asked for a block of a key of which there are some that wait for other streams.
    pub(super) fn note_held_up(&self) {
        if !self.pauses() {
            self.come_again();
        }
    }

    /// Whether a request is not noted; one less is to come then.
    fn pauses(&self) -> bool {
        let paused = self.paused.load(Relaxed);
        if paused > 0 {
            self.paused.store(paused - 1, Relaxed);
        }
        paused > 0
    }

    /// A length has come again.
    fn come_again(&self) {
        let missing = self.missing.load(Relaxed).saturating_sub(1);
        self.missing.store(missing, Relaxed);
        if missing == 0 {
            self.strikes.store(0, Relaxed);
        }
    }

    /// A request did not find its key.
    fn strike(&self) {
        self.missing.store(ENOUGH, Relaxed);
        let strikes = self.strikes.load(Relaxed) + 1;
        self.strikes.store(strikes % STRIKES, Relaxed);
        if strikes == STRIKES {
            self.paused.store(PAUSE, Relaxed);
            self.taken.iter().for_each(|taken| taken.blocks.store(0, Relaxed));
        }
    }

    /// Everything was taken back.
    pub(super) fn forget(&self) {
        self.missing.store(ENOUGH, Relaxed);
        self.taken.iter().for_each(|taken| taken.blocks.store(0, Relaxed));
    }
}

#[cfg(all(test, not(ascend_alloc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_stays_while_all_lengths_come_again() {
        let returning = Returning::default();
        for round in 0..=ENOUGH {
            let key = 1 + u64::from(round % 3);
            assert!(!returning.stays(), "{round}");
            returning.note_asked(key);
            returning.note_taken(key);
        }
        // The first three were not among those taken back.
        (0..3).for_each(|key| returning.note_asked(1 + u64::from((ENOUGH + 1 + key) % 3)));
        assert!(returning.stays());
        returning.note_asked(9);
        assert!(!returning.stays());
    }

    /// With eight lengths used on a second stream every other request was served by the core.
    #[test]
    fn lengths_that_wait_for_other_streams_come_again() {
        let returning = Returning::default();
        (0..STRIKES).for_each(|key| returning.note_asked(1 + u64::from(key)));
        assert!(!returning.is_noting());
        (0..PAUSE).for_each(|_| returning.note_held_up());
        assert!(returning.is_noting() && !returning.stays());
        (1..ENOUGH).for_each(|_| returning.note_held_up());
        assert!(!returning.stays());
        returning.note_held_up();
        assert!(returning.stays());
    }

    #[test]
    fn more_lengths_than_the_queue_holds_do_not_count() {
        let returning = Returning::default();
        for round in 0..1000 {
            let key = 1 + round % (KEYS as u64 + 1);
            returning.note_asked(key);
            assert!(!returning.stays());
            returning.note_taken(key);
        }
    }
}
