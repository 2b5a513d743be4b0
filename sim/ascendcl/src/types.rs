//! C types of the interface, and the way between pointers and the model's numbers.
//!
//! All handles are `void *`; enums are 32-bit numbers. The layouts are those of 64-bit targets.

use std::ffi::{c_int, c_void};
use std::ptr;

use ascend_sim::{
    AccessDescriptor, BatchAttribute, Location, MallocAttribute, PhysicalProp, PointerAttributes, PoolProps,
    Utilization,
};

/// `aclError`.
pub(crate) type AclError = c_int;

/// Any handle or address.
pub(crate) type Handle = *mut c_void;

/// `aclrtMemLocation`: the number comes before the kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemLocation {
    id: u32,
    kind: u32,
}

/// `aclrtPhysicalMemProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PhysicalMemProp {
    handle_type: u32,
    allocation_type: u32,
    attr: u32,
    location: MemLocation,
    reserve: u64,
}

/// `aclrtMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemAccessDesc {
    flags: u32,
    location: MemLocation,
    rsv: [u8; 12],
}

/// `aclrtPtrAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PtrAttributes {
    location: MemLocation,
    page_size: u32,
    rsv: [u32; 4],
}

/// `aclrtIpcEventHandle`, which calls take by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcEventHandle(pub(crate) [u8; 64]);

/// `aclrtMemUsageInfo`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MemUsageInfo {
    /// Which part of the software; ends with a zero.
    pub(crate) name: [u8; 32],
    pub(crate) current: u64,
    pub(crate) peak: u64,
    reserved: [usize; 8],
}

/// `aclrtMallocAttribute`: the value is a union of numbers of at most 8 bytes.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
pub struct MallocAttributeC {
    kind: u32,
    value: [u8; 8],
}

/// `aclrtMallocConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MallocConfig {
    pub(crate) attributes: *const MallocAttributeC,
    pub(crate) count: usize,
}

/// `aclrtMemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemPoolProps {
    allocation_type: u32,
    handle_type: u32,
    location: MemLocation,
    max_size: usize,
    reserved: [u8; 32],
}

/// `aclrtMemcpyBatchAttr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemcpyBatchAttr {
    to: MemLocation,
    from: MemLocation,
    rsv: [u8; 16],
}

/// `aclrtUtilizationInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UtilizationInfo {
    cube: i32,
    vector: i32,
    ai_cpu: i32,
    memory: i32,
    extension: Handle,
}

/// `aclrtStreamAttrValue`, a union of numbers of at most 8 bytes and room for more.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct StreamAttrValue([u8; 16]);

const _: () = {
    assert!(size_of::<Handle>() == 8);
    assert!(size_of::<MemLocation>() == 8 && align_of::<MemLocation>() == 4);
    assert!(size_of::<PhysicalMemProp>() == 32 && align_of::<PhysicalMemProp>() == 8);
    assert!(size_of::<MemAccessDesc>() == 24 && align_of::<MemAccessDesc>() == 4);
    assert!(size_of::<PtrAttributes>() == 28 && align_of::<PtrAttributes>() == 4);
    assert!(size_of::<IpcEventHandle>() == 64 && align_of::<IpcEventHandle>() == 1);
    assert!(size_of::<MemUsageInfo>() == 112 && align_of::<MemUsageInfo>() == 8);
    assert!(size_of::<MallocAttributeC>() == 12 && align_of::<MallocAttributeC>() == 4);
    assert!(size_of::<MallocConfig>() == 16);
    assert!(size_of::<MemPoolProps>() == 56 && align_of::<MemPoolProps>() == 8);
    assert!(size_of::<MemcpyBatchAttr>() == 32 && align_of::<MemcpyBatchAttr>() == 4);
    assert!(size_of::<UtilizationInfo>() == 24);
    assert!(size_of::<StreamAttrValue>() == 16);
};

/// A pointer as the model's number.
pub(crate) fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// The model's number as a pointer.
pub(crate) fn pointer(address: u64) -> Handle {
    ptr::with_exposed_provenance_mut(address as usize)
}

impl From<MemLocation> for Location {
    fn from(location: MemLocation) -> Self {
        Self { id: location.id, kind: location.kind }
    }
}

impl From<Location> for MemLocation {
    fn from(location: Location) -> Self {
        Self { id: location.id, kind: location.kind }
    }
}

impl From<PhysicalMemProp> for PhysicalProp {
    fn from(prop: PhysicalMemProp) -> Self {
        Self {
            handle_type: prop.handle_type,
            allocation_type: prop.allocation_type,
            attr: prop.attr,
            location: prop.location.into(),
            reserve: prop.reserve,
        }
    }
}

impl From<PhysicalProp> for PhysicalMemProp {
    fn from(prop: PhysicalProp) -> Self {
        Self {
            handle_type: prop.handle_type,
            allocation_type: prop.allocation_type,
            attr: prop.attr,
            location: prop.location.into(),
            reserve: prop.reserve,
        }
    }
}

impl From<MemAccessDesc> for AccessDescriptor {
    fn from(grant: MemAccessDesc) -> Self {
        Self { flags: u64::from(grant.flags), location: grant.location.into() }
    }
}

impl From<MallocAttributeC> for MallocAttribute {
    fn from(attribute: MallocAttributeC) -> Self {
        Self { kind: attribute.kind, value: u64::from_le_bytes(attribute.value) }
    }
}

impl From<MemPoolProps> for PoolProps {
    fn from(props: MemPoolProps) -> Self {
        Self {
            allocation_type: props.allocation_type,
            handle_type: props.handle_type,
            location: props.location.into(),
            max_size: props.max_size as u64,
            reserved_zero: props.reserved == [0; 32],
        }
    }
}

impl From<MemcpyBatchAttr> for BatchAttribute {
    fn from(attribute: MemcpyBatchAttr) -> Self {
        Self { to: attribute.to.into(), from: attribute.from.into() }
    }
}

impl From<Utilization> for UtilizationInfo {
    fn from(rate: Utilization) -> Self {
        let Utilization { cube, vector, ai_cpu, memory } = rate;
        Self { cube, vector, ai_cpu, memory, extension: ptr::null_mut() }
    }
}

impl StreamAttrValue {
    /// A value of 8 bytes.
    pub(crate) fn new(value: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&value.to_ne_bytes());
        Self(bytes)
    }

    /// The first 8 bytes.
    pub(crate) fn first(self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        u64::from_ne_bytes(bytes)
    }
}

impl From<PointerAttributes> for PtrAttributes {
    fn from(found: PointerAttributes) -> Self {
        Self { location: found.location.into(), page_size: found.page_size, rsv: [0; 4] }
    }
}
