//! When memory is better taken new than moved together, although the headroom is used up.
//!
//! Three things are watched while requests climb the ladder:
//!
//! | what | how | why growing is better |
//! |---|---|---|
//! | moving has become a *habit* | a level goes up by what is moved, down by 2 % of what is allocated; above 2.5 % of the highest live bytes it is a habit | the same chunks move to and fro |
//! | the peak *creeps* up | it rose by at most 5 % in at least three of the last 8 windows, in each of which half of it was allocated | what is taken now is needed soon anyway |
//! | most sizes are *new* | a table of sizes seen before knows fewer than half of the large ones | what was freed fits nobody, so moving never ends |
//!
//! A step that repeats shows none of them once it has settled.

use super::Core;

/// Sizes that are remembered.
const SIZES: usize = 4096;
/// A share of one, in fixed point.
const ONE: u32 = 1 << 16;
/// Windows in which the highest live bytes are compared.
const WINDOWS: usize = 8;

/// What was moved lately against what was allocated, how the highest live bytes rose, and which sizes came; in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Churn {
    level: u64,
    /// Seen so far.
    allocated: u64,
    /// See `allocated`.
    moved: u64,
    habit: bool,
    /// How much was allocated, and the highest live bytes, when the present window began.
    window: (u64, u64),
    /// By how much the highest live bytes rose in each of the last windows; 0 where that was much.
    rises: [u64; WINDOWS],
    /// The window that is written next.
    next: usize,
    /// Sizes seen, each at the place its bits choose; made for the first large one.
    sizes: Vec<u64>,
    /// The share of sizes that were not among them, of [`ONE`]; older ones count less.
    new: u32,
}

impl Churn {
    /// Learns of a request that climbs: its size, how much was allocated and moved in all, and the highest live
    /// bytes so far.
    pub(crate) fn note(&mut self, size: u64, allocated: u64, moved: u64, high_water: u64) {
        /// Of what is allocated so much may be moved.
        const CALM: u64 = 50;
        /// The same while moving is a habit: memory that was grown into keeps the moves away.
        const HABIT: u64 = 3333;
        let share = if self.habit { HABIT } else { CALM };
        let flown = allocated.saturating_sub(self.allocated);
        self.level += moved.saturating_sub(self.moved);
        self.level = self.level.saturating_sub(flown / share).min(high_water * 6 / 100);
        (self.allocated, self.moved) = (allocated, moved);
        let border = if self.habit { high_water / 160 } else { high_water / 40 };
        self.habit = self.level > border;
        self.note_rise(high_water);
        if size > super::segment::SMALL_LIMIT {
            self.note_size(size);
        }
    }

    /// Whether what is freed is hardly asked for again as it was: moving is a habit, or most sizes are new.
    pub(crate) fn is_restless(&self) -> bool {
        self.habit || self.is_new()
    }

    /// Whether most sizes are new.
    pub(crate) fn is_new(&self) -> bool {
        self.new > ONE / 2
    }

    /// How many physical bytes are better taken new than moved together, of `device` bytes that there are: at
    /// least `usual`. A program that has needed much of the device has it for itself; a small one may have
    /// neighbours. `behind`: the device was not prompt lately.
    pub(crate) fn goal(&self, usual: u64, high_water: u64, device: u64, behind: bool) -> u64 {
        if high_water < device / 6 || behind {
            return usual;
        }
        let some = high_water * 49 / 1000;
        let creep = self.creep(high_water);
        let habit = if self.habit { some } else { 0 };
        let more = if high_water < device / 8 * 3 {
            habit.max(creep.min(some))
        } else {
            let new = if self.is_new() { high_water / 5 } else { 0 };
            habit.max(creep).max(new)
        };
        usual.max((high_water + more).min(device))
    }

    /// What a program whose peak creeps up is likely to need soon, beyond the highest live bytes.
    fn creep(&self, high_water: u64) -> u64 {
        /// In so many of the windows the peak must have risen a little.
        const OFTEN: usize = 3;
        let little = self.rises.iter().filter(|&&rise| rise > high_water / 400);
        if little.clone().count() >= OFTEN { little.sum::<u64>() * 2 } else { 0 }
    }

    /// Closes the window when half of the highest live bytes were allocated in it.
    fn note_rise(&mut self, high_water: u64) {
        let (since, before) = self.window;
        let windows = (self.allocated.saturating_sub(since) * 2).checked_div(high_water).unwrap_or(0);
        if windows == 0 {
            return;
        }
        let rise = high_water.saturating_sub(before);
        let much = rise > high_water / 20;
        // Where nobody asked for long there were several windows; what rose then counts once.
        for window in 0..windows.min(WINDOWS as u64) {
            self.rises[self.next] = if window == 0 && !much { rise } else { 0 };
            self.next = (self.next + 1) % WINDOWS;
        }
        self.window = (self.allocated, high_water);
    }

    fn note_size(&mut self, size: u64) {
        /// How slowly the share follows: by one in so many.
        const SLOWLY: u32 = 128;
        if self.sizes.is_empty() {
            self.sizes = vec![0; SIZES];
        }
        let place = (size.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize;
        let known = core::mem::replace(&mut self.sizes[place], size) == size;
        self.new -= self.new / SLOWLY;
        self.new += if known { 0 } else { ONE / SLOWLY };
    }
}

impl Core {
    /// Up to how many physical bytes new memory is preferred to moving idle memory, for a request that is served with
    /// so high live bytes.
    pub(crate) fn goal(&self, peak: u64) -> u64 {
        /// Frees after which a device that was not prompt may be.
        const BEHIND: u64 = 16_384;
        let high_water = self.high_water.max(peak);
        let usual = (high_water as f64 * (1.0 + self.config.headroom)) as u64;
        if self.is_full() || self.patience > 0 || !self.config.adaptive_headroom {
            return usual;
        }
        let device = self.limit.map_or(self.limits.total, |limit| limit.min(self.limits.total));
        // Behind a slow device that share is left to what grows because nothing may move yet.
        let behind = self.slow_at.is_some_and(|then| self.frees < then + BEHIND);
        self.churn.goal(usual, high_water, device, behind)
    }

    /// Whether the device had no chunk left lately, so that it is not asked without need.
    pub(crate) fn is_full(&self) -> bool {
        /// Frees of the core.
        const LATELY: u64 = 4096;
        self.full_at.is_some_and(|then| self.frees < then + LATELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIGH: u64 = 1000 << 20;
    const SIZE: u64 = 8 << 20;

    #[test]
    fn a_step_that_repeats_is_no_habit() {
        let mut churn = Churn::default();
        for step in 1..1000 {
            // Five times the peak is allocated in a step, and 3 % of the peak moved.
            churn.note(SIZE, step * 5 * HIGH, step * HIGH * 3 / 100, HIGH);
            assert!(!churn.is_restless(), "step {step}");
        }
        assert_eq!(churn.goal(HIGH, HIGH, HIGH * 2, false), HIGH);
    }

    #[test]
    fn moving_is_a_habit_until_long_after_the_last_move() {
        let mut churn = Churn::default();
        let (mut allocated, mut moved) = (0, 0);
        while !churn.is_restless() {
            (allocated, moved) = (allocated + HIGH / 10, moved + HIGH / 100);
            churn.note(SIZE, allocated, moved, HIGH);
            assert!(moved < HIGH / 10, "never noticed");
        }
        let more = HIGH * 49 / 1000;
        assert_eq!(churn.goal(7, HIGH, HIGH * 7, false), 7, "a small program");
        assert_eq!(churn.goal(7, HIGH, HIGH * 2, false), HIGH + more);
        assert_eq!(churn.goal(7, HIGH, HIGH * 2, true), 7, "behind a slow device");
        assert_eq!(churn.goal(HIGH * 2, HIGH, HIGH, false), HIGH * 2, "a larger headroom stays");
        churn.note(SIZE, allocated + 40 * HIGH, moved, HIGH);
        assert!(churn.is_restless(), "forgotten too soon");
        churn.note(SIZE, allocated + 300 * HIGH, moved, HIGH);
        assert!(!churn.is_restless(), "never forgotten");
    }

    #[test]
    fn sizes_that_do_not_return_open_a_fifth_more() {
        for sizes in [1, 300, 1_000_000] {
            let mut churn = Churn::default();
            for request in 0..1000 {
                churn.note(SIZE + request % sizes * 512, request * SIZE, 0, HIGH);
            }
            let expected = |device: u64| if sizes == 1_000_000 { device.min(HIGH + HIGH / 5) } else { HIGH };
            for device in [HIGH + HIGH / 20, HIGH * 2] {
                assert_eq!(churn.goal(7, HIGH, device, false), expected(device), "{sizes} sizes");
            }
            assert_eq!(churn.goal(7, HIGH, HIGH * 3, false), HIGH, "a small program");
        }
    }

    #[test]
    fn a_creeping_peak_is_followed_and_a_jumping_one_is_not() {
        let (mut creeping, mut jumping) = (Churn::default(), Churn::default());
        let (mut high, mut jumped, mut allocated) = (HIGH, HIGH, 0);
        for window in 1..20 {
            allocated += HIGH;
            high += HIGH / 100;
            jumped += if window % 4 == 0 { HIGH / 4 } else { 0 };
            creeping.note(SIZE, allocated, 0, high);
            jumping.note(SIZE, allocated, 0, jumped);
        }
        let more = creeping.goal(high, high, high * 2, false) - high;
        assert!(more > high / 20 && more < high / 2, "{more} of {high}");
        assert_eq!(jumping.goal(jumped, jumped, jumped * 2, false), jumped);
        for _ in 0..40 {
            allocated += HIGH;
            creeping.note(SIZE, allocated, 0, high);
        }
        assert_eq!(creeping.goal(high, high, high * 2, false), high, "it creeps no longer");
    }
}
