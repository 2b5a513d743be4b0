//! The front of a device: freed blocks of sizes that are likely to be asked for again, and the map
//! from addresses to blocks. Both are used without the device's lock.
//!
//! ```text
//! allocate --> shard of the stream: same size, same stream? --yes--> done, one atomic exchange
//!                                    no --> core, under the device's lock
//! free ------> address map: live? --> shard of its stream: room? --yes--> done
//!                                    no --> core
//! ```
//!
//! What sits here is free memory. It counts as reserved and not as allocated, is listed in snapshots, is
//! given back to the core before anything is mapped, moved, emptied or refused, and is known to
//! the heap checker. All data are relaxed atomics that are changed only under a shard's
//! [`Flag`](crate::sync::Flag) or the device's lock, so nothing here needs `unsafe`.

pub(crate) mod map;
pub(crate) mod shard;

pub(crate) use map::{AddressMap, Entry};
pub(crate) use shard::Front;
