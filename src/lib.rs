//! A caching allocator for Ascend NPU memory on ACL's virtual-memory calls.

pub mod acl;
pub mod config;
pub mod driver;
pub mod error;

pub use error::{Error, Result};
