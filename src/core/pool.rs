//! Pools: blocks that may be exchanged for one another, apart from those of other pools.
//!
//! A pool is a number that is part of the [`Class`] of its segments, so that free blocks and holes of two
//! pools are in different indexes and never meet. Chunks are not bound to a pool: an idle chunk of
//! one serves the others, unless the pool is *fixed* because a captured graph has its addresses baked in.

use core::ops::{Index, IndexMut};
use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use super::Core;
use super::block::{BlockId, List, State};
use super::plan::Request;
use super::segment::{Class, KINDS};
use super::sleep::Sleep;
use super::source::{Departed, Source};
use super::steps;
use super::stream::{StreamId, StreamSet};
use super::tally::Gauge;
use crate::history::{ContextId, intern};

/// A pool's place among those of its device; used again once the pool is gone.
pub(crate) type PoolIndex = u32;

/// The pool of requests that name none.
pub(crate) const DEFAULT: PoolIndex = 0;

/// What can be chosen for a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// A name for people, and for putting to sleep.
    pub(crate) tag: String,
    /// Free blocks are handed out whole or not at all.
    pub(crate) no_split: bool,
    /// Its free blocks serve the default pool before that runs out of memory.
    pub(crate) use_on_oom: bool,
    /// Above this many bytes it takes idle memory from elsewhere before new memory.
    pub(crate) soft_limit: Option<u64>,
    /// Where its memory comes from, if not from the driver; its segments are classic then.
    pub(crate) source: Option<Source>,
    /// The kind of its segments, where that is not left to the setting.
    pub(crate) expandable: Option<bool>,
    /// What is freed goes back to the driver at once; segments are as long as their block.
    pub(crate) uncached: bool,
}

impl Rules {
    /// Whether the memory is none of the device's.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.source.as_ref().is_some_and(|source| !source.of_device)
    }
}

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Its name in the public interface; never used again.
    pub(crate) serial: u64,
    /// See [`Rules`].
    pub(crate) rules: Rules,
    /// The number of its tag in the history.
    pub(crate) tag: Option<ContextId>,
    /// Holders: its owner until the release, routes, and calls under way. Without any it goes when its last block
    /// does.
    pub(crate) holders: u32,
    /// Whether its owner has released it; others may hold it still.
    pub(crate) released: bool,
    /// Fixed blocks that are being taken for it.
    pub(crate) fetching: u32,
    /// Graphs captured into it, with its addresses baked in: while there is one, nothing of it is unmapped.
    pub(crate) graphs: u32,
    /// Pools whose graphs have addresses of it baked in, too.
    pub(crate) guests: u32,
    /// The pools whose addresses its own graphs have baked in besides.
    hosts: Vec<PoolIndex>,
    /// Those of them that are released by the pool's name, which says no more.
    named: u32,
    /// Such graphs that a reset of the device has ended, and that are still to be released.
    ended: u32,
    /// Set while its free blocks are merged all the same, because whole chunks are wanted.
    merging: bool,
    /// Whether it sleeps, and how.
    pub(crate) sleep: Option<Sleep>,
    /// Its segments by address, each with its first block. Where a source has got memory back and gives it again at once, two have
    /// one address for a moment.
    pub(crate) firsts: BTreeSet<(u64, BlockId)>,
    /// Holes of its segments, by kind.
    holes: [List; KINDS],
    /// Streams that have bins for free blocks of it, by kind.
    pub(super) binned: [BTreeSet<StreamId>; KINDS],
    /// Those that may have free blocks in them: all that have some.
    pub(super) homes: [StreamSet; KINDS],
    /// Bytes handed out.
    pub(crate) allocated: Gauge,
    /// Bytes handed out or waiting for streams.
    pub(crate) active: Gauge,
    /// Bytes with physical memory behind them.
    pub(crate) reserved: Gauge,
    /// Bytes of address space.
    pub(crate) address_space: u64,
}

impl Pool {
    fn new(serial: u64, rules: Rules) -> Self {
        let tag = (!rules.tag.is_empty()).then(|| intern(&rules.tag));
        Self {
            serial,
            rules,
            tag,
            holders: 1,
            released: false,
            fetching: 0,
            graphs: 0,
            guests: 0,
            hosts: Vec::new(),
            named: 0,
            ended: 0,
            merging: false,
            firsts: BTreeSet::new(),
            sleep: None,
            holes: [List::default(); KINDS],
            binned: Default::default(),
            homes: Default::default(),
            allocated: Gauge::default(),
            active: Gauge::default(),
            reserved: Gauge::default(),
            address_space: 0,
        }
    }

    /// Whether other pools may use its free blocks: those of a graph are used whenever it runs, those of a pool
    /// that sleeps have no memory.
    fn lends(&self) -> bool {
        self.rules.use_on_oom && !self.is_fixed() && self.sleep.is_none()
    }

    /// Whether free neighbours stay apart, so that each can be handed out whole again. Where nothing is kept, the whole segment
    /// is to go back.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.rules.no_split && !self.rules.uncached && !self.merging
    }

    /// Whether nothing of it may be unmapped.
    pub(crate) fn is_fixed(&self) -> bool {
        self.graphs > 0 || self.guests > 0
    }

    /// A reset has ended all graphs.
    fn end_graphs(&mut self) {
        self.ended += core::mem::take(&mut self.named);
        (self.graphs, self.guests) = (0, 0);
        self.hosts.clear();
    }
}

/// All pools of a device.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: Vec<Option<Box<Pool>>>,
    /// By public name.
    serials: HashMap<u64, PoolIndex>,
    next: u64,
    /// The indices in use, and those that are used again.
    there: BTreeSet<PoolIndex>,
    vacant: BTreeSet<PoolIndex>,
    /// By tag.
    tags: HashMap<String, BTreeSet<PoolIndex>>,
    /// The pools that sleep, in whatever depth.
    asleep: BTreeSet<PoolIndex>,
    /// Those with addresses baked into graphs.
    fixed: BTreeSet<PoolIndex>,
    /// Those whose rules let their free blocks serve the default pool.
    lenders: BTreeSet<PoolIndex>,
    /// Those whose rules keep free neighbours apart, unless each is a segment of its own.
    unsplit: BTreeSet<PoolIndex>,
    /// Those whose memory is none of the device's.
    elsewhere: BTreeSet<PoolIndex>,
    /// Sources of those that are gone.
    pub(crate) departed: Arc<Departed>,
}

impl Pools {
    /// The default pool alone.
    pub(crate) fn new() -> Self {
        let default = Pool::new(0, Rules::default());
        Self {
            pools: vec![Some(Box::new(default))],
            serials: HashMap::from([(0, DEFAULT)]),
            next: 1,
            there: BTreeSet::from([DEFAULT]),
            vacant: BTreeSet::new(),
            tags: HashMap::from([(String::new(), BTreeSet::from([DEFAULT]))]),
            fixed: BTreeSet::new(),
            asleep: BTreeSet::new(),
            lenders: BTreeSet::new(),
            unsplit: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            departed: Arc::default(),
        }
    }

    /// Adds a pool; its index.
    pub(crate) fn add(&mut self, rules: Rules) -> PoolIndex {
        let serial = self.next;
        self.next += 1;
        let index = self.vacant.pop_first().unwrap_or(self.pools.len() as PoolIndex);
        let marks = [
            (rules.use_on_oom, &mut self.lenders),
            (rules.no_split && !rules.uncached, &mut self.unsplit),
            (rules.is_elsewhere(), &mut self.elsewhere),
            (true, &mut self.there),
        ];
        for (_, set) in marks.into_iter().filter(|&(meant, _)| meant) {
            set.insert(index);
        }
        self.tags.entry_ref(&rules.tag).or_default().insert(index);
        let pool = Some(Box::new(Pool::new(serial, rules)));
        match self.pools.get_mut(index as usize) {
            Some(place) => *place = pool,
            None => self.pools.push(pool),
        }
        self.serials.insert(serial, index);
        index
    }

    /// Removes a pool without segments.
    pub(crate) fn remove(&mut self, index: PoolIndex) {
        if let Some(mut pool) = self.pools[index as usize].take() {
            self.serials.remove(&pool.serial);
            for set in [&mut self.there, &mut self.lenders, &mut self.unsplit, &mut self.elsewhere] {
                set.remove(&index);
            }
            self.asleep.remove(&index);
            self.fixed.remove(&index);
            if let Some(others) = self.tags.get_mut(&pool.rules.tag) {
                others.remove(&index);
                if others.is_empty() {
                    self.tags.remove(&pool.rules.tag);
                }
            }
            self.vacant.insert(index);
            if let Some(source) = pool.rules.source.take() {
                self.departed.add(source);
            }
        }
    }

    /// The pool of that public name.
    pub(crate) fn find(&self, serial: u64) -> Option<PoolIndex> {
        self.serials.get(&serial).copied()
    }

    /// Whether there is a pool of that index.
    pub(crate) fn is_there(&self, index: PoolIndex) -> bool {
        self.there.contains(&index)
    }

    /// The pools with a tag.
    pub(crate) fn tagged(&self, tag: &str) -> impl Iterator<Item = PoolIndex> {
        self.tags.get(tag).into_iter().flatten().copied().inspect(|_| steps::step())
    }

    /// Whether any pool has addresses baked into graphs.
    pub(crate) fn any_fixed(&self) -> bool {
        !self.fixed.is_empty()
    }

    /// Follows graphs of a pool that come and go.
    fn note_fixed(&mut self, pool: PoolIndex) {
        match self.get(pool).is_fixed() {
            true => self.fixed.insert(pool),
            false => self.fixed.remove(&pool),
        };
    }

    /// The pools there are.
    pub(crate) fn indices(&self) -> impl Iterator<Item = PoolIndex> {
        self.there.iter().copied().inspect(|_| steps::step())
    }

    /// Those that sleep.
    pub(crate) fn asleep(&self) -> impl Iterator<Item = PoolIndex> {
        self.asleep.iter().copied()
    }

    /// The public names of those whose memory is none of the device's.
    pub(crate) fn serials_elsewhere(&self) -> Vec<u64> {
        self.elsewhere.iter().map(|&pool| self.get(pool).serial).collect()
    }

    /// Lets a pool sleep, or ends that; how it slept.
    pub(crate) fn set_sleep(&mut self, pool: PoolIndex, sleep: Option<Sleep>) -> Option<Sleep> {
        match sleep {
            Some(_) => self.asleep.insert(pool),
            None => self.asleep.remove(&pool),
        };
        core::mem::replace(&mut self.get_mut(pool).sleep, sleep)
    }

    /// A reset has ended all graphs of a pool, and its sleep.
    pub(super) fn end_graphs(&mut self, pool: PoolIndex) {
        self.get_mut(pool).end_graphs();
        self.note_fixed(pool);
        self.set_sleep(pool, None);
    }

    /// The statistics of all pools.
    pub(crate) fn gauges(&mut self) -> impl Iterator<Item = &mut Gauge> {
        let pools = self.pools.iter_mut().flatten();
        pools.flat_map(|pool| [&mut pool.allocated, &mut pool.active, &mut pool.reserved])
    }

    /// How many pools there are besides the default one.
    pub(crate) fn others(&self) -> usize {
        self.serials.len() - 1
    }

    /// A pool that exists.
    #[inline]
    pub(crate) fn get(&self, index: PoolIndex) -> &Pool {
        steps::step();
        self.pools[index as usize].as_deref().expect("a pool that exists")
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: PoolIndex) -> &mut Pool {
        self.pools[index as usize].as_deref_mut().expect("a pool that exists")
    }
}

/// The holes of a class.
impl Index<Class> for Pools {
    type Output = List;

    #[inline]
    fn index(&self, class: Class) -> &List {
        &self.get(class.pool()).holes[class.kind()]
    }
}

impl IndexMut<Class> for Pools {
    #[inline]
    fn index_mut(&mut self, class: Class) -> &mut List {
        &mut self.get_mut(class.pool()).holes[class.kind()]
    }
}

impl Core {
    /// Gives up one hold on a pool. Without any left, what is idle of it serves the others, and it is gone
    /// with its last block.
    pub(crate) fn let_go(&mut self, pool: PoolIndex) {
        let holders = &mut self.pools.get_mut(pool).holders;
        *holders = holders.saturating_sub(1);
        self.reap(pool);
    }

    /// Bakes the addresses of a pool into one more graph: nothing of it is unmapped from now on.
    pub(crate) fn fix(&mut self, pool: PoolIndex) {
        self.unlist_idle(pool);
        self.pools.get_mut(pool).graphs += 1;
        self.pools.note_fixed(pool);
    }

    /// Bakes the addresses of a pool into the graphs of the pool `into` too, until the last of these is gone.
    pub(crate) fn bake_in(&mut self, pool: PoolIndex, into: PoolIndex) {
        let of = self.pools.get(into);
        // Without a graph nobody would ever let go again: the capture's was given up before its route, or meanwhile.
        let needless = of.graphs == 0 || of.hosts.contains(&pool);
        if needless || pool == DEFAULT || pool == into || self.is_asleep(pool) {
            return;
        }
        self.unlist_idle(pool);
        self.pools.get_mut(pool).guests += 1;
        self.pools.note_fixed(pool);
        self.pools.get_mut(into).hosts.push(pool);
    }

    /// Takes what is idle of a pool out of the lists that others take it from, if it is not out of these yet.
    fn unlist_idle(&mut self, pool: PoolIndex) {
        if self.pools.get(pool).is_fixed() {
            return;
        }
        for id in self.free_of(pool) {
            if self.blocks[id].listed {
                self.unlist(id);
            }
        }
    }

    /// The same for a graph that will be released by the pool's name.
    pub(crate) fn fix_by_name(&mut self, pool: PoolIndex) {
        self.fix(pool);
        self.pools.get_mut(pool).named += 1;
    }

    /// A graph is released by the pool's name, as [`unfix`](Self::unfix); nothing when there is none. Those that a reset has
    /// ended come first: it is not known which of all is meant, and the addresses of one that still runs must stay.
    pub(crate) fn unfix_by_name(&mut self, pool: PoolIndex) -> Option<Vec<u64>> {
        let of = self.pools.get_mut(pool);
        if of.ended > 0 {
            of.ended -= 1;
            let left = vec![of.serial];
            self.reap(pool);
            return Some(left);
        }
        of.named = of.named.checked_sub(1)?;
        Some(self.unfix(pool))
    }

    /// A graph is gone. The public names of the pools whose addresses it had.
    pub(crate) fn unfix(&mut self, pool: PoolIndex) -> Vec<u64> {
        let of = self.pools.get_mut(pool);
        let mut left = vec![of.serial];
        of.graphs = of.graphs.saturating_sub(1);
        let hosts = if of.graphs == 0 { core::mem::take(&mut of.hosts) } else { Vec::new() };
        self.list_unfixed(pool);
        for host in hosts {
            let of = self.pools.get_mut(host);
            of.guests = of.guests.saturating_sub(1);
            left.push(of.serial);
            self.list_unfixed(host);
        }
        left
    }

    /// Lets others have what is idle of a pool again, unless a graph still has its addresses.
    fn list_unfixed(&mut self, pool: PoolIndex) {
        self.pools.note_fixed(pool);
        // What is free of a pool that sleeps is in no list.
        if self.pools.get(pool).is_fixed() || self.is_asleep(pool) {
            return;
        }
        for id in self.free_of(pool) {
            if !self.blocks[id].listed {
                self.list_idle(id);
            }
        }
        self.reap(pool);
    }

    /// Removes a pool that nobody holds and that has no segment.
    pub(crate) fn reap(&mut self, pool: PoolIndex) {
        let of = self.pools.get(pool);
        let held = of.holders > 0 || of.is_fixed() || of.ended > 0;
        if pool == DEFAULT || held || !of.firsts.is_empty() {
            return;
        }
        let binned = core::mem::take(&mut self.pools.get_mut(pool).binned);
        for (class, homes) in Class::all(pool).into_iter().zip(binned) {
            homes.into_iter().for_each(|home| self.streams[home as usize].bins.forget(class));
        }
        self.pools.remove(pool);
    }

    /// Merges the free blocks of pools that do not split, or of one of these: whole chunks can be taken only out of merged
    /// blocks. Whether any were.
    pub(crate) fn merge_unsplit(&mut self, only: Option<PoolIndex>) -> bool {
        if self.pools.unsplit.is_empty() {
            return false;
        }
        let unsplit = |&pool: &PoolIndex| {
            let of = self.pools.get(pool);
            !of.is_fixed() && of.sleep.is_none() && only.is_none_or(|only| only == pool)
        };
        let pools: Vec<PoolIndex> = self.pools.unsplit.iter().copied().filter(unsplit).collect();
        let before = self.blocks.count();
        for pool in pools {
            self.pools.get_mut(pool).merging = true;
            for id in self.free_of(pool) {
                // An earlier one may have been merged with it.
                if self.blocks.get(id).is_some_and(|block| block.state == State::Free && block.indexed) {
                    self.withdraw(id);
                    self.make_free(id);
                }
            }
            self.pools.get_mut(pool).merging = false;
        }
        self.blocks.count() < before
    }

    /// Hands out a block of a pool that lends its memory to the default pool before that runs out.
    pub(crate) fn borrow(&mut self, request: &Request) -> Option<BlockId> {
        let id = self.borrow_block(request)?;
        self.blocks[id].lent = true;
        self.hand_out(id, request.requested, request.stream);
        Some(id)
    }

    fn borrow_block(&mut self, request: &Request) -> Option<BlockId> {
        // What a growing buffer lacks has to lie behind it.
        if request.class.pool() != DEFAULT || request.extends.is_some() {
            return None;
        }
        let lends = |&pool: &PoolIndex| self.pools.get(pool).lends();
        let lenders: Vec<PoolIndex> = self.pools.lenders.iter().copied().filter(lends).collect();
        let classes = lenders.into_iter().flat_map(|pool| {
            let (class, other) = (request.class.within(pool), request.class.within(pool).other_size());
            [class, class.classic(), other, other.classic()]
        });
        for class in classes {
            let own = self.take(class, request.len, request.align, request.stream);
            let found = own.or_else(|| self.take_any(class, request.len, request.align, request.stream));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether new memory of a class comes in segments that grow and shrink by chunks, if the device can do that.
    #[inline]
    pub(crate) fn expands(&self, class: Class) -> bool {
        let own = if class.pool() == DEFAULT { None } else { self.pools.get(class.pool()).rules.expandable };
        own.unwrap_or(self.config.expandable_segments)
    }

    /// The same for any class there is.
    pub(crate) fn expands_anywhere(&self) -> bool {
        let own = |pool| self.pools.get(pool).rules.expandable == Some(true);
        self.config.expandable_segments || self.pools.indices().any(own)
    }

    /// Whether the segments of a class come from a source of its pool.
    pub(crate) fn is_sourced(&self, class: Class) -> bool {
        class.pool() != DEFAULT && self.pools.get(class.pool()).rules.source.is_some()
    }

    /// Whether the memory of a class is none of the device's: it counts towards no limit, and giving it back helps
    /// only its pool.
    pub(crate) fn is_elsewhere(&self, class: Class) -> bool {
        class.pool() != DEFAULT && self.pools.get(class.pool()).rules.is_elsewhere()
    }

    /// Whether what is free in a pool can serve a request, where it is, or lent, moved or given back.
    pub(crate) fn may_serve(&self, pool: PoolIndex, request: &Request) -> bool {
        if pool == request.class.pool() {
            return true;
        }
        let of = self.pools.get(pool);
        let elsewhere = of.rules.is_elsewhere();
        let lends = of.rules.use_on_oom && request.class.pool() == DEFAULT;
        let reaches = match self.is_elsewhere(request.class) {
            true => self.have_one_source(pool, request.class.pool()),
            false => !elsewhere || lends,
        };
        !of.is_fixed() && reaches
    }

    /// Whether two pools have their memory from the same source, or are the same.
    pub(crate) fn have_one_source(&self, pool: PoolIndex, other: PoolIndex) -> bool {
        let source = |pool| self.pools.get(pool).rules.source.as_ref();
        let same = source(pool).zip(source(other)).is_some_and(|(one, another)| one.is(another));
        pool == other || same
    }

    /// Whether a pool would hold more than its soft limit with so many bytes more.
    pub(crate) fn past_soft_limit(&self, pool: PoolIndex, more: u64) -> bool {
        self.over_soft_limit(pool, more) > 0
    }

    /// By how many bytes.
    pub(super) fn over_soft_limit(&self, pool: PoolIndex, more: u64) -> u64 {
        let pool = self.pools.get(pool);
        let held = pool.reserved.stats[0].current as u64 + more;
        pool.rules.soft_limit.map_or(0, |limit| held.saturating_sub(limit))
    }

    /// The free blocks of a pool that are in the index.
    pub(super) fn indexed_of(&self, pool: PoolIndex) -> Vec<BlockId> {
        let bins = Class::all(pool).into_iter().flat_map(|class| {
            self.homes_of(class).filter_map(move |home| self.streams[home as usize].bins.get(class))
        });
        bins.flat_map(|bins| bins.ids(&self.blocks)).collect()
    }

    /// The free blocks of a pool, by address.
    pub(super) fn free_of(&self, pool: PoolIndex) -> Vec<BlockId> {
        self.blocks_of(pool).filter(|&id| self.blocks[id].state == State::Free).collect()
    }
}
