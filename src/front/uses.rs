//! Which other streams a live block was recorded on, noted without a lock.
//!
//! Each stream that blocks are recorded on has a *column* of the device; each block has a byte for each
//! column. Two threads that record one block on two streams write different bytes, and two that record it
//! on one stream write the same value, so plain stores lose nothing. Who frees the block comes after all of
//! them and reads the bytes.
//!
//! ```text
//! touched | many | columns 0 to 3 | columns 4 to 11
//!    1    |  0   | 0   2   0   0  | (not looked at)         used in column 1
//! ```
//!
//! A byte that is set too late, by a program that records a block it has freed, makes the block's next
//! owner wait for one stream more, and nothing else.

use crate::sync::StoreAmongSwaps;
use crate::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};

/// Streams of a device that can have a column.
pub(crate) const COLUMNS: usize = 12;
/// Columns that are looked at for every block that is used on other streams.
const FEW: usize = 4;

/// A set of columns: bit `n` is column `n`.
pub(crate) type Mask = u16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Whether anything here has to be looked at when the block is freed.
    touched: AtomicU8,
    /// Whether any of the later columns is set.
    many: AtomicU8,
    /// The bit of each column that is set.
    few: [AtomicU8; FEW],
    /// The later ones.
    rest: [AtomicU8; COLUMNS - FEW],
}

#[inline]
fn all(bytes: &[AtomicU8]) -> u8 {
    bytes.iter().fold(0, |all, byte| all | byte.load(Relaxed))
}

impl Uses {
    /// Whether the block may have been recorded.
    #[inline]
    pub(super) fn is_touched(&self) -> bool {
        self.touched.load(Relaxed) != 0
    }

    /// Notes a use.
    #[inline]
    pub(super) fn mark(&self, column: usize) {
        match self.few.get(column) {
            Some(byte) => byte.store(1 << column, Relaxed),
            None => self.mark_rest(column - FEW),
        }
        // Seen with what was stored before; see `take`.
        self.touched.store_among_swaps(1, Release);
    }

    /// Forgets a use of a live block.
    pub(super) fn erase(&self, column: usize) {
        self.zero(1 << column);
    }

    #[cold]
    #[inline(never)]
    fn mark_rest(&self, column: usize) {
        if let Some(byte) = self.rest.get(column) {
            byte.store(1 << column, Relaxed);
            self.many.store(1, Relaxed);
        }
    }

    /// The columns noted.
    #[inline]
    pub(super) fn mask(&self) -> Mask {
        let few = Mask::from(all(&self.few));
        if self.many.load(Relaxed) == 0 { few } else { few | self.rest() }
    }

    #[cold]
    #[inline(never)]
    fn rest(&self) -> Mask {
        Mask::from(all(&self.rest)) << FEW
    }

    /// Forgets these columns, all there are, of a block that is being freed.
    #[inline]
    pub(super) fn clear(&self, mask: Mask) {
        self.touched.store(0, Relaxed);
        match self.few.get(mask.trailing_zeros() as usize) {
            Some(byte) if mask.is_power_of_two() => byte.store(0, Relaxed),
            _ => self.clear_all(mask),
        }
    }

    #[cold]
    #[inline(never)]
    fn clear_all(&self, mask: Mask) {
        self.zero(mask);
        if mask >> FEW != 0 {
            self.many.store(0, Relaxed);
        }
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
