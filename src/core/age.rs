//! Ages of idle memory: counted in frees, or in the driver's clock.
//!
//! A chunk carries the stream and epoch of the last free in it, and an epoch is closed now and then. A record
//! keeps when that was, so that an age can be turned into an epoch, in two steps:
//!
//! ```text
//! time (s)              0 ....... 5.0 ....... 5.2 ....... 5.9 = now       older than 0.5 s:
//! frees by then         0 ...... 7200 ...... 7272 ...... 7344             what was freed up to free 7272,
//! epoch closed by then  - ........ 3 ......... - ........ 4               in an epoch up to 3
//! ```
//!
//! Memory is never taken for older than it is; it may be taken for younger, by the time between two notes. So
//! a large idle stretch has an age, although small blocks come and go at its edge.

use std::collections::VecDeque;

/// Pairs that are kept; beyond, they are thinned out so that the distance of two pairs remains a fraction of
/// their age.
const MOST: usize = 48;

/// At which point another count had which value; both only rise.
#[derive(Debug)]
pub(crate) struct Record {
    /// Values and points.
    pairs: VecDeque<(u64, u64)>,
}

impl Default for Record {
    /// Nothing is known. The room is made now, so that nothing is allocated later.
    fn default() -> Self {
        Self { pairs: VecDeque::with_capacity(MOST + 1) }
    }
}

impl Record {
    /// Notes that the value was reached at that point.
    pub(crate) fn note(&mut self, value: u64, at: u64) {
        match self.pairs.back_mut() {
            // The earlier point says more; and threads may come here out of order.
            Some(&mut (known, then)) if known >= value || then > at => return,
            // Of one point the last value says most.
            Some((known, then)) if *then == at => *known = value,
            _ => self.pairs.push_back((value, at)),
        }
        if self.pairs.len() > MOST {
            self.forget_one(at);
        }
    }

    /// Forgets the pair that is missed least: the gap it leaves is the smallest part of its age.
    fn forget_one(&mut self, now: u64) {
        let mut least = (u64::MAX, 1, 0);
        let three = self.pairs.iter().zip(self.pairs.iter().skip(1)).zip(self.pairs.iter().skip(2));
        for (index, ((before, pair), after)) in three.enumerate() {
            let (gap, age) = (after.1 - before.1, now - pair.1 + 1);
            if u128::from(gap) * u128::from(least.1) < u128::from(least.0) * u128::from(age) {
                least = (gap, age, index + 1);
            }
        }
        self.pairs.remove(least.2);
    }

    /// The value that had been reached by that point, as far as is known.
    pub(crate) fn until(&self, at: u64) -> u64 {
        let known = self.pairs.partition_point(|&(_, then)| then <= at);
        if known == 0 { 0 } else { self.pairs[known - 1].0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counts_as_older_than_it_is() {
        let mut record = Record::default();
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut value, mut now, mut history) = (0, 0, vec![(0, 0)]);
        for _ in 0..20_000 {
            value += rng.u64(..3);
            now += rng.u64(..1000);
            history.push((value, now));
            if rng.u8(..4) == 0 {
                record.note(value, now);
            }
            let at = rng.u64(..now + 1);
            let place = history.partition_point(|&(_, then)| then <= at);
            assert!(record.until(at) <= history[place - 1].0);
            assert!(record.pairs.len() <= MOST);
        }
        // What is remembered is not far off either.
        for age in [now / 100, now / 10, now / 2] {
            let found = record.until(now - age);
            let then = history.iter().find(|(known, _)| *known >= found).expect("known").1;
            assert!(now - then <= age + age / 2 + 10_000, "{} for {age}", now - then);
        }
    }

    #[test]
    fn equal_values_keep_the_earlier_point() {
        let mut record = Record::default();
        record.note(5, 100);
        record.note(5, 900);
        record.note(4, 950);
        assert_eq!((record.until(100), record.until(99)), (5, 0));
    }
}
