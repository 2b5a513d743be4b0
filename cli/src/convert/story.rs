//! The trace of a device of a snapshot, as events of our traces.
//!
//! | in the snapshot | in the trace |
//! |---|---|
//! | `alloc` | `a` |
//! | `free_requested`, and `free_completed` right behind it | `f` |
//! | `free_requested`, and `free_completed` later | `r` on another stream, then `f`: the allocator waited for that stream |
//! | `stream_use`, `host_wait` (this allocator's) | `r`, `s` |
//! | a free of a block whose allocation the ring has lost; a block of the segments that no event is about | `a` at the beginning |
//! | `oom`, `snapshot`, `user_defined`, annotations, a `user_metadata` that was not there before | `m` |
//! | `segment_*` | nothing: what the allocator that was recorded held, for comparison |

use std::collections::{BTreeMap, HashMap, HashSet};

use ascend_alloc::snapshot_file::{Action, BlockKind, Document, Entry};
use ascend_alloc::words::counted;

use crate::trace::TEARDOWN;

/// The label between the blocks that were there before and the first event.
pub const BEGIN: &str = "history";

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// `a`.
    Allocate {
        /// Names the block.
        id: u64,
        /// Bytes asked for.
        bytes: u64,
        /// The stream's number.
        stream: u32,
    },
    /// `f`.
    Free {
        /// Names the block.
        id: u64,
    },
    /// `r`.
    Record {
        /// Names the block.
        id: u64,
        /// The stream's number.
        stream: u32,
    },
    /// `s`.
    Wait {
        /// The stream's number.
        stream: u32,
    },
    /// `m`.
    Marker {
        /// The label.
        label: String,
    },
}

/// The trace of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Story {
    /// Blocks that were there before the first event, by address.
    pub before: Vec<Line>,
    /// What happened.
    pub lines: Vec<Line>,
    /// Raw handles of the streams by number; the first is the default stream.
    pub streams: Vec<u64>,
    /// The highest sum of bytes asked for that were live at one time.
    pub peak_live: u64,
    /// The most memory that the allocator that was recorded held during the events, if they agree with its segments.
    pub recorded_peak: Option<u64>,
    /// What could not be taken over as it was, in words.
    pub warnings: Vec<String>,
}

impl Story {
    /// Takes the trace of a device from a snapshot.
    #[must_use]
    pub fn of(document: &Document, device: u32) -> Story {
        let mut teller = Teller::new(document, device);
        teller.tell(document, device);
        teller.end(document, device);
        let mut story = teller.finish();
        story.recorded_peak = recorded_peak(document, device);
        story
    }

    /// All lines in order.
    pub fn all(&self) -> impl Iterator<Item = &Line> {
        self.before.iter().chain(&self.lines)
    }
}

/// A block that is live or waits.
#[derive(Clone, Copy)]
struct Live {
    id: u64,
    end: u64,
    stream: u32,
    /// Whether it was freed on the host, and its memory is in use still.
    freed: bool,
    /// Whether events told of uses on other streams.
    used: bool,
}

/// What is known of what comes later.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Completed {
    /// The memory can be used at once.
    AtOnce,
    /// Only later.
    Later,
}

struct Teller {
    story: Story,
    /// Blocks by first address.
    live: BTreeMap<u64, Live>,
    /// Ranges that an `alloc` of the trace has covered; no two overlap.
    touched: BTreeMap<u64, u64>,
    /// Blocks that were there before, with their address and bytes.
    initial: Vec<(u64, u64, Line)>,
    next_id: u64,
    numbers: HashMap<u64, u32>,
    /// The stream that others are taken to have used blocks on, beside the default one: that with most allocations.
    busiest: Vec<u64>,
    notes: HashSet<String>,
    counts: BTreeMap<(&'static str, String), u64>,
}

impl Teller {
    fn new(document: &Document, device: u32) -> Self {
        let mut allocations: BTreeMap<u64, u64> = BTreeMap::new();
        for entry in document.trace(device).iter().filter(|entry| entry.action == Action::Alloc) {
            *allocations.entry(entry.stream).or_default() += 1;
        }
        let mut busiest: Vec<(u64, u64)> = allocations.into_iter().collect();
        busiest.sort_by_key(|&(stream, count)| (std::cmp::Reverse(count), stream));
        Teller {
            story: Story { streams: vec![0], ..Story::default() },
            live: BTreeMap::new(),
            touched: BTreeMap::new(),
            initial: Vec::new(),
            next_id: 1,
            numbers: HashMap::from([(0, 0)]),
            busiest: busiest.into_iter().map(|(stream, _)| stream).collect(),
            notes: HashSet::new(),
            counts: BTreeMap::new(),
        }
    }

    fn tell(&mut self, document: &Document, device: u32) {
        let trace = document.trace(device);
        let completed = completions(document, device);
        let mut annotations: Vec<_> = document
            .annotations
            .iter()
            .filter(|note| note.device == device && &*note.stage != "END")
            .collect();
        annotations.sort_by_key(|note| note.time_us);
        let mut annotations = annotations.into_iter().peekable();
        for (entry, completed) in trace.iter().zip(completed) {
            while let Some(note) =
                entry.time_us.and_then(|time| annotations.next_if(|annotation| annotation.time_us <= time))
            {
                self.mark(&note.name);
            }
            if let Some(note) = &entry.note
                && !matches!(entry.action, Action::Other(_))
                && !note.is_empty()
                && !self.notes.contains(&**note)
            {
                self.notes.insert(note.to_string());
                self.mark(note);
            }
            self.entry(entry, completed);
        }
        for note in annotations {
            self.mark(&note.name);
        }
    }

    fn entry(&mut self, entry: &Entry, completed: Completed) {
        match &entry.action {
            Action::Alloc => self.allocate(entry),
            Action::FreeRequested => self.free_requested(entry, completed),
            Action::FreeCompleted => self.free_completed(entry),
            Action::StreamUse => self.stream_use(entry),
            Action::HostWait => {
                let stream = self.number(entry.stream);
                self.story.lines.push(Line::Wait { stream });
            }
            Action::OutOfMemory => {
                let (size, free) = (entry.size, entry.addr);
                let asked = counted(size, "byte[s] asked for");
                self.mark(&format!("out of memory: {asked}, {free} free on the device"));
            }
            Action::Snapshot => self.mark("snapshot"),
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap => {
                self.count("event[s] about segments: a replay takes its own");
            }
            Action::Other(word) if matches!(&**word, "user_defined" | "workspace_snapshot") => {
                let label = entry.note.as_deref().unwrap_or(word).to_owned();
                self.mark(&label);
            }
            Action::Other(word) => self.count_of("event[s]", format!(" \"{}\"", short(word))),
        }
    }

    fn allocate(&mut self, entry: &Entry) {
        let end = entry.addr.saturating_add(entry.size.max(1));
        // What is still live there must have been freed without an event.
        while let Some((&addr, &block)) = self.live.range(..end).next_back() {
            if block.end <= entry.addr {
                break;
            }
            self.live.remove(&addr);
            if !block.freed {
                self.story.lines.push(Line::Free { id: block.id });
                self.count("free[s] that no event tells of, put where the memory was used again");
            }
        }
        let stream = self.number(entry.stream);
        let id = self.id();
        self.story.lines.push(Line::Allocate { id, bytes: entry.size, stream });
        self.live.insert(entry.addr, Live { id, end, stream, freed: false, used: false });
        self.touch(entry.addr, end);
    }

    fn free_requested(&mut self, entry: &Entry, completed: Completed) {
        let block = match self.live.get(&entry.addr) {
            Some(block) if block.freed => {
                self.count("second free[s] of one block: left out");
                return;
            }
            Some(block) => *block,
            None => self.found(entry),
        };
        if completed == Completed::Later && !block.used {
            let other = self.other_stream(block.stream);
            self.story.lines.push(Line::Record { id: block.id, stream: other });
        }
        self.story.lines.push(Line::Free { id: block.id });
        self.live.insert(entry.addr, Live { freed: true, ..block });
    }

    fn free_completed(&mut self, entry: &Entry) {
        match self.live.remove(&entry.addr) {
            Some(block) if block.freed => {}
            Some(block) => self.story.lines.push(Line::Free { id: block.id }),
            None => {
                let block = self.found(entry);
                self.live.remove(&entry.addr);
                self.count(
                    "block[s] that [was|were] freed before the first event and waited: live until [it was|they were] free",
                );
                self.story.lines.push(Line::Free { id: block.id });
            }
        }
    }

    fn stream_use(&mut self, entry: &Entry) {
        let known = self.live.range(..=entry.addr).next_back().filter(|(_, block)| block.end > entry.addr);
        let addr = match known {
            Some((&addr, _)) => addr,
            None if entry.size > 0 => {
                self.found(entry);
                entry.addr
            }
            None => return self.count("use[s] of unknown blocks: left out"),
        };
        let Some(block) = self.live.get_mut(&addr).filter(|block| !block.freed) else {
            return self.count("use[s] of freed blocks: left out");
        };
        block.used = true;
        let block = *block;
        let stream = self.number(entry.stream);
        self.story.lines.push(Line::Record { id: block.id, stream });
    }

    /// A block that the event is about and that no event before has allocated.
    fn found(&mut self, entry: &Entry) -> Live {
        let end = entry.addr.saturating_add(entry.size.max(1));
        let (id, stream) = (self.id(), self.number(entry.stream));
        let line = Line::Allocate { id, bytes: entry.size, stream };
        if self.is_touched(entry.addr, end) {
            // Something else was there before.
            self.count("allocation[s] that no event tells of, put before the first event of the block");
            self.story.lines.push(line);
        } else {
            self.initial.push((entry.addr, entry.size, line));
        }
        // It was there all the time, so that no other block from before overlaps it.
        self.touch(entry.addr, end);
        let block = Live { id, end, stream, freed: false, used: false };
        self.live.insert(entry.addr, block);
        block
    }

    /// Blocks that are live at the end and that no event is about.
    fn end(&mut self, document: &Document, device: u32) {
        let segments = document.segments.iter().filter(|segment| segment.device == device);
        let mut active = HashSet::new();
        for segment in segments {
            for block in segment.blocks.iter().filter(|block| block.kind.is_active()) {
                active.insert(block.address);
                if self.live.contains_key(&block.address) {
                    continue;
                }
                let end = block.address.saturating_add(block.requested_size.max(1));
                let (id, stream) = (self.id(), self.number(segment.stream));
                let line = Line::Allocate { id, bytes: block.requested_size, stream };
                if self.is_touched(block.address, end) {
                    self.count("live block[s] whose allocation no event tells of, put at the end");
                    self.story.lines.push(line);
                } else {
                    self.initial.push((block.address, block.requested_size, line));
                }
                if block.kind == BlockKind::PendingFree {
                    self.count(
                        "block[s] that [was|were] freed before the first event and wait[s|] still: freed at the end",
                    );
                    self.story.lines.push(Line::Free { id });
                }
            }
        }
        if !active.is_empty() {
            let gone =
                self.live.iter().filter(|(addr, block)| !block.freed && !active.contains(*addr)).count();
            if gone > 0 {
                let what = "block[s] [is|are] live after the last event and not in the segments: the events end earlier";
                self.counts.insert((what, String::new()), gone as u64);
            }
        }
    }

    fn finish(mut self) -> Story {
        let mut initial = std::mem::take(&mut self.initial);
        initial.sort_by_key(|&(addr, _, _)| addr);
        let lines = initial.into_iter().map(|(_, _, line)| line);
        self.story.before = lines.collect();
        if !self.story.before.is_empty() && !self.story.lines.is_empty() {
            self.story.before.push(Line::Marker { label: BEGIN.to_owned() });
        }
        self.story.peak_live = peak_live(self.story.all());
        self.story.warnings =
            self.counts.iter().map(|((what, of), &count)| format!("{}{of}", counted(count, what))).collect();
        self.story
    }

    fn mark(&mut self, label: &str) {
        let mut label: String =
            label.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
        label.truncate(label.trim_end().len());
        let label = label.trim_start();
        let label = match label {
            "" => "(no name)".to_owned(),
            // That one would say that only frees follow.
            TEARDOWN => format!("{TEARDOWN} (recorded)"),
            label => label.to_owned(),
        };
        self.story.lines.push(Line::Marker { label });
    }

    /// Another stream than a block's own: the busiest of the device, or one that is made up.
    fn other_stream(&mut self, own: u32) -> u32 {
        let own = self.story.streams[own as usize];
        let other = self.busiest.iter().copied().find(|&stream| stream != own);
        let what = match other {
            Some(_) if self.busiest.len() <= 2 => {
                "use[s] on the other stream, taken from when the memory was free again"
            }
            Some(_) => "use[s] on another stream that is not told: put on the busiest",
            None => "use[s] on another stream that is not told: put on one that is made up",
        };
        self.count(what);
        // The largest handle stands for it.
        self.number(other.unwrap_or(if own == u64::MAX { 0 } else { u64::MAX }))
    }

    fn number(&mut self, stream: u64) -> u32 {
        let streams = &mut self.story.streams;
        *self.numbers.entry(stream).or_insert_with(|| {
            streams.push(stream);
            // There are fewer streams than entries.
            (streams.len() - 1) as u32
        })
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Notes something by words for [`counted`].
    fn count(&mut self, what: &'static str) {
        self.count_of(what, String::new());
    }

    /// The same, with words behind it that are as they are.
    fn count_of(&mut self, what: &'static str, of: String) {
        *self.counts.entry((what, of)).or_insert(0) += 1;
    }

    fn is_touched(&self, start: u64, end: u64) -> bool {
        self.touched.range(..end).next_back().is_some_and(|(_, &last)| last > start)
    }

    fn touch(&mut self, mut start: u64, mut end: u64) {
        while let Some((&first, &last)) = self.touched.range(..=end).next_back() {
            if last < start {
                break;
            }
            self.touched.remove(&first);
            start = start.min(first);
            end = end.max(last);
        }
        self.touched.insert(start, end);
    }
}

/// For each event, whether the memory of a block that it frees is free at once.
fn completions(document: &Document, device: u32) -> Vec<Completed> {
    let trace = document.trace(device);
    let segments = document.segments.iter().filter(|segment| segment.device == device);
    let blocks = segments.flat_map(|segment| &segment.blocks);
    let pending: HashSet<u64> =
        blocks.filter(|block| block.kind == BlockKind::PendingFree).map(|block| block.address).collect();
    // From the newest event to the oldest: where the memory of an address is free next.
    let mut next: HashMap<u64, Option<usize>> = HashMap::new();
    let mut found = vec![Completed::AtOnce; trace.len()];
    for (index, entry) in trace.iter().enumerate().rev() {
        match entry.action {
            Action::Alloc => {
                next.insert(entry.addr, None);
            }
            Action::FreeCompleted => {
                next.insert(entry.addr, Some(index));
            }
            Action::FreeRequested => {
                let later = match next.get(&entry.addr) {
                    Some(Some(completed)) => *completed > index + 1,
                    Some(None) => false,
                    None => pending.contains(&entry.addr),
                };
                if later {
                    found[index] = Completed::Later;
                }
            }
            _ => {}
        }
    }
    found
}

fn peak_live<'a>(lines: impl Iterator<Item = &'a Line>) -> u64 {
    let (mut live, mut sum, mut peak) = (HashMap::new(), 0_u64, 0);
    for line in lines {
        match line {
            Line::Allocate { id, bytes, .. } => {
                live.insert(id, bytes);
                sum = sum.saturating_add(*bytes);
                peak = peak.max(sum);
            }
            Line::Free { id } => sum = sum.saturating_sub(*live.remove(id).unwrap_or(&0)),
            _ => {}
        }
    }
    peak
}

/// The most memory that was held, from the segments at the end and the events before it; nothing if they disagree.
fn recorded_peak(document: &Document, device: u32) -> Option<u64> {
    let mut held = document.totals(device).reserved;
    let mut peak = held;
    for entry in document.trace(device).iter().rev() {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => held = held.checked_sub(entry.size)?,
            Action::SegmentFree | Action::SegmentUnmap => held = held.checked_add(entry.size)?,
            _ => {}
        }
        peak = peak.max(held);
    }
    Some(peak)
}

/// The beginning of a word of the file.
fn short(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(40).collect()
}
