//! Files of tensors, read straight into page-locked memory.

use core::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use ascend_alloc::Error;
use ascend_alloc::host::{PinnedAllocator, PinnedBuffer};
use burn::tensor::{BoolStore, DType, TensorData};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// The longest header that is read, bytes; what the format's own library accepts.
const LONGEST_HEADER: u64 = 100_000_000;

/// Why a file could not be loaded. What was loaded before is given back.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be opened or read.
    Io(io::Error),
    /// It is no safetensors file, or cut short.
    Format(String),
    /// burn has no such type of elements.
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
    },
    /// No page-locked memory for a tensor.
    Memory {
        /// The tensor.
        name: String,
        /// Why.
        error: Box<Error>,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the file cannot be read: {error}"),
            Self::Format(reason) => write!(f, "no safetensors file: {reason}"),
            Self::Type { name, dtype } => {
                write!(
                    f,
                    "tensor {name} has elements of type {dtype:?}, which burn has not; convert it first"
                )
            }
            Self::Memory { name, error } => write!(f, "no page-locked memory for tensor {name}: {error}"),
        }
    }
}

impl core::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Memory { error, .. } => Some(&**error),
            Self::Format(_) | Self::Type { .. } => None,
        }
    }
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Loads all tensors of a safetensors file, each into a page-locked block of its own, in the order of the file; those
/// without elements, which share a place, by their names. Data goes from the file to the block; there is no copy in between.
///
/// # Errors
///
/// [`LoadError`], with what is wrong.
pub fn load_safetensors(
    path: impl AsRef<Path>,
    pinned: &Arc<PinnedAllocator>,
) -> Result<Vec<(String, TensorData)>, LoadError> {
    let mut file = File::open(path)?;
    let (start, infos) = read_header(&mut file)?;
    let mut loaded = Vec::with_capacity(infos.len());
    for (name, info) in infos {
        let data = load(&mut file, start, &name, &info, pinned)?;
        loaded.push((name, data));
    }
    Ok(loaded)
}

/// Where the data begins, and the tensors in the order of their data.
fn read_header(file: &mut File) -> Result<(u64, Vec<(String, TensorInfo)>), LoadError> {
    let short = |what: &str| LoadError::Format(format!("it ends within its {what}"));
    let length = file.metadata()?.len();
    let mut header = vec![0; 8];
    if length < 8 {
        return Err(short("first eight bytes"));
    }
    file.read_exact(&mut header)?;
    let size = u64::from_le_bytes(header[..8].try_into().unwrap_or_default());
    if size > LONGEST_HEADER {
        return Err(LoadError::Format(format!("its header would have {size} bytes")));
    }
    if size > length - 8 {
        return Err(short("header"));
    }
    header.resize(8 + size as usize, 0);
    file.read_exact(&mut header[8..])?;
    let metadata: Metadata =
        serde_json::from_slice(&header[8..]).map_err(|error| LoadError::Format(error.to_string()))?;
    let start = 8 + size;
    let mut infos: Vec<_> = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
    infos.sort_by(|(a, left), (b, right)| (left.data_offsets, a).cmp(&(right.data_offsets, b)));
    let end = infos.iter().map(|(_, info)| info.data_offsets.1).max().unwrap_or(0) as u64;
    if length - start < end {
        return Err(short("data"));
    }
    if length - start > end {
        return Err(LoadError::Format(format!("{} bytes belong to no tensor", length - start - end)));
    }
    Ok((start, infos))
}

/// Loads one tensor.
fn load(
    file: &mut File,
    start: u64,
    name: &str,
    info: &TensorInfo,
    pinned: &Arc<PinnedAllocator>,
) -> Result<TensorData, LoadError> {
    let dtype =
        dtype(info.dtype).ok_or_else(|| LoadError::Type { name: name.to_owned(), dtype: info.dtype })?;
    let (from, to) = info.data_offsets;
    let bytes = to
        .checked_sub(from)
        .ok_or_else(|| LoadError::Format(format!("tensor {name} ends before it begins")))?;
    let buffer = PinnedBuffer::<u8>::zeroed(pinned.clone(), bytes);
    let mut buffer =
        buffer.map_err(|error| LoadError::Memory { name: name.to_owned(), error: Box::new(error) })?;
    file.seek(SeekFrom::Start(start + from as u64))?;
    file.read_exact(&mut buffer)?;
    TensorData::try_from_bytes(crate::bytes(buffer), info.shape.clone(), dtype)
        .map_err(|error| LoadError::Format(format!("tensor {name}: {error}")))
}

/// burn's name of a type of elements.
fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}
