//! Ages of idle memory: counted in frees, or in the driver's clock.
//!
//! A free block knows after how many frees it became free. The clock is looked at now and then and keeps
//! pairs of both counts, so that a time can be turned into a number of frees:
//!
//! ```text
//! frees      0 ........ 7200 ........ 7272 .... 7344
//! time       0          5.0 s         5.2 s     5.9 s (now)
//! older than 0.5 s: what became free up to free 7272, because that was known at 5.2 s
//! ```
//!
//! Memory is never taken for older than it is; it may be taken for younger, by the time between two looks.

use std::collections::VecDeque;

/// Pairs that are kept; beyond, the older half is thinned out, so that the distance of two pairs
/// remains a fraction of their age.
const MOST: usize = 128;

/// How many blocks had become free at which times.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Frees and nanoseconds, both rising.
    pairs: VecDeque<(u64, u64)>,
}

impl Clock {
    /// Notes that so many blocks have become free at time `now`, in nanoseconds.
    pub(crate) fn note(&mut self, frees: u64, now: u64) {
        match self.pairs.back() {
            // The earlier time says more; and threads may come here out of order.
            Some(&(known, then)) if known >= frees || then > now => return,
            _ => self.pairs.push_back((frees, now)),
        }
        if self.pairs.len() > MOST {
            let mut place = 0;
            self.pairs.retain(|_| {
                place += 1;
                place > MOST / 2 || place % 2 == 1
            });
        }
    }

    /// How many blocks had become free `age` nanoseconds before `now`, as far as is known.
    pub(crate) fn frees_before(&self, now: u64, age: u64) -> u64 {
        let old = self.pairs.partition_point(|&(_, then)| now.saturating_sub(then) >= age);
        if old == 0 { 0 } else { self.pairs[old - 1].0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counts_as_older_than_it_is() {
        let mut clock = Clock::default();
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut frees, mut now, mut history) = (0, 0, vec![(0, 0)]);
        for _ in 0..20_000 {
            frees += rng.u64(..3);
            now += rng.u64(..1000);
            history.push((frees, now));
            if rng.u8(..4) == 0 {
                clock.note(frees, now);
            }
            let age = rng.u64(..2 * now + 1);
            let most = history.iter().rev().find(|(_, then)| now - then >= age).map_or(0, |pair| pair.0);
            assert!(clock.frees_before(now, age) <= most);
            assert!(clock.pairs.len() <= MOST);
        }
        // What is remembered is not far off either: a pair is at most a quarter of its age too old.
        for age in [now / 100, now / 10, now / 2] {
            let found = clock.frees_before(now, age);
            let then = history.iter().find(|(known, _)| *known >= found).expect("known").1;
            assert!(now - then <= age + age / 4 + 10_000, "{} for {age}", now - then);
        }
    }

    #[test]
    fn equal_counts_keep_the_earlier_time() {
        let mut clock = Clock::default();
        clock.note(5, 100);
        clock.note(5, 900);
        clock.note(4, 950);
        assert_eq!(clock.frees_before(1000, 900), 5);
        assert_eq!(clock.frees_before(1000, 901), 0);
    }
}
