//! A file that grows by whole pieces, compressed or not.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// How hard a piece is compressed: fast enough for millions of events a second.
const LEVEL: i32 = 3;

/// The first bytes of a file that was written so.
pub(super) fn beginning(path: &Path, bytes: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut begins = vec![0; bytes];
    if is_compressed(path) {
        zstd::Decoder::new(file)?.read_exact(&mut begins)?;
    } else {
        (&file).read_exact(&mut begins)?;
    }
    Ok(begins)
}

/// By its name.
fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "zst")
}

/// A file that is appended to. Each piece is compressed on its own, so that what is there is a whole
/// file at any time; a piece that could not be written whole is taken away again.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    compressed: bool,
    written: u64,
}

impl Output {
    /// An empty file in the place of what was there, compressed if its name ends with `.zst`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, compressed: is_compressed(path), written: 0 })
    }

    /// Adds a text.
    pub(super) fn append(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let packed;
        let piece = if self.compressed {
            packed = zstd::bulk::compress(text.as_bytes(), LEVEL)?;
            &packed
        } else {
            text.as_bytes()
        };
        if let Err(error) = self.file.write_all(piece) {
            // What is behind the last whole piece would spoil all that follows.
            self.file.set_len(self.written)?;
            io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.written))?;
            return Err(error);
        }
        self.written += piece.len() as u64;
        Ok(())
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.written
    }
}
