//! Blocks that are one physical handle each.
//!
//! They come from a pool of the device that takes its memory from [`OneHandle`]: a reservation, one chunk of the
//! same size, mapped as one piece. The pool never splits or merges, so a block is always the whole of its chunk.
//!
//! What the driver does not take back when no block can have it any more is kept apart, and tried again with the next
//! request for such a block and whenever caches are emptied.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use allocator::config::Config;
use allocator::driver::{
    AclDriver, DeviceId, Driver, DriverResult, PageKind, PhysicalHandle, StateChanges, Stream,
};
use allocator::{DevicePtr, Error, PoolId, PoolOptions, PoolSource};
use parking_lot::Mutex;

use crate::process::{Failure, Process};

/// The pools, by device.
static POOLS: Mutex<BTreeMap<DeviceId, PoolId>> = Mutex::new(BTreeMap::new());
/// What the driver has not taken back.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());
/// Resets that were dealt with; changed and read with [`LEFT`] in hand.
static RESETS: AtomicU64 = AtomicU64::new(0);
/// Resets of devices, from the first pool on.
static CHANGES: OnceLock<Arc<StateChanges>> = OnceLock::new();

/// A reservation in which nothing is mapped, and the chunk that was.
struct Left {
    device: DeviceId,
    address: u64,
    chunk: Option<PhysicalHandle>,
}

impl Left {
    /// Gives it back, or as much of it as the driver takes.
    fn give_back(&mut self, driver: &AclDriver) -> DriverResult<()> {
        if let Some(chunk) = self.chunk {
            driver.free_physical(self.device, chunk)?;
            self.chunk = None;
        }
        driver.release(self.device, self.address)
    }

    /// The same; what the driver does not take is tried again later.
    fn give_up(mut self, driver: &AclDriver) {
        if self.give_back(driver).is_err() {
            LEFT.lock().push(self);
        }
    }
}

/// Tries once more to give back what the driver has refused, of one device or of all; its first refusal.
pub(crate) fn try_again(driver: &AclDriver, device: Option<DeviceId>) -> Result<(), Failure> {
    heed();
    let is_meant = |left: &mut Left| device.is_none_or(|device| device == left.device);
    let (meant, resets): (Vec<Left>, u64) = {
        let mut all = LEFT.lock();
        (all.extract_if(.., is_meant).collect(), RESETS.load(Relaxed))
    };
    let mut refused = Ok(());
    for mut left in meant {
        if let Err(error) = left.give_back(driver) {
            let mut all = LEFT.lock();
            // After a reset meanwhile it may be another's.
            if RESETS.load(Relaxed) == resets {
                all.push(left);
            }
            refused = refused.and(Err(error));
        }
    }
    refused.map_err(|error| Error::from(error).into())
}

/// A device was reset: what was left there is gone, and other memory may have its addresses and handles.
pub(crate) fn device_was_reset(device: DeviceId) {
    forget(|left| left.device == device);
}

fn forget(gone: impl Fn(&Left) -> bool) {
    let mut all = LEFT.lock();
    RESETS.fetch_add(1, Relaxed);
    all.retain(|left| !gone(left));
}

/// Deals with resets that the runtime has told of.
fn heed() {
    let Some(changes) = CHANGES.get().filter(|changes| changes.any()) else { return };
    for device in changes.drain_resets() {
        // The last one stands for all from there on.
        forget(|left| left.device.min(63) == device);
    }
}

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
    CHANGES.get_or_init(|| {
        let changes = Arc::new(StateChanges::default());
        process.driver.watch_states(&changes);
        changes
    });
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
        let _refused = try_again(driver, Some(device));
        let granule = driver.granularity(device, self.pages).ok()?;
        let bytes = bytes.checked_next_multiple_of(granule)?;
        let address = driver.reserve(device, bytes).ok()?;
        let undo = |chunk| Left { device, address, chunk }.give_up(driver);
        let chunk = driver.malloc_physical(device, bytes, self.pages).map_err(|_| undo(None)).ok()?;
        self.put(device, address, bytes, chunk).map_err(|_| undo(Some(chunk))).ok()?;
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
        Left { device, address, chunk: freed.is_err().then_some(chunk) }.give_up(&self.driver);
        Ok(())
    }
}
