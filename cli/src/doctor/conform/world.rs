//! What the rows of a group have made so far: names, what they stand for, mappings, how often what was called.

use std::collections::{HashMap, HashSet};

use super::calls::What;

/// Something with a name.
#[derive(Clone, Debug)]
pub struct Object {
    /// What it is.
    pub what: What,
    /// Its address or handle.
    pub address: u64,
    /// Bytes; 0 where that means nothing.
    pub bytes: u64,
    /// Whether it is not given back yet. For a chunk see [`World::is_referenced`].
    pub live: bool,
    /// Whether an event was recorded, or something was mapped into a reservation.
    pub used: bool,
}

/// A mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Its start.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The handle of its chunk.
    pub chunk: u64,
}

/// Host memory that is registered.
#[derive(Clone, Debug)]
pub struct Registered {
    /// Its start.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Whether the device can reach it.
    pub mapped: bool,
}

/// The state of a group.
#[derive(Debug, Default)]
pub struct World {
    /// All names.
    pub names: HashMap<String, Object>,
    /// All mappings.
    pub mappings: Vec<Mapping>,
    /// By handle of a chunk: its references that are not mappings.
    pub references: HashMap<u64, u32>,
    /// Names that rows would have made which were skipped.
    pub skipped: HashSet<String>,
    /// All registered memory.
    pub registered: Vec<Registered>,
    /// Whether ACL is initialised.
    pub initialised: bool,
    /// Whether ACL was finalised at least once.
    pub finalised: bool,
    /// By device: how often it is set.
    pub set: HashMap<u32, u32>,
    /// The device that was set last.
    pub current: u32,
    /// The calls that were made, as text without notes.
    pub calls: HashSet<String>,
    /// The address that `expect=` named last.
    pub expected_address: u64,
    /// The stream and the event that were destroyed last.
    pub destroyed: HashMap<What, u64>,
    /// Memory that the library may still write to or that rows name.
    pub kept: Vec<Vec<u64>>,
}

impl World {
    /// The live object that begins there.
    pub fn at(&mut self, what: What, address: u64) -> Option<&mut Object> {
        self.names.values_mut().find(|object| object.what == what && object.address == address && object.live)
    }

    /// How many mappings a chunk has.
    #[must_use]
    pub fn uses(&self, chunk: u64) -> usize {
        self.mappings.iter().filter(|mapping| mapping.chunk == chunk).count()
    }

    /// The mapping around an address.
    #[must_use]
    pub fn around(&self, address: u64) -> Option<&Mapping> {
        self.mappings
            .iter()
            .find(|mapping| (mapping.address..mapping.address + mapping.bytes).contains(&address))
    }

    /// The starts of the mappings that share bytes with a range.
    #[must_use]
    pub fn overlapping(&self, address: u64, bytes: u64) -> Vec<u64> {
        let end = address.saturating_add(bytes);
        let within = |mapping: &&Mapping| mapping.address < end && address < mapping.address + mapping.bytes;
        self.mappings.iter().filter(within).map(|mapping| mapping.address).collect()
    }

    /// Whether a chunk with this handle still has a reference; without one it is gone.
    #[must_use]
    pub fn is_referenced(&self, chunk: u64) -> bool {
        self.uses(chunk) > 0 || self.references.get(&chunk).is_some_and(|&count| count > 0)
    }

    /// Whether the object of that name is there.
    #[must_use]
    pub fn is_live(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|object| match object.what {
            What::Chunk => self.is_referenced(object.address),
            _ => object.live,
        })
    }

    /// The starts of the mappings inside the reservation of that name.
    #[must_use]
    pub fn inside(&self, name: &str) -> Vec<u64> {
        let range = self.names.get(name).map_or((0, 0), |object| (object.address, object.bytes));
        self.overlapping(range.0, range.1)
    }

    /// Whether registered memory shares bytes with a range.
    #[must_use]
    pub fn is_registered(&self, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        self.registered.iter().any(|memory| memory.address < end && address < memory.address + memory.bytes)
    }

    /// Notes that the address belongs to something that is gone.
    pub fn end(&mut self, what: What, address: u64) {
        if let Some(object) = self.at(what, address) {
            object.live = false;
        }
        self.destroyed.insert(what, address);
    }

    /// Memory of this process, zeroed, a multiple of `align` bytes: its address.
    pub fn keep(&mut self, bytes: usize, align: usize) -> u64 {
        let mut words = vec![0_u64; (bytes + align).div_ceil(8)];
        // Its elements stay where they are when the vector itself moves.
        let start = words.as_mut_ptr().expose_provenance();
        self.kept.push(words);
        start.next_multiple_of(align.max(8)) as u64
    }
}
