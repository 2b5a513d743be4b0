//! `aclrtMalloc` and its kin: memory with an address of its own that cannot move.

use super::{HUGE, HUGE_1G, Mapping, Memory, Origin, PhysicalProp, SMALL};
use crate::codes::{self, attr, policy};
use crate::made::Made;
use crate::refusal::{Answer, Refusal, refuse};

/// Up to this size `HUGE_FIRST` takes small pages.
const SMALL_LIMIT: u64 = 1 << 20;

impl Memory {
    /// `aclrtMalloc` (`padded`) and `aclrtMallocAlign32`: an address.
    pub(crate) fn malloc(&mut self, device: u32, size: u64, kind: u32, padded: bool) -> Answer<u64> {
        self.malloc_for(Origin::Malloc, device, size, kind, padded)
    }

    /// Memory for a pool, which `aclrtFree` does not take.
    pub(crate) fn malloc_pooled(&mut self, device: u32, size: u64) -> Answer<u64> {
        self.malloc_for(Origin::Pool, device, size, policy::HUGE_ONLY, false)
    }

    fn malloc_for(&mut self, origin: Origin, device: u32, size: u64, kind: u32, padded: bool) -> Answer<u64> {
        super::check_block_size(size)?;
        let kind = kind & 0xff;
        let giant = matches!(kind, policy::HUGE1G_ONLY | policy::HUGE1G_ONLY_P2P);
        let pad = if padded && !giant { self.soc.tail_pad() } else { 0 };
        let size = size.checked_next_multiple_of(32).and_then(|size| size.checked_add(pad));
        let Some(size) = size else {
            return refuse(codes::INVALID_PARAM, "the size overflows when it is rounded");
        };
        let page = match kind {
            policy::HUGE_ONLY | policy::HUGE_ONLY_P2P => HUGE,
            policy::NORMAL_ONLY | policy::NORMAL_ONLY_P2P => SMALL,
            _ if giant => HUGE_1G,
            _ if size <= SMALL_LIMIT => SMALL,
            _ => HUGE,
        };
        let may_fall_back = page == HUGE && !matches!(kind, policy::HUGE_ONLY | policy::HUGE_ONLY_P2P);
        match self.place_block(origin, device, size, page) {
            Err(refusal) if may_fall_back && refusal.code == codes::RT_MEMORY_ALLOCATION => {
                self.place_block(origin, device, size, SMALL)
            }
            answer => answer,
        }
    }

    fn place_block(&mut self, origin: Origin, device: u32, size: u64, page: u64) -> Answer<u64> {
        let pool = device as usize;
        let full = Refusal::new(codes::RT_MEMORY_ALLOCATION, "no memory for the block");
        let os_page = super::backing::os_page();
        let len = size.checked_next_multiple_of(page.max(os_page)).ok_or(full)?;
        let prop = PhysicalProp::device(device).with_attr(match page {
            HUGE_1G => attr::HBM_HUGE1G,
            HUGE => attr::HBM_HUGE,
            _ => attr::HBM_NORMAL,
        });
        let charged = size.checked_next_multiple_of(page).ok_or(full)?;
        let handle = self.create_chunk(pool, charged, page, prop)?;
        let start = self.heap.take(len, page.max(os_page)).ok_or(full);
        let placed = start.and_then(|start| {
            let chunk = self.chunks.get(&handle).ok_or(full)?;
            match self.backing.map(start, charged, &chunk.place, pool) {
                Ok(()) => Ok(start),
                Err(refusal) => {
                    self.heap.give(start, len);
                    Err(refusal)
                }
            }
        });
        if let Some(chunk) = self.chunks.get_mut(&handle) {
            // Only the mapping keeps the block: it has no handle that anybody could free.
            chunk.held = 0;
            chunk.maps = u64::from(placed.is_ok());
        }
        match placed {
            Ok(start) => {
                let mapping =
                    Mapping { len: charged, chunk: handle, origin, grants: Vec::new(), made: Made::now() };
                self.mappings.insert(start, mapping);
            }
            Err(_) => self.collect(handle),
        }
        placed
    }

    /// The length of the block that `aclrtFree` would give back, or why it would refuse.
    pub(crate) fn free_len(&self, start: u64) -> Answer<u64> {
        if start == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        let block = self.mappings.get(&start).filter(|mapping| mapping.origin == Origin::Malloc);
        block.map(|mapping| mapping.len).ok_or(Refusal::new(
            codes::RT_PARAM_INVALID,
            "the address is not the start of a live block of aclrtMalloc",
        ))
    }

    /// Gives memory of a pool back.
    pub(crate) fn free_pooled(&mut self, start: u64) {
        if self.mappings.get(&start).is_some_and(|mapping| mapping.origin == Origin::Pool) {
            self.remove_mapping(start);
        }
    }

    /// `aclrtFree` of a block of `aclrtMalloc`.
    pub(crate) fn free(&mut self, start: u64) -> Answer<()> {
        self.free_len(start)?;
        self.remove_mapping(start);
        Ok(())
    }
}
