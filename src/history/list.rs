//! A short list of events that one thread at a time fills, without a lock, and that others read meanwhile.
//!
//! Events are words: a head with the number, the action and what else there is, then the address, and size and
//! bytes asked for in one. Stream and time stand only where they differ from those of the event before, pool, names
//! and device where there are any, bytes asked for where they are far from the size. So most events take 24 bytes
//! of the 72 of an [`Event`].
//!
//! ```text
//! writer   state = busy ── number drawn ── words written ── state = so many words, not busy
//! reader   number read ── waits while busy ── words copied ── drops them if the list was emptied meanwhile
//! ```
//!
//! A number that the reader knows was drawn after the list became busy, so what it waits for has that event. A list is
//! emptied after its words went to the store, where a reader looks next.

use super::context::ContextId;
use super::event::{Action, Event};
use super::log::Said;
use crate::driver::{DeviceId, Stream};
use crate::sync::atomic::{AtomicU64, Ordering::*, fence};
use crate::sync::{self, OnceLock};

/// Words of a list.
pub(super) const WORDS: usize = if sync::SMALLEST { 16 } else { 512 };
/// Words of every event: head, address, size.
const LEAST: usize = 3;
/// Words of the longest event: with one for each flag.
const MOST: usize = LEAST + 6;

/// The number in a head begins above this; below are the action and the flags.
const NUMBER: u32 = 11;
/// Bits of the action.
const ACTION: u64 = (1 << 5) - 1;
/// What follows the first words, in this order.
const REQUESTED: u64 = 1 << 5;
const STREAM: u64 = 1 << 6;
const TIME: u64 = 1 << 7;
const POOL: u64 = 1 << 8;
const NAMES: u64 = 1 << 9;
const DEVICE: u64 = 1 << 10;

/// A size is above this in its word, and below is how many bytes fewer were asked for.
const SIZE: u32 = 24;

/// In the state of a list: somebody writes.
const BUSY: u64 = 1;
/// Above this is how many words there are.
const LEN: u32 = 1;
/// Above this is how often the list was emptied.
const TURN: u32 = 32;

/// See the module's documentation.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct List {
    state: AtomicU64,
    /// Which most events are about.
    pub(super) device: DeviceId,
    /// Of the last event, for the writer.
    stream: AtomicU64,
    time: AtomicU64,
    /// Made with the first event, and kept.
    words: OnceLock<Box<[AtomicU64]>>,
}

/// What belongs to an event beside what is said of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    pub(super) time: u64,
    pub(super) context: Option<ContextId>,
    pub(super) device: DeviceId,
}

impl List {
    /// An empty one.
    pub(super) fn new(device: DeviceId) -> Self {
        let (state, stream, time) = Default::default();
        Self { state, device, stream, time, words: OnceLock::new() }
    }

    /// Adds an event with the number that `draw` gives. True when there is no room for another one: then
    /// [`empty`](Self::empty) is to be called first. Only one thread at a time may call the two.
    #[inline(always)]
    pub(super) fn push(&self, said: &Said, around: Around, draw: impl FnOnce() -> u64) -> bool {
        let state = self.state.load(Relaxed);
        debug_assert_eq!(state & BUSY, 0, "two threads write to one list");
        let words = self.words.get_or_init(make_words);
        let at = len_of(state);
        let Some(place) = words.get(at..).and_then(<[AtomicU64]>::first_chunk::<MOST>) else { return true };
        self.state.store(state | BUSY, Relaxed);
        let number = draw();
        let mut head = number << NUMBER | said.action as u64;
        let mut len = LEAST;
        let is_same = said.stream.0 == self.stream.load(Relaxed) && around.time == self.time.load(Relaxed);
        let names = names(said, around);
        let is_plain = (said.pool | names | u64::from(around.device ^ self.device)) == 0;
        let less = said.size.wrapping_sub(said.requested);
        let is_near = (less >> SIZE) | (said.size >> (u64::BITS - SIZE)) == 0;
        if at != 0 && is_same && is_plain && is_near {
            place[2].store(said.size << SIZE | less, Relaxed);
        } else {
            let (flags, more) = self.push_more(place, said, around, (at == 0, is_near));
            head |= flags;
            len += more;
        }
        place[0].store(head, Relaxed);
        place[1].store(said.address, Relaxed);
        self.state.store(state + ((len as u64) << LEN), Release);
        at + len > WORDS - MOST
    }

    /// Writes the size, and what follows the first words; the flags of that, and how many words.
    #[inline(never)]
    fn push_more(
        &self,
        place: &[AtomicU64; MOST],
        said: &Said,
        around: Around,
        (is_first, is_near): (bool, bool),
    ) -> (u64, usize) {
        let size = if is_near { said.size << SIZE | (said.size - said.requested) } else { said.size };
        place[2].store(size, Relaxed);
        let names = names(said, around);
        let all = [
            (REQUESTED, !is_near, said.requested),
            (STREAM, said.stream.0 != self.stream.load(Relaxed) || is_first, said.stream.0),
            (TIME, around.time != self.time.load(Relaxed) || is_first, around.time),
            (POOL, said.pool != 0, said.pool),
            (NAMES, names != 0, names),
            (DEVICE, around.device != self.device, around.device.into()),
        ];
        self.stream.store(said.stream.0, Relaxed);
        self.time.store(around.time, Relaxed);
        let (mut flags, mut len) = (0, 0);
        for (flag, is_there, word) in all {
            if is_there {
                place[LEAST + len].store(word, Relaxed);
                flags |= flag;
                len += 1;
            }
        }
        (flags, len)
    }

    /// Empties the list after `keep` has got its words.
    pub(super) fn empty(&self, keep: impl FnOnce(&[AtomicU64])) {
        let state = self.state.load(Relaxed);
        let Some(words) = self.words.get() else { return };
        keep(words.get(..len_of(state)).unwrap_or_default());
        self.state.store(((state >> TURN) + 1) << TURN, Release);
        // Whoever sees a word of what is written from now on sees that the list was emptied before.
        fence(Release);
    }

    /// Adds the words that are there to `all`: with each event whose number was known before. Nothing when the list is
    /// emptied meanwhile; the store has them then. Waits while somebody is writing an event.
    pub(super) fn read(&self, all: &mut Vec<u64>) {
        let state = loop {
            let state = self.state.load(Acquire);
            if state & BUSY == 0 {
                break state;
            }
            sync::thread::yield_now();
        };
        let Some(words) = self.words.get() else { return };
        let before = all.len();
        let words = words.get(..len_of(state)).unwrap_or_default();
        all.extend(words.iter().map(|word| word.load(Relaxed)));
        fence(Acquire);
        if self.state.load(Relaxed) >> TURN != state >> TURN {
            all.truncate(before);
        }
    }
}

/// The words of a list in a state.
#[inline]
fn len_of(state: u64) -> usize {
    (state as u32 >> LEN) as usize
}

#[cold]
fn make_words() -> Box<[AtomicU64]> {
    (0..WORDS).map(|_| AtomicU64::new(0)).collect()
}

/// Tag and context as one word.
#[inline]
fn names(said: &Said, around: Around) -> u64 {
    let number = |name: Option<ContextId>| u64::from(name.map_or(0, ContextId::get));
    number(said.tag) << 32 | number(around.context)
}

/// The events in words that a list on that device has written.
pub(super) fn events(words: &[u64], device: DeviceId) -> impl Iterator<Item = Event> {
    let mut rest = words.iter().copied();
    let (mut stream, mut time) = (0, 0);
    core::iter::from_fn(move || {
        let (head, address, size) = (rest.next()?, rest.next()?, rest.next()?);
        let mut word = |flag, without| if head & flag != 0 { rest.next() } else { Some(without) };
        let near = (size >> SIZE).wrapping_sub(size & ((1 << SIZE) - 1));
        let requested = word(REQUESTED, near)?;
        stream = word(STREAM, stream)?;
        time = word(TIME, time)?;
        let pool = word(POOL, 0)?;
        let names = word(NAMES, 0)?;
        let device = word(DEVICE, u64::from(device))? as DeviceId;
        Some(Event {
            sequence: head >> NUMBER,
            time,
            action: *Action::ALL.get((head & ACTION) as usize)?,
            device,
            address,
            size: if head & REQUESTED != 0 { size } else { size >> SIZE },
            requested,
            stream: Stream(stream),
            pool,
            tag: ContextId::new((names >> 32) as u32),
            context: ContextId::new(names as u32),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event that is known by its number: each kind of word is there for some of them.
    fn event(number: u64) -> Event {
        let name = |every| ContextId::new(if number.is_multiple_of(every) { number as u32 } else { 0 });
        Event {
            sequence: number,
            time: number / 5,
            action: Action::ALL[number as usize % Action::ALL.len()],
            device: if number.is_multiple_of(7) { 3 } else { 1 },
            address: number << 9,
            size: [number << 9, u64::MAX - number, 1 << 40, number][number as usize % 4],
            requested: [number << 8, number, (1 << 40) - 1, number << 1][number as usize / 2 % 4],
            stream: Stream(number / 11),
            pool: if number.is_multiple_of(13) { number } else { 0 },
            tag: name(17),
            context: name(3),
        }
    }

    fn push(list: &List, event: Event, draw: impl FnOnce() -> u64) -> bool {
        let Event { time, action, device, address, size, requested, stream, pool, tag, context, .. } = event;
        let said = Said { action, address, size, requested, stream, pool, tag };
        list.push(&said, Around { time, context, device }, draw)
    }

    #[test]
    fn what_is_written_is_read_however_many_words_it_takes() {
        assert_eq!(Action::ALL.map(|action| action as usize), core::array::from_fn(|at| at));
        let list = List::new(1);
        let (mut kept, mut words) = (Vec::new(), Vec::new());
        for number in 1..=1000 {
            if push(&list, event(number), || number) {
                list.empty(|words| kept.push(words.iter().map(|word| word.load(Relaxed)).collect()));
            }
        }
        list.read(&mut words);
        assert!(
            kept.len() > 5 && kept.iter().all(|words: &Vec<u64>| words.len() > WORDS - MOST),
            "all are full"
        );
        kept.push(words);
        let read: Vec<Event> = kept.iter().flat_map(|words| events(words, 1)).collect();
        assert_eq!(read, (1..=1000).map(event).collect::<Vec<_>>());
        // Cut anywhere, there is nothing but whole events.
        for cut in 0..kept[0].len() {
            let whole = events(&kept[0][..cut], 1).collect::<Vec<_>>();
            assert_eq!(whole, read[..whole.len()]);
        }
    }

    /// A reader that knows a number finds its event in the list or in what was taken from it, and never a torn one.
    #[test]
    fn a_reader_misses_no_event_that_it_knows_of() {
        const EVENTS: u64 = if cfg!(miri) { 500 } else { 200_000 };
        let (list, last) = (List::new(1), AtomicU64::new(0));
        let store: crate::sync::plain::Mutex<Vec<Vec<u64>>> = crate::sync::plain::Mutex::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=EVENTS {
                    if push(&list, event(number), || last.fetch_add(1, Release) + 1) {
                        let copy = |words: &[AtomicU64]| {
                            store.lock().push(words.iter().map(|word| word.load(Relaxed)).collect());
                        };
                        list.empty(copy);
                    }
                }
            });
            let mut read = 0;
            while read < EVENTS {
                let end = last.load(Acquire);
                let mut words = Vec::new();
                list.read(&mut words);
                let full = store.lock().clone();
                let full = full.iter().flat_map(|words| events(words, 1));
                let mut known: Vec<Event> = full.chain(events(&words, 1)).collect();
                known.retain(|event| event.sequence > read && event.sequence <= end);
                known.sort_by_key(|event| event.sequence);
                known.dedup_by_key(|event| event.sequence);
                assert_eq!(known, (read + 1..=end).map(event).collect::<Vec<_>>());
                // What was read is wanted no more.
                store.lock().retain(|words| events(words, 1).any(|event| event.sequence > end));
                read = end;
            }
        });
    }
}
