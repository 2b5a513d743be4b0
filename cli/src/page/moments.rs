//! At which moments the page shows the segments, and what it shows of them.

use std::collections::{BTreeMap, HashMap};

use ascend_alloc::{BlockState, SegmentSnapshot, Snapshot};

use super::data::{Moment, Segment};
use crate::trace::{Event, Trace};

/// Blocks that all moments of a run may have together, before fewer markers are shown.
const MOST_BLOCKS: u64 = 80_000;
/// Markers shown at most.
const MOST_MARKERS: usize = 24;

/// Events after which the segments are to be shown, with the reasons.
pub(super) struct Wanted {
    by_event: BTreeMap<usize, String>,
}

impl Wanted {
    /// The highest live bytes, markers, the end, and what the user asks for (numbers from 1).
    pub(super) fn new(trace: &Trace, asked: &[usize]) -> Self {
        let mut wanted = Wanted { by_event: BTreeMap::new() };
        let found = Found::in_trace(trace);
        for &number in asked {
            // What lies behind the end is the end.
            wanted.add(number.saturating_sub(1).min(trace.events.len() - 1), &format!("event {number}"));
        }
        wanted.add(found.peak, "highest live bytes");
        let average = found.markers.iter().map(|marker| marker.live + 1).sum::<u64>();
        let average = average.checked_div(found.markers.len() as u64).unwrap_or(1).max(1);
        let most = usize::try_from(MOST_BLOCKS / average).unwrap_or(usize::MAX).clamp(1, MOST_MARKERS);
        let stride = found.markers.len().div_ceil(most).max(1);
        for marker in found.markers.iter().step_by(stride) {
            wanted.add(marker.event, &format!("marker: {}", trace.labels[marker.label as usize]));
        }
        wanted.add(trace.events.len() - 1, "end");
        wanted
    }

    fn add(&mut self, event: usize, label: &str) {
        self.by_event
            .entry(event)
            .and_modify(|labels| {
                labels.push_str(", ");
                labels.push_str(label);
            })
            .or_insert_with(|| label.to_owned());
    }

    /// Why the segments are shown after this event, if they are.
    pub(super) fn label(&self, event: usize) -> Option<&str> {
        self.by_event.get(&event).map(String::as_str)
    }
}

/// What a trace says before it is replayed.
struct Found {
    /// The event after which most bytes are live.
    peak: usize,
    markers: Vec<FoundMarker>,
}

struct FoundMarker {
    event: usize,
    label: u32,
    /// Blocks live.
    live: u64,
}

impl Found {
    fn in_trace(trace: &Trace) -> Self {
        let mut sizes = vec![0; trace.blocks];
        let (mut live, mut highest, mut blocks) = (0_u64, 0_u64, 0_u64);
        let mut found = Found { peak: 0, markers: Vec::new() };
        for (event, entry) in trace.events.iter().enumerate() {
            match *entry {
                Event::Allocate { block, bytes, .. } => {
                    sizes[block as usize] = bytes;
                    live += bytes;
                    blocks += 1;
                    if live > highest {
                        (highest, found.peak) = (live, event);
                    }
                }
                Event::Free { block } => {
                    live -= sizes[block as usize];
                    blocks -= 1;
                }
                Event::Marker { label } => found.markers.push(FoundMarker { event, label, live: blocks }),
                Event::Record { .. } | Event::Synchronize { .. } => {}
            }
        }
        found
    }
}

/// The segments as the page shows them. `made` has the event that allocated the block at an address, `streams`
/// the trace's number of a stream.
pub(super) fn moment(
    label: &str,
    event: usize,
    live: u64,
    snapshot: &Snapshot,
    made: &HashMap<u64, u32>,
    streams: &HashMap<u64, u64>,
) -> Moment {
    let segments: Vec<Segment> =
        snapshot.segments.iter().map(|segment| show(segment, made, streams)).collect();
    let reserved = snapshot.segments.iter().map(|segment| segment.total_size).sum();
    Moment { label: label.to_owned(), at: event as u64, live, reserved, segments }
}

fn show(segment: &SegmentSnapshot, made: &HashMap<u64, u32>, streams: &HashMap<u64, u64>) -> Segment {
    let mut blocks = Vec::with_capacity(segment.blocks.len() * Segment::FIELDS);
    for block in &segment.blocks {
        let state = match block.state {
            BlockState::Inactive => 0,
            BlockState::ActiveAllocated => 1,
            BlockState::ActivePendingFree => 2,
            BlockState::InTransit => 3,
        };
        let stream = streams.get(&block.stream.0).copied().unwrap_or(block.stream.0);
        // Who made a free block tells nothing.
        let by = if state == 1 { made.get(&block.address) } else { None };
        blocks.extend([
            block.size as i64,
            block.requested_size as i64,
            state,
            stream as i64,
            by.map_or(-1, |&event| i64::from(event)),
        ]);
    }
    Segment {
        address: segment.address,
        size: segment.total_size,
        pool: if segment.pool == 0 { "default".to_owned() } else { format!("pool {}", segment.pool) },
        class: if segment.is_small { "small" } else { "large" },
        expandable: segment.is_expandable,
        blocks,
    }
}
