//! Random programs on the allocator, each beside a model that knows only what a program can know.
//!
//! ```text
//!   reference   what a program may do next; proptest makes programs of it and shrinks them
//!       │
//!   operation ──► world: does it, compares everything ──► surface: the allocator, in Rust or in C
//!                   │                                 └─► machine: streams, work, bytes, failures
//!                   └─ model: what must be live, where
//! ```
//!
//! The property tests of the repository (`tests/state_machine*.rs`) and the fuzz targets run the same programs.

pub mod ground;
pub mod machine;
mod model;
pub mod operation;
pub mod partner;
pub mod reference;
pub mod runner;
pub mod setup;
pub mod surface;
pub mod world;
