//! Pools of `aclrtMemPoolCreate`: blocks taken and given back in the order of streams.
//!
//! ```text
//!   used      a program has the block
//!   spare     given back behind a point of a stream; the same stream may have it again at once,
//!             others when the host knows the point to be done
//! ```
//!
//! Reserved bytes are those of both. Spare blocks above the release threshold go back to the device
//! when the host waits for something. This module keeps the books; the calls move memory.

use std::collections::HashMap;

use crate::exec::Mark;
use crate::made::Made;
use crate::memory::Location;

/// Where pools' handles start.
const POOLS: u64 = 0xe000_0000_0000;

/// What a pool is created with: `aclrtMemPoolProps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolProps {
    /// Must be 0 (pinned).
    pub allocation_type: u32,
    /// Must be 0 (no shareable handle).
    pub handle_type: u32,
    /// A device, by the process's number.
    pub location: Location,
    /// The most bytes the pool may reserve; 0 is all of the device.
    pub max_size: u64,
    /// Whether all reserved bytes of the structure are 0, as they must be.
    pub reserved_zero: bool,
}

/// Attributes of pools: `aclrtMemPoolAttr`.
pub(crate) mod pool_attr {
    pub(crate) const REUSE_FOLLOW_EVENTS: u32 = 1;
    pub(crate) const REUSE_INTERNAL: u32 = 3;
    pub(crate) const RELEASE_THRESHOLD: u32 = 4;
    pub(crate) const RESERVED_CURRENT: u32 = 5;
    pub(crate) const RESERVED_HIGH: u32 = 6;
    pub(crate) const USED_CURRENT: u32 = 7;
    pub(crate) const USED_HIGH: u32 = 8;
}

/// A block given back.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The stream, by its handle.
    stream: u64,
    /// Behind which point of it.
    pub(crate) mark: Mark,
}

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The driver's number.
    pub(crate) device: u32,
    max: u64,
    pub(crate) threshold: u64,
    reuse: [u64; 3],
    /// Start to length.
    used: HashMap<u64, u64>,
    spare: Vec<Spare>,
    reserved: Level,
    in_use: Level,
    /// Its handle is gone; it lives until its blocks come back.
    destroyed: bool,
    made: Made,
}

/// Bytes, and the most there were.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    now: u64,
    high: u64,
}

impl Level {
    fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }
}

/// All pools of a machine.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: HashMap<u64, Pool>,
    /// Start of each used block to its pool.
    owners: HashMap<u64, u64>,
    next: u64,
}

impl Default for Pools {
    fn default() -> Self {
        Self { pools: HashMap::new(), owners: HashMap::new(), next: POOLS }
    }
}

impl Pools {
    pub(crate) fn create(&mut self, device: u32, max: u64) -> u64 {
        let handle = self.next;
        self.next += 0x100;
        let pool = Pool {
            device,
            max,
            threshold: 0,
            reuse: [1; 3],
            used: HashMap::new(),
            spare: Vec::new(),
            reserved: Level::default(),
            in_use: Level::default(),
            destroyed: false,
            made: Made::now(),
        };
        self.pools.insert(handle, pool);
        handle
    }

    /// One line for each pool whose handle is valid, with the call that made it.
    pub(crate) fn left(&self) -> Vec<String> {
        let live = self.pools.iter().filter(|(_, pool)| !pool.destroyed);
        let line = |(handle, pool): (&u64, &Pool)| {
            format!("pool {handle:#x} of device {}, made by {}", pool.device, pool.made)
        };
        let mut lines: Vec<String> = live.map(line).collect();
        lines.sort();
        lines
    }

    /// A pool whose handle is valid.
    pub(crate) fn get(&mut self, handle: u64) -> Option<&mut Pool> {
        self.pools.get_mut(&handle).filter(|pool| !pool.destroyed)
    }

    /// The handle is gone: what is spare is given back by the caller, what is used when it comes.
    pub(crate) fn destroy(&mut self, handle: u64) -> Option<Vec<Spare>> {
        let pool = self.get(handle)?;
        pool.destroyed = true;
        let spare = std::mem::take(&mut pool.spare);
        if pool.used.is_empty() {
            self.pools.remove(&handle);
        }
        Some(spare)
    }

    /// Whether there is any pool.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// A spare block of at least that size that a stream may have now, and that wastes least.
    pub(crate) fn take_spare(
        &mut self,
        handle: u64,
        len: u64,
        stream: u64,
        known: impl Fn(&Mark) -> bool,
    ) -> Option<(u64, u64)> {
        let pool = self.get(handle)?;
        let fits = |spare: &Spare| {
            spare.len >= len
                && spare.len <= len.saturating_mul(2)
                && (spare.stream == stream || known(&spare.mark))
        };
        let hits = pool.spare.iter().enumerate().filter(|(_, spare)| fits(spare));
        let (index, _) = hits.min_by_key(|(_, spare)| spare.len)?;
        let Spare { start, len, .. } = pool.spare.swap_remove(index);
        pool.in_use.add(len);
        pool.used.insert(start, len);
        self.owners.insert(start, handle);
        Some((start, len))
    }

    /// A new block of the device.
    pub(crate) fn add(&mut self, handle: u64, start: u64, len: u64) {
        if let Some(pool) = self.get(handle) {
            pool.reserved.add(len);
            pool.in_use.add(len);
            pool.used.insert(start, len);
            self.owners.insert(start, handle);
        }
    }

    /// The length of a used block.
    pub(crate) fn len_of(&self, start: u64) -> Option<u64> {
        self.pools.get(self.owners.get(&start)?)?.used.get(&start).copied()
    }

    /// A block comes back behind a point of a stream.
    pub(crate) fn give_back(&mut self, start: u64, stream: u64, mark: Mark) {
        let pool = self.owners.remove(&start).and_then(|handle| self.pools.get_mut(&handle));
        if let Some(pool) = pool
            && let Some(len) = pool.used.remove(&start)
        {
            pool.in_use.now -= len;
            pool.spare.push(Spare { start, len, stream, mark });
        }
    }

    /// Takes out the spare blocks, of one device or all, that go back to it: those whose point is
    /// done, as far as a pool reserves more than `keep` says.
    pub(crate) fn release(
        &mut self,
        device: Option<u32>,
        keep: impl Fn(u64, &Pool) -> Option<u64>,
        done: impl Fn(&Mark) -> bool,
    ) -> Vec<Spare> {
        let mut gone = Vec::new();
        for (&handle, pool) in &mut self.pools {
            let keep = if pool.destroyed { Some(0) } else { keep(handle, pool) };
            let Some(keep) = keep.filter(|_| device.is_none_or(|device| device == pool.device)) else {
                continue;
            };
            let mut index = 0;
            while index < pool.spare.len() && pool.reserved.now > keep {
                if done(&pool.spare[index].mark) {
                    let spare = pool.spare.swap_remove(index);
                    pool.reserved.now -= spare.len;
                    gone.push(spare);
                } else {
                    index += 1;
                }
            }
        }
        self.pools.retain(|_, pool| !(pool.destroyed && pool.used.is_empty() && pool.spare.is_empty()));
        gone
    }

    /// The device was reset: its pools are gone.
    pub(crate) fn forget_device(&mut self, device: u32) {
        self.pools.retain(|_, pool| pool.device != device);
        let pools = &self.pools;
        self.owners.retain(|_, handle| pools.contains_key(handle));
    }
}

impl Pool {
    /// Whether the pool may reserve so many bytes more.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.max == 0 || self.reserved.now.saturating_add(len) <= self.max
    }

    /// The value of an attribute.
    pub(crate) fn attribute(&self, attribute: u32) -> Option<u64> {
        Some(match attribute {
            pool_attr::REUSE_FOLLOW_EVENTS..=pool_attr::REUSE_INTERNAL => self.reuse[attribute as usize - 1],
            pool_attr::RELEASE_THRESHOLD => self.threshold,
            pool_attr::RESERVED_CURRENT => self.reserved.now,
            pool_attr::RESERVED_HIGH => self.reserved.high,
            pool_attr::USED_CURRENT => self.in_use.now,
            pool_attr::USED_HIGH => self.in_use.high,
            _ => return None,
        })
    }

    /// Sets an attribute; false if it does not exist or cannot be set to that.
    pub(crate) fn set_attribute(&mut self, attribute: u32, value: u64) -> bool {
        match attribute {
            pool_attr::REUSE_FOLLOW_EVENTS..=pool_attr::REUSE_INTERNAL => {
                self.reuse[attribute as usize - 1] = value;
            }
            pool_attr::RELEASE_THRESHOLD => self.threshold = value,
            // A peak can only be started anew.
            pool_attr::RESERVED_HIGH if value == 0 => self.reserved.high = self.reserved.now,
            pool_attr::USED_HIGH if value == 0 => self.in_use.high = self.in_use.now,
            _ => return false,
        }
        true
    }
}
