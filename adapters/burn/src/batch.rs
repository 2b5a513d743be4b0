//! Batches that are filled where they stay.

use std::sync::Arc;

use ascend_alloc::Result;
use ascend_alloc::host::{PinnedAllocator, PinnedBuffer, Plain};
use burn::tensor::{DType, Device, Element, Tensor, TensorData};

/// A batch under construction: rows of one length, in page-locked memory from the start, zero until they are filled.
#[derive(Debug)]
pub struct Batch<E: Element + Plain> {
    values: PinnedBuffer<E>,
    rows: usize,
    row: usize,
}

impl<E: Element + Plain> Batch<E> {
    /// A batch of `rows` rows of `row` values.
    ///
    /// # Errors
    ///
    /// `Error::Size` when the product is too large; as [`PinnedAllocator::allocate`].
    pub fn new(pinned: Arc<PinnedAllocator>, rows: usize, row: usize) -> Result<Self> {
        // A product that overflows is no length that exists, and is refused as such.
        let values = PinnedBuffer::zeroed(pinned, rows.saturating_mul(row))?;
        Ok(Self { values, rows, row })
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A row, to be filled; nothing when there is none of that number.
    pub fn row_mut(&mut self, number: usize) -> Option<&mut [E]> {
        if number >= self.rows {
            return None;
        }
        self.values.get_mut(number * self.row..(number + 1) * self.row)
    }

    /// The batch as data of shape `[rows, row]`.
    #[must_use]
    pub fn into_data(self) -> TensorData {
        let shape = [self.rows, self.row];
        crate::tensor_data(self.values, shape)
    }
}

impl Batch<f32> {
    /// The batch as a tensor of shape `[rows, row]`.
    #[must_use]
    pub fn into_tensor(self, device: &Device) -> Tensor<2> {
        Tensor::from_data(self.into_data(), (device, DType::F32))
    }
}
