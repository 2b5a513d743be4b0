//! Free ranges of one window of addresses.
//!
//! New ranges are taken behind the last one as long as the window has room there, so that a freed
//! address does not come back at once; after that the smallest free range that fits is taken.
//! Every operation is logarithmic in the number of free ranges, apart from ranges that are passed
//! over because of alignment.

use std::collections::{BTreeMap, BTreeSet};

/// The free part of a window.
#[derive(Debug)]
pub(super) struct Space {
    base: u64,
    end: u64,
    /// Start to end of each free range; no two touch.
    free: BTreeMap<u64, u64>,
    /// The same ranges as (length, start).
    sizes: BTreeSet<(u64, u64)>,
    /// Where the last range without an expected address ended.
    cursor: u64,
}

impl Space {
    pub(super) fn new(base: u64, len: u64) -> Self {
        let end = base + len;
        let mut space = Self { base, end, free: BTreeMap::new(), sizes: BTreeSet::new(), cursor: base };
        space.insert(base, end);
        space
    }

    /// The whole window as start and length.
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.base, self.end - self.base)
    }

    /// Takes `len` bytes at a multiple of `align` (a power of two).
    pub(super) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let start = self.behind_cursor(len, align).or_else(|| self.best_fit(len, align))?;
        let taken = self.take_at(start, len);
        debug_assert!(taken);
        self.cursor = start + len;
        Some(start)
    }

    /// Takes exactly that range; false if any byte of it is taken or outside the window.
    pub(super) fn take_at(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        let Some((&from, &to)) = self.free.range(..=start).next_back() else { return false };
        if to < end {
            return false;
        }
        self.remove(from, to);
        self.insert(from, start);
        self.insert(end, to);
        true
    }

    /// Gives a taken range back.
    pub(super) fn give(&mut self, start: u64, len: u64) {
        let (mut from, mut to) = (start, start + len);
        if let Some((&before, &edge)) = self.free.range(..from).next_back()
            && edge == from
        {
            self.remove(before, edge);
            from = before;
        }
        if let Some(&edge) = self.free.get(&to) {
            self.remove(to, edge);
            to = edge;
        }
        self.insert(from, to);
    }

    fn behind_cursor(&self, len: u64, align: u64) -> Option<u64> {
        let around = self.free.range(..=self.cursor).next_back();
        let after = self.free.range(self.cursor..).next();
        around.into_iter().chain(after).find_map(|(&from, &to)| {
            let start = from.max(self.cursor).checked_next_multiple_of(align)?;
            (start.checked_add(len)? <= to).then_some(start)
        })
    }

    fn best_fit(&self, len: u64, align: u64) -> Option<u64> {
        self.sizes.range((len, 0)..).find_map(|&(size, from)| {
            let start = from.checked_next_multiple_of(align)?;
            (start - from <= size - len).then_some(start)
        })
    }

    fn insert(&mut self, from: u64, to: u64) {
        if from < to {
            self.free.insert(from, to);
            self.sizes.insert((to - from, from));
        }
    }

    fn remove(&mut self, from: u64, to: u64) {
        self.free.remove(&from);
        self.sizes.remove(&(to - from, from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_all_come_back() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut space = Space::new(1 << 20, 1 << 20);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for _ in 0..4000 {
            if random.bool() || taken.is_empty() {
                let (len, align) = (random.u64(1..9000), 1 << random.u32(0..13));
                if let Some(start) = space.take(len, align) {
                    assert_eq!(start % align, 0);
                    assert!(start >= 1 << 20 && start + len <= 2 << 20);
                    assert!(taken.iter().all(|&(other, size)| start + len <= other || other + size <= start));
                    assert!(!space.take_at(start, 1));
                    taken.push((start, len));
                }
            } else {
                let (start, len) = taken.swap_remove(random.usize(..taken.len()));
                space.give(start, len);
            }
        }
        for (start, len) in taken {
            space.give(start, len);
        }
        assert_eq!(space.free, BTreeMap::from([(1 << 20, 2 << 20)]));
        assert_eq!(space.sizes.len(), 1);
    }

    #[test]
    fn a_freed_address_comes_back_only_when_the_window_is_used_up() {
        let mut space = Space::new(0, 4);
        let first = space.take(1, 1).unwrap();
        space.give(first, 1);
        let rest: Vec<_> = (0..4).map_while(|_| space.take(1, 1)).collect();
        assert_eq!(rest, [1, 2, 3, 0]);
        assert_eq!(space.take(1, 1), None);
    }
}
