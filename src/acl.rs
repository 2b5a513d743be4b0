//! The vendor's runtime library (ACL), loaded at run time and called with typed errors.
//!
//! ```text
//!  ffi/acl/acl_runtime.h --bindgen--> sys     types, layout checks, a table of nullable pointers
//!                                      |
//!                                    table    finds the library, fills the table: Acl
//!                                      |
//!                                   result    one method per call, on Acl: Result instead of a code
//! ```
//!
//! Nothing is linked: a program with this crate starts on a machine without an NPU, and one build
//! serves CANN 8.0 to 9.x, whose libraries differ in the calls they have. A call that the loaded
//! library lacks answers an error that names the missing symbol
//! ([`DriverError::missing_symbol`](crate::driver::DriverError)).
//!
//! Rules:
//! 1. A library once loaded is never unloaded: it runs threads of its own.
//! 2. `aclFinalize` is never called: it would tear down what others in the process use.
//! 3. A call that succeeds neither allocates nor formats; arguments become text only for an error.

pub mod codes;
mod result;
mod table;

/// The generated declarations: names, types and layouts as in `ffi/acl/acl_runtime.h`.
#[allow(missing_docs, non_camel_case_types, non_snake_case, dead_code)]
#[rustfmt::skip]
pub mod sys;

pub use result::AllocatorFunctions;
pub use table::{Acl, Attempt, LIBRARY_VARIABLE, LoadError, REQUIRED, Search};
