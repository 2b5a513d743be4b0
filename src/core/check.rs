//! The heap checker: recomputes everything from the blocks up and names what does not hold.
//!
//! The numbers are those of ALLOCATOR_DESIGN.md. It is slow and meant for tests and for debug builds with
//! a high check level.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};

use super::Core;
use super::block::{Block, BlockId, List, NONE, State};
use super::pool::{DEFAULT, PoolIndex};
use super::segment::{Class, Segment};
use super::snapshot::Resting;
use super::stream::StreamId;
use super::tally::{BYTES, COUNT, Flow, REQUESTED, columns};

/// Sums over the blocks of a device, by column (small, large).
#[derive(Default)]
struct Sums {
    live: [[i64; 2]; 2],
    waiting: [[i64; 2]; 2],
    mapped: [i64; 2],
    handles: u64,
    chunks: usize,
    classic: u64,
    elsewhere: u64,
    out: Vec<u32>,
    /// Of each pool: bytes live, live or waiting, and mapped.
    pools: HashMap<PoolIndex, [i64; 3]>,
}

impl Core {
    /// Adds a line to `faults` for each invariant that does not hold. `resting` are the blocks of the
    /// front cache, `flow` the counts of all parties together.
    pub(crate) fn check(&self, resting: &[Resting], flow: &Flow, faults: &mut Vec<String>) {
        let resting: BTreeMap<u64, Resting> = resting.iter().map(|&rests| (rests.address, rests)).collect();
        let mut sums = Sums { out: vec![0; self.streams.len()], ..Sums::default() };
        let mut seen = 0;
        for (number, segment) in self.segments.iter() {
            seen += self.check_segment(number as u32, segment, &resting, &mut sums, faults);
        }
        if seen != self.blocks.count() {
            faults.push(format!("I2: blocks: {} exist, {seen} in segments", self.blocks.count()));
        }
        self.check_lists(faults);
        self.check_wide(faults);
        self.check_sums(&sums, resting.len(), flow, faults);
        self.check_pools(&sums, faults);
        self.check_indexes(faults);
    }

    fn check_segment(
        &self,
        number: u32,
        segment: &Segment,
        resting: &BTreeMap<u64, Resting>,
        sums: &mut Sums,
        faults: &mut Vec<String>,
    ) -> usize {
        let (mut at, mut prev, mut id, mut count) = (segment.base, NONE, segment.first, 0);
        let column = usize::from(!segment.class.is_small());
        while id != NONE {
            let block = &self.blocks[id];
            if block.addr != at
                || block.prev != prev
                || block.segment != number
                || block.class != segment.class
                || block.len == 0
            {
                faults.push(format!("I2: block at {:#x} does not continue its segment", block.addr));
                return count;
            }
            if prev != NONE {
                self.check_neighbours(prev, id, faults);
            }
            if !segment.class.is_classic() {
                self.check_backing(segment, id, faults);
            }
            match block.state {
                State::Live | State::Waiting => {
                    let rests = resting.get(&block.addr);
                    if rests.is_some_and(|rests| rests.len != block.len || block.state == State::Waiting) {
                        faults.push(format!("I9: resting block at {:#x} has another size", block.addr));
                    }
                    let waits = rests.is_some_and(|rests| rests.waits) || block.state == State::Waiting;
                    let sum = if waits { &mut sums.waiting } else { &mut sums.live };
                    if rests.is_none_or(|rests| rests.waits) {
                        sum[COUNT][column] += 1;
                        sum[BYTES][column] += block.len as i64;
                    }
                    let of_pool = sums.pools.entry(block.class.pool()).or_default();
                    of_pool[0] += if block.state == State::Live { block.len as i64 } else { 0 };
                    of_pool[1] += block.len as i64;
                    sums.out[block.home as usize] += 1;
                }
                State::Free | State::Hole | State::Busy => {}
            }
            at = block.end();
            prev = id;
            id = block.next;
            count += 1;
        }
        if at != segment.base + segment.len {
            faults.push(format!("I2: blocks of the segment at {:#x} end at {at:#x}", segment.base));
        }
        sums.mapped[column] += segment.mapped as i64;
        sums.pools.entry(segment.class.pool()).or_default()[2] += segment.mapped as i64;
        if segment.class.is_classic() {
            match self.is_elsewhere(segment.class) {
                true => sums.elsewhere += segment.len,
                false => sums.classic += segment.len,
            }
        } else {
            let chunks = segment.chunks.iter().flatten().count();
            sums.chunks += chunks;
            sums.handles += chunks as u64;
            if chunks as u64 * self.limits.granule != segment.mapped {
                faults.push(format!("I3: segment at {:#x} counts {} mapped", segment.base, segment.mapped));
            }
        }
        count
    }

    /// I4: neighbours that could be one are one.
    fn check_neighbours(&self, first: BlockId, second: BlockId, faults: &mut Vec<String>) {
        let (a, b) = (&self.blocks[first], &self.blocks[second]);
        let pool = self.pools.get(a.class.pool());
        let merged = !pool.rules.no_split && pool.sleep.is_none();
        let same = a.state == b.state
            && (a.state == State::Hole || merged && a.state == State::Free && a.home == b.home);
        if same {
            faults.push(format!("I4: {:?} blocks at {:#x} and {:#x} are apart", a.state, a.addr, b.addr));
        }
        let strangers = merged && a.state == State::Free && b.state == State::Free && a.home != b.home;
        if strangers && !b.apart {
            faults.push(format!(
                "I4: the free block at {:#x} is not listed as apart from {:#x}",
                b.addr, a.addr
            ));
        }
        if strangers && self.is_quiescent(first) && self.is_quiescent(second) {
            faults.push(format!("I4: quiescent blocks at {:#x} and {:#x} are apart", a.addr, b.addr));
        }
    }

    /// I2: holes have nothing mapped and begin and end at granule borders, all else is mapped.
    fn check_backing(&self, segment: &Segment, id: BlockId, faults: &mut Vec<String>) {
        let block = &self.blocks[id];
        let granule = self.limits.granule;
        if block.state == State::Busy || self.is_asleep(block.class.pool()) {
            return;
        }
        let hole = block.state == State::Hole;
        if hole && !(block.addr.is_multiple_of(granule) && block.len.is_multiple_of(granule)) {
            faults.push(format!("I2: hole at {:#x} is not made of granules", block.addr));
        }
        // Beyond the chunk table nothing was ever mapped; the table's end bounds the walk.
        let table = segment.base + segment.chunks.len() as u64 * granule;
        let end = if hole { block.end().min(table) } else { block.end() };
        let mut at = block.addr & !(granule - 1);
        while at < end {
            if segment.chunk(at, self.limits.shift).is_some() == hole {
                faults.push(format!("I2: granule {at:#x} of a {:?} block", block.state));
                return;
            }
            at += granule;
        }
    }

    /// I5: the free index, the idle list and the hole lists hold exactly what they should.
    fn check_lists(&self, faults: &mut Vec<String>) {
        let mut indexed: HashSet<BlockId> = HashSet::new();
        for (home, state) in self.streams.iter().enumerate() {
            for (class, bins) in state.bins.iter() {
                for id in bins.ids(&self.blocks) {
                    let block = &self.blocks[id];
                    let right = block.home as usize == home && self.class_of(id) == class;
                    if !right || block.state != State::Free || !indexed.insert(id) {
                        faults.push(format!("I5: block at {:#x} is in a wrong bin", block.addr));
                    }
                }
            }
        }
        let idle = self.members(&self.idle, faults);
        let segments = self.members(&self.idle_segments, faults);
        let mut holes = 0;
        for class in self.pools.indices().flat_map(Class::all) {
            let list = self.members(&self.pools[class], faults);
            holes += list.len();
            if list.iter().any(|&id| self.blocks[id].state != State::Hole || self.class_of(id) != class) {
                faults.push("I5: a hole list holds something else".to_owned());
            }
        }
        let mut counted_holes = 0;
        for (id, block) in self.blocks.iter() {
            // What is free in a pool that sleeps is in no index and no list.
            let free = block.state == State::Free && !self.is_asleep(block.class.pool());
            counted_holes += usize::from(block.state == State::Hole);
            if free != indexed.contains(&id) || free != block.indexed {
                faults.push(format!("I5: block at {:#x} and the free index disagree", block.addr));
            }
            let holds = free && self.holds_chunk(id);
            let whole = free && self.is_idle_segment(id);
            if holds != idle.contains(&id) || whole != segments.contains(&id) {
                faults.push(format!("I5: block at {:#x} and the idle list disagree", block.addr));
            }
        }
        if holes != counted_holes {
            faults.push(format!("I5: holes: {counted_holes} exist, {holes} in lists"));
        }
    }

    fn members(&self, list: &List, faults: &mut Vec<String>) -> HashSet<BlockId> {
        let mut members = HashSet::new();
        let mut id = list.head;
        while id != NONE && members.insert(id) {
            if self.blocks.get(id).is_none() {
                faults.push("I5: a list holds a block that is gone".to_owned());
                return members;
            }
            id = self.blocks[id].list_next;
        }
        members
    }

    /// I5, I6: what is kept so that nobody has to look at all streams, pools or blocks for it says what these do.
    fn check_indexes(&self, faults: &mut Vec<String>) {
        for (id, state) in self.streams.iter().enumerate() {
            if !state.is_idle() && !self.active.contains(id as StreamId) {
                faults.push(format!("I6: stream {id} has work and is not among those that do"));
            }
            for (class, bins) in state.bins.iter() {
                let pool = self.pools.get(class.pool());
                let binned = pool.binned[class.kind()].contains(&(id as StreamId));
                let listed = pool.homes[class.kind()].contains(id as StreamId);
                if !binned || listed != bins.listed || bins.count() > 0 && !listed {
                    faults.push(format!("I5: a class does not know of the bins of stream {id}"));
                }
            }
        }
        for class in self.pools.indices().flat_map(Class::all) {
            if !self.homes_of(class).all(|home| self.streams[home as usize].bins.get(class).is_some()) {
                faults.push("I5: a class knows a stream that has no bins of it".to_owned());
            }
        }
        if self.pools.any_fixed() != self.pools.indices().any(|pool| self.pools.get(pool).is_fixed()) {
            faults.push("I5: pools with graphs are not those that are known to have some".to_owned());
        }
        let sleeps = |&pool: &PoolIndex| self.is_asleep(pool);
        if !self.pools.indices().filter(sleeps).eq(self.pools.asleep()) {
            faults.push("I5: pools that sleep are not those that are known to".to_owned());
        }
        let blocks = || self.blocks.iter().map(|(_, block)| block);
        let collected = |block: &&Block| block.listed && self.is_collected(block.class);
        if blocks().filter(|block| block.state == State::Free).filter(collected).count() != self.collectable {
            faults.push(format!("I5: {} segments counted that can be collected", self.collectable));
        }
        let waiting = blocks().filter(|block| block.state == State::Waiting);
        if waiting.map(|block| block.len).sum::<u64>() != self.waiting_bytes {
            faults.push(format!("I6: {} bytes counted that wait", self.waiting_bytes));
        }
    }

    /// I1: the statistics of each pool are what its blocks say.
    fn check_pools(&self, sums: &Sums, faults: &mut Vec<String>) {
        let mut firsts: BTreeMap<PoolIndex, BTreeSet<(u64, BlockId)>> = BTreeMap::new();
        for (_, segment) in self.segments.iter() {
            firsts.entry(segment.class.pool()).or_default().insert((segment.base, segment.first));
        }
        for index in self.pools.indices() {
            let pool = self.pools.get(index);
            if pool.firsts != firsts.remove(&index).unwrap_or_default() {
                faults.push(format!("I2: pool {} does not know its segments", pool.serial));
            }
        }
        for index in self.pools.indices().filter(|&index| index != DEFAULT) {
            let pool = self.pools.get(index);
            let counted = [&pool.allocated, &pool.active, &pool.reserved].map(|gauge| gauge.stats[0].current);
            let found = sums.pools.get(&index).copied().unwrap_or_default();
            if counted != found {
                faults.push(format!("I1: pool {} counts {counted:?}, blocks say {found:?}", pool.serial));
            }
        }
    }

    /// I1, I3, I6: statistics, chunks and stream counts are what the blocks say.
    fn check_sums(&self, sums: &Sums, resting: usize, flow: &Flow, faults: &mut Vec<String>) {
        let balance = flow.balance();
        for quantity in [COUNT, BYTES] {
            if balance[quantity] != sums.live[quantity] {
                let found = (balance[quantity], sums.live[quantity]);
                faults
                    .push(format!("I1: allocated {:?}, blocks say {:?} ({resting} rest)", found.0, found.1));
            }
            if flow.waiting[quantity] != sums.waiting[quantity] {
                let found = (flow.waiting[quantity], sums.waiting[quantity]);
                faults.push(format!("I1: waiting {:?}, blocks say {:?}", found.0, found.1));
            }
        }
        let reserved = self.tally.reserved.stats;
        if [reserved[1].current, reserved[2].current] != sums.mapped {
            faults.push(format!("I1: reserved {reserved:?}, segments say {:?}", sums.mapped));
        }
        let active = columns(&balance)[BYTES][0] + columns(&flow.waiting)[BYTES][0];
        let requested = columns(&balance)[REQUESTED][0] + columns(&flow.waiting)[REQUESTED][0];
        let present = active - self.sleeping_bytes();
        if !(0 <= requested && requested <= active && present <= reserved[0].current) {
            faults.push(format!(
                "I1: {requested} requested, {active} active, {} reserved",
                reserved[0].current
            ));
        }
        // What a plan has taken along is in no list while the driver is called.
        if self.busy == 0 && !self.transit.is_any_under_way() {
            let chunks = sums.chunks as u64 * self.limits.granule + self.cached_bytes();
            if chunks != self.physical || (sums.classic, sums.elsewhere) != (self.classic, self.elsewhere) {
                faults.push(format!("I3: {} physical bytes counted, {chunks} found", self.physical));
            }
        }
        for (id, state) in self.streams.iter().enumerate() {
            if state.out != sums.out[id] {
                faults.push(format!(
                    "I6: blocks of stream {id}: {} counted, {} found",
                    state.out, sums.out[id]
                ));
            }
            if state.completed >= state.open {
                faults.push(format!("I6: stream {id} completed its open epoch"));
            }
        }
        let under_way: usize = self.streams.iter().map(|state| state.closing.len()).sum();
        if under_way + self.events.len() > self.made {
            faults.push(format!("I6: {} events counted, {under_way} are under way", self.made));
        }
        let waiting = self.blocks.iter().filter(|(_, block)| block.state == State::Waiting);
        if !waiting.map(|(id, _)| id).all(|id| self.waits.contains_key(&id)) {
            faults.push("I6: a block waits for nobody".to_owned());
        }
        for (id, users) in &self.recorded {
            let live = self.blocks.get(*id).is_some_and(|block| block.uses as usize == users.len());
            if !live {
                faults.push("I6: recorded streams of a block that has none".to_owned());
            }
        }
    }
}
