//! Which other streams a live block was recorded on, noted without a lock.
//!
//! Each stream that blocks are recorded on has a *column* of the device; each block has a byte for each
//! column. Two threads that record one block on two streams write different bytes, and two that record it
//! on one stream write the same value, so plain stores lose nothing. Who frees the block comes after all of
//! them and reads the bytes.
//!
//! ```text
//! touched | many | columns 0 to 3 | columns 4 to 11
//!    1    |  0   | 0   1   0   0  | (not looked at)         used in column 1
//! ```
//!
//! What a byte of the first columns is set to tells which it is, so that their sum does where only one is set.
//!
//! A byte that is set too late, by a program that records a block it has freed, makes the block's next
//! owner wait for one stream more, and nothing else.

use crate::sync::StoreAmongSwaps;
use crate::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};

/// Streams of a device that can have a column.
pub(crate) const COLUMNS: usize = 12;
/// Columns that are looked at for every block that is used on other streams.
const FEW: usize = 4;

/// What the byte of one of the first columns is set to, without the column.
const SET: u8 = 16;
/// What `many` is set to: more than the sum where one of the first columns is set.
const MANY: u8 = 2 * SET;

/// A set of columns: bit `n` is column `n`.
pub(crate) type Mask = u16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Whether anything here has to be looked at when the block is freed.
    touched: AtomicU8,
    /// Whether any of the later columns is set.
    many: AtomicU8,
    /// For each column that is set, [`SET`] and the column.
    few: [AtomicU8; FEW],
    /// The later ones.
    rest: [AtomicU8; COLUMNS - FEW],
}

fn bits(bytes: &[AtomicU8]) -> Mask {
    bytes.iter().rev().fold(0, |bits, byte| bits << 1 | Mask::from(byte.load(Relaxed) != 0))
}

impl Uses {
    /// Whether the block may have been recorded.
    #[inline]
    pub(super) fn is_touched(&self) -> bool {
        self.touched.load(Relaxed) != 0
    }

    /// Notes a use in the column of that number less one; false where that is none.
    #[inline]
    pub(super) fn try_mark(&self, number: u8) -> bool {
        let column = usize::from(number).wrapping_sub(1);
        match self.few.get(column) {
            Some(byte) => byte.store(SET - 1 + number, Relaxed),
            None => {
                if number == 0 {
                    return false;
                }
                self.mark_rest(column - FEW);
            }
        }
        // Seen with what was stored before; see `take`.
        self.touched.store_among_swaps(1, Release);
        true
    }

    /// Forgets a use of a live block.
    pub(super) fn erase(&self, column: usize) {
        self.zero(1 << column);
    }

    #[cold]
    #[inline(never)]
    fn mark_rest(&self, column: usize) {
        if let Some(byte) = self.rest.get(column) {
            byte.store(1, Relaxed);
            self.many.store(MANY, Relaxed);
        }
    }

    /// The columns noted.
    pub(super) fn mask(&self) -> Mask {
        let few = bits(&self.few);
        if self.many.load(Relaxed) == 0 { few } else { few | bits(&self.rest) << FEW }
    }

    /// The column, where only one is noted and that is one of the first.
    #[inline]
    pub(super) fn only(&self) -> Option<usize> {
        let sum =
            self.few.iter().fold(self.many.load(Relaxed), |sum, byte| sum.wrapping_add(byte.load(Relaxed)));
        (sum / SET == 1).then_some(usize::from(sum) % FEW)
    }

    /// Forgets the [`only`](Self::only) column of a block that is being freed.
    #[inline]
    pub(super) fn clear_only(&self, column: usize) {
        self.touched.store(0, Relaxed);
        if let Some(byte) = self.few.get(column) {
            byte.store(0, Relaxed);
        }
    }

    /// Forgets all columns of a block that is being freed.
    pub(super) fn clear(&self) {
        self.touched.store(0, Relaxed);
        self.zero(self.mask());
        self.many.store(0, Relaxed);
    }

    /// Takes what is noted of a live block out. A use that is noted at the same time is either taken, or
    /// leaves the block touched.
    pub(super) fn take(&self) -> Mask {
        if self.touched.swap(0, AcqRel) == 0 {
            return 0;
        }
        let mask = self.mask();
        self.zero(mask);
        mask
    }

    fn zero(&self, mask: Mask) {
        let mut left = mask;
        while left != 0 {
            let column = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(byte) = self.few.get(column).or_else(|| self.rest.get(column - FEW)) {
                byte.store(0, Relaxed);
            }
        }
    }

    /// A new block begins here.
    pub(super) fn reset(&self) {
        self.take();
    }
}
