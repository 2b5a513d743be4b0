//! The free index: free blocks of one stream and one size class, in bins by size.
//!
//! ```text
//! units of 512 B   1 2 3 ... 63 | 64..127: 32 bins | 128..255: 32 bins | ... | up to 2 TiB
//! words            bit set iff the bin's list is not empty
//! summary          bit set iff the word is not zero
//! ```
//!
//! Up to 32 KiB a bin holds one size; above, sizes that differ by about 3 %. A search looks at the
//! request's own bin and then at the next bin that is not empty, in each at no more than
//! [`SCAN`] blocks, and takes the smallest that fits, the lower address among equals; where memory is short, at all of
//! them. Nothing here allocates after construction.

use super::block::{BlockId, Blocks, NONE};

/// Bins below this index hold exactly one size.
const EXACT: usize = 64;
/// Bins for each power of two above.
const PER_POWER: usize = 32;
const BINS: usize = EXACT + 26 * PER_POWER;
const WORDS: usize = BINS.div_ceil(64);
/// Blocks looked at in one bin.
const SCAN: usize = 32;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Bins {
    summary: u64,
    words: [u64; WORDS],
    heads: Box<[BlockId]>,
    /// Blocks in all bins.
    count: u32,
    /// Whether the pool knows that there may be some (`Pool::homes`).
    pub(super) listed: bool,
}

impl Default for Bins {
    fn default() -> Self {
        let heads = vec![NONE; BINS].into_boxed_slice();
        Self { summary: 0, words: [0; WORDS], heads, count: 0, listed: false }
    }
}

/// The bin of a block of `len` bytes.
#[inline]
fn bin_of(len: u64) -> usize {
    let units = len >> 9;
    if units < EXACT as u64 {
        return units as usize;
    }
    let power = 63 - units.leading_zeros() as usize;
    let step = (units >> (power - 5)) as usize & (PER_POWER - 1);
    (EXACT + (power - 6) * PER_POWER + step).min(BINS - 1)
}

impl Bins {
    /// How many blocks are in the index.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Adds a free block.
    #[inline]
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, id: BlockId) {
        let bin = bin_of(blocks[id].len);
        let head = self.heads[bin];
        blocks[id].bin_prev = NONE;
        blocks[id].bin_next = head;
        if head == NONE {
            self.words[bin / 64] |= 1 << (bin % 64);
            self.summary |= 1 << (bin / 64);
        } else {
            blocks[head].bin_prev = id;
        }
        self.heads[bin] = id;
        self.count += 1;
    }

    /// Takes a block out; its size must not have changed since [`insert`](Self::insert).
    #[inline]
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: BlockId) {
        let block = &blocks[id];
        let (prev, next, bin) = (block.bin_prev, block.bin_next, bin_of(block.len));
        if next != NONE {
            blocks[next].bin_prev = prev;
        }
        if prev != NONE {
            blocks[prev].bin_next = next;
        } else {
            debug_assert_eq!(self.heads[bin], id);
            self.heads[bin] = next;
            if next == NONE {
                self.words[bin / 64] &= !(1 << (bin % 64));
                if self.words[bin / 64] == 0 {
                    self.summary &= !(1 << (bin / 64));
                }
            }
        }
        self.count -= 1;
    }

    /// The best block of at least `len` bytes for which `accept` holds. `ALL`: of all, however many a bin has.
    #[inline]
    pub(crate) fn find<const ALL: bool>(
        &self,
        blocks: &Blocks,
        len: u64,
        mut accept: impl FnMut(BlockId) -> bool,
    ) -> Option<BlockId> {
        if self.count == 0 {
            return None;
        }
        let mut bin = bin_of(len);
        if self.heads[bin] == NONE {
            bin = self.next_bin(bin + 1)?;
        }
        loop {
            if let Some(id) = self.best_in::<ALL>(blocks, bin, len, &mut accept) {
                return Some(id);
            }
            bin = self.next_bin(bin + 1)?;
        }
    }

    /// The largest block's size in bytes, exact.
    pub(crate) fn largest(&self, blocks: &Blocks) -> u64 {
        if self.summary == 0 {
            return 0;
        }
        let word = 63 - self.summary.leading_zeros() as usize;
        let bin = word * 64 + 63 - self.words[word].leading_zeros() as usize;
        let mut id = self.heads[bin];
        let mut largest = 0;
        while id != NONE {
            largest = largest.max(blocks[id].len);
            id = blocks[id].bin_next;
        }
        largest
    }

    /// All blocks in the index, by rising bin.
    pub(crate) fn ids<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + 'a {
        self.heads.iter().flat_map(move |&head| {
            core::iter::successors((head != NONE).then_some(head), move |&id| {
                let next = blocks[id].bin_next;
                (next != NONE).then_some(next)
            })
        })
    }

    #[inline]
    fn next_bin(&self, from: usize) -> Option<usize> {
        if from >= BINS {
            return None;
        }
        let word = from / 64;
        let rest = self.words[word] & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let above = self.summary & (u64::MAX << word) & !(1 << word);
        if above == 0 {
            return None;
        }
        let word = above.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    #[inline]
    fn best_in<const ALL: bool>(
        &self,
        blocks: &Blocks,
        bin: usize,
        len: u64,
        accept: &mut impl FnMut(BlockId) -> bool,
    ) -> Option<BlockId> {
        let mut best = None;
        let mut best_key = (u64::MAX, u64::MAX);
        let mut id = self.heads[bin];
        let mut seen = 0;
        while id != NONE && (ALL || seen < SCAN) {
            let block = &blocks[id];
            let key = (block.len, block.addr);
            if block.len >= len && key < best_key && accept(id) {
                best = Some(id);
                best_key = key;
            }
            id = block.bin_next;
            seen += 1;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::block::State;
    use crate::core::segment::Class;

    #[test]
    fn bins_are_monotone_and_tight() {
        let mut last = 0;
        for units in 1..200_000u64 {
            let bin = bin_of(units << 9);
            assert!(bin == last || bin == last + 1, "at {units}: {last} to {bin}");
            last = bin;
        }
        assert!(bin_of(u64::MAX) < BINS);
    }

    #[test]
    fn finds_what_a_full_search_finds_when_bins_are_short() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut blocks = Blocks::default();
        let mut bins = Bins::default();
        let mut present: Vec<BlockId> = Vec::new();
        for step in 0..20_000u64 {
            if present.len() < 30 || rng.bool() && present.len() < 60 {
                let len = (1 << rng.u32(9..36)) + (rng.u64(0..64) << 9);
                let id = blocks.add(0, Class::of(u64::MAX), step << 40, len, State::Free);
                bins.insert(&mut blocks, id);
                present.push(id);
            } else {
                let id = present.swap_remove(rng.usize(..present.len()));
                bins.remove(&mut blocks, id);
                blocks.remove(id);
            }
            let len = (1 << rng.u32(9..36)) + (rng.u64(0..64) << 9);
            let fits = |id: &&BlockId| blocks[**id].len >= len;
            let expected = present.iter().filter(fits).min_by_key(|id| (blocks[**id].len, blocks[**id].addr));
            assert_eq!(bins.find::<false>(&blocks, len, |_| true), expected.copied());
            assert_eq!(bins.count() as usize, present.len());
            let largest = present.iter().map(|id| blocks[*id].len).max();
            assert_eq!(bins.largest(&blocks), largest.unwrap_or(0));
            assert_eq!(bins.ids(&blocks).count(), present.len());
        }
    }
}
