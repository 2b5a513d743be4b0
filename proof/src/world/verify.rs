//! Compares allocator, machine and model.

use std::collections::BTreeMap;

use super::{Inner, lock};
use crate::model::{Block, granted};
use crate::surface::{Books, Stretch};

impl Inner {
    pub(super) fn verify(&mut self, when: &str) {
        let surface = self.surface();
        if let Err(faults) = surface.check() {
            panic!("{when}: heap checker: {faults:#?}");
        }
        let findings = self.machine.findings();
        assert!(findings.is_empty(), "{when}: use checker: {findings:#?}");
        let complaints = lock(&self.complaints).clone();
        assert!(complaints.is_empty(), "{when}: {complaints:#?}");
        let mut chunks = Some(0);
        for device in 0..self.machine.devices() {
            let books = granted(surface.books(device), "statistics can be had");
            let snapshot = granted(surface.snapshot(device), "a snapshot can be had");
            self.verify_books(device, &books, when);
            self.verify_snapshot(device, &books, &snapshot, when);
            chunks = chunks.and_then(|sum| Some(sum + chunks_of(&snapshot)?));
        }
        if let (Some(chunks), Some(mappings), false) =
            (chunks, self.machine.mappings(), self.model.has_imported)
        {
            assert_eq!(mappings, chunks, "{when}: I3: mappings of the machine, chunks of the allocator");
        }
        self.verify_host(when);
        assert_eq!(self.machine.current_device(), self.current_device, "{when}: I6: the current device");
    }

    fn verify_books(&mut self, device: u32, books: &Books, when: &str) {
        let blocks = || self.model.all().filter(|block| block.device == device);
        let (count, requested) =
            blocks().fold((0, 0), |(count, sum), block| (count + 1, sum + block.requested));
        assert_eq!(books.allocations, count, "{when}: I1: live blocks of device {device}");
        assert!(books.requested >= requested as i64, "{when}: I1: {requested} bytes live, {books:?}");
        let ordered = 0 <= books.requested
            && books.requested <= books.active
            && books.allocated <= books.active
            && books.active <= books.reserved + books.sleeping;
        assert!(ordered, "{when}: I1: {books:?}");
        if let Some(capacity) = self.capacity {
            let held = (books.reserved + books.cached_handles) as u64;
            assert!(held <= capacity, "{when}: I1: more than {capacity}: {books:?}");
        }
        let peak = &mut self.model.peaks[device as usize];
        *peak = (*peak).max(books.allocated);
        if self.rough {
            assert!(books.allocated_peak >= *peak, "{when}: peak {peak}, {books:?}");
            *peak = books.allocated_peak;
        }
        assert_eq!(books.allocated_peak, *peak, "{when}: peak of device {device}");
        if let Some(physical) = self.machine.physical_bytes(device) {
            let held = (books.reserved + books.cached_handles) as u64;
            assert_eq!(physical, held, "{when}: I5: device {device}: {books:?}");
        }
    }

    fn verify_snapshot(&self, device: u32, books: &Books, snapshot: &[Stretch], when: &str) {
        let expected: BTreeMap<u64, &Block> = self
            .model
            .all()
            .filter(|block| block.device == device)
            .map(|block| (block.address, block))
            .collect();
        let (mut allocated, mut active, mut reserved, mut found) = (0, 0, 0, 0);
        let mut end = 0;
        for stretch in snapshot {
            assert!(stretch.address >= end, "{when}: I2: {:#x} lies in the stretch before", stretch.address);
            end = stretch.address;
            for piece in &stretch.pieces {
                assert_eq!(piece.address, end, "{when}: I4: pieces tile their stretch");
                end += piece.bytes;
                active += if piece.active { piece.bytes } else { 0 };
                if !piece.live {
                    continue;
                }
                allocated += piece.bytes;
                found += 1;
                let block = expected.get(&piece.address);
                let block = block.unwrap_or_else(|| panic!("{when}: I4: nobody has {piece:x?}"));
                let known =
                    block.bytes == piece.bytes || self.is_buffer(block.address) && piece.bytes >= block.bytes;
                assert!(known, "{when}: I4: {block:x?} is {piece:x?}");
                assert_eq!(piece.requested, block.requested, "{when}: I4: {block:x?}");
            }
            assert_eq!(end, stretch.address + stretch.bytes, "{when}: I4: pieces tile their stretch");
            reserved += if stretch.is_asleep { 0 } else { stretch.bytes };
        }
        assert_eq!(found, expected.len(), "{when}: I4: live blocks of device {device}");
        let sums = (allocated as i64, active as i64, reserved as i64);
        assert_eq!(sums, (books.allocated, books.active, books.reserved), "{when}: I4: {books:?}");
        for block in expected.values().filter(|block| !block.asleep) {
            let backed = self.machine.is_backed(block.address, block.bytes);
            assert!(backed != Some(false), "{when}: I2: no memory behind {block:x?}");
        }
    }

    fn is_buffer(&self, address: u64) -> bool {
        self.model.buffers.iter().any(|buffer| buffer.block.address == address)
    }

    fn verify_host(&self, when: &str) {
        let books = granted(self.surface().host_books(), "statistics of host memory can be had");
        let count = self.model.host.len() as i64;
        let bytes: u64 = self.model.host.iter().map(|&(_, bytes)| bytes).sum();
        let ordered =
            books.active_requests >= count && books.active >= bytes as i64 && books.held >= books.active;
        assert!(ordered, "{when}: {count} host blocks of {bytes} bytes, {books:?}");
    }
}

/// Pieces of physical memory behind what is awake, where they are told.
fn chunks_of(snapshot: &[Stretch]) -> Option<u64> {
    snapshot.iter().map(|stretch| if stretch.is_asleep { Some(0) } else { stretch.chunks }).sum()
}
