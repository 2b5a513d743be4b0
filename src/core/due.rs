//! Waiting until memory that is to go back is idle: which streams hold it back, and what the host waits for next.

use std::collections::{BTreeMap, VecDeque};

use super::Core;
use super::plan::{Request, Step};
use super::pool::{DEFAULT, PoolIndex};
use super::stream::StreamId;
use super::trim::Choice;

/// Streams that are waited for, and the epoch that each has to pass. What is over is looked at once.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// In the order in which they are waited for.
    first: VecDeque<(StreamId, u32)>,
    /// Those that no event tells of: after all others.
    alone: VecDeque<(StreamId, u32)>,
    /// Those that cannot be waited for alone either.
    last: Vec<(StreamId, u32)>,
}

impl Due {
    /// The streams that were not waited for so far, as far as is known.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (StreamId, u32)> + Clone {
        self.first.iter().copied()
    }
}

impl Core {
    /// Of each stream the epoch that has to be over before memory that may go is idle: with a pool or an age, only what
    /// holds such memory back.
    pub(crate) fn to_be_passed(&self, choice: Choice) -> Due {
        let mut due: BTreeMap<StreamId, u32> = BTreeMap::new();
        let mut add = |id: StreamId, epoch: u32| {
            if !self.passed(id, epoch) {
                let until = due.entry(id).or_insert(epoch);
                *until = epoch.max(*until);
            }
        };
        let all_ages = choice.since == u64::MAX;
        if choice.pool.is_none() && all_ages {
            for id in self.active.iter() {
                let state = &self.streams[id as usize];
                // What another thread is ending at the moment is closed, and has no event yet.
                let last = if state.has_open_work() { state.open } else { state.open - 1 };
                add(id, last);
            }
            return Due { first: due.into_iter().collect(), ..Due::default() };
        }
        let free = match choice.pool {
            Some(pool) => self.indexed_of(pool),
            None => self.pools.indices().flat_map(|pool| self.indexed_of(pool)).collect(),
        };
        for id in free {
            let block = &self.blocks[id];
            if !block.class.is_classic() {
                let old = self.streams[block.home as usize].ages.until(choice.since);
                let until = if all_ages { block.epoch } else { old.min(u64::from(block.epoch)) as u32 };
                add(block.home, until);
            } else if all_ages || self.is_idle_segment(id) && block.freed <= choice.since {
                add(block.home, block.epoch);
            }
        }
        // What is in use is of no age.
        let waits = |pool: PoolIndex| {
            let of = self.pools.get(pool);
            of.active.stats[0].current > of.allocated.stats[0].current
        };
        if all_ages && choice.pool.is_none_or(|pool| pool == DEFAULT || waits(pool)) {
            for (&id, users) in &self.waits {
                let block = &self.blocks[id];
                let pool = block.class.pool();
                if choice.pool.is_none_or(|chosen| chosen == pool) && !self.is_asleep(pool) {
                    add(block.home, block.epoch);
                    users.iter().for_each(|&(user, epoch)| add(user, epoch));
                }
            }
        }
        Due { first: due.into_iter().collect(), ..Due::default() }
    }

    /// What the host waits for next so that these epochs are over: an event that ends one, a stream where there is no
    /// such event, the device where that cannot be waited for either.
    pub(crate) fn wait_towards(&mut self, due: &mut Due, request: &Request) -> Option<Step> {
        while let Some(&(id, until)) = due.first.front() {
            let mut events = self.streams[id as usize].closing.iter();
            if !self.passed(id, until) {
                if let Some(&(event, epoch)) = events.find(|&&(_, epoch)| epoch >= until) {
                    return Some(Step::WaitEvent(id, event, epoch));
                }
                due.alone.push_back((id, until));
            }
            due.first.pop_front();
        }
        let takes_waits = |core: &Self, id: StreamId| core.streams[id as usize].takes_waits();
        while let Some(&(id, until)) = due.alone.front() {
            if !self.passed(id, until) {
                if takes_waits(self, id) && !request.spared.contains(&id) {
                    return Some(self.wait_alone(id));
                }
                due.last.push((id, until));
            }
            due.alone.pop_front();
        }
        due.last.retain(|&(id, until)| !self.passed(id, until));
        let by_device = due.last.iter().any(|&(id, _)| !takes_waits(self, id));
        if by_device { self.wait_for_device(None) } else { None }
    }
}
