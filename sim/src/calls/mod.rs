//! The ACL calls as methods of [`Sim`](crate::Sim), by subject. They check the current device,
//! translate device numbers, tell the use checker what the host does, and leave the rest to the
//! model.

mod allocators;
mod callbacks;
mod captures;
mod copies;
mod copies_many;
mod device;
mod handles;
mod heap;
#[cfg(target_os = "linux")]
mod ipc_events;
#[cfg(not(target_os = "linux"))]
mod ipc_events_none;
mod jobs;
mod kernels;
mod peers;
mod pools;
mod queries;
mod settings;
#[cfg(target_os = "linux")]
mod share;
mod stream_more;
mod streams;
mod vmm;

pub use copies_many::{BatchAttribute, BatchCopy, BatchRefusal, Pitched};
pub use heap::MallocAttribute;
#[cfg(target_os = "linux")]
pub use ipc_events::IpcEventHandle;
pub use queries::{MemoryUsage, Utilization};
#[cfg(target_os = "linux")]
pub use share::Share;
