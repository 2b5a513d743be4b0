//! The virtual-memory calls.

use crate::call::Call;
use crate::codes::{self, location};
use crate::exec::HostOp;
use crate::made::Made;
use crate::memory::{AccessDescriptor, Caller, Location, PhysicalProp, PointerAttributes};
use crate::refusal::refuse;
use crate::report::MisuseKind;
use crate::sim::Sim;

impl Sim {
    /// `aclrtReserveMemAddress` with neither alignment nor expected address: the start of the range.
    ///
    /// # Errors
    /// The ACL code.
    pub fn reserve(&self, size: u64) -> Result<u64, i32> {
        let mut start = 0;
        self.reserve_into(&mut start, size, 0, 0, 0).map(|()| start)
    }

    /// `aclrtReserveMemAddress` as it is. A refused expected address is written to `start` all the
    /// same, as the 910B driver does.
    ///
    /// # Errors
    /// The ACL code: 100000 for size 0 and unknown flags, 107000 for an alignment or a wrongly
    /// aligned expectation, 507899 for an expectation that is taken, 207001 without address space.
    pub fn reserve_into(
        &self,
        start: &mut u64,
        size: u64,
        alignment: u64,
        expect: u64,
        flags: u64,
    ) -> Result<(), i32> {
        let arguments = format_args!("size={size}, alignment={alignment}, expect={expect:#x}, flags={flags}");
        self.call(Call::ReserveMemAddress, arguments, || {
            crate::memory::check_reservation(size, flags)?;
            self.check_opened()?;
            match self.inner.memory.lock().reserve(size, alignment, expect, flags) {
                Ok(address) => {
                    *start = address;
                    Ok(())
                }
                Err((refusal, written)) => {
                    if let Some(address) = written {
                        *start = address;
                    }
                    Err(refusal)
                }
            }
        })
    }

    /// `aclrtReleaseMemAddress`.
    ///
    /// # Errors
    /// The ACL code: 107000 if it is not the start of a reservation, 507899 while anything is mapped.
    pub fn release(&self, start: u64) -> Result<(), i32> {
        self.call(Call::ReleaseMemAddress, format_args!("{start:#x}"), || {
            let mut memory = self.inner.memory.lock();
            let answer = memory.release(start);
            let mapped = if answer.is_err() { memory.mapped_in(start) } else { None };
            drop(memory);
            if let Some(mapped) = mapped {
                let text = format!("{} of {start:#x} while {mapped}", Made::now());
                self.inner.found(MisuseKind::ReleaseWhileMapped, text);
            }
            answer
        })
    }

    /// `aclrtMallocPhysical`: a handle. The device in `prop` is the process's number.
    ///
    /// # Errors
    /// The ACL code: 207001 when the device is full; wrong arguments as on the device.
    pub fn malloc_physical(&self, size: u64, prop: &PhysicalProp, flags: u64) -> Result<u64, i32> {
        self.call(Call::MallocPhysical, format_args!("size={size}, {}", Prop(prop)), || {
            let (prop, caller) = (self.for_driver(prop), self.caller(prop));
            self.inner.memory.lock().malloc_physical(size, &prop, flags, caller)
        })
    }

    /// `aclrtFreePhysical`: drops a reference; memory comes back with the last reference and mapping.
    ///
    /// # Errors
    /// The ACL code: 107000 for a handle with nothing left to drop.
    pub fn free_physical(&self, handle: u64) -> Result<(), i32> {
        self.call(Call::FreePhysical, format_args!("{handle:#x}"), || {
            self.inner.memory.lock().free_physical(handle)
        })
    }

    /// `aclrtMapMem`.
    ///
    /// # Errors
    /// The ACL code: 507899 for everything wrong with the range, 207001 for a size larger than the
    /// chunk, [`HOST_LIMIT`](crate::codes::HOST_LIMIT) where this machine allows no more mappings.
    pub fn map(&self, start: u64, size: u64, offset: u64, handle: u64, flags: u64) -> Result<(), i32> {
        let arguments = format_args!("{start:#x}, size={size}, offset={offset}, handle={handle:#x}");
        self.call(Call::MapMem, arguments, || {
            let opened = self.check_opened();
            self.inner.memory.lock().map(start, size, offset, handle, flags, opened)
        })
    }

    /// `aclrtUnmapMem`: removes the mapping that starts exactly there. Waits for nothing; the use
    /// checker reports work that may still touch the range.
    ///
    /// # Errors
    /// The ACL code: 507899 if no mapping starts there or a copy holds the range.
    pub fn unmap(&self, start: u64) -> Result<(), i32> {
        self.call(Call::UnmapMem, format_args!("{start:#x}"), || {
            let len = self.inner.memory.lock().unmap_len(start)?;
            self.inner.executor.host_touch(HostOp::Unmap, start, len);
            self.inner.wait_unused(start, len).unmap(start)
        })
    }

    /// `aclrtMemGetAllocationGranularity`.
    ///
    /// # Errors
    /// The ACL code: 100000 for an attribute that cannot be allocated, 207000 for an unknown option.
    pub fn granularity(&self, prop: &PhysicalProp, option: u32) -> Result<u64, i32> {
        let arguments = format_args!("{}, option={option}", Prop(prop));
        self.call(Call::MemGetAllocationGranularity, arguments, || {
            let (prop, caller) = (self.for_driver(prop), self.caller(prop));
            self.inner.memory.lock().granularity(&prop, option, caller)
        })
    }

    /// `aclrtMemSetAccess`. Devices by the **driver's** numbers: this call is not translated.
    ///
    /// # Errors
    /// The ACL code: 507899 unless address and size are exactly those of a mapping, 207000 for
    /// anything but read and write access and for more than one descriptor.
    pub fn set_access(&self, start: u64, size: u64, grants: &[AccessDescriptor]) -> Result<(), i32> {
        self.call(Call::MemSetAccess, format_args!("{start:#x}, size={size}, {grants:?}"), || {
            self.inner.memory.lock().set_access(start, size, grants)
        })
    }

    /// `aclrtMemGetAccess`: 3 or 0. Devices by the driver's numbers.
    ///
    /// # Errors
    /// The ACL code: 507899 if nothing is mapped there.
    pub fn get_access(&self, address: u64, place: Location) -> Result<u64, i32> {
        self.call(Call::MemGetAccess, format_args!("{address:#x}, {place:?}"), || {
            self.inner.memory.lock().get_access(address, place)
        })
    }

    /// `aclrtMemRetainAllocationHandle`: the handle mapped at exactly that address, with one more
    /// reference.
    ///
    /// # Errors
    /// The ACL code: 507899 if no mapping starts there.
    pub fn retain_handle(&self, start: u64) -> Result<u64, i32> {
        self.call(Call::MemRetainAllocationHandle, format_args!("{start:#x}"), || {
            self.inner.memory.lock().retain(start)
        })
    }

    /// `aclrtMemGetAllocationPropertiesFromHandle`.
    ///
    /// # Errors
    /// The ACL code: 107000 for a dead handle.
    pub fn handle_properties(&self, handle: u64) -> Result<PhysicalProp, i32> {
        self.call(Call::MemGetAllocationPropertiesFromHandle, format_args!("{handle:#x}"), || {
            let mut prop = self.inner.memory.lock().properties(handle)?;
            prop.location = self.for_user(prop.location);
            Ok(prop)
        })
    }

    /// `aclrtMemGetAddressRange`: start and length of the mapping around an address.
    ///
    /// # Errors
    /// The ACL code: 107000 if nothing is mapped there.
    pub fn address_range(&self, address: u64) -> Result<(u64, u64), i32> {
        self.call(Call::MemGetAddressRange, format_args!("{address:#x}"), || {
            self.inner.memory.lock().address_range(address)
        })
    }

    /// `aclrtPointerGetAttributes`.
    ///
    /// # Errors
    /// The ACL code: 107017 in a reservation nothing was ever mapped in, 507899 for device addresses
    /// that are not allocated.
    pub fn pointer_attributes(&self, address: u64) -> Result<PointerAttributes, i32> {
        self.call(Call::PointerGetAttributes, format_args!("{address:#x}"), || {
            let mut found = self.inner.memory.lock().pointer_attributes(address)?;
            found.location = self.for_user(found.location);
            Ok(found)
        })
    }

    /// `aclrtReserveMemAddressNoUCMemory`: the parts have no memory that is not cached.
    ///
    /// # Errors
    /// The ACL code: 100000 for size 0 and unknown flags, else 207000.
    pub fn reserve_no_uc_into(
        &self,
        start: &mut u64,
        size: u64,
        alignment: u64,
        expect: u64,
        flags: u64,
    ) -> Result<(), i32> {
        let arguments =
            format_args!("{start:#x}, size={size}, alignment={alignment}, expect={expect:#x}, flags={flags}");
        self.call(Call::ReserveMemAddressNoUcMemory, arguments, || {
            if size == 0 || flags > 1 {
                return refuse(codes::INVALID_PARAM, "size must not be 0, flags must be 0 or 1");
            }
            refuse(codes::RT_FEATURE_NOT_SUPPORT, "only on a super-pod")
        })
    }

    /// `aclrtMemMapNoAccess`: the driver that is played lacks what it needs.
    ///
    /// # Errors
    /// The ACL code: 100000 as [`map`](Self::map), else 207000.
    pub fn map_no_access(
        &self,
        start: u64,
        size: u64,
        offset: u64,
        handle: u64,
        flags: u64,
    ) -> Result<(), i32> {
        let arguments = format_args!("{start:#x}, size={size}, offset={offset}, handle={handle:#x}");
        self.call(Call::MemMapNoAccess, arguments, || {
            if start == 0 || handle == 0 || size == 0 || flags != 0 {
                return refuse(codes::INVALID_PARAM, "null address or handle, size 0, or flags");
            }
            refuse(codes::RT_FEATURE_NOT_SUPPORT, "the driver cannot map without access")
        })
    }

    /// `aclrtMemMapSelectedLink`: the parts have one kind of link.
    ///
    /// # Errors
    /// The ACL code: 207000.
    pub fn map_selected_link(&self) -> Result<(), i32> {
        self.call(Call::MemMapSelectedLink, format_args!(""), || {
            refuse(codes::RT_FEATURE_NOT_SUPPORT, "only on a super-pod")
        })
    }

    /// `aclrtMemMapSetLink`: the parts have one kind of link.
    ///
    /// # Errors
    /// The ACL code: 207000.
    pub fn map_set_link(&self) -> Result<(), i32> {
        self.call(Call::MemMapSetLink, format_args!(""), || {
            refuse(codes::RT_FEATURE_NOT_SUPPORT, "only on a super-pod")
        })
    }

    /// What the checks of memory ask about this thread and process.
    fn caller(&self, prop: &PhysicalProp) -> Caller {
        // Only memory of a NUMA node asks for a context.
        let context = prop.location.kind == location::HOST_NUMA && self.current().is_ok();
        Caller { context, opened: self.check_opened().is_ok() }
    }

    /// Properties with the driver's device number.
    fn for_driver(&self, prop: &PhysicalProp) -> PhysicalProp {
        let mut prop = *prop;
        if prop.location.kind == location::DEVICE {
            match self.inner.devices.lock().driver_id(prop.location.id) {
                Ok(device) => prop.location.id = device,
                // The argument checks of the layer above come first: an impossible number is refused
                // by the model after them.
                Err(_) => prop.location.id = u32::MAX,
            }
        }
        prop
    }

    /// A location with the process's device number.
    fn for_user(&self, place: Location) -> Location {
        if place.kind != location::DEVICE {
            return place;
        }
        let user = self.inner.devices.lock().user_id(place.id);
        Location { id: user.unwrap_or(place.id), ..place }
    }
}

/// The arguments of a property as text.
struct Prop<'a>(&'a PhysicalProp);

impl std::fmt::Display for Prop<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PhysicalProp { attr, location, .. } = self.0;
        write!(f, "attr={attr}, location={{id={}, type={}}}", location.id, location.kind)
    }
}
