//! A caching allocator for Ascend NPU memory on ACL's virtual-memory calls.

pub mod acl;
mod alloc;
pub mod config;
#[forbid(unsafe_code)]
mod core;
pub mod driver;
pub mod error;
#[forbid(unsafe_code)]
mod front;
pub mod hook;
mod publish;
pub mod stats;
mod sync;

pub use self::core::snapshot::{BlockSnapshot, BlockState, SegmentSnapshot, Snapshot};
pub use alloc::{BlockInfo, DeviceAlloc, DeviceAllocator, DeviceBuffer, DevicePtr};
pub use config::Config;
pub use error::{Error, Result};
pub use stats::Stats;

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
