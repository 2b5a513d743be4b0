//! The hot path allocates nothing on the heap.
//!
//! A global allocator counts the heap allocations of this thread while it is told to. Everything runs
//! on the default stream of a driver that does nothing and allocates nothing (`benches/common/null.rs`),
//! after a warm-up in which tables may grow and memory is mapped.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ascend_alloc::Config;
use ascend_alloc::driver::Stream;

#[path = "../benches/common/mod.rs"]
mod common;

use common::{Bed, Mix, SIZES, core_only};

/// Other live blocks.
const OTHERS: usize = 2_000;
/// Pairs of each size before the count begins.
const WARM_UP: u32 = 2_000;
/// Pairs of each size that are counted.
const PAIRS: u32 = 2_000;

thread_local! {
    /// Heap allocations so far; `None` while nobody counts.
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The system's allocator, with a count.
struct Counting;

fn note() {
    // While a thread ends its cell may be gone; nothing is counted then.
    let _ = COUNT.try_with(|count| count.set(count.get().map(|number| number + 1)));
}

// SAFETY: every method hands its arguments on to `System`, which keeps the contract; counting does
// not allocate, because the thread-local is a constant without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and the block came from `System`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract of `realloc`, and the block came from `System`.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// The heap allocations that this thread makes in `run`.
fn heap_allocations(run: impl FnOnce()) -> u64 {
    COUNT.set(Some(0));
    run();
    COUNT.take().unwrap_or_default()
}

#[test]
fn the_count_sees_allocations() {
    let one = heap_allocations(|| drop(std::hint::black_box(Box::new(1u64))));
    let growth = heap_allocations(|| {
        let mut list = vec![0u64];
        list.reserve_exact(std::hint::black_box(1_000));
        std::hint::black_box(list);
    });
    assert_eq!((one, growth), (1, 2));
}

#[test]
fn pairs_of_one_size_allocate_nothing() {
    let bed = Bed::null(Config::default(), 0, OTHERS);
    for stream in [Stream(0), bed.second] {
        for (name, bytes) in SIZES {
            bed.pairs(bytes, stream, WARM_UP);
            let count = heap_allocations(|| bed.pairs(bytes, stream, PAIRS));
            assert_eq!(count, 0, "{PAIRS} pairs of {name} on {stream:?}");
        }
    }
    assert_eq!(bed.allocator.check(), Ok(()));
}

#[test]
fn pairs_through_the_core_allocate_nothing() {
    let bed = Bed::null(core_only(), 0, OTHERS);
    for (name, bytes) in SIZES {
        bed.pairs(bytes, Stream(0), WARM_UP);
        let count = heap_allocations(|| bed.pairs(bytes, Stream(0), PAIRS));
        assert_eq!(count, 0, "{PAIRS} pairs of {name} without the front cache");
    }
    assert_eq!(bed.allocator.check(), Ok(()));
}

#[test]
fn mixed_sizes_allocate_nothing() {
    for config in [Config::default(), core_only()] {
        let front = config.front_cache;
        let bed = Bed::null(config, 0, OTHERS);
        let mut mix = Mix::new(2_000);
        for _ in 0..3 {
            mix.run(&bed);
        }
        let count = heap_allocations(|| mix.run(&bed));
        assert_eq!(count, 0, "{} calls, front cache: {front}", mix.len());
        assert_eq!(bed.allocator.check(), Ok(()));
    }
}

#[test]
fn pairs_used_on_a_second_stream_allocate_nothing() {
    // Lag 0: the device is never behind. Lag 4: the blocks of several epochs wait at a time.
    for lag in [0, 4] {
        let bed = Bed::null(Config::default(), lag, OTHERS);
        for (name, bytes) in SIZES {
            // Until as many wait as may.
            bed.recorded_pairs(bytes, 20 * WARM_UP);
            let plans = || {
                let calls = bed.allocator.stats(0).unwrap().calls;
                calls.map + calls.stream_wait
            };
            let before = plans();
            let count = heap_allocations(|| bed.recorded_pairs(bytes, PAIRS));
            // Behind a slow device chunks move and streams wait now and then; a plan of driver calls may
            // allocate.
            let moved = lag > 0 && plans() > before;
            assert!(count == 0 || moved, "{count} in {PAIRS} recorded pairs of {name}, lag {lag}");
        }
        assert_eq!(bed.allocator.check(), Ok(()));
    }
}
