//! How a program's machine and allocator are set up.

use ascend_alloc::Config;

use crate::machine::SimSetup;

/// Settings; every value is one. Where the allocator belongs to the process, as through the C interface, only the
/// lag counts.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Setup {
    /// The simulated machine.
    pub machine: SimSetup,
    /// Fixed blocks only.
    pub classic: bool,
    /// Freed blocks are not kept at hand.
    pub without_front: bool,
    /// `roundup_power2_divisions` of two to this power; above 3 it is off.
    pub divisions: u8,
    /// `headroom` in percent, modulo 101.
    pub headroom: u8,
    /// `reservation_gb`, modulo 3; 0 lets the allocator choose.
    pub reservation: u8,
    /// `decay_ms`, modulo 100; below 50 is never.
    pub decay: u8,
    /// Chunks of this many granules where a request grows by as much, modulo 16; below 6 of one.
    pub wide: u8,
    /// `max_split_size_mb` of fixed blocks; up to 20 is none.
    pub max_split: u8,
    /// Idle fixed blocks go first above nine tenths.
    pub collect: bool,
}

impl Setup {
    /// The allocator's configuration.
    #[must_use]
    pub fn config(&self) -> Config {
        const MIB: u64 = 1 << 20;
        let mut config = Config {
            expandable_segments: !self.classic,
            front_cache: !self.without_front,
            headroom: f64::from(self.headroom % 101) / 100.0,
            reservation: u64::from(self.reservation % 3) << 30,
            decay_ms: if self.decay % 100 < 50 { 0 } else { u64::from(self.decay % 100) },
            ..Config::default()
        };
        if self.divisions < 4 {
            config.roundup_power2_divisions.fill(1 << self.divisions);
        }
        if self.classic {
            config.max_split_size = (self.max_split > 20).then(|| u64::from(self.max_split) * MIB);
            config.garbage_collection_threshold = self.collect.then_some(0.9);
        } else if self.wide % 16 >= 6 {
            config.large_segment_size = u64::from(self.wide % 16) * 2 * MIB;
        }
        config
    }
}
