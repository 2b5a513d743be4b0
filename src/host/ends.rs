//! Streams of which the runtime tells that they end: taken up before the driver is asked anything.

use std::sync::Arc;

use super::allocator::ONLY;
use super::source::HostDriver;
use crate::alloc::DeviceAllocator;
use crate::driver::StateChanges;

/// See the module's documentation.
pub(super) struct Ends {
    changes: Arc<StateChanges>,
    source: Arc<HostDriver>,
    heap: Arc<DeviceAllocator>,
}

impl Ends {
    /// From now on ends are noted, where the runtime tells of them.
    pub(super) fn new(source: &Arc<HostDriver>, heap: &Arc<DeviceAllocator>) -> Self {
        let changes = Arc::default();
        source.below().watch_states(&changes);
        Self { changes, source: Arc::clone(source), heap: Arc::clone(heap) }
    }

    /// Deals with what was noted. The caller holds no lock.
    #[inline]
    pub(super) fn heed(&self) {
        if self.changes.any() {
            self.take_up();
        }
    }

    #[cold]
    #[inline(never)]
    fn take_up(&self) {
        let _turn = self.changes.turn();
        if !self.changes.any() {
            return;
        }
        let taken = self.changes.take();
        let ended = (!taken.all_streams).then_some(&taken.streams[..]);
        for number in self.source.streams.forget_handles(ended) {
            // The heap's only device is known, and no number is that of its default stream.
            let _known = self.heap.stream_destroyed(ONLY, number);
        }
        // Of a reset nothing has to be taken up here.
        self.changes.done(&taken, 0..StateChanges::DEVICES);
    }
}
