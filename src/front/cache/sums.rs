//! What all shards count together: sums, the room below the peaks, and what rests where.

use super::{Front, SHARDS};
use crate::core::snapshot::Resting;
use crate::core::tally::{self, Columns, Flow, Split};
use crate::driver::Stream;
use crate::front::counts::{Amounts, Counts, amounts};
use crate::front::key::key_of;
use crate::sync::atomic::Ordering::Relaxed;

impl Front {
    /// The sums of all shards.
    pub(crate) fn flow(&self) -> Flow {
        let mut sum = Flow::default();
        for (_, shard) in self.used() {
            let _guard = shard.flag.lock();
            shard.sweep_all(&self.streams);
            sum.add(&shard.flow());
        }
        sum
    }

    /// Forms the sums of all shards and takes their room away, so that none can rise until
    /// [`deal`](Self::deal) is called. Blocks that nobody has looked at since their streams passed are not looked at here
    /// either: as waiting ones they keep their room, while their shard would get only a share of it back.
    pub(crate) fn gather(&self) -> Flow {
        let mut sum = Flow::default();
        for (_, shard) in self.used() {
            let _guard = shard.flag.lock();
            sum.add(&shard.flow());
            shard.set_room(&Split::default());
        }
        sum
    }

    /// Deals out how much all may rise together: what shards wished lately first, the rest in equal shares.
    /// Returns the share of the core.
    pub(crate) fn deal(&self, mut left: Columns) -> Split {
        let mut wishes = [Split::default(); SHARDS];
        let mut parties = 1;
        for (at, shard) in self.used() {
            let _guard = shard.flag.lock();
            wishes[at] = shard.wish_from(&mut left);
            parties += 1;
        }
        // Both columns of all parties may rise at once; together they must stay below the sum's peak.
        let share = left.map(|[all, small, large]| [small, large].map(|own| own.min(all / 2) / parties));
        for (at, shard) in self.used().take(parties as usize - 1) {
            let _guard = shard.flag.lock();
            shard.set_room(&tally::sum(&share, &wishes[at]));
        }
        share
    }

    /// What handing out the block that is ready for such a request adds to the sums, and whether there is room for that
    /// below the peaks; nothing if none is ready. Under the device's lock.
    #[inline]
    pub(crate) fn need(
        &self,
        stream: Stream,
        len: u64,
        requested: u64,
        small: bool,
    ) -> Option<(Amounts, bool)> {
        let place = self.streams.place_of(stream)?;
        let shard = self.shard(place);
        let key = key_of(len, place, small);
        let ring = &shard.ring;
        // A look without the flag spares it when there is nothing. What waits is looked through under it only.
        if shard.find(key, small).is_none() && ring.lane(key).is_none() {
            return None;
        }
        let _guard = shard.flag.lock();
        let need = if shard.find(key, small).is_some() {
            amounts(len, requested)
        } else {
            let (_, slot) = ring.ready(ring.lane(key)?, &self.streams, self.most(small))?;
            let before = slot.requested.load(Relaxed);
            if slot.waits() { Counts::need_to_resume(before, requested) } else { amounts(len, requested) }
        };
        Some((need, shard.counts(small).has_room(need)))
    }

    /// Lets the shard of a stream hand out one block that it [needs](Self::need) room for, beyond the room there is.
    /// Called under the device's lock after [`gather`](Self::gather); the next [`deal`](Self::deal) ends it.
    pub(crate) fn grant(&self, stream: Stream, small: bool, need: Amounts) {
        if let Some(place) = self.streams.place_of(stream) {
            let shard = self.shard(place);
            let _guard = shard.flag.lock();
            shard.counts(small).grant(need);
        }
    }

    /// The blocks that rest here, and the sums, of each shard at one moment. A block rests in one shard only and is
    /// counted there, so that the two agree although other threads go on in the shards that are not looked at.
    /// Called under the device's lock.
    pub(crate) fn account(&self) -> (Vec<Resting>, Flow) {
        let (mut all, mut sum) = (Vec::new(), Flow::default());
        for shard in self.shards.iter() {
            let _guard = shard.flag.lock();
            shard.list(&self.streams, &mut all);
            sum.add(&shard.flow());
        }
        (all, sum)
    }

    /// The blocks that rest here. Called under the device's lock.
    pub(crate) fn resting(&self) -> Vec<Resting> {
        let mut all = Vec::new();
        for shard in self.shards.iter() {
            let _guard = shard.flag.lock();
            shard.list(&self.streams, &mut all);
        }
        all
    }
}
