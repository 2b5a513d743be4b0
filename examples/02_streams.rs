//! Blocks that several streams use. The simulator's use checker watches: memory that is handed out while other work
//! may still use it would be a finding.
//!
//! `cargo run --example 02_streams`

use std::sync::Arc;

use ascend_alloc::driver::{Driver, SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, Result};
use ascend_sim::{LAG_NEVER, Sim, SimConfig, Task};

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    // Queued work stays unfinished until something waits for it.
    let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::default(), driver.clone())?;
    let compute = Stream(0);
    sim.set_device(0).expect("there is a device");
    let copy = Stream(sim.create_stream().expect("there are streams"));

    // A block of the computing stream. The copying stream waits until the block is written, then reads it.
    let bytes = 8 << 20;
    let ptr = allocator.allocate(0, bytes, 0, compute)?;
    sim.submit(compute.0, Task::new("write").writes(ptr.address(), bytes, 1)).expect("queued");
    let written = driver.create_event(0)?;
    driver.record_event(0, written, compute)?;
    driver.stream_wait_event(0, copy, written)?;
    sim.submit(copy.0, Task::new("read").reads(ptr.address(), bytes, 1)).expect("queued");

    // The allocator must be told of the second stream, before the free.
    allocator.record_stream(ptr, copy)?;
    allocator.deallocate(ptr)?;

    // Nothing has run yet. The computing stream gets other memory: the copy may still read the old block.
    let other = allocator.allocate(0, bytes, 0, compute)?;
    assert_ne!(other, ptr);
    sim.submit(compute.0, Task::new("overwrite").writes(other.address(), bytes, 2)).expect("queued");

    // Once the copying stream has passed the free, the memory is there again.
    driver.synchronize_stream(0, copy)?;
    let again = allocator.allocate(0, bytes, 0, compute)?;
    println!("first {:#x}, meanwhile {:#x}, then {:#x}", ptr.address(), other.address(), again.address());
    assert_eq!(again, ptr);

    for ptr in [other, again] {
        allocator.deallocate(ptr)?;
    }
    driver.destroy_event(0, written)?;
    assert_eq!(sim.findings(), Vec::<String>::new());
    Ok(())
}
