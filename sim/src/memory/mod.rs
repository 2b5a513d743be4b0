//! The memory of the simulated devices: reservations, chunks, mappings, accounting and bytes.
//!
//! ```text
//!   window of addresses        |---- reservation ----|        |-- reservation --|
//!   mappings                     [m1 ][m2 ]    [m3  ]              [m4 ]
//!                                  |    \        |                  /
//!   chunks (reference counted)    c1     \------c2 <---------------/   one chunk, three addresses
//!   devices                     capacity, used, peak, taken by other processes
//! ```
//!
//! Words: a *reservation* is a range of addresses; a *chunk* is one physical handle; a *mapping* puts
//! one whole chunk (or its beginning) at one address. Memory of `aclrtMalloc` is a chunk with one
//! mapping outside all reservations.
//!
//! Invariants: mappings do not overlap; a mapping of a handle lies in one reservation; the bytes used
//! of a device are the sum of its chunks, rounded to their pages; a chunk lives as long as somebody
//! holds it or a mapping shows it.
//!
//! Devices are named by the driver's numbers here. The module knows nothing of streams, threads and
//! the current device. It is not locked: its owner puts one lock around it.

mod backing;
mod gone;
mod heap;
mod host;
mod left;
#[cfg(target_os = "linux")]
mod mapped;
#[cfg(target_os = "linux")]
mod share;
#[cfg(target_os = "linux")]
mod shared;
mod space;
mod sparse;
mod transfer;
mod vmm;
mod vmm_check;

use std::collections::{BTreeMap, HashMap};

pub(crate) use backing::Backing;
pub(crate) use host::{check_register_flags, check_register_kind};
#[cfg(target_os = "linux")]
pub(crate) use shared::{COUNTERS, MOST_PIDS, ShareId, SharedCounters};
pub(crate) use transfer::Span;
pub(crate) use vmm_check::Caller;

use crate::codes::{self, attr, location};
use crate::config::{SimConfig, Soc};
use crate::made::Made;
use crate::refusal::{Answer, refuse};
use backing::Place;
use space::Space;

/// The page and map granule of the usual memory.
pub(crate) const HUGE: u64 = 2 << 20;
/// The page of the 1G attributes.
pub(crate) const HUGE_1G: u64 = 1 << 30;
/// The small page of `aclrtMalloc`.
pub(crate) const SMALL: u64 = 4096;

/// Where memory is: `aclrtMemLocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Number of the device; 0 for the host.
    pub id: u32,
    /// A value of [`codes::location`].
    pub kind: u32,
}

impl Location {
    /// Memory of that device.
    #[must_use]
    pub const fn device(id: u32) -> Self {
        Self { id, kind: location::DEVICE }
    }

    /// Memory of the host.
    #[must_use]
    pub const fn host() -> Self {
        Self { id: 0, kind: location::HOST }
    }
}

/// What kind of physical memory is wanted: `aclrtPhysicalMemProp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalProp {
    /// Must be 0 (no shareable handle).
    pub handle_type: u32,
    /// Must be 0 (pinned).
    pub allocation_type: u32,
    /// A value of [`codes::attr`].
    pub attr: u32,
    /// Where it is to be.
    pub location: Location,
    /// Must be 0.
    pub reserve: u64,
}

impl PhysicalProp {
    /// The usual memory of a device, in pages of 2 MiB.
    #[must_use]
    pub const fn device(id: u32) -> Self {
        let location = Location::device(id);
        Self { handle_type: 0, allocation_type: 0, attr: attr::HBM_HUGE, location, reserve: 0 }
    }

    /// The same with another attribute.
    #[must_use]
    pub const fn with_attr(self, attr: u32) -> Self {
        Self { attr, ..self }
    }
}

/// One grant of `aclrtMemSetAccess`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessDescriptor {
    /// Only 3 (read and write) can be granted.
    pub flags: u64,
    /// Who gets it; a device by the driver's number.
    pub location: Location,
}

/// The answer of `aclrtPointerGetAttributes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerAttributes {
    /// Where the memory is.
    pub location: Location,
    /// Bytes of a page.
    pub page_size: u32,
}

/// Physical memory of one device, or of the host (the last one).
#[derive(Debug)]
struct Pool {
    capacity: u64,
    used: u64,
    peak: u64,
    /// Bytes other processes hold.
    foreign: u64,
}

impl Pool {
    fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used).saturating_sub(self.foreign)
    }
}

/// One piece of physical memory.
#[derive(Debug)]
struct Chunk {
    /// Index of its pool.
    pool: usize,
    /// Bytes that can be mapped.
    size: u64,
    /// Bytes it takes of the pool.
    charged: u64,
    page: u64,
    prop: PhysicalProp,
    /// References of the owner and of retains.
    held: u64,
    /// References of mappings.
    maps: u64,
    /// Its device was reset: the memory is gone, the handle is not.
    lost: bool,
    place: Place,
    /// It came from another process.
    imported: bool,
    /// Its name for other processes, if it is shared.
    #[cfg(target_os = "linux")]
    share: Option<ShareId>,
    /// The call that made it.
    made: Made,
}

/// A range of addresses.
#[derive(Debug)]
struct Reservation {
    len: u64,
    /// Smaller than a huge page, so that no handle can be mapped in it.
    small: bool,
    /// The pool of the first mapping, and whether it showed an imported chunk.
    owner: Option<(usize, bool)>,
    mappings: u64,
    /// A reset removed mappings under it: it can never be released.
    leaked: bool,
    /// What a pointer query answers since the first mapping.
    seen: Option<PointerAttributes>,
    /// The call that made it.
    made: Made,
}

/// What made a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// `aclrtMapMem`.
    Handle,
    /// `aclrtMalloc`.
    Malloc,
    /// A pool of `aclrtMemPoolCreate`.
    Pool,
    /// `aclrtIpcMemImportByKey`.
    Import,
}

/// One range of addresses with memory behind it.
#[derive(Debug)]
struct Mapping {
    len: u64,
    chunk: u64,
    origin: Origin,
    /// Who else than the owner may use it.
    grants: Vec<Location>,
    /// The call that made it.
    made: Made,
}

/// The memory of all devices of one simulator.
#[derive(Debug)]
pub(crate) struct Memory {
    soc: Soc,
    strict: bool,
    max_reservation: Option<u64>,
    va_budget: Option<u64>,
    /// Bytes reserved now.
    reserved: u64,
    pools: Vec<Pool>,
    /// Addresses of reservations.
    window: Space,
    /// Addresses of `aclrtMalloc`.
    heap: Space,
    reservations: BTreeMap<u64, Reservation>,
    mappings: BTreeMap<u64, Mapping>,
    chunks: HashMap<u64, Chunk>,
    next_chunk: u64,
    /// Handles of chunks this process exported.
    #[cfg(target_os = "linux")]
    exports: HashMap<ShareId, u64>,
    /// Handles of chunks it imported.
    #[cfg(target_os = "linux")]
    imports: HashMap<ShareId, u64>,
    /// Addresses of blocks it imported, and how often.
    #[cfg(target_os = "linux")]
    imported_blocks: HashMap<ShareId, (u64, u64)>,
    /// Ranges a copy engine holds: they cannot be unmapped.
    held: Vec<(u64, u64)>,
    /// Ranges that bytes are being moved from or to.
    uses: transfer::Uses,
    /// What was mapped until lately.
    gone: gone::Gone,
    host: host::HostMemory,
    backing: Backing,
}

/// The checks of the ACL layer on the size of a block, which come before all others.
pub(crate) fn check_block_size(size: u64) -> Answer<()> {
    if size == 0 || size > u64::MAX - 64 {
        return refuse(codes::INVALID_PARAM, "size 0, or it overflows when it is rounded");
    }
    Ok(())
}

/// The checks of the ACL layer on a reservation.
pub(crate) fn check_reservation(size: u64, flags: u64) -> Answer<()> {
    if size == 0 || flags > 1 {
        return refuse(codes::INVALID_PARAM, "size must not be 0, flags must be 0 or 1");
    }
    Ok(())
}

/// The checks of the ACL layer on a range to register.
pub(crate) fn check_registration(start: u64, len: u64) -> Answer<()> {
    if start == 0 || len == 0 {
        return refuse(codes::INVALID_PARAM, "null address or size 0");
    }
    Ok(())
}

impl Memory {
    pub(crate) fn new(config: &SimConfig, backing: Backing) -> Self {
        let pool = |capacity| Pool { capacity, used: 0, peak: 0, foreign: 0 };
        let mut pools: Vec<Pool> = (0..config.devices).map(|_| pool(config.capacity)).collect();
        pools.push(pool(config.host_capacity));
        let ((base, len), (heap, heap_len)) = backing.windows();
        Self {
            soc: config.soc,
            strict: config.strict,
            max_reservation: config.max_reservation,
            va_budget: config.va_budget,
            reserved: 0,
            pools,
            window: Space::new(base, len),
            heap: Space::new(heap, heap_len),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            chunks: HashMap::new(),
            next_chunk: 0xaaaa_0000_0000,
            #[cfg(target_os = "linux")]
            exports: HashMap::new(),
            #[cfg(target_os = "linux")]
            imports: HashMap::new(),
            #[cfg(target_os = "linux")]
            imported_blocks: HashMap::new(),
            held: Vec::new(),
            uses: transfer::Uses::default(),
            gone: gone::Gone::default(),
            host: host::HostMemory::default(),
            backing,
        }
    }

    /// Free and total bytes of a device, as `aclrtGetMemInfo` answers with that attribute.
    pub(crate) fn info(&self, device: u32, memory: u32) -> Answer<(u64, u64)> {
        if memory > attr::LAST {
            return refuse(codes::RT_INVALID_MEMORY_TYPE, "no such memory attribute");
        }
        let pool = &self.pools[device as usize];
        Ok((pool.free(), pool.capacity))
    }

    pub(crate) fn used(&self, device: u32) -> u64 {
        self.pools.get(device as usize).map_or(0, |pool| pool.used)
    }

    pub(crate) fn peak(&self, device: u32) -> u64 {
        self.pools.get(device as usize).map_or(0, |pool| pool.peak)
    }

    pub(crate) fn reset_peak(&mut self, device: u32) {
        if let Some(pool) = self.pools.get_mut(device as usize) {
            pool.peak = pool.used;
        }
    }

    pub(crate) fn set_foreign(&mut self, device: u32, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(device as usize) {
            pool.foreign = bytes;
        }
    }

    pub(crate) fn set_capacity(&mut self, device: u32, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(device as usize) {
            pool.capacity = bytes;
        }
    }

    pub(crate) fn set_strict(&mut self, strict: bool) {
        self.strict = strict;
    }

    pub(crate) fn set_va_budget(&mut self, bytes: Option<u64>) {
        self.va_budget = bytes;
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(crate) fn mapping_count(&self) -> usize {
        self.mappings.len()
    }

    /// Whether the address belongs to a device, allocated or not.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        [self.window.bounds(), self.heap.bounds()]
            .iter()
            .any(|&(base, len)| address.checked_sub(base).is_some_and(|offset| offset < len))
    }

    /// Whether any byte of a range belongs to a device, allocated or not.
    fn meets_device(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        [self.window.bounds(), self.heap.bounds()]
            .iter()
            .any(|&(base, size)| start < base.saturating_add(size) && base < end)
    }

    /// Whether the address lies in a reservation.
    pub(crate) fn is_reserved(&self, address: u64) -> bool {
        let found = self.reservations.range(..=address).next_back();
        found.is_some_and(|(&start, reservation)| address - start < reservation.len)
    }

    /// Whether there is memory at the address.
    pub(crate) fn is_backed_at(&self, address: u64) -> bool {
        self.mapping_of(address).is_some()
    }

    /// Holds a range as a running copy does: unmapping it is refused as busy.
    pub(crate) fn hold(&mut self, start: u64, len: u64) {
        self.held.push((start, len));
    }

    /// Ends a hold on exactly that range; false if there is none.
    pub(crate) fn unhold(&mut self, start: u64, len: u64) -> bool {
        let found = self.held.iter().position(|&range| range == (start, len));
        found.map(|index| self.held.swap_remove(index)).is_some()
    }

    /// What `aclrtResetDevice` does to memory when the last reference of the device is dropped.
    pub(crate) fn reset(&mut self, device: u32) {
        self.reset_pool(device as usize);
    }

    /// What `aclFinalize` does to memory: that of all devices and of the host is gone.
    pub(crate) fn reset_all(&mut self) {
        (0..self.pools.len()).for_each(|pool| self.reset_pool(pool));
    }

    fn reset_pool(&mut self, pool: usize) {
        let mut gone = Vec::new();
        for (&start, mapping) in &self.mappings {
            if self.chunks.get(&mapping.chunk).is_some_and(|chunk| chunk.pool == pool) {
                gone.push(start);
            }
        }
        for start in gone {
            if let Some(reservation) = self.reservation_of(start) {
                reservation.leaked = true;
            }
            self.remove_mapping(start);
        }
        for chunk in self.chunks.values_mut().filter(|chunk| chunk.pool == pool) {
            chunk.lost = true;
            self.pools[pool].used -= std::mem::take(&mut chunk.charged);
            self.backing.discard(&mut chunk.place, pool, chunk.size);
        }
    }

    /// The first address of the range that nothing is mapped at.
    pub(crate) fn first_hole(&self, start: u64, len: u64) -> Option<u64> {
        let Some(end) = start.checked_add(len) else { return Some(start) };
        let mut reached = self.mapping_of(start).map_or(start, |(base, mapping)| base + mapping.len);
        for (&base, mapping) in self.mappings.range(reached..) {
            if reached >= end || base != reached {
                break;
            }
            reached += mapping.len;
        }
        (reached < end).then_some(reached)
    }

    /// The first mapping in a range that work on a device cannot reach: where the range meets it, the
    /// device it is on, and whether a grant is lacking; else it is a link. `linked` says to which devices
    /// there is one. What is not mapped, and memory of the host, is left out.
    pub(crate) fn first_out_of_reach(
        &self,
        (start, len): (u64, u64),
        device: u32,
        linked: impl Fn(u32) -> bool,
    ) -> Option<(u64, u32, bool)> {
        let end = start.saturating_add(len);
        let first = self.mapping_of(start).map_or(start, |(base, _)| base);
        let here = Location::device(device);
        self.mappings.range(first..end).find_map(|(&base, mapping)| {
            let pool = self.chunks.get(&mapping.chunk)?.pool;
            let granted = mapping.origin == Origin::Handle;
            let reached = match pool {
                _ if pool == device as usize || pool == self.host_pool() => true,
                _ if granted => mapping.grants.contains(&here),
                _ => linked(pool as u32),
            };
            (!reached).then(|| (base.max(start), pool as u32, granted))
        })
    }

    /// What is known of an address that nothing is mapped at: what made the last mapping and what
    /// took it away.
    pub(crate) fn last_mapping(&self, address: u64) -> Option<(Made, Made)> {
        self.gone.at(address)
    }

    /// Host memory that can still be pinned, and all that can be.
    pub(crate) fn host_memory(&self) -> (u64, u64) {
        let pool = &self.pools[self.host_pool()];
        (pool.free(), pool.capacity)
    }

    /// The number of the pool of host memory.
    fn host_pool(&self) -> usize {
        self.pools.len() - 1
    }

    /// Makes a chunk that somebody holds; `charged` bytes are taken of the pool.
    fn create_chunk(&mut self, pool: usize, size: u64, page: u64, prop: PhysicalProp) -> Answer<u64> {
        let charged = size.checked_next_multiple_of(page);
        let Some(charged) = charged.filter(|&bytes| bytes <= self.pools[pool].free()) else {
            return refuse(codes::RT_MEMORY_ALLOCATION, "the device has no physical memory left");
        };
        let place = self.backing.create(pool, size)?;
        let used = &mut self.pools[pool];
        used.used += charged;
        used.peak = used.peak.max(used.used);
        let handle = self.next_chunk;
        self.next_chunk += 0x200;
        let chunk = Chunk {
            pool,
            size,
            charged,
            page,
            prop,
            held: 1,
            maps: 0,
            lost: false,
            place,
            imported: false,
            #[cfg(target_os = "linux")]
            share: None,
            made: Made::now(),
        };
        self.chunks.insert(handle, chunk);
        Ok(handle)
    }

    /// Destroys the chunk if nothing refers to it any more.
    fn collect(&mut self, handle: u64) {
        let Some(chunk) = self.chunks.get(&handle) else { return };
        if chunk.held + chunk.maps > 0 {
            return;
        }
        if let Some(mut chunk) = self.chunks.remove(&handle) {
            #[cfg(target_os = "linux")]
            self.forget_share(chunk.share);
            self.pools[chunk.pool].used -= chunk.charged;
            if !chunk.lost {
                self.backing.discard(&mut chunk.place, chunk.pool, chunk.size);
            }
        }
    }

    /// The reservation that contains the address.
    fn reservation_of(&mut self, address: u64) -> Option<&mut Reservation> {
        let (&start, reservation) = self.reservations.range_mut(..=address).next_back()?;
        (address - start < reservation.len).then_some(reservation)
    }

    /// The mapping that contains the address, with its start.
    fn mapping_of(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.len).then_some((start, mapping))
    }

    /// Takes a mapping away together with its reference.
    fn remove_mapping(&mut self, start: u64) {
        let Some(mapping) = self.mappings.remove(&start) else { return };
        self.gone.note(start, mapping.len, mapping.made);
        self.backing.unmap(start, mapping.len);
        if let Some(reservation) = self.reservation_of(start) {
            reservation.mappings -= 1;
        }
        if let Some(chunk) = self.chunks.get_mut(&mapping.chunk) {
            chunk.maps -= 1;
            if mapping.origin != Origin::Handle {
                let unit = chunk.page.max(backing::os_page());
                self.heap.give(start, mapping.len.next_multiple_of(unit));
            }
        }
        self.collect(mapping.chunk);
    }
}
