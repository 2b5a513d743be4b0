//! The front of a device: freed blocks of sizes that are likely to be asked for again, and the map
//! from addresses to blocks. Both are used without the device's lock.
//!
//! ```text
//! allocate -------> shard of the stream: same size, same stream? --yes--> done, one atomic exchange
//!                                         no --> core, under the device's lock
//! record_stream --> address map: live? --> a byte of its entry: done, nothing atomic but the store
//! free -----------> address map: live? --> shard of its stream: room? --yes--> done
//!                                         no --> core
//! ```
//!
//! | file | role |
//! |---|---|
//! | `map` | from addresses to entries, one for each block |
//! | `uses` | the part of an entry that says on which other streams the block was recorded |
//! | `streams` | which streams there are, which epochs are open and which are over |
//! | `key` | what has to agree for a block to serve a request |
//! | `counts` | statistics of a shard |
//! | `lane` | blocks of one key that other streams may still use |
//! | `ring` | the lanes of a shard |
//! | `returning` | whether large blocks would serve all that is asked for |
//! | `shard` | where blocks rest: sets, a queue, rings |
//! | `cache` | the shards of a device together |
//!
//! What sits here is free memory, or waits for other streams. It counts as reserved and not as allocated,
//! what waits also as active; it is listed in snapshots, is given back to the core before anything is
//! mapped, moved, emptied or refused, and is known to the heap checker. All data are relaxed atomics that
//! are changed only under a shard's [`Flag`](crate::sync::Flag) or the device's lock, except for the bytes
//! of `uses`; so nothing here needs `unsafe`.

mod cache;
mod counts;
mod key;
mod lane;
pub(crate) mod map;
mod returning;
mod ring;
mod shard;
mod streams;
mod uses;

pub(crate) use cache::{Freed, Front, HoldUp, Missed};
pub(crate) use map::{AddressMap, Entry, MOST_REQUESTED};
pub(crate) use shard::Rested;
pub(crate) use uses::Mask;
