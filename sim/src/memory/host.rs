//! Memory of the host that the driver knows: pinned blocks and registered ranges.
//!
//! Pinned blocks are real memory of this process in every mode. They come from the ordinary heap,
//! not from the device window, and are not locked: only their size is counted.

use std::alloc::{self, Layout};
use std::collections::BTreeMap;

use super::Memory;
use crate::codes;
use crate::made::Made;
use crate::refusal::{Answer, Refusal, refuse};

/// `ACL_HOST_REG_MAPPED`.
const MAPPED: u32 = 0x2;
/// `ACL_HOST_REG_IOMEMORY`, the same number in both register calls.
const IO_MEMORY: u32 = 0x4;
/// `ACL_HOST_REG_READONLY`, the same number in both register calls.
const READ_ONLY: u32 = 0x8;
/// `ACL_HOST_REG_PINNED`.
const PINNED: u32 = 0x1000_0000;

/// Pinned and registered host memory.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    blocks: BTreeMap<u64, Block>,
    registered: BTreeMap<u64, Registered>,
}

/// A pinned block.
#[derive(Debug)]
struct Block {
    layout: Layout,
    /// The call that made it.
    made: Made,
}

#[derive(Debug)]
struct Registered {
    len: u64,
    /// The call that registered it.
    made: Made,
    /// Whether a device may use it.
    mapped: bool,
}

impl HostMemory {
    /// Whether the driver knows the memory at that address.
    pub(super) fn knows(&self, address: u64) -> bool {
        self.contains(address, 1)
    }

    /// Whether a range lies in one pinned block or one registered range.
    pub(super) fn contains(&self, start: u64, len: u64) -> bool {
        let range = self.registered.range(..=start).next_back();
        self.in_block(start, len)
            || range.is_some_and(|(&base, range)| lies_in((start, len), (base, range.len)))
    }

    /// Whether a range lies in one pinned block.
    fn in_block(&self, start: u64, len: u64) -> bool {
        let block = self.blocks.range(..=start).next_back();
        block.is_some_and(|(&base, block)| lies_in((start, len), (base, block.layout.size() as u64)))
    }

    /// One line for each block and registered range, with the call that made it.
    pub(super) fn left(&self, lines: &mut Vec<String>) {
        for (start, block) in &self.blocks {
            lines.push(format!(
                "pinned block {start:#x} of {} bytes, made by {}",
                block.layout.size(),
                block.made
            ));
        }
        for (start, range) in &self.registered {
            lines.push(format!("registered range {start:#x} of {} bytes, made by {}", range.len, range.made));
        }
    }

    fn overlaps(&self, start: u64, len: u64) -> bool {
        let before = self.registered.range(..start.saturating_add(len)).next_back();
        before.is_some_and(|(&base, range)| base.saturating_add(range.len) > start)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        for (&start, block) in &self.blocks {
            release(start, block.layout);
        }
    }
}

impl Memory {
    /// `aclrtMallocHost`: an address of this process.
    pub(crate) fn malloc_host(&mut self, size: u64) -> Answer<u64> {
        if size == 0 {
            return refuse(codes::INVALID_PARAM, "size 0");
        }
        let full = Refusal::new(codes::RT_MEMORY_ALLOCATION, "no host memory can be pinned");
        let rounded = size.checked_next_multiple_of(32).ok_or(full)?;
        let pool = self.host_pool();
        if rounded > self.pools[pool].free() {
            return Err(full);
        }
        let align = if rounded >= super::SMALL { super::SMALL } else { 64 };
        let layout =
            usize::try_from(rounded).ok().and_then(|size| Layout::from_size_align(size, align as usize).ok());
        let layout = layout.ok_or(full)?;
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc::alloc(layout) };
        if start.is_null() {
            return refuse(codes::HOST_LIMIT, "this machine has no memory for a pinned block");
        }
        let start = start.expose_provenance() as u64;
        self.host.blocks.insert(start, Block { layout, made: Made::now() });
        let pool = &mut self.pools[pool];
        pool.used += rounded;
        pool.peak = pool.peak.max(pool.used);
        Ok(start)
    }

    /// The length of a pinned block that starts there, or why it cannot be freed.
    pub(crate) fn host_len(&self, start: u64) -> Answer<u64> {
        if start == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        let block = self.host.blocks.get(&start).map(|block| block.layout.size() as u64);
        block.ok_or(Refusal::new(codes::RT_PARAM_INVALID, "the address is not the start of a pinned block"))
    }

    /// `aclrtFreeHost`.
    pub(crate) fn free_host(&mut self, start: u64) -> Answer<()> {
        let len = self.host_len(start)?;
        if let Some(block) = self.host.blocks.remove(&start) {
            // What is registered of it would be memory that is gone.
            self.host.registered.retain(|&range, _| range < start || range - start >= len);
            release(start, block.layout);
        }
        let pool = self.host_pool();
        self.pools[pool].used -= len;
        Ok(())
    }

    /// What is registered of the pinned block that starts there: the first range with the call that
    /// registered it.
    pub(crate) fn registered_in(&self, start: u64) -> Option<String> {
        let len = self.host_len(start).ok()?;
        let (range, registered) = self.host.registered.range(start..start.saturating_add(len)).next()?;
        Some(format!("{range:#x} of {} bytes is registered by {}", registered.len, registered.made))
    }

    /// `aclrtHostRegister`: the address devices use, which is the host's.
    pub(crate) fn host_register(&mut self, start: u64, len: u64, kind: u32) -> Answer<u64> {
        if kind & READ_ONLY != 0 {
            return refuse(codes::RT_FEATURE_NOT_SUPPORT, "read-only registration");
        }
        self.check_registration(start, len)?;
        if self.host.overlaps(start, len) {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "a part of the range is registered");
        }
        self.host.registered.insert(start, Registered { len, made: Made::now(), mapped: true });
        Ok(start)
    }

    /// `aclrtHostRegisterV2`.
    pub(crate) fn host_register_v2(&mut self, start: u64, len: u64, flags: u32) -> Answer<()> {
        if flags & PINNED != 0
            && self
                .host
                .blocks
                .range(..=start)
                .next_back()
                .is_some_and(|(&base, block)| start - base < block.layout.size() as u64)
        {
            return refuse(codes::RT_PARAM_INVALID, "the memory is pinned already");
        }
        if flags & READ_ONLY != 0 {
            return refuse(codes::RT_FEATURE_NOT_SUPPORT, "read-only registration");
        }
        self.check_registration(start, len)?;
        if self.host.overlaps(start, len) {
            return refuse(codes::HOST_MEMORY_ALREADY_REGISTERED, "a part of the range is registered");
        }
        let mapped = flags & (MAPPED | IO_MEMORY) != 0;
        self.host.registered.insert(start, Registered { len, made: Made::now(), mapped });
        Ok(())
    }

    /// What the driver checks of a range to register.
    fn check_registration(&self, start: u64, len: u64) -> Answer<()> {
        if self.meets_device(start, len) {
            return refuse(codes::RT_PARAM_INVALID, "memory of a device cannot be registered");
        }
        if self.strict && !start.is_multiple_of(super::SMALL) {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "strict: the address must be a multiple of 4096");
        }
        Ok(())
    }

    /// The length of the registered range that starts there, or why it cannot be unregistered.
    pub(crate) fn registered_len(&self, start: u64) -> Answer<u64> {
        if start == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        let range = self.host.registered.get(&start).map(|range| range.len);
        let why = "the address is not the start of a registered range";
        range.ok_or(Refusal::new(codes::HOST_MEMORY_NOT_REGISTERED, why))
    }

    /// `aclrtHostUnregister`.
    pub(crate) fn host_unregister(&mut self, start: u64) -> Answer<()> {
        self.registered_len(start)?;
        self.host.registered.remove(&start);
        Ok(())
    }

    /// `aclrtHostGetDevicePointer`.
    pub(crate) fn host_device_pointer(&self, address: u64, flags: u32) -> Answer<u64> {
        if address == 0 || flags != 0 {
            return refuse(codes::INVALID_PARAM, "null address or flags");
        }
        let range = self.host.registered.range(..=address).next_back();
        let mapped = range.is_some_and(|(&base, range)| address - base < range.len && range.mapped);
        if mapped { Ok(address) } else { refuse(codes::RT_PARAM_INVALID, "not registered for devices") }
    }

    /// Whether the whole range is one pinned block's.
    pub(crate) fn is_pinned_block(&self, start: u64, len: u64) -> bool {
        self.host.in_block(start, len)
    }

    /// Whether the driver has pinned the whole range, so that copies need not stop the stream.
    pub(crate) fn is_pinned(&self, start: u64, len: u64) -> bool {
        self.host.contains(start, len.max(1))
    }
}

/// Whether a range lies in another; both as start and length.
fn lies_in((start, len): (u64, u64), (base, size): (u64, u64)) -> bool {
    start.checked_sub(base).is_some_and(|offset| offset < size && len <= size - offset)
}

/// The runtime's check of the kind in `aclrtHostRegister`.
pub(crate) fn check_register_kind(kind: u32) -> Answer<()> {
    if kind & !(IO_MEMORY | READ_ONLY) != 0 {
        return refuse(codes::RT_FEATURE_NOT_SUPPORT, "an unknown kind of registration");
    }
    Ok(())
}

/// The runtime's check of the flags of `aclrtHostRegisterV2`.
pub(crate) fn check_register_flags(flags: u32) -> Answer<()> {
    if flags == 0 || flags & !(MAPPED | IO_MEMORY | READ_ONLY | PINNED) != 0 {
        return refuse(codes::RT_PARAM_INVALID, "no flag or an unknown one");
    }
    Ok(())
}

/// Frees a pinned block.
fn release(start: u64, layout: Layout) {
    let start = std::ptr::with_exposed_provenance_mut::<u8>(start as usize);
    // SAFETY: `start` came from `alloc` with this layout and was just taken out of the table, so it
    // is freed once. That the program uses it no longer is what freeing means.
    unsafe { alloc::dealloc(start, layout) };
}
