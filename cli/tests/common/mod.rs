//! What the tests of the command share: running it, and files for it.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod recorded;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A trace of the repository.
pub fn repository_trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces").join(name)
}

/// Writes a file for one test; `name` must be unique among all tests.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Compresses with gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// What a run of the command left behind.
pub struct Run {
    /// Exit status.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Run {
    /// The only line of JSON.
    pub fn json(&self) -> Value {
        let lines: Vec<&str> = self.out.lines().collect();
        assert_eq!(lines.len(), 1, "one line expected:\n{}\n{}", self.out, self.err);
        serde_json::from_str(lines[0]).unwrap()
    }
}

/// Runs `ascend-alloc replay` with one trace and more arguments.
pub fn replay(trace: &Path, arguments: &[&str]) -> Run {
    run(&[&["replay", trace.to_str().unwrap()], arguments].concat())
}

/// Runs the command.
pub fn run(arguments: &[&str]) -> Run {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_ascend-alloc")).args(arguments).output().unwrap();
    Run {
        code: status.code().expect("an exit status, no signal"),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// The findings of a report.
pub fn findings(report: &Value) -> Vec<String> {
    report["findings"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().to_owned()).collect()
}
