//! Giving free page-locked memory back.

use std::time::Duration;

use super::allocator::{ONLY, PinnedAllocator};
use crate::alloc::{Age, DeviceAllocator, EmptyOptions};
use crate::error::Result;

impl PinnedAllocator {
    /// Looks which streams have passed what was freed, and waits for nothing, but for a device that was reset
    /// since: it is waited for, because its events are gone. Requests do so by themselves when they find no free
    /// block.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::error::Error::Driver) when an event cannot be asked for; a device that reports a fault is
    /// not taken for one that is done.
    pub fn process_events(&self) -> Result<()> {
        self.ends.heed();
        let looked = self.heap.look_at_streams(ONLY);
        keep_at_most(&self.heap, self.options.max_cached);
        looked
    }

    /// Gives all free memory back to the driver: whole regions, in the virtual form chunks anywhere. Waits for nothing
    /// (as [`process_events`](Self::process_events)); what streams may still use stays. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::error::Error::Driver) when the driver refuses; what it took before that is given back.
    pub fn empty_cache(&self) -> Result<u64> {
        self.empty(EmptyOptions { wait: false, ..EmptyOptions::default() })
    }

    /// The same, but waits for the streams that used the memory.
    ///
    /// # Errors
    ///
    /// As [`empty_cache`](Self::empty_cache).
    pub fn empty_cache_waiting(&self) -> Result<u64> {
        self.empty(EmptyOptions::default())
    }

    /// Gives free memory back until at most `keep` bytes are held, longest idle first. Waits for nothing. Returns the
    /// bytes given back.
    ///
    /// # Errors
    ///
    /// As [`empty_cache`](Self::empty_cache).
    pub fn trim(&self, keep: u64) -> Result<u64> {
        self.ends.heed();
        self.bring_back();
        self.heap.trim(ONLY, keep)
    }

    /// Gives free memory back that has been idle for at least so long. Waits for nothing. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// As [`empty_cache`](Self::empty_cache).
    pub fn trim_older(&self, age: Duration) -> Result<u64> {
        self.empty(EmptyOptions { min_age: Some(Age::Time(age)), wait: false, ..EmptyOptions::default() })
    }

    fn empty(&self, options: EmptyOptions) -> Result<u64> {
        self.ends.heed();
        self.bring_back();
        self.heap.empty_cache_with(None, &options)
    }
}

/// Gives free memory back beyond what may be kept, if there is a limit.
pub(super) fn keep_at_most(heap: &DeviceAllocator, most: Option<u64>) {
    let Some(most) = most else { return };
    let Ok(stats) = heap.stats(ONLY) else { return };
    let active = stats.active_bytes.all.current.max(0) as u64;
    let keep = active.saturating_add(most);
    if heap.held_bytes(ONLY).unwrap_or(0) > keep {
        // What the driver refuses to take back stays; the next call tries again.
        let _given_back = heap.trim(ONLY, keep);
    }
}
