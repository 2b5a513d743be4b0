//! Page-locked host memory: buffers that go to the device and back, pageable data through a ring, and reuse that waits
//! for the stream.
//!
//! `cargo run --example 08_page_locked`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedBuffer, PinnedOptions, StagingRing};
use ascend_alloc::{Config, DeviceAllocator, Result};
use ascend_sim::{LAG_NEVER, Sim, SimConfig};

const MIB: u64 = 1 << 20;

/// Runs the example; its claims are assertions.
pub fn main() -> Result<()> {
    // Work stays unfinished until somebody waits for it, as on a busy device.
    let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let device = DeviceAllocator::new(Config::default(), driver.clone())?;
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?);
    let stream = Stream(0);

    // A buffer belongs to the copy until it was waited for.
    let target = device.allocate(0, 4 * MIB, 0, stream)?;
    let numbers: Vec<f32> = (0..1 << 20).map(|n| n as f32).collect();
    let buffer = PinnedBuffer::from_slice(Arc::clone(&pinned), &numbers)?;
    let flight = buffer.upload(target, 0, stream).map_err(|(error, _)| error)?;
    let buffer = flight.wait().map_err(|(error, _)| error)?;
    assert_eq!(buffer[1000], 1000.0);

    // Given up under way, its memory waits for the stream; another request gets other memory meanwhile.
    let address = buffer.ptr().address();
    drop(buffer.upload(target, 0, stream).map_err(|(error, _)| error)?);
    let other = pinned.allocate(4 * MIB, 0)?;
    assert_ne!(other.address(), address);
    println!("{} MiB wait for the stream", pinned.stats().waiting_bytes / MIB);
    sim.synchronize_device().ok();
    pinned.deallocate(other)?;

    // Pageable data goes through two buffers: the host fills one while the device reads the other.
    let large = device.allocate(0, 50 * MIB, 0, stream)?;
    let data: Vec<u8> = (0..50 * MIB).map(|n| (n % 251) as u8).collect();
    let mut ring = StagingRing::new(Arc::clone(&pinned), 0, 2, 4 * MIB)?;
    ring.upload(&data, large, stream, |progress| {
        if progress.done == progress.total {
            println!("{} MiB have left the host", progress.total / MIB);
        }
    })?;
    let mut back = vec![0; data.len()];
    ring.download(&mut back, large, stream, |_| {})?;
    assert!(back == data);
    drop(ring);

    device.deallocate(target)?;
    device.deallocate(large)?;
    pinned.empty_cache_waiting()?;
    assert_eq!(pinned.stats().allocated_bytes.current, 0);
    assert!(sim.findings().is_empty());
    Ok(())
}
