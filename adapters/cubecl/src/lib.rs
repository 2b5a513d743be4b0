//! Device memory of `ascend-alloc` under cubecl, the compute layer of burn.
//!
//! - [`AscendStorage`] is a `ComputeStorage` over a [`DeviceAllocator`](ascend_alloc::DeviceAllocator). With
//!   [`TensorMemory`] cubecl's own pools pass everything through, so that each tensor is one block of the allocator.
//! - [`AscendServer`] is a server with that memory, to be used through cubecl's `Client`: create, read, write, report,
//!   clean up. It has no compiler, so it runs no kernels.
//!
//! ```
//! use std::sync::Arc;
//! use ascend_alloc::driver::{SimDriver, Stream};
//! use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
//! use ascend_alloc::{Config, DeviceAllocator};
//! use ascend_alloc_cubecl::{AscendServer, Backend};
//! use ascend_sim::{Sim, SimConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = Arc::new(SimDriver::new(Sim::new(SimConfig::default())));
//! let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver.clone())?);
//! let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?);
//! let backend = Backend { allocator: allocator.clone(), pinned, device: 0, streams: vec![Stream(0)] };
//! let client = AscendServer::start(0, backend)?;
//!
//! let tensor = client.create_from_slice(&[1, 2, 3]);
//! assert_eq!(&client.read_one(tensor.clone()).unwrap()[..3], &[1, 2, 3]);
//! assert_eq!(allocator.stats(0)?.requested_bytes.all.current, 512);
//! drop(tensor);
//! client.memory_cleanup().unwrap();
//! assert_eq!(allocator.stats(0)?.reserved_bytes.all.current, 0);
//! # Ok(())
//! # }
//! ```
//!
//! Versions: this crate is for cubecl 0.11.3, which burn 0.22.1 uses; `ascend-alloc-cubecl-pre` is the same source for
//! cubecl 0.12.0-pre.1.

pub mod memory;
pub mod server;
pub mod storage;
mod utilities;

pub use memory::TensorMemory;
pub use server::{AscendServer, Backend};
pub use storage::{AscendResource, AscendStorage};

use cubecl_server::dry_run::LaunchMode;
