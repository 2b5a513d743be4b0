//! What a runtime tells of streams and devices that end: noted without a lock, taken up by the allocator.
//!
//! ```text
//!  runtime's callback ──► StateChanges ──► next call of the allocator
//!  (any thread, notes only)                (treats streams as destroyed, devices as reset)
//! ```
//!
//! The count of notes falls only when what was noted has been dealt with, so that a second thread that comes
//! meanwhile waits for the first instead of going on with a stream that is gone.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{DeviceId, Stream};
use crate::sync::{Mutex, MutexGuard, StoreAmongSwaps};

/// How many ends of streams are kept one by one; after more, all streams count as ended.
const ROOM: usize = if crate::sync::SMALLEST { 2 } else { 256 };

/// Ends of streams and resets of devices that nobody has dealt with yet.
///
/// Noting one takes a few atomic instructions, no lock and no memory, so that it can be done inside of a
/// runtime's callback. Callable from any thread.
#[derive(Debug)]
pub struct StateChanges {
    /// Notes that are not dealt with.
    pending: AtomicU64,
    /// Whether there were more ends of streams than there is room for.
    crowded: AtomicBool,
    /// Devices that were reset, by bit.
    reset: AtomicU64,
    /// Devices that were set again after they were reset, by bit.
    set_again: AtomicU64,
    /// Handles of streams; zero is an empty place.
    streams: [AtomicU64; ROOM],
    /// Held by the one thread that deals with what was noted.
    turn: Mutex<()>,
}

/// What was noted since the last time.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Streams that ended.
    pub(crate) streams: Vec<Stream>,
    /// More streams ended than were kept.
    pub(crate) all_streams: bool,
    /// How many notes this is.
    count: u64,
}

impl Default for StateChanges {
    fn default() -> Self {
        Self {
            pending: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            reset: AtomicU64::new(0),
            set_again: AtomicU64::new(0),
            streams: core::array::from_fn(|_| AtomicU64::new(0)),
            turn: Mutex::new(()),
        }
    }
}

impl StateChanges {
    /// Devices with a bit of their own; of those behind, the last bit stands for all.
    pub(crate) const DEVICES: DeviceId = 64;

    /// Notes that a stream is about to be destroyed. The default stream, 0, is no such stream.
    pub fn stream_ends(&self, stream: Stream) {
        if stream.0 == 0 {
            return;
        }
        let free = |place: &AtomicU64| {
            place.compare_exchange(0, stream.0, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if !self.streams.iter().any(free) {
            self.crowded.store_among_swaps(true, Ordering::Release);
        }
        self.pending.fetch_add(1, Ordering::Release);
    }

    /// Notes that a device was reset.
    pub fn device_was_reset(&self, device: DeviceId) {
        self.reset.fetch_or(bit(device), Ordering::Release);
        self.pending.fetch_add(1, Ordering::Release);
    }

    /// Notes that a device was set; of interest only after it was reset.
    pub fn device_was_set(&self, device: DeviceId) {
        if self.reset.load(Ordering::Relaxed) & bit(device) != 0 {
            self.set_again.fetch_or(bit(device), Ordering::Release);
        }
    }

    /// Whether there is anything to be dealt with.
    #[inline]
    #[must_use]
    pub fn any(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Takes all notes at once: the streams that ended, or nothing when there were more than are kept. For owners that
    /// need no order with other threads; resets are forgotten.
    pub fn drain(&self) -> Option<Vec<Stream>> {
        let _turn = self.turn();
        let taken = self.take();
        self.done(&taken, 0..Self::DEVICES);
        (!taken.all_streams).then_some(taken.streams)
    }

    /// Takes all notes at once: the devices that were reset, of which 63 stands for all from there on. For owners that
    /// need no order with other threads; ends of streams are forgotten.
    pub fn drain_resets(&self) -> Vec<DeviceId> {
        let _turn = self.turn();
        let taken = self.take();
        // Of one that is noted from here on the count stays behind.
        let bits = self.reset.swap(0, Ordering::AcqRel);
        self.done(&taken, core::iter::empty());
        (0..Self::DEVICES).filter(|&device| bits & bit(device) != 0).collect()
    }

    /// Whether the device was reset, and if so whether it was set again since.
    pub(crate) fn reset_of(&self, device: DeviceId) -> Option<bool> {
        let reset = self.reset.load(Ordering::Acquire) & bit(device) != 0;
        reset.then(|| self.set_again.load(Ordering::Acquire) & bit(device) != 0)
    }

    /// Waits for the turn to deal with what was noted.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Takes the streams that were noted. The caller has the turn and ends with [`done`](Self::done).
    pub(crate) fn take(&self) -> Taken {
        let count = self.pending.load(Ordering::Acquire);
        let all_streams = self.crowded.swap(false, Ordering::AcqRel);
        let ended = self.streams.iter().map(|place| place.swap(0, Ordering::AcqRel));
        let streams = ended.filter(|&handle| handle != 0).map(Stream).collect();
        Taken { streams, all_streams, count }
    }

    /// What was taken is dealt with, and so are the resets of these devices.
    pub(crate) fn done(&self, taken: &Taken, devices: impl Iterator<Item = DeviceId>) {
        let bits = devices.fold(0, |bits, device| bits | bit(device));
        self.reset.fetch_and(!bits, Ordering::AcqRel);
        self.set_again.fetch_and(!bits, Ordering::AcqRel);
        self.pending.fetch_sub(taken.count, Ordering::AcqRel);
    }
}

fn bit(device: DeviceId) -> u64 {
    1 << device.min(StateChanges::DEVICES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_taken_once() {
        let changes = StateChanges::default();
        assert!(!changes.any());
        changes.stream_ends(Stream(7));
        changes.stream_ends(Stream(9));
        changes.stream_ends(Stream(0));
        changes.device_was_set(1);
        changes.device_was_reset(1);
        assert!(changes.any());
        assert_eq!((changes.reset_of(0), changes.reset_of(1)), (None, Some(false)));
        changes.device_was_set(1);
        assert_eq!(changes.reset_of(1), Some(true));
        let taken = changes.take();
        assert_eq!((&taken.streams[..], taken.all_streams), (&[Stream(7), Stream(9)][..], false));
        assert!(changes.any(), "not dealt with yet");
        changes.done(&taken, [1].into_iter());
        assert!(!changes.any());
        assert_eq!(changes.reset_of(1), None);
    }

    #[test]
    fn more_streams_than_there_is_room_for_stand_for_all() {
        let changes = StateChanges::default();
        (1..=ROOM as u64).for_each(|handle| changes.stream_ends(Stream(handle)));
        let taken = changes.take();
        assert_eq!((taken.streams.len(), taken.all_streams), (ROOM, false));
        changes.done(&taken, core::iter::empty());
        (1..=ROOM as u64 + 1).for_each(|handle| changes.stream_ends(Stream(handle)));
        assert!(changes.take().all_streams);
    }

    #[test]
    fn a_note_made_meanwhile_stays() {
        let changes = StateChanges::default();
        changes.stream_ends(Stream(1));
        let taken = changes.take();
        changes.stream_ends(Stream(2));
        changes.done(&taken, core::iter::empty());
        assert!(changes.any());
        assert_eq!(changes.take().streams, [Stream(2)]);
    }

    #[test]
    fn resets_are_taken_at_once() {
        let changes = StateChanges::default();
        assert_eq!(changes.drain_resets(), []);
        changes.stream_ends(Stream(7));
        [0, 3, 80].into_iter().for_each(|device| changes.device_was_reset(device));
        assert_eq!(changes.drain_resets(), [0, 3, StateChanges::DEVICES - 1]);
        assert_eq!((changes.any(), changes.drain(), changes.drain_resets()), (false, Some(vec![]), vec![]));
    }

    #[test]
    fn whoever_needs_no_order_takes_all_at_once() {
        let changes = StateChanges::default();
        assert_eq!(changes.drain(), Some(Vec::new()));
        changes.stream_ends(Stream(7));
        changes.device_was_reset(3);
        assert_eq!(changes.drain(), Some(vec![Stream(7)]));
        assert_eq!((changes.any(), changes.reset_of(3)), (false, None), "resets are forgotten");
        (1..=ROOM as u64 + 1).for_each(|handle| changes.stream_ends(Stream(handle)));
        assert_eq!(changes.drain(), None, "more than are kept");
        assert_eq!(changes.drain(), Some(Vec::new()));
    }
}

#[cfg(all(test, ascend_alloc_loom))]
mod models {
    use std::sync::Arc;

    use loom::thread::spawn;

    use super::*;
    use crate::sync::explore;

    /// Deals with what was noted, as the allocator does.
    fn heed(changes: &StateChanges, dealt: impl Fn(&Taken)) {
        if changes.any() {
            let _turn = changes.turn();
            let taken = changes.take();
            dealt(&taken);
            changes.done(&taken, core::iter::empty());
        }
    }

    #[test]
    fn every_end_is_dealt_with_once() {
        explore(|| {
            let shared = Arc::new((StateChanges::default(), AtomicU64::new(0)));
            let notes = [7, 9].map(|stream| {
                let shared = Arc::clone(&shared);
                spawn(move || shared.0.stream_ends(Stream(stream)))
            });
            let count = |taken: &Taken| {
                shared.1.fetch_add(taken.streams.len() as u64, Ordering::Relaxed);
            };
            heed(&shared.0, count);
            notes.into_iter().for_each(|note| note.join().expect("no panic"));
            heed(&shared.0, count);
            assert!(!shared.0.any());
            assert_eq!(shared.1.load(Ordering::Relaxed), 2);
        });
    }

    /// Who finds nothing to deal with comes after it was dealt with.
    #[test]
    fn nobody_goes_on_before_it_is_dealt_with() {
        explore(|| {
            let shared = Arc::new((StateChanges::default(), AtomicU64::new(0)));
            shared.0.stream_ends(Stream(7));
            let step = |(changes, dealt): &(StateChanges, AtomicU64)| {
                heed(changes, |taken| {
                    if !taken.streams.is_empty() {
                        dealt.store(1, Ordering::Relaxed);
                    }
                });
                assert_eq!(dealt.load(Ordering::Relaxed), 1, "the stream is gone and still used");
            };
            let other = Arc::clone(&shared);
            let thread = spawn(move || step(&other));
            step(&shared);
            thread.join().expect("no panic");
        });
    }

    /// Who sees that there is something to deal with sees what.
    #[test]
    fn a_reset_that_was_noted_is_seen() {
        explore(|| {
            let changes = Arc::new(StateChanges::default());
            let note = {
                let changes = Arc::clone(&changes);
                spawn(move || changes.device_was_reset(3))
            };
            if changes.any() {
                assert_eq!(changes.reset_of(3), Some(false));
            }
            note.join().expect("no panic");
            assert_eq!(changes.reset_of(3), Some(false));
        });
    }

    /// More ends than there is room for are not lost either.
    #[test]
    fn a_crowd_of_ends_is_seen() {
        explore(|| {
            let changes = Arc::new(StateChanges::default());
            (1..=ROOM as u64).for_each(|stream| changes.stream_ends(Stream(stream)));
            let note = {
                let changes = Arc::clone(&changes);
                spawn(move || changes.stream_ends(Stream(77)))
            };
            let first = changes.drain();
            note.join().expect("no panic");
            let second = changes.drain();
            let told = |taken: &Option<Vec<Stream>>| {
                taken.as_ref().is_none_or(|streams| streams.contains(&Stream(77)))
            };
            assert!(told(&first) || told(&second), "{first:?} {second:?}");
            assert!(!changes.any());
        });
    }
}
