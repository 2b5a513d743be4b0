//! A model of Ascend devices: memory, streams, events and a use checker, without a device.
//!
//! ```text
//!    SimDriver (in process)        libascendcl.so (drop-in)        tests
//!            |                            |                          |
//!            +-------------+--------------+--------------------------+
//!                          |
//!    Sim: one method per ACL call, current devices, faults, counters, costs, log
//!            |                                        |
//!    memory: reservations, chunks, mappings,     exec: streams, events, captures,
//!            accounting, bytes                         scheduling, use checker
//! ```
//!
//! The README of this package lists what is modelled and every control.

mod allocators;
mod call;
mod calls;
pub mod codes;
mod config;
mod control;
mod devices;
pub mod exec;
mod hooks;
mod made;
mod memory;
mod pools;
mod refusal;
mod report;
mod settings;
mod sim;
mod threads;

pub use allocators::{AllocatorEntry, AllocatorField};
pub use calls::{
    BatchAttribute, BatchCopy, BatchRefusal, MallocAttribute, MemoryUsage, Pitched, Utilization,
};
#[cfg(target_os = "linux")]
pub use calls::{IpcEventHandle, Share};
pub use config::{BackingMode, SimConfig, Soc};
pub use control::{LogEntry, UnknownFunction};
pub use exec::{
    Access, CaptureMode, CaptureStatus, ExecMode, Executor, Finding, HostOp, LAG_NEVER, Task, WAIT_FOREVER,
    Work,
};
pub use hooks::{
    DeviceStateCallback, ExceptionCallback, ExceptionInfo, StreamStateCallback, TaskAbortCallback,
};
pub use memory::{AccessDescriptor, Location, PhysicalProp, PointerAttributes};
pub use pools::PoolProps;
pub use sim::Sim;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
