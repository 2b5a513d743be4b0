//! `ascend-alloc doctor`: what the runtime library of this machine is like, and what the allocator will do on it.
//!
//! ```text
//!  doctor ─┬─► examine ─┬─► limits    how far addresses and events go
//!          │            └─► outlook   what the allocator does here: by doing it
//!          ├─► text                   all that for a person
//!          └─► conform                rows of observed answers, played
//! ```
//!
//! Everything that is asked for is given back. Nothing waits for a device for longer than its own copy of some bytes.

pub mod conform;
mod examine;
mod limits;
mod outlook;
mod text;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use ascend_alloc::acl::{Acl, LoadError, Search};
use clap::Args;
use serde::Serialize;

pub use examine::{Examination, Refusal};

/// Status for differences.
const FOUND: u8 = 1;
/// Status for a library that cannot be used, or a file that cannot be read.
const REFUSED: u8 = 2;

const EXITS: &str = "\
Looks for ACL's runtime library where the allocator does, asks it what it can do, and gives back all that it took.
With --conform it plays rows of observed answers instead, each group of rows in a process of its own. Rows that a
device or its other users might not survive are skipped and counted, with the reason.

Exit status: 0 all is well; 1 the allocator could not work, or an answer differs from its row or could not be had;
2 there is no usable library, or the file has no rows.";

/// Options of the command.
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct Doctor {
    /// The device to examine
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,

    /// Plays the rows of FILE (Markdown tables or the plain form) and prints where the library answers otherwise
    #[arg(long, value_name = "FILE")]
    conform: Option<PathBuf>,

    /// With --conform: also the rows that are not for hardware. For simulators
    #[arg(long, requires = "conform")]
    all: bool,

    /// One line of JSON, sizes in bytes
    #[arg(long)]
    json: bool,

    /// Plays one group in this process
    #[arg(long, hide = true, requires = "conform")]
    group: Option<usize>,

    /// Rows of the group to leave out
    #[arg(long, hide = true, value_delimiter = ',')]
    without: Vec<String>,
}

/// A place that was looked at, for JSON.
#[derive(Debug, Serialize)]
struct Place {
    place: String,
    reason: String,
}

/// What is said instead of a report.
#[derive(Debug, Serialize)]
struct NoLibrary {
    error: String,
    looked_at: Vec<Place>,
}

impl Doctor {
    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let Some(file) = &self.conform else { return self.examine() };
        // SAFETY: what the search finds is taken for ACL, as the allocator takes it.
        match unsafe { Acl::load(&Search::from_environment()) } {
            Ok(acl) => self.conform(&acl, file.clone()),
            Err(error) => self.without_library(&error),
        }
    }

    fn examine(&self) -> ExitCode {
        let examination = match Examination::of(self.device) {
            Ok(examination) => examination,
            Err(Refusal::Library(error)) => return self.without_library(&error),
            Err(Refusal::Device(reason)) => return self.refused(&reason, Vec::new()),
        };
        let status = if examination.is_well() { 0 } else { FOUND };
        self.print(&examination, &text::render(&examination), status)
    }

    fn conform(&self, acl: &Acl, file: PathBuf) -> ExitCode {
        let order = conform::Order { file, all: self.all };
        let played = match self.group {
            Some(group) => {
                let without: Vec<usize> = self.without.iter().filter_map(|row| row.parse().ok()).collect();
                conform::play_group(&order, group, &without, acl).map(|()| None)
            }
            None => conform::play(&order, acl).map(Some),
        };
        match played {
            Ok(None) => ExitCode::SUCCESS,
            Ok(Some(report)) => {
                self.print(&report, &text::render_rows(&report), if report.is_well() { 0 } else { FOUND })
            }
            Err(reason) => self.refused(&reason, Vec::new()),
        }
    }

    fn without_library(&self, error: &LoadError) -> ExitCode {
        let attempts = match error {
            LoadError::Named(attempt) => vec![attempt.clone()],
            LoadError::NotFound(attempts) => attempts.clone(),
            _ => Vec::new(),
        };
        let places =
            attempts.into_iter().map(|attempt| Place { place: attempt.place, reason: attempt.reason });
        self.refused(&error.to_string(), places.collect())
    }

    fn refused(&self, reason: &str, looked_at: Vec<Place>) -> ExitCode {
        let mut text =
            text::render_refusal(reason, looked_at.iter().map(|place| (&*place.place, &*place.reason)));
        if !self.json {
            eprint!("{text}");
            text.clear();
        }
        let said = NoLibrary { error: reason.to_owned(), looked_at };
        if self.json { self.print(&said, &text, REFUSED) } else { ExitCode::from(REFUSED) }
    }

    fn print(&self, report: &impl Serialize, text: &str, status: u8) -> ExitCode {
        let mut out = io::stdout().lock();
        let written = match serde_json::to_string(report) {
            Ok(json) if self.json => writeln!(out, "{json}"),
            Err(error) if self.json => Err(io::Error::other(error)),
            _ => write!(out, "{text}"),
        };
        match written.and_then(|()| out.flush()) {
            Ok(()) => ExitCode::from(status),
            // Whoever read the output has gone.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(status),
            Err(error) => {
                eprintln!("error: cannot write the results: {error}");
                ExitCode::from(REFUSED)
            }
        }
    }
}
