//! One block in two processes: this one exports it, a second run of the program imports it. Each has a
//! simulated device of its own; the chunks behind the block are the same.
//!
//! `cargo run --example 06_share`

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, ExportOptions, Result, SharedHandle};
use ascend_sim::{Sim, SimConfig};

/// Set for the second process.
const ROLE: &str = "ASCEND_ALLOC_EXAMPLE_IMPORTER";
const BYTES: u64 = 5 << 20;

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    let sim = Sim::new(SimConfig { capacity: 64 << 20, ..SimConfig::default() });
    sim.set_device(0).expect("there is a device");
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver)?);
    match std::env::var_os(ROLE) {
        None => export(&sim, &allocator),
        Some(_) => import(&sim, &allocator),
    }
}

fn export(sim: &Sim, allocator: &Arc<DeviceAllocator>) -> Result<()> {
    let block = allocator.allocate(0, BYTES, 0, Stream(0))?;
    sim.write_bytes(block.address(), b"from one").expect("mapped");

    // While the export lives the block stays, even if it is freed.
    let export = allocator.export(block, &ExportOptions::default())?;
    allocator.deallocate(block)?;

    // The handle goes to the other process as bytes, here through its standard input.
    let program = std::env::current_exe().expect("the program has a file");
    let mut other = Command::new(program);
    // As a test, this program runs the example only when asked to by name.
    other.args(["e06_share", "--exact", "--nocapture"]).env(ROLE, "1").stdin(Stdio::piped());
    let mut other = other.spawn().expect("a process");
    let mut channel = other.stdin.take().expect("its standard input");
    channel.write_all(&export.handle().to_bytes()).expect("sent");
    drop(channel);
    assert!(other.wait().expect("it ends").success(), "the importer found what it should");

    let mut answer = [0; 8];
    sim.read_bytes(block.address(), &mut answer).expect("still mapped");
    assert_eq!(&answer, b"from two");
    drop(export);
    assert_eq!(allocator.stats(0)?.allocated_bytes.all.current, 0, "with its export the block is gone");
    Ok(())
}

fn import(sim: &Sim, allocator: &Arc<DeviceAllocator>) -> Result<()> {
    let mut message = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut message).expect("received");
    let handle = SharedHandle::from_bytes(&message)?;
    let block = allocator.import(0, &handle, Stream(0))?;
    println!(
        "imported {} bytes, {} mapped, exporter {:?}",
        block.bytes(),
        handle.mapped_bytes(),
        block.exporter()
    );
    let mut content = [0; 8];
    sim.read_bytes(block.ptr().address(), &mut content).expect("mapped");
    assert_eq!(&content, b"from one");
    sim.write_bytes(block.ptr().address(), b"from two").expect("mapped");
    Ok(())
}
