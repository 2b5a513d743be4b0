//! The parts of the command `ascend-alloc`.
//!
//! ```text
//!  command ─► figures ─┬─► replay ─► rig ─► meter        trace: reads files
//!     │                ├─► timing ─► rig                 verify: blocks keep their bytes
//!     ├─► table        └─► search ─► replay              report: the figures, as JSON
//!     ├─► doctor: the runtime library of this machine; replay is on the simulator alone
//!     ├─► page: replays as one page with plots, the command `report`
//!     ├─► bandwidth: host memory to the device and back
//!     ├─► watch: running processes, the commands `top` and `metrics`
//!     └─► snapshot, convert: snapshots of PyTorch, torch_npu and this allocator; as traces
//!  all that write files ─► output
//! ```

pub mod bandwidth;
pub mod command;
pub mod convert;
pub mod doctor;
pub mod figures;
pub mod meter;
pub mod output;
pub mod page;
pub mod replay;
pub mod report;
pub mod rig;
pub mod search;
pub mod snapshot;
pub mod table;
pub mod timing;
pub mod trace;
pub mod units;
pub mod verify;
pub mod watch;
