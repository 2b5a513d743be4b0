//! Blocks that wait for other streams, of which a program has too few.
//!
//! A program that frees a block which another stream has used, and asks for one like it at once, needs an event each time
//! unless it has others meanwhile. How many it may have is a share of what it holds, so that one that holds little ends a
//! wait with nearly every pair of calls, which takes far longer than the pair.
//!
//! ```text
//! waits ended        16   16   16 ...  16   16   16   16 ...   16 times in a row the core freed next to nothing, so that
//! frees of the core   0    0    0 ...   0    0    0    0 ...   there is nothing but pairs of calls: room, and twice as much
//! blocks each ended   1    1    1 ...   1    4    8   16 ...   each time, until a wait that is ended is that of 400 blocks,
//! room                0    0    0 ...   8   16   32   64 MiB   or that is all there may be
//! ```
//!
//! A program in which other memory comes and goes has the core free most of it, and gets no room beside its headroom; and
//! what there was ends with that.

use super::Core;

/// Waits that are ended from one time that this is looked at to the next.
const APART: u32 = 16;
/// The core may have freed so many blocks meanwhile.
const QUIET: u64 = 16;
/// So many times in a row.
const ROW: u32 = 16;
/// A wait of so many blocks is long enough.
const ENOUGH: u32 = 400;
/// The first room, bytes.
const FIRST: u64 = 8 << 20;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Haste {
    /// What the core had freed at the last time.
    freed: u64,
    /// Times in a row that the core was quiet.
    quiet: u32,
    /// Bytes that may be held beyond the headroom for blocks that wait.
    room: u64,
}

impl Haste {
    /// Learns, after another [`APART`] waits, how many blocks the core has `freed`, and of how many the last wait was; `most`:
    /// bytes of room at most.
    fn note(&mut self, freed: u64, blocks: u32, most: u64) {
        let before = core::mem::replace(&mut self.freed, freed);
        if freed.saturating_sub(before) > QUIET {
            return self.end();
        }
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet >= ROW && blocks < ENOUGH {
            self.room = (self.room * 2).max(FIRST);
        }
        self.room = self.room.min(most);
    }

    /// There is none to spare.
    pub(crate) fn end(&mut self) {
        (self.quiet, self.room) = (0, 0);
    }
}

impl Core {
    /// Whether it is time to learn how much is freed: the device was prompt at the last wait.
    pub(crate) fn is_time_for_haste(&self) -> bool {
        self.waits_ended.is_multiple_of(APART) && self.ask_patience == 0
    }

    /// Learns of how many blocks a wait was that was ended.
    pub(crate) fn note_haste(&mut self, blocks: u32) {
        let device = self.limit.map_or(self.limits.total, |limit| limit.min(self.limits.total));
        let allowed = self.config.adaptive_headroom && !self.is_full();
        let share = if allowed { self.config.waiting_headroom } else { 0.0 };
        self.haste.note(self.frees, blocks, (device as f64 * share) as u64);
    }

    /// Bytes that may be held beyond the headroom for blocks that wait for other streams.
    pub(crate) fn room_to_wait(&self) -> u64 {
        self.haste.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 100 << 20;

    /// Notes `times` in a row that the core freed so many blocks for each wait, and of how many blocks that was.
    fn noted(haste: &mut Haste, times: u32, freed: u64, blocks: u32) -> u64 {
        (0..times).for_each(|_| haste.note(haste.freed + freed * u64::from(APART), blocks, MOST));
        haste.room
    }

    #[test]
    fn nothing_but_pairs_gets_room_until_waits_are_rare() {
        let mut haste = Haste::default();
        assert_eq!(noted(&mut haste, ROW - 1, 1, 1), 0);
        assert_eq!(noted(&mut haste, 1, 1, 1), FIRST);
        assert_eq!(noted(&mut haste, 2, 0, ENOUGH - 1), FIRST * 4);
        assert_eq!(noted(&mut haste, 9, 0, ENOUGH), FIRST * 4);
        assert_eq!(noted(&mut haste, 9, 0, 1), MOST);
        haste.note(haste.freed, 1, FIRST);
        assert_eq!(haste.room, FIRST, "a lower limit");
    }

    #[test]
    fn what_the_core_frees_ends_it() {
        let mut haste = Haste::default();
        assert_eq!(noted(&mut haste, ROW * 9, 2, 1), 0);
        assert!(noted(&mut haste, ROW, 0, 1) > 0);
        assert_eq!(noted(&mut haste, 1, 2, 1), 0);
        assert_eq!(noted(&mut haste, ROW - 1, 0, 1), 0);
    }
}
