//! Instruction counts, which unlike times do not depend on what else a machine does.
//!
//! `benches/check.sh` runs this and compares the counts with `benches/instructions.baseline`. The
//! driver does nothing (`common/null.rs`), so that only the allocator is counted; everything is run
//! before it is counted, so that memory is mapped and tables have grown.

#![allow(missing_docs, reason = "the macros of gungraun make public items without documentation")]

use std::hint::black_box;
use std::path::Path;

use ascend_alloc::driver::Stream;
use ascend_alloc::history::HistoryOptions;
use ascend_alloc::{Config, DeviceAllocator, DevicePtr};
use ascend_alloc_cli::trace::{Event, Trace};
use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};

mod common;

use common::{Bed, DEVICE, Mix, OTHERS, core_only};

/// Pairs that are counted together.
const PAIRS: u32 = 1_000;
/// Allocations in the mixed sequence.
const MIXED: usize = 1_000;
/// Passes over the trace before the one that is counted.
const SETTLING: u32 = 3;

/// A bed on which such pairs have been made.
fn paired(config: Config, bytes: u64) -> (Bed, u64) {
    let bed = Bed::null(config, 0, OTHERS);
    bed.pairs(bytes, Stream(0), PAIRS);
    (bed, bytes)
}

fn front(bytes: u64) -> (Bed, u64) {
    paired(Config::default(), bytes)
}

fn core(bytes: u64) -> (Bed, u64) {
    paired(core_only(), bytes)
}

fn recorded(bytes: u64) -> (Bed, u64) {
    let bed = Bed::null(Config::default(), 0, OTHERS);
    // As many blocks wait as may.
    bed.recorded_pairs(bytes, 4 * PAIRS);
    (bed, bytes)
}

/// As [`paired`], while a history is kept that is full.
fn noted(config: Config, bytes: u64) -> (Bed, u64) {
    let bed = Bed::null(config, 0, OTHERS);
    let entries = 10 * u64::from(PAIRS);
    bed.allocator.start_history(&HistoryOptions { entries, ..HistoryOptions::default() });
    bed.pairs(bytes, Stream(0), entries as u32);
    (bed, bytes)
}

fn mixed(config: Config) -> (Bed, Mix) {
    let bed = Bed::null(config, 0, OTHERS);
    let mut mix = Mix::new(MIXED);
    for _ in 0..SETTLING {
        mix.run(&bed);
    }
    (bed, mix)
}

#[library_benchmark]
#[bench::of_512_b(front(512))]
#[bench::of_64_kib(front(64 << 10))]
#[bench::of_1_mib(front(1 << 20))]
#[bench::of_2_mib(front(2 << 20))]
#[bench::of_64_mib(front(64 << 20))]
#[bench::core_of_512_b(core(512))]
#[bench::core_of_2_mib(core(2 << 20))]
#[bench::core_of_64_mib(core(64 << 20))]
fn pair((bed, bytes): (Bed, u64)) -> Bed {
    bed.pairs(black_box(bytes), Stream(0), PAIRS);
    bed
}

#[library_benchmark]
#[bench::of_64_kib(recorded(64 << 10))]
#[bench::of_2_mib(recorded(2 << 20))]
fn recorded_pair((bed, bytes): (Bed, u64)) -> Bed {
    bed.recorded_pairs(black_box(bytes), PAIRS);
    bed
}

#[library_benchmark]
#[bench::of_64_kib(noted(Config::default(), 64 << 10))]
#[bench::core_of_64_kib(noted(core_only(), 64 << 10))]
fn noted_pair((bed, bytes): (Bed, u64)) -> Bed {
    bed.pairs(black_box(bytes), Stream(0), PAIRS);
    bed
}

#[library_benchmark]
#[bench::front(mixed(Config::default()))]
#[bench::core(mixed(core_only()))]
fn mix((bed, mut mix): (Bed, Mix)) -> (Bed, Mix) {
    mix.run(&bed);
    (bed, mix)
}

#[library_benchmark]
#[bench::t0(Replay::settled("T0"))]
#[bench::t1(Replay::settled("T1"))]
fn replay(mut replay: Replay) -> Replay {
    replay.pass();
    replay
}

/// A trace on an allocator of its own.
struct Replay {
    allocator: DeviceAllocator,
    events: Vec<Event>,
    blocks: Vec<Option<DevicePtr>>,
}

impl Replay {
    /// A trace of `traces/`, replayed until nothing is mapped any more.
    fn settled(name: &str) -> Replay {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("traces/{name}.trace.zst"));
        let trace = Trace::open(&file).expect("the trace is in the repository");
        let Bed { allocator, .. } = Bed::null(Config::default(), 0, 0);
        let mut replay = Replay { allocator, events: trace.events, blocks: vec![None; trace.blocks] };
        for _ in 0..SETTLING {
            replay.pass();
        }
        replay
    }

    /// Makes all calls of the trace and frees what it leaves live.
    #[inline(never)]
    fn pass(&mut self) {
        for event in &self.events {
            match *event {
                Event::Allocate { block, stream, bytes } => {
                    let stream = Stream(u64::from(stream));
                    let address = self.allocator.allocate(DEVICE, bytes, 0, stream);
                    self.blocks[block as usize] = Some(address.expect("there is memory"));
                }
                Event::Free { block } => {
                    if let Some(address) = self.blocks[block as usize].take() {
                        self.allocator.deallocate(address).expect("the block is live");
                    }
                }
                Event::Record { block, stream } => {
                    if let Some(address) = self.blocks[block as usize] {
                        let stream = Stream(u64::from(stream));
                        self.allocator.record_stream(address, stream).expect("the block is live");
                    }
                }
                Event::Synchronize { .. } | Event::Marker { .. } => {}
            }
        }
        for address in self.blocks.iter_mut().filter_map(Option::take) {
            self.allocator.deallocate(address).expect("the block is live");
        }
    }
}

library_benchmark_group!(name = calls, benchmarks = [pair, recorded_pair, noted_pair, mix, replay]);

main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no"]));
    library_benchmark_groups = calls
);
