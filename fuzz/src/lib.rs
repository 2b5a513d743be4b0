//! What the fuzz targets check, apart from the fuzzer, so that a test can run it too.
//!
//! | target | input | what must hold |
//! |---|---|---|
//! | `config` | texts of up to three environment variables | see [`config`] |
//! | `trace` | a trace file | see [`trace`] |
//! | `snapshot` | a snapshot: a pickle or JSON | see [`snapshot`] |
//! | `operations` | a [`program::Program`]: settings and operations with injected failures | see [`world`] |
//! | `programs` | a [`proof::operation::Program`] over everything public | see [`proof::world`] |
//! | `abi` | calls of the C functions with arguments of any kind | see [`abi`] |
//! | `handles` | messages of exported blocks | see [`handles`] |

pub mod abi;
pub mod config;
pub mod handles;
pub mod on_device;
pub mod program;
pub mod snapshot;
pub mod trace;
pub mod world;
