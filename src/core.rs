//! The core of the allocator: blocks, segments, streams and pools of one device as plain data.
//!
//! Nothing here calls a driver, reads a clock or touches memory of the device. A request that
//! needs the driver is answered with a [`Step`](plan::Step): what to call, made under the lock.
//! The caller performs it without the lock and brings the [`Outcome`](plan::Outcome) back, which is
//! committed under the lock; what failed is rolled back there.
//!
//! | file | role |
//! |---|---|
//! | `block` | blocks in a slab, linked in address order; lists through them |
//! | `bins` | the free index of one stream and class |
//! | `segment` | reservations with chunks, classic segments, classes |
//! | `pool`, `source` | pools: which segments belong together, and the rules of each; memory of theirs from elsewhere |
//! | `stream` | streams and their epochs |
//! | `tally` | statistics as plain counters |
//! | `export`, `peers` | blocks that other processes, chunks that other devices may use |
//! | `growing` | segments of growing buffers |
//! | `heap` | taking and giving back blocks: split, merge, stamp |
//! | `apart` | free neighbours of different homes, merged once both are quiescent |
//! | `wait` | blocks that other streams use |
//! | `ended` | epochs that are over, and what they free |
//! | `due` | which streams hold memory back that is to go, and waiting for them |
//! | `place` | where a request goes when chunks are missing, and which chunks move |
//! | `plan` | steps and outcomes |
//! | `perform` | performing a step on a driver |
//! | `ladder` | the order of steps until a request is served or refused |
//! | `churn` | whether moving has become a habit, so that growing is better |
//! | `ask` | what is done about a block that waits in the front |
//! | `commit` | outcomes back into the heap |
//! | `age` | which idle memory is how old |
//! | `trim` | giving idle memory back |
//! | `wide` | chunks of several granules |
//! | `report`, `remedies` | the error when nothing could serve a request, and what would have helped |
//! | `capture` | what a request may do while a graph is being captured |
//! | `checkpoint` | the live blocks of a pool, remembered and brought back |
//! | `sleep` | pools without memory that keep their addresses |
//! | `refill` | memory for those that wake |
//! | `reset` | forgetting a device that was reset |
//! | `check`, `snapshot` | the heap checker; the heap as plain structs |
//! | `steps` | for tests: how much is looked at |

pub(crate) mod age;
pub(crate) mod apart;
pub(crate) mod ask;
pub(crate) mod bins;
pub(crate) mod block;
pub(crate) mod capture;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod churn;
pub(crate) mod claim;
pub(crate) mod classic;
pub(crate) mod commit;
pub(crate) mod due;
pub(crate) mod ended;
pub(crate) mod epochs;
pub(crate) mod export;
pub(crate) mod growing;
pub(crate) mod haste;
pub(crate) mod heap;
pub(crate) mod ladder;
mod noting;
pub(crate) mod peers;
pub(crate) mod perform;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod pool;
pub(crate) mod refill;
pub(crate) mod remedies;
pub(crate) mod report;
pub(crate) mod reset;
pub(crate) mod segment;
pub(crate) mod sleep;
pub(crate) mod snapshot;
pub(crate) mod source;
pub(crate) mod steps;
pub(crate) mod stream;
pub(crate) mod tally;
pub(crate) mod trim;
pub(crate) mod wait;
pub(crate) mod wide;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use self::age::Record;
use self::block::{BlockId, Blocks, List, NONE, State};
use self::plan::{Spare, Transit};
use self::pool::Pools;
use self::segment::{Segment, Segments};
use self::stream::{StreamId, StreamSet, StreamState};
use self::tally::Tally;
use self::wide::Wide;
use crate::config::Config;
use crate::driver::{DeviceId, Event, PageKind, PhysicalHandle, Stream};
use crate::error::PointerKind;
use crate::history::log::Noter;

/// The rounding unit of block sizes and the least alignment, bytes.
pub(crate) const UNIT: u64 = 512;

/// The most bytes a request can be for: far beyond any device, and small enough that no later sum can overflow.
pub(crate) const MOST_ASKED: u64 = 1 << 40;

/// What is fixed for a device when its core is made.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// The device.
    pub(crate) device: DeviceId,
    /// Bytes of a chunk; a power of two.
    pub(crate) granule: u64,
    /// `granule` as a shift.
    pub(crate) shift: u32,
    /// The pages behind the chunks.
    pub(crate) pages: PageKind,
    /// Bytes of slack an engine may read past a block.
    pub(crate) pad: u64,
    /// Physical bytes of the device.
    pub(crate) total: u64,
    /// For host memory: the bytes of a page. Its home is the host itself, whose epochs are over at once.
    pub(crate) host_page: Option<u64>,
    /// Wide chunks, where the settings ask for them and the device has them.
    pub(crate) wide: Option<Wide>,
}

/// Everything the allocator knows of one device.
#[derive(Debug)]
pub(crate) struct Core {
    /// What is fixed.
    pub(crate) limits: Limits,
    /// The settings in force.
    pub(crate) config: Config,
    /// All blocks of all segments.
    pub(crate) blocks: Blocks,
    /// All segments.
    pub(crate) segments: Segments,
    /// Streams seen so far; index 0 is the default stream.
    pub(crate) streams: Vec<StreamState>,
    /// Streams that may have work queued which is to be asked or waited for: all but the [idle](StreamState::is_idle).
    pub(crate) active: StreamSet,
    /// Streams by raw handle; a destroyed stream is not in it.
    pub(crate) stream_ids: HashMap<Stream, StreamId>,
    /// Free blocks of reserved segments with a whole chunk inside, longest idle first.
    pub(crate) idle: List,
    /// Free blocks that are all of a classic segment, longest idle first.
    pub(crate) idle_segments: List,
    /// Those of them that the garbage collection threshold is about.
    pub(crate) collectable: usize,
    /// All pools, and the holes of their segments.
    pub(crate) pools: Pools,
    /// Blocks and chunks that other processes may use.
    pub(crate) exports: export::Exports,
    /// Other devices that may use this one's memory.
    pub(crate) peers: Arc<[DeviceId]>,
    /// Chunks that were mapped for fewer peers than there are now.
    pub(crate) ungranted: Vec<(u64, PhysicalHandle)>,
    /// Growing segments that no buffer owns any more.
    pub(crate) vacant: growing::Vacant,
    /// Streams, other than their home, that live blocks were recorded on.
    pub(crate) recorded: HashMap<BlockId, SmallVec<[StreamId; 4]>>,
    /// Blocks that wait, and of each other stream that used it the epoch it must pass.
    pub(crate) waits: HashMap<BlockId, SmallVec<[(StreamId, u32); 4]>>,
    /// Bytes of these.
    pub(crate) waiting_bytes: u64,
    /// Live blocks that are in no map while memory is put behind them.
    pub(crate) extended: SmallVec<[BlockId; 2]>,
    /// Starts of live blocks that the address map does not cover.
    pub(crate) starts: HashMap<u64, BlockId>,
    /// Chunks of one granule without an address.
    pub(crate) cached: Vec<Spare>,
    /// Wide chunks without an address, which the driver did not take back.
    pub(crate) stuck: Vec<Spare>,
    /// Wide chunks behind segments.
    pub(crate) wide_chunks: usize,
    /// Whether the device turned out to have no wide chunks.
    pub(crate) no_wide: bool,
    /// Events that are not recorded at the moment.
    pub(crate) events: Vec<Event>,
    /// Events that exist or are being created.
    pub(crate) made: usize,
    /// Statistics, without what the front cache counts.
    pub(crate) tally: Tally,
    /// The highest requested bytes ever live, front cache included.
    pub(crate) high_water: u64,
    /// Whether growing is better than moving.
    pub(crate) churn: churn::Churn,
    /// Frees at the time the device last had no chunk left.
    pub(crate) full_at: Option<u64>,
    /// Frees at the time a stream was last made to wait for others.
    pub(crate) joined_at: Option<u64>,
    /// Frees at the time a request last closed an epoch for those after it.
    pub(crate) marked_at: u64,
    /// Frees at the time the device was last found not to be prompt.
    pub(crate) slow_at: Option<u64>,
    /// Physical bytes of reserved segments and cached handles, plus what running plans create.
    pub(crate) physical: u64,
    /// Physical bytes of classic segments from the driver, and from sources that take them out of the device.
    pub(crate) classic: u64,
    /// Bytes of classic segments from the other sources of pools.
    pub(crate) elsewhere: u64,
    /// The most physical bytes this allocator may hold: the smaller of the two below.
    pub(crate) limit: Option<u64>,
    /// The limit as a share of the device.
    share_limit: Option<u64>,
    /// The limit as bytes.
    byte_limit: Option<u64>,
    /// Beyond so many physical bytes it gives back and moves what it can before it grows.
    pub(crate) soft: Option<u64>,
    /// Plans being performed.
    pub(crate) transit: Transit,
    /// How many events may be recorded: grows with frees, shrinks with events that are not prompt.
    pub(crate) tokens: i32,
    /// Frees since the last token was earned.
    pub(crate) earned: u32,
    /// Frees that tokens were earned for.
    pub(crate) paid: u64,
    /// Tokens to be earned until nobody is thought to need epochs any more.
    pub(crate) interest: u32,
    /// Tokens earned while nobody was.
    pub(crate) quiet: u32,
    /// Free blocks made so far.
    pub(crate) frees: u64,
    /// Frees that the front kept to itself, where idle memory goes back by itself: as many as were seen.
    pub(crate) beside: u64,
    /// How many more of them there may be.
    pub(crate) unseen: u64,
    /// How often the wait of blocks in the front was ended.
    pub(crate) waits_ended: u32,
    /// Whether waits are ended in quick succession, and what is done about it.
    pub(crate) haste: haste::Haste,
    /// Requests that are not to close epochs, because the device was not prompt lately.
    pub(crate) slow: u32,
    /// How many that will be the next time: doubled each time, forgotten once the device is prompt.
    pub(crate) patience: u32,
    /// Requests that are not to ask for the epochs that keep blocks in the front.
    pub(crate) ask_after: u32,
    /// As `patience`, for those.
    pub(crate) ask_patience: u32,
    /// Frees of all parties when the front was last flushed for a request.
    pub(super) flushed_at: u64,
    /// Flushes in a row, up to that one, that each came too soon after the one before.
    pub(super) flushed_soon: u32,
    /// So many requests are to grow within the headroom before the front is flushed again.
    pub(super) flush_after: u32,
    /// Whether it is time to close an epoch.
    pub(crate) due: bool,
    /// After how many frees the last move of chunks is long ago, so that large blocks may rest in the front.
    pub(crate) settled_at: u64,
    /// The stream with most bytes stamped with its open epoch, as far as is known.
    pub(crate) heaviest: StreamId,
    /// Free blocks that could not be merged with a free neighbour of another home.
    pub(crate) apart: apart::Apart,
    /// Segments that are gone and that can still be found by address: base, bytes, and whether the map covers them.
    pub(crate) dropped: Vec<(u64, u64, bool)>,
    /// Whether `set_access` is called for the owner of a new chunk.
    pub(crate) access: bool,
    /// Whether new segments can be reservations.
    pub(crate) reservable: bool,
    /// Whether it is time to look for memory past its decay time.
    pub(crate) decay_due: bool,
    /// At which free blocks of the front were last brought back because they may be idle, and how often that was done.
    pub(crate) brought_back: (u64, usize),
    /// The stream whose turn it is when memory decays.
    pub(crate) turn: usize,
    /// Where memory that decays is looked for next; see `Choice::from`.
    pub(crate) decay_from: [BlockId; 2],
    /// How many blocks had become free at which time, in nanoseconds.
    pub(crate) clock: Record,
    /// Dead streams whose numbers may be given to new ones.
    pub(crate) dead: Vec<StreamId>,
    /// Where among them one is looked for next.
    dead_from: usize,
    /// Frees when all blocks were last walked through for the front.
    walked_at: u64,
    /// Places in the front that no block refers to any more.
    pub(crate) vacated: Vec<u16>,
    /// Calls since the heap checker was switched on.
    pub(crate) watched: u64,
    /// Whether events are kept for the hook.
    pub(crate) logging: bool,
    /// Where what happens is noted for the history.
    pub(crate) noter: Noter,
    /// Events for the hook.
    pub(crate) log: Vec<crate::hook::MemoryEvent>,
    /// How often the device was reset: what was planned before a reset is not committed after it.
    pub(crate) generation: u64,
    /// Addresses of blocks that were live at a reset and have not been freed since.
    pub(crate) stale: HashSet<u64>,
    /// Blocks that came out at such an address and are kept back until it is free.
    pub(crate) shunned: HashMap<u64, BlockId>,
    /// Captures in progress: while there is one, memory is only taken, never moved or given back.
    pub(crate) capturing: u32,
    /// While caching is off: the serial of the pool that requests go to, and the number of the route to it.
    pub(crate) uncached: Option<(u64, u64)>,
    /// Requests in progress whose block is `Busy`, and plans being performed.
    pub(crate) busy: u32,
}

impl Core {
    /// An empty core.
    pub(crate) fn new(limits: Limits, config: Config, access: bool, noter: Noter) -> Self {
        let share_limit = limit_of(config.per_process_memory_fraction, limits.total);
        let (byte_limit, soft) = (config.memory_limit, config.soft_limit);
        let mut core = Self {
            limits,
            config,
            blocks: Blocks::default(),
            segments: Segments::default(),
            streams: Vec::new(),
            active: StreamSet::default(),
            stream_ids: HashMap::new(),
            idle: List::default(),
            idle_segments: List::default(),
            collectable: 0,
            pools: Pools::new(),
            exports: export::Exports::default(),
            peers: Arc::default(),
            ungranted: Vec::new(),
            vacant: growing::Vacant::default(),
            recorded: HashMap::new(),
            waits: HashMap::new(),
            waiting_bytes: 0,
            extended: SmallVec::new(),
            starts: HashMap::new(),
            cached: Vec::new(),
            stuck: Vec::new(),
            wide_chunks: 0,
            no_wide: false,
            events: Vec::with_capacity(32),
            made: 0,
            tally: Tally::default(),
            high_water: 0,
            churn: churn::Churn::default(),
            full_at: None,
            joined_at: None,
            marked_at: 0,
            slow_at: None,
            physical: 0,
            classic: 0,
            elsewhere: 0,
            limit: smaller(share_limit, byte_limit),
            share_limit,
            byte_limit,
            soft,
            transit: Transit::default(),
            tokens: 16,
            earned: 0,
            paid: 0,
            interest: 0,
            quiet: 0,
            frees: 0,
            beside: 0,
            unseen: 0,
            waits_ended: 0,
            haste: haste::Haste::default(),
            slow: 0,
            patience: 0,
            ask_after: 0,
            ask_patience: 0,
            flushed_at: 0,
            flushed_soon: 0,
            flush_after: 0,
            due: false,
            settled_at: 0,
            heaviest: 0,
            apart: apart::Apart::new(),
            dropped: Vec::new(),
            access,
            reservable: true,
            decay_due: false,
            brought_back: (0, 0),
            turn: 0,
            decay_from: [block::NONE; 2],
            clock: Record::default(),
            dead: Vec::new(),
            dead_from: 0,
            walked_at: 0,
            vacated: Vec::new(),
            watched: 0,
            logging: false,
            noter,
            log: Vec::new(),
            generation: 0,
            stale: HashSet::new(),
            shunned: HashMap::new(),
            capturing: 0,
            uncached: None,
            busy: 0,
        };
        core.stream_id(Stream(0));
        core
    }

    /// The index of a stream, which is added when it is new.
    pub(crate) fn stream_id(&mut self, stream: Stream) -> StreamId {
        if let Some(&id) = self.stream_ids.get(&stream) {
            return id;
        }
        let id = self.unused_number().map_or(self.streams.len(), |id| id as usize);
        let mut state = StreamState::new(stream);
        if id < self.streams.len() {
            for (class, _) in self.streams[id].bins.iter() {
                let pool = self.pools.get_mut(class.pool());
                pool.binned[class.kind()].remove(&(id as StreamId));
                pool.homes[class.kind()].remove(id as StreamId);
            }
            self.active.remove(id as StreamId);
            // Chunks may still carry stamps of the old stream: epochs go on from there.
            state.open = self.streams[id].open;
            state.completed = state.open - 1;
            // What the one before has freed keeps its age.
            state.ages = core::mem::take(&mut self.streams[id].ages);
            self.vacated.extend(self.streams[id].slot);
            self.streams[id] = state;
        } else {
            self.streams.push(state);
            self.active.reach(self.streams.len());
        }
        self.stream_ids.insert(stream, id as StreamId);
        id as StreamId
    }

    /// The number of a destroyed stream that nothing refers to any more, which is taken out of those. A few are looked at, each
    /// time others: where one in so many is unused, numbers do not grow.
    fn unused_number(&mut self) -> Option<StreamId> {
        /// Streams looked at.
        const LOOK: usize = 8;
        for _ in 0..LOOK.min(self.dead.len()) {
            let at = self.dead_from % self.dead.len();
            let id = self.dead[at];
            if self.streams[id as usize].is_unused() && !self.is_home_of_falling(id) {
                self.dead.swap_remove(at);
                return Some(id);
            }
            self.dead_from = at + 1;
        }
        None
    }

    /// Whether a walk through all blocks is worth what it brings: enough was freed since the last one that it costs each
    /// free little.
    pub(crate) fn is_worth_a_walk(&mut self) -> bool {
        /// Blocks for each free.
        const EACH: usize = 8;
        /// So many can be looked at any time.
        const FEW: usize = 512;
        let due = self.walked_at + (self.blocks.len() / EACH) as u64;
        let worth = self.blocks.len() <= FEW || self.frees >= due;
        self.walked_at = if worth { self.frees } else { self.walked_at };
        worth
    }

    /// All physical bytes of the device held: mapped, cached, classic.
    pub(crate) fn held(&self) -> u64 {
        self.physical + self.classic
    }

    /// Sets the limit as a share of the device's memory.
    pub(crate) fn set_share_limit(&mut self, fraction: f64) {
        self.share_limit = limit_of(fraction, self.limits.total);
        self.limit = smaller(self.share_limit, self.byte_limit);
    }

    /// Sets the limit as bytes.
    pub(crate) fn set_byte_limit(&mut self, bytes: Option<u64>) {
        self.byte_limit = bytes;
        self.limit = smaller(self.share_limit, self.byte_limit);
    }

    /// The bytes beyond which idle memory is given back and moved before anything is grown: the soft limit
    /// or, with growable segments, the garbage collection threshold.
    pub(crate) fn soft_limit(&self) -> Option<u64> {
        let whole = self.limit.unwrap_or(self.limits.total) as f64;
        let threshold = self.config.garbage_collection_threshold.filter(|_| self.config.expandable_segments);
        let collect = threshold.map(|threshold| (whole * threshold) as u64);
        smaller(self.soft, collect)
    }

    /// The segment that contains an address.
    pub(crate) fn segment_of(&self, address: u64) -> Option<&Segment> {
        self.segment_at(address).map(|number| &self.segments[number])
    }

    /// Its number. Of two the one that is not on its way back to where it came from.
    pub(crate) fn segment_at(&self, address: u64) -> Option<usize> {
        let mut found = None;
        for (number, segment) in self.segments.back_from(address) {
            let (inside, leaves) = (address - segment.base < segment.len, self.is_taken_whole(segment));
            found = if inside && (found.is_none() || !leaves) { Some(number) } else { found };
            if !leaves {
                // None that stays reaches beyond it.
                break;
            }
        }
        found
    }

    /// Whether a plan has taken all of a segment, most likely to give it back.
    fn is_taken_whole(&self, segment: &Segment) -> bool {
        let first = &self.blocks[segment.first];
        first.state == State::Busy && first.len == segment.len
    }

    /// Whether a range lies in memory that is not on its way back: what another thread is just giving back may be given
    /// out again before that thread can note that it is gone.
    pub(crate) fn overlaps_another(&self, base: u64, bytes: u64) -> bool {
        let leaves = |segment: &Segment| segment.class.is_classic() && self.is_taken_whole(segment);
        let mut before = self.segments.back_from(base + (bytes - 1));
        let nearest = before.find(|(_, segment)| !leaves(segment));
        nearest.is_some_and(|(_, segment)| base < segment.base + segment.len)
    }

    /// In which way an address is not the start of a live block. Walks the segment's blocks.
    pub(crate) fn kind_of(&self, address: u64) -> PointerKind {
        let Some(segment) = self.segment_of(address) else { return PointerKind::Foreign };
        let mut id = segment.first;
        while id != NONE && self.blocks[id].end() <= address {
            id = self.blocks[id].next;
        }
        match self.blocks.get(id) {
            Some(block) if block.state == State::Live && block.addr != address => PointerKind::Interior,
            _ => PointerKind::NotLive,
        }
    }

    /// Bytes a request takes with its pad, in units, or nothing when they cannot be represented.
    #[inline]
    pub(crate) fn block_end(&self, requested: u64) -> Option<u64> {
        if requested > MOST_ASKED {
            return None;
        }
        let padded = ((requested + 31) & !31) + self.limits.pad;
        Some((padded + (UNIT - 1)) & !(UNIT - 1))
    }

    /// Length of the block for a request, or nothing when it cannot be represented.
    pub(crate) fn block_len(&self, requested: u64) -> Option<u64> {
        let len = self.block_end(requested)?;
        let divisions = self.config.roundup_divisions_for(requested);
        Some(if divisions > 1 && len / UNIT > divisions { round_to_division(len, divisions) } else { len })
    }
}

/// The limit in bytes that a memory fraction means.
fn limit_of(fraction: f64, total: u64) -> Option<u64> {
    (fraction < 1.0).then_some((total as f64 * fraction) as u64)
}

/// The smaller of two limits, where one is set.
fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// `len` rounded up to one of `divisions` equal steps between powers of two.
fn round_to_division(len: u64, divisions: u64) -> u64 {
    if len.is_power_of_two() {
        return len;
    }
    let below = 1u64 << (63 - len.leading_zeros());
    len.next_multiple_of((below / divisions).max(UNIT))
}
