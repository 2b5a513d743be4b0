//! A caching allocator for Ascend NPU memory on ACL's virtual-memory calls.
//!
//! Start with [`DeviceAllocator`]: built from a [`Config`] and a [`Driver`](driver::Driver), it hands out
//! device memory through `&self`, for all devices of the driver and from any thread. [`DeviceBuffer`] frees
//! itself; [`DeviceAlloc`] is the trait for code that takes any source of device memory.
//!
//! | layer | what | unsafe |
//! |---|---|---|
//! | [`DeviceAllocator`], [`DeviceBuffer`], [`DeviceAlloc`] | one device after another; slow calls; what is public | the trait's contract |
//! | [`host`] | page-locked host memory: the same heap with the host in place of the device; registration, transfers | where memory is touched |
//! | [`snapshot_file`] | snapshots as pickles and JSON for PyTorch's memory tools; reads those of anybody | forbidden |
//! | front cache (private) | repeated sizes without the device's lock; addresses to blocks | forbidden |
//! | core (private) | blocks, segments, chunks, streams and epochs as plain data; plans of driver calls | forbidden |
//! | [`driver`] | one method for each call of the device, and the clock | in `AclDriver` |
//! | [`acl`] | ACL: generated declarations, loading at run time, each call as a `Result` | yes |
//!
//! Sizes and addresses are bytes everywhere. A driver call, a wait or the event hook never runs under a
//! lock. Failed calls leave everything as it was. `ALLOCATOR_DESIGN.md` in the repository has the words,
//! the invariants and the policies with their figures.
//!
//! A child of a fork must not use what its parent made: no allocator, buffer or other value of this crate, and it must not drop
//! one, because drivers do not follow into the child. To `exec` and `_exit` is fine. The C library sees a fork and answers by itself.
//!
//! The feature `sim` adds `driver::SimDriver`, which runs the same allocator on the device simulator of
//! the package `ascend-sim`.

pub mod acl;
mod alloc;
pub mod config;
#[forbid(unsafe_code)]
mod core;
pub mod dlpack;
pub mod driver;
pub mod error;
#[forbid(unsafe_code)]
mod front;
pub mod history;
pub mod hook;
pub mod host;
pub mod publish;
mod signals;
pub mod snapshot;
#[forbid(unsafe_code)]
pub mod snapshot_file;
pub mod stats;
mod sync;
#[doc(hidden)]
pub mod words;

pub use self::core::snapshot::{BlockSnapshot, BlockState, SegmentSnapshot, Snapshot};
pub use alloc::{
    Age, BlockInfo, Capture, CapturedGraph, ContentStore, DeviceAlloc, DeviceAllocator, DeviceBuffer,
    DevicePtr, EmptyOptions, Export, ExportOptions, GrowableBuffer, GrowableOptions, ImportedBlock,
    Importers, Life, PoolCheckpoint, PoolId, PoolOptions, PoolRoute, PoolSource, PoolStats, Restored,
    RouteFilter, SharedHandle, SleepMode, Slept, Woken,
};
pub use config::Config;
pub use error::{Error, Result};
pub use stats::Stats;

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
