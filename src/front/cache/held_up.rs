//! Requests whose blocks are there, but wait for other streams.

use super::super::key::key_of;
use super::Front;
use crate::core::stream::StreamId;
use crate::driver::Stream;

/// Why a block of the right size cannot be taken: other streams may still use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldUp {
    /// These, and the epoch each has to pass.
    pub(crate) users: [Option<(StreamId, u32)>; 2],
    /// Whether no more blocks are to be let wait.
    pub(crate) crowded: bool,
    /// How many blocks wait: as many of each size as of this one.
    pub(crate) waiting: u32,
}

impl Front {
    /// Why no block of exactly `len` bytes can be taken for the stream although there is one. Under the
    /// device's lock.
    pub(crate) fn hold_up(&self, stream: Stream, len: u64, small: bool) -> Option<HoldUp> {
        let place = self.streams.place_of(stream)?;
        let shard = self.shard(place);
        let ring = &shard.ring;
        let _guard = shard.flag.lock();
        let lane = ring.lane(key_of(len, place, small))?;
        if ring.ready(lane, &self.streams, self.most(small)).is_some() {
            return None;
        }
        let open = |one| self.streams.resolve(one).filter(|_| !self.streams.is_over(one));
        let users = lane.at(lane.head())?.uses().map(open);
        let lanes = ring.open_lanes()[usize::from(small)];
        Some(HoldUp { users, crowded: lane.is_full(), waiting: lane.len() * lanes })
    }
}
