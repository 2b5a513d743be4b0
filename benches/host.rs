//! What page-locked memory costs: a pair from the cache, beside the device allocator's pair and beside taking the
//! memory of the system each time.
//!
//! `cargo bench --bench host`. Nothing fails because a machine is slow; the last columns are the ratios that the
//! project aims at: at most 1.2 and at most 0.1.

use std::hint::black_box;
use std::sync::Arc;

use ascend_alloc::Config;
use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_sim::{BackingMode, Sim, SimConfig};

mod common;

use common::unit::{self, Cost};
use common::{Bed, SIZES};

/// Pairs in a batch, and before the first one.
const BATCH: u32 = 1_000;
/// Page-locked blocks that are live beside the ones measured.
const OTHERS: u64 = 1_000;

fn main() {
    println!("L = {:.1} ns, one uncontended lock and unlock of a parking_lot mutex", unit::unit());
    let device = Bed::simulated(Config::default());
    let config = SimConfig { backing: BackingMode::MetadataOnly, checker: false, ..SimConfig::default() };
    let driver = Arc::new(SimDriver::new(Sim::new(config)));
    let pinned = PinnedAllocator::new(PinnedOptions::default(), driver).expect("an allocator");
    let others: Vec<_> = (0..OTHERS).map(|n| pinned.allocate(512 + n * 1024, 0).expect("memory")).collect();
    println!(
        "{:>8} {:>12} {:>12} {:>16} {:>16} {:>10} {:>10}",
        "", "page-locked", "device", "used on a stream", "malloc+mlock", "/ device", "/ mlock"
    );
    for (name, bytes) in SIZES {
        let cached = cost(|| pinned_pair(&pinned, black_box(bytes)));
        let of_device = cost(|| {
            let block = device.allocator.allocate(0, black_box(bytes), 0, Stream(0)).expect("memory");
            device.allocator.deallocate(black_box(block)).expect("freed");
        });
        let used = cost(|| {
            let ptr = pinned.allocate(black_box(bytes), 0).expect("memory");
            pinned.record_use(ptr, 0, Stream(0)).expect("recorded");
            pinned.deallocate(ptr).expect("freed");
        });
        let locked = locked_pair(bytes)
            .then(|| unit::cost(8, || (0..8).for_each(|_| _ = locked_pair(black_box(bytes)))));
        println!(
            "{name:>8} {:>9.1} ns {:>9.1} ns {:>13.1} ns {:>16} {:>10.2} {:>10}",
            cached.nanos,
            of_device.nanos,
            used.nanos,
            locked.as_ref().map_or("not allowed".to_owned(), |cost| format!("{:.0} ns", cost.nanos)),
            cached.nanos / of_device.nanos,
            locked.as_ref().map_or("-".to_owned(), |cost| format!("{:.5}", cached.nanos / cost.nanos)),
        );
    }
    for ptr in others {
        pinned.deallocate(ptr).expect("freed");
    }
}

fn cost(mut pair: impl FnMut()) -> Cost {
    let mut batch = || (0..BATCH).for_each(|_| pair());
    batch();
    unit::cost(BATCH, batch)
}

fn pinned_pair(pinned: &PinnedAllocator, bytes: u64) {
    let ptr = pinned.allocate(bytes, 0).expect("memory");
    pinned.deallocate(black_box(ptr)).expect("freed");
}

/// Takes memory of the system, locks its pages, and gives it back; false where the system's limit forbids it.
fn locked_pair(bytes: u64) -> bool {
    let mut memory: Vec<u8> = Vec::with_capacity(bytes as usize);
    let start = memory.as_mut_ptr().cast();
    // SAFETY: the memory is this function's, for as long as it is locked.
    let locked = unsafe { rustix::mm::mlock(start, bytes as usize) }.is_ok();
    if locked {
        // SAFETY: as above.
        let unlocked = unsafe { rustix::mm::munlock(start, bytes as usize) };
        debug_assert!(unlocked.is_ok());
    }
    black_box(memory);
    locked
}
