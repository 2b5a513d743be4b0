//! Where events are noted: a short list for each shard and each core, and a store of full lists behind them.
//!
//! ```text
//! shard 0   [e e e .]  \
//! shard 1   [e e . .]   >  full lists --> store: the newest ones, in no exact order  --> readers sort by number
//! core      [e . . .]  /
//! apart     [e . . .]  /
//! ```
//!
//! Whoever notes an event has the shard's flag or the core's lock, which guards the list too; what is noted without
//! either goes to the list apart, which has a lock. So noting an event is one number from the counter of the
//! allocator, and some stores (`list.rs`). The number is drawn while the list is busy: a reader that takes the
//! counter first and then looks through all lists finds every event up to that number. Order is the order of things
//! because events are noted while the block is in the hands of whoever notes them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::context::current_context;
use super::control::Control;
use super::event::{Action, Event};
use super::list::{Around, List, WORDS, events};
use super::worker::Signal;
use crate::driver::{DeviceId, Stream};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Lists that are kept to be used again.
const SPARES: usize = 8;
/// After so many events at most the clock is read.
const COARSE: u64 = 64;

/// What is wanted by whoever keeps events.
pub(crate) const EVENTS: u32 = 1;
/// Uses on further streams and waits of the program are wanted too.
pub(crate) const USES: u32 = 2;
/// A stack is to be captured where no context is set.
pub(crate) const STACKS: u32 = 4;

/// The lists of one device: one for each shard of its front, one for its core, and one apart.
#[derive(Debug)]
pub(crate) struct Lists {
    lists: Box<[Arc<List>]>,
    apart: Mutex<Arc<List>>,
    history: Arc<History>,
}

/// What a full list had.
#[derive(Debug)]
struct Full {
    device: DeviceId,
    /// The number of its last event.
    last: u64,
    words: Arc<Vec<u64>>,
}

#[derive(Debug, Default)]
struct Store {
    full: VecDeque<Full>,
    spares: Vec<Arc<Vec<u64>>>,
    /// How many of the newest events are wanted.
    most: u64,
    /// Who reads them, and is told when many have come since that was told last.
    readers: Vec<Reading>,
    told_at: u64,
}

/// A reader of all events.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// Up to this number it has read.
    pub(super) read: Arc<AtomicU64>,
    /// How many events may be kept that it has not read.
    pub(super) most: u64,
    /// Its thread, if there is one that reads.
    pub(super) signal: Option<Arc<Signal>>,
}

/// The history of one allocator.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct History {
    /// What is wanted; zero while nobody keeps events.
    wanted: AtomicU32,
    /// Where the counters begin, on a line of their own: the one before is only read.
    counters: Counters,
    store: Mutex<Store>,
    devices: Mutex<Vec<Arc<Lists>>>,
    /// Who keeps events. Taken before the others.
    pub(super) control: Mutex<Control>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Counters {
    /// The number of the last event.
    sequence: AtomicU64,
    /// The coarse time.
    time: AtomicU64,
    /// The number of the last event when the clock was read.
    stamped: AtomicU64,
}

/// Events that a reader got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// By number.
    pub(crate) events: Vec<Event>,
    /// Events between the two ends that are gone.
    pub(crate) lost: u64,
    /// Up to this number everything has been read.
    pub(crate) end: u64,
}

impl Batch {
    /// Lets no event have a time before that of events before it, also those that were read earlier: whoever notes an event
    /// may have looked at the time before somebody else who got a smaller number.
    pub(super) fn go_on_from(&mut self, latest: &mut u64) {
        for event in &mut self.events {
            *latest = event.time.max(*latest);
            event.time = *latest;
        }
    }
}

/// What is said of an event by whoever notes it; the rest is known here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) action: Action,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: Stream,
    pub(crate) pool: u64,
    pub(crate) tag: Option<super::ContextId>,
}

impl Said {
    /// Of a block of the default pool.
    #[inline]
    pub(crate) fn of_block(action: Action, address: u64, size: u64, requested: u64, stream: Stream) -> Self {
        Self { action, address, size, requested, stream, pool: 0, tag: None }
    }
}

impl History {
    /// Whether anybody keeps events.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.wanted.load(Relaxed) != 0
    }

    /// Whether that is wanted: [`EVENTS`], [`USES`] or [`STACKS`].
    #[inline]
    pub(crate) fn wants(&self, what: u32) -> bool {
        self.wanted.load(Relaxed) & what != 0
    }

    /// Whether the clock should be read before the next event.
    #[inline]
    pub(crate) fn is_clock_due(&self) -> bool {
        let sequence = self.counters.sequence.load(Relaxed);
        sequence.wrapping_sub(self.counters.stamped.load(Relaxed)) >= COARSE
    }

    /// Takes a reading of the driver's clock.
    #[inline]
    pub(crate) fn note_time(&self, now: u64) {
        self.counters.stamped.store(self.counters.sequence.load(Relaxed), Relaxed);
        self.counters.time.fetch_max(now, Relaxed);
    }

    /// The number of the last event.
    pub(crate) fn sequence(&self) -> u64 {
        self.counters.sequence.load(Relaxed)
    }

    /// Says what is wanted from now on, how many of the newest events, and who reads all. With nothing wanted all
    /// memory of the history goes.
    pub(super) fn set_wanted(&self, wanted: u32, most: u64, readers: Vec<Reading>) {
        {
            let mut store = self.store.lock();
            store.most = most;
            store.readers = readers;
            store.told_at = self.sequence();
            store.trim(self.sequence());
        }
        self.wanted.store(wanted, Relaxed);
        if wanted == 0 {
            // What is in lists stays there, and means nothing to later readers: its numbers are those before their
            // time.
            *self.store.lock() = Store::default();
        }
    }

    /// The events after number `after`, as far as they are still known.
    pub(crate) fn read(&self, after: u64) -> Batch {
        // With it comes what was done before each number up to this was drawn: that its list is busy.
        let end = self.counters.sequence.load(Acquire);
        let (mut all, mut words) = (Vec::new(), Vec::new());
        let mut add = |words: &[u64], device| {
            all.extend(events(words, device).filter(|event| event.sequence > after && event.sequence <= end));
        };
        // A list may go to the store meanwhile; then its events are found twice, and never not at all.
        for lists in self.devices.lock().iter() {
            for list in lists.lists.iter().chain([&*lists.apart.lock()]) {
                words.clear();
                list.read(&mut words);
                add(&words, list.device);
            }
        }
        let full: Vec<(DeviceId, Arc<Vec<u64>>)> = {
            let store = self.store.lock();
            let full = store.full.iter().filter(|full| full.last > after);
            full.map(|full| (full.device, Arc::clone(&full.words))).collect()
        };
        full.iter().for_each(|(device, words)| add(words, *device));
        drop(full);
        let mut events: Vec<Event> = all;
        events.sort_unstable_by_key(|event| event.sequence);
        events.dedup_by_key(|event| event.sequence);
        let mut batch = Batch { lost: end.saturating_sub(after) - events.len() as u64, events, end };
        batch.go_on_from(&mut 0);
        batch
    }

    /// Bytes that events in the store take at present.
    pub(crate) fn bytes(&self) -> u64 {
        let store = self.store.lock();
        let full = store.full.iter().map(|full| &full.words);
        full.chain(&store.spares).map(|words| (words.capacity() * size_of::<u64>()) as u64).sum()
    }

    /// Puts what a full list has away. `last` is the number of its last event.
    #[cold]
    #[inline(never)]
    fn put_away(&self, list: &List, last: u64) {
        let sequence = self.sequence();
        let mut guard = self.store.lock();
        let store = &mut *guard;
        list.empty(|full| {
            // Whoever looked before the end may come after it.
            if !self.is_on() {
                return;
            }
            let mut words = store.spares.pop().unwrap_or_else(|| Arc::new(Vec::with_capacity(WORDS)));
            if let Some(words) = Arc::get_mut(&mut words) {
                words.extend(full.iter().map(|word| word.load(Relaxed)));
            }
            store.full.push_back(Full { device: list.device, last, words });
        });
        store.trim(sequence);
        let reading =
            || store.readers.iter().filter_map(|reader| Some((reader.most, reader.signal.as_ref()?)));
        let least = reading().map(|(most, _)| most).min();
        if least.is_some_and(|least| sequence.saturating_sub(store.told_at) > least / 4) {
            reading().for_each(|(_, signal)| signal.nudge());
            store.told_at = sequence;
        }
    }
}

impl Store {
    /// Drops lists without any event that is wanted: the newest, and those that somebody has not read.
    fn trim(&mut self, sequence: u64) {
        let unread = |reader: &Reading| reader.read.load(Relaxed).max(sequence.saturating_sub(reader.most));
        let unread = self.readers.iter().map(unread).min().unwrap_or(u64::MAX);
        let gone = unread.min(sequence.saturating_sub(self.most));
        while let Some(full) = self.full.front()
            && full.last <= gone
        {
            let Some(mut full) = self.full.pop_front() else { return };
            // A reader may have it still.
            if self.spares.len() < SPARES
                && let Some(words) = Arc::get_mut(&mut full.words)
            {
                words.clear();
                self.spares.push(full.words);
            }
        }
    }
}

/// One list, in the hands of the shard or core that notes events there.
#[derive(Debug)]
pub(crate) struct Noter {
    list: Arc<List>,
    history: Arc<History>,
    lists: Arc<Lists>,
}

impl Noter {
    /// The list of that number, or of the core.
    pub(crate) fn new(lists: &Arc<Lists>, at: usize) -> Self {
        let list = Arc::clone(&lists.lists[at.min(lists.of_core())]);
        Self { list, history: Arc::clone(&lists.history), lists: Arc::clone(lists) }
    }

    /// Whether anybody keeps events.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.history.is_on()
    }

    /// Notes an event, if anybody wants it. Only for whoever has the flag or lock of the shard or core.
    #[inline]
    pub(crate) fn note(&self, said: Said) {
        if self.is_on() {
            self.note_now(said);
        }
    }

    /// The same for a caller that has looked whether anybody keeps events.
    #[inline(always)]
    pub(crate) fn note_now(&self, said: Said) {
        self.history.note(&self.list, self.list.device, &said);
    }

    /// Notes an event apart, if anybody wants it: for those who have neither flag nor lock.
    pub(crate) fn note_apart(&self, said: Said) {
        self.note_for(self.list.device, said);
    }

    /// The same for another device than that of the lists.
    pub(crate) fn note_for(&self, device: DeviceId, said: Said) {
        if self.is_on() {
            self.history.note(&self.lists.apart.lock(), device, &said);
        }
    }

    /// Whether anybody keeps uses on further streams and waits of the program.
    pub(crate) fn wants_uses(&self) -> bool {
        self.history.wants(USES)
    }

    /// Takes a reading of the driver's clock for the next events.
    pub(crate) fn note_time(&self, now: u64) {
        if self.is_on() {
            self.history.note_time(now);
        }
    }
}

impl Lists {
    /// The lists of a device with so many shards, known to the history from now on.
    pub(crate) fn new(history: &Arc<History>, device: DeviceId, shards: usize) -> Arc<Self> {
        let list = || Arc::new(List::new(device));
        let lists = (0..=shards).map(|_| list()).collect();
        let lists = Arc::new(Self { lists, apart: Mutex::new(list()), history: Arc::clone(history) });
        history.devices.lock().push(Arc::clone(&lists));
        lists
    }

    /// The list of the core.
    #[inline]
    pub(crate) fn of_core(&self) -> usize {
        self.lists.len() - 1
    }
}

impl History {
    /// Notes an event about a device in a list.
    #[inline(always)]
    fn note(&self, list: &List, device: DeviceId, said: &Said) {
        let time = self.counters.time.load(Relaxed);
        let around = Around { time, context: current_context(), device };
        let mut number = 0;
        let is_full = list.push(said, around, || {
            number = self.counters.sequence.fetch_add(1, Release) + 1;
            number
        });
        if is_full {
            self.put_away(list, number);
        }
    }
}

#[cfg(all(test, not(ascend_alloc_loom)))]
mod tests {
    use super::super::control::HistoryOptions;
    use super::*;

    #[test]
    fn times_do_not_run_backwards_from_one_reading_to_the_next() {
        let history = Arc::new(History::default());
        let lists = Lists::new(&history, 0, 1);
        history.start(&HistoryOptions::default());
        let mut times = Vec::new();
        for time in [100, 40, 50, 200] {
            let around = Around { time, context: None, device: 0 };
            let said = Said::of_block(Action::Allocate, 512, 512, 512, Stream(0));
            lists.lists[0].push(&said, around, || history.counters.sequence.fetch_add(1, Release) + 1);
            times.extend(history.drain().events.iter().map(|event| event.time));
        }
        assert_eq!(times, [100, 100, 100, 200]);
    }

    /// Events for reports are kept and never read, however few they are: that hurries nobody else.
    #[test]
    fn who_reads_has_a_turn_when_its_own_room_gets_short() {
        for (most, hurries) in [(1 << 20, false), (4000, true)] {
            let history = Arc::new(History::default());
            let lists = Lists::new(&history, 0, 1);
            let signal = Arc::new(Signal::default());
            history.add_reader(EVENTS, most, Some(Arc::clone(&signal)));
            history.add_reader(EVENTS, 1000, None);
            let noter = Noter::new(&lists, 0);
            for _ in 0..3000 {
                noter.note(Said::of_block(Action::Allocate, 512, 512, 512, Stream(0)));
            }
            assert_eq!(signal.is_nudged(), hurries, "{most}");
        }
    }
}

#[cfg(all(test, ascend_alloc_loom))]
mod models {
    use loom::thread::spawn;

    use super::*;
    use crate::sync::{explore, explore_with};

    fn said() -> Said {
        Said::of_block(Action::Allocate, 512, 512, 512, Stream(0))
    }

    fn history(wanted: u32) -> (Arc<History>, Arc<Lists>) {
        let history = Arc::new(History::default());
        let lists = Lists::new(&history, 0, 1);
        history.set_wanted(wanted, 100, Vec::new());
        (history, lists)
    }

    /// A reader has every event up to the number it read.
    fn nothing_is_missed(events_of: &'static [usize], preemptions: usize) {
        explore_with(preemptions, move || {
            let (history, lists) = history(EVENTS);
            let noters = events_of.iter().enumerate().map(|(at, &events)| {
                let noter = Noter::new(&lists, at);
                spawn(move || (0..events).for_each(|_| noter.note(said())))
            });
            let noters: Vec<_> = noters.collect();
            let batch = history.read(0);
            assert_eq!((batch.events.len() as u64, batch.lost), (batch.end, 0));
            noters.into_iter().for_each(|noter| noter.join().expect("no panic"));
            let (batch, all) = (history.read(0), events_of.iter().sum());
            assert_eq!((batch.events.len(), batch.lost, batch.end), (all, 0, all as u64));
        });
    }

    #[test]
    fn a_reader_misses_nothing_of_two_lists() {
        nothing_is_missed(&[1, 1], 3);
    }

    /// A list is filled and goes to the store.
    #[test]
    fn a_reader_misses_nothing_of_a_full_list() {
        nothing_is_missed(&[3], 2);
    }

    /// Nothing is put away after a history has ended.
    #[test]
    fn nothing_comes_after_the_end() {
        explore(|| {
            let (history, lists) = history(EVENTS);
            let noter = Noter::new(&lists, 0);
            let noter = spawn(move || (0..3).for_each(|_| noter.note(said())));
            history.set_wanted(0, 0, Vec::new());
            noter.join().expect("no panic");
            assert!(history.store.lock().full.is_empty());
        });
    }
}
