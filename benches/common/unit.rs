//! The unit of time, and measuring in it.
//!
//! The unit L is one uncontended lock and unlock of a `parking_lot` mutex. A shared machine changes
//! its speed from one millisecond to the next, so the unit is measured next to what it measures:
//! short batches of both take turns, each pair of batches gives a ratio, and the median of the ratios
//! counts.

use std::hint::black_box;
use std::time::Instant;

use parking_lot::Mutex;

/// Locks and unlocks in a batch.
const LOCKS: u32 = 4_000;
/// Batches of each kind.
const TURNS: usize = 401;

/// What something costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Median nanoseconds.
    pub nanos: f64,
    /// Median of the ratios to L.
    pub locks: f64,
    /// The ratio that one turn in ten was below.
    pub low: f64,
    /// The ratio that one turn in ten was above.
    pub high: f64,
}

/// The cost of one of the `count` operations that `batch` does.
pub fn cost(count: u32, mut batch: impl FnMut()) -> Cost {
    let mutex = Mutex::new(());
    batch();
    let mut nanos = Vec::with_capacity(TURNS);
    let mut ratios = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let unit = nanos_each(LOCKS, || lock_batch(&mutex, LOCKS));
        let each = nanos_each(count, &mut batch);
        nanos.push(each);
        ratios.push(each / unit);
    }
    nanos.sort_by(f64::total_cmp);
    ratios.sort_by(f64::total_cmp);
    Cost {
        nanos: nanos[TURNS / 2],
        locks: ratios[TURNS / 2],
        low: ratios[TURNS / 10],
        high: ratios[TURNS - 1 - TURNS / 10],
    }
}

/// Nanoseconds of one L now: the median of many batches.
pub fn unit() -> f64 {
    let mutex = Mutex::new(());
    cost(LOCKS, || lock_batch(&mutex, LOCKS)).nanos
}

/// `count` times L.
#[inline(never)]
pub fn lock_batch(mutex: &Mutex<()>, count: u32) {
    for _ in 0..count {
        drop(black_box(mutex).lock());
    }
}

fn nanos_each(count: u32, batch: impl FnOnce()) -> f64 {
    let start = Instant::now();
    batch();
    start.elapsed().as_nanos() as f64 / f64::from(count)
}
