//! Pools and sleep: weights of a model give their memory to somebody else for a while and come back at the
//! same addresses.
//!
//! `cargo run --example 07_sleep`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, PoolOptions, Result, RouteFilter, SleepMode};
use ascend_sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    let sim = Sim::new(SimConfig { capacity: 512 * MIB, ..SimConfig::default() });
    let allocator = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone())))?;
    let stream = Stream(0);

    // Everything this thread allocates goes to the pool while the route lives, whoever asks.
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights"))?;
    let route = allocator.route(pool, RouteFilter::ThisThread)?;
    let layers = (0..8).map(|_| allocator.allocate(0, 50 * MIB, 0, stream)).collect::<Result<Vec<_>>>()?;
    drop(route);
    for (number, layer) in layers.iter().enumerate() {
        sim.fill_bytes(layer.address(), 50 * MIB, number as u8).expect("the block is mapped");
    }

    let slept = allocator.sleep(None, &["weights"], SleepMode::Offload)?;
    println!(
        "{} MiB went back, {} MiB are kept on the host",
        slept.returned_bytes / MIB,
        slept.host_bytes / MIB
    );
    assert_eq!((sim.physical_bytes(0), slept.device_bytes), (0, slept.returned_bytes));

    // The whole device is free for something else.
    let other = allocator.allocate(0, 500 * MIB, 0, stream)?;
    allocator.deallocate(other)?;

    let woken = allocator.wake(None, &["weights"])?;
    println!("{} MiB are back at their addresses", woken.copied_bytes / MIB);
    for (number, layer) in layers.into_iter().enumerate() {
        let mut last = [0];
        sim.read_bytes(layer.address() + 50 * MIB - 1, &mut last).expect("the block is mapped");
        assert_eq!(last, [number as u8]);
        allocator.deallocate(layer)?;
    }
    allocator.release_pool(pool)
}
