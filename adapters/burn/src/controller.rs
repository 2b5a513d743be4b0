//! Page-locked blocks as burn's bytes.

use core::mem::MaybeUninit;

use ascend_alloc::host::{PinnedBuffer, Plain};
use burn::tensor::{Bytes, DType, Device, Element, Shape, Tensor, TensorData};
use cubecl_environment::bytes::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

/// The alignment that is promised. Blocks have more, but burn copies to ordinary memory with the one it is told,
/// and that has no more.
const ALIGNMENT: usize = align_of::<u128>();

/// A page-locked buffer as burn holds it.
struct Controller<T: Plain>(PinnedBuffer<T>);

/// Nothing, at an address with the alignment that is promised.
#[repr(align(16))]
struct Nothing([MaybeUninit<u8>; 0]);

impl<T: Plain> AllocationController for Controller<T> {
    fn alloc_align(&self) -> usize {
        ALIGNMENT
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self, _policy: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        if self.0.is_empty() {
            // A box of nothing takes no memory, so nothing is leaked.
            return Ok(&mut Box::leak(Box::new(Nothing([]))).0);
        }
        let bytes = core::mem::size_of_val::<[T]>(&self.0);
        // SAFETY: the buffer is borrowed alone and has that many bytes; the caller writes only initialised ones, and
        // every pattern of bytes is a value of `T`.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) })
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        if self.0.is_empty() {
            return Ok(&Box::leak(Box::new(Nothing([]))).0);
        }
        let bytes = core::mem::size_of_val::<[T]>(&self.0);
        // SAFETY: the buffer is borrowed, has that many bytes, and all of them were written; `T` has no padding.
        Ok(unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), bytes) })
    }
}

/// The buffer as burn's bytes, in place. They own it: dropping them gives the block back.
///
/// A clone of the bytes is a copy in ordinary memory.
#[must_use]
pub fn bytes<T: Plain>(buffer: PinnedBuffer<T>) -> Bytes {
    let len = core::mem::size_of_val::<[T]>(&buffer);
    // SAFETY: the controller's memory has exactly that many bytes, and all of them are initialised.
    unsafe { Bytes::from_controller(Box::new(Controller(buffer)), len) }
}

/// The buffer as the data of a tensor, in place.
///
/// A tensor that is made of it keeps the block only if it keeps the type: `Tensor::from_data(data, device)` turns
/// the elements into the device's default type, `Tensor::from_data(data, (device, dtype))` leaves them.
///
/// # Panics
///
/// When the shape has another number of elements than the buffer, as burn's own constructors do.
#[must_use]
#[track_caller]
pub fn tensor_data<E: Element + Plain, S: Into<Shape>>(buffer: PinnedBuffer<E>, shape: S) -> TensorData {
    TensorData::from_bytes(bytes(buffer), shape, E::dtype())
}

/// The buffer as a tensor of floats. On a device whose memory is the host's (`Device::flex()`) it stays in place.
///
/// # Panics
///
/// When the shape has another number of elements than the buffer, or another rank than `D`, as burn's own
/// constructors do.
#[must_use]
#[track_caller]
pub fn tensor<const D: usize>(
    buffer: PinnedBuffer<f32>,
    shape: impl Into<Shape>,
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(tensor_data(buffer, shape), (device, DType::F32))
}
