//! Streams and their epochs.
//!
//! Each stream counts epochs. A block that is freed is stamped with the open epoch of its home
//! stream; an event recorded on the stream closes the epoch. When the event has completed, every
//! block stamped with that epoch or an earlier one is *quiescent*: no queued work can touch it.
//!
//! ```text
//! epoch      1            2            3 (open)
//! stream  ---f--f--f---E1----f--f---E2----f-->      f: free, E: event
//! E1 done: completed = 1; blocks freed before E1 belong to everybody
//! ```
//!
//! A free costs no driver call of its own; one event closes an epoch when somebody needs to know.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::age::Record;
use super::bins::Bins;
use super::block::BlockId;
use super::pool::DEFAULT;
use super::segment::{Class, KINDS};
use super::steps;
use crate::driver::{Event, Stream};

/// Index of a stream within its device.
pub(crate) type StreamId = u32;

/// What the allocator knows of one stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    /// The raw handle; a destroyed stream's handle is never given to the driver again.
    pub(crate) handle: Stream,
    /// False once the stream is known to be destroyed.
    pub(crate) alive: bool,
    /// True when an event could not be recorded on it: until that is tried again only a wait of the host can end its
    /// epochs.
    pub(crate) broken: bool,
    /// At which of the device's frees that is, and how many frees it took since the last refusal.
    again: (u64, u64),
    /// True when that could not wait for it either: only a device-wide wait can end its epochs.
    pub(crate) lost: bool,
    /// True when the driver did not know it: it was destroyed unseen. Another one may get its handle.
    pub(crate) gone: bool,
    /// The stream's place in the front cache, if it has one.
    pub(crate) slot: Option<u16>,
    /// The epoch that frees are stamped with now; starts at 1.
    pub(crate) open: u32,
    /// Every epoch up to this one is over.
    pub(crate) completed: u32,
    /// Frees and recorded uses stamped with the open epoch.
    pub(crate) stamped: u32,
    /// Bytes of the blocks behind `stamped`.
    pub(crate) stamped_bytes: u64,
    /// Recorded events not yet seen complete, oldest first, and the epoch each closes.
    pub(crate) closing: VecDeque<(Event, u32)>,
    /// Freed blocks of other homes that this stream used, by the epoch it must pass; also some that do not wait any more
    /// (`Core::waits` says which do).
    pub(crate) waiting: VecDeque<(u32, BlockId)>,
    /// Live and waiting blocks whose home this is.
    pub(crate) out: u32,
    /// Live blocks of other homes that are recorded on this stream.
    pub(crate) recorded: u32,
    /// Whether the front may know more such blocks.
    pub(crate) in_front: bool,
    /// Bytes of the free blocks of this home.
    pub(crate) free_bytes: u64,
    /// When its epochs were closed, by the device's count of frees.
    pub(crate) ages: Record,
    /// Streams that this one waits for on the device, and the epoch of theirs it is ordered behind.
    pub(crate) behind: SmallVec<[(StreamId, u32); 2]>,
    /// Free blocks of this home by class.
    pub(crate) bins: BinTable,
}

/// A set of streams, a bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamSet {
    words: Vec<u64>,
}

impl StreamSet {
    /// Makes room for the streams below a number, so that adding one allocates nothing.
    pub(crate) fn reach(&mut self, streams: usize) {
        self.words.resize(streams.div_ceil(64).max(self.words.len()), 0);
    }

    /// Adds a stream.
    #[inline]
    pub(crate) fn insert(&mut self, id: StreamId) {
        if let Some(word) = self.words.get_mut(id as usize / 64) {
            *word |= 1 << (id % 64);
        }
    }

    /// Takes a stream out.
    pub(crate) fn remove(&mut self, id: StreamId) {
        if let Some(word) = self.words.get_mut(id as usize / 64) {
            *word &= !(1 << (id % 64));
        }
    }

    /// Whether a stream is in it.
    pub(crate) fn contains(&self, id: StreamId) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 != 0)
    }

    /// Those that are in it, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = StreamId> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let rest = core::iter::successors((word != 0).then_some(word), |&left| {
                let left = left & (left - 1);
                (left != 0).then_some(left)
            });
            rest.map(move |left| at as StreamId * 64 + left.trailing_zeros())
        })
    }
}

/// The free index of a stream: bins by class, made when first used.
#[derive(Debug, Default)]
pub(crate) struct BinTable {
    /// Those of the default pool.
    usual: [Option<Box<Bins>>; KINDS],
    /// Those of other pools.
    others: BTreeMap<Class, Box<Bins>>,
}

impl BinTable {
    /// The bins of a class, if it ever had a free block.
    #[inline]
    pub(crate) fn get(&self, class: Class) -> Option<&Bins> {
        steps::step();
        if class.pool() == DEFAULT {
            return self.usual[class.kind()].as_deref();
        }
        self.others.get(&class).map(|bins| &**bins)
    }

    /// The bins of a class, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, class: Class) -> Option<&mut Bins> {
        if class.pool() == DEFAULT {
            return self.usual[class.kind()].as_deref_mut();
        }
        self.others.get_mut(&class).map(|bins| &mut **bins)
    }

    /// The bins of a class, made if need be.
    pub(super) fn get_or_make(&mut self, class: Class) -> &mut Bins {
        if class.pool() == DEFAULT {
            return self.usual[class.kind()].get_or_insert_default();
        }
        self.others.entry(class).or_default()
    }

    /// All bins.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Class, &Bins)> {
        let usual = self.usual.iter().zip(Class::all(DEFAULT));
        let usual = usual.filter_map(|(bins, class)| Some((class, bins.as_deref()?)));
        usual.chain(self.others.iter().map(|(&class, bins)| (class, &**bins)))
    }

    /// Forgets the bins, all empty, of a class whose pool is gone.
    pub(crate) fn forget(&mut self, class: Class) {
        let bins = self.others.remove(&class);
        debug_assert!(bins.is_none_or(|bins| bins.count() == 0));
    }
}

impl StreamState {
    /// A stream that has not been used yet.
    pub(crate) fn new(handle: Stream) -> Self {
        Self {
            handle,
            alive: true,
            broken: false,
            again: (0, 0),
            lost: false,
            gone: false,
            slot: None,
            open: 1,
            completed: 0,
            stamped: 0,
            stamped_bytes: 0,
            // Room for what is usual, so that closing epochs allocates nothing later.
            closing: VecDeque::with_capacity(8),
            waiting: VecDeque::new(),
            out: 0,
            recorded: 0,
            in_front: false,
            free_bytes: 0,
            ages: Record::default(),
            behind: SmallVec::new(),
            bins: BinTable::default(),
        }
    }

    /// Whether the stream has passed everything stamped with `epoch`.
    #[inline]
    pub(crate) fn passed(&self, epoch: u32) -> bool {
        steps::step();
        epoch <= self.completed
    }

    /// Whether the stream's next work comes after everything `other` did up to `epoch`.
    pub(crate) fn is_behind(&self, other: StreamId, epoch: u32) -> bool {
        self.behind.iter().any(|&(id, until)| id == other && epoch <= until)
    }

    /// Notes that the stream waits, on the device, for `other` up to `epoch`.
    pub(crate) fn set_behind(&mut self, other: StreamId, epoch: u32) {
        match self.behind.iter_mut().find(|(id, _)| *id == other) {
            Some((_, until)) => *until = epoch.max(*until),
            None => self.behind.push((other, epoch)),
        }
    }

    /// Whether frees are stamped with an epoch that no event closes yet.
    pub(crate) fn has_open_work(&self) -> bool {
        steps::step();
        self.stamped > 0
    }

    /// Opens the next epoch and returns the number of the one to be closed by an event.
    pub(crate) fn close_epoch(&mut self) -> u32 {
        let closing = self.open;
        self.open += 1;
        self.stamped = 0;
        self.stamped_bytes = 0;
        closing
    }

    /// Whether it was destroyed, as far as anybody knows: nothing is queued on it any more.
    pub(crate) fn is_over(&self) -> bool {
        !self.alive || self.gone
    }

    /// Whether an event may be recorded on it, when there were so many frees: the driver did not refuse the last one, or
    /// that is long ago.
    pub(crate) fn takes_events(&self, frees: u64) -> bool {
        self.alive && (!self.broken || frees >= self.again.0)
    }

    /// Whether the host can wait for it alone: otherwise only for the device.
    pub(crate) fn takes_waits(&self) -> bool {
        self.alive && !self.lost
    }

    /// Notes that the driver refused to record an event on it. Each further refusal doubles the time to the next try: a
    /// device may be short of events for a moment, and a stream may be gone for good.
    pub(crate) fn refused_event(&mut self, frees: u64) {
        let pause = (self.again.1 * 2).clamp(16, 1024);
        self.broken = true;
        self.again = (frees + pause, pause);
    }

    /// Notes that an event could be recorded on it, or a wait has ended all its epochs.
    pub(crate) fn took_event(&mut self) {
        (self.broken, self.lost, self.gone, self.again) = (false, false, false, (0, 0));
    }

    /// The epoch closed last got no event and no wait: the next one has to end it too.
    pub(crate) fn keep_open(&mut self) {
        self.stamped = self.stamped.max(1);
    }

    /// Notes an event that closes `epoch`. Two threads may have recorded events at the same time: the later one may be
    /// noted first.
    pub(crate) fn note_event(&mut self, event: Event, epoch: u32) {
        let at = self.closing.partition_point(|&(_, closed)| closed < epoch);
        self.closing.insert(at, (event, epoch));
    }

    /// Whether another thread is recording the event that will end `epoch`.
    pub(crate) fn is_being_closed(&self, epoch: u32) -> bool {
        epoch < self.open && !self.broken && self.closing.iter().all(|&(_, closed)| closed < epoch)
    }

    /// Whether nothing is known to be queued on it, and nothing waits to be ended.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_open_work() && self.closing.is_empty() && self.passed(self.open - 1)
    }

    /// Whether nothing refers to the stream any more.
    pub(crate) fn is_unused(&self) -> bool {
        steps::step();
        self.out == 0
            && self.recorded == 0
            && !self.in_front
            && self.closing.is_empty()
            && self.waiting.is_empty()
            && self.free_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_kept_in_the_order_of_their_epochs() {
        let mut state = StreamState::new(Stream(7));
        for epoch in [2, 4, 3, 1] {
            state.note_event(Event(u64::from(epoch)), epoch);
        }
        let kept: Vec<_> = state.closing.iter().map(|&(event, epoch)| (event.0, epoch)).collect();
        assert_eq!(kept, [(1, 1), (2, 2), (3, 3), (4, 4)]);
    }
}
