//! Whether moving has become a habit: a program that moves chunks all the time would be better off with more
//! memory.
//!
//! ```text
//! level    goes up by what is moved, and down by a share of what is allocated
//!  6 % ---- of the highest live bytes: it goes no higher
//!  2.5 % -- above it moving is a habit
//!  0.6 % -- below it no longer
//! ```
//!
//! A step that repeats moves less and less; its level never comes near the upper border. A program that asks for
//! sizes nobody freed before passes it within a few requests, and stays above for long: the level sinks far
//! slower then, because memory that was grown into keeps the moves away.

use super::Core;

/// What was moved lately against what was allocated; all in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Churn {
    level: u64,
    /// Seen so far.
    allocated: u64,
    /// See `allocated`.
    moved: u64,
    habit: bool,
}

impl Churn {
    /// Learns how much was allocated and moved in all, and the highest live bytes so far.
    pub(crate) fn note(&mut self, allocated: u64, moved: u64, high_water: u64) {
        /// Of what is allocated so much may be moved.
        const CALM: u64 = 50;
        /// The same while moving is a habit.
        const HABIT: u64 = 3333;
        let share = if self.habit { HABIT } else { CALM };
        let flown = allocated.saturating_sub(self.allocated);
        self.level += moved.saturating_sub(self.moved);
        self.level = self.level.saturating_sub(flown / share).min(high_water * 6 / 100);
        (self.allocated, self.moved) = (allocated, moved);
        let border = if self.habit { high_water / 160 } else { high_water / 40 };
        self.habit = self.level > border;
    }

    /// Whether moving is a habit.
    pub(crate) fn is_habit(&self) -> bool {
        self.habit
    }

    /// How many physical bytes are better taken new than moved together, of `device` bytes that there are: at
    /// least `usual`. A program that has needed much of the device has it for itself; a small one may have
    /// neighbours.
    pub(crate) fn goal(&self, usual: u64, high_water: u64, device: u64) -> u64 {
        if !self.habit || high_water < device / 6 {
            usual
        } else if high_water < device / 8 * 3 {
            usual.max(high_water + high_water / 20)
        } else {
            usual.max(device)
        }
    }
}

impl Core {
    /// Up to how many physical bytes new memory is preferred to moving idle memory.
    pub(crate) fn goal(&self) -> u64 {
        /// Frees after which a device that had no chunk left is asked again without need.
        const AGAIN: u64 = 4096;
        let usual = (self.high_water as f64 * (1.0 + self.config.headroom)) as u64;
        let full = self.full_at.is_some_and(|then| self.frees < then + AGAIN);
        if full || self.patience > 0 || !self.config.adaptive_headroom {
            return usual;
        }
        let device = self.limit.map_or(self.limits.total, |limit| limit.min(self.limits.total));
        self.churn.goal(usual, self.high_water, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIGH: u64 = 1000 << 20;

    #[test]
    fn a_step_that_repeats_is_no_habit() {
        let mut churn = Churn::default();
        for step in 1..1000 {
            // Five times the peak is allocated in a step, and 3 % of the peak moved.
            churn.note(step * 5 * HIGH, step * HIGH * 3 / 100, HIGH);
            assert!(!churn.is_habit(), "step {step}");
        }
        assert_eq!(churn.goal(7, HIGH, HIGH), 7);
    }

    #[test]
    fn sizes_that_never_return_are_one_until_long_after_the_last_move() {
        let mut churn = Churn::default();
        let (mut allocated, mut moved) = (0, 0);
        while !churn.is_habit() {
            (allocated, moved) = (allocated + HIGH / 10, moved + HIGH / 100);
            churn.note(allocated, moved, HIGH);
            assert!(moved < HIGH / 10, "never noticed");
        }
        churn.note(allocated + 40 * HIGH, moved, HIGH);
        assert!(churn.is_habit(), "forgotten too soon");
        churn.note(allocated + 300 * HIGH, moved, HIGH);
        assert!(!churn.is_habit(), "never forgotten");
    }

    #[test]
    fn the_more_of_the_device_was_needed_the_more_may_be_taken() {
        let mut churn = Churn::default();
        churn.note(0, HIGH, HIGH);
        assert_eq!(churn.goal(7, HIGH, HIGH * 7), 7);
        assert_eq!(churn.goal(7, HIGH, HIGH * 5), HIGH + HIGH / 20);
        assert_eq!(churn.goal(HIGH * 2, HIGH, HIGH * 5), HIGH * 2, "a larger headroom stays");
        assert_eq!(churn.goal(7, HIGH, HIGH * 2), HIGH * 2);
    }
}
