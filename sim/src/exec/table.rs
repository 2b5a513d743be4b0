//! Handles: numbers given out for objects, found again without hashing, stale ones recognised.
//!
//! A handle holds a kind, a generation and an index: `kind(8) generation(28) index(20) 0000`. The
//! low four bits are zero, so that a handle looks like the aligned pointer it stands for. A
//! destroyed object's generation is left behind, so its handle stays stale; with
//! [`Table::set_reuse`] the generation is kept and the next object gets the same handle, as a
//! driver's heap may do.

const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 28;
const LOW_BITS: u32 = 4;

/// A slab of objects with generational handles.
pub(super) struct Table<T> {
    kind: u64,
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    reuse: bool,
}

struct Entry<T> {
    generation: u64,
    /// Whether the handle is valid; a retired object stays here, without one.
    live: bool,
    value: Option<T>,
}

impl<T> Table<T> {
    /// An empty table whose handles carry `kind`, which is not zero.
    pub(super) fn new(kind: u8) -> Self {
        Self { kind: u64::from(kind), entries: Vec::new(), free: Vec::new(), reuse: false }
    }

    /// Whether a destroyed object's handle is given to the next object.
    pub(super) fn set_reuse(&mut self, reuse: bool) {
        self.reuse = reuse;
    }

    /// Puts an object in and returns its handle; `None` when a million are alive.
    pub(super) fn insert(&mut self, value: T) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.entries.len()).ok().filter(|i| i >> INDEX_BITS == 0)?;
                self.entries.push(Entry { generation: 0, live: false, value: None });
                index
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.live = true;
        entry.value = Some(value);
        Some(handle_of(self.kind, entry.generation, index))
    }

    /// The index of a live object.
    pub(super) fn index(&self, handle: u64) -> Option<u32> {
        let index = (handle >> LOW_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let entry = self.entries.get(index as usize)?;
        (entry.live && handle == handle_of(self.kind, entry.generation, index)).then_some(index)
    }

    /// The object at an index, live or retired.
    pub(super) fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    /// The object at an index, live or retired.
    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// The live object of a handle.
    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.at(self.index(handle)?)
    }

    /// Makes the handle stale; the object stays at its index until [`free`](Self::free).
    pub(super) fn retire(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize)
            && entry.live
        {
            entry.live = false;
            if !self.reuse {
                entry.generation = (entry.generation + 1) & ((1 << GENERATION_BITS) - 1);
            }
        }
    }

    /// Takes a retired object out, so that its index can be used again.
    pub(super) fn free(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize).filter(|entry| !entry.live)?;
        let value = entry.value.take()?;
        self.free.push(index);
        Some(value)
    }

    /// The handles of all live objects, with the objects.
    pub(super) fn live(&self) -> impl Iterator<Item = (u64, &T)> {
        (0u32..).zip(&self.entries).filter(|(_, entry)| entry.live).filter_map(|(index, entry)| {
            Some((handle_of(self.kind, entry.generation, index), entry.value.as_ref()?))
        })
    }
}

fn handle_of(kind: u64, generation: u64, index: u32) -> u64 {
    let body = (kind << GENERATION_BITS | generation) << INDEX_BITS | u64::from(index);
    body << LOW_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_handles_are_recognised() {
        let mut table = Table::new(0x51);
        let a = table.insert('a').expect("room");
        let index = table.index(a).expect("live");
        table.retire(index);
        assert_eq!(table.get(a), None);
        assert_eq!(table.at(index), Some(&'a'), "a retired object stays until freed");
        assert_eq!(table.free(index), Some('a'));
        let b = table.insert('b').expect("room");
        assert_ne!(a, b);
        assert_eq!((table.get(a), table.get(b)), (None, Some(&'b')));
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(u64::MAX), None);
        assert_eq!(table.free(table.index(b).expect("live")), None, "a live object cannot be freed");
    }

    #[test]
    fn with_reuse_the_next_object_gets_the_same_handle() {
        let mut table = Table::new(0x51);
        table.set_reuse(true);
        let a = table.insert('a').expect("room");
        let index = table.index(a).expect("live");
        table.retire(index);
        assert_eq!(table.get(a), None, "a destroyed object is not found before the handle is reused");
        table.free(index);
        assert_eq!(table.insert('b'), Some(a));
        assert_eq!(table.live().collect::<Vec<_>>(), vec![(a, &'b')]);
    }
}
