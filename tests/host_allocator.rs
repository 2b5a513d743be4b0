//! Page-locked memory: what is reused when, how much is held, and what is counted.
//!
//! The numbers of B29, B31 and B34 are those of the bug reports, but for sizes that were rounded to powers of two
//! there.

mod host_bed;

use std::time::Duration;

use ascend_alloc::Error;
use ascend_alloc::driver::{Driver, HostCopy, Stream};
use ascend_alloc::error::{HOST, OutOfMemoryCause, PointerKind};
use ascend_alloc::host::{FreeOrder, HostPtr, PinnedAllocator, PinnedOptions};
use ascend_sim::SimConfig;
use ascend_sim::exec::HostOp;
use host_bed::{Bed, G, M, config};

const K: u64 = 1 << 10;

#[test]
fn b29_large_sizes_are_exact_and_small_ones_leave_them_alone() {
    let bed = Bed::new(config("pinned_max_round_threshold_mb:128"));
    for (bytes, held) in [
        (204 * M, 204 * M),
        // The report has 128 MiB: a power of two. A step of an eighth is 104.
        (100 * M, 104 * M),
        (128 * M, 128 * M),
        (128 * M + 1, 128 * M + bed.pinned.page_size()),
    ] {
        let ptr = bed.alloc(bytes);
        assert_eq!(bed.reserved(), held, "{bytes}");
        bed.free(ptr);
        bed.pinned.empty_cache().unwrap();
        assert_eq!(bed.reserved(), 0);
    }
    let before = bed.regions();
    let a = bed.alloc(512 * M);
    bed.free(a);
    let b = bed.alloc(10 * K);
    let c = bed.alloc(512 * M);
    assert!(!(a.address()..a.address() + 512 * M).contains(&b.address()));
    assert_eq!(c.address(), a.address());
    assert_eq!(bed.regions() - before, 2);
    // The report has 16 KiB, one block of its own: small blocks share regions of 1 MiB here.
    assert_eq!(bed.reserved(), 512 * M + M);
    bed.free(b);
    bed.free(c);
    bed.end();
}

#[test]
fn b31_a_larger_request_never_gets_a_smaller_block() {
    let bed = Bed::new(PinnedOptions {
        max_cached: Some(1024 * M),
        ..config("pinned_max_round_threshold_mb:128,pinned_max_cached_size_mb:1024")
    });
    let a = bed.alloc(150 * M);
    bed.free(a);
    let b = bed.alloc(200 * M);
    assert_ne!(b.address(), a.address());
    assert!(bed.pinned.block_bytes(b).unwrap() >= 200 * M);
    assert_eq!(bed.reserved(), 350 * M);
    let c = bed.alloc(150 * M);
    assert_eq!(c.address(), a.address());
    bed.free(b);
    let d = bed.alloc(190 * M);
    assert_eq!(d.address(), b.address(), "the block of 200 MiB is split");
    assert_eq!(bed.active(), (2, 340 * M as i64));
    assert_eq!(bed.reserved(), 350 * M);
    bed.free(c);
    bed.free(d);
    bed.end();
}

#[test]
fn b34_statistics_come_back_to_zero() {
    for copied in [true, false] {
        let bed = Bed::new(PinnedOptions::default());
        let s0 = bed.stream();
        for _ in 0..2 {
            let h = bed.alloc(M);
            if copied {
                bed.copy(h, s0);
            }
            bed.free(h);
            assert_eq!(bed.active(), if copied { (1, M as i64) } else { (0, 0) }, "it waits for the stream");
            bed.finish(s0);
            bed.pinned.process_events().unwrap();
            assert_eq!(bed.active(), (0, 0), "copied: {copied}");
        }
        let stats = bed.pinned.stats();
        assert_eq!((stats.active_bytes.allocated, stats.active_bytes.freed), (2 * M as i64, 2 * M as i64));
        assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (2, 2));
        assert_eq!((bed.reserved(), bed.regions(), stats.num_host_alloc), (M, 1, 1));
        bed.end();
    }
    let bed = Bed::new(config("pinned_max_cached_size_mb:64"));
    let (a, b) = (bed.alloc(40 * M), bed.alloc(40 * M));
    bed.free(a);
    assert_eq!(bed.sim.count("aclrtFreeHost"), 0);
    bed.free(b);
    assert_eq!((bed.sim.count("aclrtFreeHost"), bed.reserved()), (1, 40 * M));
    bed.end();
}

#[test]
fn a_slow_stream_holds_back_nobody_else() {
    let bed = Bed::new(PinnedOptions::default());
    let (slow, quick) = (bed.stream(), bed.stream());
    let pending = bed.alloc(20 * M);
    bed.copy(pending, slow);
    bed.free(pending);
    let first = bed.alloc(20 * M);
    for _ in 0..1000 {
        let ptr = bed.pinned.allocate(20 * M, 0).unwrap();
        bed.copy(ptr, quick);
        bed.free(ptr);
        bed.finish(quick);
    }
    assert_eq!(bed.regions(), 3, "the pending buffer, the first one, and one that served all others");
    bed.pinned.process_events().unwrap();
    assert_eq!(bed.pinned.stats().waiting_bytes, 20 * M);
    bed.finish(slow);
    bed.pinned.process_events().unwrap();
    assert_eq!(bed.pinned.stats().waiting_bytes, 0);
    bed.free(first);
    bed.end();
}

/// What a program that writes into a fresh buffer does to one that a copy still reads.
fn reuse_too_early(options: PinnedOptions) -> usize {
    let bed = Bed::new(options);
    let stream = bed.stream();
    let a = bed.alloc(64 * K);
    bed.copy(a, stream);
    bed.free(a);
    let b = bed.alloc(64 * K);
    bed.sim.touch(HostOp::Write, b.address(), 64 * K);
    let found = bed.sim.take_findings().len();
    bed.sim.synchronize_stream(stream.0).expect("a stream");
    bed.free(b);
    bed.end();
    found
}

#[test]
fn the_order_rule_is_what_the_checker_sees() {
    assert_eq!(reuse_too_early(PinnedOptions::default()), 0);
    assert!(reuse_too_early(PinnedOptions { stream_order: false, ..PinnedOptions::default() }) > 0);
}

#[test]
fn blocks_are_aligned_as_asked_and_split_and_merged() {
    let bed = Bed::new(PinnedOptions::default());
    let page = bed.pinned.page_size();
    let odd = bed.alloc(1000);
    let paged = bed.pinned.allocate(5000, page).unwrap();
    assert_eq!(paged.address() % page, 0);
    let large = bed.pinned.allocate(3 * M, page).unwrap();
    assert_eq!(large.address() % page, 0);
    for wrong in [3, page + 1] {
        assert!(matches!(bed.pinned.allocate(1, wrong), Err(Error::Argument { name: "align", .. })));
    }
    for ptr in [odd, paged, large] {
        bed.free(ptr);
    }
    let parts: Vec<_> = (0..4).map(|_| bed.alloc(4 * M)).collect();
    let regions = bed.regions();
    parts.into_iter().for_each(|ptr| bed.free(ptr));
    let whole = bed.alloc(16 * M);
    assert_eq!(bed.regions(), regions, "four blocks have become one");
    bed.free(whole);
    bed.end();
}

#[test]
fn wrong_pointers_are_refused() {
    let bed = Bed::new(PinnedOptions::default());
    let a = bed.alloc(8 * K);
    let kind = |result: ascend_alloc::Result<()>| match result {
        Err(Error::Pointer { kind, .. }) => Some(kind),
        _ => None,
    };
    assert_eq!(kind(bed.pinned.find(a.address() + 512).map(|_| ())), Some(PointerKind::Interior));
    assert_eq!(kind(bed.pinned.find(0x1234_5000).map(|_| ())), Some(PointerKind::Foreign));
    assert_eq!(bed.pinned.find(a.address()).unwrap(), a);
    bed.free(a);
    assert_eq!(kind(bed.pinned.deallocate(a)), Some(PointerKind::NotLive));
    assert_eq!(kind(bed.pinned.record_use(a, 0, Stream(0))), Some(PointerKind::NotLive));
    assert_eq!(kind(bed.pinned.find(a.address()).map(|_| ())), Some(PointerKind::NotLive));
    assert!(bed.pinned.deallocate(HostPtr::NULL).is_ok() && bed.pinned.allocate(0, 0).unwrap().is_null());
    bed.end();
}

#[test]
fn limits_are_kept_and_said() {
    let bed = Bed::new(PinnedOptions { max_total: Some(64 * M), ..PinnedOptions::default() });
    let a = bed.alloc(40 * M);
    match bed.pinned.allocate(40 * M, 0) {
        Err(Error::OutOfMemory(report)) => {
            assert_eq!((report.device, report.cause), (HOST, OutOfMemoryCause::Limit));
            assert!(report.to_string().contains("page-locked host memory"), "{report}");
        }
        other => panic!("{other:?}"),
    }
    bed.free(a);
    // Free memory of another size gives way.
    let b = bed.alloc(60 * M);
    assert_eq!(bed.reserved(), 60 * M);
    bed.free(b);
    match bed.pinned.allocate(193 * G, 0) {
        Err(Error::Size { requested, reason }) => {
            assert_eq!(requested, 193 * G);
            assert!(reason.contains("largest_request"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let refused = PinnedAllocator::new(
        PinnedOptions { max_total: Some(0), ..PinnedOptions::default() },
        bed.driver.clone(),
    );
    assert!(matches!(refused, Err(Error::Argument { name: "max_total", .. })));
    bed.end();
}

#[test]
fn the_machine_may_have_too_little() {
    let config = SimConfig { host_capacity: 64 * M, ..SimConfig::default() };
    let bed = Bed::on(config, PinnedOptions::default());
    let a = bed.alloc(40 * M);
    match bed.pinned.allocate(40 * M, 0) {
        Err(Error::OutOfMemory(report)) => {
            assert_eq!((report.device, report.cause), (HOST, OutOfMemoryCause::Device));
            assert_eq!((report.device_free, report.device_total), (24 * M, 64 * M));
        }
        other => panic!("{other:?}"),
    }
    bed.free(a);
    let b = bed.alloc(50 * M);
    bed.free(b);
    bed.end();
}

#[test]
fn a_reserve_is_there_at_the_start_and_can_shrink() {
    let bed = Bed::new(config("pinned_reserve_segment_size_mb:256"));
    assert_eq!((bed.reserved(), bed.regions(), bed.active()), (256 * M, 1, (0, 0)));
    let parts: Vec<_> = (0..8).map(|_| bed.alloc(32 * M)).collect();
    assert_eq!((bed.reserved(), bed.regions()), (256 * M, 1));
    parts.into_iter().for_each(|ptr| bed.free(ptr));
    assert_eq!(bed.pinned.empty_cache().unwrap(), 256 * M);
    bed.end();
}

#[test]
fn memory_is_given_back_by_age_and_by_amount() {
    let bed = Bed::new(PinnedOptions::default());
    let (a, b, c) = (bed.alloc(20 * M), bed.alloc(30 * M), bed.alloc(40 * M));
    bed.free(a);
    bed.pinned.trim(u64::MAX).unwrap();
    bed.pinned.trim_older(Duration::from_secs(1)).unwrap();
    bed.sim.advance(10_000_000_000);
    bed.free(b);
    assert_eq!(bed.pinned.trim_older(Duration::from_secs(5)).unwrap(), 20 * M);
    assert_eq!(bed.reserved(), 70 * M);
    assert_eq!(bed.pinned.trim(50 * M).unwrap(), 30 * M);
    bed.free(c);
    bed.end();
}

#[test]
fn old_memory_decays_by_itself() {
    let bed = Bed::new(PinnedOptions { decay: Some(Duration::from_millis(100)), ..PinnedOptions::default() });
    let a = bed.alloc(40 * M);
    bed.free(a);
    for _ in 0..2000 {
        bed.sim.advance(1_000_000);
        let ptr = bed.pinned.allocate(4 * K, 0).unwrap();
        bed.pinned.deallocate(ptr).unwrap();
    }
    assert!(bed.reserved() <= M, "{}", bed.reserved());
    bed.end();
}

#[test]
fn what_a_stream_may_use_stays_until_it_has_passed() {
    for order in [FreeOrder::Epochs, FreeOrder::DeviceSync] {
        let bed = Bed::new(PinnedOptions { free_order: order, ..PinnedOptions::default() });
        let stream = bed.stream();
        let a = bed.alloc(20 * M);
        bed.copy(a, stream);
        bed.free(a);
        assert_eq!(bed.pinned.empty_cache().unwrap(), 0);
        assert_eq!(bed.pinned.empty_cache_waiting().unwrap(), 20 * M);
        let synchronized = bed.sim.count("aclrtFreeHostWithDevSync");
        assert_eq!(synchronized, u64::from(order == FreeOrder::DeviceSync));
        bed.end();
    }
}

#[test]
fn a_stream_whose_event_was_refused_is_tried_again() {
    for call in ["aclrtRecordEvent", "aclrtCreateEventExWithFlag"] {
        let sim = SimConfig { host_capacity: 8 * G, ..SimConfig::default() };
        let bed = Bed::on(sim, PinnedOptions::default());
        let stream = bed.stream();
        for _ in 0..3 {
            let a = bed.alloc(20 * M);
            bed.copy(a, stream);
            bed.sim.fail(call, 1, 507_899, false).unwrap();
            bed.free(a);
            bed.sim.clear_faults();
        }
        assert_eq!((bed.regions(), bed.active().0), (1, 1), "{call}: each request found the block before");
        assert_eq!(bed.pinned.empty_cache().unwrap(), 20 * M, "{call}: the stream has passed");
        if call == "aclrtRecordEvent" {
            // Else the events do not balance: the refused call is counted.
            bed.end();
        }
    }
}

#[test]
fn a_block_with_uses_nobody_recorded_can_be_freed_by_waiting() {
    for missing in [&[][..], &["aclrtFreeHostWithDevSync"]] {
        let bed = Bed::new(PinnedOptions { free_order: FreeOrder::DeviceSync, ..PinnedOptions::default() });
        bed.sim.set_missing(missing).unwrap();
        let stream = bed.stream();
        let a = bed.alloc(20 * M);
        let copy = HostCopy { host: a.address(), device: bed.device_memory, bytes: 512, to_host: true };
        // SAFETY: the block is live until the device has been waited for.
        unsafe { bed.driver.copy_async(0, copy, stream) }.unwrap();
        bed.pinned.deallocate_synchronized(a).unwrap();
        let b = bed.alloc(20 * M);
        assert_eq!(b.address(), a.address());
        bed.sim.touch(HostOp::Write, b.address(), 512);
        // Once more, with the region itself given back under the copy that nobody recorded.
        // SAFETY: giving the region back waits for the device.
        unsafe { bed.driver.copy_async(0, HostCopy { host: b.address(), ..copy }, stream) }.unwrap();
        bed.free(b);
        assert_eq!(bed.pinned.empty_cache().unwrap(), 20 * M);
        bed.end();
    }
}

#[test]
fn a_destroyed_stream_is_never_asked_again() {
    let bed = Bed::new(PinnedOptions::default());
    bed.sim.executor().set_destroy_waits(false);
    let stream = bed.stream();
    let a = bed.alloc(20 * M);
    bed.copy(a, stream);
    bed.free(a);
    bed.pinned.stream_destroyed(0, stream).unwrap();
    bed.sim.destroy_stream(stream.0).unwrap();
    let b = bed.alloc(20 * M);
    assert_ne!(a.address(), b.address());
    bed.free(b);
    bed.end();
}

#[test]
fn the_thread_finds_what_has_passed() {
    let bed = Bed::new(config("pinned_use_background_threads:True"));
    let stream = bed.stream();
    let a = bed.alloc(20 * M);
    bed.copy(a, stream);
    bed.free(a);
    assert_eq!(bed.pinned.stats().waiting_bytes, 20 * M);
    bed.finish(stream);
    while bed.pinned.stats().waiting_bytes > 0 {
        std::thread::yield_now();
    }
    bed.end();
}
