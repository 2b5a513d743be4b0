//! What an allocation and its free cost with 10 000 other blocks live, in nanoseconds and in L.
//!
//! `cargo bench --bench pair -- --table` prints only the table, in a few seconds; without the option
//! criterion measures the same first. `common/unit.rs` says what L is and how it is measured.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use ascend_alloc::Config;
use ascend_alloc::driver::Stream;
use criterion::{Criterion, Throughput};
use parking_lot::Mutex;

mod common;

use common::unit::{self, Cost};
use common::{Bed, Mix, SIZES, core_only};

/// Pairs in a batch of the table, and before the first one.
const BATCH: u32 = 1_000;
/// Allocations in the mixed sequence.
const MIXED: usize = 1_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = |option: &str| arguments.iter().any(|argument| argument == option);
    if given("--table") {
        return print_table();
    }
    let mut criterion = Criterion::default().configure_from_args();
    with_criterion(&mut criterion);
    criterion.final_summary();
    // `cargo test --benches` passes no `--bench`: it only wants to see everything run once.
    if given("--bench") {
        print_table();
    }
}

fn with_criterion(criterion: &mut Criterion) {
    let front = Bed::simulated(Config::default());
    let core = Bed::simulated(core_only());
    let naive = Naive::with_others(&front);
    let mutex = Mutex::new(());
    criterion.bench_function("L", |bencher| bencher.iter(|| drop(black_box(&mutex).lock())));
    let mut group = criterion.benchmark_group("pair");
    group.throughput(Throughput::Elements(1));
    for (name, bytes) in SIZES {
        group.bench_function(name, |bencher| bencher.iter(|| front.pair(black_box(bytes), Stream(0))));
    }
    for (name, bytes) in SIZES {
        group.bench_function(format!("{name}, front cache off"), |bencher| {
            bencher.iter(|| core.pair(black_box(bytes), Stream(0)));
        });
    }
    for (name, bytes) in SIZES {
        group.bench_function(format!("{name}, used on a second stream"), |bencher| {
            bencher.iter(|| front.recorded_pair(black_box(bytes)));
        });
    }
    for (name, bytes) in SIZES {
        group.bench_function(format!("{name}, naive cache"), |bencher| {
            bencher.iter(|| naive.pair(black_box(bytes)));
        });
    }
    group.finish();
}

fn print_table() {
    println!("L = {:.1} ns, one uncontended lock and unlock of a parking_lot mutex", unit::unit());
    println!("median (from 10 % to 90 % of the turns), per pair, {} other blocks live", common::OTHERS);
    let front = Bed::simulated(Config::default());
    for (name, bytes) in SIZES {
        row(&format!("pair of {name}"), paired(&front, bytes, Stream(0)));
    }
    for (name, bytes) in SIZES {
        row(&format!("pair of {name}, used on a second stream"), recorded(&front, bytes));
    }
    let other = Bed::simulated(Config::default());
    for (name, bytes) in SIZES {
        let multiple = multiple(&other, &front, bytes);
        println!("pair of {name}, used on a second stream: {multiple:.2} pairs");
    }
    drop(other);
    for (name, bytes) in SIZES {
        let multiple = multiple(&Bed::alone(Config::default()), &Bed::alone(Config::default()), bytes);
        println!("the same of {name}, nothing else live: {multiple:.2} pairs");
    }
    let sizes = small_sizes();
    row("pairs of 24 sizes up to 1 MiB in turn", in_turn(&sizes, |bytes| front.pair(bytes, Stream(0))));
    let used = in_turn(&sizes, |bytes| front.recorded_pair(bytes));
    row("the same, used on a second stream", used);
    let sizes = large_sizes();
    row("pairs of 8 sizes above 1 MiB in turn", in_turn(&sizes, |bytes| front.pair(bytes, Stream(0))));
    let used = in_turn(&sizes, |bytes| front.recorded_pair(bytes));
    row("the same, used on a second stream", used);
    let mut mix = Mix::new(MIXED);
    mix.run(&front);
    row("pair, mixed sizes", unit::cost(mix.len() as u32 / 2, || mix.run(&front)));
    for (thread, cost) in on_two_threads(&front).into_iter().enumerate() {
        row(&format!("pair of 64 KiB, thread {thread} of two on two streams"), cost);
    }
    drop(front);
    let core = Bed::simulated(core_only());
    for (name, bytes) in SIZES {
        row(&format!("pair of {name}, front cache off"), paired(&core, bytes, Stream(0)));
    }
    row("pair, mixed sizes, front cache off", unit::cost(mix.len() as u32 / 2, || mix.run(&core)));
    let naive = Naive::with_others(&core);
    for (name, bytes) in [SIZES[0], SIZES[4]] {
        row(&format!("pair of {name}, naive cache behind one lock"), naive.cost(bytes));
    }
    row("pair of 512 B, bare list behind one lock", Bare::default().cost());
}

fn row(name: &str, cost: Cost) {
    let Cost { nanos, locks, low, high } = cost;
    println!("{name:<50} {nanos:>7.1} ns = {locks:>5.2} L  ({low:.2} to {high:.2})");
}

fn paired(bed: &Bed, bytes: u64, stream: Stream) -> Cost {
    bed.pairs(bytes, stream, BATCH);
    unit::cost(BATCH, || bed.pairs(black_box(bytes), stream, BATCH))
}

fn recorded(bed: &Bed, bytes: u64) -> Cost {
    bed.recorded_pairs(bytes, BATCH);
    unit::cost(BATCH, || bed.recorded_pairs(black_box(bytes), BATCH))
}

/// 24 sizes up to 1 MiB.
fn small_sizes() -> Vec<u64> {
    common::sizes(3).filter(|&bytes| bytes <= 1 << 20).take(24).collect()
}

/// 8 sizes above that.
fn large_sizes() -> Vec<u64> {
    common::sizes(3).filter(|&bytes| bytes > 1 << 20).take(8).collect()
}

/// A pair of each size in turn.
fn in_turn(sizes: &[u64], pair: impl Fn(u64)) -> Cost {
    let turns = || (0..BATCH as usize).for_each(|at| pair(black_box(sizes[at % sizes.len()])));
    (0..40).for_each(|_| turns());
    unit::cost(BATCH, turns)
}

/// How many pairs a pair costs that is used on a second stream: the median of batches of both in turns.
fn multiple(plain: &Bed, used: &Bed, bytes: u64) -> f64 {
    const TURNS: usize = 1_001;
    let timed = |work: &dyn Fn()| {
        let begin = Instant::now();
        work();
        begin.elapsed().as_secs_f64()
    };
    plain.pairs(bytes, Stream(0), BATCH);
    used.recorded_pairs(bytes, BATCH);
    let turn = |_| {
        let pair = timed(&|| plain.pairs(black_box(bytes), Stream(0), BATCH));
        timed(&|| used.recorded_pairs(black_box(bytes), BATCH)) / pair
    };
    let mut multiples: Vec<f64> = (0..TURNS).map(turn).collect();
    multiples.sort_by(f64::total_cmp);
    multiples[TURNS / 2]
}

/// Two threads at the same time, each with a stream of its own.
fn on_two_threads(bed: &Bed) -> Vec<Cost> {
    let start = Barrier::new(2);
    let streams = [Stream(0), bed.second];
    std::thread::scope(|scope| {
        let threads = streams.map(|stream| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                paired(bed, 64 << 10, stream)
            })
        });
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    })
}

/// The least that can be called an allocator: a cache by exact size behind one lock, which knows the
/// size of every live block by its address. It never splits, merges or gives anything back.
#[derive(Default)]
struct Naive(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    free: HashMap<u64, Vec<u64>, Multiply>,
    live: HashMap<u64, u64, Multiply>,
    end: u64,
}

impl Naive {
    /// One with as many live blocks, at the same addresses.
    fn with_others(bed: &Bed) -> Naive {
        let naive = Naive::default();
        {
            let mut cache = naive.0.lock();
            for &block in &bed.others {
                let info = bed.allocator.block_info(block).expect("the block is live");
                cache.live.insert(info.address, info.requested);
                cache.end = cache.end.max(info.address + info.bytes);
            }
        }
        naive
    }

    fn pair(&self, bytes: u64) {
        let block = self.allocate(bytes);
        self.free(black_box(block));
    }

    #[inline]
    fn allocate(&self, bytes: u64) -> u64 {
        let mut cache = self.0.lock();
        let address = cache.free.get_mut(&bytes).and_then(Vec::pop).unwrap_or_else(|| {
            cache.end += bytes.next_multiple_of(512);
            cache.end - bytes.next_multiple_of(512)
        });
        cache.live.insert(address, bytes);
        address
    }

    #[inline]
    fn free(&self, address: u64) {
        let mut cache = self.0.lock();
        if let Some(bytes) = cache.live.remove(&address) {
            cache.free.entry(bytes).or_default().push(address);
        }
    }

    fn cost(&self, bytes: u64) -> Cost {
        unit::cost(BATCH, || (0..BATCH).for_each(|_| self.pair(black_box(bytes))))
    }
}

/// A hasher for addresses and sizes that is as cheap as one can be.
#[derive(Clone, Copy, Default)]
struct Multiply(u64);

impl std::hash::BuildHasher for Multiply {
    type Hasher = Multiply;

    fn build_hasher(&self) -> Multiply {
        *self
    }
}

impl std::hash::Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let wide = u128::from(self.0 ^ number) * 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// No allocator any more: a list of free addresses of one size behind a lock. What remains of a pair
/// when everything but two locks is left out.
#[derive(Default)]
struct Bare(Mutex<Vec<u64>>);

impl Bare {
    fn cost(&self) -> Cost {
        self.0.lock().push(512);
        unit::cost(BATCH, || {
            for _ in 0..BATCH {
                let address = self.0.lock().pop().unwrap_or_default();
                self.0.lock().push(black_box(address));
            }
        })
    }
}
