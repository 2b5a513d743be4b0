//! Giving memory back, also from the middle of a segment: the neighbours keep their addresses and bytes.
//!
//! `cargo run --example 03_give_back`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, Result};
use ascend_sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    let sim = Sim::new(SimConfig::default());
    let allocator = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone())))?;
    let stream = Stream(0);

    let left = allocator.allocate(0, 30 * MIB, 0, stream)?;
    let middle = allocator.allocate(0, 100 * MIB, 0, stream)?;
    let right = allocator.allocate(0, 30 * MIB, 0, stream)?;
    sim.fill_bytes(left.address(), 30 * MIB, 1).expect("the block is mapped");
    sim.fill_bytes(right.address(), 30 * MIB, 2).expect("the block is mapped");

    allocator.deallocate(middle)?;
    let before = sim.physical_bytes(0);
    let given = allocator.trim(0, 0)?;
    println!("{} of {} MiB went back to the device", given / MIB, before / MIB);
    assert_eq!(sim.physical_bytes(0), before - given);
    assert!(given >= 96 * MIB); // whole chunks; a chunk that a neighbour lies in stays

    for (ptr, value) in [(left, 1), (right, 2)] {
        let mut last = [0];
        sim.read_bytes(ptr.address() + 30 * MIB - 1, &mut last).expect("the block is mapped");
        assert_eq!(last, [value]);
    }

    // The hole is filled when memory is wanted again; growing in place uses the room as well.
    let refilled = allocator.allocate(0, 40 * MIB, 0, stream)?;
    assert_eq!(refilled, middle);
    assert!(allocator.grow_in_place(refilled, 90 * MIB)?);
    allocator.shrink_in_place(refilled, 10 * MIB)?;

    for ptr in [left, refilled, right] {
        allocator.deallocate(ptr)?;
    }
    Ok(())
}
