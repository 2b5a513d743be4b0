//! The virtual-memory calls: reserve, chunk, map, access and the questions about them.

use super::{
    AccessDescriptor, Caller, Chunk, HUGE, HUGE_1G, Location, Mapping, Memory, Origin, PhysicalProp,
    PointerAttributes, Reservation,
};
use crate::codes::{self, location};
use crate::config::Soc;
use crate::made::Made;
use crate::refusal::{Answer, Refusal, refuse};

/// Above this size a reservation takes whole units of 1 GiB.
const BIG_RESERVATION: u64 = 512 << 20;

/// The most that one reservation takes with the stricter answers.
const STRICT_RESERVATION: u64 = 128 << 30;

/// A refused reservation: the reason, and the address the driver writes out although it refused.
pub(crate) type ReserveRefusal = (Refusal, Option<u64>);

impl Memory {
    /// `aclrtReserveMemAddress`: the start of the range.
    pub(crate) fn reserve(
        &mut self,
        size: u64,
        alignment: u64,
        expect: u64,
        flags: u64,
    ) -> Result<u64, ReserveRefusal> {
        let plain = |refusal| (refusal, None);
        self.check_reserve(size, alignment, expect, flags).map_err(plain)?;
        let (len, align) = self.reservation_shape(size);
        let over = self.max_reservation.is_some_and(|most| len > most)
            || (self.strict && len > STRICT_RESERVATION)
            || self.va_budget.is_some_and(|most| self.reserved.saturating_add(len) > most);
        let full = Refusal::new(codes::RT_MEMORY_ALLOCATION, "no address space for the reservation");
        if over {
            return Err((full, None));
        }
        let start = if expect == 0 {
            self.window.take(len, align).ok_or((full, None))?
        } else if self.window.take_at(expect, len) {
            expect
        } else {
            let why = "the expected address is taken or outside the window";
            let written = (self.soc == Soc::Ascend910B).then_some(expect);
            return Err((Refusal::new(codes::RT_DRV_INTERNAL_ERROR, why), written));
        };
        let small = size < HUGE;
        let reservation = Reservation {
            len,
            small,
            owner: None,
            mappings: 0,
            leaked: false,
            seen: None,
            made: Made::now(),
        };
        self.reservations.insert(start, reservation);
        self.reserved += len;
        Ok(start)
    }

    fn check_reserve(&self, size: u64, alignment: u64, expect: u64, flags: u64) -> Answer<()> {
        super::check_reservation(size, flags)?;
        if alignment != 0 {
            return refuse(codes::RT_PARAM_INVALID, "alignment must be 0");
        }
        if size > 1 << 56 {
            return refuse(codes::RT_MEMORY_ALLOCATION, "larger than every window");
        }
        let needed = match self.soc {
            Soc::Ascend910B if size > BIG_RESERVATION => HUGE_1G,
            Soc::Ascend910B if size > HUGE => size.next_power_of_two(),
            _ => HUGE,
        };
        if !expect.is_multiple_of(needed) {
            return refuse(
                codes::RT_PARAM_INVALID,
                "the expected address is not aligned as its size demands",
            );
        }
        Ok(())
    }

    /// Length and alignment of a reservation of that size.
    fn reservation_shape(&self, size: u64) -> (u64, u64) {
        match self.soc {
            Soc::Ascend910B if size > BIG_RESERVATION => (size.next_multiple_of(HUGE_1G), HUGE_1G),
            Soc::Ascend950 if size >= HUGE_1G => (size.next_multiple_of(HUGE), HUGE_1G),
            _ => (size.next_multiple_of(HUGE), HUGE),
        }
    }

    /// `aclrtReleaseMemAddress`.
    pub(crate) fn release(&mut self, start: u64) -> Answer<()> {
        if start == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        let Some(reservation) = self.reservations.get(&start) else {
            return refuse(codes::RT_PARAM_INVALID, "the address is not the start of a reservation");
        };
        if reservation.mappings > 0 {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "something is mapped in the reservation");
        }
        if reservation.leaked {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "the device was reset under live mappings");
        }
        let len = reservation.len;
        self.reservations.remove(&start);
        self.reserved -= len;
        self.window.give(start, len);
        Ok(())
    }

    /// `aclrtMallocPhysical`: a new handle.
    pub(crate) fn malloc_physical(
        &mut self,
        size: u64,
        prop: &PhysicalProp,
        flags: u64,
        caller: Caller,
    ) -> Answer<u64> {
        let (pool, page) = self.check_physical(size, prop, flags, caller)?;
        let size = if page == HUGE_1G { size.checked_next_multiple_of(page) } else { Some(size) };
        let Some(size) = size.filter(|size| size.is_multiple_of(page)) else {
            let code = match self.soc {
                Soc::Ascend910B => codes::RT_DRV_INTERNAL_ERROR,
                Soc::Ascend950 => codes::RT_PARAM_INVALID,
            };
            return refuse(code, "the size is not a multiple of the granule");
        };
        self.create_chunk(pool, size, page, *prop)
    }

    /// `aclrtFreePhysical`: drops one reference.
    pub(crate) fn free_physical(&mut self, handle: u64) -> Answer<()> {
        if handle == 0 {
            return refuse(codes::INVALID_PARAM, "null handle");
        }
        match self.chunks.get_mut(&handle) {
            Some(chunk) if chunk.held > 0 => chunk.held -= 1,
            Some(_) => return refuse(codes::RT_PARAM_INVALID, "the handle is freed, only mappings keep it"),
            None => return refuse(codes::RT_PARAM_INVALID, "no such handle"),
        }
        self.collect(handle);
        Ok(())
    }

    /// `aclrtMapMem`.
    pub(crate) fn map(
        &mut self,
        start: u64,
        size: u64,
        offset: u64,
        handle: u64,
        flags: u64,
        opened: Answer<()>,
    ) -> Answer<()> {
        if start == 0 || handle == 0 || size == 0 || flags != 0 {
            return refuse(codes::INVALID_PARAM, "null address or handle, size 0, or flags");
        }
        opened?;
        if offset != 0 {
            return refuse(codes::RT_PARAM_INVALID, "the offset must be 0");
        }
        let Some(chunk) = self.chunks.get(&handle).filter(|chunk| chunk.held + chunk.maps > 0) else {
            return refuse(codes::RT_PARAM_INVALID, "no such handle");
        };
        let base = self.check_map(start, size, chunk)?;
        let (pool, page, imported) = (chunk.pool, chunk.page, chunk.imported);
        self.backing.map(start, size, &chunk.place, pool)?;
        let seen = self.attributes_of(pool, page);
        let mapping = Mapping {
            len: size,
            chunk: handle,
            origin: Origin::Handle,
            grants: Vec::new(),
            made: Made::now(),
        };
        self.mappings.insert(start, mapping);
        if let Some(reservation) = self.reservations.get_mut(&base) {
            reservation.owner = Some((pool, imported));
            reservation.mappings += 1;
            reservation.seen = Some(seen);
        }
        if let Some(chunk) = self.chunks.get_mut(&handle) {
            chunk.maps += 1;
        }
        Ok(())
    }

    /// Whether the chunk can be mapped there: the start of the reservation, or why not. The place is
    /// looked at first, then the size of the chunk, then whether the two go together.
    fn check_map(&self, start: u64, size: u64, chunk: &Chunk) -> Answer<u64> {
        let busy = |why| refuse(codes::RT_DRV_INTERNAL_ERROR, why);
        if chunk.lost {
            return busy("the device of the handle was reset");
        }
        if !start.is_multiple_of(chunk.page) || !size.is_multiple_of(chunk.page) {
            return busy("address or size is not a multiple of the granule");
        }
        let Some((&base, reservation)) = self.reservations.range(..=start).next_back() else {
            return busy("the address is not reserved");
        };
        if size > reservation.len || start - base > reservation.len - size {
            return busy("the range does not lie in one reservation");
        }
        if reservation.leaked {
            return busy("the device of the reservation was reset");
        }
        let before = self.mappings.range(..start + size).next_back();
        if before.is_some_and(|(&other, mapping)| other + mapping.len > start) {
            return busy("something is mapped there");
        }
        self.check_map_size(size, chunk)?;
        if reservation.small {
            return busy("a reservation below 2 MiB takes no handles");
        }
        if reservation.owner.is_some_and(|owner| owner != (chunk.pool, chunk.imported)) {
            return busy("the reservation belongs to another device, or imported and own chunks would mix");
        }
        Ok(base)
    }

    fn check_map_size(&self, size: u64, chunk: &Chunk) -> Answer<()> {
        let available = chunk.size;
        if size > available {
            let code = match self.soc {
                Soc::Ascend910B => codes::RT_MEMORY_ALLOCATION,
                Soc::Ascend950 => codes::RT_PARAM_INVALID,
            };
            return refuse(code, "larger than the chunk");
        }
        if chunk.imported && size != available {
            return refuse(codes::RT_PARAM_INVALID, "an imported chunk is mapped with its exporter's size");
        }
        if self.strict && size != available {
            return refuse(
                codes::RT_PARAM_INVALID,
                "strict: the size of a mapping must be that of its chunk",
            );
        }
        Ok(())
    }

    /// The length of the mapping that `aclrtUnmapMem` would remove, or why it would refuse.
    pub(crate) fn unmap_len(&self, start: u64) -> Answer<u64> {
        if start == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        if self.soc == Soc::Ascend950 && !start.is_multiple_of(HUGE) {
            return refuse(codes::RT_PARAM_INVALID, "the address is not a multiple of the granule");
        }
        let len = self.mapping_at(start)?.len;
        if self.held.iter().any(|&(held, size)| held < start + len && start < held.saturating_add(size)) {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "busy: a copy holds the range");
        }
        Ok(len)
    }

    /// `aclrtUnmapMem`.
    pub(crate) fn unmap(&mut self, start: u64) -> Answer<()> {
        self.unmap_len(start)?;
        self.remove_mapping(start);
        Ok(())
    }

    /// The mapping of a handle that starts exactly there.
    fn mapping_at(&self, start: u64) -> Answer<&Mapping> {
        let found = self.mappings.get(&start).filter(|mapping| mapping.origin == Origin::Handle);
        found.ok_or(Refusal::new(
            codes::RT_DRV_INTERNAL_ERROR,
            "the address is not the exact start of a mapping",
        ))
    }

    /// `aclrtMemGetAllocationGranularity`.
    pub(crate) fn granularity(&self, prop: &PhysicalProp, option: u32, caller: Caller) -> Answer<u64> {
        self.check_granularity(prop, option, caller)
    }

    /// `aclrtMemSetAccess`; devices by the driver's numbers.
    pub(crate) fn set_access(&mut self, start: u64, size: u64, grants: &[AccessDescriptor]) -> Answer<()> {
        let (grant, owner) = self.check_grants(start, grants)?;
        let mapping = self.mapping_at(start)?;
        if mapping.len != size {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "the size is not that of the mapping");
        }
        let own = self.chunks.get(&mapping.chunk).is_some_and(|chunk| chunk.pool == owner);
        if let Some(mapping) = self.mappings.get_mut(&start)
            && !own
            && !mapping.grants.contains(&grant.location)
        {
            mapping.grants.push(grant.location);
        }
        Ok(())
    }

    /// `aclrtMemGetAccess`: 3 for those who may use the memory, 0 for the others.
    pub(crate) fn get_access(&self, address: u64, place: Location) -> Answer<u64> {
        if address == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        self.grantee(place)?;
        let mapped = self.mapping_of(address).filter(|(_, mapping)| mapping.origin == Origin::Handle);
        let Some((_, mapping)) = mapped else {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "no chunk is mapped there");
        };
        let owner = self.chunks.get(&mapping.chunk).map(|chunk| self.place_of(chunk.pool));
        let granted = owner == Some(place) || mapping.grants.contains(&place);
        Ok(if granted { codes::ACCESS_READWRITE } else { 0 })
    }

    /// `aclrtMemRetainAllocationHandle`: the handle mapped there, with one more reference.
    pub(crate) fn retain(&mut self, start: u64) -> Answer<u64> {
        if start == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        let handle = self.mapping_at(start)?.chunk;
        if let Some(chunk) = self.chunks.get_mut(&handle) {
            chunk.held += 1;
        }
        Ok(handle)
    }

    /// `aclrtMemGetAllocationPropertiesFromHandle`; devices by the driver's numbers.
    pub(crate) fn properties(&self, handle: u64) -> Answer<PhysicalProp> {
        if handle == 0 {
            return refuse(codes::INVALID_PARAM, "null handle");
        }
        let chunk = self.chunks.get(&handle);
        chunk.map_or(refuse(codes::RT_PARAM_INVALID, "no such handle"), |chunk| Ok(chunk.prop))
    }

    /// `aclrtMemGetAddressRange`: start and length of the mapping around an address.
    pub(crate) fn address_range(&self, address: u64) -> Answer<(u64, u64)> {
        if address == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        let found = self.mapping_of(address).map(|(start, mapping)| (start, mapping.len));
        found.ok_or(Refusal::new(codes::RT_PARAM_INVALID, "nothing is mapped there"))
    }

    /// `aclrtPointerGetAttributes`; devices by the driver's numbers.
    pub(crate) fn pointer_attributes(&mut self, address: u64) -> Answer<PointerAttributes> {
        if address == 0 {
            return refuse(codes::INVALID_PARAM, "null address");
        }
        if let Some(reservation) = self.reservation_of(address) {
            let seen = reservation.seen;
            return seen
                .ok_or(Refusal::new(codes::RT_INVALID_HANDLE, "nothing was ever mapped in the reservation"));
        }
        if let Some((_, mapping)) = self.mapping_of(address) {
            let chunk = self.chunks.get(&mapping.chunk).map(|chunk| (chunk.pool, chunk.page));
            return Ok(chunk.map_or_else(Self::unregistered, |(pool, page)| self.attributes_of(pool, page)));
        }
        if self.is_device(address) {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "a device address that is not allocated");
        }
        let known = self.host.knows(address);
        let location = if known { Location::host() } else { Self::unregistered().location };
        Ok(PointerAttributes { location, page_size: super::backing::os_page() as u32 })
    }

    fn unregistered() -> PointerAttributes {
        let location = Location { id: 0, kind: location::UNREGISTERED };
        PointerAttributes { location, page_size: super::backing::os_page() as u32 }
    }

    fn place_of(&self, pool: usize) -> Location {
        if pool == self.host_pool() { Location::host() } else { Location::device(pool as u32) }
    }

    fn attributes_of(&self, pool: usize, page: u64) -> PointerAttributes {
        let location = self.place_of(pool);
        let page = match location.kind {
            location::HOST => super::backing::os_page(),
            _ => page.min(HUGE),
        };
        PointerAttributes { location, page_size: page as u32 }
    }
}
