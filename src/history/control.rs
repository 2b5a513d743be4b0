//! Who keeps events: the program, which starts and stops the history, and files that are written meanwhile.

use std::sync::Arc;

use super::event::Event;
use super::log::{Batch, EVENTS, History, Reading, STACKS, USES};
use super::worker::Signal;
use crate::sync::atomic::AtomicU64;

/// What a history keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryOptions {
    /// So many of the newest events are kept, of all devices together; older ones are dropped and counted. Most events
    /// take 24 bytes, 32 with a context, the longest 72.
    pub entries: u64,
    /// Whether [`StreamUse`](super::Action::StreamUse) and [`HostWait`](super::Action::HostWait) are kept too.
    pub uses: bool,
    /// Whether the stack is captured for allocations and frees of threads that have set no context. That takes
    /// microseconds for each; what the functions are called is found out when somebody asks.
    pub stacks: bool,
}

impl Default for HistoryOptions {
    /// 100 000 events, without uses and stacks.
    fn default() -> Self {
        Self { entries: 100_000, uses: false, stacks: false }
    }
}

/// Events, by number, and what is missing among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryBatch {
    /// The events.
    pub events: Vec<Event>,
    /// Events that happened in the same time and are no longer known.
    pub lost: u64,
}

/// How a history stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryStatus {
    /// Whether it was started and not stopped since.
    pub is_on: bool,
    /// How many events it keeps at most.
    pub entries: u64,
    /// The number of the last event; numbers go on when a history is stopped and started again.
    pub last: u64,
    /// Memory that events take at present, bytes, with what is kept for files being written. Without the 4 KiB that
    /// each shard and core that has noted an event has for its next ones, from then on.
    pub bytes: u64,
}

/// What the program keeps.
#[derive(Debug)]
struct Kept {
    options: HistoryOptions,
    /// The number of the last event before it began.
    before: u64,
    /// The number of the last event that was drained.
    drained: u64,
    /// The latest time that was drained.
    latest: u64,
}

/// A file that is written.
#[derive(Debug)]
struct Reader {
    id: u64,
    wanted: u32,
    reading: Reading,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Control {
    kept: Option<Kept>,
    readers: Vec<Reader>,
    next: u64,
}

impl Control {
    /// Lets the history note what is wanted.
    fn apply(&self, history: &History) {
        let mut wanted = self.readers.iter().fold(0, |all, reader| all | reader.wanted);
        let mut most = 0;
        if let Some(kept) = &self.kept {
            wanted |= EVENTS;
            wanted |= if kept.options.uses { USES } else { 0 };
            wanted |= if kept.options.stacks { STACKS } else { 0 };
            most = kept.options.entries;
        }
        let readers = self.readers.iter().map(|reader| reader.reading.clone()).collect();
        history.set_wanted(wanted, most, readers);
    }
}

impl History {
    /// Begins to keep events for the program; what was kept before goes on to be kept as far as it fits.
    pub(crate) fn start(&self, options: &HistoryOptions) {
        let mut control = self.control.lock();
        let last = self.sequence();
        let (before, drained, latest) =
            control.kept.as_ref().map_or((last, last, 0), |kept| (kept.before, kept.drained, kept.latest));
        control.kept = Some(Kept { options: options.clone(), before, drained, latest });
        control.apply(self);
    }

    /// Ends that; the events go.
    pub(crate) fn stop(&self) {
        let mut control = self.control.lock();
        control.kept = None;
        control.apply(self);
    }

    /// What the program keeps, by number; nothing while it keeps nothing.
    pub(crate) fn kept(&self) -> HistoryBatch {
        let Some((before, entries)) = self.bounds() else { return HistoryBatch::default() };
        let from = before.max(self.sequence().saturating_sub(entries));
        let mut batch = self.read(from);
        batch.keep_newest(entries);
        let since = batch.end.saturating_sub(before);
        HistoryBatch { lost: since - batch.events.len() as u64, events: batch.events }
    }

    /// What came since the last time.
    pub(crate) fn drain(&self) -> HistoryBatch {
        let mut control = self.control.lock();
        let Some(kept) = &mut control.kept else { return HistoryBatch::default() };
        let mut batch = self.read(kept.drained);
        batch.keep_newest(kept.options.entries);
        batch.go_on_from(&mut kept.latest);
        kept.drained = batch.end;
        HistoryBatch { events: batch.events, lost: batch.lost }
    }

    fn bounds(&self) -> Option<(u64, u64)> {
        self.control.lock().kept.as_ref().map(|kept| (kept.before, kept.options.entries))
    }

    /// How it stands.
    pub(crate) fn status(&self) -> HistoryStatus {
        let bounds = self.bounds();
        HistoryStatus {
            is_on: bounds.is_some(),
            entries: bounds.map_or(0, |(_, entries)| entries),
            last: self.sequence(),
            bytes: self.bytes(),
        }
    }

    /// Keeps events for a reader until it has read them, so many at most; its thread is told when many have come. Returns
    /// its number and the place for that of the last event it has read.
    pub(crate) fn add_reader(
        &self,
        wanted: u32,
        most: u64,
        signal: Option<Arc<Signal>>,
    ) -> (u64, Arc<AtomicU64>) {
        let mut control = self.control.lock();
        control.next += 1;
        let id = control.next;
        let read = Arc::new(AtomicU64::new(self.sequence()));
        let reading = Reading { read: Arc::clone(&read), most, signal };
        control.readers.push(Reader { id, wanted: wanted | EVENTS, reading });
        control.apply(self);
        (id, read)
    }

    /// Ends that.
    pub(super) fn remove_reader(&self, id: u64) {
        let mut control = self.control.lock();
        control.readers.retain(|reader| reader.id != id);
        control.apply(self);
    }
}

impl Batch {
    /// Leaves so many of the newest events.
    fn keep_newest(&mut self, most: u64) {
        let oldest = self.end.saturating_sub(most);
        let gone = self.events.partition_point(|event| event.sequence <= oldest);
        self.events.drain(..gone);
        self.lost += gone as u64;
    }
}
