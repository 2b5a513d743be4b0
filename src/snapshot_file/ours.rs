//! From this allocator's snapshot to PyTorch's dictionary.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::document::{Action, Block, BlockKind, Document, Entry, Frame, Frames, Segment};
use super::{FileError, json, pickle};
use crate::core::snapshot::{BlockState, SegmentSnapshot};
use crate::history::paths::replace;
use crate::history::{self, ContextId, Event};
use crate::signals;
use crate::snapshot::{DeviceState, FullSnapshot};

impl FullSnapshot {
    /// The snapshot as a pickle for PyTorch's memory tools.
    ///
    /// # Errors
    /// More values than the default [`Limits`](super::Limits) allow.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ascend_alloc::driver::{SimDriver, Stream};
    /// use ascend_alloc::snapshot_file::{Document, Limits, pickle};
    /// use ascend_alloc::{Config, DeviceAllocator};
    /// use ascend_sim::{Sim, SimConfig};
    ///
    /// let driver = Arc::new(SimDriver::new(Sim::new(SimConfig::default())));
    /// let allocator = DeviceAllocator::new(Config::default(), driver)?;
    /// let block = allocator.allocate(0, 3 << 20, 0, Stream(0))?;
    /// let bytes = allocator.full_snapshot(true).to_pickle(pickle::Protocol::Four)?;
    ///
    /// let document = Document::from_tree(&pickle::read(&bytes, &Limits::default())?)?;
    /// assert_eq!(document.totals(0).requested, 3 << 20);
    /// # allocator.deallocate(block)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_pickle(&self, protocol: pickle::Protocol) -> Result<Vec<u8>, FileError> {
        let mut bytes = Vec::new();
        let tree = Document::from(self).to_tree()?;
        pickle::write(&tree, protocol, &mut bytes).map_err(|error| FileError::whole(error.to_string()))?;
        Ok(bytes)
    }

    /// The same dictionary as JSON, with a line end behind it.
    ///
    /// # Errors
    /// As [`FullSnapshot::to_pickle`].
    pub fn to_json(&self) -> Result<String, FileError> {
        let mut bytes = Vec::new();
        let tree = Document::from(self).to_tree()?;
        json::write(&tree, &mut bytes).map_err(|error| FileError::whole(error.to_string()))?;
        String::from_utf8(bytes).map_err(|error| FileError::whole(error.to_string()))
    }

    /// Writes a file: JSON where its name ends with `.json`, a pickle of protocol 4 otherwise. It is replaced as a whole. What
    /// goes wrong is an error, and no signal of the system to the process.
    ///
    /// # Errors
    /// Those of the system; of kind `Other` those of [`FullSnapshot::to_pickle`].
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let bytes = match path.as_os_str().as_encoded_bytes().ends_with(b".json") {
            true => self.to_json().map(String::into_bytes),
            false => self.to_pickle(pickle::Protocol::Four),
        };
        let bytes = bytes.map_err(io::Error::other)?;
        signals::quietly(|| replace(path, &bytes))
    }
}

/// A snapshot of this allocator in PyTorch's words.
///
/// A stretch of a reservation serves all streams; it is said to be of stream 0, and its blocks' streams are in the
/// events. Pool *n* is `(0, n)`. A plain free is both of PyTorch's events. Moving a chunk is unmapping and mapping.
/// Blocks that are taken for running driver calls are free. Events that do not agree with the memory at the end are
/// left out and counted (see [`Document::leave_out_contradictions`]).
impl From<&FullSnapshot> for Document {
    fn from(snapshot: &FullSnapshot) -> Self {
        let mut contexts = Contexts { snapshot, known: HashMap::new(), none: Frames::from([]) };
        let mut document = Document {
            segments: snapshot.segments.iter().map(|segment| contexts.segment(segment)).collect(),
            settings: snapshot.settings.clone(),
            ..Document::default()
        };
        for device in &snapshot.devices {
            let place = device.device as usize;
            if document.device_traces.len() <= place {
                document.device_traces.resize(place + 1, Vec::new());
            }
            document.device_traces[place] = contexts.trace(&device.events);
            document.figures.extend(figures(device));
        }
        let left_out = document.leave_out_contradictions();
        for (name, value) in [
            ("events_lost", snapshot.dropped_events),
            ("events_left_out", left_out),
            ("time_ns", snapshot.time),
        ] {
            document.figures.push((name.to_owned(), signed(value)));
        }
        document
    }
}

fn figures(state: &DeviceState) -> impl Iterator<Item = (String, i64)> {
    let device = state.device;
    let stats = &state.statistics;
    let figures = [
        ("allocated_bytes", stats.allocated_bytes.all.current),
        ("active_bytes", stats.active_bytes.all.current),
        ("requested_bytes", stats.requested_bytes.all.current),
        ("reserved_bytes", stats.reserved_bytes.all.current),
        ("reserved_bytes_peak", stats.reserved_bytes.all.peak),
        ("cached_handles", signed(state.cached_handles)),
    ];
    figures.into_iter().map(move |(name, value)| (format!("device_{device}_{name}"), value))
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Frames of contexts, made once each.
struct Contexts<'a> {
    snapshot: &'a FullSnapshot,
    known: HashMap<ContextId, Frames>,
    none: Frames,
}

impl Contexts<'_> {
    fn frames(&mut self, context: Option<ContextId>) -> Frames {
        let Some(id) = context else { return self.none.clone() };
        let snapshot = self.snapshot;
        let made = self.known.entry(id).or_insert_with(|| {
            let frame = |frame: history::Frame| Frame {
                filename: frame.file.into(),
                line: frame.line.into(),
                name: frame.function.into(),
            };
            snapshot.frames(Some(id)).into_iter().map(frame).collect()
        });
        made.clone()
    }

    fn segment(&mut self, segment: &SegmentSnapshot) -> Segment {
        let stream = segment.blocks.first().filter(|_| !segment.is_expandable);
        let mut blocks = Vec::with_capacity(segment.blocks.len());
        for block in &segment.blocks {
            let kind = match block.state {
                BlockState::ActiveAllocated => BlockKind::Allocated,
                BlockState::ActivePendingFree => BlockKind::PendingFree,
                BlockState::Inactive | BlockState::InTransit => BlockKind::Inactive,
            };
            blocks.push(Block {
                address: block.address,
                size: block.size,
                requested_size: block.requested_size,
                kind,
                frames: self.frames(block.context),
            });
        }
        Segment {
            device: segment.device,
            address: segment.address,
            total_size: segment.total_size,
            allocated_size: segment.allocated_size,
            active_size: segment.active_size,
            requested_size: segment.requested_size,
            stream: stream.map_or(0, |block| block.stream.0),
            is_large: !segment.is_small,
            pool: (0, segment.pool),
            is_expandable: segment.is_expandable,
            is_asleep: segment.is_asleep,
            frames: self.none.clone(),
            blocks,
        }
    }

    fn trace(&mut self, events: &[Event]) -> Vec<Entry> {
        let mut trace = Vec::with_capacity(events.len());
        // Blocks that were given back and wait, and what was asked for: frees do not always say.
        let (mut waiting, mut asked) = (HashSet::new(), HashMap::new());
        for event in events {
            let mut entry = self.entry(event);
            match entry.action {
                Action::Alloc => {
                    asked.insert(entry.addr, entry.size);
                }
                Action::FreeRequested | Action::FreeCompleted if event.requested == 0 => {
                    entry.size = asked.get(&entry.addr).copied().unwrap_or(entry.size);
                }
                _ => {}
            }
            match entry.action {
                Action::FreeRequested => {
                    waiting.insert(entry.addr);
                }
                Action::FreeCompleted if !waiting.remove(&entry.addr) => {
                    trace.push(Entry { action: Action::FreeRequested, ..entry.clone() });
                }
                _ => {}
            }
            trace.push(entry);
        }
        trace
    }

    fn entry(&mut self, event: &Event) -> Entry {
        use history::Action as Happened;
        let asked = if event.requested > 0 { event.requested } else { event.size };
        let (action, addr, size) = match event.action {
            Happened::Allocate => (Action::Alloc, event.address, asked),
            Happened::FreeRequested => (Action::FreeRequested, event.address, asked),
            Happened::FreeCompleted => (Action::FreeCompleted, event.address, asked),
            Happened::StreamUse => (Action::StreamUse, event.address, asked),
            Happened::SegmentMap | Happened::ChunkMove => (Action::SegmentMap, event.address, event.size),
            Happened::SegmentUnmap => (Action::SegmentUnmap, event.address, event.size),
            Happened::SegmentAlloc => (Action::SegmentAlloc, event.address, event.size),
            Happened::SegmentFree => (Action::SegmentFree, event.address, event.size),
            Happened::OutOfMemory => (Action::OutOfMemory, event.size, event.requested),
            Happened::Snapshot => (Action::Snapshot, event.address, event.size),
            Happened::HostWait => (Action::HostWait, event.address, event.size),
            other => (Action::Other(other.name().into()), event.address, event.size),
        };
        let frames = self.frames(event.context);
        let note = matches!(action, Action::Other(_)).then(|| frames.first().map(|frame| frame.name.clone()));
        let mapping = matches!(action, Action::SegmentMap | Action::SegmentUnmap);
        Entry {
            action,
            addr,
            size,
            // As the segments: the page joins ranges of one stream only.
            stream: if mapping { 0 } else { event.stream.0 },
            time_us: i64::try_from(event.time / 1000).ok(),
            pool: Some((0, event.pool)),
            note: note.flatten().filter(|note: &Arc<str>| !note.is_empty()),
            frames,
        }
    }
}
