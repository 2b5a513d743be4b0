//! The content of pools that sleep, in page-locked host memory.
//!
//! Content is copied in pieces: while one is copied the memory for the next is taken. A piece holds as many stretches of
//! live memory as fit, because page-locked memory is slow to be had and comes in whole pages. It comes from a
//! [`ContentStore`] where one was given, else from the driver itself.

use super::DeviceAllocator;
use super::device::Caller;
use crate::core::pool::PoolIndex;
use crate::core::sleep::{Kept, Unwanted};
use crate::driver::{DeviceId, DriverResult, HostCopy, Stream};
use crate::error::{Error, Result};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Bytes of page-locked memory that are taken at a time, at most.
const PIECE: u64 = 64 << 20;

/// Where page-locked host memory for the content of sleeping pools comes from.
/// [`PinnedAllocator`](crate::host::PinnedAllocator) is one: what a sleep needed is then there for the next.
///
/// The functions may be called from any thread, and are called without a lock; they must not call the allocator
/// whose pools sleep. A panic in [`take`](Self::take) counts as a refusal, one in another is passed over.
///
/// # Safety
///
/// What [`take`](Self::take) returns can be read and written for as many bytes, by copies of the device too, and is
/// nobody else's until it was given back.
pub unsafe trait ContentStore: Send + Sync {
    /// Page-locked memory of at least `bytes` bytes that copies of that device can reach; its address. It belongs to
    /// the caller until [`give_back`](Self::give_back).
    ///
    /// # Errors
    ///
    /// Whatever says why there is none. The pools stay awake then.
    fn take(&self, device: DeviceId, bytes: u64) -> Result<u64>;

    /// Takes memory of [`take`](Self::take) back. No copy uses it any more.
    fn give_back(&self, device: DeviceId, address: u64);

    /// The most bytes that [`take`](Self::take) gives at a time; more content is kept in several pieces.
    fn largest(&self) -> u64 {
        u64::MAX
    }
}

impl DeviceAllocator {
    /// Has the content of pools that sleep with [`SleepMode::Offload`](crate::SleepMode::Offload) from now on kept in
    /// memory of that store. It is kept as long as the allocator.
    ///
    /// # Errors
    ///
    /// [`Error::State`] when there is one already.
    pub fn keep_content_in(&self, store: Arc<dyn ContentStore>) -> Result<()> {
        let reason = "there is one already, and content may lie in it";
        self.store.set(store).map_err(|_| Error::State { operation: "setting a content store", reason })
    }
}

impl Caller<'_> {
    /// Frees the host memory of a device's sleeping pools.
    pub(super) fn drop_kept(&self) {
        let unwanted = self.device.core.lock().forget_kept();
        self.drop_content(unwanted);
        // Where no wait succeeds any more, the device is gone and with it what could write there.
        if !self.device.limbo.lock().is_empty() && self.wait_for_copies().is_err() {
            let left = core::mem::take(&mut *self.device.limbo.lock());
            self.free_kept(left);
        }
    }

    /// Gives the host memory of content back that nobody wants any more: what copies may still read after the next wait
    /// that succeeds.
    pub(super) fn drop_content(&self, unwanted: Unwanted) {
        self.device.limbo.lock().extend(unwanted.read);
        self.free_kept(unwanted.free);
    }

    /// Copies the live memory of a pool to the host. `generation` says how often the device had been reset.
    pub(super) fn offload(&self, pool: PoolIndex, generation: u64) -> Result<Vec<Kept>> {
        let stretches = self.device.core.lock().live_stretches(pool);
        let mut pieces: Vec<Kept> = Vec::new();
        let mut failure = None;
        let mut left: u64 = stretches.iter().map(|&(_, bytes)| bytes).sum();
        let most = self.largest_piece();
        // What is free of the block taken last.
        let (mut host, mut room) = (0, 0);
        'all: for (start, bytes) in stretches {
            let mut at = start;
            while at < start + bytes {
                let owns = room == 0;
                if owns {
                    room = most.min(left);
                    host = match self.take_host(room) {
                        Ok(host) => host,
                        Err(error) => {
                            failure = Some(error);
                            break 'all;
                        }
                    };
                }
                let length = room.min(start + bytes - at);
                let stored = self.store.is_some();
                let piece = Kept { host, device: at, bytes: length, owns, stored };
                pieces.push(piece);
                if let Err(error) = self.queue_copy(piece, true) {
                    failure = Some(error.into());
                    break 'all;
                }
                (at, host, room, left) = (at + length, host + length, room - length, left - length);
            }
        }
        // Also after a failure: the copies that are queued must be over before their memory is freed.
        let waited = self.wait_for_copies();
        if waited.is_err() {
            // A copy may still write there: it is freed once a wait succeeds. And it may still read the device's
            // memory.
            let mut core = self.device.core.lock();
            if core.generation == generation {
                core.shield(pool, &pieces);
                self.device.settle_peaks(&mut core);
            }
            drop(core);
            self.device.limbo.lock().append(&mut pieces);
        }
        match failure.map_or(waited.map_err(Error::from), Err) {
            Ok(()) => Ok(pieces),
            Err(error) => {
                self.free_kept(pieces);
                Err(error)
            }
        }
    }

    /// Copies the kept content of the pools back; bytes. `generation` says how often the device had been reset.
    pub(super) fn bring_back(&self, pools: &[PoolIndex], generation: u64) -> Result<u64> {
        let mut copies = Vec::new();
        {
            let core = self.device.core.lock();
            for &pool in pools {
                let kept = core.kept_of(pool);
                let stretches = core.live_stretches(pool);
                copies.extend(kept.iter().flat_map(|piece| still_live(piece, &stretches)));
            }
            // Then there is nothing to wait for, which nobody may do during a capture.
            if copies.is_empty() && !pools.iter().any(|&pool| core.is_copying(pool)) {
                return Ok(0);
            }
        }
        let queued: DriverResult<()> = copies.iter().try_for_each(|&piece| self.queue_copy(piece, false));
        let waited = self.wait_for_copies();
        {
            let mut core = self.device.core.lock();
            if core.generation == generation {
                pools.iter().for_each(|&pool| core.set_copying(pool, waited.is_err()));
            }
        }
        // While a copy may run nothing is taken away again: the pools sleep on with memory behind them.
        waited?;
        if let Err(error) = queued {
            // The content is still on the host: asleep as before.
            self.take_away(pools)?;
            return Err(error.into());
        }
        Ok(copies.iter().map(|piece| piece.bytes).sum())
    }

    /// Waits until all copies are done: for their stream, or for the device if that is refused. Host memory that a
    /// wait that failed left behind is freed.
    pub(super) fn wait_for_copies(&self) -> DriverResult<()> {
        let device = self.device.limits.device;
        // What comes there meanwhile is for a later wait.
        let before = core::mem::take(&mut *self.device.limbo.lock());
        let waited = self.driver.synchronize_stream(device, Stream(0));
        self.device.core.lock().tally.calls.wait_stream += 1;
        let waited = waited.or_else(|error| {
            let answer = self.driver.synchronize_device(device).map_err(|_| error);
            self.device.core.lock().tally.calls.wait_device += 1;
            answer
        });
        match waited {
            Ok(()) => self.free_kept(before),
            Err(_) => self.device.limbo.lock().extend(before),
        }
        waited
    }

    /// Gives host memory back that copies may have used until now, or that was refused. It waits for nothing where there is
    /// none, and not during a capture.
    pub(super) fn settle_copies(&self) -> Result<()> {
        let none = self.device.limbo.lock().is_empty();
        if none || self.device.core.lock().capturing > 0 {
            return Ok(());
        }
        Ok(self.wait_for_copies()?)
    }

    fn queue_copy(&self, piece: Kept, to_host: bool) -> DriverResult<()> {
        let copy = HostCopy { host: piece.host, device: piece.device, bytes: piece.bytes, to_host };
        // SAFETY: the piece lies in a block of `malloc_host`, or of a store that promises as much, which belongs to this
        // call or to the sleeping pool, and is freed only after the default stream, on which the copy is queued, was
        // waited for.
        unsafe { self.driver.copy_async(self.device.limits.device, copy, Stream(0)) }
    }

    /// The most host memory to be taken at a time.
    fn largest_piece(&self) -> u64 {
        let asked = self.store.map(|store| catch_unwind(AssertUnwindSafe(|| store.largest())));
        // A store that has none at all says why when it is asked for a byte.
        asked.and_then(core::result::Result::ok).unwrap_or(PIECE).clamp(1, PIECE)
    }

    /// Host memory for so many bytes of content.
    fn take_host(&self, bytes: u64) -> Result<u64> {
        let device = self.device.limits.device;
        match self.store {
            Some(store) => {
                let operation = "taking host memory for the content of a pool";
                let panicked = Error::State { operation, reason: "the content store panicked" };
                catch_unwind(AssertUnwindSafe(|| store.take(device, bytes))).unwrap_or(Err(panicked))
            }
            None => Ok(self.driver.malloc_host(device, bytes)?),
        }
    }

    /// Gives host memory back: whole blocks. No copy uses it any more. What the driver refuses is offered again after the
    /// next wait.
    pub(super) fn free_kept(&self, kept: Vec<Kept>) {
        let device = self.device.limits.device;
        for piece in kept.into_iter().filter(|piece| piece.owns) {
            match self.store.filter(|_| piece.stored) {
                // Nobody is left to be told of a panic.
                Some(store) => {
                    let _ = catch_unwind(AssertUnwindSafe(|| store.give_back(device, piece.host)));
                }
                None if self.driver.free_host(device, piece.host).is_ok() => {}
                None => self.device.limbo.lock().push(piece),
            }
        }
    }
}

/// The parts of a kept piece that live blocks still want; their stretches are in the order of addresses.
fn still_live<'a>(piece: &'a Kept, stretches: &'a [(u64, u64)]) -> impl Iterator<Item = Kept> {
    let end = piece.device + piece.bytes;
    let before = stretches.partition_point(|&(start, bytes)| start + bytes <= piece.device);
    let parts = stretches[before..].iter().take_while(move |&&(start, _)| start < end);
    parts.map(move |&(start, bytes)| {
        let from = start.max(piece.device);
        let to = (start + bytes).min(end);
        Kept { host: piece.host + (from - piece.device), device: from, bytes: to - from, ..*piece }
    })
}
