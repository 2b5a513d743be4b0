//! Snapshots as files: the dictionary that PyTorch's memory tools read, as pickle or JSON, and the way back.
//!
//! ```text
//!  pickle ──► pickle::read ──┐                     ┌──► pickle::write ──► pickle (protocol 2 or 4)
//!                            ├──► Tree ◄──► Document
//!  JSON (the command) ───────┘                     └──► json::write ────► JSON
//! ```
//!
//! A [`Tree`] is what a file says, whatever that is: numbers, texts, lists and dictionaries, with what is shared
//! kept shared. A [`Document`] is what it means: segments with their blocks, and what happened on each device.
//!
//! Files come from anywhere. A pickle is parsed and never executed: whatever would name or call code is refused
//! with its opcode and offset. Memory grows with the length of the file only, and [`Limits`] bound that. Nothing
//! in here panics on any input, allocates on behalf of a length that the file merely claims, or recurses deeper
//! than [`Limits::depth`].

mod check;
mod document;
pub mod json;
mod ours;
pub mod pickle;
mod read;
mod tree;
mod write;

use core::fmt;

pub use document::{Action, Annotation, Block, BlockKind, Document, Entry, Frame, Frames, Segment, Totals};
pub use tree::{Node, NodeId, Tree, TreeBuilder};

/// How large a file may be. What is beyond a limit is refused with an error that names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the file, after decompression.
    pub bytes: u64,
    /// Values and places in lists and dictionaries; each takes about 60 bytes of memory while a file is read.
    pub nodes: u64,
    /// Lists and dictionaries inside of one another; a snapshot has seven. 200 at most, whatever is asked for.
    pub depth: u32,
}

impl Default for Limits {
    /// 4 GiB, 100 million values, 64 levels.
    fn default() -> Self {
        Limits { bytes: 4 << 30, nodes: 100_000_000, depth: 64 }
    }
}

/// Why a file was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Where in the file, in bytes from its start, if one place is meant.
    pub offset: Option<u64>,
    /// What is wrong there.
    pub reason: String,
}

impl FileError {
    /// An error at a place in the file.
    #[must_use]
    pub fn at(offset: usize, reason: impl Into<String>) -> Self {
        FileError { offset: Some(offset as u64), reason: reason.into() }
    }

    /// An error about the file as a whole.
    #[must_use]
    pub fn whole(reason: impl Into<String>) -> Self {
        FileError { offset: None, reason: reason.into() }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "at byte {offset}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for FileError {}
