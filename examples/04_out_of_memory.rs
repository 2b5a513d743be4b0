//! Settings, limits, and what an error says.
//!
//! `cargo run --example 04_out_of_memory`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, Error, Result};
use ascend_sim::{Sim, SimConfig};

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    // A text in torch_npu's grammar; `Config::from_env()` reads the environment instead.
    let config = Config::parse("per_process_memory_fraction:0.5,roundup_power2_divisions:4")?;
    let wrong = Config::parse("per_process_memory_fraction:2").expect_err("no device has twice its memory");
    println!("{wrong}");
    assert_eq!(wrong.key, "per_process_memory_fraction");

    let driver = SimDriver::new(Sim::new(SimConfig { capacity: 1 << 30, ..SimConfig::default() }));
    let allocator = DeviceAllocator::new(config, Arc::new(driver))?;
    let held = allocator.allocate(0, 300 << 20, 0, Stream(0))?;
    match allocator.allocate(0, 300 << 20, 0, Stream(0)) {
        Err(Error::OutOfMemory(report)) => {
            println!("{report}");
            assert_eq!(report.cause, OutOfMemoryCause::Limit);
            assert_eq!(report.limit, Some(512 << 20));
        }
        other => panic!("half of the device is not enough for both: {other:?}"),
    }

    // Wrong pointers are errors, and change nothing.
    let inside = DevicePtr(held.address() + 512);
    println!("{}", allocator.deallocate(inside).expect_err("not the start of a block"));
    allocator.deallocate(held)?;
    println!("{}", allocator.deallocate(held).expect_err("freed before"));
    Ok(())
}
