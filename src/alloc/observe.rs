//! What an allocator tells of itself: snapshots, its history, and what goes to the outside in the background.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::device::Device;
use super::oom_report::OomReports;
use super::{DeviceAllocator, stats_export};
use crate::config::Observe;
use crate::core::snapshot::BlockState;
use crate::driver::{DeviceId, Driver, Stream};
use crate::error::{Error, Result};
use crate::history::journal::Journal;
use crate::history::log::{History, Said, USES};
use crate::history::paths::OwnPath;
use crate::history::trace::{Before, Recording};
use crate::history::worker::Worker;
use crate::history::writer::Writer;
use crate::history::{Action, Event, HistoryBatch, HistoryOptions, HistoryStatus, intern, set_context};
use crate::publish::Published;
use crate::snapshot::{DeviceState, FullSnapshot};
use crate::sync::plain::Mutex;

/// The variable that names a file for a trace to be recorded to.
const TRACE_VARIABLE: &str = "ASCEND_ALLOC_TRACE";

/// What is told to the outside in the background; ends with the allocator.
#[derive(Debug, Default)]
pub(super) struct Tellers {
    stats: Option<Worker>,
    journal: Mutex<Option<Writer>>,
    /// Held while calls are sent another way.
    pub(super) following: Mutex<()>,
    trace: Mutex<Option<Writer>>,
    /// What metrics were set of pools and limits, so that what is gone is told once more.
    pub(super) published: Mutex<Published>,
    /// The same of what needs a look at each block.
    pub(super) published_blocks: Mutex<Published>,
    /// Reports about requests that failed.
    pub(super) oom: Option<OomReports>,
    /// What could not be written.
    failed: Arc<AtomicU64>,
}

/// What snapshots are made of, for whoever makes them without the allocator at hand.
#[derive(Clone)]
pub(super) struct Sources {
    pub(super) devices: Arc<[OnceLock<Device>]>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) history: Arc<History>,
    settings: Vec<(String, String)>,
}

impl core::fmt::Debug for Sources {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sources").field("devices", &self.devices.len()).finish_non_exhaustive()
    }
}

impl Sources {
    /// All memory of all devices that have been used, without events.
    pub(super) fn snapshot(&self) -> FullSnapshot {
        let mut full = FullSnapshot {
            settings: self.settings.clone(),
            time: self.driver.now(),
            ..FullSnapshot::default()
        };
        for (device, state) in self.devices.iter().enumerate() {
            let Some(state) = state.get() else { continue };
            let (memory, statistics) = state.snapshot_with_stats();
            full.segments.extend(memory.segments);
            full.devices.push(DeviceState {
                device: device as DeviceId,
                statistics,
                cached_handles: memory.cached_handles,
                events: Vec::new(),
            });
        }
        full
    }

    /// So many of the last events, as far as they are known.
    pub(super) fn last_events(&self, most: u64) -> Vec<Event> {
        self.history.read(self.history.sequence().saturating_sub(most)).events
    }
}

impl DeviceAllocator {
    fn sources(&self) -> Sources {
        Sources {
            devices: Arc::clone(&self.devices),
            driver: Arc::clone(&self.driver),
            history: Arc::clone(&self.history),
            settings: self
                .config
                .effective()
                .into_iter()
                .map(|(key, value, _)| (key.to_owned(), value))
                .collect(),
        }
    }

    /// Begins to tell what the settings and [`TRACE_VARIABLE`] want to be told.
    pub(super) fn tell_as_configured(&mut self) {
        let observe = self.config.observe.clone();
        if observe.history_entries > 0 {
            self.start_history(&HistoryOptions {
                entries: observe.history_entries,
                ..HistoryOptions::default()
            });
        }
        if let Some(path) = &observe.history_file {
            let started = self.write_history(OwnPath::for_ever(path), &observe);
            *self.tellers.journal.lock() = self.started(started, path);
        }
        let variable = std::env::var(TRACE_VARIABLE).ok().filter(|path| !path.is_empty());
        if let Some(path) = observe.trace_file.clone().or(variable) {
            let started = self.write_trace(OwnPath::for_ever(&path));
            *self.tellers.trace.lock() = self.started(started, &path);
        }
        self.tellers.oom = OomReports::new(&observe, self.sources(), &self.tellers.failed);
        let source = stats_export::Source {
            devices: Arc::clone(&self.devices),
            driver: Arc::clone(&self.driver),
            period_ms: observe.stats_export_ms,
            made: 0,
            looks: Vec::new(),
        };
        self.tellers.stats = stats_export::start(&observe, source, &self.tellers.failed);
        self.follow_history();
    }

    /// A writer that the settings ask for; that its thread cannot be had is said and counted.
    fn started(&self, writer: std::io::Result<Writer>, path: &str) -> Option<Writer> {
        let said = |error: &std::io::Error| {
            self.tellers.failed.fetch_add(1, Relaxed);
            eprintln!("ascend-alloc: {path} is not written: {error}");
        };
        writer.inspect_err(said).ok()
    }

    fn write_history(&self, path: OwnPath, observe: &Observe) -> std::io::Result<Writer> {
        let journal = || Journal::new(path, observe.history_file_bytes, observe.history_files);
        Writer::start(&self.history, 0, journal, &self.tellers.failed)
    }

    fn write_trace(&self, path: OwnPath) -> std::io::Result<Writer> {
        self.history.note_time(self.driver.now());
        let recording = || {
            // Before it is looked what is live: what changes after that is noted.
            self.follow_history();
            Recording::new(path, &self.live_blocks())
        };
        Writer::start(&self.history, USES, recording, &self.tellers.failed)
    }

    /// What is handed out.
    fn live_blocks(&self) -> Vec<Before> {
        let mut live = Vec::new();
        for segment in self.full_snapshot(false).segments {
            let handed_out = segment.blocks.iter().filter(|block| block.state == BlockState::ActiveAllocated);
            live.extend(handed_out.map(|block| Before {
                device: segment.device,
                address: block.address,
                requested: block.requested_size,
                stream: block.stream.0,
            }));
        }
        live
    }

    /// Begins to record a trace that `ascend-alloc replay` reads: compressed where the path ends with `.zst`; `%p`
    /// in it stands for the process. Blocks that are live already stand at its beginning. A trace that is being
    /// recorded ends. A trace is about one device: the first that appears; each other one gets a file of its own,
    /// with `.deviceN` before the first dot of its name. A block that changes its length is told as freed and
    /// allocated anew. Everything is written by a thread, at most 0.2 s after it happened; what cannot be written
    /// is counted ([`failed_writes`](Self::failed_writes)). The setting `trace_file` and the variable
    /// `ASCEND_ALLOC_TRACE` do the same from the start.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the file or its thread cannot be had.
    pub fn start_trace(&self, path: &str) -> Result<()> {
        self.stop_trace();
        let own = creatable(path)?;
        let writer = self.write_trace(own).map_err(|error| refused(path, &error))?;
        *self.tellers.trace.lock() = Some(writer);
        self.follow_history();
        Ok(())
    }

    /// Ends the trace that is being recorded and writes the rest of it; false when there is none.
    pub fn stop_trace(&self) -> bool {
        let writer = self.tellers.trace.lock().take();
        let was = writer.is_some();
        drop(writer);
        self.follow_history();
        was
    }

    /// Begins to write all events to a file, as lines of text: docs/history.md in the repository has the format.
    /// Compressed where the path ends with `.zst`; `%p` in it stands for the process. Beyond `most_bytes` bytes the
    /// file gets a number before the first dot of its name and another one is begun; of `most_files` at most, those that
    /// an earlier process put aside under the same name among them, the oldest is removed. A file that is being written ends. The setting `history_file` does the same from the
    /// start.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the file or its thread cannot be had.
    pub fn start_history_file(&self, path: &str, most_bytes: u64, most_files: u32) -> Result<()> {
        self.stop_history_file();
        let own = creatable(path)?;
        let observe = Observe {
            history_file_bytes: most_bytes,
            history_files: most_files.max(1),
            ..Observe::default()
        };
        let writer = self.write_history(own, &observe).map_err(|error| refused(path, &error))?;
        *self.tellers.journal.lock() = Some(writer);
        self.follow_history();
        Ok(())
    }

    /// Ends the file of events that is being written; false when there is none.
    pub fn stop_history_file(&self) -> bool {
        let writer = self.tellers.journal.lock().take();
        let was = writer.is_some();
        drop(writer);
        self.follow_history();
        was
    }

    /// Writes everything that has happened so far to the files that are being written. False when that took more
    /// than five seconds; it goes on then.
    pub fn flush_files(&self) -> bool {
        let journal = self.tellers.journal.lock().as_ref().is_none_or(Writer::flush);
        let trace = self.tellers.trace.lock().as_ref().is_none_or(Writer::flush);
        journal && trace
    }

    /// All memory of all devices at this moment, and, if wanted, the events that the history has. Each device is
    /// copied under its lock, one after the other; everything else is done without one.
    #[must_use]
    pub fn full_snapshot(&self, with_events: bool) -> FullSnapshot {
        let mut full = self.sources().snapshot();
        if with_events {
            let HistoryBatch { events, lost } = self.history.kept();
            full.dropped_events = lost;
            for state in &mut full.devices {
                state.events = events.iter().filter(|event| event.device == state.device).copied().collect();
                let said = Said::of_block(Action::Snapshot, 0, 0, 0, Stream(0));
                self.marks.note_for(state.device, said);
            }
            full.add_contexts();
        }
        full
    }

    /// Begins to keep the newest events: allocations, frees, maps and unmaps, moves, sleep and wake, waits,
    /// failures. What happens is noted where it happens; the front cache stays in use. Started again, it goes on
    /// with other options. For the cost of an event see benches/README.md in the repository.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ascend_alloc::driver::{SimDriver, Stream};
    /// use ascend_alloc::history::{Action, Context, HistoryOptions, context, with_context};
    /// use ascend_alloc::{Config, DeviceAllocator};
    ///
    /// # fn main() -> ascend_alloc::Result<()> {
    /// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
    /// let allocator = DeviceAllocator::new(Config::default(), driver)?;
    /// allocator.start_history(&HistoryOptions { entries: 1000, ..HistoryOptions::default() });
    /// let ptr = with_context("weights", || allocator.allocate(0, 3 << 20, 0, Stream(0)))?;
    /// allocator.deallocate(ptr)?;
    /// let events = allocator.history().events;
    /// let actions: Vec<_> = events.iter().map(|event| event.action).collect();
    /// assert_eq!(actions, [Action::SegmentMap, Action::Allocate, Action::FreeCompleted]);
    /// assert_eq!(context(events[1].context.unwrap()), Some(Context::Text("weights".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_history(&self, options: &HistoryOptions) {
        self.history.note_time(self.driver.now());
        self.history.start(options);
        self.follow_history();
    }

    /// Ends the history: its events go, and their memory. Files that are being written go on.
    pub fn stop_history(&self) {
        self.history.stop();
        self.follow_history();
    }

    /// The events that the history has, by number, and how many of those since its start it has not.
    #[must_use]
    pub fn history(&self) -> HistoryBatch {
        self.history.kept()
    }

    /// The events since the start or the last call of this, by number, and how many of those were dropped since.
    /// The history goes on, and keeps them all the same.
    #[must_use]
    pub fn drain_history(&self) -> HistoryBatch {
        self.history.drain()
    }

    /// How the history stands.
    #[must_use]
    pub fn history_status(&self) -> HistoryStatus {
        self.history.status()
    }

    /// Says something to the history: an event with the text as its context, a marker in a trace. Nothing while nobody
    /// keeps events. Device 0 stands for all.
    pub fn mark(&self, text: &str) {
        if self.history.is_on() {
            let before = set_context(Some(intern(text)));
            self.history.note_time(self.driver.now());
            self.marks.note_apart(Said::of_block(Action::UserDefined, 0, 0, 0, Stream(0)));
            set_context(before);
        }
    }

    /// Tells that the program has waited on the host for a stream, which the allocator cannot know. It is kept by
    /// traces that are recorded, and by histories that keep uses; it changes nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device.
    pub fn note_host_wait(&self, device: DeviceId, stream: Stream) -> Result<()> {
        self.place(device)?;
        if self.marks.wants_uses() {
            self.history.note_time(self.driver.now());
            self.marks.note_for(device, Said::of_block(Action::HostWait, 0, 0, 0, stream));
        }
        Ok(())
    }

    /// How often something could not be written that the settings or the program wanted to be told to the outside:
    /// statistics, history, traces, reports. None of that disturbs the program.
    #[must_use]
    pub fn failed_writes(&self) -> u64 {
        self.tellers.failed.load(Relaxed)
    }
}

/// The path, if a file can be made there. What was there goes.
fn creatable(path: &str) -> Result<OwnPath> {
    let own = OwnPath::new(path);
    std::fs::File::create(own.path()).map_err(|error| refused(path, &error))?;
    Ok(own)
}

fn refused(path: &str, error: &std::io::Error) -> Error {
    Error::File { path: path.to_owned(), reason: error.to_string() }
}
