//! What another process needs to import a block, as bytes.
//!
//! ```text
//! magic 4 | version 2 | form 1 | pages 1 | device 4 | count 4 | chunk 8 | offset 8 | bytes 8
//! exporter: number 4, 0 4, start 8, place 8 | names: count times 8 or 128 | digest 8
//! ```
//!
//! Version 2, where chunks have several granules, has `lead 8` and the granules of each, `count times 4`, behind the names.
//! All numbers little-endian, but for names, which are the driver's bytes.

use super::process::Process;
use crate::driver::{PageKind, ShareForm, ShareName};
use crate::error::{Error, Result};
use crate::words::counted;

const MAGIC: [u8; 4] = *b"AscS";
/// All chunks are of one granule.
const EVEN: u16 = 1;
/// They have spans.
const SPANNED: u16 = 2;
/// Bytes before the names.
const HEAD: usize = 64;
/// Bytes behind the names.
const TAIL: usize = 8;
/// The largest pages there are, bytes.
const MOST_LEAD: u64 = 1 << 30;
/// Larger blocks exist on no device.
const MOST_BYTES: u64 = 1 << 40;

/// A block for another process: the names of its chunks, and where in them it lies.
///
/// It says nothing about who may import; the driver checks that.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedHandle {
    parts: Parts,
}

/// What a handle is made of.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Parts {
    /// The pages behind the chunks.
    pub(super) pages: PageKind,
    /// The exporter's device, by the driver's number.
    pub(super) device: u32,
    /// Bytes of a granule.
    pub(super) chunk: u64,
    /// Granules of each chunk.
    pub(super) spans: Vec<u32>,
    /// How far the first chunk lies behind a multiple of what large pages want; bytes.
    pub(super) lead: u64,
    /// Where the block begins in the first chunk.
    pub(super) offset: u64,
    /// Bytes asked for.
    pub(super) bytes: u64,
    /// The exporter.
    pub(super) exporter: Process,
    /// The chunks' names, all of one form, in address order.
    pub(super) names: Vec<ShareName>,
}

impl SharedHandle {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// A handle of nothing, which no function of this crate gives away.
    pub(super) fn empty() -> Self {
        let exporter = Process::default();
        let parts = Parts {
            pages: PageKind::Huge,
            device: 0,
            chunk: 0,
            spans: Vec::new(),
            lead: 0,
            offset: 0,
            bytes: 0,
            exporter,
            names: Vec::new(),
        };
        Self { parts }
    }

    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(super) fn names(&self) -> &[ShareName] {
        &self.parts.names
    }

    /// Address and bytes of each chunk where they lie one behind the other from `first` on.
    pub(super) fn places(&self, first: u64) -> impl Iterator<Item = (u64, u64)> {
        let granule = self.parts.chunk;
        self.parts.spans.iter().scan(first, move |at, &span| {
            let (address, bytes) = (*at, u64::from(span) * granule);
            *at += bytes;
            Some((address, bytes))
        })
    }

    /// Bytes of the block.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.bytes
    }

    /// Bytes of the chunks that are mapped to import it.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.parts.spans.iter().map(|&span| u64::from(span)).sum::<u64>() * self.parts.chunk
    }

    /// How its chunks are named.
    #[must_use]
    pub fn form(&self) -> ShareForm {
        self.parts.names.first().map_or(ShareForm::V1, |name| name.form)
    }

    /// The handle as a message for another process of the same machine architecture.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Parts { pages, device, chunk, spans, lead, offset, bytes, exporter, names } = &self.parts;
        let spanned = spans.iter().any(|&span| span != 1);
        let width = width_of(self.form());
        let mut out = Vec::with_capacity(HEAD + names.len() * width + TAIL);
        out.extend(MAGIC);
        out.extend(if spanned { SPANNED } else { EVEN }.to_le_bytes());
        out.push(match self.form() {
            ShareForm::V1 => 1,
            ShareForm::V2 => 2,
            ShareForm::Fabric => 3,
        });
        out.push(match pages {
            PageKind::Huge => 0,
            PageKind::Huge1G => 1,
        });
        out.extend(device.to_le_bytes());
        out.extend((names.len() as u32).to_le_bytes());
        for number in [chunk, offset, bytes, &u64::from(exporter.id), &exporter.started, &exporter.place] {
            out.extend(number.to_le_bytes());
        }
        for name in names {
            out.extend(&name.bytes[..width]);
        }
        if spanned {
            out.extend(lead.to_le_bytes());
            spans.iter().for_each(|span| out.extend(span.to_le_bytes()));
        }
        out.extend(digest(&out).to_le_bytes());
        out
    }

    /// Reads a message of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for anything else: another format or version, damaged or cut off, or a block that cannot be.
    pub fn from_bytes(message: &[u8]) -> Result<Self> {
        read(message).map(Self::new).ok_or_else(|| Error::Argument {
            name: "shared handle",
            value: counted(message.len() as u64, "byte[s]").to_string(),
            expected: "the bytes of a SharedHandle, whole and from a version of this library that writes version 1 or 2",
        })
    }
}

impl core::fmt::Debug for SharedHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedHandle")
            .field("bytes", &self.parts.bytes)
            .field("chunks", &self.parts.names.len())
            .field("form", &self.form())
            .field("device", &self.parts.device)
            .field("exporter", &self.parts.exporter.id)
            .finish_non_exhaustive()
    }
}

fn read(message: &[u8]) -> Option<Parts> {
    let (body, told) = message.split_last_chunk::<TAIL>()?;
    if body.len() < HEAD || digest(body) != u64::from_le_bytes(*told) {
        return None;
    }
    let (head, rest) = body.split_at(HEAD);
    let number = |at: usize| -> Option<u64> { Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?)) };
    let short = |at: usize| -> Option<u32> { Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?)) };
    if head[..4] != MAGIC {
        return None;
    }
    let form = match head[6] {
        1 => ShareForm::V1,
        2 => ShareForm::V2,
        3 => ShareForm::Fabric,
        _ => return None,
    };
    let pages = match head[7] {
        0 => PageKind::Huge,
        1 => PageKind::Huge1G,
        _ => return None,
    };
    let (count, width) = (short(12)? as usize, width_of(form));
    let (names, behind) = rest.split_at_checked(count.checked_mul(width)?)?;
    let (lead, spans) = match u16::from_le_bytes(*head[4..].first_chunk()?) {
        EVEN if behind.is_empty() => (0, vec![1; count]),
        SPANNED => read_spans(behind, count)?,
        _ => return None,
    };
    let (chunk, offset, bytes) = (number(16)?, number(24)?, number(32)?);
    let granules: u64 = spans.iter().map(|&span| u64::from(span)).sum();
    let whole = granules.checked_mul(chunk).filter(|&whole| whole <= MOST_BYTES)?;
    let first = u64::from(*spans.first()?) * chunk;
    let placed = chunk.is_power_of_two() && lead < MOST_LEAD && lead.is_multiple_of(chunk);
    if !placed || offset >= first || bytes == 0 || bytes > whole - offset {
        return None;
    }
    let exporter = Process { id: u32::try_from(number(40)?).ok()?, started: number(48)?, place: number(56)? };
    let names = names.chunks_exact(width).map(|name| {
        let mut bytes = [0; 128];
        bytes[..width].copy_from_slice(name);
        ShareName { form, bytes }
    });
    let names = names.collect();
    Some(Parts { pages, device: short(8)?, chunk, spans, lead, offset, bytes, exporter, names })
}

/// What stands behind the names of so many chunks: the lead, and the granules of each.
fn read_spans(behind: &[u8], count: usize) -> Option<(u64, Vec<u32>)> {
    let (lead, spans) = behind.split_first_chunk()?;
    let (spans, []) = spans.as_chunks() else { return None };
    let spans: Vec<u32> = spans.iter().map(|&span| u32::from_le_bytes(span)).collect();
    (spans.len() == count && !spans.contains(&0)).then_some((u64::from_le_bytes(*lead), spans))
}

/// Bytes of a name.
fn width_of(form: ShareForm) -> usize {
    if form == ShareForm::Fabric { 128 } else { 8 }
}

/// A check sum against damage (FNV-1a), not against malice.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(form: ShareForm) -> SharedHandle {
        let names = (0..3).map(|n| ShareName::of_number(form, 0x1234_5678_9abc_def0 + n)).collect();
        let exporter = Process { id: 4711, started: 99, place: 7 };
        SharedHandle::new(Parts {
            pages: PageKind::Huge,
            device: 5,
            chunk: 2 << 20,
            spans: vec![1; 3],
            lead: 0,
            offset: 512,
            bytes: (5 << 20) + 3,
            exporter,
            names,
        })
    }

    #[test]
    fn a_message_is_read_back() {
        for form in [ShareForm::V1, ShareForm::V2, ShareForm::Fabric] {
            let sent = handle(form);
            let received = SharedHandle::from_bytes(&sent.to_bytes()).unwrap();
            assert!(received == sent);
            assert_eq!((received.form(), received.mapped_bytes()), (form, 6 << 20));
        }
    }

    /// The same with large chunks.
    fn spanned(form: ShareForm) -> SharedHandle {
        let even = handle(form).parts;
        let (spans, pages) = (vec![1, 512, 10], PageKind::Huge1G);
        SharedHandle::new(Parts { spans, pages, lead: 1022 << 20, bytes: 1 << 30, ..even })
    }

    /// What is read from a message with other bytes in one place and the sum that belongs to it.
    fn changed(good: &[u8], at: usize, bytes: &[u8]) -> Result<SharedHandle> {
        let mut body = good[..good.len() - TAIL].to_vec();
        body[at..at + bytes.len()].copy_from_slice(bytes);
        let sum = digest(&body).to_le_bytes();
        SharedHandle::from_bytes(&[body, sum.to_vec()].concat())
    }

    /// No beginning of a message is one.
    fn is_whole(message: &[u8]) {
        for len in 0..message.len() {
            assert!(SharedHandle::from_bytes(&message[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn chunks_of_several_granules_are_read_back() {
        for form in [ShareForm::V1, ShareForm::V2, ShareForm::Fabric] {
            let sent = spanned(form);
            let message = sent.to_bytes();
            let received = SharedHandle::from_bytes(&message).unwrap();
            assert!(received == sent);
            assert_eq!(received.mapped_bytes(), 523 * (2 << 20));
            is_whole(&message);
        }
        let good = spanned(ShareForm::V1).to_bytes();
        let behind = HEAD + 3 * 8;
        let with = |at, bytes| changed(&good, at, bytes);
        assert!(with(0, b"AscS").is_ok());
        // The version, the lead (too large, odd), spans of nothing, of too much, and of too little for the offset.
        let nonsense: [(usize, &[u8]); 6] = [
            (4, &[1]),
            (behind, &[0xff; 8]),
            (behind, &[1]),
            (behind + 8, &[0; 4]),
            (behind + 12, &[0xff; 4]),
            (24, &(2_u64 << 20).to_le_bytes()),
        ];
        for (at, bytes) in nonsense {
            assert!(with(at, bytes).is_err(), "{bytes:?} at {at}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        let good = handle(ShareForm::V1).to_bytes();
        is_whole(&good);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(SharedHandle::from_bytes(&bad).is_err(), "bit {bit} of byte {at}");
            }
        }
        assert!(SharedHandle::from_bytes(&[good.clone(), vec![0]].concat()).is_err());
    }

    /// Messages with a right check sum and impossible content.
    #[test]
    fn nonsense_is_refused() {
        let good = handle(ShareForm::V1).to_bytes();
        let with = |at, bytes| changed(&good, at, bytes);
        assert!(with(0, b"AscS").is_ok());
        let max = u64::MAX.to_le_bytes();
        let nonsense: [(usize, &[u8]); 14] = [
            (0, b"AscT"),
            (4, &[2]),
            (6, &[0]),
            (6, &[3]),
            (7, &[2]),
            (12, &[0; 4]),
            (12, &[4]),
            (12, &[0xff; 4]),
            (16, &[0; 8]),
            (16, &max),
            (24, &max),
            (32, &[0; 8]),
            (32, &max),
            (40, &max),
        ];
        for (at, bytes) in nonsense {
            assert!(with(at, bytes).is_err(), "{bytes:?} at {at}");
        }
    }
}
