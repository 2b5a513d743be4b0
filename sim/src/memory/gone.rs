//! What was mapped until lately, so that a later use of it can be traced to the calls.

use std::collections::{BTreeMap, VecDeque};

use crate::made::Made;

/// So many ranges are remembered.
const MOST: usize = 4096;

/// Ranges of addresses whose mapping was taken away.
#[derive(Debug, Default)]
pub(super) struct Gone {
    ranges: BTreeMap<u64, Range>,
    /// Starts in the order in which they were noted, some of them noted again since.
    order: VecDeque<(u64, u64)>,
    next: u64,
}

#[derive(Debug)]
struct Range {
    len: u64,
    /// Tells this note from others of the same start.
    number: u64,
    made: Made,
    ended: Made,
}

impl Gone {
    /// The mapping of a range, made by that call, is taken away by the call this thread is in.
    pub(super) fn note(&mut self, start: u64, len: u64, made: Made) {
        let number = self.next;
        self.next += 1;
        self.ranges.insert(start, Range { len, number, made, ended: Made::now() });
        self.order.push_back((start, number));
        if self.order.len() > MOST
            && let Some((start, number)) = self.order.pop_front()
            && self.ranges.get(&start).is_some_and(|range| range.number == number)
        {
            self.ranges.remove(&start);
        }
    }

    /// The calls that made and ended the last mapping at an address, if that is remembered.
    pub(super) fn at(&self, address: u64) -> Option<(Made, Made)> {
        // Ranges overlap only where a shorter one was noted inside an older one; the newest counts.
        let before = self.ranges.range(..=address).rev().take(16);
        let hits = before.filter(|&(&start, range)| address - start < range.len);
        hits.max_by_key(|(_, range)| range.number).map(|(_, range)| (range.made, range.ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;

    #[test]
    fn the_newest_note_counts_and_old_ones_go() {
        let mut gone = Gone::default();
        let call = |number| {
            Made::enter(Call::UnmapMem, number);
            Made::now()
        };
        let first = call(1);
        gone.note(100, 50, first);
        let second = call(2);
        gone.note(120, 10, second);
        assert_eq!(gone.at(125), Some((second, second)));
        assert_eq!(gone.at(140), Some((first, first)));
        assert_eq!(gone.at(150), None);
        gone.note(100, 5, second);
        assert_eq!(gone.at(140), None, "the same start was noted again, shorter");
        for start in 0..2 * MOST as u64 {
            gone.note(1000 + start, 1, second);
        }
        assert_eq!((gone.at(102), gone.at(1000)), (None, None));
        assert!(gone.ranges.len() <= MOST && gone.at(1000 + 2 * MOST as u64 - 1).is_some());
    }
}
