//! What a [`World`] is held to: its books, those of the machine, and the bytes of live blocks.

use std::collections::BTreeSet;
use std::sync::Arc;

use ascend_alloc::driver::DeviceId;
use ascend_alloc::{BlockState, SegmentSnapshot, Snapshot, Stats};

use super::{COUNTED, G, GRANULE, Live, M, World, assert_nothing_left};

impl World {
    /// Compares allocator, machine and shadow: invariants I1 to I5 of the scenarios, the heap
    /// checker, the use checker, the bytes of live blocks.
    #[track_caller]
    pub fn verify(&self) {
        if let Err(faults) = self.alloc.check() {
            panic!("heap checker: {faults:#?}");
        }
        let findings = self.sim.findings();
        assert!(findings.is_empty(), "use checker: {findings:#?}");
        let (mut space, mut segments) = (0, 0);
        let mut mapped = 0;
        let mut calls = [0; COUNTED.len()];
        for device in 0..self.devices {
            let stats = self.alloc.stats(device).expect("statistics");
            let snapshot = self.alloc.snapshot(device).expect("a snapshot");
            self.verify_device(device, &stats, &snapshot);
            space += stats.reserved_address_space;
            segments += stats.segment.all.current as u64;
            mapped += mappings(&snapshot);
            for (sum, (_, count)) in calls.iter_mut().zip(COUNTED) {
                *sum += count(&stats.calls);
            }
        }
        // The machine rounds what is asked for up to whole GiB.
        let reserved = self.sim.reserved_bytes();
        assert!((space..=space + segments * G).contains(&reserved), "address space: {reserved} {space}");
        assert_eq!(self.sim.mapping_count() as u64, mapped, "I3: mapped ranges");
        for (mut sum, (name, count)) in calls.into_iter().zip(COUNTED) {
            sum += self.calls_before.iter().map(count).sum::<u64>();
            // The machine does not count calls of symbols that are missing.
            assert!(sum == self.sim.count(name) || self.missing, "{sum} calls of {name}");
        }
        assert_eq!(self.sim.get_device(), self.last_current, "the current device was changed");
    }

    fn verify_device(&self, device: DeviceId, stats: &Stats, snapshot: &Snapshot) {
        let (requested, allocated) = (stats.requested_bytes.all.current, stats.allocated_bytes.all.current);
        let (active, reserved) = (stats.active_bytes.all.current, stats.reserved_bytes.all.current);
        let arrays = [
            stats.allocation,
            stats.allocated_bytes,
            stats.requested_bytes,
            stats.active,
            stats.active_bytes,
            stats.segment,
            stats.reserved_bytes,
            stats.inactive_split,
            stats.inactive_split_bytes,
        ];
        for stat in arrays.iter().flat_map(|array| [array.all, array.small, array.large]) {
            assert!(stat.allocated >= 0 && stat.freed >= 0, "sums over time never fall: {stats:?}");
        }
        // I1
        assert!(0 <= requested && requested <= active, "I1: {requested} requested, {active} active");
        let sleeping = stats.sleeping_bytes as i64;
        assert!(allocated <= active && active - sleeping <= reserved, "I1: {allocated} {active} {reserved}");
        assert!(reserved as u64 + stats.cached_handles <= self.capacity, "I1: {reserved} reserved");
        let live: Vec<_> = self.live.iter().filter(|(_, block)| block.device == device).collect();
        assert_eq!(allocated as u64, live.iter().map(|(_, block)| block.bytes).sum::<u64>(), "I1: allocated");
        assert_eq!(stats.allocation.all.current as usize, live.len(), "I1: allocations");
        let live_requested: u64 = live.iter().map(|(_, block)| block.requested).sum();
        assert!(live_requested <= requested as u64, "I1: requested");
        // I5
        let physical = reserved as u64 + stats.cached_handles;
        assert_eq!(self.sim.physical_bytes(device), physical, "I5: bytes the driver counts as ours");
        // I2
        for &(&address, block) in &live {
            if self.asleep.contains(&address) {
                continue;
            }
            assert!(self.sim.is_backed(address, block.bytes), "I2: {address:#x} {block:?} is not mapped");
            if self.contents {
                self.check_marks(address, block);
            }
        }
        verify_snapshot(device, stats, snapshot, &live, self.reused_handles);
    }

    /// I6: frees everything, empties, drops the allocator; nothing may be left.
    #[track_caller]
    pub fn close(mut self) {
        self.free_all();
        self.alloc.empty_cache(None).expect("emptied");
        self.verify();
        for device in 0..self.devices {
            let stats = self.alloc.stats(device).expect("statistics");
            let left =
                (stats.allocation.all.current, stats.active.all.current, stats.reserved_bytes.all.current);
            assert_eq!((left, stats.cached_handles), ((0, 0, 0), 0), "I6: device {device}");
            assert_eq!((stats.segment.all.current, stats.reserved_address_space), (0, 0), "I6");
        }
        let Self { sim, alloc, last_current, devices, .. } = self;
        let alloc = Arc::into_inner(alloc).expect("nobody else has the allocator");
        drop(alloc);
        assert_nothing_left(&sim, devices);
        assert_eq!(sim.get_device(), last_current, "I6: the current device was changed");
    }

    // ---- bytes ----

    /// Offsets at which a block is marked: both ends and every granule between.
    fn marks(address: u64, block: &Live) -> impl Iterator<Item = u64> {
        let last = (block.requested / 8).saturating_sub(1) * 8;
        let first_border = (address / GRANULE + 1) * GRANULE - address;
        let borders = (first_border..last).step_by((GRANULE * (1 + block.requested / (64 * M))) as usize);
        core::iter::once(0).chain(borders).chain([last]).filter(move |_| block.requested >= 8)
    }

    pub fn write_marks(&self, address: u64, block: &Live) {
        for offset in Self::marks(address, block) {
            let mark = ((block.tag << 32) | (offset >> 3)).to_le_bytes();
            self.sim.write_bytes(address + offset, &mark).expect("mapped");
        }
    }

    #[track_caller]
    pub fn check_marks(&self, address: u64, block: &Live) {
        self.check_marks_until(address, block, u64::MAX);
    }

    /// The same for the marks in the first `bytes` bytes.
    #[track_caller]
    pub fn check_marks_until(&self, address: u64, block: &Live, bytes: u64) {
        for offset in Self::marks(address, block).filter(|&offset| offset.saturating_add(8) <= bytes) {
            let mut found = [0; 8];
            self.sim.read_bytes(address + offset, &mut found).expect("mapped");
            let mark = (block.tag << 32) | (offset >> 3);
            assert_eq!(u64::from_le_bytes(found), mark, "bytes at {:#x} of {block:?}", address + offset);
        }
    }
}

/// I4 and the sums, from the snapshot alone.
fn verify_snapshot(
    device: DeviceId,
    stats: &Stats,
    snapshot: &Snapshot,
    live: &[(&u64, &Live)],
    reused_handles: bool,
) {
    let (mut allocated, mut active, mut requested, mut total) = (0, 0, 0, 0);
    let mut found = BTreeSet::new();
    for segment in &snapshot.segments {
        assert_eq!(segment.device, device);
        let mut at = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, at, "blocks tile their segment");
            at += block.size;
            assert_ne!(block.state, BlockState::InTransit, "no call is running");
            if block.state == BlockState::ActiveAllocated {
                found.insert((block.address, block.size));
                allocated += block.size;
            }
            if block.state != BlockState::Inactive {
                active += block.size;
                requested += block.requested_size;
            }
        }
        assert_eq!(at, segment.address + segment.total_size);
        total += if segment.is_asleep { 0 } else { segment.total_size };
        let free = |index: usize| {
            let block = &segment.blocks[index];
            block.state == BlockState::Inactive && !block.in_front
        };
        for index in 1..segment.blocks.len() {
            let same = segment.blocks[index - 1].stream == segment.blocks[index].stream;
            // Streams may share a handle one after the other, so equal handles say "same" only
            // while none was destroyed; the heap checker looks at that more closely.
            let mergeable = same && !reused_handles && segment.pool == 0;
            let apart = free(index - 1) && free(index) && mergeable;
            assert!(!apart, "I4: free neighbours at {:#x}", segment.blocks[index].address);
        }
    }
    let expected: BTreeSet<_> = live.iter().map(|&(&at, block)| (at, block.bytes)).collect();
    assert_eq!(found, expected, "live blocks of the snapshot");
    assert_eq!(allocated as i64, stats.allocated_bytes.all.current, "I4: allocated");
    assert_eq!(active as i64, stats.active_bytes.all.current, "I4: active");
    assert_eq!(requested as i64, stats.requested_bytes.all.current, "I4: requested");
    assert_eq!(total as i64, stats.reserved_bytes.all.current, "I4: reserved");
}

/// Mappings that the segments of a snapshot stand for: one for each chunk and each classic block.
fn mappings(snapshot: &Snapshot) -> u64 {
    let count = |segment: &SegmentSnapshot| if segment.is_asleep { 0 } else { segment.chunks };
    snapshot.segments.iter().map(count).sum()
}
