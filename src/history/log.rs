//! Where events are noted: a short list for each shard and each core, and a store of full lists behind them.
//!
//! ```text
//! shard 0   [e e e .]  \
//! shard 1   [e e . .]   >  full lists --> store: the newest ones, in no exact order  --> readers sort by number
//! core      [e . . .]  /
//! ```
//!
//! A list is guarded by a mutex of its own that nobody else wants but readers, so that noting an event is one lock
//! without a rival, one number from the counter of the allocator, and one copy. The number is
//! drawn under the list's lock: a reader that takes the counter first and then looks through all lists finds every event up
//! to that number. Order is the order of things because events are noted while the block is in the hands of
//! whoever notes them, under the shard's flag or the core's lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::collections::VecDeque;
use std::sync::Arc;

use super::context::current_context;
use super::control::Control;
use super::event::{Action, Event};
use super::worker::Signal;
use crate::driver::{DeviceId, Stream};
use crate::sync::plain::Mutex;

/// Events of a list.
const LIST: usize = 64;
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

/// Events that wait to go to the store.
#[derive(Debug, Default)]
#[repr(align(128))]
struct List(Mutex<Vec<Event>>);

/// The lists of one device: one for each shard of its front, and the last for its core.
#[derive(Debug)]
pub(crate) struct Lists {
    device: DeviceId,
    lists: Box<[List]>,
    history: Arc<History>,
}

/// A full list.
#[derive(Debug)]
struct Full {
    last: u64,
    events: Arc<Vec<Event>>,
}

#[derive(Debug, Default)]
struct Store {
    full: VecDeque<Full>,
    spares: Vec<Vec<Event>>,
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
    pub(super) signal: Arc<Signal>,
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

    /// Says what is wanted from now on, how many of the newest events, and who reads all. With nothing wanted all memory of
    /// the history goes.
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
            // Whoever notes an event looks again under the list's lock, so that nothing comes after this.
            for lists in self.devices.lock().iter() {
                lists.lists.iter().for_each(|list| drop(core::mem::take(&mut *list.0.lock())));
            }
            *self.store.lock() = Store::default();
        }
    }

    /// The events after number `after`, as far as they are still known.
    pub(crate) fn read(&self, after: u64) -> Batch {
        let end = self.sequence();
        let mut events = Vec::new();
        // A list may go to the store meanwhile; then its events are found twice, and never not at all.
        for lists in self.devices.lock().iter() {
            for list in &lists.lists {
                events.extend_from_slice(&list.0.lock());
            }
        }
        let full: Vec<Arc<Vec<Event>>> = {
            let store = self.store.lock();
            store.full.iter().filter(|full| full.last > after).map(|full| Arc::clone(&full.events)).collect()
        };
        full.iter().for_each(|list| events.extend_from_slice(list));
        drop(full);
        events.retain(|event| event.sequence > after && event.sequence <= end);
        events.sort_unstable_by_key(|event| event.sequence);
        events.dedup_by_key(|event| event.sequence);
        let mut time = 0;
        for event in &mut events {
            time = event.time.max(time);
            event.time = time;
        }
        Batch { lost: end.saturating_sub(after) - events.len() as u64, events, end }
    }

    /// Bytes that events take at present.
    pub(crate) fn bytes(&self) -> u64 {
        let store = self.store.lock();
        let full: usize = store.full.iter().map(|full| full.events.capacity()).sum();
        let spare: usize = store.spares.iter().map(Vec::capacity).sum();
        drop(store);
        let devices = self.devices.lock();
        let lists = devices.iter().flat_map(|device| &device.lists);
        let open: usize = lists.map(|list| list.0.lock().capacity()).sum();
        ((full + spare + open) * size_of::<Event>()) as u64
    }

    /// Puts a full list away and gives an empty one in its place.
    #[cold]
    #[inline(never)]
    fn put_away(&self, list: &mut Vec<Event>) {
        let sequence = self.sequence();
        let mut store = self.store.lock();
        let empty = store.spares.pop().unwrap_or_else(|| Vec::with_capacity(LIST));
        let full = core::mem::replace(list, empty);
        if let Some(last) = full.last() {
            store.full.push_back(Full { last: last.sequence, events: Arc::new(full) });
            store.trim(sequence);
        }
        let least = store.readers.iter().map(|reader| reader.most).min();
        if least.is_some_and(|least| sequence - store.told_at > least / 4) {
            store.told_at = sequence;
            store.readers.iter().for_each(|reader| reader.signal.nudge());
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
            let Some(full) = self.full.pop_front() else { return };
            // A reader may have it still.
            if let Ok(mut events) = Arc::try_unwrap(full.events)
                && self.spares.len() < SPARES
            {
                events.clear();
                self.spares.push(events);
            }
        }
    }
}

/// One list, in the hands of the shard or core that notes events there.
#[derive(Debug)]
pub(crate) struct Noter {
    lists: Arc<Lists>,
    at: usize,
}

impl Noter {
    /// The list of that number.
    pub(crate) fn new(lists: &Arc<Lists>, at: usize) -> Self {
        Self { lists: Arc::clone(lists), at }
    }

    /// Whether anybody keeps events.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.lists.history.is_on()
    }

    /// Notes an event, if anybody wants it.
    #[inline]
    pub(crate) fn note(&self, said: Said) {
        if self.is_on() {
            self.note_now(said);
        }
    }

    /// The same for a caller that has looked whether anybody keeps events.
    #[inline]
    pub(crate) fn note_now(&self, said: Said) {
        self.lists.note(self.at, self.lists.device, said);
    }

    /// The same for another device than that of the lists.
    pub(crate) fn note_for(&self, device: DeviceId, said: Said) {
        self.lists.note(self.at, device, said);
    }

    /// Whether anybody keeps uses on further streams and waits of the program.
    pub(crate) fn wants_uses(&self) -> bool {
        self.lists.history.wants(USES)
    }

    /// Takes a reading of the driver's clock for the next events.
    pub(crate) fn note_time(&self, now: u64) {
        if self.is_on() {
            self.lists.history.note_time(now);
        }
    }
}

impl Lists {
    /// The lists of a device with so many shards, known to the history from now on.
    pub(crate) fn new(history: &Arc<History>, device: DeviceId, shards: usize) -> Arc<Self> {
        let lists = (0..=shards).map(|_| List::default()).collect();
        let lists = Arc::new(Self { device, lists, history: Arc::clone(history) });
        history.devices.lock().push(Arc::clone(&lists));
        lists
    }

    /// The list of the core.
    #[inline]
    pub(crate) fn of_core(&self) -> usize {
        self.lists.len() - 1
    }

    #[inline]
    fn note(&self, list: usize, device: DeviceId, said: Said) {
        let history = &*self.history;
        let Some(list) = self.lists.get(list) else { return };
        let mut list = list.0.lock();
        // Also for those who have looked before: under the lock nothing comes after the end.
        if !history.is_on() {
            return;
        }
        if list.len() == list.capacity() {
            history.put_away(&mut list);
        }
        let sequence = history.counters.sequence.fetch_add(1, Relaxed) + 1;
        let Said { action, address, size, requested, stream, pool, tag } = said;
        list.push(Event {
            sequence,
            time: history.counters.time.load(Relaxed),
            action,
            device,
            address,
            size,
            requested,
            stream,
            pool,
            tag,
            context: current_context(),
        });
    }
}
