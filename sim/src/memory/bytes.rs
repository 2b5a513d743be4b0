//! Reading and writing device memory by address.

use super::backing::Place;
use super::{Chunk, Memory};
use crate::codes;
use crate::refusal::{Answer, Refusal, refuse};

/// Copies go through a buffer of this size.
const STEP: u64 = 64 << 10;

/// A part of a range that lies in one mapping.
struct Piece {
    address: u64,
    len: u64,
    handle: u64,
    /// Where it starts in the chunk.
    offset: u64,
}

impl Memory {
    /// The first address of the range that nothing is mapped at.
    pub(crate) fn first_hole(&self, start: u64, len: u64) -> Option<u64> {
        let Some(end) = start.checked_add(len) else { return Some(start) };
        let before = self.mapping_of(start).map_or(start, |(base, mapping)| base + mapping.len);
        let mut reached = before;
        for (&base, mapping) in self.mappings.range(before..) {
            if reached >= end || base != reached {
                break;
            }
            reached += mapping.len;
        }
        (reached < end).then_some(reached)
    }

    /// Copies device memory out.
    pub(crate) fn read(&self, start: u64, out: &mut [u8]) -> Answer<()> {
        self.check_mapped(start, out.len() as u64)?;
        let mut rest = out;
        for piece in self.pieces(start, rest.len() as u64) {
            let (part, behind) = rest.split_at_mut(piece.len as usize);
            rest = behind;
            match &self.chunk_of(&piece)?.place {
                #[cfg(target_os = "linux")]
                Place::File(_) => read_mapped(piece.address, part)?,
                Place::Table(table) => table.read(piece.offset, part),
            }
        }
        Ok(())
    }

    /// Overwrites device memory.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) -> Answer<()> {
        self.check_mapped(start, bytes.len() as u64)?;
        let mut rest = bytes;
        for piece in self.pieces(start, rest.len() as u64).collect::<Vec<_>>() {
            let (part, behind) = rest.split_at(piece.len as usize);
            rest = behind;
            match self.chunks.get_mut(&piece.handle).map(|chunk| &mut chunk.place) {
                #[cfg(target_os = "linux")]
                Some(Place::File(_)) => write_mapped(piece.address, part)?,
                Some(Place::Table(table)) => table.write(piece.offset, part),
                None => return broken(),
            }
        }
        Ok(())
    }

    /// Sets device memory to one byte.
    pub(crate) fn fill(&mut self, start: u64, len: u64, byte: u8) -> Answer<()> {
        self.check_mapped(start, len)?;
        for piece in self.pieces(start, len).collect::<Vec<_>>() {
            match self.chunks.get_mut(&piece.handle).map(|chunk| &mut chunk.place) {
                #[cfg(target_os = "linux")]
                Some(Place::File(_)) => fill_mapped(piece.address, piece.len, byte)?,
                Some(Place::Table(table)) => table.fill(piece.offset, piece.len, byte),
                None => return broken(),
            }
        }
        Ok(())
    }

    /// Copies device memory to device memory, in ascending order; ranges that overlap give what that
    /// order gives, in steps.
    pub(crate) fn copy(&mut self, to: u64, from: u64, len: u64) -> Answer<()> {
        self.check_mapped(from, len)?;
        self.check_mapped(to, len)?;
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < len {
            let step = (len - done).min(STEP);
            match self.uniform(from + done, step) {
                Some(byte) => self.fill(to + done, step, byte)?,
                None => {
                    buffer.resize(step as usize, 0);
                    self.read(from + done, &mut buffer)?;
                    self.write(to + done, &buffer)?;
                }
            }
            done += step;
        }
        Ok(())
    }

    /// The one value of all bytes of a range, where that is known without reading them.
    fn uniform(&self, start: u64, len: u64) -> Option<u8> {
        let mut pieces = self.pieces(start, len);
        let piece = pieces.next()?;
        match &self.chunk_of(&piece).ok()?.place {
            Place::Table(table) if piece.len == len => table.uniform(piece.offset, len),
            _ => None,
        }
    }

    fn check_mapped(&self, start: u64, len: u64) -> Answer<()> {
        match self.first_hole(start, len) {
            None => Ok(()),
            Some(_) => refuse(codes::RT_PARAM_INVALID, "the range is not wholly mapped device memory"),
        }
    }

    /// The parts of a range by mapping; ends at the first hole.
    fn pieces(&self, start: u64, len: u64) -> impl Iterator<Item = Piece> {
        let mut address = start;
        let mut left = len;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let (base, mapping) = self.mapping_of(address)?;
            let offset = address - base;
            let len = left.min(mapping.len - offset);
            let piece = Piece { address, len, handle: mapping.chunk, offset };
            address += len;
            left -= len;
            Some(piece)
        })
    }

    fn chunk_of(&self, piece: &Piece) -> Answer<&Chunk> {
        self.chunks.get(&piece.handle).map_or_else(broken, Ok)
    }
}

/// A mapping without its chunk: cannot be while the module's invariants hold.
fn broken<T>() -> Answer<T> {
    Err(Refusal::new(codes::RT_DRV_INTERNAL_ERROR, "the tables of the simulator contradict one another"))
}

#[cfg(target_os = "linux")]
fn pointer(address: u64) -> Answer<*mut u8> {
    super::mapped::pointer(address).map_or_else(broken, |pointer| Ok(pointer.as_ptr()))
}

#[cfg(target_os = "linux")]
fn read_mapped(address: u64, out: &mut [u8]) -> Answer<()> {
    let source = pointer(address)?;
    // SAFETY: the caller looked the range up in the table of mappings, so the file is mapped there,
    // readable and writable, and stays so while the lock around `Memory` is held. `out` is memory of
    // Rust and the windows hold none, so they do not overlap. What other threads do to device memory
    // meanwhile is the program's race, as it would be on a device.
    unsafe { std::ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
    Ok(())
}

#[cfg(target_os = "linux")]
fn write_mapped(address: u64, bytes: &[u8]) -> Answer<()> {
    let target = pointer(address)?;
    // SAFETY: as in `read_mapped`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    Ok(())
}

#[cfg(target_os = "linux")]
fn fill_mapped(address: u64, len: u64, byte: u8) -> Answer<()> {
    let target = pointer(address)?;
    // SAFETY: as in `read_mapped`.
    unsafe { std::ptr::write_bytes(target, byte, len as usize) };
    Ok(())
}
