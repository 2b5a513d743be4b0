//! A key-value cache for many requests: each has a buffer that grows token by token, never moves and copies nothing.
//!
//! `cargo run --example 05_growing_buffer`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, GrowableBuffer, GrowableOptions, Result};
use ascend_sim::{Sim, SimConfig, Task};

/// Bytes of keys and values of one token, all layers together: Llama-2-7B with 16-bit numbers.
const TOKEN: u64 = 2 * 32 * 4096 * 2;
/// The longest a request can become, in tokens.
const CONTEXT: u64 = 4096;

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    let sim = Sim::new(SimConfig { capacity: 2 << 30, ..SimConfig::default() });
    sim.set_device(0).expect("there is a device");
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver)?);
    let stream = Stream(0);

    // Address space for the longest request each, 2 GiB; memory for what is there.
    let arrive = |prompt: u64| {
        let options = GrowableOptions::up_to(CONTEXT * TOKEN).beginning_with(prompt * TOKEN);
        GrowableBuffer::new(allocator.clone(), 0, stream, options)
    };
    let mut cache: Vec<GrowableBuffer> =
        [700, 30, 1200, 5, 90].into_iter().map(arrive).collect::<Result<_>>()?;
    let places: Vec<_> = cache.iter().map(GrowableBuffer::ptr).collect();

    // 300 steps: every request gains a token, and the step reads all of its cache.
    for step in 0..300 {
        for buffer in &mut cache {
            buffer.resize(buffer.bytes() + TOKEN)?;
            let task = Task::new("attention").writes(buffer.ptr().address(), buffer.bytes(), step + 1);
            sim.submit(stream.0, task).expect("queued");
        }
    }
    assert!(cache.iter().map(GrowableBuffer::ptr).eq(places), "nothing has moved");
    let used: u64 = cache.iter().map(GrowableBuffer::bytes).sum();
    let held = allocator.stats(0)?.reserved_bytes.all.current as u64;
    println!("{} requests use {} MiB and hold {} MiB", cache.len(), used >> 20, held >> 20);
    assert!(held - used <= cache.len() as u64 * (2 << 20), "at most one chunk each is not full");

    // A request ends: the next one gets its place, with the memory that is in it.
    let gone = cache.swap_remove(2);
    let (place, before) = (gone.ptr(), sim.count("aclrtMapMem"));
    drop(gone);
    let next = arrive(1000)?;
    println!("the next request begins at {:#x} without a driver call", next.ptr().address());
    assert_eq!((next.ptr(), sim.count("aclrtMapMem")), (place, before));
    assert_eq!(sim.findings(), Vec::<String>::new());
    Ok(())
}
