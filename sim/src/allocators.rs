//! Allocators that a program registers for streams (`aclrtAllocatorRegister`). The model only keeps
//! what was registered: nothing here calls them.

use std::collections::HashMap;

/// Where descriptors' handles start.
const DESCRIPTORS: u64 = 0xd000_0000_0000;

/// What a descriptor holds; addresses of the program, 0 for what was not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorEntry {
    /// The descriptor that was registered.
    pub desc: u64,
    /// The allocator object, first argument of its functions.
    pub object: u64,
    /// Takes a block.
    pub alloc: u64,
    /// Gives a block back.
    pub free: u64,
    /// Takes a block, near an address if it can.
    pub advise: u64,
    /// The address of a block.
    pub get_address: u64,
}

/// A field of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorField {
    /// The allocator object.
    Object,
    /// The function that takes a block.
    Alloc,
    /// The function that gives a block back.
    Free,
    /// The function that takes a block with advice.
    Advise,
    /// The function that gives the address of a block.
    GetAddress,
}

/// Descriptors, and what is registered for each stream.
#[derive(Debug)]
pub(crate) struct Allocators {
    descriptors: HashMap<u64, AllocatorEntry>,
    streams: HashMap<u64, AllocatorEntry>,
    next: u64,
}

impl Default for Allocators {
    fn default() -> Self {
        Self { descriptors: HashMap::new(), streams: HashMap::new(), next: DESCRIPTORS }
    }
}

impl Allocators {
    pub(crate) fn create(&mut self) -> u64 {
        let desc = self.next;
        self.next += 0x40;
        self.descriptors.insert(desc, AllocatorEntry { desc, ..AllocatorEntry::default() });
        desc
    }

    pub(crate) fn destroy(&mut self, desc: u64) -> bool {
        self.descriptors.remove(&desc).is_some()
    }

    pub(crate) fn set(&mut self, desc: u64, field: AllocatorField, value: u64) -> bool {
        let Some(entry) = self.descriptors.get_mut(&desc) else { return false };
        match field {
            AllocatorField::Object => entry.object = value,
            AllocatorField::Alloc => entry.alloc = value,
            AllocatorField::Free => entry.free = value,
            AllocatorField::Advise => entry.advise = value,
            AllocatorField::GetAddress => entry.get_address = value,
        }
        true
    }

    /// Registers a copy of a descriptor for a stream; false if it is unknown or not complete.
    pub(crate) fn register(&mut self, stream: u64, desc: u64) -> bool {
        let Some(entry) = self.descriptors.get(&desc) else { return false };
        let complete =
            [entry.object, entry.alloc, entry.free, entry.get_address].iter().all(|&part| part != 0);
        if complete {
            self.streams.insert(stream, *entry);
        }
        complete
    }

    pub(crate) fn unregister(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    pub(crate) fn of(&self, stream: u64) -> Option<AllocatorEntry> {
        self.streams.get(&stream).copied()
    }
}
