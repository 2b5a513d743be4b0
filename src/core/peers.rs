//! Access to chunks: what is granted when they are mapped, and which are mapped now.

use std::sync::Arc;

use super::Core;
use super::block::{NONE, State};
use super::sleep::Depth;
use crate::driver::{DeviceId, PhysicalHandle};

/// Who gets access to a chunk that is mapped.
#[derive(Clone, Debug)]
pub(crate) struct Grants {
    /// Whether the owner does, for a chunk that was never mapped.
    pub(crate) owner: bool,
    /// Other devices: a grant goes with the mapping, so each mapping needs its own.
    pub(crate) peers: Arc<[DeviceId]>,
}

impl Core {
    /// What a plan made now grants.
    pub(crate) fn grants(&self) -> Grants {
        Grants { owner: self.access, peers: self.peers.clone() }
    }

    /// Notes chunks that a plan has mapped: those with fewer peers than there are now are to be granted again.
    pub(crate) fn note_mapped(&mut self, grants: &Grants, mapped: &[(u64, PhysicalHandle)]) {
        if !Arc::ptr_eq(&grants.peers, &self.peers) && !self.peers.is_empty() {
            self.ungranted.extend(mapped);
        }
    }

    /// All mapped chunks of reserved segments.
    pub(crate) fn mapped_chunks(&self) -> Vec<(u64, PhysicalHandle)> {
        let reserved = self.segments.iter().filter(|(_, segment)| !segment.class.is_classic());
        let chunks = reserved.flat_map(|(_, segment)| segment.each_chunk(self.limits.shift));
        chunks.map(|(address, handle, _)| (address, handle)).collect()
    }

    /// Whether that chunk is mapped at that address.
    pub(crate) fn is_mapped(&self, (address, handle): (u64, PhysicalHandle)) -> bool {
        let segment = self.segment_of(address).filter(|segment| !segment.class.is_classic());
        segment.is_some_and(|segment| segment.chunk(address, self.limits.shift) == Some(handle))
    }

    /// Bytes of the chunk that is mapped at an address.
    pub(crate) fn chunk_bytes(&self, address: u64) -> u64 {
        let wide = self.segment_of(address).and_then(|segment| segment.wide.get(&address).copied());
        u64::from(wide.unwrap_or(1)) * self.limits.granule
    }

    /// Whether a running plan has taken the block at an address, or its pool is on its way to sleep or from there. One
    /// that sleeps with memory behind it, because it could not wake, stays so.
    pub(crate) fn is_taken(&self, address: u64) -> bool {
        let Some(segment) = self.segment_of(address) else { return false };
        let mut id = segment.first;
        while id != NONE && self.blocks[id].end() <= address {
            id = self.blocks[id].next;
        }
        let sleep = self.pools.get(segment.class.pool()).sleep.as_ref();
        sleep.is_some_and(|sleep| sleep.depth != Depth::Asleep)
            || self.blocks.get(id).is_some_and(|block| block.state == State::Busy)
    }
}
