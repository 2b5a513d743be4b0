//! Reports about requests that failed for lack of memory, written to files when the settings want it.
//!
//! A report is made by the thread whose request failed, before the error is returned, and without any lock. It is
//! bounded: so many events, so many blocks, so many reports, and a pause between two.

use core::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::observe::Sources;
use crate::config::Observe;
use crate::core::snapshot::{BlockSnapshot, BlockState, SegmentSnapshot};
use crate::error::OutOfMemory;
use crate::history::log::EVENTS;
use crate::history::paths::{OwnPath, behind, replace};
use crate::history::{Context, Event};
use crate::signals;
use crate::snapshot::FullSnapshot;
use crate::sync::plain::Mutex;
use crate::words::counted;

/// The last events that a report has.
pub(super) const EVENTS_TOLD: u64 = 1000;
/// Blocks that a snapshot lists; those of further segments are summed up.
const BLOCKS_TOLD: usize = 100_000;
/// Segments that a snapshot lists.
const SEGMENTS_TOLD: usize = 50_000;

/// How many reports there were.
#[derive(Debug, Default)]
struct Written {
    /// Reports begun.
    reports: u32,
    /// When the last one was begun, nanoseconds of the driver's clock.
    last: Option<u64>,
    /// Failed requests since then without a report.
    passed_over: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct OomReports {
    path: OwnPath,
    /// Nanoseconds between two reports.
    pause: u64,
    most: u32,
    written: Mutex<Written>,
    /// What could not be written.
    failed: Arc<AtomicU64>,
    sources: Sources,
}

impl OomReports {
    /// Reports as the settings want them, if they want any. The last events are kept for them from now on.
    pub(super) fn new(observe: &Observe, sources: Sources, failed: &Arc<AtomicU64>) -> Option<Self> {
        let path = OwnPath::for_ever(observe.oom_report.as_ref()?);
        // Never read, so that there are always as many: for as long as the allocator lives, with which its history
        // goes.
        sources.history.add_reader(EVENTS, EVENTS_TOLD, None);
        Some(Self {
            path,
            pause: observe.oom_report_pause.saturating_mul(1_000_000_000),
            most: observe.oom_report_files,
            written: Mutex::default(),
            failed: Arc::clone(failed),
            sources,
        })
    }

    /// Writes a report, unless one was written a moment ago or there are enough. No lock is held.
    pub(super) fn report(&self, error: &OutOfMemory) {
        let now = self.sources.driver.now();
        let (number, passed_over) = {
            let mut written = self.written.lock();
            let early = written.last.is_some_and(|last| now.saturating_sub(last) < self.pause);
            if early || written.reports >= self.most {
                written.passed_over += 1;
                return;
            }
            written.reports += 1;
            written.last = Some(now);
            (written.reports, core::mem::take(&mut written.passed_over))
        };
        if let Err(error) = signals::quietly(|| self.write(error, number, passed_over))
            && self.failed.fetch_add(1, Relaxed) == 0
        {
            let path = self.path.path().display();
            eprintln!("ascend-alloc: a report cannot be written to {path}: {error}; the next one is tried");
        }
    }

    fn write(&self, error: &OutOfMemory, number: u32, passed_over: u64) -> std::io::Result<()> {
        let mut snapshot = self.sources.snapshot();
        let events = self.sources.last_events(EVENTS_TOLD);
        for device in &mut snapshot.devices {
            device.events = events.iter().filter(|event| event.device == device.device).copied().collect();
        }
        snapshot.add_contexts();
        let summed_up = sum_up(&mut snapshot);
        let text = text(error, &snapshot, &events, passed_over, summed_up);
        // The text first: it is short, and says most.
        replace(&self.file(number, "txt"), text.as_bytes())?;
        snapshot.write(&self.file(number, "pickle"))
    }

    fn file(&self, number: u32, ending: &str) -> PathBuf {
        behind(self.path.path(), &format!(".{number}.{ending}"))
    }
}

/// Lists the blocks of the largest segments only; of others, what is handed out, what waits and what is free become
/// one block each. Returns how many blocks and segments are not listed.
fn sum_up(snapshot: &mut FullSnapshot) -> u64 {
    let mut largest: Vec<usize> = (0..snapshot.segments.len()).collect();
    largest.sort_by_key(|&at| core::cmp::Reverse(snapshot.segments[at].total_size));
    let mut room = BLOCKS_TOLD;
    let mut gone = 0;
    for &at in &largest {
        let segment = &mut snapshot.segments[at];
        if segment.blocks.len() <= room {
            room -= segment.blocks.len();
        } else {
            gone += segment.blocks.len() as u64;
            segment.blocks = summed(segment);
            gone -= segment.blocks.len() as u64;
        }
    }
    if largest.len() > SEGMENTS_TOLD {
        let least = snapshot.segments[largest[SEGMENTS_TOLD - 1]].total_size;
        let before = snapshot.segments.len();
        let mut told = 0;
        snapshot.segments.retain(|segment| {
            told += usize::from(segment.total_size >= least);
            segment.total_size >= least && told <= SEGMENTS_TOLD
        });
        gone += (before - snapshot.segments.len()) as u64;
    }
    gone
}

/// The blocks of a segment as three at most, which tile it.
fn summed(segment: &SegmentSnapshot) -> Vec<BlockSnapshot> {
    let mut blocks: Vec<BlockSnapshot> = Vec::new();
    let states = [
        BlockState::ActiveAllocated,
        BlockState::ActivePendingFree,
        BlockState::InTransit,
        BlockState::Inactive,
    ];
    let mut address = segment.address;
    for state in states {
        let of_state = segment.blocks.iter().filter(|block| block.state == state);
        let Some(mut sum) = of_state.clone().next().copied() else { continue };
        sum.address = address;
        sum.size = of_state.clone().map(|block| block.size).sum();
        sum.requested_size = of_state.map(|block| block.requested_size).sum();
        sum.context = None;
        address += sum.size;
        blocks.push(sum);
    }
    blocks
}

fn text(
    error: &OutOfMemory,
    snapshot: &FullSnapshot,
    events: &[Event],
    passed_over: u64,
    summed_up: u64,
) -> String {
    let mut text = format!("{error}\n\nprocess {}, time {} ns\n", std::process::id(), snapshot.time);
    // Writing to a text cannot fail.
    if passed_over > 0 {
        let failed = counted(passed_over, "request[s] failed since the last report and [has|have] none");
        let _ = writeln!(text, "{failed}");
    }
    if summed_up > 0 {
        let _ = writeln!(text, "the snapshot sums up {}", counted(summed_up, "block[s] and segments"));
    }
    let _ = writeln!(text, "\nsettings");
    for (key, value) in &snapshot.settings {
        let _ = writeln!(text, "  {key}:{value}");
    }
    for device in &snapshot.devices {
        let _ = writeln!(text, "\nstatistics of device {}\n  {}", device.device, device.statistics.to_json());
        for (step, count) in device.statistics.ladder.by_name().into_iter().filter(|&(_, count)| count > 0) {
            let _ = writeln!(text, "  {step}: {count}");
        }
    }
    let last = counted(events.len() as u64, "event[s] (lines as in a history file)");
    let _ = writeln!(text, "\nlast {last}");
    for event in events {
        let context = event.context.and_then(|id| snapshot.contexts.get(&id));
        let first = context.map(Context::frames).and_then(|frames| frames.into_iter().next());
        let _ = match first {
            Some(frame) => writeln!(text, "  {event}  {}", frame.function),
            None => writeln!(text, "  {event}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Stream;

    fn block(address: u64, size: u64, state: BlockState) -> BlockSnapshot {
        let requested_size = if state == BlockState::ActiveAllocated { size - 1 } else { 0 };
        BlockSnapshot {
            address,
            size,
            requested_size,
            state,
            stream: Stream(0),
            in_front: false,
            context: None,
        }
    }

    #[test]
    fn what_is_too_much_is_summed_up_and_still_tiles() {
        let states = [BlockState::ActiveAllocated, BlockState::Inactive, BlockState::ActivePendingFree];
        let segment = |address: u64, blocks: u64| SegmentSnapshot {
            device: 0,
            address,
            total_size: blocks * 512,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            is_small: true,
            is_expandable: true,
            base: address,
            pool: 0,
            stream: Stream(0),
            is_asleep: false,
            chunks: 1,
            blocks: (0..blocks)
                .map(|at| block(address + at * 512, 512, states[at as usize % states.len()]))
                .collect(),
        };
        let mut snapshot = FullSnapshot {
            segments: vec![segment(0, 90_000), segment(1 << 40, 30_000), segment(1 << 41, 9_999)],
            ..FullSnapshot::default()
        };
        assert_eq!(sum_up(&mut snapshot), 30_000 - 3);
        let counts: Vec<usize> = snapshot.segments.iter().map(|segment| segment.blocks.len()).collect();
        assert_eq!(counts, [90_000, 3, 9_999]);
        let summed = &snapshot.segments[1];
        let mut at = summed.address;
        for block in &summed.blocks {
            assert_eq!((block.address, block.size), (at, 10_000 * 512));
            at += block.size;
        }
        assert_eq!(at, summed.address + summed.total_size);
        assert_eq!(summed.blocks[0].requested_size, 10_000 * 511);
        snapshot.segments = (0..60_000).map(|at| segment(at * 512, 1)).collect();
        assert_eq!(sum_up(&mut snapshot), 10_000);
        assert_eq!(snapshot.segments.len(), SEGMENTS_TOLD);
    }
}
