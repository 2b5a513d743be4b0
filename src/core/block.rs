//! Blocks: the pieces of segments, in one slab, linked in address order.
//!
//! ```text
//! segment  |<- live ->|<- free ->|<----- hole ----->|<- live ->|<- hole ... end of reservation
//! chunks   |  2 MiB   |  2 MiB   |  (not mapped)    |  2 MiB   |
//! ```
//!
//! Blocks of a segment tile it from the first to the last byte. A hole begins and ends at granule
//! borders and has nothing mapped; every other block is mapped throughout, except a busy one.

use slab::Slab;

use super::segment::Class;
use super::steps;

/// Index of a block in the slab.
pub(crate) type BlockId = u32;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// What a block is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Handed out, or kept in the front cache (which only the address map tells apart).
    Live,
    /// Freed, and other streams may still use it.
    Waiting,
    /// Free and mapped.
    Free,
    /// Free address space without physical memory.
    Hole,
    /// Taken by a plan whose driver calls are running; nobody else may touch it.
    Busy,
}

/// One piece of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// First byte.
    pub(crate) addr: u64,
    /// Bytes; a multiple of 512.
    pub(crate) len: u64,
    /// Bytes the caller asked for; zero unless live or waiting.
    pub(crate) requested: u64,
    /// The segment it belongs to; never changes.
    pub(crate) segment: u32,
    /// The class of that segment.
    pub(crate) class: Class,
    /// Neighbours in address order.
    pub(crate) prev: BlockId,
    /// See `prev`.
    pub(crate) next: BlockId,
    /// Links of the free index's list; used while `Free`.
    pub(crate) bin_prev: BlockId,
    /// See `bin_prev`.
    pub(crate) bin_next: BlockId,
    /// Links of the idle list (`Free`, with a whole chunk inside) or of the hole list (`Hole`).
    pub(crate) list_prev: BlockId,
    /// See `list_prev`.
    pub(crate) list_next: BlockId,
    /// The stream that may use the block without waiting: the one it was allocated for.
    pub(crate) home: u32,
    /// The last epoch of `home` in which a byte of the block was freed.
    pub(crate) epoch: u32,
    /// When the block became free, by the device's count of frees; a piece cut off counts as freed long ago. Of a whole
    /// classic segment, by the count of all frees, those of the front too.
    pub(crate) freed: u64,
    /// Streams other than `home` that must still pass the free; used while `Waiting`.
    pub(crate) uses: u32,
    /// See [`State`].
    pub(crate) state: State,
    /// Whether the block is in the idle list.
    pub(crate) listed: bool,
    /// Whether the block is in the free index.
    pub(crate) indexed: bool,
    /// Whether a pool gave this live block to a request for the default pool.
    pub(crate) lent: bool,
    /// Whether this live block was claimed by its address, so that nobody gets its memory.
    pub(crate) claimed: bool,
    /// Whether the block is listed because it is apart from a free neighbour of another home.
    pub(crate) apart: bool,
}

impl Block {
    /// One past the last byte.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.len
    }
}

/// All blocks of a device.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    slab: Slab<Block>,
}

impl core::ops::Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        steps::step();
        &self.slab[id as usize]
    }
}

impl core::ops::IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slab[id as usize]
    }
}

impl Blocks {
    /// The block, if the index is in use.
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        steps::step();
        self.slab.get(id as usize)
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.slab.get_mut(id as usize)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// A new block without neighbours.
    pub(crate) fn add(&mut self, segment: u32, class: Class, addr: u64, len: u64, state: State) -> BlockId {
        let block = Block {
            addr,
            len,
            requested: 0,
            segment,
            class,
            prev: NONE,
            next: NONE,
            bin_prev: NONE,
            bin_next: NONE,
            list_prev: NONE,
            list_next: NONE,
            home: 0,
            epoch: 0,
            freed: 0,
            uses: 0,
            state,
            listed: false,
            indexed: false,
            lent: false,
            claimed: false,
            apart: false,
        };
        u32::try_from(self.slab.insert(block)).expect("fewer than 2^32 blocks")
    }

    /// Cuts `id` after `len` bytes; the new second piece has the same state, home and epoch and is
    /// in no list.
    pub(crate) fn split(&mut self, id: BlockId, len: u64) -> BlockId {
        let (addr, rest, segment, class, state) = {
            let block = &self[id];
            debug_assert!(len > 0 && len < block.len);
            (block.addr + len, block.len - len, block.segment, block.class, block.state)
        };
        let tail = self.add(segment, class, addr, rest, state);
        let next = self[id].next;
        let (home, epoch) = (self[id].home, self[id].epoch);
        let piece = &mut self[tail];
        piece.prev = id;
        piece.next = next;
        piece.home = home;
        piece.epoch = epoch;
        if next != NONE {
            self[next].prev = tail;
        }
        let head = &mut self[id];
        head.next = tail;
        head.len = len;
        tail
    }

    /// Joins `second` to its left neighbour `first`; `second` ceases to exist and must be in no list.
    pub(crate) fn join(&mut self, first: BlockId, second: BlockId) {
        debug_assert_eq!(self[first].next, second);
        let (len, next) = (self[second].len, self[second].next);
        self[first].len += len;
        self[first].next = next;
        if next != NONE {
            self[next].prev = first;
        }
        self.slab.remove(second as usize);
    }

    /// Removes the only block of a segment.
    pub(crate) fn remove(&mut self, id: BlockId) -> Block {
        self.slab.remove(id as usize)
    }

    /// How many blocks there are.
    pub(crate) fn count(&self) -> usize {
        self.slab.len()
    }

    /// All blocks, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.slab.iter().inspect(|_| steps::step()).map(|(id, block)| (id as u32, block))
    }

    /// A block and all behind it in its segment, in address order; none from [`NONE`] on.
    pub(crate) fn from(&self, first: BlockId) -> impl Iterator<Item = BlockId> {
        let there = |id: BlockId| (id != NONE).then_some(id);
        core::iter::successors(there(first), move |&id| there(self[id].next))
    }
}

/// A doubly linked list through `list_prev` and `list_next`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    /// First block: for the idle list the one idle for longest.
    pub(crate) head: BlockId,
    /// Last block.
    pub(crate) tail: BlockId,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl List {
    /// Appends a block that is in no list.
    pub(crate) fn push(&mut self, blocks: &mut Blocks, id: BlockId) {
        let tail = self.tail;
        let block = &mut blocks[id];
        debug_assert!(!block.listed);
        block.listed = true;
        block.list_prev = tail;
        block.list_next = NONE;
        if tail == NONE {
            self.head = id;
        } else {
            blocks[tail].list_next = id;
        }
        self.tail = id;
    }

    /// Takes a block out, wherever it is.
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: BlockId) {
        let block = &mut blocks[id];
        debug_assert!(block.listed);
        block.listed = false;
        let (prev, next) = (block.list_prev, block.list_next);
        if prev == NONE {
            self.head = next;
        } else {
            blocks[prev].list_next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            blocks[next].list_prev = prev;
        }
    }

    /// Puts `new`, which is in no list, behind `old`.
    pub(crate) fn insert_after(&mut self, blocks: &mut Blocks, old: BlockId, new: BlockId) {
        let next = blocks[old].list_next;
        blocks[old].list_next = new;
        let block = &mut blocks[new];
        debug_assert!(!block.listed);
        block.listed = true;
        block.list_prev = old;
        block.list_next = next;
        if next == NONE {
            self.tail = new;
        } else {
            blocks[next].list_prev = new;
        }
    }

    /// Puts `new`, which is in no list, into the place of `old`.
    pub(crate) fn replace(&mut self, blocks: &mut Blocks, old: BlockId, new: BlockId) {
        let (prev, next) = (blocks[old].list_prev, blocks[old].list_next);
        blocks[old].listed = false;
        let block = &mut blocks[new];
        debug_assert!(!block.listed);
        block.listed = true;
        block.list_prev = prev;
        block.list_next = next;
        if prev == NONE {
            self.head = new;
        } else {
            blocks[prev].list_next = new;
        }
        if next == NONE {
            self.tail = new;
        } else {
            blocks[next].list_prev = new;
        }
    }
}
