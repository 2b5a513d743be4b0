//! Operations of candle whose device memory comes from `ascend-alloc`.
//!
//! An operation of this crate is a custom operation of candle: it copies its inputs to the device through
//! page-locked memory, runs work there on blocks of a [`DeviceAllocator`](ascend_alloc::DeviceAllocator), and
//! copies the result back. One operation may chain as many steps as it likes; what they hand to one another stays
//! on the device. Gradients work as for any custom operation.
//!
//! ```
//! use std::sync::Arc;
//! use ascend_alloc::driver::{SimDriver, Stream};
//! use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
//! use ascend_alloc::{Config, DeviceAllocator};
//! use ascend_alloc_candle::Npu;
//! use ascend_sim::{Sim, SimConfig};
//! use candle_core::{Device, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = Arc::new(SimDriver::new(Sim::new(SimConfig::default())));
//! let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver.clone())?);
//! let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?);
//! let npu = Npu::new(allocator.clone(), pinned, 0, Stream(0));
//!
//! // max(x, 0) + 1, in two steps on the device.
//! let op = npu.op1("relu then one more", |pass, x| {
//!     let positive = pass.on_host([x], x.shape(), |[x], y: &mut [f32]| {
//!         y.iter_mut().zip(x).for_each(|(y, x)| *y = x.max(0.0));
//!     })?;
//!     pass.on_host([&positive], positive.shape(), |[x], y: &mut [f32]| {
//!         y.iter_mut().zip(x).for_each(|(y, x)| *y = x + 1.0);
//!     })
//! });
//! let x = Tensor::new(&[-2.0f32, 3.0], &Device::Cpu)?;
//! assert_eq!(x.apply_op1(op)?.to_vec1::<f32>()?, [1.0, 4.0]);
//! assert_eq!(allocator.stats(0)?.allocated_bytes.all.current, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # What candle allows, and what that means
//!
//! **candle has no hook for an allocator, and no devices but its own** (CPU, CUDA, Metal: closed enums). So
//!
//! - a tensor of candle never lives on the NPU. Each operation copies in and copies out; only within one operation does data
//!   stay there. Put as much as possible into one operation: a whole layer rather than a product.
//! - memory of tensors on the host is the global allocator's: `Tensor` holds a `Vec`. Page-locked memory is a stop on the way, not
//!   where tensors live.
//! - kernels are the caller's. [`Pass::on_host`] runs a step on the host, which is right everywhere and fast nowhere: it is
//!   for the simulator, for tests, and for steps that have no kernel yet. A step with a kernel gets addresses from
//!   [`NpuTensor::ptr`] and queues its work on [`Pass::stream`].
//! - `candle_core::Device::Cpu` is the device to use; on the others these operations answer with candle's own error.

mod npu;
mod ops;
mod values;

pub use npu::{Npu, NpuTensor, Pass};
pub use ops::{Inplace1, InplaceN, Op1, Op2, Op3};
pub use values::Element;
