//! Which CANN version's library is played: calls that came later answer "not supported".
//!
//! An ELF export cannot disappear at run time, so this switch makes a call answer 207000 and say so.
//! A library that really lacks the symbols is linked by `install --surface`, from the same list.

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// A CANN version: major * 100 + minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Surface(u16);

/// The oldest: everything the public headers of 8.1 declare but graph capture.
pub(crate) const CANN_8_0: Surface = Surface(800);
/// Graph capture.
pub(crate) const CANN_8_1: Surface = Surface(801);
/// Sharing of `aclrtMalloc` memory, batched copies.
pub(crate) const CANN_8_2: Surface = Surface(802);
/// Host functions, counted finalisation.
pub(crate) const CANN_8_3: Surface = Surface(803);
/// Access of mappings, second versions of the host and sharing calls, state callbacks.
pub(crate) const CANN_8_5: Surface = Surface(805);
/// Address ranges, pools, managed memory.
pub(crate) const CANN_9_0: Surface = Surface(900);
/// Fills of words, second batched copies.
pub(crate) const CANN_9_1: Surface = Surface(901);
/// Mappings without access, limits.
pub(crate) const CANN_9_2: Surface = Surface(902);

/// All of them, oldest first.
const ALL: [Surface; 8] = [CANN_8_0, CANN_8_1, CANN_8_2, CANN_8_3, CANN_8_5, CANN_9_0, CANN_9_1, CANN_9_2];

/// 0 until one is chosen.
static PLAYED: AtomicU16 = AtomicU16::new(0);

impl Surface {
    /// The surface a text names: `8.1`, `9.0`; `9.x` is the newest of 9, `8.x` the newest of 8.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once('.')?;
        let major: u16 = major.parse().ok()?;
        let of_major = ALL.iter().copied().filter(|surface| surface.0 / 100 == major);
        if minor == "x" {
            return of_major.max();
        }
        let minor: u16 = minor.parse().ok()?;
        of_major.filter(|surface| surface.0 % 100 == minor).max()
    }

    /// The one that is played.
    pub(crate) fn played() -> Self {
        Self(PLAYED.load(Relaxed))
    }

    /// Plays this one from now on.
    pub(crate) fn play(self) {
        PLAYED.store(self.0, Relaxed);
    }

    /// Plays this one if none was chosen before.
    pub(crate) fn play_unless_chosen(self) {
        // Whoever was first has chosen.
        let _ = PLAYED.compare_exchange(0, self.0, Relaxed, Relaxed);
    }

    /// Its number as `aclsysGetVersionNum` counts.
    pub(crate) fn package_number(self) -> i32 {
        i32::from(self.0 / 100) * 10_000_000 + i32::from(self.0 % 100) * 100_000
    }

    /// What `aclrtGetVersion` answers. 8.0 and 8.2 are read off the row of the others.
    pub(crate) fn version(self) -> (i32, i32, i32) {
        let minor = match self {
            CANN_8_0 => 12,
            CANN_8_1 => 13,
            CANN_8_2 => 14,
            CANN_8_3 => 15,
            CANN_8_5 => 16,
            _ => 17,
        };
        (1, minor, 0)
    }
}

impl std::fmt::Display for Surface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_as_the_vendor_does() {
        assert_eq!(CANN_9_0.package_number(), 90_000_000);
        assert_eq!(CANN_8_5.package_number() + 1000, 80_501_000);
    }

    #[test]
    fn surfaces_are_read_and_written() {
        for surface in ALL {
            assert_eq!(Surface::parse(&surface.to_string()), Some(surface));
        }
        assert_eq!(Surface::parse("9.x"), Some(CANN_9_2));
        assert_eq!(Surface::parse("8.x"), Some(CANN_8_5));
        for wrong in ["", "9", "7.0", "8.4", "8.1.1", "x.x", "-8.1"] {
            assert_eq!(Surface::parse(wrong), None, "{wrong}");
        }
        assert_eq!(CANN_8_1.version(), (1, 13, 0));
        assert_eq!(CANN_9_1.version(), (1, 17, 0));
    }
}
