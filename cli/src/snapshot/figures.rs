//! What a snapshot comes to: totals, events, who holds most.

use std::collections::{BTreeMap, HashMap};

use ascend_alloc::snapshot_file::{Action, Document, Entry, Frame, Segment, Totals};
use serde::Serialize;

use super::Form;
use crate::convert::Story;

/// Figures of a snapshot; sizes in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// `pickle` or `json`.
    pub form: &'static str,
    /// Each device that has memory or events.
    pub devices: Vec<DeviceFigures>,
    /// The settings of the allocator that was recorded.
    pub settings: BTreeMap<String, String>,
    /// What was found that does not fit together.
    pub warnings: Vec<String>,
}

/// Figures of one device; sizes in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFigures {
    /// The device.
    pub device: u32,
    /// Segments; stretches of memory of an expandable one count one by one.
    pub segments: u64,
    /// Of these, those that grow and shrink.
    pub expandable_segments: u64,
    /// Bytes of segments.
    pub reserved: u64,
    /// Bytes of blocks that are handed out.
    pub allocated: u64,
    /// Bytes of blocks that are handed out or wait for streams.
    pub active: u64,
    /// Bytes that were asked for in active blocks.
    pub requested: u64,
    /// Blocks that are handed out.
    pub allocated_blocks: u64,
    /// Blocks that are handed out or wait.
    pub active_blocks: u64,
    /// Bytes of the largest free block.
    pub largest_free: u64,
    /// Bytes of segments by pool, as `first.second`.
    pub reserved_by_pool: BTreeMap<String, u64>,
    /// Bytes of segments by stream.
    pub reserved_by_stream: BTreeMap<u64, u64>,
    /// How many events of each kind.
    pub events: BTreeMap<String, u64>,
    /// Microseconds from the first event with a time to the last.
    pub span_us: Option<i64>,
    /// The most bytes asked for that were live during the events.
    pub peak_live: u64,
    /// The most bytes of segments during the events; nothing where events and segments disagree.
    pub peak_reserved: Option<u64>,
    /// Who holds most, by the place of the allocation.
    pub holders: Vec<Holder>,
}

/// Blocks that were allocated at one place.
#[derive(Clone, Debug, Serialize)]
pub struct Holder {
    /// Bytes of their blocks.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// The place: the innermost frame that says something, then its callers.
    pub place: Vec<String>,
}

/// Frames shown of a place.
const FRAMES: usize = 3;

impl Figures {
    /// Takes the figures, with so many holders for each device.
    #[must_use]
    pub fn of(document: &Document, form: Form, top: usize) -> Figures {
        let devices = document.devices();
        Figures {
            form: match form {
                Form::Pickle => "pickle",
                Form::Json => "json",
            },
            devices: devices.into_iter().map(|device| DeviceFigures::of(document, device, top)).collect(),
            settings: document.settings.iter().cloned().collect(),
            warnings: document.warnings.clone(),
        }
    }
}

impl DeviceFigures {
    fn of(document: &Document, device: u32, top: usize) -> DeviceFigures {
        let Totals {
            segments,
            reserved,
            allocated,
            active,
            requested,
            allocated_blocks,
            active_blocks,
            largest_free,
        } = document.totals(device);
        let of_device = || document.segments.iter().filter(move |segment| segment.device == device);
        let (mut by_pool, mut by_stream) = (BTreeMap::new(), BTreeMap::new());
        for segment in of_device().filter(|segment| !segment.is_asleep) {
            let pool = format!("{}.{}", segment.pool.0, segment.pool.1);
            add(by_pool.entry(pool).or_default(), segment.total_size);
            add(by_stream.entry(segment.stream).or_default(), segment.total_size);
        }
        let trace = document.trace(device);
        let story = Story::of(document, device);
        DeviceFigures {
            device,
            segments,
            expandable_segments: of_device().filter(|segment| segment.is_expandable).count() as u64,
            reserved,
            allocated,
            active,
            requested,
            allocated_blocks,
            active_blocks,
            largest_free,
            reserved_by_pool: by_pool,
            reserved_by_stream: by_stream,
            events: events(trace),
            span_us: span(trace),
            peak_live: story.peak_live,
            peak_reserved: story.recorded_peak,
            holders: holders(of_device(), top),
        }
    }
}

fn add(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_add(bytes);
}

fn events(trace: &[Entry]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for entry in trace {
        let word = match &entry.action {
            Action::Other(word) => word.chars().filter(|c| !c.is_control()).take(40).collect(),
            action => action.word().to_owned(),
        };
        *counts.entry(word).or_default() += 1;
    }
    counts
}

fn span(trace: &[Entry]) -> Option<i64> {
    let times = || trace.iter().filter_map(|entry| entry.time_us);
    times().max()?.checked_sub(times().min()?)
}

fn holders<'a>(segments: impl Iterator<Item = &'a Segment>, top: usize) -> Vec<Holder> {
    let mut places: HashMap<Vec<&Frame>, (u64, u64)> = HashMap::new();
    for block in segments.flat_map(|segment| &segment.blocks).filter(|block| block.kind.is_active()) {
        let (bytes, blocks) = places.entry(telling(&block.frames)).or_default();
        add(bytes, block.size);
        *blocks += 1;
    }
    let mut all: Vec<_> = places.into_iter().collect();
    all.sort_by(|(a, (most, _)), (b, (other, _))| other.cmp(most).then_with(|| key(a).cmp(&key(b))));
    all.into_iter()
        .take(top)
        .map(|(frames, (bytes, blocks))| Holder {
            bytes,
            blocks,
            place: frames.into_iter().map(shown).collect(),
        })
        .collect()
}

/// Where the frames say that a program was: the innermost that says something, then its callers.
#[must_use]
pub fn place(frames: &[Frame]) -> Vec<String> {
    telling(frames).into_iter().map(shown).collect()
}

fn key<'a>(frames: &[&'a Frame]) -> Vec<(&'a str, i64, &'a str)> {
    frames.iter().map(|frame| (&*frame.filename, frame.line, &*frame.name)).collect()
}

/// The innermost frames that say where a program is: not those of the interpreter and of libraries in C++, unless
/// there are no others.
fn telling(frames: &[Frame]) -> Vec<&Frame> {
    let found: Vec<&Frame> = frames.iter().filter(|frame| says_something(frame)).take(FRAMES).collect();
    if found.is_empty() { frames.iter().take(FRAMES).collect() } else { found }
}

fn says_something(frame: &Frame) -> bool {
    let file = frame.filename.rsplit('/').next().unwrap_or("");
    let is_source = [".cpp", ".h", ".c", ".cc", ".hpp"].iter().any(|ending| file.ends_with(ending));
    !(is_source || frame.name.contains("::") || frame.filename.ends_with("??") || frame.name.is_empty())
}

fn shown(frame: &Frame) -> String {
    let name: String = frame.name.chars().map(|c| if c.is_control() { ' ' } else { c }).take(120).collect();
    if frame.filename.is_empty() {
        return name;
    }
    let file: String = frame.filename.chars().filter(|c| !c.is_control()).take(200).collect();
    format!("{name} ({file}:{})", frame.line)
}
