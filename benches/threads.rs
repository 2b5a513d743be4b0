//! What several threads on streams of their own reach together, compared with one thread alone.
//!
//! `cargo bench --bench threads` prints a table in some seconds. One, two and four threads take turns, so
//! that a machine that changes its speed changes it for all; the median of the ratios counts. With more
//! threads than cores, or other programs running, the ratios say less. A word behind `--` chooses the rows whose
//! names contain it.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ascend_alloc::Config;

mod common;

use common::{Bed, Mix};

/// Threads that are compared; the first is the measure.
const THREADS: [usize; 3] = [1, 2, 4];
/// Turns each has.
const TURNS: usize = 15;
/// How long a turn takes.
const TURN: Duration = Duration::from_millis(40);
/// Pairs between two looks at the clock.
const BATCH: u32 = 500;
/// Allocations in the mixed sequence.
const MIXED: usize = 500;

/// What a thread does all the time.
#[derive(Clone, Copy)]
enum Work {
    Pairs(u64),
    RecordedPairs(u64),
    LargePairs,
    RecordedLargePairs,
    Mixed,
}

fn main() {
    // `cargo test --benches` passes no `--bench`: it only wants to see everything run once.
    let turns = if std::env::args().any(|argument| argument == "--bench") { TURNS } else { 1 };
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("million pairs a second, all threads together, each on its own stream; {cores} cores");
    println!("{:<36} {:>9} {:>16} {:>16}", "", "1 thread", "2 threads", "4 threads");
    let bed = Bed::simulated(Config::default());
    for (name, work) in [
        ("pairs of 512 B", Work::Pairs(512)),
        ("pairs of 64 KiB", Work::Pairs(64 << 10)),
        ("pairs of 2 MiB", Work::Pairs(2 << 20)),
        ("pairs of 512 B, on a second stream", Work::RecordedPairs(512)),
        ("pairs of 64 KiB, on a second stream", Work::RecordedPairs(64 << 10)),
        ("pairs of 2 MiB, on a second stream", Work::RecordedPairs(2 << 20)),
        ("pairs of 8 large sizes", Work::LargePairs),
        ("the same, on a second stream", Work::RecordedLargePairs),
        ("pairs of mixed sizes", Work::Mixed),
    ] {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word)) {
            row(name, turns, |threads| rate(&bed, threads, work));
        }
    }
}

/// Measures in turns and prints the medians.
fn row(name: &str, turns: usize, measure: impl Fn(usize) -> f64) {
    let rates: Vec<[f64; 3]> = (0..turns).map(|_| THREADS.map(&measure)).collect();
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let of = |at: usize| median(rates.iter().map(|turn| turn[at] / 1e6).collect());
    let ratio = |at: usize| median(rates.iter().map(|turn| turn[at] / turn[0]).collect());
    println!(
        "{name:<36} {:>9.1} {:>8.1} = {:.2} x {:>8.1} = {:.2} x",
        of(0),
        of(1),
        ratio(1),
        of(2),
        ratio(2)
    );
}

/// Pairs a second of so many threads together.
fn rate(bed: &Bed, threads: usize, work: Work) -> f64 {
    let start = Barrier::new(threads + 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (start, stop) = (&start, &stop);
                scope.spawn(move || run(bed, number, work, start, stop))
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        std::thread::sleep(TURN);
        stop.store(true, Ordering::Relaxed);
        let pairs: u64 = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
        pairs as f64 / begin.elapsed().as_secs_f64()
    })
}

/// What thread `number` does until it is stopped; returns the pairs it made.
fn run(bed: &Bed, number: usize, work: Work, start: &Barrier, stop: &AtomicBool) -> u64 {
    let (stream, second) = (bed.streams[number], bed.streams[number + THREADS[2]]);
    let mut mix = Mix::new(MIXED);
    let sizes: Vec<u64> = common::sizes(3).filter(|&bytes| bytes > 1 << 20).take(8).collect();
    let mut random = fastrand::Rng::with_seed(number as u64);
    let mut batch = || match work {
        Work::Pairs(bytes) => {
            bed.pairs(black_box(bytes), stream, BATCH);
            u64::from(BATCH)
        }
        Work::RecordedPairs(bytes) => {
            bed.recorded_pairs_on(black_box(bytes), stream, second, BATCH);
            u64::from(BATCH)
        }
        Work::LargePairs | Work::RecordedLargePairs => {
            for _ in 0..BATCH {
                let bytes = sizes[random.usize(0..sizes.len())];
                match work {
                    Work::LargePairs => bed.pair(black_box(bytes), stream),
                    _ => bed.recorded_pair_on(black_box(bytes), stream, second),
                }
            }
            u64::from(BATCH)
        }
        Work::Mixed => {
            mix.run_on(bed, stream);
            mix.len() as u64 / 2
        }
    };
    batch();
    start.wait();
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        pairs += batch();
    }
    pairs
}
