//! Regenerates the checked-in generated files of the project, or compares them with their sources.
//!
//! ```text
//! ffi/acl/acl_runtime.h --acl--> src/acl/sys.rs
//! ffi/src/**            --header--> ffi/include/ascend_alloc.h
//! toolkit's include/    --acl --toolkit--> agreement with ffi/acl/acl_runtime.h, or the differences
//! ```
//!
//! Generated files are checked in, so that building the project needs no libclang. CI runs this
//! tool with `--check`.

mod declarations;
mod header;
mod parse;
mod sys;
mod toolkit;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What a step answers; the error is a text for the person at the terminal.
type Outcome<T> = Result<T, String>;

const USAGE: &str = "usage:
  bindings acl                        write src/acl/sys.rs from ffi/acl/acl_runtime.h
  bindings acl --check                fail if src/acl/sys.rs is not what would be written
  bindings acl --toolkit INCLUDE_DIR  compare acl_runtime.h with the headers of a toolkit
  bindings header [--check]           write or check ffi/include/ascend_alloc.h";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["acl"] => sys::write(&root()),
        ["acl", "--check"] => sys::check(&root()),
        ["acl", "--toolkit", include] => toolkit::compare(&root(), Path::new(include)),
        ["header"] => header::write(&root()),
        ["header", "--check"] => header::check(&root()),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(message) => {
            println!("{message}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// An error as "what: why".
fn because(what: impl Display, why: impl Display) -> String {
    format!("{what}: {why}")
}

/// Writes a generated file and says so.
fn write_file(path: &Path, text: &str) -> Outcome<String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| because(folder.display(), error))?;
    }
    std::fs::write(path, text).map_err(|error| because(path.display(), error))?;
    Ok(format!("wrote {}", path.display()))
}

/// Compares a checked-in file with what would be generated; names the first line that differs.
fn check_file(path: &Path, text: &str, command: &str) -> Outcome<String> {
    let found = std::fs::read_to_string(path).map_err(|error| because(path.display(), error))?;
    if found == text {
        return Ok(format!("{} is up to date", path.display()));
    }
    let same = found.lines().zip(text.lines()).take_while(|(a, b)| a == b).count();
    Err(format!(
        "{}, line {}: found {:?}, expected {:?}; run `cargo run -p bindings -- {command}`",
        path.display(),
        same + 1,
        found.lines().nth(same).unwrap_or(""),
        text.lines().nth(same).unwrap_or(""),
    ))
}
