//! All memory of an allocator at one moment, with what led to it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::core::snapshot::{BlockState, SegmentSnapshot};
use crate::driver::DeviceId;
use crate::history::{Action, Context, ContextId, Event, context};
use crate::stats::Stats;

/// What is known of one device at the moment of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// The device.
    pub device: DeviceId,
    /// Its statistics.
    pub statistics: Stats,
    /// Chunks held without an address, bytes.
    pub cached_handles: u64,
    /// The events that the history still has, by [`Event::sequence`]; none where the history is off or was left out.
    pub events: Vec<Event>,
}

/// All memory of an allocator at one moment; plain data, which refers to nothing outside of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullSnapshot {
    /// Stretches of memory without a hole, of all devices: by device, then by address.
    pub segments: Vec<SegmentSnapshot>,
    /// The devices that have been used, by number.
    pub devices: Vec<DeviceState>,
    /// Events that happened since the history was started and are no longer known, of all devices together.
    pub dropped_events: u64,
    /// What the contexts and tags of blocks and events stand for.
    pub contexts: BTreeMap<ContextId, Context>,
    /// The settings in force: each key of the configuration with its value as text.
    pub settings: Vec<(String, String)>,
    /// When it was taken, nanoseconds of the driver's clock.
    pub time: u64,
}

impl FullSnapshot {
    /// Finds out who asked for the blocks, as far as the events say, and what all contexts stand for.
    pub(crate) fn add_contexts(&mut self) {
        let mut asked = BTreeMap::new();
        for event in self.devices.iter().flat_map(|state| &state.events) {
            if event.action == Action::Allocate {
                asked.insert((event.device, event.address), event.context);
            }
            for id in event.context.into_iter().chain(event.tag) {
                if let Entry::Vacant(place) = self.contexts.entry(id)
                    && let Some(context) = context(id)
                {
                    place.insert(context);
                }
            }
        }
        for segment in &mut self.segments {
            let device = segment.device;
            for block in &mut segment.blocks {
                if matches!(block.state, BlockState::ActiveAllocated | BlockState::ActivePendingFree) {
                    block.context = asked.get(&(device, block.address)).copied().flatten();
                }
            }
        }
    }

    /// The frames of a context, the innermost first; none where there is no context.
    #[must_use]
    pub fn frames(&self, context: Option<ContextId>) -> Vec<crate::history::Frame> {
        context.and_then(|id| self.contexts.get(&id)).map(Context::frames).unwrap_or_default()
    }
}
