//! Other devices of this process that may use a device's memory.
//!
//! ACL gives access to exactly one mapping for one device with each call, and the grant goes with the mapping. So the
//! peers of a device are kept, and each chunk that is mapped is granted to all of them: new, moved, or imported.
//!
//! A reset closes the links of a device in both directions, and takes what was granted to it. So it ends being a peer and
//! having peers: whoever sets it again opens the links, and grants everything anew.

use core::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use super::DeviceAllocator;
use super::device::Caller;
use super::pressure::is_in_plan;
use crate::driver::{DeviceId, DriverError, DriverResult, PhysicalHandle};
use crate::error::{Error, Result};

impl DeviceAllocator {
    /// Lets work on other devices use the memory of `device`: all that is mapped now and all that will be. The links
    /// between the devices are opened in both directions. `peers` replaces what was set before; a device that is not in it
    /// any more gets no further grants, but keeps those it has: ACL cannot take access away from a mapping. A
    /// [reset](Self::device_was_reset) of one of them ends this.
    ///
    /// Fixed blocks need no grants, only the links: where all are (`expandable_segments:False`) a library without
    /// `aclrtMemSetAccess` will do, until memory is imported, a buffer grows, or a pool is made whose segments grow all the same.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for unknown devices, for `device` itself, and for devices that cannot reach one another;
    /// [`Error::Driver`] when the driver refuses, also where the library has no `aclrtMemSetAccess` for growable segments. The set of peers is
    /// unchanged then; grants made before the failure stay. [`Error::State`] when one of the devices was reset meanwhile;
    /// [`peers`](Self::peers) says what is left.
    pub fn set_peers(&self, device: DeviceId, peers: &[DeviceId]) -> Result<()> {
        let state = self.device(device)?;
        let mut wanted = peers.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        for &peer in &wanted {
            let known = peer != device && self.place(peer).is_ok();
            if !known || !self.driver.can_access_peer(peer, device)? {
                return Err(Error::Argument {
                    name: "peers",
                    value: peer.to_string(),
                    expected: "other devices that can reach the device",
                });
            }
        }
        // Told before the links are opened: what a reset closes after that, it is seen to have closed.
        let resets = self.resets.load(SeqCst);
        for &peer in &wanted {
            self.driver.enable_peer_access(peer, device)?;
            self.driver.enable_peer_access(device, peer)?;
        }
        let wanted: Arc<[DeviceId]> = wanted.into();
        let caller = self.caller(state);
        // One thread at a time: each relies on what the one before has granted.
        let _turn = state.peering.lock();
        let mut core = state.core.lock();
        if self.resets.load(SeqCst) != resets {
            return Err(was_reset());
        }
        let before = core::mem::replace(&mut core.peers, wanted.clone());
        let (chunks, generation) = (core.mapped_chunks(), core.generation);
        // Where all blocks are fixed, nothing need ever be granted.
        let grows = core.expands_anywhere() && core.reservable;
        drop(core);
        let fresh: Vec<DeviceId> = wanted.iter().copied().filter(|peer| !before.contains(peer)).collect();
        let granted = if chunks.is_empty() && grows && !fresh.is_empty() && !self.driver.can_set_access() {
            Err(missing(device))
        } else {
            chunks.iter().try_for_each(|&chunk| caller.grant(chunk, &fresh))
        };
        // All of them, because what an import was refused before is tried again only here.
        let granted = granted.and_then(|()| self.grant_imports(device, generation, &wanted));
        let mut core = state.core.lock();
        // Only a reset takes anything out of what was set in this turn.
        let whole = Arc::ptr_eq(&core.peers, &wanted);
        let Err(error) = granted else { return if whole { Ok(()) } else { Err(was_reset()) } };
        let before = match whole {
            true => before,
            false => before.iter().copied().filter(|peer| core.peers.contains(peer)).collect(),
        };
        core.peers = before.clone();
        // What was mapped meanwhile was granted to the wanted peers alone.
        core.ungranted = if before.is_empty() { Vec::new() } else { core.mapped_chunks() };
        let generation = core.generation;
        drop(core);
        let _tried_again_by_the_next_call = self.grant_imports(device, generation, &before);
        Err(if whole { error.into() } else { was_reset() })
    }

    /// A device was reset: it has no peers any more, and is none of any other.
    pub(super) fn end_links(&self, device: DeviceId) {
        self.resets.fetch_add(1, SeqCst);
        for state in self.devices.iter().filter_map(OnceLock::get) {
            let mut core = state.core.lock();
            if state.limits.device == device {
                core.peers = Arc::default();
            } else if core.peers.contains(&device) {
                core.peers = core.peers.iter().copied().filter(|&peer| peer != device).collect();
            }
        }
    }

    /// The devices that may use the memory of `device`.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device.
    pub fn peers(&self, device: DeviceId) -> Result<Vec<DeviceId>> {
        let used = self.used(device)?;
        Ok(used.map(|state| state.core.lock().peers.to_vec()).unwrap_or_default())
    }
}

impl Caller<'_> {
    /// Grants peers access to a chunk where it is mapped; nothing if it is not there any more. A refusal counts only once no
    /// plan has the chunk, so the caller has none itself.
    fn grant(&self, chunk: (u64, PhysicalHandle), peers: &[DeviceId]) -> DriverResult<()> {
        // Another thread may be about to move it.
        while let Err((error, taken)) = self.try_grant(chunk, peers) {
            if !taken {
                return Err(error);
            }
            crate::sync::thread::yield_now();
        }
        Ok(())
    }

    /// The same; a refusal counts at once, and comes with whether a plan has the chunk.
    pub(super) fn try_grant(
        &self,
        chunk: (u64, PhysicalHandle),
        peers: &[DeviceId],
    ) -> core::result::Result<(), (DriverError, bool)> {
        let limits = &self.device.limits;
        let bytes = self.device.core.lock().chunk_bytes(chunk.0);
        for &peer in peers {
            let answer = self.driver.set_access(limits.device, chunk.0, bytes, peer);
            let mut core = self.device.core.lock();
            core.tally.calls.set_access += 1;
            match answer {
                Ok(()) => {}
                // Another thread has moved it away; where it goes to, it is granted anew.
                Err(_) if !core.is_mapped(chunk) => return Ok(()),
                // A function of a source cannot wait for the plan that it is called for.
                Err(error) => return Err((error, core.is_taken(chunk.0) && !is_in_plan())),
            }
        }
        Ok(())
    }
}

fn was_reset() -> Error {
    let reason = "a device was reset meanwhile; set them again";
    Error::State { operation: "setting peers", reason }
}

/// The error of a library that cannot grant access.
fn missing(device: DeviceId) -> DriverError {
    DriverError {
        call: "aclrtMemSetAccess",
        arguments: format!("device={device}"),
        code: crate::driver::CODE_NOT_SUPPORTED,
        name: crate::acl::codes::name(crate::driver::CODE_NOT_SUPPORTED),
        message: None,
        missing_symbol: Some("aclrtMemSetAccess"),
    }
}
