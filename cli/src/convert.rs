//! Snapshots of PyTorch, torch_npu and this allocator as traces that can be replayed.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ascend_alloc::snapshot_file::{Document, Limits};
use ascend_alloc::words::counted;
use clap::Args;

use crate::output;
use crate::snapshot::input;
use crate::units::{GIB, show_bytes};

mod story;

pub use story::{BEGIN, Line, Story};

/// Status for files that were refused.
const REFUSED: u8 = 2;
/// Memory of the simulated device of `replay` when none is named.
const USUAL_DEVICE: u64 = 64 * GIB;

/// Options of `convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// A snapshot with a trace: a pickle or JSON, plain, .gz or .zst
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,

    /// The trace to write: .trace, .trace.zst or .trace.gz
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The device whose events are taken; needed only where several have some
    #[arg(long, value_name = "N")]
    device: Option<u32>,
}

impl Convert {
    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self.convert() {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::from(REFUSED)
            }
        }
    }

    fn convert(&self) -> Result<(), String> {
        let document = input::document(&self.snapshot, &Limits::default())?;
        let device = choose(&document, self.device)
            .map_err(|reason| format!("{}: {reason}", self.snapshot.display()))?;
        let story = Story::of(&document, device);
        if story.all().next().is_none() {
            return Err(format!(
                "{}: device {device} has no live block and no event",
                self.snapshot.display()
            ));
        }
        for warning in document.warnings.iter().chain(&story.warnings) {
            eprintln!("note: {warning}");
        }
        let name =
            self.snapshot.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        save(&self.output, &story, &name, device)
            .map_err(|error| format!("{}: cannot be written: {error}", self.output.display()))?;
        self.tell(&story, device);
        Ok(())
    }

    /// What was made, and what to do with it.
    fn tell(&self, story: &Story, device: u32) {
        let counts = Counts::of(story);
        println!(
            "{}: device {device}, {} ({} of them before the first event), {}, {}",
            self.output.display(),
            counted(counts.allocations, "allocation[s]"),
            story.before.iter().filter(|line| matches!(line, Line::Allocate { .. })).count(),
            counted(counts.frees, "free[s]"),
            counted(counts.records, "use[s] on other streams"),
        );
        println!(
            "  peak of what was asked for   {:>11} {:>15}",
            show_bytes(story.peak_live),
            story.peak_live
        );
        match story.recorded_peak {
            Some(peak) => println!("  peak held when recorded      {:>11} {peak:>15}", show_bytes(peak)),
            None => println!("  peak held when recorded      not known: events and segments disagree"),
        }
        let memory = story.peak_live.saturating_add(story.peak_live / 8);
        let memory = if memory > USUAL_DEVICE {
            format!(" --memory {}GiB", memory.div_ceil(GIB))
        } else {
            String::new()
        };
        println!("  what this allocator needs: ascend-alloc replay {}{memory}", self.output.display());
    }
}

/// The device that is meant.
fn choose(document: &Document, wanted: Option<u32>) -> Result<u32, String> {
    let devices = document.devices();
    let shown = |&device: &u32| {
        let events = counted(document.trace(device).len() as u64, "event[s]");
        format!("{device} ({events})")
    };
    let list = || devices.iter().map(shown).collect::<Vec<_>>().join(", ");
    if let Some(wanted) = wanted {
        if devices.contains(&wanted) {
            return Ok(wanted);
        }
        return Err(format!("has no device {wanted}; devices with memory or events are: {}", list()));
    }
    let traced: Vec<u32> =
        devices.iter().copied().filter(|&device| !document.trace(device).is_empty()).collect();
    match (&traced[..], &devices[..]) {
        ([], []) => Err("has no memory and no events".to_owned()),
        ([], [first, rest @ ..]) => {
            eprintln!(
                "note: there are no events, so the trace only has what is live; record with \
                 torch.cuda.memory._record_memory_history() before taking the snapshot"
            );
            if !rest.is_empty() {
                eprintln!("note: device {first} is taken of: {}; choose with --device N", list());
            }
            Ok(*first)
        }
        ([only], _) => Ok(*only),
        ([first, ..], _) => {
            eprintln!("note: device {first} is taken of: {}; choose with --device N", list());
            Ok(*first)
        }
    }
}

/// How many lines of each kind.
#[derive(Default)]
struct Counts {
    allocations: u64,
    frees: u64,
    records: u64,
    waits: u64,
    markers: u64,
}

impl Counts {
    fn of(story: &Story) -> Self {
        let mut counts = Counts::default();
        for line in story.all() {
            match line {
                Line::Allocate { .. } => counts.allocations += 1,
                Line::Free { .. } => counts.frees += 1,
                Line::Record { .. } => counts.records += 1,
                Line::Wait { .. } => counts.waits += 1,
                Line::Marker { .. } => counts.markers += 1,
            }
        }
        counts
    }
}

/// Writes a story to a file; the ending of its name says how it is compressed.
///
/// # Errors
/// The file cannot be written.
pub fn save(path: &Path, story: &Story, name: &str, device: u32) -> io::Result<()> {
    output::write_compressed(path, 9, |mut file| write(&mut file, story, name, device))
}

/// Writes a story as the text of a trace.
///
/// # Errors
/// What `out` answers.
pub fn write(out: &mut impl Write, story: &Story, name: &str, device: u32) -> io::Result<()> {
    let counts = Counts::of(story);
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    writeln!(out, "# snapshot {name}")?;
    writeln!(out, "# device {device}")?;
    for (key, value) in [
        ("events", story.all().count() as u64),
        ("allocs", counts.allocations),
        ("frees", counts.frees),
        ("records", counts.records),
        ("syncs", counts.waits),
        ("markers", counts.markers),
        ("peak_live_bytes", story.peak_live),
    ] {
        writeln!(out, "# {key} {value}")?;
    }
    if let Some(peak) = story.recorded_peak {
        writeln!(out, "# recorded_peak_bytes {peak}")?;
    }
    for (number, handle) in story.streams.iter().enumerate().skip(1) {
        writeln!(out, "# stream {number} {handle:#x}")?;
    }
    for line in story.all() {
        match line {
            Line::Allocate { id, bytes, stream } => writeln!(out, "a {id} {bytes} {stream}")?,
            Line::Free { id } => writeln!(out, "f {id}")?,
            Line::Record { id, stream } => writeln!(out, "r {id} {stream}")?,
            Line::Wait { stream } => writeln!(out, "s {stream}")?,
            Line::Marker { label } => writeln!(out, "m {label}")?,
        }
    }
    Ok(())
}
