//! Memory of pools that comes from elsewhere than the driver.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::UNIT;
use crate::driver::{DeviceId, DriverResult, Stream};
use crate::sync::plain;

/// Where the memory of a pool comes from, if not from the driver. Called without any lock, by the thread that
/// allocates or gives memory back; it must not allocate from the same pool. Else it may call the allocator; what would
/// have to wait for the call that it was called for fails ([`Error::State`](crate::Error::State) or
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory)). It is dropped without any lock, too, by a call after which its pool
/// is gone, and its destructor may call the allocator. Where its memory needs grants, it sees to those of the device's
/// [peers](crate::DeviceAllocator::peers) itself.
pub trait PoolSource: Send + Sync {
    /// The address of `bytes` bytes of memory of the device, a multiple of 512, for use first on `stream`;
    /// nothing when there is none. A panic counts as none. Memory that overlaps what the allocator has already is not
    /// taken: the request fails, and the memory stays with the source.
    fn allocate(&self, device: DeviceId, bytes: u64, stream: Stream) -> Option<u64>;

    /// The same for sources that know why they have none. Where memory is short that counts as none; any other refusal
    /// fails the request, which then has this error. A panic counts as none.
    ///
    /// # Errors
    ///
    /// What refused it.
    fn try_allocate(&self, device: DeviceId, bytes: u64, stream: Stream) -> DriverResult<Option<u64>> {
        Ok(self.allocate(device, bytes, stream))
    }

    /// Takes memory back that [`allocate`](Self::allocate) gave: address and bytes as then. No queued work uses
    /// it any more. Not called for what went with a reset of the device. A panic is passed over.
    fn free(&self, device: DeviceId, address: u64, bytes: u64);

    /// The same for sources that may be refused to give it back: with an error nothing has changed, and the memory
    /// stays with the pool, idle, as that of the driver does. A panic is passed over, and the memory counts as gone.
    ///
    /// # Errors
    ///
    /// What refused it.
    fn try_free(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        self.free(device, address, bytes);
        Ok(())
    }

    /// Whether its memory is taken out of that of the device it serves. Such memory counts towards the limits of the
    /// device's memory, is refused where they leave no room, and idle memory of either kind goes when the other lacks
    /// it. Asked once, when the pool is made; a panic counts as no.
    fn is_of_device(&self) -> bool {
        false
    }
}

/// A [`PoolSource`] that cannot upset its caller.
#[derive(Clone)]
pub(crate) struct Source {
    gives: Arc<dyn PoolSource>,
    /// See [`PoolSource::is_of_device`].
    pub(super) of_device: bool,
}

impl Source {
    /// Asks what kind of memory it gives; to be made without a lock.
    pub(crate) fn new(gives: Arc<dyn PoolSource>) -> Self {
        let of_device = catch_unwind(AssertUnwindSafe(|| gives.is_of_device())).unwrap_or(false);
        Self { gives, of_device }
    }

    /// Whether its memory is taken out of the device's.
    pub(crate) fn is_of_device(&self) -> bool {
        self.of_device
    }

    /// Whether it is the same object as another one: what one pool gives back, the other one can get.
    pub(super) fn is(&self, other: &Self) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.gives), Arc::as_ptr(&other.gives))
    }

    /// See [`PoolSource::try_allocate`]. An address that no block can have counts as none.
    pub(crate) fn allocate(&self, device: DeviceId, bytes: u64, stream: Stream) -> DriverResult<Option<u64>> {
        let asked = AssertUnwindSafe(|| self.gives.try_allocate(device, bytes, stream));
        let Some(address) = catch_unwind(asked).unwrap_or(Ok(None))? else { return Ok(None) };
        let fits = address != 0 && address.is_multiple_of(UNIT) && address.checked_add(bytes).is_some();
        if !fits {
            // Nobody is left to be told.
            let _refused = self.free(device, address, bytes);
        }
        Ok(fits.then_some(address))
    }

    /// See [`PoolSource::try_free`].
    pub(crate) fn free(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        catch_unwind(AssertUnwindSafe(|| self.gives.try_free(device, address, bytes))).unwrap_or(Ok(()))
    }
}

/// Sources of pools that are gone. Their destructors may call the allocator, so they are dropped by whoever has left the
/// lock.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    /// Whether there are any. Looked at by each slow call, so without a lock.
    any: AtomicBool,
    sources: plain::Mutex<Vec<Source>>,
}

impl Departed {
    /// Adds the source of a pool that goes.
    pub(super) fn add(&self, source: Source) {
        self.sources.lock().push(source);
        self.any.store(true, Relaxed);
    }

    /// Drops all of them, with what they own. No lock may be held. A panic is passed over.
    #[inline]
    pub(crate) fn part(&self) {
        if self.any.load(Relaxed) {
            self.part_slowly();
        }
    }

    #[cold]
    fn part_slowly(&self) {
        let sources = {
            let mut sources = self.sources.lock();
            self.any.store(false, Relaxed);
            core::mem::take(&mut *sources)
        };
        for source in sources {
            let _passed_over = catch_unwind(AssertUnwindSafe(|| drop(source)));
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}
