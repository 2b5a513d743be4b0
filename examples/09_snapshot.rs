//! Snapshots: all memory at one moment with what led to it, as files for PyTorch's memory tools.
//!
//! `cargo run --example 09_snapshot -- FOLDER` writes them; without a folder they are only looked at.

use std::path::PathBuf;
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::history::{HistoryOptions, with_context};
use ascend_alloc::snapshot_file::pickle::Protocol;
use ascend_alloc::snapshot_file::{Document, Limits, pickle};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, PoolOptions, Result, RouteFilter};
use ascend_sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map(PathBuf::from).filter(|folder| folder.is_dir());
    for (name, settings) in [("growing", ""), ("fixed", "expandable_segments:False")] {
        let sim = Sim::new(SimConfig { devices: 2, capacity: 512 * MIB, ..SimConfig::default() });
        let allocator =
            DeviceAllocator::new(Config::parse(settings)?, Arc::new(SimDriver::new(sim.clone())))?;
        run(&allocator, &sim, name, folder.as_deref())?;
    }
    Ok(())
}

fn run(allocator: &DeviceAllocator, sim: &Sim, name: &str, folder: Option<&std::path::Path>) -> Result<()> {
    // What happened before the history began is not in it; the blocks are in the snapshot all the same.
    let early = with_context("before", || allocator.allocate(0, 5 * MIB, 0, Stream(0)))?;
    allocator.start_history(&HistoryOptions { entries: 20_000, uses: true, stacks: false });
    sim.set_device(0).expect("there is a device");
    let side = Stream(sim.create_stream().expect("there are streams"));

    let pool = allocator.create_pool(0, PoolOptions::tagged("weights"))?;
    let route = allocator.route(pool, RouteFilter::ThisThread)?;
    let weights = with_context("weights", || blocks(allocator, &[40 * MIB, 3000, 7 * MIB + 100]))?;
    drop(route);
    save(allocator, folder, &format!("{name}_before.pickle"), Protocol::Two);

    for step in 0..20_u64 {
        allocator.mark(&format!("step {step}"));
        let held = with_context("forward", || blocks(allocator, &[(20 + step) * MIB, 100_000, MIB]))?;
        let other = with_context("copy", || allocator.allocate(0, 2 * MIB + step, 0, side))?;
        // The last step's block is still in use on the other stream when the snapshot is taken.
        allocator.record_stream(held[0], side)?;
        for ptr in held {
            allocator.deallocate(ptr)?;
        }
        if step % 2 == 0 {
            allocator.deallocate(other)?;
        }
        if step == 10 {
            allocator.deallocate(early)?;
            allocator.empty_cache(None)?;
        }
    }
    let too_much = allocator.allocate(0, 600 * MIB, 0, Stream(0));
    assert!(too_much.is_err());
    allocator.allocate(1, 9 * MIB, 0, Stream(0))?;
    save(allocator, folder, &format!("{name}_after.pickle"), Protocol::Four);
    save(allocator, folder, &format!("{name}_after_2.pickle"), Protocol::Two);

    // The file says what the statistics say.
    let bytes = allocator.full_snapshot(true).to_pickle(Protocol::Four).expect("it is small");
    let tree = pickle::read(&bytes, &Limits::default()).expect("it was just written");
    let document = Document::from_tree(&tree).expect("it is a snapshot");
    for device in 0..2 {
        let (totals, stats) = (document.totals(device), allocator.stats(device)?);
        let held = allocator.snapshot(device)?.cached_handles;
        println!("{name}, device {device}: {} MiB reserved", totals.reserved / MIB);
        assert_eq!(totals.reserved + held, stats.reserved_bytes.all.current as u64);
        assert_eq!(totals.allocated, stats.allocated_bytes.all.current as u64);
        assert_eq!(totals.active, stats.active_bytes.all.current as u64);
        assert_eq!(totals.requested, stats.requested_bytes.all.current as u64);
    }
    assert!(document.trace(0).iter().any(|entry| entry.frames.iter().any(|frame| &*frame.name == "forward")));
    for ptr in weights {
        allocator.deallocate(ptr)?;
    }
    allocator.release_pool(pool)
}

fn blocks(allocator: &DeviceAllocator, sizes: &[u64]) -> Result<Vec<DevicePtr>> {
    sizes.iter().map(|&bytes| allocator.allocate(0, bytes, 0, Stream(0))).collect()
}

/// Writes a snapshot, as a pickle and as JSON.
fn save(allocator: &DeviceAllocator, folder: Option<&std::path::Path>, name: &str, protocol: Protocol) {
    let snapshot = allocator.full_snapshot(true);
    let pickle = snapshot.to_pickle(protocol).expect("it is small");
    let json = snapshot.to_json().expect("it is small");
    if let Some(folder) = folder {
        std::fs::write(folder.join(name), pickle).expect("the folder can be written to");
        std::fs::write(folder.join(name).with_extension("json"), json).expect("so can this");
    }
}
