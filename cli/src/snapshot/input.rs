//! Opens snapshots: pickles and JSON, plain or compressed. The content says which, not the name.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use ascend_alloc::snapshot_file::{Document, Limits, Tree, pickle};

use super::json;

/// What a file is, apart from its compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A pickle.
    Pickle,
    /// JSON.
    Json,
}

/// Reads what a file says.
///
/// # Errors
/// The file, and why it was refused.
pub fn open(path: &Path, limits: &Limits) -> Result<(Tree, Form), String> {
    let named = |reason: String| format!("{}: {reason}", path.display());
    let file = File::open(path).map_err(|error| named(format!("cannot be opened: {error}")))?;
    let bytes = unpacked(file, limits).map_err(named)?;
    tree(&bytes, limits).map_err(|reason| named(format!("is no snapshot that can be read: {reason}")))
}

/// Reads what a file means.
///
/// # Errors
/// The file, and why it was refused.
pub fn document(path: &Path, limits: &Limits) -> Result<Document, String> {
    let (tree, _) = open(path, limits)?;
    Document::from_tree(&tree).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads what bytes say.
///
/// # Errors
/// Why they were refused.
pub fn tree(bytes: &[u8], limits: &Limits) -> Result<(Tree, Form), String> {
    // Neither of these is an opcode of a pickle.
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if matches!(first, Some(b'{' | b'[')) {
        return Ok((json::read(bytes, limits)?, Form::Json));
    }
    if bytes.starts_with(b"PK\x03\x04") {
        return Err(
            "it is a zip archive; a snapshot is the pickle of torch.cuda.memory._snapshot()".to_owned()
        );
    }
    let tree = pickle::read(bytes, limits).map_err(|error| error.to_string())?;
    Ok((tree, Form::Pickle))
}

fn unpacked(mut file: impl Read, limits: &Limits) -> Result<Vec<u8>, String> {
    let mut start = Vec::new();
    (&mut file).take(4).read_to_end(&mut start).map_err(|error| format!("cannot be read: {error}"))?;
    let compressed = match start[..] {
        [0x28, 0xb5, 0x2f, 0xfd] => Some("zstd"),
        [0x1f, 0x8b, ..] => Some("gzip"),
        _ => None,
    };
    let file = BufReader::new(start.as_slice().chain(file));
    match compressed {
        Some("zstd") => {
            let decoder = zstd::stream::read::Decoder::new(file)
                .map_err(|error| format!("cannot be decompressed: {error}"))?;
            bounded(decoder, limits)
        }
        Some(_) => bounded(flate2::read::MultiGzDecoder::new(file), limits),
        None => bounded(file, limits),
    }
}

fn bounded(file: impl Read, limits: &Limits) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = file.take(limits.bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > limits.bytes {
        return Err(format!("holds more than {} bytes, which is the limit", limits.bytes));
    }
    Ok(bytes)
}
