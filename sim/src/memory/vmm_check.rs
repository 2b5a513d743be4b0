//! What the virtual-memory calls check, layer by layer: first the ACL layer, then the runtime, then
//! the driver of the process, then the kernel. The first check that fails gives the answer.

use super::{AccessDescriptor, HUGE, HUGE_1G, Location, Memory, PhysicalProp};
use crate::codes::{self, attr, location};
use crate::config::Soc;
use crate::refusal::{Answer, refuse};

/// What the memory must know of the thread and process that calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// The thread has a current context.
    pub(crate) context: bool,
    /// The driver takes calls: a device was set in the process, or nobody asks for that.
    pub(crate) opened: bool,
}

impl Memory {
    /// What `aclrtMallocPhysical` checks before the size: the pool and the page.
    pub(super) fn check_physical(
        &self,
        size: u64,
        prop: &PhysicalProp,
        flags: u64,
        caller: Caller,
    ) -> Answer<(usize, u64)> {
        let place = prop.location.kind;
        if size == 0 || flags != 0 || prop.handle_type != 0 || prop.allocation_type != 0 {
            return refuse(codes::INVALID_PARAM, "size 0, flags, handle type or allocation type");
        }
        if place == location::UNREGISTERED || place == location::MANAGED {
            return refuse(codes::INVALID_PARAM, "memory cannot be allocated at that location");
        }
        let page = page_of(prop)?;
        self.check_runtime_place(prop.location, caller)?;
        if !caller.opened {
            return refuse(codes::RT_INVALID_HANDLE, "strict: no device was set in this process");
        }
        Ok((self.check_driver_place(prop)?, page))
    }

    /// What `aclrtMemGetAllocationGranularity` checks: the page.
    pub(super) fn check_granularity(&self, prop: &PhysicalProp, option: u32, caller: Caller) -> Answer<u64> {
        let page = page_of(prop)?;
        self.check_runtime_place(prop.location, caller)?;
        if option > 1 {
            return refuse(codes::RT_FEATURE_NOT_SUPPORT, "no such granularity option");
        }
        self.check_driver_place(prop)?;
        Ok(page)
    }

    /// What the runtime checks of a place.
    fn check_runtime_place(&self, place: Location, caller: Caller) -> Answer<()> {
        match place.kind {
            location::DEVICE if place.id as usize >= self.host_pool() => {
                refuse(codes::RT_INVALID_DEVICEID, "no such device")
            }
            location::HOST_NUMA if !caller.context => {
                refuse(codes::RT_CONTEXT_NULL, "memory of a NUMA node needs a current device")
            }
            location::HOST_NUMA => refuse(codes::RT_FEATURE_NOT_SUPPORT, "no memory of single NUMA nodes"),
            _ => Ok(()),
        }
    }

    /// What the driver checks of properties: the pool.
    fn check_driver_place(&self, prop: &PhysicalProp) -> Answer<usize> {
        if prop.reserve != 0 {
            return refuse(codes::RT_PARAM_INVALID, "the reserved field must be 0");
        }
        if self.soc == Soc::Ascend950 && matches!(prop.attr, attr::MEM_HUGE1G | attr::MEM_P2P_HUGE1G) {
            return refuse(codes::RT_FEATURE_NOT_SUPPORT, "no pages of 1 GiB");
        }
        match prop.location {
            Location { kind: location::DEVICE, id } => Ok(id as usize),
            Location { kind: location::HOST, id: 0 } => Ok(self.host_pool()),
            Location { kind: location::HOST, .. } => {
                refuse(codes::RT_FEATURE_NOT_SUPPORT, "the host has number 0")
            }
            _ => refuse(codes::RT_PARAM_INVALID, "no such location"),
        }
    }

    /// What `aclrtMemSetAccess` checks before it looks for the mapping: the grant, and the pool of the
    /// one it is for.
    pub(super) fn check_grants(
        &self,
        start: u64,
        grants: &[AccessDescriptor],
    ) -> Answer<(AccessDescriptor, usize)> {
        let (Some(&grant), true) = (grants.first(), start != 0) else {
            return refuse(codes::RT_PARAM_INVALID, "null address or no descriptor");
        };
        if self.soc == Soc::Ascend950 && twice(grants) {
            return refuse(codes::RT_PARAM_INVALID, "one location twice");
        }
        if grant.flags != codes::ACCESS_READWRITE {
            return refuse(
                codes::RT_FEATURE_NOT_SUPPORT,
                "only read and write access together can be granted",
            );
        }
        let pool = self.grantee(grant.location)?;
        if grants.len() != 1 {
            // It takes descriptors to be shorter than they are, so the second is read askew.
            return refuse(codes::RT_FEATURE_NOT_SUPPORT, "the driver misreads more than one descriptor");
        }
        Ok((grant, pool))
    }

    /// The pool of a location that can have access.
    pub(super) fn grantee(&self, place: Location) -> Answer<usize> {
        match place {
            Location { id, kind: location::DEVICE } if (id as usize) < self.host_pool() => Ok(id as usize),
            Location { id: 0, kind: location::HOST } => Ok(self.host_pool()),
            _ => refuse(codes::RT_PARAM_INVALID, "no such location"),
        }
    }
}

fn twice(grants: &[AccessDescriptor]) -> bool {
    let again = |(index, grant): (usize, &AccessDescriptor)| {
        grants[..index].iter().any(|before| before.location == grant.location)
    };
    grants.iter().enumerate().any(again)
}

/// The page size behind an attribute; the ACL layer refuses those that cannot be had there.
fn page_of(prop: &PhysicalProp) -> Answer<u64> {
    match prop.attr {
        attr::DDR_HUGE | attr::DDR_NORMAL | attr::DDR_P2P_HUGE | attr::DDR_P2P_NORMAL => {
            if prop.location.kind == location::DEVICE {
                return refuse(codes::INVALID_PARAM, "host memory attribute for a device");
            }
            Ok(HUGE)
        }
        attr::HBM_HUGE1G | attr::MEM_HUGE1G | attr::MEM_P2P_HUGE1G => Ok(HUGE_1G),
        attr::HBM_HUGE | attr::HBM_NORMAL => Ok(HUGE),
        attr::MEM_NORMAL | attr::MEM_HUGE | attr::MEM_P2P_NORMAL | attr::MEM_P2P_HUGE => Ok(HUGE),
        _ => refuse(codes::INVALID_PARAM, "an attribute that cannot be allocated"),
    }
}
