//! Blocks whose chunks other processes may use.
//!
//! An export *holds* its block: while it is held the block stays live, so that the chunks behind it are neither
//! moved nor unmapped nor used for anything else. A held block that is freed is freed once the last hold ends.
//!
//! A chunk that was exported keeps its name for other processes for as long as it exists, because some drivers
//! name a chunk only once.

use hashbrown::HashMap;

use super::Core;
use super::block::BlockId;
use super::plan::GiveBack;
use crate::driver::{PhysicalHandle, ShareForm, ShareName};

/// All forms of names.
const FORMS: [ShareForm; 3] = [ShareForm::V1, ShareForm::V2, ShareForm::Fabric];

/// How a block is exported.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    /// Exports that have not ended.
    count: u32,
    /// Whether its owner has freed it meanwhile.
    freed: bool,
}

/// A chunk's name for other processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    /// The name.
    pub(crate) name: ShareName,
    /// Whether any process can import it.
    pub(crate) for_all: bool,
}

/// Names that were taken from chunks.
pub(crate) type Names = Vec<(PhysicalHandle, Named)>;

/// What is exported of a device.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    blocks: HashMap<BlockId, Hold>,
    names: HashMap<(PhysicalHandle, ShareForm), Named>,
    /// Chunks that a thread asks the driver to name.
    naming: Vec<PhysicalHandle>,
}

impl Core {
    /// Whether an export holds the block.
    pub(crate) fn is_exported(&self, id: BlockId) -> bool {
        !self.exports.blocks.is_empty() && self.exports.blocks.contains_key(&id)
    }

    /// Whether the block was freed by its owner and lives for its exports only.
    pub(crate) fn outlives_its_owner(&self, id: BlockId) -> bool {
        self.exports.blocks.get(&id).is_some_and(|hold| hold.freed)
    }

    /// The blocks that are held.
    pub(crate) fn exported_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.exports.blocks.keys().copied()
    }

    /// Why a fixed block cannot be exported, with what would have made it another one.
    pub(crate) fn is_fixed_because(&self, id: BlockId) -> &'static str {
        let rules = &self.pools.get(self.class_of(id).pool()).rules;
        if rules.uncached {
            "it is a fixed block, which has no chunks; allocate it while caching is switched on"
        } else if rules.source.is_some() {
            "its memory comes from the source of its pool, which has no chunks; allocate it from another pool"
        } else if !self.reservable {
            "it is a fixed block, which has no chunks: address ranges cannot be reserved here"
        } else if rules.expandable == Some(false) {
            "it is a fixed block, which has no chunks; make its pool with expandable:None or Some(true)"
        } else if self.config.expandable_segments {
            "it is a fixed block, which has no chunks; segments grow now, so allocate it anew after empty_cache"
        } else {
            "it is a fixed block, which has no chunks; set expandable_segments:True"
        }
    }

    /// Holds a live block for one more export.
    pub(crate) fn hold(&mut self, id: BlockId) {
        self.exports.blocks.entry(id).or_default().count += 1;
    }

    /// Ends a hold; true when the block is to be freed now.
    pub(crate) fn unhold(&mut self, id: BlockId) -> bool {
        let Some(hold) = self.exports.blocks.get_mut(&id) else { return false };
        hold.count -= 1;
        let Hold { count, freed } = *hold;
        if count == 0 {
            self.exports.blocks.remove(&id);
        }
        count == 0 && freed
    }

    /// Notes that the owner of a block frees it; true when its exports keep it for now.
    #[inline]
    pub(crate) fn outlast(&mut self, id: BlockId) -> bool {
        if self.exports.blocks.is_empty() {
            return false;
        }
        self.exports.blocks.get_mut(&id).is_some_and(|hold| {
            hold.freed = true;
            true
        })
    }

    /// The chunks behind a block of a reserved segment, in address order: address, handle and granules of each.
    pub(crate) fn chunks_behind(&self, id: BlockId) -> Vec<(u64, PhysicalHandle, u32)> {
        let block = &self.blocks[id];
        let segment = &self.segments[block.segment as usize];
        let shift = self.limits.shift;
        let mut chunks = Vec::new();
        let mut at = segment.first_of_chunk(block.addr, shift);
        while at < block.end() {
            let span = segment.wide.get(&at).copied().unwrap_or(1);
            chunks.extend(segment.chunk(at, shift).map(|handle| (at, handle, span)));
            at += u64::from(span) << shift;
        }
        chunks
    }

    /// The name of a chunk, if it has one of that form.
    pub(crate) fn name_of(&self, handle: PhysicalHandle, form: ShareForm) -> Option<Named> {
        self.exports.names.get(&(handle, form)).copied()
    }

    /// Another form of which a chunk has a name.
    pub(crate) fn other_form_of(&self, handle: PhysicalHandle, form: ShareForm) -> Option<ShareForm> {
        FORMS.into_iter().find(|&other| other != form && self.name_of(handle, other).is_some())
    }

    /// Whether a chunk has a name of any form that is not for all, or not for named ones: to the driver these are one, with
    /// one list of importers.
    pub(crate) fn is_named_for_others(&self, handle: PhysicalHandle, for_all: bool) -> bool {
        FORMS.into_iter().any(|form| self.name_of(handle, form).is_some_and(|named| named.for_all != for_all))
    }

    /// Begins to name a chunk, unless another thread does.
    pub(crate) fn begin_naming(&mut self, handle: PhysicalHandle) -> bool {
        let free = !self.exports.naming.contains(&handle);
        if free {
            self.exports.naming.push(handle);
        }
        free
    }

    /// Ends that.
    pub(crate) fn end_naming(&mut self, handle: PhysicalHandle) {
        self.exports.naming.retain(|&named| named != handle);
    }

    /// Notes the name of a chunk.
    pub(crate) fn set_name(&mut self, handle: PhysicalHandle, named: Named) {
        self.exports.names.insert((handle, named.name.form), named);
    }

    /// Takes the names of chunks that are about to be freed: others may get the same handles. For those that stay after
    /// all they are [given back](Self::give_names_back).
    pub(crate) fn take_names(&mut self, handles: impl IntoIterator<Item = PhysicalHandle>) -> Names {
        if self.exports.names.is_empty() {
            return Names::new();
        }
        let keys = handles.into_iter().flat_map(|handle| FORMS.map(|form| (handle, form)));
        keys.filter_map(|key| self.exports.names.remove(&key).map(|named| (key.0, named))).collect()
    }

    /// The same for all that is to be given back.
    pub(crate) fn take_names_in(&mut self, back: &mut GiveBack) {
        let moved = back.runs.iter().flat_map(|run| run.handles.iter().copied());
        back.names = self.take_names(back.handles.iter().map(|spare| spare.handle).chain(moved));
    }

    /// Gives chunks that the driver did not take back their names again.
    pub(crate) fn give_names_back(&mut self, names: Names, stays: impl Fn(PhysicalHandle) -> bool) {
        for (handle, named) in names.into_iter().filter(|&(handle, _)| stays(handle)) {
            self.set_name(handle, named);
        }
    }
}
