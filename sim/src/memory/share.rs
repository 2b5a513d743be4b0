//! Exporting chunks to other processes and importing theirs.
//!
//! A chunk that is exported moves to a file of its own (see [`shared`](super::shared)); everything
//! mapped to it moves along. An imported chunk takes nothing of a device's capacity here: its
//! exporter's process has been charged for it.

use std::sync::Arc;

use super::backing::Place;
use super::shared::{MOST_PIDS, Shape, ShareError, ShareId, SharedFile};
use super::{Chunk, Mapping, Memory, Origin};
use crate::codes;
use crate::made::Made;
use crate::refusal::{Answer, Refusal, refuse};

impl From<ShareError> for Refusal {
    fn from(error: ShareError) -> Self {
        match error {
            ShareError::Unknown => Self::new(
                codes::RT_DRV_INTERNAL_ERROR,
                "nothing of that name is exported, or its process is gone or of another user",
            ),
            ShareError::Forbidden => {
                Self::new(codes::RT_NO_PERMISSION, "this process is not on the list of the exporter")
            }
            ShareError::Machine => {
                Self::new(codes::HOST_LIMIT, "this machine could not share memory (files or memory run out)")
            }
        }
    }
}

impl Memory {
    /// `aclrtMemExportToShareableHandle`: the name of a chunk for other processes, the same every time.
    pub(crate) fn export(&mut self, handle: u64, open: bool) -> Answer<ShareId> {
        let Some(chunk) = self.chunks.get(&handle).filter(|chunk| chunk.held + chunk.maps > 0) else {
            return refuse(codes::RT_PARAM_INVALID, "no such handle");
        };
        if chunk.lost {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "the device of the handle was reset");
        }
        self.export_chunk(handle, open)
    }

    /// `aclrtIpcMemGetExportKey`: the name of a block of `aclrtMalloc` for other processes.
    pub(crate) fn export_block(&mut self, start: u64, size: u64, open: bool) -> Answer<ShareId> {
        let block = self.mappings.get(&start).filter(|mapping| mapping.origin == Origin::Malloc);
        let Some(mapping) = block.filter(|mapping| size <= mapping.len) else {
            return refuse(codes::RT_PARAM_INVALID, "not the start of a block of aclrtMalloc of that size");
        };
        let chunk = mapping.chunk;
        self.export_chunk(chunk, open)
    }

    fn export_chunk(&mut self, handle: u64, open: bool) -> Answer<ShareId> {
        let gone = Refusal::new(codes::RT_PARAM_INVALID, "no such handle");
        let chunk = self.chunks.get(&handle).ok_or(gone)?;
        if let Some(id) = chunk.share {
            return Ok(id);
        }
        if let Place::Shared(file) = &chunk.place {
            // It was exported before; those who still have it open share it on.
            file.reopen(open)?;
            let id = file.id();
            self.named(handle, id);
            return Ok(id);
        }
        let id = ShareId::new();
        let shape = Shape { size: chunk.size, page: chunk.page, prop: chunk.prop, open };
        let file = Arc::new(SharedFile::create(id, &shape)?);
        self.backing.copy_out(&chunk.place, chunk.pool, chunk.size, &file)?;
        let (pool, place) = (chunk.pool, Place::Shared(file));
        self.show_instead(handle, &place)?;
        let chunk = self.chunks.get_mut(&handle).ok_or(gone)?;
        let mut old = std::mem::replace(&mut chunk.place, place);
        let size = chunk.size;
        self.backing.discard(&mut old, pool, size);
        self.named(handle, id);
        Ok(id)
    }

    /// The chunk is exported under that name.
    fn named(&mut self, handle: u64, id: ShareId) {
        if let Some(chunk) = self.chunks.get_mut(&handle) {
            chunk.share = Some(id);
            self.exports.insert(id, handle);
        }
    }

    /// Whether the chunk has a name for other processes.
    pub(crate) fn is_exported(&self, handle: u64) -> bool {
        self.chunks.get(&handle).is_some_and(|chunk| chunk.share.is_some())
    }

    /// Lets every mapping of a chunk show another place, or none of them.
    fn show_instead(&mut self, handle: u64, place: &Place) -> Answer<()> {
        let Some(chunk) = self.chunks.get(&handle) else { return Ok(()) };
        let shown = self.mappings.iter().filter(|(_, mapping)| mapping.chunk == handle);
        let shown: Vec<(u64, u64)> = shown.map(|(&start, mapping)| (start, mapping.len)).collect();
        for (index, &(start, len)) in shown.iter().enumerate() {
            if let Err(refusal) = self.backing.map(start, len, place, chunk.pool) {
                for &(start, len) in &shown[..index] {
                    // What was there a moment ago fits again.
                    let _ = self.backing.map(start, len, &chunk.place, chunk.pool);
                }
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Lets more processes import what this one exported.
    pub(crate) fn allow(&mut self, id: ShareId, pids: &[i32]) -> Answer<()> {
        if pids.len() > MOST_PIDS {
            return refuse(codes::RT_PARAM_INVALID, "too many processes");
        }
        let chunk = self.exports.get(&id).and_then(|handle| self.chunks.get(handle));
        match chunk.map(|chunk| &chunk.place) {
            Some(Place::Shared(file)) => Ok(file.allow(pids)?),
            _ => refuse(codes::RT_PARAM_INVALID, "this process has exported nothing of that name"),
        }
    }

    /// `aclrtMemImportFromShareableHandle`: a handle for a chunk of another process; the same, with
    /// one more reference, every time. `device` by the driver's number.
    pub(crate) fn import(&mut self, id: ShareId, device: u32) -> Answer<u64> {
        if let Some(&handle) = self.imports.get(&id)
            && let Some(chunk) = self.chunks.get_mut(&handle)
            // One whose device was reset is gone; the same memory is imported anew.
            && !chunk.lost
        {
            chunk.held += 1;
            return Ok(handle);
        }
        let handle = self.imported_chunk(id, device)?;
        self.imports.insert(id, handle);
        Ok(handle)
    }

    fn imported_chunk(&mut self, id: ShareId, device: u32) -> Answer<u64> {
        if id.process == std::process::id() {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "a process cannot import what it exported");
        }
        let (file, shape) = SharedFile::open(id)?;
        let handle = self.next_chunk;
        self.next_chunk += 0x200;
        let chunk = Chunk {
            pool: device as usize,
            size: shape.size,
            charged: 0,
            page: shape.page,
            prop: shape.prop,
            held: 1,
            maps: 0,
            lost: false,
            place: Place::Shared(Arc::new(file)),
            share: Some(id),
            imported: true,
            made: Made::now(),
        };
        self.chunks.insert(handle, chunk);
        Ok(handle)
    }

    /// `aclrtIpcMemImportByKey`: the address of a block of another process; the same every time, to be
    /// closed as often.
    pub(crate) fn import_block(&mut self, id: ShareId, device: u32) -> Answer<u64> {
        if let Some((start, times)) = self.imported_blocks.get_mut(&id) {
            *times += 1;
            return Ok(*start);
        }
        let handle = self.imported_chunk(id, device)?;
        let placed = self.place_import(handle);
        if let Some(chunk) = self.chunks.get_mut(&handle) {
            // Only the mapping keeps it, as with blocks of this process.
            chunk.held = 0;
            chunk.maps = u64::from(placed.is_ok());
        }
        match placed {
            Ok(start) => drop(self.imported_blocks.insert(id, (start, 1))),
            Err(_) => self.collect(handle),
        }
        placed
    }

    fn place_import(&mut self, handle: u64) -> Answer<u64> {
        let full = Refusal::new(codes::RT_MEMORY_ALLOCATION, "no addresses for the block");
        let chunk = self.chunks.get(&handle).ok_or(full)?;
        let unit = chunk.page.max(super::backing::os_page());
        let len = chunk.size.next_multiple_of(unit);
        let start = self.heap.take(len, unit).ok_or(full)?;
        if let Err(refusal) = self.backing.map(start, chunk.size, &chunk.place, chunk.pool) {
            self.heap.give(start, len);
            return Err(refusal);
        }
        let mapping = Mapping {
            len: chunk.size,
            chunk: handle,
            origin: Origin::Import,
            grants: Vec::new(),
            made: Made::now(),
        };
        self.mappings.insert(start, mapping);
        Ok(start)
    }

    /// What `aclrtIpcMemClose` would take away: start and length of an imported block that nobody else
    /// holds, or nothing for a block of this process, which only ends to be exported.
    pub(crate) fn closing(&self, id: ShareId) -> Answer<Option<(u64, u64)>> {
        if let Some(&(start, times)) = self.imported_blocks.get(&id) {
            let mapping = self.mappings.get(&start).filter(|_| times == 1);
            return Ok(mapping.map(|mapping| (start, mapping.len)));
        }
        if self.exports.contains_key(&id) {
            return Ok(None);
        }
        refuse(codes::RT_PARAM_INVALID, "the key is neither exported nor imported by this process")
    }

    /// `aclrtIpcMemClose`. What was exported can be imported no more, until it is exported again;
    /// processes that have it open keep it.
    pub(crate) fn close_block(&mut self, id: ShareId) -> Answer<()> {
        self.closing(id)?;
        if let Some((start, times)) = self.imported_blocks.get_mut(&id) {
            *times -= 1;
            let (start, last) = (*start, *times == 0);
            if last {
                self.imported_blocks.remove(&id);
                self.remove_mapping(start);
            }
            return Ok(());
        }
        let handle = self.exports.get(&id).copied();
        if let Some(chunk) = handle.and_then(|handle| self.chunks.get_mut(&handle)) {
            if let Place::Shared(file) = &chunk.place {
                file.close()?;
            }
            chunk.share = None;
        }
        self.exports.remove(&id);
        Ok(())
    }

    /// The chunk is destroyed: its names are forgotten.
    pub(super) fn forget_share(&mut self, id: Option<ShareId>) {
        if let Some(id) = id {
            self.exports.remove(&id);
            // After a reset the same memory may have been imported anew.
            if self.imports.get(&id).is_some_and(|handle| !self.chunks.contains_key(handle)) {
                self.imports.remove(&id);
            }
            self.imported_blocks.remove(&id);
        }
    }
}
