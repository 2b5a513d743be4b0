//! Free neighbours of different homes, which become one once both are quiescent.
//!
//! ```text
//! blocks   | free, home 1 | free, home 2 | live | free, home 1 | free, home 3 | free, home 1 |
//! listed                    ^ apart                              ^ apart        ^ apart
//! ```
//!
//! A block is listed for what it could not be merged with: the neighbour before it. It is listed once however often
//! that is tried, and leaves the list when the two are one or the neighbour is not free any more; whoever frees that
//! neighbour tries again. Whenever epochs have ended each listed pair is looked at, and only what can be merged is
//! touched.

use super::Core;
use super::block::{BlockId, State};
use super::pool::DEFAULT;

/// Blocks that are apart from a free neighbour. A listed block has [`apart`](super::block::Block::apart) set; what was
/// merged or cut since stays in the list without.
#[derive(Debug)]
pub(crate) struct Apart {
    list: Vec<BlockId>,
    /// The list before, empty, whose memory serves the next one.
    spare: Vec<BlockId>,
}

impl Core {
    /// Whether two free neighbours may become one: they have one home, or both are quiescent, so that none
    /// closes the other off. Sets the home and epoch of both to the whole's.
    pub(super) fn unify(&mut self, first: BlockId, second: BlockId) -> bool {
        let (a, b) = (&self.blocks[first], &self.blocks[second]);
        if a.class.pool() != DEFAULT && self.pools.get(a.class.pool()).keeps_apart() {
            return false;
        }
        let (home, epoch) = (a.home, a.epoch.max(b.epoch));
        if home != b.home {
            if !(self.is_quiescent(first) && self.is_quiescent(second)) {
                self.list_apart(second);
                return false;
            }
            self.rehome(second, home);
            self.blocks[first].epoch = 0;
            self.blocks[second].epoch = 0;
            return true;
        }
        self.blocks[first].epoch = epoch;
        self.blocks[second].epoch = epoch;
        true
    }

    /// Merges free neighbours of different homes where both have become quiescent.
    pub(crate) fn rejoin(&mut self) {
        if self.apart.list.is_empty() {
            return;
        }
        // What is merged may be apart from its next neighbour, and is then listed anew.
        let empty = core::mem::take(&mut self.apart.spare);
        let mut before = core::mem::replace(&mut self.apart.list, empty);
        for id in before.drain(..) {
            if self.stays_apart(id) {
                self.apart.list.push(id);
            }
        }
        self.apart.spare = before;
    }

    /// Looks at an entry of the list again: merges the pair if that is possible now. False when the entry has no
    /// more to say.
    fn stays_apart(&mut self, id: BlockId) -> bool {
        let Some(block) = self.blocks.get_mut(id).filter(|block| block.apart) else { return false };
        let (prev, free) = (block.prev, block.state == State::Free && block.indexed);
        let before = self.blocks.get(prev);
        if !(free && before.is_some_and(|before| before.state == State::Free && before.indexed)) {
            self.blocks[id].apart = false;
            return false;
        }
        if !(self.is_quiescent(prev) && self.is_quiescent(id)) {
            return true;
        }
        self.blocks[id].apart = false;
        self.withdraw(id);
        // What is merged late counts as freed now.
        self.make_free(id);
        false
    }

    /// Lists a block for the free neighbour before it.
    fn list_apart(&mut self, id: BlockId) {
        if core::mem::replace(&mut self.blocks[id].apart, true) {
            return;
        }
        // Entries of blocks that were merged or cut since are dropped before they outnumber the blocks.
        const FEW: usize = 64;
        if self.apart.list.len() > FEW + 2 * self.blocks.len() {
            let blocks = &mut self.blocks;
            let is_listed =
                |id: &BlockId| blocks.get_mut(*id).is_some_and(|block| core::mem::take(&mut block.apart));
            self.apart.list.retain(is_listed);
            self.apart.list.iter().for_each(|&id| self.blocks[id].apart = true);
        }
        self.apart.list.push(id);
    }
}

impl Apart {
    /// An empty list with room for some.
    pub(super) fn new() -> Self {
        Self { list: Vec::with_capacity(32), spare: Vec::with_capacity(32) }
    }

    /// Forgets all entries. The blocks in it are gone.
    pub(super) fn clear(&mut self) {
        self.list.clear();
    }
}
