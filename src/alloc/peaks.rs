//! Peaks that are exact although each shard of the front counts for itself; see `core/tally.rs`.

use super::device::Device;
use crate::core::segment::Class;
use crate::core::{Core, UNIT};
use crate::driver::Stream;
use crate::front::AddressMap;

impl Device {
    /// Forms the true sums, raises the peaks, and deals the room below them out.
    pub(super) fn settle_peaks(&self, core: &mut Core) {
        let mut flow = self.front.gather();
        flow.add(&core.tally.flow);
        let room = core.tally.raise(&flow);
        core.tally.room = self.front.deal(room);
    }

    /// A block that rests in the front and fits exactly, although with it a peak may be reached that is dealt with
    /// under the core's lock only.
    pub(super) fn take_to_peak(
        &self,
        core: &mut Core,
        map: &AddressMap,
        (bytes, len, align): (u64, u64, u64),
        stream: Stream,
    ) -> Option<u64> {
        let small = Class::of(bytes).is_small();
        if bytes >= self.sizes.most || align > UNIT {
            return None;
        }
        let (need, has_room) = self.front.need(stream, len, bytes, small)?;
        // The front may have failed only because another thread had its flag, or the block may just have been passed. The
        // sums of all shards are dear, and hold other threads up until they come here too.
        if has_room && let Some(address) = self.take_resting::<true>(map, bytes, stream) {
            return Some(address);
        }
        // From here on nothing is handed out by the front but this block.
        self.front.gather();
        self.front.grant(stream, small, need);
        let taken = self.take_resting::<true>(map, bytes, stream);
        self.settle_peaks(core);
        taken
    }
}
