//! Steps: what a request needs of the driver, and what came of one.
//!
//! A step is made under the lock, with everything it touches marked [`Busy`](super::block::State::Busy) or taken
//! out of the shared lists. [`perform`](super::perform::perform) calls the driver. The outcome says exactly what
//! came about, so that the commit can keep what is good and undo the rest.

use smallvec::SmallVec;

use super::block::BlockId;
use super::export::Names;
use super::peers::Grants;
use super::segment::Class;
use super::source::Source;
use super::stream::StreamId;
use crate::driver::{DriverError, Event, PhysicalHandle, Stream};
use crate::sync::thread::ThreadId;

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Request {
    /// Bytes the caller asked for.
    pub(crate) requested: u64,
    /// Length of the block.
    pub(crate) len: u64,
    /// Multiple the address must be of; a power of two, at least 512.
    pub(crate) align: u64,
    /// The reserved class; the classic one follows from it.
    pub(crate) class: Class,
    /// The growing segment the request extends; nothing else will do for it.
    pub(crate) extends: Option<u32>,
    /// For whom.
    pub(crate) stream: StreamId,
    /// The raw handle behind `stream`.
    pub(crate) handle: Stream,
    /// How far the ladder has been climbed.
    pub(crate) rung: Rung,
    /// Whether finished epochs were asked for since the last event was recorded.
    pub(crate) polled: bool,
    /// Whether all open epochs were closed for this request.
    pub(crate) closed: bool,
    /// Whether the request's stream was made to wait for others on the device.
    pub(crate) joined: bool,
    /// Whether all streams were asked if they are idle.
    pub(crate) looked: bool,
    /// Whether an event was recorded for those that come after it.
    pub(crate) marked: bool,
    /// Whether what it created was given back before it fails.
    pub(crate) ended: bool,
    /// Bytes that were given back for it.
    pub(crate) returned: u64,
    /// Bytes of physical memory it could not get so far.
    pub(crate) lack: u64,
    /// Whether only a soft limit is in its way.
    pub(crate) soft: bool,
    /// Whether framework callbacks may be called for it.
    pub(crate) asks: bool,
    /// The last callback called, so that each is called once.
    pub(crate) asked: u64,
    /// The last one that there was when the first was called.
    pub(crate) asked_until: Option<u64>,
    /// Whether a callback was left out because another thread was in it.
    pub(crate) left_out: bool,
    /// Plans made up to this one are waited for before it fails; none before it came that far.
    pub(crate) until: Option<u64>,
    /// Whether all of them are over.
    pub(crate) awaited: bool,
    /// The driver, or the source of its pool, had no memory left.
    pub(crate) device_full: bool,
    /// It was the source, which did not say why.
    pub(crate) source_dry: bool,
    /// The driver refused to take memory back: no more is offered, and this is the error if that is what
    /// the request lacks.
    pub(crate) refusal: Option<DriverError>,
    /// Whether the driver was asked once more after it had none.
    pub(crate) asked_again: bool,
    /// It is to take a place where it leaves most idle chunks, because at another it could not have enough.
    pub(crate) thrifty: bool,
    /// A fixed block for it is to be no larger than it needs: there was no room for the usual one.
    pub(crate) exact: bool,
    /// No chunk may be moved: the driver refused to unmap one.
    pub(crate) no_moves: bool,
    /// The device had no wide chunk, or not enough besides: only those of one granule are made.
    pub(crate) no_wide: bool,
    /// No new reservation could be made.
    pub(crate) no_space: bool,
    /// The last one was refused for lack of address space.
    pub(crate) crowded: bool,
    /// What a source has just given overlaps memory of another device.
    pub(crate) overlaps: bool,
    /// Whether memory had to be given back or waited for.
    pub(crate) retried: bool,
    /// The device was reset while the driver was called for it.
    pub(crate) reset: bool,
    /// Streams that were not waited for, because they are being captured.
    pub(crate) spared: SmallVec<[StreamId; 2]>,
    /// The open epoch of each stream when it first had to wait.
    pub(crate) horizon: Option<Vec<u32>>,
    /// Whether the front was emptied once more before it fails.
    pub(crate) emptied: bool,
    /// A wait for the device was refused because a graph is being captured.
    pub(crate) captured: bool,
    /// The highest live bytes there will be once it is served.
    pub(crate) peak: u64,
    /// Bytes that may be held beyond the headroom for it.
    pub(crate) room: u64,
    /// The error to end with, once everything is put back.
    pub(crate) failure: Option<crate::Error>,
    /// The block, once there is one.
    pub(crate) ready: Option<BlockId>,
}

impl Request {
    /// Whether idle memory of a device with `total` bytes may be given back for it: not once it has had as much given
    /// back as there is. Others take what comes free then, and may do so for ever.
    pub(crate) fn may_give_back(&self, total: u64) -> bool {
        self.refusal.is_none() && self.returned < total
    }

    /// Whether to ask a device that was full once more: others may have given memory back since.
    pub(crate) fn retries_device(&mut self) -> bool {
        let retries = self.device_full && !core::mem::replace(&mut self.asked_again, true);
        self.device_full &= !retries;
        retries
    }

    /// Others have changed something: the ladder is climbed again from where memory is put behind addresses.
    pub(crate) fn climb_again(&mut self) {
        self.rung = self.rung.min(Rung::Map);
        self.polled = false;
        self.closed = false;
        self.joined = false;
        self.device_full = false;
        self.asked_again = false;
        self.horizon = None;
    }
}

/// The rungs of the ladder before out of memory, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rung {
    /// Free blocks.
    Search,
    /// The front cache's blocks as well.
    Flushed,
    /// Everything that is known to be done, and new memory.
    Map,
    /// Idle memory was given back.
    Released,
    /// Framework callbacks were called.
    Asked,
    /// The stream may wait for others on the device, although memory is short; the soft limit does not count any more.
    Joined,
    /// Single epochs were waited for.
    Waited,
    /// The whole device was waited for.
    Synchronized,
}

/// A run of chunks to be moved away from where they are.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The busy block that covers exactly the run.
    pub(crate) block: BlockId,
    /// Its first address.
    pub(crate) addr: u64,
    /// Granules of each chunk: 1, or those of a wide one.
    pub(crate) span: u32,
    /// The chunks, in address order.
    pub(crate) handles: SmallVec<[PhysicalHandle; 4]>,
}

/// A chunk without an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    /// Its handle.
    pub(crate) handle: PhysicalHandle,
    /// Whether it was never mapped, so that access for its owner is still to be set.
    pub(crate) fresh: bool,
    /// Its granules: 1, or those of a wide one.
    pub(crate) span: u32,
}

/// Granules of some chunks.
pub(crate) fn granules_of(spares: &[Spare]) -> usize {
    spares.iter().map(|spare| spare.span as usize).sum()
}

/// How to put physical memory behind one range.
#[derive(Debug)]
pub(crate) struct Remap {
    /// The busy block that covers the range and all its granules.
    pub(crate) target: BlockId,
    /// The range for the caller, inside the target.
    pub(crate) start: u64,
    /// Bytes of it.
    pub(crate) len: u64,
    /// Stream the target's free pieces belong to afterwards, and the epoch they carry.
    pub(crate) home: StreamId,
    /// See `home`.
    pub(crate) epoch: u32,
    /// Granules of the target that have no chunk and are to get one of their own.
    pub(crate) missing: Vec<u64>,
    /// Where wide chunks are to go, all of them new.
    pub(crate) wide: Vec<u64>,
    /// Chunks to take from elsewhere.
    pub(crate) runs: Vec<Run>,
    /// Chunks that have no address at the moment.
    pub(crate) handles: Vec<Spare>,
    /// Chunks to ask the driver for.
    pub(crate) create: u32,
    /// Who gets access to what is mapped.
    pub(crate) grants: Grants,
}

/// With what an epoch is to be closed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Means {
    /// An event that is not recorded at the moment.
    Pooled(Event),
    /// An event that is still to be created.
    New,
    /// The event that closed it before, which streams can be made to wait for.
    UnderWay(Event),
    /// Nothing: as many events exist as the allocator may have.
    None,
}

/// Events under way and the epochs they close, by stream, oldest first.
pub(crate) type Closing = SmallVec<[(StreamId, Event, u32); 4]>;
/// Streams whose open epoch is to be closed: number, handle, the epoch, and what with.
pub(crate) type ToClose = SmallVec<[(StreamId, Stream, u32, Means); 2]>;
/// What came of each.
pub(crate) type Closed = SmallVec<[(StreamId, u32, Recorded); 2]>;

/// What to call next.
#[derive(Debug)]
pub(crate) enum Step {
    /// The block is there.
    Ready(BlockId),
    /// The front cache's blocks must be brought back (no driver call; done under the lock).
    Flush,
    /// Ask which events have completed.
    Query(Closing),
    /// Record an event on each stream.
    Record(ToClose),
    /// The same, and ask at once whether the events have completed.
    RecordAndAsk(ToClose),
    /// Reserve address space for a class: the wish and the least that helps, bytes.
    Reserve(Class, u64, u64),
    /// Let a stream wait, on the device, for others: each gets an event that closes an epoch.
    Join(StreamId, Stream, ToClose),
    /// Put chunks behind a range.
    Remap(Box<Remap>),
    /// Take a classic segment, from the driver or from the source of its pool.
    Classic(Class, u64, Stream, Option<Source>),
    /// Unmap runs and free their chunks, and free these handles and classic segments.
    GiveBack(GiveBack),
    /// Let another thread finish moving chunks out of the way.
    Pause,
    /// Ask a framework callback to free so many bytes (no driver call).
    Ask(u64),
    /// Let other threads finish the plans that hold memory (no driver call).
    Await,
    /// Wait for one event.
    WaitEvent(StreamId, Event, u32),
    /// Wait for one stream; the epoch that is over then.
    WaitStream(StreamId, Stream, u32),
    /// Wait for everything; the epochs that are over then.
    WaitDevice(Vec<(StreamId, u32)>),
    /// The request failed.
    Fail(crate::Error),
}

/// A classic segment to be given back.
#[derive(Debug)]
pub(crate) struct Returned {
    /// The busy block that is all of it.
    pub(crate) block: BlockId,
    /// Its address.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) bytes: u64,
    /// Where it came from, if not from the driver.
    pub(crate) source: Option<Source>,
}

/// Memory to be given back to the device.
#[derive(Debug, Default)]
pub(crate) struct GiveBack {
    /// Chunks to unmap and free.
    pub(crate) runs: Vec<Run>,
    /// Chunks to free.
    pub(crate) handles: Vec<Spare>,
    /// How many granules `handles` held at first.
    pub(crate) freed_handles: usize,
    /// Classic segments to free.
    pub(crate) classic: Vec<Returned>,
    /// Reservations with nothing in them: the busy block and the address.
    pub(crate) reservations: Vec<(BlockId, u64)>,
    /// Names of these chunks for other processes, taken while the driver is called.
    pub(crate) names: Names,
}

impl Step {
    /// Whether others may find afterwards what they do not find while the step is performed: memory that is on its
    /// way, or an event that is being recorded and can then be waited for.
    pub(crate) fn may_help_others(&self) -> bool {
        let carries = matches!(self, Self::Remap(_) | Self::Classic(..) | Self::GiveBack(_));
        carries || self.records_events()
    }

    /// Whether events are recorded on streams: that of a capture that begins meanwhile must not be among them.
    pub(crate) fn records_events(&self) -> bool {
        matches!(self, Self::Record(_) | Self::RecordAndAsk(_) | Self::Join(..))
    }
}

impl GiveBack {
    /// Sets the chunks without an address that are to be freed.
    pub(crate) fn set_handles(&mut self, handles: Vec<Spare>) {
        self.freed_handles = granules_of(&handles);
        self.handles = handles;
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.handles.is_empty()
            && self.classic.is_empty()
            && self.reservations.is_empty()
    }
}

/// A plan that is being performed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    number: u64,
    /// Who performs it.
    by: ThreadId,
    /// Whether it records events.
    records: bool,
}

/// Plans that hold memory and are being performed, so that nobody fails for what is on its way.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    /// The number of the last plan made.
    last: u64,
    /// The plans under way, in the order they were made.
    under_way: SmallVec<[Plan; 8]>,
    /// Threads that wait for one to end.
    pub(crate) waiting: u32,
}

impl Transit {
    /// A plan of a thread begins, which `records` events or not; its number.
    pub(crate) fn begin(&mut self, by: ThreadId, records: bool) -> u64 {
        self.last += 1;
        self.under_way.push(Plan { number: self.last, by, records });
        self.last
    }

    /// The plan is over.
    pub(crate) fn end(&mut self, plan: u64) {
        self.under_way.retain(|known| known.number != plan);
    }

    /// The number of the last plan made so far.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// How many of the plans made up to that one are under way, without those of a thread, which it cannot wait for: a
    /// function that it calls for one of them has called the allocator.
    pub(crate) fn count_until(&self, until: u64, without: ThreadId) -> usize {
        self.under_way.iter().filter(|plan| plan.number <= until && plan.by != without).count()
    }

    /// Whether other threads than that one perform plans made up to `until` that record events.
    pub(crate) fn is_recording(&self, until: u64, without: ThreadId) -> bool {
        let records = |plan: &Plan| plan.records && plan.number <= until && plan.by != without;
        self.under_way.iter().any(records)
    }

    /// Whether any plan under way records events.
    pub(crate) fn is_any_recording(&self) -> bool {
        self.under_way.iter().any(|plan| plan.records)
    }

    /// Whether any plan is under way.
    pub(crate) fn is_any_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }
}

/// What came of a [`Remap`].
#[derive(Debug, Default)]
pub(crate) struct Remapped {
    /// Chunks created, whatever became of them.
    pub(crate) created: u32,
    /// Granules of the target that got a chunk and have it now.
    pub(crate) mapped: Vec<(u64, PhysicalHandle)>,
    /// The same for wide chunks.
    pub(crate) wide: Vec<(u64, PhysicalHandle)>,
    /// Wide chunks without an address that the driver does not take back.
    pub(crate) stuck: Vec<Spare>,
    /// Whether the driver had no wide chunk.
    pub(crate) no_wide: bool,
    /// Addresses whose chunk was taken away.
    pub(crate) unmapped: Vec<u64>,
    /// Chunks left without an address.
    pub(crate) spare: Vec<Spare>,
    /// What failed, if anything, and in which phase.
    pub(crate) failure: Option<(Phase, DriverError)>,
    /// Whether the driver cannot set access at all.
    pub(crate) no_access: bool,
}

/// The part of a [`Remap`] that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A new chunk could not be had.
    Create,
    /// A chunk could not be taken from its old address.
    Unmap,
    /// A chunk could not be put at its new address, or access could not be set.
    Map,
}

/// What came of recording an event on a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recorded {
    /// The event closes the epoch.
    Done(Event),
    /// It does, and it has completed.
    Over(Event),
    /// The stream is being captured and must not be touched, or cannot be touched from where the call was made, or the
    /// device has no more events. With the event, if there is one.
    Captured(Option<Event>),
    /// The driver refused.
    Refused(Event),
    /// The driver does not know the stream: it was destroyed without a word. With the event, if there is one.
    Gone(Option<Event>),
    /// There was nothing to close the epoch with.
    Without,
    /// The epoch had been closed before.
    Before,
}

/// What came of giving memory back.
#[derive(Debug, Default)]
pub(crate) struct GivenBack {
    /// What was to be given back.
    pub(crate) what: GiveBack,
    /// Addresses that were unmapped.
    pub(crate) unmapped: Vec<u64>,
    /// Handles that were not freed.
    pub(crate) handles: Vec<Spare>,
    /// Blocks of segments that were kept.
    pub(crate) kept: SmallVec<[BlockId; 4]>,
    /// The first refusal.
    pub(crate) failure: Option<DriverError>,
}

/// What came of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// For [`Step::Query`]: the epochs that are over, each with its event; and the first refusal.
    Queried(Closing, Option<DriverError>),
    /// For [`Step::Record`] and [`Step::RecordAndAsk`].
    Recorded(Closed),
    /// For [`Step::Join`]: the stream that waits; and of each other one, whether it is waited for.
    Joined(StreamId, SmallVec<[(StreamId, u32, Recorded, bool); 2]>),
    /// For [`Step::Reserve`]: address and bytes.
    Reserved(Class, Result<(u64, u64), DriverError>),
    /// For [`Step::Remap`].
    Remapped(Box<Remap>, Box<Remapped>),
    /// For [`Step::Classic`]: the address, unless a source has none; or the error and, if memory was short, what
    /// the device had free.
    Classic(Class, u64, Result<Option<u64>, (DriverError, Option<u64>)>),
    /// For [`Step::GiveBack`].
    GivenBack(Box<GivenBack>),
    /// For [`Step::WaitEvent`].
    Waited(StreamId, Event, u32, Result<(), DriverError>),
    /// For [`Step::WaitStream`]; nothing when the stream is being captured and was left alone.
    WaitedStream(StreamId, u32, Option<Result<(), DriverError>>),
    /// For [`Step::WaitDevice`].
    Synchronized(Vec<(StreamId, u32)>, Result<(), DriverError>),
}
