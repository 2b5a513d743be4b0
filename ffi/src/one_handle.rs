//! Blocks that are one physical handle each.
//!
//! They come from a pool of the device that takes its memory from [`OneHandle`]: a reservation, one chunk of the
//! same size, mapped as one piece. The pool never splits or merges, so a block is always the whole of its chunk.
//!
//! What the driver does not take back when no block can have it any more is kept apart, and tried again with the next
//! request for such a block and whenever caches are emptied.
//!
//! The allocator knows nothing of the chunks. So the peers of a device are given access here: to a chunk when it is mapped,
//! and to all of them when the peers are set.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use allocator::config::Config;
use allocator::driver::{
    AclDriver, DeviceId, Driver, DriverResult, PageKind, PhysicalHandle, StateChanges, Stream,
};
use allocator::{DevicePtr, Error, PoolId, PoolOptions, PoolSource};
use parking_lot::Mutex;

use crate::process::{self, Failure, Process};

/// The pools, by device, with their sources.
static POOLS: Mutex<BTreeMap<DeviceId, (PoolId, Arc<OneHandle>)>> = Mutex::new(BTreeMap::new());
/// Whoever sets peers.
static PEERING: Mutex<()> = Mutex::new(());
/// What the driver has not taken back.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());
/// Resets that were dealt with; changed and read with [`LEFT`] in hand.
static RESETS: AtomicU64 = AtomicU64::new(0);
/// Resets of devices, from the first pool on.
static CHANGES: OnceLock<Arc<StateChanges>> = OnceLock::new();

/// A reservation, and the chunk that was mapped there or still is.
struct Left {
    device: DeviceId,
    address: u64,
    mapped: bool,
    chunk: Option<PhysicalHandle>,
}

impl Left {
    /// Gives it back, or as much of it as the driver takes.
    fn give_back(&mut self, driver: &AclDriver) -> DriverResult<()> {
        if self.mapped {
            driver.unmap(self.device, self.address)?;
            self.mapped = false;
        }
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
    forget(|of| of == device);
}

fn forget(gone: impl Fn(DeviceId) -> bool) {
    {
        let mut all = LEFT.lock();
        RESETS.fetch_add(1, Relaxed);
        all.retain(|left| !gone(left.device));
    }
    for (_, (_, source)) in POOLS.lock().iter().filter(|(device, _)| gone(**device)) {
        source.chunks.lock().clear();
    }
}

/// Deals with resets that the runtime has told of.
fn heed() {
    let Some(changes) = CHANGES.get().filter(|changes| changes.any()) else { return };
    for device in changes.drain_resets() {
        // The last one stands for all from there on.
        forget(|of| of.min(63) == device);
    }
}

/// A block that is one handle.
pub(crate) fn allocate(
    process: &Process,
    device: DeviceId,
    bytes: u64,
    stream: Stream,
) -> Result<DevicePtr, Failure> {
    heed();
    let known = POOLS.lock().get(&device).map(|&(pool, _)| pool);
    let pool = match known {
        Some(pool) => pool,
        None => create(process, device)?,
    };
    Ok(process.allocator.allocate_in(pool, bytes, 0, stream)?)
}

/// Whether a pool is that of such blocks.
pub(crate) fn owns(pool: PoolId) -> bool {
    POOLS.lock().get(&pool.device).is_some_and(|&(kept, _)| kept == pool)
}

fn create(process: &Process, device: DeviceId) -> Result<PoolId, Failure> {
    CHANGES.get_or_init(|| {
        let changes = Arc::new(StateChanges::default());
        process.driver.watch_states(&changes);
        changes
    });
    let source = Arc::new(OneHandle {
        driver: process.driver.clone(),
        pages: process.allocator.config().page_size,
        access: access(process.allocator.config(), &process.driver, device),
        chunks: Mutex::new(BTreeMap::new()),
    });
    let mut options = PoolOptions::tagged("one_handle");
    options.no_split = true;
    options.source = Some(source.clone());
    // Setting a pool up can call the driver, so it is done without the lock; of two the first stays.
    let made = process.allocator.create_pool(device, options)?;
    let mut pools = POOLS.lock();
    let kept = pools.entry(device).or_insert((made, source)).0;
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
    /// Maps a chunk, whole, notes it, and gives the peers access to it. After a refusal what is left of it is the caller's.
    fn put(&self, left: &mut Left, chunk: PhysicalHandle, bytes: u64) -> DriverResult<()> {
        let Left { device, address, .. } = *left;
        self.driver.map(device, address, bytes, chunk)?;
        if self.access {
            // Libraries that lack the call give access with the mapping.
            let _unneeded = self.driver.set_access(device, address, bytes, device);
        }
        self.chunks.lock().insert(address, (chunk, bytes));
        // Only now: whoever sets others from here on finds the chunk.
        self.grant(device, &peers_of(device), (address, chunk, bytes)).inspect_err(|_| {
            self.chunks.lock().remove(&address);
            left.mapped = true;
        })
    }

    /// Gives peers access to a chunk, unless it is not there any more.
    fn grant(
        &self,
        device: DeviceId,
        peers: &[DeviceId],
        chunk: (u64, PhysicalHandle, u64),
    ) -> DriverResult<()> {
        let (address, handle, bytes) = chunk;
        let is_there = || self.chunks.lock().get(&address) == Some(&(handle, bytes));
        peers.iter().try_for_each(|&peer| match self.driver.set_access(device, address, bytes, peer) {
            Err(error) if is_there() => Err(error),
            _ => Ok(()),
        })
    }

    /// Gives peers access to all chunks.
    fn grant_all(&self, device: DeviceId, peers: &[DeviceId]) -> DriverResult<()> {
        let chunks: Vec<_> =
            self.chunks.lock().iter().map(|(&address, &(chunk, bytes))| (address, chunk, bytes)).collect();
        chunks.into_iter().try_for_each(|chunk| self.grant(device, peers, chunk))
    }

    /// A reservation with a chunk of the same size.
    fn make(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        let driver = &*self.driver;
        let _refused = try_again(driver, Some(device));
        let granule = driver.granularity(device, self.pages)?;
        let bytes = bytes.checked_next_multiple_of(granule).unwrap_or(bytes);
        let address = driver.reserve(device, bytes)?;
        let mut left = Left { device, address, mapped: false, chunk: None };
        let put = driver.malloc_physical(device, bytes, self.pages).and_then(|chunk| {
            left.chunk = Some(chunk);
            self.put(&mut left, chunk, bytes)
        });
        put.map(|()| address).inspect_err(|_| left.give_up(driver))
    }
}

impl PoolSource for OneHandle {
    fn allocate(&self, device: DeviceId, bytes: u64, _stream: Stream) -> Option<u64> {
        self.make(device, bytes).ok()
    }

    fn try_allocate(&self, device: DeviceId, bytes: u64, _stream: Stream) -> DriverResult<Option<u64>> {
        self.make(device, bytes).map(Some)
    }

    fn is_of_device(&self) -> bool {
        true
    }

    fn free(&self, device: DeviceId, address: u64, bytes: u64) {
        let _refused = self.try_free(device, address, bytes);
    }

    fn try_free(&self, device: DeviceId, address: u64, _bytes: u64) -> DriverResult<()> {
        // Before it is unmapped: what is not there needs no access.
        let Some((chunk, bytes)) = self.chunks.lock().remove(&address) else { return Ok(()) };
        let unmapped = self.driver.unmap(device, address);
        if unmapped.is_err() {
            self.chunks.lock().insert(address, (chunk, bytes));
            let _refused = self.grant(device, &peers_of(device), (address, chunk, bytes));
            return unmapped;
        }
        let mut left = Left { device, address, mapped: false, chunk: None };
        if let Err(error) = self.driver.free_physical(device, chunk) {
            left.chunk = Some(chunk);
            if self.put(&mut left, chunk, bytes).is_ok() {
                return Err(error);
            }
        }
        left.give_up(&self.driver);
        Ok(())
    }
}

/// The peers of a device at this moment.
fn peers_of(device: DeviceId) -> Vec<DeviceId> {
    let process = process::process_if_set_up();
    process.and_then(|process| process.allocator.peers(device).ok()).unwrap_or_default()
}

/// Sets the peers of a device, whose blocks that are one handle they reach, too.
pub(crate) fn set_peers(process: &Process, device: DeviceId, peers: &[DeviceId]) -> Result<(), Failure> {
    heed();
    let _turn = PEERING.lock();
    let allocator = &process.allocator;
    let before = allocator.peers(device)?;
    allocator.set_peers(device, peers)?;
    let source = POOLS.lock().get(&device).map(|(_, source)| source.clone());
    source.map_or(Ok(()), |source| {
        source.grant_all(device, peers).map_err(|error| {
            // What was mapped meanwhile may lack those of before.
            let _closed_meanwhile = allocator.set_peers(device, &before);
            let _refused = source.grant_all(device, &before);
            Error::from(error).into()
        })
    })
}
