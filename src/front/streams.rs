//! The streams the front knows: by handle, and by column where blocks are recorded on them.
//!
//! Everything here is changed under the device's lock. Frees read the open epochs under the flag of a
//! shard; whoever opens another epoch passes through those flags before it records the event that closes
//! the old one, so that a free that still saw the old epoch has happened before the event.

use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use crate::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::uses::{COLUMNS, Mask};
use crate::core::stream::StreamId;
use crate::driver::Stream;
use crate::sync;

/// Places for streams; those beyond go to the core each time.
pub(super) const PLACES: usize = if sync::SMALLEST { 4 } else { 4096 };
/// Places looked at for a stream.
const PROBES: usize = if sync::SMALLEST { 2 } else { 8 };
/// What is in a place without a stream: the default one's, which is looked for in place 0 alone. So every other handle is
/// told from it.
const NO_STREAM: u64 = 1;
/// No stream has the column, or the place, where no block refers to a stream that had it.
const NOBODY: StreamId = StreamId::MAX;

/// A stream that the front knows.
#[derive(Debug)]
struct Place {
    /// The raw handle plus one, or [`NO_STREAM`].
    handle: AtomicU64,
    /// The stream's open epoch, or zero when nothing of it may rest.
    epoch: AtomicU32,
    /// Its column plus one, if it has one.
    column: AtomicU8,
}

/// A stream that blocks of others are recorded on. A line of the cache each: what ends on one is no matter of the others.
#[derive(Debug)]
#[repr(align(64))]
struct Column {
    /// The number the core knows it by, or [`NOBODY`].
    stream: AtomicU32,
    /// A [`Use`] in the stream's open epoch, or zero when the core has to take back what it used.
    open: AtomicU64,
    /// Every epoch up to this one is over.
    completed: AtomicU32,
}

/// An epoch of a column: shifted left by 8, with the column plus one below. Zero stands for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use(pub(super) u64);

/// A number that rises whenever more is known to be over. A line of the cache of its own, for the sake of those who read what
/// would be beside it.
#[derive(Debug)]
#[repr(align(64))]
struct Known(AtomicU32);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Streams {
    places: Box<[Place; PLACES]>,
    /// The numbers the core knows them by.
    ids: Box<[AtomicU32; PLACES]>,
    columns: [Column; COLUMNS],
    known: Known,
    /// Whether freed blocks may rest at all.
    enabled: AtomicBool,
}

#[inline]
fn start_of(stream: Stream) -> usize {
    (stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize % PLACES
}

impl Use {
    fn new(column: usize, epoch: u32) -> Self {
        Self(u64::from(epoch) << 8 | (column as u64 + 1))
    }

    #[inline]
    pub(super) fn column(self) -> Option<usize> {
        ((self.0 & 0xFF) as usize).checked_sub(1)
    }

    #[inline]
    fn epoch(self) -> u32 {
        (self.0 >> 8) as u32
    }
}

impl Streams {
    /// Knows the default stream, as number 0 with epoch 1, in place 0.
    pub(super) fn new(enabled: bool) -> Self {
        let column = || Column {
            stream: AtomicU32::new(NOBODY),
            open: AtomicU64::new(0),
            completed: AtomicU32::new(0),
        };
        let streams = Self {
            places: super::map::boxed(|_| Place {
                handle: AtomicU64::new(NO_STREAM),
                epoch: AtomicU32::new(0),
                column: AtomicU8::new(0),
            }),
            ids: super::map::boxed(|at| AtomicU32::new(if at == 0 { 0 } else { NOBODY })),
            columns: core::array::from_fn(|_| column()),
            known: Known(AtomicU32::new(1)),
            enabled: AtomicBool::new(enabled),
        };
        streams.places[0].epoch.store(u32::from(enabled), Relaxed);
        streams
    }

    pub(super) fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    /// The place of a stream.
    #[inline]
    pub(super) fn place_of(&self, stream: Stream) -> Option<u16> {
        if stream.0 == 0 {
            return Some(0);
        }
        let (at, name) = (start_of(stream), stream.0.wrapping_add(1));
        if self.places[at].handle.load(Acquire) == name {
            return Some(at as u16);
        }
        self.probe(at, name)
    }

    /// The place of a stream, and its column plus one, or zero where it has none.
    #[inline]
    pub(super) fn place_and_column(&self, stream: Stream) -> Option<(u16, u8)> {
        let (at, name) = (start_of(stream), stream.0.wrapping_add(1));
        let first = &self.places[at];
        if first.handle.load(Acquire) == name {
            return Some((at as u16, first.column.load(Acquire)));
        }
        let place = self.probe(at, name)?;
        Some((place, self.places[place as usize].column.load(Acquire)))
    }

    /// Looks for a stream that is not where it should be.
    #[inline(never)]
    fn probe(&self, start: usize, name: u64) -> Option<u16> {
        let places = (1..PROBES).map(|step| (start + step) & (PLACES - 1));
        places.into_iter().find(|&at| self.places[at].handle.load(Acquire) == name).map(|at| at as u16)
    }

    /// The stream of a place; the default one where it is gone.
    pub(super) fn handle(&self, place: u16) -> Stream {
        let name = self.places.get(place as usize).map_or(NO_STREAM, |place| place.handle.load(Relaxed));
        Stream(name.wrapping_sub(1))
    }

    /// The number the core knows the stream of a place by.
    #[inline]
    pub(super) fn id(&self, place: u16) -> StreamId {
        self.ids[place as usize].load(Relaxed)
    }

    /// The open epoch of the stream of a place; zero when nothing of it may rest, or there is no such place.
    #[inline]
    pub(super) fn epoch(&self, place: u16) -> u32 {
        self.places.get(place as usize).map_or(0, |place| place.epoch.load(Relaxed))
    }

    /// A place for a new stream: among those where it would be looked for, one whose shard has fewest
    /// `inhabitants`.
    pub(super) fn vacancy(&self, stream: Stream, inhabitants: impl Fn(u16) -> u32) -> Option<u16> {
        let places = (0..PROBES).map(|step| (start_of(stream) + step) % PLACES);
        let free = places.filter(|&at| self.ids[at].load(Relaxed) == NOBODY);
        free.map(|at| at as u16).min_by_key(|&at| inhabitants(at))
    }

    /// Gives a place to a stream. Under the flag of its shard.
    pub(super) fn settle(&self, place: u16, stream: Stream, id: StreamId, epoch: u32) {
        self.ids[place as usize].store(id, Relaxed);
        let place = &self.places[place as usize];
        place.epoch.store(self.open_epoch(epoch), Relaxed);
        place.column.store(0, Relaxed);
        place.handle.store(stream.0.wrapping_add(1), Release);
    }

    /// Makes the stream of a place unknown. Under the flag of its shard.
    pub(super) fn dismiss(&self, place: u16) {
        let place = &self.places[place as usize];
        place.handle.store(NO_STREAM, Relaxed);
        place.epoch.store(0, Relaxed);
        place.column.store(0, Relaxed);
    }

    /// Lets another stream have the place of a dismissed one, to which no block refers any more.
    pub(super) fn vacate(&self, place: u16) {
        self.ids[place as usize].store(NOBODY, Relaxed);
    }

    /// Tells frees of the stream which epoch they belong to from now on. Under the flag of its shard.
    pub(super) fn set_epoch(&self, place: u16, epoch: u32) {
        let is_default = place == 0;
        let place = &self.places[place as usize];
        if is_default || place.handle.load(Relaxed) != NO_STREAM {
            place.epoch.store(self.open_epoch(epoch), Relaxed);
        }
    }

    fn open_epoch(&self, epoch: u32) -> u32 {
        if self.is_enabled() { epoch } else { 0 }
    }

    /// The column of the stream of a place.
    #[inline]
    pub(super) fn column(&self, place: u16) -> Option<usize> {
        usize::from(self.places[place as usize].column.load(Acquire)).checked_sub(1)
    }

    /// A column that nobody has.
    pub(super) fn free_column(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.stream.load(Relaxed) == NOBODY)
    }

    /// The streams that have columns.
    pub(super) fn attached(&self) -> impl Iterator<Item = (usize, StreamId)> {
        let ids = self.columns.iter().map(|column| column.stream.load(Relaxed));
        ids.enumerate().filter(|&(_, id)| id != NOBODY)
    }

    /// Gives a free column to the stream of a place.
    pub(super) fn attach(&self, column: usize, place: u16, id: StreamId, open: u32, completed: u32) {
        let state = &self.columns[column];
        state.completed.store(completed, Relaxed);
        self.set_column(column, open);
        state.stream.store(id, Relaxed);
        self.places[place as usize].column.store(column as u8 + 1, Release);
    }

    /// Takes a column away from a stream that is gone, once nothing refers to it.
    pub(super) fn detach(&self, column: usize) {
        self.columns[column].stream.store(NOBODY, Relaxed);
        self.columns[column].open.store(0, Relaxed);
    }

    /// Tells frees which epoch of the column's stream they belong to from now on; zero sends them to the
    /// core. The flags of all shards are to be passed through afterwards.
    pub(super) fn set_column(&self, column: usize, open: u32) {
        let one = if open == 0 { Use::default() } else { Use::new(column, open) };
        self.columns[column].open.store(one.0, Relaxed);
    }

    /// Tells up to which epoch all of the column's stream is over.
    pub(super) fn complete(&self, column: usize, completed: u32) {
        let state = &self.columns[column];
        if state.completed.load(Relaxed) != completed {
            state.completed.store(completed, Release);
            self.known.0.store(self.known.0.load(Relaxed).wrapping_add(1), Release);
        }
    }

    /// A number that rises whenever more is known to be over.
    pub(super) fn known(&self) -> u32 {
        self.known.0.load(Acquire)
    }

    /// What is to be over before a block that was used in these columns is free: at most two epochs that
    /// are open now. None where the core has to know.
    pub(super) fn uses(&self, mask: Mask) -> Option<[Use; 2]> {
        let more = mask & mask.wrapping_sub(1);
        if mask == 0 || more & more.wrapping_sub(1) != 0 {
            return None;
        }
        let second = if more == 0 { Use::default() } else { self.open(more.trailing_zeros() as usize)? };
        Some([self.open(mask.trailing_zeros() as usize)?, second])
    }

    /// A use of now in a column, unless the core has to know.
    #[inline]
    pub(super) fn open(&self, column: usize) -> Option<Use> {
        let open = self.columns.get(column)?.open.load(Relaxed);
        (open != 0).then_some(Use(open))
    }

    /// Whether that is over.
    #[inline]
    pub(super) fn is_over(&self, one: Use) -> bool {
        let Some(column) = one.column() else { return true };
        self.columns.get(column).is_some_and(|column| one.epoch() <= column.completed.load(Acquire))
    }

    /// The stream and epoch behind a use.
    pub(super) fn resolve(&self, one: Use) -> Option<(StreamId, u32)> {
        Some((self.stream(one.column()?), one.epoch()))
    }

    /// The stream of a column that is in use.
    pub(super) fn stream(&self, column: usize) -> StreamId {
        self.columns[column].stream.load(Relaxed)
    }
}
