//! Blocks that are one physical handle each.
//!
//! They come from a pool of the device that takes its memory from [`OneHandle`]: a reservation, one chunk of the
//! same size, mapped as one piece. The pool never splits or merges, so a block is always the whole of its chunk.

use std::collections::BTreeMap;
use std::sync::Arc;

use allocator::config::Config;
use allocator::driver::{AclDriver, DeviceId, Driver, DriverResult, PageKind, PhysicalHandle, Stream};
use allocator::{DevicePtr, PoolId, PoolOptions, PoolSource};
use parking_lot::Mutex;

use crate::process::{Failure, Process};

/// The pools, by device.
static POOLS: Mutex<BTreeMap<DeviceId, PoolId>> = Mutex::new(BTreeMap::new());

/// A block that is one handle.
pub(crate) fn allocate(
    process: &Process,
    device: DeviceId,
    bytes: u64,
    stream: Stream,
) -> Result<DevicePtr, Failure> {
    let known = POOLS.lock().get(&device).copied();
    let pool = match known {
        Some(pool) => pool,
        None => create(process, device)?,
    };
    Ok(process.allocator.allocate_in(pool, bytes, 0, stream)?)
}

fn create(process: &Process, device: DeviceId) -> Result<PoolId, Failure> {
    let mut options = PoolOptions::tagged("one_handle");
    options.no_split = true;
    options.source = Some(Arc::new(OneHandle {
        driver: process.driver.clone(),
        pages: process.allocator.config().page_size,
        access: access(process.allocator.config(), &process.driver, device),
        chunks: Mutex::new(BTreeMap::new()),
    }));
    // Setting a pool up can call the driver, so it is done without the lock; of two the first stays.
    let made = process.allocator.create_pool(device, options)?;
    let mut pools = POOLS.lock();
    let kept = *pools.entry(device).or_insert(made);
    drop(pools);
    if kept != made {
        process.allocator.release_pool(made)?;
    }
    Ok(kept)
}

fn access(config: &Config, driver: &AclDriver, device: DeviceId) -> bool {
    match config.set_access {
        allocator::config::SetAccess::On => true,
        allocator::config::SetAccess::Off => false,
        allocator::config::SetAccess::Auto => driver.owner_access_is_addressable(device),
    }
}

/// Reservations with one chunk each.
struct OneHandle {
    driver: Arc<AclDriver>,
    pages: PageKind,
    access: bool,
    /// Chunks by address, with their bytes.
    chunks: Mutex<BTreeMap<u64, (PhysicalHandle, u64)>>,
}

impl OneHandle {
    /// Maps a chunk, whole.
    fn put(&self, device: DeviceId, address: u64, bytes: u64, chunk: PhysicalHandle) -> DriverResult<()> {
        self.driver.map(device, address, bytes, chunk)?;
        if self.access {
            // Libraries that lack the call give access with the mapping.
            let _unneeded = self.driver.set_access(device, address, bytes, device);
        }
        Ok(())
    }
}

impl PoolSource for OneHandle {
    fn allocate(&self, device: DeviceId, bytes: u64, _stream: Stream) -> Option<u64> {
        let driver = &*self.driver;
        let granule = driver.granularity(device, self.pages).ok()?;
        let bytes = bytes.checked_next_multiple_of(granule)?;
        let address = driver.reserve(device, bytes).ok()?;
        let release = |_| driver.release(device, address);
        let chunk = driver.malloc_physical(device, bytes, self.pages).map_err(release).ok()?;
        let undo = |_| (driver.free_physical(device, chunk), driver.release(device, address));
        self.put(device, address, bytes, chunk).map_err(undo).ok()?;
        self.chunks.lock().insert(address, (chunk, bytes));
        Some(address)
    }

    fn is_of_device(&self) -> bool {
        true
    }

    fn free(&self, device: DeviceId, address: u64, bytes: u64) {
        let _refused = self.try_free(device, address, bytes);
    }

    fn try_free(&self, device: DeviceId, address: u64, _bytes: u64) -> DriverResult<()> {
        let Some((chunk, bytes)) = self.chunks.lock().get(&address).copied() else { return Ok(()) };
        self.driver.unmap(device, address)?;
        let freed = self.driver.free_physical(device, chunk);
        if freed.is_err() && self.put(device, address, bytes, chunk).is_ok() {
            return freed;
        }
        self.chunks.lock().remove(&address);
        // An address that the driver keeps costs no memory.
        let _released = self.driver.release(device, address);
        Ok(())
    }
}
