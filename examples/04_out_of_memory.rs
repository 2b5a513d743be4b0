//! Settings, limits, callbacks that free memory, and what an error says.
//!
//! `cargo run --example 04_out_of_memory`

use std::sync::{Arc, Mutex};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{Age, Config, DeviceAllocator, DevicePtr, EmptyOptions, Error, PoolOptions, Result};
use ascend_sim::{Sim, SimConfig};

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    // A text in torch_npu's grammar; `Config::from_env()` reads the environment instead.
    let config = Config::parse("per_process_memory_fraction:0.5,roundup_power2_divisions:4")?;
    let wrong = Config::parse("per_process_memory_fraction:2").expect_err("no device has twice its memory");
    println!("{wrong}");
    assert_eq!(wrong.key, "per_process_memory_fraction");

    let driver = SimDriver::new(Sim::new(SimConfig { capacity: 1 << 30, ..SimConfig::default() }));
    let allocator = Arc::new(DeviceAllocator::new(config, Arc::new(driver))?);
    let stream = Stream(0);
    let weights = allocator.create_pool(0, PoolOptions::tagged("weights"))?;
    let held = allocator.allocate_in(weights, 300 << 20, 0, stream)?;
    match allocator.allocate(0, 300 << 20, 0, stream) {
        Err(Error::OutOfMemory(report)) => {
            // The text is for people, the fields for programs.
            println!("{report}");
            assert_eq!((report.cause, report.limit), (OutOfMemoryCause::Limit, Some(512 << 20)));
            // Both are rounded up to 320 MiB, as the configuration says.
            assert_eq!(report.lacking, 128 << 20);
            assert_eq!((report.holders[0].tag.as_str(), report.holders[0].bytes), ("weights", 320 << 20));
            assert!(
                report.remedies.iter().any(|remedy| remedy.change.contains("per_process_memory_fraction"))
            );
            assert!(report.remedies.iter().any(|remedy| remedy.change.contains("roundup_power2_divisions")));
        }
        other => panic!("half of the device is not enough for both: {other:?}"),
    }

    // A callback is asked before a request fails, and gives up what it can do without.
    let cache = Arc::new(Mutex::new(vec![allocator.allocate(0, 128 << 20, 0, stream)?]));
    let (keeper, spare) = (Arc::downgrade(&allocator), cache.clone());
    let callback = allocator.add_memory_callback(Arc::new(move |_device, bytes| {
        println!("{bytes} bytes are lacking");
        let taken = spare.lock().ok().and_then(|mut cache| cache.pop());
        taken.zip(keeper.upgrade()).is_some_and(|(ptr, allocator)| allocator.deallocate(ptr).is_ok())
    }));
    let more = allocator.allocate(0, 150 << 20, 0, stream)?;
    assert!(cache.lock().is_ok_and(|cache| cache.is_empty()), "the cache was given up");
    assert_eq!(allocator.stats(0)?.ladder.asked, 1);
    allocator.remove_memory_callback(callback);
    allocator.deallocate(more)?;

    // Beyond a soft limit idle memory is moved or given back before more is taken; nothing fails.
    allocator.set_soft_limit(0, Some(400 << 20))?;
    // What has been idle for long goes back to the device.
    let old = EmptyOptions { min_age: Some(Age::Frees(1_000_000)), ..EmptyOptions::default() };
    assert_eq!(allocator.empty_cache_with(Some(0), &old)?, 0, "nothing is that old");

    // Wrong pointers are errors, and change nothing.
    let inside = DevicePtr(held.address() + 512);
    println!("{}", allocator.deallocate(inside).expect_err("not the start of a block"));
    allocator.deallocate(held)?;
    println!("{}", allocator.deallocate(held).expect_err("freed before"));
    Ok(())
}
