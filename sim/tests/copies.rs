//! Copies and fills, now and on streams, and what the use checker says about memory that goes away.

use ascend_sim::codes::{self, policy};
use ascend_sim::{BackingMode, CaptureMode, ExecMode, HostOp, LAG_NEVER, PhysicalProp, Sim, SimConfig, Task};

const HUGE: u64 = 2 << 20;

fn both() -> [Sim; 2] {
    [BackingMode::Mapped, BackingMode::MetadataOnly].map(|backing| {
        let sim = Sim::new(SimConfig { backing, lag: LAG_NEVER, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        sim
    })
}

fn mapped(sim: &Sim) -> u64 {
    let range = sim.reserve(HUGE).unwrap();
    let handle = sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0).unwrap();
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    range
}

fn address(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr().expose_provenance() as u64
}

#[test]
fn synchronous_copies_go_by_address() {
    for sim in both() {
        let (one, two) = (mapped(&sim), sim.malloc(HUGE, policy::HUGE_FIRST).unwrap());
        let mut source = *b"0123456789";
        let mut target = [0u8; 10];
        let (from, to) = (address(&mut source), address(&mut target));
        // SAFETY: the arrays have 10 bytes and only this thread uses them.
        unsafe {
            sim.memcpy(one + 5, 10, from, 10, 1).unwrap();
            sim.memcpy(two, 10, one + 5, 10, 3).unwrap();
            sim.memset(two + 3, 10, 0x141, 2).unwrap();
            sim.memcpy(to, 10, two, 10, 2).unwrap();
        }
        assert_eq!(&target, b"012AA56789");
        // SAFETY: every call is refused or has nothing to do.
        let answers = unsafe {
            [
                sim.memcpy(0, 0, 0, 0, 99),
                sim.memcpy(one, 10, one, 10, 3),
                sim.memcpy(0, 10, one, 10, 3),
                sim.memcpy(one, 10, two, 10, 6),
                sim.memcpy(one, 9, two, 10, 3),
                sim.memset(one, 9, 0, 10),
                sim.memcpy(one + HUGE - 5, 10, two, 10, 3),
            ]
        };
        let invalid = Err(codes::RT_PARAM_INVALID);
        let refused = Err(codes::INVALID_PARAM);
        assert_eq!(answers, [Ok(()), Ok(()), refused, refused, invalid, invalid, invalid]);
        assert!(sim.findings().is_empty());
    }
}

#[test]
fn work_on_a_stream_runs_when_something_waits_for_it() {
    for sim in both() {
        let (device, stream) = (mapped(&sim), sim.create_stream().unwrap());
        let pinned = sim.malloc_host(4096).unwrap();
        // SAFETY: the pinned block has 4096 bytes and only this thread and the queued copy use it.
        unsafe {
            sim.memset_async(device, HUGE, 9, 100, stream).unwrap();
            sim.memcpy_async(pinned, 4096, device + 50, 100, 2, stream).unwrap();
        }
        let mut seen = [1; 1];
        sim.read_bytes(device, &mut seen).unwrap();
        assert_eq!(seen, [0], "nothing has run");
        sim.synchronize_stream(stream).unwrap();
        // SAFETY: the block is live and the copy has run.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(pinned as usize), 100)
        };
        assert_eq!((bytes[0], bytes[49], bytes[50]), (9, 9, 0));
        assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    }
}

#[test]
fn pageable_memory_makes_a_copy_synchronous() {
    for sim in both() {
        let (device, stream) = (mapped(&sim), sim.create_stream().unwrap());
        let mut host = [0u8; 8];
        let to = address(&mut host);
        // SAFETY: the array outlives the calls and nothing else uses it.
        unsafe {
            sim.memset_async(device, HUGE, 4, 8, stream).unwrap();
            sim.memcpy_async(to, 8, device, 8, 2, stream).unwrap();
            assert_eq!(sim.memcpy_async(to, 8, to + 4, 4, 0, stream), Err(codes::RT_FEATURE_NOT_SUPPORT));
        }
        assert_eq!(host, [4; 8]);
        sim.capture_begin(stream, CaptureMode::Global).unwrap();
        // SAFETY: both calls are refused.
        unsafe {
            assert_eq!(sim.memcpy_async(to, 8, device, 8, 2, stream), Err(codes::RT_PARAM_INVALID));
            assert_eq!(sim.memset(device, 8, 0, 8), Err(codes::RT_CAPTURE_MODE_NOT_SUPPORT));
        }
        assert_eq!(sim.is_capturing(stream), Ok(true));
        assert!(sim.malloc(HUGE, 0).is_ok(), "allocation does not look at captures");
        sim.capture_end(stream).unwrap();
    }
}

#[test]
fn a_fault_is_shown_by_queries_until_a_wait_says_it() {
    const FAULT: i32 = codes::RT_AICORE_TRAP_WRITE_OVERFLOW;
    for sim in both() {
        let (device, stream) = (mapped(&sim), sim.create_stream().unwrap());
        let event = sim.create_event_ex(1).unwrap();
        let hurt = || {
            let chunk = sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0).unwrap();
            let place = sim.reserve(HUGE).unwrap();
            sim.map(place, HUGE, 0, chunk, 0).unwrap();
            // SAFETY: only device memory is touched.
            unsafe { sim.memset_async(place, HUGE, 1, HUGE, stream).unwrap() };
            sim.unmap(place).unwrap();
            sim.record_event(event, stream).unwrap();
        };
        hurt();
        assert_eq!(sim.synchronize_event(event), Err(FAULT));
        assert_eq!(sim.synchronize_event(event), Ok(()), "said once");
        assert_eq!((sim.query_event_status(event), sim.stream_query(stream)), (Ok(true), Ok(true)));
        hurt();
        // Somebody else waits, so that the work runs, and learns nothing of this device.
        sim.executor().synchronize_stream(0, stream, -1).unwrap();
        for _ in 0..2 {
            assert_eq!(sim.query_event_status(event), Err(FAULT));
            assert_eq!(sim.stream_query(stream), Err(FAULT));
        }
        assert_eq!(sim.synchronize_event_with_timeout(event, 100), Err(FAULT));
        assert_eq!(sim.query_event_status(event), Ok(true));
        sim.unmap(device).unwrap();
    }
}

#[test]
fn unmapping_under_queued_work_is_a_finding_and_a_fault() {
    for sim in both() {
        let (device, stream) = (mapped(&sim), sim.create_stream().unwrap());
        // SAFETY: only device memory is touched.
        unsafe { sim.memset_async(device, HUGE, 1, HUGE, stream).unwrap() };
        sim.unmap(device).unwrap();
        let findings = sim.findings();
        assert!(findings[0].contains("unmap") && findings[0].contains("aclrtMemsetAsync"), "{findings:?}");
        assert_eq!(sim.synchronize_stream(stream), Err(codes::RT_AICORE_TRAP_WRITE_OVERFLOW));
        assert_eq!(sim.synchronize_stream(stream), Ok(()), "said once");
        assert_eq!(sim.take_findings().len(), 2);
        assert!(sim.take_findings().is_empty());
    }
}

#[test]
fn waiting_first_makes_every_kind_of_giving_back_sound() {
    for sim in both() {
        let (range, block) = (mapped(&sim), sim.malloc(HUGE, 0).unwrap());
        let pinned = sim.malloc_host(4096).unwrap();
        let stream = sim.create_stream().unwrap();
        let work = || Task::new("kernel").writes(range, HUGE, 1).reads(block, 64, 2).reads(pinned, 64, 3);
        sim.submit(stream, work()).unwrap();
        sim.synchronize_stream(stream).unwrap();
        sim.unmap(range).unwrap();
        sim.free(block).unwrap();
        sim.free_host(pinned).unwrap();
        assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    }
}

#[test]
fn every_kind_of_giving_back_is_checked() {
    for sim in both() {
        let block = sim.malloc(HUGE, 0).unwrap();
        let pinned = sim.malloc_host(4096).unwrap();
        let range = mapped(&sim);
        let stream = sim.create_stream().unwrap();
        let work = || Task::new("kernel").writes(range, HUGE, 1).reads(block, 64, 2).reads(pinned, 64, 3);
        sim.submit(stream, work()).unwrap();
        sim.touch(HostOp::Read, range, 1);
        sim.unmap(range).unwrap();
        sim.free(block).unwrap();
        sim.free_host(pinned).unwrap();
        assert_eq!(sim.findings().len(), 4, "{:?}", sim.findings());
    }
}

#[test]
fn a_task_on_memory_that_is_not_there_is_a_finding() {
    for sim in both() {
        let range = sim.reserve(4 * HUGE).unwrap();
        let handle = sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0).unwrap();
        sim.map(range, HUGE, 0, handle, 0).unwrap();
        sim.submit(0, Task::new("inside").writes(range, HUGE, 1)).unwrap();
        assert!(sim.findings().is_empty());
        sim.submit(0, Task::new("outside").writes(range + 10, HUGE, 1)).unwrap();
        let findings = sim.findings();
        assert_eq!(findings.len(), 1);
        assert!(findings[0].contains("outside") && findings[0].contains(&format!("{:#x}", range + HUGE)));
    }
}

#[test]
fn threads_run_copies_by_themselves() {
    for backing in [BackingMode::Mapped, BackingMode::MetadataOnly] {
        let sim = Sim::new(SimConfig { backing, exec_mode: ExecMode::Threads, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let (one, two) = (mapped(&sim), mapped(&sim));
        let streams = [sim.create_stream().unwrap(), sim.create_stream().unwrap()];
        let event = sim.create_event_ex(1).unwrap();
        for round in 0..50 {
            // SAFETY: only device memory is touched.
            unsafe {
                sim.memset_async(one, HUGE, round, 4096, streams[0]).unwrap();
                sim.record_event(event, streams[0]).unwrap();
                sim.stream_wait_event(streams[1], event).unwrap();
                sim.memcpy_async(two, HUGE, one, 4096, 3, streams[1]).unwrap();
            }
            sim.synchronize_stream(streams[1]).unwrap();
            let mut seen = [0; 4096];
            sim.read_bytes(two, &mut seen).unwrap();
            assert!(seen.iter().all(|&byte| i32::from(byte) == round));
        }
        assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    }
}

#[test]
fn allocating_inside_a_callback_is_a_finding() {
    for sim in both() {
        let stream = sim.create_stream().unwrap();
        let (inside, seen) = (sim.clone(), std::sync::Arc::new(std::sync::Mutex::new(None)));
        let answer = seen.clone();
        let work = move || *answer.lock().unwrap() = Some(inside.reserve(HUGE));
        sim.launch_host_func(stream, Box::new(work)).unwrap();
        sim.synchronize_stream(stream).unwrap();
        assert_eq!(*seen.lock().unwrap(), Some(Err(codes::RT_INTERNAL_ERROR)));
        assert!(sim.findings()[0].starts_with("aclrtReserveMemAddress (call "));
    }
}
