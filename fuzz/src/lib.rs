//! What the fuzz targets check, apart from the fuzzer, so that a test can run it too.
//!
//! | target | input | what must hold |
//! |---|---|---|
//! | `config` | texts of up to three environment variables | see [`config`] |
//! | `trace` | a trace file | see [`trace`] |
//! | `snapshot` | a snapshot: a pickle or JSON | see [`snapshot`] |
//! | `operations` | a [`program::Program`]: settings and operations with injected failures | see [`world`] |

pub mod config;
pub mod program;
pub mod snapshot;
pub mod trace;
pub mod world;
