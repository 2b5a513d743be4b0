//! The first steps: an allocator on a simulated device, a block, its statistics, and a buffer that frees itself.
//!
//! `cargo run --example 01_allocate`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DeviceBuffer, Result};
use ascend_sim::{Sim, SimConfig};

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    // One device of 1 GiB. On an NPU this line is `unsafe { AclDriver::open() }`.
    let driver = SimDriver::new(Sim::new(SimConfig { capacity: 1 << 30, ..SimConfig::default() }));
    let allocator = Arc::new(DeviceAllocator::new(Config::default(), Arc::new(driver))?);

    // 20 MiB on device 0 for work on its default stream. The block is somewhat longer than what was asked for: some
    // engines read up to 32 bytes past the end, and blocks come in steps of 512 bytes.
    let ptr = allocator.allocate(0, 20 << 20, 0, Stream(0))?;
    let info = allocator.block_info(ptr)?;
    println!("asked for {} bytes, got {} at {:#x}", info.requested, info.bytes, info.address);
    assert_eq!((info.requested, info.bytes), (20 << 20, (20 << 20) + 512));

    // A free only marks the block: its memory stays mapped and serves the next request without a driver call.
    allocator.deallocate(ptr)?;
    let before = allocator.stats(0)?.calls;
    let again = allocator.allocate(0, 20 << 20, 0, Stream(0))?;
    assert_eq!(again, ptr);
    assert_eq!(allocator.stats(0)?.calls, before);
    allocator.deallocate(again)?;

    // A buffer owns its block.
    let buffer = DeviceBuffer::new(allocator.clone(), 0, 4096, Stream(0))?;
    println!("a buffer of {} bytes at {:#x}", buffer.bytes(), buffer.ptr().address());
    drop(buffer);

    let stats = allocator.stats(0)?;
    println!(
        "now {} bytes are allocated and {} reserved; the most was {}",
        stats.allocated_bytes.all.current, stats.reserved_bytes.all.current, stats.allocated_bytes.all.peak,
    );
    assert_eq!(stats.allocated_bytes.all.current, 0);
    assert!(stats.reserved_bytes.all.current >= 20 << 20); // freed memory stays with the allocator

    // ... until somebody asks for it.
    allocator.empty_cache(None)?;
    assert_eq!(allocator.stats(0)?.reserved_bytes.all.current, 0);
    Ok(())
}
