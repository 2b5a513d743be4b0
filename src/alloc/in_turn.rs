#![cfg(test)]
//! Pairs of several large lengths in turn: the front serves them without the core.

use std::sync::{Arc, OnceLock};

use ascend_sim::{BackingMode, Sim, SimConfig};

use super::DeviceAllocator;
use crate::config::Config;
use crate::driver::{SimDriver, Stream};

const M: u64 = 1 << 20;
/// Lengths in MiB, in no order.
const LENGTHS: [u64; 8] = [20, 3, 34, 7, 2, 12, 5, 9];

struct Bed {
    alloc: DeviceAllocator,
    user: Stream,
    others: [Stream; 3],
}

/// An allocator with default settings on a machine with a device of 64 GiB.
pub(super) fn on_64_gib() -> (Sim, DeviceAllocator) {
    let machine =
        SimConfig { capacity: 64 << 30, backing: BackingMode::MetadataOnly, ..SimConfig::default() };
    let sim = Sim::new(machine);
    sim.set_device(0).unwrap();
    let alloc = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone()))).unwrap();
    (sim, alloc)
}

/// An allocator that holds so many MiB of live memory.
fn bed(live: u64) -> Bed {
    let (sim, alloc) = on_64_gib();
    let stream = || Stream(sim.create_stream().unwrap());
    let (user, others) = (stream(), [stream(), stream(), stream()]);
    alloc.allocate(0, live * M, 0, Stream(0)).unwrap();
    Bed { alloc, user, others }
}

impl Bed {
    fn pair(&self, bytes: u64, used: bool) {
        let ptr = self.alloc.allocate(0, bytes, 0, Stream(0)).unwrap();
        if used {
            self.alloc.record_stream(ptr, self.user).unwrap();
        }
        self.alloc.deallocate(ptr).unwrap();
    }

    /// Blocks that have become free in the core so far.
    fn core_frees(&self) -> u64 {
        let state = self.alloc.devices.first().and_then(OnceLock::get).expect("it is used");
        state.core.lock().frees
    }

    fn in_turn(&self, lengths: &[u64], turns: usize, used: bool) {
        (0..turns).flat_map(|_| lengths).for_each(|&length| self.pair(length * M, used));
    }
}

#[test]
fn large_lengths_in_turn_leave_the_core_alone() {
    for (count, used) in [(2, false), (8, false), (2, true), (8, true)] {
        let bed = bed(32 << 10);
        bed.in_turn(&LENGTHS[..count], 8000, used);
        let before = bed.core_frees();
        bed.in_turn(&LENGTHS[..count], 500, used);
        assert_eq!(bed.core_frees(), before, "{count} lengths, used: {used}");
        bed.alloc.check().unwrap();
    }
}

/// The queue is taken back as before once a length comes that it has not: its memory serves that, nothing is mapped.
#[test]
fn another_length_gets_what_stayed() {
    let bed = bed(4 << 10);
    bed.in_turn(&LENGTHS, 2000, false);
    let before = bed.alloc.stats(0).unwrap();
    bed.pair(50 * M, false);
    let after = bed.alloc.stats(0).unwrap();
    assert_eq!(after.calls.map, before.calls.map);
    bed.alloc.check().unwrap();
}

/// Where the headroom has no room for a block of each length, they share memory as before.
#[test]
fn lengths_that_do_not_fit_beside_each_other_share_memory() {
    let bed = bed(1 << 10);
    bed.in_turn(&LENGTHS, 2000, false);
    let stats = bed.alloc.stats(0).unwrap();
    let (peak, reserved) = (stats.allocated_bytes.all.peak, stats.reserved_bytes.all.peak);
    assert!(reserved as f64 <= 1.021 * peak as f64 + (2 * M) as f64, "{reserved} for {peak}");
    bed.alloc.check().unwrap();
}

/// A program that holds nothing else had an event for each pair of 1 MiB and more.
#[test]
fn pairs_of_a_small_program_share_events() {
    const PAIRS: u64 = 10_240;
    for bytes in [64 << 10, M, 2 * M] {
        let bed = bed(2);
        let pairs = |count| (0..count).for_each(|_| bed.pair(bytes, true));
        let events = |bed: &Bed| bed.alloc.stats(0).unwrap().calls.record_event;
        pairs(4 * PAIRS);
        let before = events(&bed);
        pairs(PAIRS);
        assert!(events(&bed) - before <= PAIRS / 400, "{} of {bytes}", events(&bed) - before);
        let reserved = |bed: &Bed| bed.alloc.stats(0).unwrap().reserved_bytes.all.current as u64;
        assert!(reserved(&bed) <= 1100 * M, "{}", reserved(&bed));
        // It is at hand for anything else, and does not come back once it was given back.
        let all = bed.alloc.allocate(0, (64 << 30) - 4 * M, 0, Stream(0)).unwrap();
        bed.alloc.deallocate(all).unwrap();
        bed.alloc.empty_cache(None).unwrap();
        pairs(100);
        assert!(reserved(&bed) <= 8 * M, "{}", reserved(&bed));
        bed.alloc.check().unwrap();
    }
}

/// Memory that comes and goes between the pairs is a reason to hold no more than that.
#[test]
fn other_memory_between_pairs_leaves_no_room_for_more() {
    let bed = bed(2);
    for length in (0..20_000).map(|at| 3 + at % 37) {
        bed.pair(2 * M, true);
        bed.pair(length * M, false);
    }
    let peak = bed.alloc.stats(0).unwrap().reserved_bytes.all.peak as u64;
    assert!(peak <= 50 * M, "{peak}");
}

/// Blocks that wait for requests that do not come any more leave their part of the headroom to others.
#[test]
fn what_waits_for_nobody_gives_way() {
    let events = |bed: &Bed| {
        bed.in_turn(&[16], 600_000, true);
        let before = bed.alloc.stats(0).unwrap().calls.record_event;
        bed.in_turn(&[16], 1000, true);
        bed.alloc.stats(0).unwrap().calls.record_event - before
    };
    let alone = events(&bed(4 << 10));
    let beside = bed(4 << 10);
    for stream in (0..100).flat_map(|_| [&[Stream(0)], &beside.others[..]].concat()) {
        let ptr = beside.alloc.allocate(0, 16 * M, 0, stream).unwrap();
        beside.alloc.record_stream(ptr, beside.user).unwrap();
        beside.alloc.deallocate(ptr).unwrap();
    }
    let beside = events(&beside);
    assert!(beside <= alone + alone / 4, "{beside} events where {alone} would do");
}
