//! What a snapshot says, as a run of the page: memory as another allocator, or this one, had it.

use std::collections::HashMap;
use std::path::Path;

use ascend_alloc::snapshot_file::{Action, BlockKind, Document, Entry, Frames, Limits};

use super::data::{Fragmentation, Marker, Moment, Run, Segment, SizeClass, Step};
use super::record::count_size;
use super::series::{Sample, Series};
use crate::convert::{Story, write};
use crate::snapshot::{input, place};
use crate::trace::Trace;

/// What a snapshot has to show of one device.
pub(super) struct Taken {
    /// As it was.
    pub(super) run: Run,
    /// Its events as a trace, if it has any.
    pub(super) trace: Option<Trace>,
}

/// Whether a file is named like a trace; everything else is taken for a snapshot.
pub(super) fn is_trace(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    [".trace", ".trace.zst", ".trace.gz"].iter().any(|ending| name.ends_with(ending))
}

/// Reads a snapshot: an entry for each device with memory or events.
///
/// # Errors
/// The file is refused, or says nothing.
pub(super) fn read(path: &Path) -> Result<Vec<Taken>, String> {
    let document = input::document(path, &Limits::default())?;
    let devices = document.devices();
    if devices.is_empty() {
        return Err(format!("{}: has no memory and no events", path.display()));
    }
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = |device| if devices.len() > 1 { format!("{file}, device {device}") } else { file.clone() };
    devices.iter().map(|&device| taken(&document, device, &name(device))).collect()
}

fn taken(document: &Document, device: u32, name: &str) -> Result<Taken, String> {
    let entries = document.trace(device);
    let end =
        Memory { live: requested(document, device), reserved: i128::from(document.totals(device).reserved) };
    let mut holders = Holders::default();
    let mut history = History::new(entries, end);
    entries.iter().for_each(|entry| history.play(entry));
    let mut notes = document.warnings.clone();
    if history.impossible {
        notes.push(
            "events and segments disagree: played backwards from the segments, the events lead below zero. Where that \
             is so the lines show zero."
                .to_owned(),
        );
    }
    let moment = moment(document, device, entries.len(), &mut holders);
    let run = Run {
        name: format!("{name} · as it was"),
        input: name.to_owned(),
        kind: "snapshot",
        conf_name: "as it was".to_owned(),
        conf: document
            .settings
            .iter()
            .map(|(key, value)| format!("{key}:{value}"))
            .collect::<Vec<_>>()
            .join(","),
        events: entries.len() as u64,
        figures: serde_json::Value::Null,
        device: 0,
        limit: 0,
        lag: 0,
        first_oom: None,
        series: history.series,
        fragmentation: Fragmentation::default(),
        markers: history.markers,
        steps: steps(document, device, entries),
        sizes: history.sizes,
        moments: vec![moment],
        holders: Some(holders.texts),
        notes,
    };
    Ok(Taken { run, trace: as_trace(document, device, name)? })
}

/// The events as a trace of ours.
fn as_trace(document: &Document, device: u32, name: &str) -> Result<Option<Trace>, String> {
    if document.trace(device).is_empty() {
        return Ok(None);
    }
    let story = Story::of(document, device);
    if story.all().next().is_none() {
        return Ok(None);
    }
    let mut text = Vec::new();
    write(&mut text, &story, name, device).map_err(|error| error.to_string())?;
    Trace::read(name, name, text.as_slice()).map(Some).map_err(|error| error.to_string())
}

/// What is asked for in blocks that are handed out.
fn requested(document: &Document, device: u32) -> i128 {
    let segments = document.segments.iter().filter(|segment| segment.device == device);
    let blocks = segments.flat_map(|segment| &segment.blocks);
    blocks
        .filter(|block| block.kind == BlockKind::Allocated)
        .map(|block| i128::from(block.requested_size))
        .sum()
}

#[derive(Clone, Copy)]
struct Memory {
    live: i128,
    reserved: i128,
}

/// How an entry changes what is live and what is reserved.
fn change(entry: &Entry) -> Memory {
    let size = i128::from(entry.size);
    let (live, reserved) = match entry.action {
        Action::Alloc => (size, 0),
        Action::FreeRequested => (-size, 0),
        Action::SegmentAlloc | Action::SegmentMap => (0, size),
        Action::SegmentFree | Action::SegmentUnmap => (0, -size),
        _ => (0, 0),
    };
    Memory { live, reserved }
}

/// The events played forwards, from what must have been before the first.
struct History {
    index: usize,
    events: usize,
    memory: Memory,
    impossible: bool,
    series: Series,
    markers: Vec<Marker>,
    sizes: Vec<SizeClass>,
}

impl History {
    /// Markers of one kind that are nearer than this share of the events are one.
    const NEAR: usize = 500;

    fn new(entries: &[Entry], end: Memory) -> Self {
        let memory = entries.iter().map(change).fold(end, |memory, change| Memory {
            live: memory.live - change.live,
            reserved: memory.reserved - change.reserved,
        });
        History {
            index: 0,
            events: entries.len(),
            memory,
            impossible: memory.live < 0 || memory.reserved < 0,
            series: Series::new(entries.len()),
            markers: Vec::new(),
            sizes: Vec::new(),
        }
    }

    fn play(&mut self, entry: &Entry) {
        let change = change(entry);
        self.memory.live += change.live;
        self.memory.reserved += change.reserved;
        self.impossible |= self.memory.live < 0 || self.memory.reserved < 0;
        let shown = |value: i128| u64::try_from(value.max(0)).unwrap_or(u64::MAX);
        let reserved = shown(self.memory.reserved);
        self.series.push_known(
            self.index,
            &Sample { live: shown(self.memory.live), reserved: (reserved, reserved), ..Sample::default() },
        );
        match entry.action {
            Action::Alloc => count_size(&mut self.sizes, entry.size),
            Action::OutOfMemory => self.mark("oom", entry.size),
            Action::SegmentFree | Action::SegmentUnmap => self.mark("given_back", entry.size),
            Action::HostWait => self.mark("host_wait", 0),
            _ => {}
        }
        self.index += 1;
    }

    fn mark(&mut self, kind: &'static str, bytes: u64) {
        let (at, near) = (self.index as u64, (self.events / Self::NEAR) as u64);
        match self.markers.iter_mut().rev().find(|marker| marker.kind == kind) {
            Some(last) if at < last.at + near => {
                last.count += 1;
                last.bytes = last.bytes.saturating_add(bytes);
            }
            _ => self.markers.push(Marker { at, kind, count: 1, bytes }),
        }
    }
}

/// The places that made blocks, each once.
#[derive(Default)]
struct Holders {
    texts: Vec<String>,
    known: HashMap<Frames, i64>,
    by_text: HashMap<String, i64>,
}

impl Holders {
    fn number(&mut self, frames: &Frames) -> i64 {
        if frames.is_empty() {
            return -1;
        }
        if let Some(&number) = self.known.get(frames) {
            return number;
        }
        let text = place(frames).join(" < ");
        let next = self.texts.len() as i64;
        let number = *self.by_text.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            next
        });
        self.known.insert(frames.clone(), number);
        number
    }
}

/// The segments as they were when the snapshot was taken.
fn moment(document: &Document, device: u32, events: usize, holders: &mut Holders) -> Moment {
    let mut segments: Vec<Segment> = Vec::new();
    for segment in document.segments.iter().filter(|segment| segment.device == device && !segment.is_asleep) {
        let mut blocks = Vec::with_capacity(segment.blocks.len() * Segment::FIELDS);
        for block in &segment.blocks {
            let state = match block.kind {
                BlockKind::Inactive => 0,
                BlockKind::Allocated => 1,
                BlockKind::PendingFree => 2,
            };
            let by = if state == 1 { holders.number(&block.frames) } else { -1 };
            // Sizes beyond 2^63 are of no device; they are shown as that.
            let size = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
            blocks.extend([size(block.size), size(block.requested_size), state, stream(segment.stream), by]);
        }
        segments.push(Segment {
            address: segment.address,
            size: segment.total_size,
            pool: match segment.pool {
                (0, 0) => "default".to_owned(),
                (first, second) => format!("pool {first}.{second}"),
            },
            class: if segment.is_large { "large" } else { "small" },
            expandable: segment.is_expandable,
            blocks,
        });
    }
    segments.sort_by_key(|segment| segment.address);
    let totals = document.totals(device);
    Moment {
        label: "when it was taken".to_owned(),
        at: events.saturating_sub(1) as u64,
        live: u64::try_from(requested(document, device)).unwrap_or(u64::MAX),
        reserved: totals.reserved,
        segments,
    }
}

/// A stream's handle as a number that a script can hold exactly: handles are addresses, below 2^53.
fn stream(handle: u64) -> i64 {
    (handle & ((1 << 53) - 1)) as i64
}

/// Steps as the program named them, at the first event that is not before.
fn steps(document: &Document, device: u32, entries: &[Entry]) -> Vec<Step> {
    let named = document.annotations.iter().filter(|named| named.device == device && &*named.stage != "END");
    let mut named: Vec<_> = named.collect();
    named.sort_by_key(|named| named.time_us);
    let mut named = named.into_iter().peekable();
    let mut steps: Vec<Step> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        while let Some(named) = named.next_if(|named| entry.time_us.is_some_and(|time| time >= named.time_us))
        {
            steps.push(Step { label: named.name.to_string(), at: at as u64, ..Step::default() });
        }
    }
    if steps.first().is_some_and(|first| first.at > 0) {
        steps.insert(0, Step { label: "before".to_owned(), ..Step::default() });
    }
    steps
}

#[cfg(test)]
mod tests {
    use ascend_alloc::snapshot_file::Annotation;

    use super::*;

    #[test]
    fn steps_begin_at_the_first_event_that_is_not_before() {
        let entry = |time_us| Entry {
            action: Action::Snapshot,
            addr: 0,
            size: 0,
            stream: 0,
            time_us,
            pool: None,
            note: None,
            frames: Frames::from([]),
        };
        let named = |name: &str, stage: &str, time_us| Annotation {
            device: 0,
            time_us,
            name: name.into(),
            stage: stage.into(),
        };
        let entries = [entry(Some(10)), entry(None), entry(Some(20)), entry(Some(30))];
        let document = Document {
            annotations: vec![
                named("late", "START", 25),
                named("first", "START", 11),
                named("first", "END", 24),
                named("never", "START", 99),
            ],
            ..Document::default()
        };
        let steps = steps(&document, 0, &entries);
        let seen: Vec<(&str, u64)> = steps.iter().map(|step| (step.label.as_str(), step.at)).collect();
        assert_eq!(seen, [("before", 0), ("first", 2), ("late", 3)]);
    }
}
