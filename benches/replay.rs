//! What a call of the allocator costs in a replayed trace, in nanoseconds and in L, without the driver.
//!
//! `cargo bench --bench replay -- [FILE...]` replays each file three times and times the third pass;
//! without files it takes those in `traces/`. The time is the CPU time of the process, as the command
//! `ascend-alloc replay` shows it, and L is measured directly before and after.

use std::path::{Path, PathBuf};

use ascend_alloc::Config;
use ascend_alloc_cli::rig::RigOptions;
use ascend_alloc_cli::timing;
use ascend_alloc_cli::trace::Trace;

mod common;

use common::unit;

/// Passes over a trace; the last one is timed.
const PASSES: u32 = 3;
/// How often each trace is measured; the median counts.
const ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` passes no `--bench`: it only wants to see everything run once.
    let rounds = if arguments.iter().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    let mut files: Vec<PathBuf> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).map(PathBuf::from).collect();
    if files.is_empty() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        files = ["T0", "T1"].iter().map(|name| folder.join(format!("{name}.trace.zst"))).collect();
    }
    println!("pass {PASSES} of each trace, per call of the allocator, without the driver");
    let mut failed = false;
    for file in &files {
        match Trace::open(file) {
            Ok(trace) => failed |= !print_row(&trace, rounds),
            Err(error) => {
                eprintln!("{error}");
                failed = true;
            }
        }
    }
    if failed {
        std::process::exit(1);
    }
}

fn print_row(trace: &Trace, rounds: usize) -> bool {
    let options =
        RigOptions { memory: 64 << 30, config: Config::default(), lag: 0, checker: false, bytes: false };
    let mut figures = Vec::new();
    for _ in 0..rounds {
        let before = unit::unit();
        let cost = match timing::time(trace, &options, PASSES) {
            Ok(cost) => cost,
            Err(reason) => {
                eprintln!("{}: {reason}", trace.name);
                return false;
            }
        };
        let unit = (before + unit::unit()) / 2.0;
        figures.push((cost.ns_per_op / unit, cost, unit));
    }
    figures.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (locks, cost, unit) = figures[rounds / 2];
    println!(
        "{:<6} {:>8} calls  {:>6.1} ns = {locks:>5.2} L  (L = {unit:.1} ns; driver {:.1} ns per call)",
        trace.name, cost.ops, cost.ns_per_op, cost.driver_ns_per_op
    );
    true
}
