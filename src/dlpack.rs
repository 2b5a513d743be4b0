//! Device blocks for other libraries, and theirs for us, without a copy: DLPack, version 1.
//!
//! [`export`] gives a [`DeviceBuffer`] to whoever reads DLPack; the other library calls the deleter when it is done, from any
//! thread, and the block is freed then. [`Managed::from_raw`] takes a block of another library over; dropping it calls
//! that library's deleter. The device type is 12 (`kDLExtDev`), which torch_npu uses for NPUs.
//!
//! DLPack says nothing of streams. The producer makes its work visible to the consumer's stream before it exports (an
//! event of the one, a wait of the other), and tells the allocator of the consumer's stream with
//! [`DeviceBuffer::record_stream`], so that the block is not reused before that stream has passed the free.
//!
//! ```
//! use std::sync::Arc;
//! use ascend_alloc::dlpack::{self, Element, Managed};
//! use ascend_alloc::driver::{SimDriver, Stream};
//! use ascend_alloc::{Config, DeviceAllocator, DeviceBuffer};
//! use ascend_sim::{Sim, SimConfig};
//!
//! # fn main() -> ascend_alloc::Result<()> {
//! let driver = Arc::new(SimDriver::new(Sim::new(SimConfig::default())));
//! let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver)?);
//! let buffer = DeviceBuffer::new(allocator.clone(), 0, 2 * 3 * 4, Stream(0))?;
//! let ptr = buffer.ptr();
//!
//! let raw = dlpack::export(buffer, Element::F32, &[2, 3])?.into_raw();
//! // Another library would take it from here.
//! // SAFETY: the pointer is the one just made, and is given away once.
//! let back = unsafe { Managed::from_raw(raw) }?;
//! assert_eq!((back.ptr(), back.shape(), back.bytes()), (ptr, &[2, 3][..], 24));
//! drop(back);
//! assert_eq!(allocator.stats(0)?.allocated_bytes.all.current, 0);
//! # Ok(())
//! # }
//! ```

use core::ffi::c_void;
use core::ptr::NonNull;

use crate::alloc::{DeviceBuffer, DevicePtr};
use crate::driver::DeviceId;
use crate::error::{Error, Result};

/// `kDLExtDev`: the device type that torch_npu gives NPUs.
pub const DEVICE_TYPE: i32 = 12;

/// The version of the structures: major and minor. Structures of another major version are refused.
pub const VERSION: (u32, u32) = (1, 0);

/// `DLPACK_FLAG_BITMASK_READ_ONLY`: the consumer must not write.
pub const READ_ONLY: u64 = 1;

/// `DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED`: each element of less than a byte has bytes of its own; without it they
/// lie one behind the other.
pub const PADDED: u64 = 1 << 2;

/// The most dimensions that are accepted of others.
const MOST_DIMENSIONS: i32 = 64;

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawVersion {
    /// Structures of another major version are laid out otherwise.
    pub major: u32,
    /// Grows with additions that change no layout.
    pub minor: u32,
}

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDevice {
    /// The kind of device.
    pub device_type: i32,
    /// Which one of that kind.
    pub device_id: i32,
}

/// `DLDataType`: the type of one element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// 0 signed, 1 unsigned, 2 floating point, 4 bfloat, 6 bool; others as DLPack numbers them.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes; 1 unless elements are vectors.
    pub lanes: u16,
}

impl Element {
    /// 32-bit floating point.
    pub const F32: Self = Self::new(2, 32);
    /// 64-bit floating point.
    pub const F64: Self = Self::new(2, 64);
    /// 16-bit floating point.
    pub const F16: Self = Self::new(2, 16);
    /// Brain floating point of 16 bits.
    pub const BF16: Self = Self::new(4, 16);
    /// Signed, 8 bits.
    pub const I8: Self = Self::new(0, 8);
    /// Signed, 32 bits.
    pub const I32: Self = Self::new(0, 32);
    /// Signed, 64 bits.
    pub const I64: Self = Self::new(0, 64);
    /// Unsigned, 8 bits.
    pub const U8: Self = Self::new(1, 8);
    /// Truth values of one byte.
    pub const BOOL: Self = Self::new(6, 8);

    /// One lane of that code and so many bits.
    #[must_use]
    pub const fn new(code: u8, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }

    /// Bits of an element; with the flags of its tensor.
    fn size_bits(self, flags: u64) -> u64 {
        let bits = u64::from(self.bits) * u64::from(self.lanes);
        if flags & PADDED != 0 { bits.next_multiple_of(8) } else { bits }
    }
}

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct RawTensor {
    /// The block; on devices an address of the device.
    pub data: *mut c_void,
    /// Where it lies.
    pub device: RawDevice,
    /// How many dimensions.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: Element,
    /// `ndim` extents.
    pub shape: *mut i64,
    /// `ndim` strides in elements; null where the elements lie in order, without gaps.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub struct RawManaged {
    /// The version of what follows.
    pub version: RawVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// To be called once, with the structure itself, by whoever has it last; null where nothing is to be done.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`READ_ONLY`], [`PADDED`] and others.
    pub flags: u64,
    /// The tensor.
    pub tensor: RawTensor,
}

// The layout that other libraries were compiled with (64-bit pointers).
const _: () = {
    assert!(size_of::<RawTensor>() == 48 && core::mem::offset_of!(RawTensor, byte_offset) == 40);
    assert!(core::mem::offset_of!(RawTensor, dtype) == 20 && core::mem::offset_of!(RawTensor, shape) == 24);
    assert!(size_of::<RawManaged>() == 80 && core::mem::offset_of!(RawManaged, tensor) == 32);
    assert!(
        core::mem::offset_of!(RawManaged, deleter) == 16 && core::mem::offset_of!(RawManaged, flags) == 24
    );
};

/// A block in DLPack's form, ours or another library's. Dropping it calls the deleter.
#[derive(Debug)]
pub struct Managed(NonNull<RawManaged>);

// SAFETY: the structure is owned alone, is only read, and DLPack lets the deleter be called by any thread.
unsafe impl Send for Managed {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for Managed {}

/// What an exported structure points to.
struct Exported {
    raw: RawManaged,
    _buffer: DeviceBuffer,
    _extents: Box<[i64]>,
    _strides: Box<[i64]>,
}

/// Gives a buffer to others as a tensor whose elements lie in order, without gaps.
///
/// # Errors
///
/// [`Error::Argument`] when the shape has more dimensions or larger extents than DLPack can say, or the buffer is smaller
/// than the elements are, or the device has no number there. The buffer is freed then.
pub fn export(buffer: DeviceBuffer, element: Element, shape: &[u64]) -> Result<Managed> {
    let wrong = |expected| Error::Argument { name: "shape", value: format!("{shape:?}"), expected };
    let extents: Option<Box<[i64]>> = shape.iter().map(|&extent| i64::try_from(extent).ok()).collect();
    let extents = extents.ok_or_else(|| wrong("extents below 2^63"))?;
    let ndim = i32::try_from(shape.len()).ok().filter(|&ndim| ndim <= MOST_DIMENSIONS);
    let ndim = ndim.ok_or_else(|| wrong("at most 64 dimensions"))?;
    let strides = in_order(&extents).ok_or_else(|| wrong("fewer elements than 2^63"))?;
    let bytes =
        span(&extents, &strides, element.size_bits(0)).ok_or_else(|| wrong("fewer bits than 2^64"))?;
    if bytes > buffer.bytes() {
        return Err(wrong("no more bytes of elements than the buffer has"));
    }
    let device_id = i32::try_from(buffer.device()).map_err(|_| Error::Argument {
        name: "device",
        value: buffer.device().to_string(),
        expected: "a number below 2^31",
    })?;
    let tensor = RawTensor {
        data: core::ptr::with_exposed_provenance_mut(buffer.ptr().address() as usize),
        device: RawDevice { device_type: DEVICE_TYPE, device_id },
        ndim,
        dtype: element,
        shape: extents.as_ptr().cast_mut(),
        strides: strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let version = RawVersion { major: VERSION.0, minor: VERSION.1 };
    let deleter: unsafe extern "C" fn(*mut RawManaged) = delete;
    let raw =
        RawManaged { version, manager_ctx: core::ptr::null_mut(), deleter: Some(deleter), flags: 0, tensor };
    let exported = Box::new(Exported { raw, _buffer: buffer, _extents: extents, _strides: strides });
    let exported = Box::into_raw(exported);
    // SAFETY: the box is ours and not null; the context leads the deleter back to it.
    unsafe {
        (*exported).raw.manager_ctx = exported.cast();
        Ok(Managed(NonNull::new_unchecked(&raw mut (*exported).raw)))
    }
}

/// Frees what [`export`] made.
///
/// # Safety
///
/// The structure is one of [`export`], and this is called once.
unsafe extern "C" fn delete(raw: *mut RawManaged) {
    // SAFETY: the context is the box that holds the structure, and the caller gives it up.
    drop(unsafe { Box::from_raw((*raw).manager_ctx.cast::<Exported>()) });
}

impl Managed {
    /// Takes a block of another library, or one of [`export`], over.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for null, another major version, another device type than [`DEVICE_TYPE`], negative or too many
    /// extents, missing pointers, and elements that would lie outside of the address space. Except for null the
    /// deleter has been called then.
    ///
    /// # Safety
    ///
    /// The pointer is null or to a structure as its version says, with arrays of `ndim` extents and strides, which the
    /// caller owns and gives up.
    pub unsafe fn from_raw(raw: *mut RawManaged) -> Result<Self> {
        let wrong = |name, value: String, expected| Err(Error::Argument { name, value, expected });
        let Some(raw) = NonNull::new(raw) else {
            return wrong("tensor", "null".to_owned(), "a DLManagedTensorVersioned");
        };
        // From here on the deleter is called on every way out.
        let managed = Self(raw);
        // SAFETY: the caller vouches for the structure; version and deleter have their places in all versions.
        let version = unsafe { (*raw.as_ptr()).version };
        if version.major != VERSION.0 {
            let shown = format!("{}.{}", version.major, version.minor);
            return wrong("DLPack version", shown, "version 1");
        }
        let tensor = managed.tensor();
        if tensor.device.device_type != DEVICE_TYPE || tensor.device.device_id < 0 {
            return wrong("device", format!("{:?}", tensor.device), "device type 12, which NPUs have");
        }
        if !(0..=MOST_DIMENSIONS).contains(&tensor.ndim) {
            return wrong("dimensions", tensor.ndim.to_string(), "0 to 64");
        }
        if tensor.ndim > 0 && tensor.shape.is_null() {
            return wrong("shape", "null".to_owned(), "an array of extents");
        }
        let Some(bytes) = managed.checked_bytes() else {
            let shown = format!("{:?} with strides {:?}", managed.shape(), managed.strides());
            return wrong("shape", shown, "extents and strides that stay within the address space");
        };
        if tensor.data.is_null() && bytes > 0 {
            return wrong("data", "null".to_owned(), "an address of the device");
        }
        Ok(managed)
    }

    /// Gives it away: the receiver calls the deleter.
    #[must_use = "otherwise the block is never freed"]
    pub fn into_raw(self) -> *mut RawManaged {
        core::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    fn tensor(&self) -> &RawTensor {
        // SAFETY: the structure is owned and valid for as long as this value.
        unsafe { &self.0.as_ref().tensor }
    }

    /// The first element.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        let tensor = self.tensor();
        DevicePtr((tensor.data.addr() as u64).wrapping_add(tensor.byte_offset))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.tensor().device.device_id.cast_unsigned()
    }

    /// The type of the elements.
    #[must_use]
    pub fn element(&self) -> Element {
        self.tensor().dtype
    }

    /// The extents.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        let tensor = self.tensor();
        match tensor.ndim {
            ..=0 => &[],
            // SAFETY: the array has that many extents, as was checked or made, and lives as long as the structure.
            ndim => unsafe { core::slice::from_raw_parts(tensor.shape, ndim.cast_unsigned() as usize) },
        }
    }

    /// The strides, in elements; nothing where the elements lie in order, without gaps.
    #[must_use]
    pub fn strides(&self) -> Option<&[i64]> {
        let tensor = self.tensor();
        match tensor.ndim {
            _ if tensor.strides.is_null() => None,
            ..=0 => Some(&[]),
            ndim => {
                let ndim = ndim.cast_unsigned() as usize;
                // SAFETY: as above.
                Some(unsafe { core::slice::from_raw_parts(tensor.strides, ndim) })
            }
        }
    }

    /// Whether the elements lie in order, without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let Some(strides) = self.strides() else { return true };
        let Some(wanted) = in_order(self.shape()) else { return false };
        if self.shape().contains(&0) {
            return true;
        }
        let matters = self.shape().iter().map(|&extent| extent != 1);
        strides.iter().zip(&*wanted).zip(matters).all(|((a, b), matters)| !matters || a == b)
    }

    /// Bytes from the first element to the end of the last.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // It was checked when the value was made.
        self.checked_bytes().unwrap_or(0)
    }

    /// Whether the producer forbids writing.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        // SAFETY: the structure is owned and valid for as long as this value.
        unsafe { self.0.as_ref().flags & READ_ONLY != 0 }
    }

    fn checked_bytes(&self) -> Option<u64> {
        if self.shape().iter().any(|&extent| extent < 0) {
            return None;
        }
        // SAFETY: the structure is owned and valid for as long as this value.
        let bits = self.element().size_bits(unsafe { self.0.as_ref().flags });
        let bytes = match self.strides() {
            Some(strides) => span(self.shape(), strides, bits)?,
            None => span(self.shape(), &in_order(self.shape())?, bits)?,
        };
        let first = (self.tensor().data.addr() as u64).checked_add(self.tensor().byte_offset)?;
        first.checked_add(bytes).map(|_end| bytes)
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let raw = self.0.as_ptr();
        // SAFETY: the structure is owned; whoever has it last calls its deleter, once.
        unsafe {
            if let Some(deleter) = (*raw).deleter {
                deleter(raw);
            }
        }
    }
}

/// The strides of elements in order; nothing when they cannot be counted.
fn in_order(extents: &[i64]) -> Option<Box<[i64]>> {
    let mut strides = vec![0; extents.len()].into_boxed_slice();
    let mut stride = 1i64;
    for (place, &extent) in strides.iter_mut().zip(extents).rev() {
        *place = stride;
        stride = stride.checked_mul(extent.max(1))?;
    }
    Some(strides)
}

/// Bytes from the first element to the end of the last, of so many bits each; nothing when there are elements before the
/// first, or too many.
fn span(extents: &[i64], strides: &[i64], bits: u64) -> Option<u64> {
    if extents.contains(&0) {
        return Some(0);
    }
    let mut last = 0u64;
    for (&extent, &stride) in extents.iter().zip(strides) {
        let steps = u64::try_from(extent - 1).ok()?;
        if steps > 0 {
            last = last.checked_add(steps.checked_mul(u64::try_from(stride).ok()?)?)?;
        }
    }
    last.checked_add(1)?.checked_mul(bits).map(|bits| bits.div_ceil(8))
}
