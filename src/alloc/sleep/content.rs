//! The content of pools that sleep: copied to page-locked host memory, and back.

use super::Caller;
use crate::core::pool::PoolIndex;
use crate::core::sleep::Kept;
use crate::driver::{DriverResult, HostCopy, Stream};
use crate::error::Result;

/// Bytes of a host block, at most: copies into one run while the next is allocated.
const PIECE: u64 = 64 << 20;

impl Caller<'_> {
    /// Copies stretches of device memory to the host.
    pub(super) fn offload(&self, stretches: &[(u64, u64)]) -> DriverResult<Vec<Kept>> {
        let device = self.device.limits.device;
        let mut pieces: Vec<Kept> = Vec::new();
        let mut failure = None;
        'all: for &(start, bytes) in stretches {
            let mut at = start;
            while at < start + bytes {
                let length = PIECE.min(start + bytes - at);
                let host = match self.driver.malloc_host(device, length) {
                    Ok(host) => host,
                    Err(error) => {
                        failure = Some(error);
                        break 'all;
                    }
                };
                let piece = Kept { host, device: at, bytes: length };
                pieces.push(piece);
                if let Err(error) = self.queue_copy(piece, true) {
                    failure = Some(error);
                    break 'all;
                }
                at += length;
            }
        }
        // Also after a failure: the copies that are queued must be over before their memory is freed.
        let waited = self.wait_for_copies();
        if waited.is_err() {
            // A copy may still write there: it is freed once a wait succeeds.
            self.device.limbo.lock().append(&mut pieces);
        }
        match failure.map_or(waited, Err) {
            Ok(()) => Ok(pieces),
            Err(error) => {
                self.free_kept(pieces);
                Err(error)
            }
        }
    }

    /// Waits until all copies are done: for their stream, or for the device if that is refused. Host memory that a
    /// wait that failed left behind is freed.
    pub(super) fn wait_for_copies(&self) -> DriverResult<()> {
        let device = self.device.limits.device;
        let waited = self.driver.synchronize_stream(device, Stream(0));
        self.device.core.lock().tally.calls.wait_stream += 1;
        waited.or_else(|error| self.driver.synchronize_device(device).map_err(|_| error))?;
        let done = core::mem::take(&mut *self.device.limbo.lock());
        self.free_kept(done);
        Ok(())
    }

    fn queue_copy(&self, piece: Kept, to_host: bool) -> DriverResult<()> {
        let copy = HostCopy { host: piece.host, device: piece.device, bytes: piece.bytes, to_host };
        // SAFETY: the piece lies in a block of `malloc_host` that belongs to this call or to the sleeping pool, and
        // is freed only after the default stream, on which the copy is queued, was waited for.
        unsafe { self.driver.copy_async(self.device.limits.device, copy, Stream(0)) }
    }

    pub(super) fn free_kept(&self, kept: Vec<Kept>) {
        for piece in kept {
            // What the driver does not take back, nobody can give back.
            let _ = self.driver.free_host(self.device.limits.device, piece.host);
        }
    }

    /// Copies the kept content of the pools back; bytes.
    pub(super) fn bring_back(&self, pools: &[PoolIndex]) -> Result<u64> {
        let mut copies = Vec::new();
        {
            let core = self.device.core.lock();
            for &pool in pools {
                let kept = core.kept_of(pool);
                let stretches = core.live_stretches(pool);
                copies.extend(kept.iter().flat_map(|piece| still_live(piece, &stretches)));
            }
        }
        let queued: DriverResult<()> = copies.iter().try_for_each(|&piece| self.queue_copy(piece, false));
        // While a copy may run nothing is taken away again: the pools sleep on with memory behind them.
        self.wait_for_copies()?;
        if let Err(error) = queued {
            // The content is still on the host: asleep as before.
            self.take_away(pools)?;
            return Err(error.into());
        }
        Ok(copies.iter().map(|piece| piece.bytes).sum())
    }
}

/// The parts of a kept piece that live blocks still want.
fn still_live(piece: &Kept, stretches: &[(u64, u64)]) -> Vec<Kept> {
    let parts = stretches.iter().filter_map(|&(start, bytes)| {
        let from = start.max(piece.device);
        let to = (start + bytes).min(piece.device + piece.bytes);
        (from < to).then(|| Kept { host: piece.host + (from - piece.device), device: from, bytes: to - from })
    });
    parts.collect()
}
