//! A client of cubecl that plays an allocation trace: tensors are created, used on their stream and on others, and
//! dropped as the trace says.
//!
//! `cargo run -p ascend-alloc-cubecl --example replay -- traces/T8.trace.zst`

use std::path::Path;
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_alloc_cli::trace::{Event, Trace};
use ascend_alloc_cubecl::{AscendServer, Backend};
use ascend_sim::{BackingMode, Sim, SimConfig};
use cubecl_environment::stream::StreamId;
use cubecl_server::memory_management::MemoryScope;

const GIB: f64 = (1u64 << 30) as f64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "traces/T8.trace.zst".to_owned());
    let trace = Trace::open(Path::new(&file))?;

    // A device of 64 GiB whose bytes are only counted, with one stream for each of the trace.
    let sim = Sim::new(SimConfig {
        capacity: 64 << 30,
        backing: BackingMode::MetadataOnly,
        lag: 20,
        ..SimConfig::default()
    });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver.clone())?);
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?);
    let mut streams = vec![Stream(0)];
    for _ in 1..trace.streams.len() {
        let stream = sim.executor().create_stream(0).map_err(|code| format!("no stream: {code}"))?;
        streams.push(Stream(stream));
    }
    let backend = Backend { allocator: allocator.clone(), pinned, device: 0, streams };
    let client = AscendServer::start(0, backend)?;

    println!("{}: {} tensors on {} streams", trace.name, trace.blocks, trace.streams.len());
    println!("{:>24} {:>10} {:>10} {:>10}", "step", "live GiB", "held GiB", "chunks");
    let mut tensors = vec![None; trace.blocks];
    let mut step = "init";
    for event in &trace.events {
        sim.executor().tick(1);
        match *event {
            Event::Allocate { block, stream, bytes } => {
                let bytes = usize::try_from(bytes)?;
                // The number of a stream of cubecl is the place of ours.
                let tensor = on(stream, || client.empty(bytes));
                tensors[block as usize] = Some(tensor);
            }
            Event::Free { block } => tensors[block as usize] = None,
            Event::Record { block, stream } => {
                // Whoever asks for the address on another stream uses it there.
                if let Some(tensor) = &tensors[block as usize] {
                    let used = on(stream, || client.get_resource::<AscendServer>(tensor.clone()));
                    used.map_err(|error| error.to_string())?;
                }
            }
            Event::Synchronize { stream } => {
                let done = on(stream, || cubecl_environment::future::block_on(client.sync()));
                done.map_err(|error| error.to_string())?;
            }
            Event::Marker { label } => {
                report(step, &allocator, &sim)?;
                step = &trace.labels[label as usize];
            }
        }
    }
    drop(tensors);
    client.memory_cleanup().map_err(|error| error.to_string())?;
    report(step, &allocator, &sim)?;

    // The client runs ahead of its server, so what it drops early is never live beside what it asks for late.
    let stats = allocator.stats(0)?;
    let live = stats.allocated_bytes.all.peak as f64;
    println!("peak live       {:8.3} GiB ({:.3} in the trace)", live / GIB, trace.peak_live as f64 / GIB);
    println!(
        "peak reserved   {:8.3} GiB, {:.3} of it",
        sim.physical_peak(0) as f64 / GIB,
        sim.physical_peak(0) as f64 / live
    );
    println!("events recorded {:8}", sim.count("aclrtRecordEvent"));
    println!("left in cubecl  {:8}", client.memory_report(MemoryScope::Device).usage().number_allocs);
    let findings = sim.take_findings();
    println!("findings        {:8}", findings.len());
    if !findings.is_empty() || allocator.check().is_err() || sim.physical_bytes(0) != 0 {
        return Err(format!("something is wrong: {findings:?}, {:?}", allocator.check()).into());
    }
    Ok(())
}

/// Runs something as a thread of that stream would.
fn on<T>(stream: u16, run: impl FnOnce() -> T) -> T {
    StreamId { value: u64::from(stream) }.executes(run)
}

/// One line for a step that has ended.
fn report(step: &str, allocator: &DeviceAllocator, sim: &Sim) -> ascend_alloc::Result<()> {
    let stats = allocator.stats(0)?;
    let (live, held) = (stats.allocated_bytes.all.current, stats.reserved_bytes.all.current);
    let chunks = sim.count("aclrtMallocPhysical");
    println!("{step:>24} {:10.3} {:10.3} {chunks:10}", live as f64 / GIB, held as f64 / GIB);
    Ok(())
}
