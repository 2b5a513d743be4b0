//! Looks on while a trace is replayed and keeps what the page shows.

use std::collections::HashMap;

use ascend_alloc::stats::DriverCalls;
use ascend_alloc::{BlockState, Snapshot, Stats};

use super::data::{Fragmentation, Marker, Moment, SizeClass, Step};
use super::moments::{Wanted, moment};
use super::series::{Sample, Series};
use crate::figures::Observer;
use crate::meter::Counting;
use crate::replay::Played;
use crate::rig::{DEVICE, Rig};
use crate::trace::{Event, Trace};

/// Times at which free memory is looked at.
const LOOKS: usize = 300;
/// Markers of one kind that are nearer than this share of the events are one.
const NEAR: usize = 500;

/// Keeps what happens in one replay.
pub(super) struct Recorder<'a> {
    trace: &'a Trace,
    wanted: Wanted,
    empty_cache: bool,
    /// The trace's numbers of streams by handle; made with the first event.
    streams: HashMap<u64, u64>,
    /// The event that allocated the block at an address.
    made: HashMap<u64, u32>,
    addresses: Vec<u64>,
    before: Stats,
    physical_peak: u64,
    step_calls: DriverCalls,
    ooms: Option<usize>,
    next_look: usize,
    /// The segments when most was reserved, among the looks.
    fullest: Option<Moment>,
    pub(super) series: Series,
    pub(super) fragmentation: Fragmentation,
    pub(super) markers: Vec<Marker>,
    pub(super) steps: Vec<Step>,
    pub(super) moments: Vec<Moment>,
    pub(super) limit: u64,
    /// What kept it from looking.
    pub(super) failed: Option<String>,
}

impl<'a> Recorder<'a> {
    /// For one replay of the trace. `asked` are events, from 1, after which the segments are shown as well; with
    /// `empty_cache` the program calls that at each marker.
    pub(super) fn new(trace: &'a Trace, asked: &[usize], empty_cache: bool) -> Self {
        Recorder {
            trace,
            wanted: Wanted::new(trace, asked),
            empty_cache,
            streams: HashMap::new(),
            made: HashMap::new(),
            addresses: vec![0; trace.blocks],
            before: Stats::default(),
            physical_peak: 0,
            step_calls: DriverCalls::default(),
            ooms: None,
            next_look: 0,
            fullest: None,
            series: Series::new(trace.events.len()),
            fragmentation: Fragmentation::default(),
            markers: Vec::new(),
            steps: vec![Step { label: "init".to_owned(), at: 0, ..Step::default() }],
            moments: Vec::new(),
            limit: 0,
            failed: None,
        }
    }

    /// Closes the last step and puts the moments in order.
    pub(super) fn end(&mut self) {
        self.end_step(self.before.calls);
        self.moments.extend(self.fullest.take());
        self.moments.sort_by_key(|moment| moment.at);
    }

    fn look(&mut self, rig: &Rig<Counting>, played: &Played) -> ascend_alloc::Result<()> {
        if played.index == 0 {
            self.limit = rig.allocator.memory_limit(DEVICE)?.unwrap_or(0);
            let numbers = self.trace.streams.iter().enumerate();
            self.streams = numbers.map(|(index, &number)| (rig.stream(index as u16).0, number)).collect();
        }
        self.note_block(played);
        let mut stats = rig.allocator.stats(DEVICE)?;
        if let Event::Marker { label } = played.event {
            self.end_step(stats.calls);
            let label = self.trace.labels[label as usize].clone();
            self.steps.push(Step { label, at: played.index as u64, ..Step::default() });
            if self.empty_cache {
                let held = held(&stats);
                rig.allocator.empty_cache(Some(DEVICE))?;
                stats = rig.allocator.stats(DEVICE)?;
                self.mark("empty_cache", played.index, 1, held - self::held(&stats).min(held));
            }
        }
        self.note_changes(rig, played, &stats);
        let opens = self.series.push(played.index, &self.sample(rig, played, &stats));
        self.physical_peak = rig.peak_physical();
        let first_oom = self.ooms == Some(played.index);
        let label = self.wanted.label(played.index).map(str::to_owned);
        let looks = opens && played.index >= self.next_look;
        if looks || first_oom || label.is_some() {
            let snapshot = rig.allocator.snapshot(DEVICE)?;
            if looks {
                self.next_look = played.index + self.trace.events.len().div_ceil(LOOKS);
                self.measure(played, &snapshot, &stats);
            }
            let labels: Vec<String> =
                first_oom.then(|| "out of memory".to_owned()).into_iter().chain(label).collect();
            if !labels.is_empty() {
                self.moments.push(self.moment(&labels.join(", "), played, &snapshot));
            }
        }
        self.before = stats;
        Ok(())
    }

    fn moment(&self, label: &str, played: &Played, snapshot: &Snapshot) -> Moment {
        moment(label, played.index, played.live, snapshot, &self.made, &self.streams)
    }

    /// Which event made which block.
    fn note_block(&mut self, played: &Played) {
        match (played.event, played.address) {
            (Event::Allocate { block, .. }, Some(address)) => {
                self.addresses[block as usize] = address;
                // There are fewer than 2^32 blocks; of a trace with more events the first ones are named.
                if let Ok(event) = u32::try_from(played.index) {
                    self.made.insert(address, event);
                }
            }
            (Event::Allocate { .. }, None) => {
                self.ooms.get_or_insert(played.index);
                self.mark("oom", played.index, 1, 0);
            }
            (Event::Free { block }, _) => {
                self.made.remove(&self.addresses[block as usize]);
            }
            _ => {}
        }
    }

    /// Marks what the event made the allocator do.
    fn note_changes(&mut self, rig: &Rig<Counting>, played: &Played, stats: &Stats) {
        let (now, before) = (stats.calls, self.before.calls);
        let waits = |calls: DriverCalls| calls.wait_event + calls.wait_stream + calls.wait_device;
        let given = |calls: DriverCalls| calls.free_physical + calls.free;
        let host = waits(now) - waits(before);
        let streams = now.stream_wait - before.stream_wait;
        let back = given(now) > given(before);
        if host > 0 {
            self.mark("host_wait", played.index, host, 0);
        }
        if streams > 0 {
            self.mark("stream_wait", played.index, streams, 0);
        }
        let emptied = self.empty_cache && matches!(played.event, Event::Marker { .. });
        if back && !emptied {
            let bytes = held(&self.before).saturating_sub(rig.physical());
            self.mark("given_back", played.index, given(now) - given(before), bytes);
        }
    }

    fn mark(&mut self, kind: &'static str, index: usize, count: u64, bytes: u64) {
        let near = (self.trace.events.len() / NEAR) as u64;
        let last = self.markers.iter_mut().rev().find(|marker| marker.kind == kind);
        match last {
            Some(last) if (index as u64) < last.at + near => {
                last.count += count;
                last.bytes += bytes;
            }
            _ => self.markers.push(Marker { at: index as u64, kind, count, bytes }),
        }
    }

    /// What is held after the event, and the most while it ran.
    fn sample(&self, rig: &Rig<Counting>, played: &Played, stats: &Stats) -> Sample {
        let pair = |of: fn(&Stats) -> &ascend_alloc::stats::Stat| {
            let (now, before) = (of(stats), of(&self.before));
            let current = positive(now.current);
            (current, if now.peak > before.peak { positive(now.peak) } else { current })
        };
        let (physical, peak) = (rig.physical(), rig.peak_physical());
        Sample {
            live: played.live,
            allocated: pair(|stats| &stats.allocated_bytes.all),
            active: pair(|stats| &stats.active_bytes.all),
            reserved: pair(|stats| &stats.reserved_bytes.all),
            physical: (physical, if peak > self.physical_peak { peak } else { physical }),
        }
    }

    /// Looks at what is free, and keeps the segments if more is reserved than at any look before.
    fn measure(&mut self, played: &Played, snapshot: &Snapshot, stats: &Stats) {
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let free: Vec<u64> =
            blocks.filter(|block| block.state == BlockState::Inactive).map(|block| block.size).collect();
        let reserved = positive(stats.reserved_bytes.all.current);
        let list = &mut self.fragmentation;
        list.at.push(played.index as u64);
        list.reserved.push(reserved);
        list.allocated.push(positive(stats.allocated_bytes.all.current));
        list.requested.push(played.live);
        list.free.push(free.iter().sum());
        list.largest.push(free.iter().copied().max().unwrap_or(0));
        list.pieces.push(free.len() as u64);
        if self.fullest.as_ref().is_none_or(|fullest| reserved > fullest.reserved) {
            let label = format!("most reserved, of {LOOKS} looks");
            self.fullest = Some(self.moment(&label, played, snapshot));
        }
    }

    fn end_step(&mut self, calls: DriverCalls) {
        let before = self.step_calls.by_name();
        let made = calls.by_name().into_iter().zip(before).map(|((name, now), (_, then))| (name, now - then));
        if let Some(step) = self.steps.last_mut() {
            step.calls = made.filter(|&(_, count)| count > 0).collect();
        }
        self.step_calls = calls;
    }
}

impl Observer for Recorder<'_> {
    fn after(&mut self, rig: &Rig<Counting>, played: &Played) {
        if self.failed.is_none()
            && let Err(error) = self.look(rig, played)
        {
            self.failed = Some(format!("nothing is shown behind event {}: {error}", played.index + 1));
        }
    }
}

/// The sizes a trace asks for, by powers of two from 512 B on.
pub(super) fn sizes(trace: &Trace) -> Vec<SizeClass> {
    let mut classes: Vec<SizeClass> = Vec::new();
    for event in &trace.events {
        if let Event::Allocate { bytes, .. } = *event {
            count_size(&mut classes, bytes);
        }
    }
    classes
}

/// Counts one request in its class.
pub(super) fn count_size(classes: &mut Vec<SizeClass>, bytes: u64) {
    const SMALLEST: u32 = 9;
    let class = bytes.checked_ilog2().unwrap_or(0).max(SMALLEST) - SMALLEST;
    while classes.len() <= class as usize {
        let from = if classes.is_empty() { 0 } else { 1 << (classes.len() as u32 + SMALLEST) };
        classes.push(SizeClass { from, ..SizeClass::default() });
    }
    let class = &mut classes[class as usize];
    class.count += 1;
    class.bytes = class.bytes.saturating_add(bytes);
}

fn held(stats: &Stats) -> u64 {
    positive(stats.reserved_bytes.all.current) + stats.cached_handles
}

fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_between_powers_of_two() {
        let mut classes = Vec::new();
        for bytes in [0, 1, 512, 1023, 1024, 2047, 8192] {
            count_size(&mut classes, bytes);
        }
        let seen: Vec<(u64, u64, u64)> = classes.iter().map(|c| (c.from, c.count, c.bytes)).collect();
        assert_eq!(seen, [(0, 4, 1536), (1024, 2, 3071), (2048, 0, 0), (4096, 0, 0), (8192, 1, 8192)]);
    }
}
