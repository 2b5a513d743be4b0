//! Streams of which the runtime tells that they end: taken up before the driver is asked anything.

use std::sync::Arc;

use super::allocator::ONLY;
use super::source::HostDriver;
use super::streams::Streams;
use crate::alloc::DeviceAllocator;
use crate::driver::{Driver, StateChanges, Stream};

/// What the runtime tells, for whoever has streams by number.
pub(super) struct Told(Arc<StateChanges>);

impl Told {
    /// From now on ends are noted, where the runtime tells of them.
    pub(super) fn by(driver: &dyn Driver) -> Self {
        let changes = Arc::default();
        driver.watch_states(&changes);
        Self(changes)
    }

    /// Forgets the streams that have ended, and deals with their numbers. The caller holds no lock.
    #[inline]
    pub(super) fn heed(&self, streams: &Streams, ended: impl FnMut(Stream)) {
        if self.0.any() {
            self.take_up(streams, ended);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_up(&self, streams: &Streams, ended: impl FnMut(Stream)) {
        let _turn = self.0.turn();
        if !self.0.any() {
            return;
        }
        let taken = self.0.take();
        let gone = (!taken.all_streams).then_some(&taken.streams[..]);
        streams.forget_handles(gone).into_iter().for_each(ended);
        // Of a reset nothing has to be taken up here.
        self.0.done(&taken, 0..StateChanges::DEVICES);
    }
}

/// See the module's documentation.
pub(super) struct Ends {
    told: Told,
    source: Arc<HostDriver>,
    heap: Arc<DeviceAllocator>,
}

impl Ends {
    /// From now on ends are noted, where the runtime tells of them.
    pub(super) fn new(source: &Arc<HostDriver>, heap: &Arc<DeviceAllocator>) -> Self {
        let told = Told::by(&**source.below());
        Self { told, source: Arc::clone(source), heap: Arc::clone(heap) }
    }

    /// Deals with what was noted. The caller holds no lock.
    #[inline]
    pub(super) fn heed(&self) {
        self.told.heed(&self.source.streams, |number| {
            // The heap's only device is known, and no number is that of its default stream.
            let _known = self.heap.stream_destroyed(ONLY, number);
        });
    }
}
