//! The device model as a drop-in `libascendcl.so`.
//!
//! ```text
//!    a program, a framework, the allocator
//!        |  C calls
//!    families: init device vmm memory copies host streams events capture callbacks ...   controls
//!        |  each call is an Entry: forked? on this surface? no panic out; pointers checked
//!    machine: the one Sim of the process, built from settings at the first call
//!        |
//!    ascend-sim
//! ```
//!
//! Role: turn pointers into numbers, answers into codes and outputs, and nothing else; the rules are
//! the model's. Null outputs are refused here, because the vendor's outermost layer does it.
//!
//! Invariants:
//! - No panic leaves a call: it becomes code 500000 with its text in `aclGetRecentErrMsg`.
//! - Calls work at any time from any thread, in destructors and exit handlers too: nothing of the
//!   library is torn down at exit, and it is never unmapped (`dlclose` leaves it where it is).
//! - A forked child gets an error from every call and touches no lock of its parent.
//!
//! Every exported symbol is listed in `symbols.txt` with the CANN version that brought it; a test
//! compares the list with the library. `include/acl_sim.h` documents the controls, the package
//! `ascend-sim` has the README.

// The names are those of the vendor's interface.
#![allow(non_snake_case)]

mod allocators;
mod batches;
mod callbacks;
mod capture;
mod controls;
mod copies;
mod device;
mod entry;
mod events;
mod fork;
mod host;
mod init;
mod machine;
mod memory;
mod messages;
mod options;
mod peers;
mod pools;
mod queries;
mod report;
mod settings;
mod sharing;
mod streams;
mod surface;
mod text;
mod types;
mod vmm;
