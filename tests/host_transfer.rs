//! Page-locked buffers, containers, and pageable data through a ring.

use std::sync::Arc;

use allocator_api2::{boxed::Box as PinnedBox, vec::Vec as PinnedVec};
use ascend_alloc::DevicePtr;
use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{Pinned, PinnedAllocator, PinnedBuffer, PinnedOptions, Progress, StagingRing};
use ascend_sim::{LAG_NEVER, Sim, SimConfig};

const M: u64 = 1 << 20;

fn machine(lag: u64) -> (Sim, Arc<PinnedAllocator>, DevicePtr, Stream) {
    let sim = Sim::new(SimConfig { lag, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver).unwrap());
    let device = DevicePtr(sim.malloc(64 * M, 0).unwrap());
    let stream = Stream(sim.create_stream().unwrap());
    (sim, pinned, device, stream)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(31) ^ (index >> 11)) as u8).collect()
}

fn end(sim: &Sim, pinned: Arc<PinnedAllocator>) {
    pinned.process_events().unwrap();
    assert_eq!(pinned.stats().active_requests.current, 0);
    pinned.empty_cache_waiting().unwrap();
    drop(Arc::into_inner(pinned).expect("nobody else has it"));
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    let (free, total) = sim.host_memory();
    assert_eq!(free, total);
    let events: Vec<_> = sim.leaks().into_iter().filter(|leak| leak.contains("event")).collect();
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn data_comes_through_the_ring_as_it_was() {
    for lag in [0, 1, LAG_NEVER] {
        let (sim, pinned, device, stream) = machine(lag);
        for (pieces, piece, bytes) in [(2, M, 10 * M + 77), (3, 4096, 40_000), (1, 1000, 999), (4, M, 0)] {
            let mut ring = StagingRing::new(pinned.clone(), 0, pieces, piece).unwrap();
            let source = pattern(bytes as usize);
            let mut told = Vec::new();
            ring.upload(&source, device, stream, |progress| told.push(progress)).unwrap();
            assert_eq!(told.len() as u64, bytes.div_ceil(piece));
            assert!(told.is_sorted_by_key(|progress| progress.done));
            assert_eq!(told.last().copied().unwrap_or(Progress { done: 0, total: 0 }).done, bytes);
            let mut back = vec![0; bytes as usize];
            let mut last = 0;
            ring.download(&mut back, device, stream, |progress| last = progress.done).unwrap();
            assert_eq!(last, bytes);
            assert!(back == source, "{pieces} pieces of {piece}, lag {lag}");
        }
        sim.synchronize_device().unwrap();
        end(&sim, pinned);
    }
}

#[test]
fn host_and_device_copies_overlap() {
    let (sim, pinned, device, stream) = machine(LAG_NEVER);
    let mut ring = StagingRing::new(pinned.clone(), 0, 4, M).unwrap();
    ring.upload(&pattern(4 << 20), device, stream, |_| {}).unwrap();
    assert_eq!(sim.count("aclrtSynchronizeEvent"), 0, "four pieces are under way at once");
    ring.upload(&pattern(4 << 20), device, stream, |_| {}).unwrap();
    assert_eq!(sim.count("aclrtSynchronizeEvent"), 4);
    drop(ring);
    sim.synchronize_device().unwrap();
    end(&sim, pinned);
}

/// A copy that could neither be marked nor waited for still uses its buffer.
#[test]
fn a_buffer_is_not_filled_again_before_its_copy_was_waited_for() {
    let (sim, pinned, device, stream) = machine(LAG_NEVER);
    let mut ring = StagingRing::new(pinned.clone(), 0, 1, M).unwrap();
    for call in ["aclrtRecordEvent", "aclrtSynchronizeStream"] {
        sim.fail(call, 1, 507_899, true).unwrap();
    }
    let first = pattern(1 << 20);
    ring.upload(&first, device, stream, |_| {}).unwrap_err();
    sim.clear_faults();
    ring.upload(&vec![7; 1 << 20], DevicePtr(device.0 + M), stream, |_| {}).unwrap();
    drop(ring);
    sim.synchronize_device().unwrap();
    let mut there = vec![0; 1 << 20];
    sim.read_bytes(device.0, &mut there).unwrap();
    assert!(there == first, "what was copied is what was to be copied");
    end(&sim, pinned);
}

#[test]
fn a_failed_transfer_leaves_nothing_behind() {
    for call in
        ["aclrtMemcpyAsync", "aclrtCreateEventExWithFlag", "aclrtRecordEvent", "aclrtSynchronizeEvent"]
    {
        for k in 1..4 {
            let (sim, pinned, device, stream) = machine(LAG_NEVER);
            let mut ring = StagingRing::new(pinned.clone(), 0, 2, M).unwrap();
            sim.fail(call, k, 507_899, false).unwrap();
            let source = pattern(5 << 20);
            let first = ring.upload(&source, device, stream, |_| {});
            sim.clear_faults();
            // Where the event is missing the stream was waited for instead.
            let must_fail = call == "aclrtMemcpyAsync" || call == "aclrtSynchronizeEvent";
            assert_eq!(first.is_err(), must_fail, "{call} {k}: {first:?}");
            ring.upload(&source, device, stream, |_| {}).unwrap();
            let mut back = vec![0; source.len()];
            ring.download(&mut back, device, stream, |_| {}).unwrap();
            assert!(back == source, "{call} {k}");
            drop(ring);
            sim.synchronize_device().unwrap();
            end(&sim, pinned);
        }
    }
}

#[test]
fn a_buffer_goes_there_and_back() {
    let (sim, pinned, device, stream) = machine(LAG_NEVER);
    let numbers: Vec<u32> = (0..100_000).map(|n| n ^ 0xa5a5).collect();
    let buffer = PinnedBuffer::from_slice(pinned.clone(), &numbers).unwrap();
    assert_eq!((&buffer[..10], buffer.bytes()), (&numbers[..10], 400_000));
    let mut buffer = buffer.upload(device, 0, stream).map_err(|(error, _)| error).unwrap().wait().unwrap();
    buffer.fill(0);
    let buffer = buffer.download(device, 0, stream).map_err(|(error, _)| error).unwrap().wait().unwrap();
    assert!(buffer[..] == numbers[..]);
    // A buffer given up under way is not reused before its stream has passed.
    let address = buffer.ptr().address();
    drop(buffer.upload(device, 0, stream).map_err(|(error, _)| error).unwrap());
    let other = PinnedBuffer::<u32>::zeroed(pinned.clone(), 100_000).unwrap();
    assert_ne!(other.ptr().address(), address);
    sim.fail("aclrtMemcpyAsync", 1, 507_899, false).unwrap();
    let (error, other) = other.download(device, 0, stream).unwrap_err();
    assert!(matches!(error, ascend_alloc::Error::Driver(_)) && other.iter().all(|&n| n == 0));
    sim.fail("aclrtSynchronizeStream", 1, 507_899, false).unwrap();
    let (_error, flight) =
        other.upload(device, 0, stream).map_err(|(error, _)| error).unwrap().wait().unwrap_err();
    drop(flight.wait().unwrap());
    let empty = PinnedBuffer::<u8>::zeroed(pinned.clone(), 0).unwrap();
    assert!(empty.is_empty());
    drop(empty);
    assert!(PinnedBuffer::<u64>::zeroed(pinned.clone(), usize::MAX / 4).is_err());
    sim.synchronize_device().unwrap();
    end(&sim, pinned);
}

#[test]
fn containers_live_in_page_locked_memory() {
    let (sim, pinned, device, stream) = machine(0);
    let handle = Pinned::new(pinned.clone());
    let mut numbers = PinnedVec::new_in(handle.clone());
    for n in 0..200_000_u64 {
        numbers.push(n);
    }
    numbers.shrink_to_fit();
    let block = handle.allocator().find(numbers.as_ptr().expose_provenance() as u64).unwrap();
    assert!(pinned.block_bytes(block).unwrap() >= 1_600_000);
    pinned.record_use(block, 0, stream).unwrap();
    let boxed = PinnedBox::new_in([5_u8; 4096], handle.clone());
    let none = PinnedBox::new_in((), handle.clone());
    assert_eq!((numbers[199_999], boxed[4095], *none), (199_999, 5, ()));
    let _unused = device;
    drop((numbers, boxed, none, handle));
    end(&sim, pinned);
}
