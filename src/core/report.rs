//! The error of a request that nothing could serve: what was there, who holds it, and what would help.

use super::Core;
use super::block::State;
use super::plan::Request;
use crate::error::{Error, OutOfMemory, OutOfMemoryCause};
use crate::hook::Action;

impl Core {
    /// The error for a request that nothing could serve; the facade adds the device's own figures.
    pub(crate) fn out_of_memory(&mut self, request: &Request) -> Error {
        self.tally.ooms += 1;
        self.note(Action::OutOfMemory, 0, request.requested, request.handle);
        let over = self.limit.is_some_and(|limit| self.held() + request.len > limit);
        let cause = if over && !request.device_full {
            OutOfMemoryCause::Limit
        } else if request.no_space && !request.device_full {
            OutOfMemoryCause::AddressSpace
        } else {
            OutOfMemoryCause::Device
        };
        Error::OutOfMemory(Box::new(OutOfMemory {
            device: self.limits.device,
            requested: request.requested,
            cause,
            during_capture: self.capturing > 0,
            allocated: 0,
            active: 0,
            reserved: self.tally.reserved.stats[0].current as u64,
            cached_handles: self.cached.len() as u64 * self.limits.granule,
            largest_free: self.largest_free(),
            device_free: 0,
            device_total: self.limits.total,
            limit: self.limit,
            holders: self.holders(),
            advice: self.advice(cause),
        }))
    }

    /// The largest free block of any stream and class, bytes.
    fn largest_free(&self) -> u64 {
        let bins = self.streams.iter().flat_map(|state| state.bins.iter());
        bins.map(|(_, bins)| bins.largest(&self.blocks)).max().unwrap_or(0)
    }

    /// The streams that hold most live bytes.
    fn holders(&self) -> Vec<(u64, u64)> {
        /// As many as a person wants to read.
        const MOST: usize = 4;
        let mut bytes = vec![0; self.streams.len()];
        for (_, block) in
            self.blocks.iter().filter(|(_, block)| matches!(block.state, State::Live | State::Waiting))
        {
            bytes[block.home as usize] += block.len;
        }
        let mut holders: Vec<_> =
            self.streams.iter().zip(bytes).map(|(state, n)| (state.handle.0, n)).collect();
        holders.retain(|&(_, bytes)| bytes > 0);
        holders.sort_by_key(|&(_, bytes)| core::cmp::Reverse(bytes));
        holders.truncate(MOST);
        holders
    }

    fn advice(&self, cause: OutOfMemoryCause) -> &'static str {
        match cause {
            OutOfMemoryCause::Limit => "Raise per_process_memory_fraction, or free blocks.",
            OutOfMemoryCause::AddressSpace => "Set reservation_gb lower, or free segments with empty_cache.",
            OutOfMemoryCause::Device if !self.config.expandable_segments => {
                "Set expandable_segments:True, so that idle memory can be moved together."
            }
            OutOfMemoryCause::Device if !self.reservable => {
                "Address ranges cannot be reserved here, so idle memory cannot be moved together; free blocks."
            }
            OutOfMemoryCause::Device => "Free blocks, or use less memory outside this allocator.",
        }
    }
}
