//! Page-locked memory of `ascend-alloc` inside the tensors of burn, without a copy.
//!
//! A device copies from and to page-locked memory directly and beside computation. burn's tensors on the host take
//! memory of others through `Bytes::from_controller`; this crate gives them blocks of a
//! [`PinnedAllocator`](ascend_alloc::host::PinnedAllocator):
//!
//! - [`tensor`], [`tensor_data`] and [`bytes`] wrap a [`PinnedBuffer`](ascend_alloc::host::PinnedBuffer);
//! - [`load_safetensors`] reads a file, [`Batch`] fills a batch row by row, both straight into page-locked memory;
//! - [`Upload`] copies a tensor's data to a device, and [`record_use`] tells of copies that somebody else queues.
//!
//! The block belongs to the tensor. When burn drops the last owner it goes back to the allocator's cache, and it is
//! reused only when the streams that were recorded on it have passed. The allocator's statistics count it until then.
//!
//! ```
//! use std::sync::Arc;
//! use ascend_alloc::driver::SimDriver;
//! use ascend_alloc::host::{PinnedAllocator, PinnedBuffer, PinnedOptions};
//! use ascend_sim::{Sim, SimConfig};
//! use burn::tensor::{Device, Tensor};
//!
//! # fn main() -> ascend_alloc::Result<()> {
//! let driver = Arc::new(SimDriver::new(Sim::new(SimConfig::default())));
//! let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?);
//! let values = PinnedBuffer::from_slice(pinned.clone(), &[1.0f32, 2.0, 3.0, 4.0])?;
//! let place = values.ptr().address();
//!
//! let tensor: Tensor<2> = ascend_alloc_burn::tensor(values, [2, 2], &Device::flex());
//! let data = (tensor * 2.0).into_data();
//! assert_eq!(data.as_slice::<f32>().unwrap(), &[2.0, 4.0, 6.0, 8.0]);
//! // The product was computed in place: nobody else had the tensor.
//! assert_eq!(data.as_bytes().as_ptr() as u64, place);
//! drop(data);
//! assert_eq!(pinned.stats().active_bytes.current, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not do
//!
//! burn decides where results go: an operation that cannot work in place puts its result into ordinary memory. A tensor
//! on a device of burn's own (CUDA, wgpu) copies the data there, as any other. There is no Ascend backend in burn
//! 0.22, and none can be added from outside; `adapters/ASCEND_BACKEND.md` says what that would need.

mod batch;
mod controller;
mod safetensors;
mod transfer;

pub use batch::Batch;
pub use controller::{bytes, tensor, tensor_data};
pub use safetensors::{LoadError, load_safetensors};
pub use transfer::{Upload, record_use};
