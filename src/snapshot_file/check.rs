//! Makes events agree with the memory that a snapshot ends with, as PyTorch's page needs it.
//!
//! The page plays events backwards, from the segments and blocks of the snapshot to the moment that is looked at.
//! It fails at an event that took memory which is not there afterwards, at a block that is given back without
//! being there before, and at a block that lies in no segment.

use std::collections::BTreeMap;

use super::document::{Action, BlockKind, Document, Entry, Segment};

impl Document {
    /// Leaves out the events that do not agree with the segments and blocks; answers how many they were.
    ///
    /// Events and segments that were taken at one moment agree. Those of programs that went on while a snapshot
    /// was put together may not.
    pub fn leave_out_contradictions(&mut self) -> u64 {
        let mut left_out = 0;
        for (device, trace) in self.device_traces.iter_mut().enumerate() {
            let segments = self.segments.iter().filter(|segment| segment.device as usize == device);
            let mut memory = Memory::of(segments);
            // From the newest to the oldest; what is kept is marked.
            let mut keep = vec![false; trace.len()];
            for (keep, entry) in keep.iter_mut().zip(trace.iter()).rev() {
                *keep = memory.undo(entry);
                left_out += u64::from(!*keep);
            }
            let mut keep = keep.into_iter();
            trace.retain(|_| keep.next().unwrap_or(true));
        }
        left_out
    }
}

/// The memory of a device at one moment, in the past of the snapshot.
struct Memory {
    /// Ranges with memory behind them, first address to end; no two touch.
    ranges: BTreeMap<u64, u64>,
    /// Active blocks by address; whether they were given back and wait.
    active: BTreeMap<u64, bool>,
}

impl Memory {
    fn of<'a>(segments: impl Iterator<Item = &'a Segment>) -> Self {
        let mut memory = Memory { ranges: BTreeMap::new(), active: BTreeMap::new() };
        for segment in segments {
            memory.add(segment.address, segment.address.saturating_add(segment.total_size));
            let active = segment.blocks.iter().filter(|block| block.kind.is_active());
            memory.active.extend(active.map(|block| (block.address, block.kind == BlockKind::PendingFree)));
        }
        memory
    }

    /// Takes an event back; false if it cannot have led to this moment.
    fn undo(&mut self, entry: &Entry) -> bool {
        let end = entry.addr.saturating_add(entry.size);
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                // With live blocks in it, memory was there all the time.
                self.active.range(entry.addr..end).next().is_none() && self.remove(entry.addr, end)
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let apart = entry.size > 0 && self.is_apart(entry.addr, end);
                if apart {
                    self.add(entry.addr, end);
                }
                apart
            }
            Action::FreeCompleted => {
                let fits = !self.active.contains_key(&entry.addr) && self.holds(entry.addr, end);
                if fits {
                    self.active.insert(entry.addr, true);
                }
                fits
            }
            Action::FreeRequested => match self.active.get_mut(&entry.addr) {
                Some(waits) => core::mem::replace(waits, false),
                None => false,
            },
            Action::Alloc => self.active.remove(&entry.addr).is_some(),
            Action::StreamUse => self.active.contains_key(&entry.addr),
            Action::OutOfMemory | Action::Snapshot | Action::HostWait | Action::Other(_) => true,
        }
    }

    /// Whether there is memory behind all of a range.
    fn holds(&self, start: u64, end: u64) -> bool {
        self.ranges.range(..=start).next_back().is_some_and(|(_, &last)| end <= last && start < last)
    }

    /// Whether no byte of the range is in any other.
    fn is_apart(&self, start: u64, end: u64) -> bool {
        self.ranges.range(..end).next_back().is_none_or(|(_, &last)| last <= start)
    }

    /// Adds a range, and joins it with those that touch it.
    fn add(&mut self, mut start: u64, mut end: u64) {
        while let Some((&first, &last)) = self.ranges.range(..=end).next_back() {
            if last < start {
                break;
            }
            self.ranges.remove(&first);
            start = start.min(first);
            end = end.max(last);
        }
        self.ranges.insert(start, end);
    }

    /// Removes a range; false, and nothing is done, if it is not all there.
    fn remove(&mut self, start: u64, end: u64) -> bool {
        let Some((&first, &last)) = self.ranges.range(..=start).next_back() else { return false };
        if last < end || start == end {
            return false;
        }
        self.ranges.remove(&first);
        if first < start {
            self.ranges.insert(first, start);
        }
        if end < last {
            self.ranges.insert(end, last);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::{Block, Frames};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn entry(action: Action, addr: u64, size: u64) -> Entry {
        Entry {
            action,
            addr,
            size,
            stream: 0,
            time_us: None,
            pool: None,
            note: None,
            frames: Frames::from([]),
        }
    }

    /// 4 MiB at 16 MiB, with one block of 1 MiB at the start.
    fn document(kind: BlockKind, trace: Vec<Entry>) -> Document {
        let block = |address, size, kind| Block { address, size, requested_size: 0, kind, frames: [].into() };
        let segment = Segment {
            device: 0,
            address: 16 * MIB,
            total_size: 4 * MIB,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: 0,
            is_large: true,
            pool: (0, 0),
            is_expandable: true,
            is_asleep: false,
            frames: [].into(),
            blocks: vec![block(16 * MIB, MIB, kind), block(17 * MIB, 3 * MIB, BlockKind::Inactive)],
        };
        Document { segments: vec![segment], device_traces: vec![trace], ..Document::default() }
    }

    fn kept(kind: BlockKind, trace: &[Entry]) -> Vec<bool> {
        let mut document = document(kind, trace.to_vec());
        let left_out = document.leave_out_contradictions();
        assert_eq!(left_out as usize + document.device_traces[0].len(), trace.len());
        let mut rest = document.device_traces[0].iter().peekable();
        trace.iter().map(|entry| rest.next_if_eq(&entry).is_some()).collect()
    }

    #[test]
    fn events_that_led_here_are_kept() {
        let trace = [
            entry(Action::SegmentMap, 16 * MIB, 2 * MIB),
            entry(Action::Alloc, 16 * MIB, MIB),
            entry(Action::FreeRequested, 16 * MIB, MIB),
            entry(Action::FreeCompleted, 16 * MIB, MIB),
            entry(Action::SegmentUnmap, 16 * MIB, 2 * MIB),
            entry(Action::SegmentMap, 18 * MIB, 2 * MIB),
            entry(Action::SegmentMap, 16 * MIB, 2 * MIB),
            entry(Action::Alloc, 16 * MIB, MIB),
            entry(Action::OutOfMemory, 0, MIB),
        ];
        assert_eq!(kept(BlockKind::Allocated, &trace), [true; 9]);
    }

    #[test]
    fn what_the_page_cannot_take_back_is_left_out() {
        // Memory that is not in the snapshot, and a block that is not.
        let trace = [
            entry(Action::SegmentMap, 32 * MIB, 2 * MIB),
            entry(Action::SegmentMap, 18 * MIB, 4 * MIB),
            entry(Action::Alloc, 19 * MIB, MIB),
            entry(Action::FreeRequested, 18 * MIB, MIB),
            entry(Action::SegmentUnmap, 17 * MIB, 2 * MIB),
            entry(Action::Alloc, 16 * MIB, MIB),
        ];
        assert_eq!(kept(BlockKind::Allocated, &trace), [false, false, false, false, false, true]);
        // A block that waits was given back and not more.
        let trace =
            [entry(Action::FreeRequested, 16 * MIB, MIB), entry(Action::FreeCompleted, 16 * MIB, MIB)];
        assert_eq!(kept(BlockKind::PendingFree, &trace), [true, false]);
        assert_eq!(kept(BlockKind::Allocated, &trace), [false, false]);
        assert_eq!(kept(BlockKind::Inactive, &trace), [true, true]);
        // Blocks without memory, and memory that blocks are in.
        let trace = [
            entry(Action::SegmentMap, 16 * MIB, 2 * MIB),
            entry(Action::SegmentMap, 32 * MIB, 2 * MIB),
            entry(Action::Alloc, 32 * MIB, MIB),
            entry(Action::FreeRequested, 32 * MIB, MIB),
            entry(Action::FreeCompleted, 32 * MIB, MIB),
        ];
        assert_eq!(kept(BlockKind::Allocated, &trace), [false; 5]);
    }
}
