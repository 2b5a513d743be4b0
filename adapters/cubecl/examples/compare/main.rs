//! cubecl's own memory management and ours on the same traces, over the same simulated device.
//!
//! ```sh
//! cargo run --release -p ascend-alloc-cubecl --example compare -- traces/T1.trace.zst traces/T8.trace.zst
//! ```
//!
//! For each trace and each way of managing memory: the peak of the device's physical memory, as the device counts
//! its pages, over the trace's peak of live bytes; calls of the storage (alloc, dealloc, flush) and calls of the
//! device's driver; and the CPU time of the host for one operation (an allocation or a free) without the time
//! inside the driver, the least of several rounds in which the ways take turns.

mod ways;

use std::path::Path;
use std::process::ExitCode;

use ascend_alloc_cli::meter::{Counting, Timing, cpu_nanos};
use ascend_alloc_cli::trace::{Event, Trace};
use ways::{Figures, Memory, WAYS};

/// Rounds whose least time counts, unless `--rounds` says otherwise.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut files = Vec::new();
    let (mut rounds, mut device) = (ROUNDS, 64u64 << 30);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?,
            "--device" => device = ascend_alloc_cli::units::parse_device(&value()?)?,
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        return Err("usage: compare [--rounds N] [--device BYTES] TRACE...".to_owned());
    }
    println!("| trace | memory | peak / live | refused | storage calls | driver calls | ns / operation |");
    println!("|---|---|---|---|---|---|---|");
    for file in &files {
        let trace = Trace::open(Path::new(file)).map_err(|error| error.to_string())?;
        compare(&trace, rounds, device)?;
    }
    Ok(())
}

/// One table row for each way.
fn compare(trace: &Trace, rounds: usize, device: u64) -> Result<(), String> {
    let mut figures = Vec::new();
    for way in WAYS {
        let mut memory = (way.counting)(trace, device, Counting::default())?;
        let refused = replay(trace, &mut *memory);
        figures.push((memory.figures(), refused));
    }
    let mut least = vec![f64::INFINITY; WAYS.len()];
    for _ in 0..rounds {
        for (way, least) in WAYS.iter().zip(&mut least) {
            let mut memory = (way.timing)(trace, device, Timing::new())?;
            let start = cpu_nanos();
            replay(trace, &mut *memory);
            let spent = cpu_nanos() - start - memory.driver_nanos();
            *least = least.min(spent as f64 / operations(trace) as f64);
        }
    }
    for ((way, (figures, refused)), least) in WAYS.iter().zip(figures).zip(least) {
        let Figures { peak, storage_calls, driver_calls } = figures;
        let ratio = peak as f64 / trace.peak_live as f64;
        let time = if rounds == 0 { "-".to_owned() } else { format!("{least:.0}") };
        println!(
            "| {} | {} | {ratio:.3} | {refused} | {storage_calls} | {driver_calls} | {time} |",
            trace.name, way.name
        );
    }
    Ok(())
}

/// Allocations and frees of the trace.
fn operations(trace: &Trace) -> usize {
    let counts = |event: &&Event| matches!(event, Event::Allocate { .. } | Event::Free { .. });
    trace.events.iter().filter(counts).count()
}

/// Plays the trace; how many allocations were refused for good.
fn replay(trace: &Trace, memory: &mut dyn Memory) -> u64 {
    let mut refused = 0;
    let mut live: Vec<_> = (0..trace.blocks).map(|_| None).collect();
    for event in &trace.events {
        match *event {
            Event::Allocate { block, stream, bytes } => match memory.reserve(stream, bytes) {
                Ok(handle) => live[block as usize] = Some((handle, stream)),
                Err(_) => refused += 1,
            },
            Event::Free { block } => live[block as usize] = None,
            Event::Record { block, stream } => {
                if let Some((handle, own)) = &live[block as usize] {
                    memory.record(handle, *own, stream);
                }
            }
            Event::Synchronize { .. } | Event::Marker { .. } => {}
        }
    }
    refused
}
