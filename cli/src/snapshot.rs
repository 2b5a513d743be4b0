//! Looks at snapshots, and turns pickles into JSON and back.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ascend_alloc::snapshot_file::{Document, Limits, Tree, json as write_json, pickle};
use clap::{Args, ValueEnum};

use crate::output;

mod figures;
pub mod input;
mod json;
mod shown;

pub use figures::{DeviceFigures, Figures, Holder, place};
pub use input::Form;

/// Status for files that were refused.
const REFUSED: u8 = 2;

/// Options of `snapshot`.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// A snapshot: a pickle or JSON, plain, .gz or .zst
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,

    /// Write it to this file: .json as JSON, anything else as a pickle; .gz and .zst behind that compress it
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The pickle that is written
    #[arg(long, value_name = "N", default_value = "4", requires = "output")]
    protocol: ProtocolOption,

    /// How many holders of memory are listed
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// The figures as one line of JSON, sizes in bytes
    #[arg(long)]
    json: bool,
}

/// A protocol by its number.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProtocolOption {
    /// Python 2.3 and later
    #[value(name = "2")]
    Two,
    /// Python 3.4 and later, smaller
    #[value(name = "4")]
    Four,
}

impl Snapshot {
    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self.look() {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::from(REFUSED)
            }
        }
    }

    fn look(&self) -> Result<(), String> {
        let (tree, form) = input::open(&self.snapshot, &Limits::default())?;
        let document =
            Document::from_tree(&tree).map_err(|error| format!("{}: {error}", self.snapshot.display()))?;
        if let Some(output) = &self.output {
            self.save(output, &tree)
                .map_err(|error| format!("{}: cannot be written: {error}", output.display()))?;
        }
        let figures = Figures::of(&document, form, self.top);
        let mut out = io::stdout().lock();
        let written = if self.json {
            serde_json::to_string(&figures).map_err(io::Error::other).and_then(|line| writeln!(out, "{line}"))
        } else {
            write!(out, "{}", shown::text(&self.snapshot, &figures))
        };
        match written.and_then(|()| out.flush()) {
            // Whoever read the output has gone.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(format!("cannot write the figures: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Writes what the file says, with all that nobody here knows the meaning of.
    fn save(&self, path: &Path, tree: &Tree) -> io::Result<()> {
        let protocol = match self.protocol {
            ProtocolOption::Two => pickle::Protocol::Two,
            ProtocolOption::Four => pickle::Protocol::Four,
        };
        let ending = |path: &Path| path.extension().map(|ending| ending.to_string_lossy().into_owned());
        let compression = ending(path).filter(|ending| matches!(ending.as_str(), "gz" | "zst"));
        let inner = if compression.is_some() { path.with_extension("") } else { path.to_owned() };
        let form = if ending(&inner).as_deref() == Some("json") { Form::Json } else { Form::Pickle };
        output::write_compressed(path, 3, |mut file| match form {
            Form::Json => write_json::write(tree, &mut file),
            Form::Pickle => pickle::write(tree, protocol, &mut file),
        })
    }
}
