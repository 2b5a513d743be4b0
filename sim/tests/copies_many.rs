//! Copies of many pieces, fills with words, copies in graphs, copies of many threads at once.

use ascend_sim::{
    BackingMode, BatchAttribute, BatchCopy, BatchRefusal, CaptureMode, ExecMode, Location, PhysicalProp,
    Pitched, Sim, SimConfig, codes,
};

const HUGE: u64 = 2 << 20;

fn both() -> impl Iterator<Item = Sim> {
    [BackingMode::Mapped, BackingMode::MetadataOnly].into_iter().map(|backing| {
        let sim = Sim::new(SimConfig { backing, devices: 2, ..SimConfig::default() });
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

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

fn bytes(sim: &Sim, start: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xee; len];
    sim.read_bytes(start, &mut out).unwrap();
    out
}

#[test]
fn a_rectangle_is_copied_row_by_row() {
    for sim in both() {
        let device = mapped(&sim);
        let source: Vec<u8> = (0..30).collect();
        let area =
            Pitched { to: device, to_pitch: 8, from: address(&source), from_pitch: 10, width: 4, height: 3 };
        // SAFETY: the source has three rows of ten bytes.
        let copy = |area: &Pitched, kind| unsafe { sim.memcpy_2d(area, kind) };
        copy(&area, 1).unwrap();
        let expected = [0, 1, 2, 3, 0, 0, 0, 0, 10, 11, 12, 13, 0, 0, 0, 0, 20, 21, 22, 23];
        assert_eq!(bytes(&sim, device, 20), expected);
        assert_eq!(copy(&Pitched { width: 0, ..area }, 1), Err(codes::INVALID_PARAM));
        assert_eq!(copy(&Pitched { to: 0, ..area }, 1), Err(codes::INVALID_PARAM));
        assert_eq!(copy(&area, 5), Err(codes::INVALID_PARAM));
        assert_eq!(copy(&Pitched { width: 9, ..area }, 1), Err(codes::RT_PARAM_INVALID));
        assert_eq!(copy(&Pitched { height: u64::MAX, ..area }, 1), Err(codes::RT_PARAM_INVALID));
        let stream = sim.create_stream().unwrap();
        let back =
            Pitched { to: device + 100, to_pitch: 4, from: device, from_pitch: 8, width: 4, height: 3 };
        // SAFETY: only device memory is touched.
        unsafe { sim.memcpy_2d_async(&back, 3, stream).unwrap() };
        sim.synchronize_stream(stream).unwrap();
        assert_eq!(bytes(&sim, device + 100, 12), [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]);
        assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    }
}

#[test]
fn words_are_filled_across_mappings() {
    for sim in both() {
        let range = sim.reserve(2 * HUGE).unwrap();
        for offset in [0, HUGE] {
            let handle = sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0).unwrap();
            sim.map(range + offset, HUGE, 0, handle, 0).unwrap();
        }
        // SAFETY: only device memory is touched.
        let fill = |at, room, count| unsafe { sim.memset_d32(at, room, 0x0403_0201, count) };
        fill(range + HUGE - 4, 64, 2).unwrap();
        assert_eq!(bytes(&sim, range + HUGE - 5, 10), [0, 1, 2, 3, 4, 1, 2, 3, 4, 0]);
        assert_eq!(fill(range + 2, 64, 2), Err(codes::RT_PARAM_INVALID));
        assert_eq!(fill(range, 7, 2), Err(codes::RT_PARAM_INVALID));
        assert_eq!(fill(range, u64::MAX, u64::MAX / 2), Err(codes::RT_PARAM_INVALID));
        assert_eq!(fill(0, 64, 2), Err(codes::INVALID_PARAM));
        // SAFETY: only device memory is touched.
        unsafe { sim.memset_d32_async(range, HUGE, 7, HUGE / 4, 0).unwrap() };
        sim.synchronize_stream(0).unwrap();
        assert_eq!(bytes(&sim, range + HUGE - 8, 8), [7, 0, 0, 0, 7, 0, 0, 0]);
    }
}

#[test]
fn a_batch_names_the_copy_at_fault() {
    for sim in both() {
        let device = mapped(&sim);
        let (one, two) = ([1u8; 16], [2u8; 16]);
        let copy = |to, from: &[u8]| BatchCopy { to, room: 16, from: address(from), count: 16 };
        let copies = [copy(device, &one), copy(device + 64, &two)];
        let up = BatchAttribute { to: Location::device(0), from: Location::host() };
        // SAFETY: sources are the two arrays.
        let batch = |copies: &[BatchCopy], attributes: &[BatchAttribute], first: &[usize]| unsafe {
            sim.memcpy_batch(copies, attributes, first)
        };
        batch(&copies, &[up], &[0]).unwrap();
        assert_eq!((bytes(&sim, device, 16), bytes(&sim, device + 64, 16)), (one.to_vec(), two.to_vec()));
        let refusal = |code, index| Err(BatchRefusal { code, index });
        assert_eq!(batch(&[], &[up], &[0]), refusal(codes::INVALID_PARAM, usize::MAX));
        assert_eq!(batch(&copies, &[up], &[1]), refusal(codes::RT_PARAM_INVALID, usize::MAX));
        let small = BatchCopy { room: 8, ..copies[1] };
        assert_eq!(batch(&[copies[0], small], &[up], &[0]), refusal(codes::RT_PARAM_INVALID, 1));
        let down = BatchAttribute { to: Location::host(), from: Location::device(0) };
        assert_eq!(batch(&copies, &[up, down], &[0, 1]), refusal(codes::RT_PARAM_INVALID, 1));
        let nowhere = BatchAttribute { to: Location::device(9), ..up };
        assert_eq!(batch(&copies, &[nowhere], &[0]), refusal(codes::RT_INVALID_DEVICEID, usize::MAX));
        // SAFETY: only device memory is touched.
        let queued = unsafe {
            let across = BatchAttribute { to: Location::device(0), from: Location::device(0) };
            let move_on = BatchCopy { to: device + 128, room: 16, from: device + 64, count: 16 };
            sim.memcpy_batch_async(&[move_on], &[across], &[0], 0)
        };
        assert_eq!(queued, Ok(()));
        sim.synchronize_stream(0).unwrap();
        assert_eq!(bytes(&sim, device + 128, 16), two);
    }
}

#[test]
fn the_kind_must_fit_memory_that_is_not_pinned() {
    for sim in both() {
        let (device, pinned) = (mapped(&sim), sim.malloc_host(64).unwrap());
        let mut pageable = [3u8; 64];
        let host = pageable.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: all sides have 64 bytes.
        let copy = |to, from, kind| unsafe { sim.memcpy_async(to, 64, from, 64, kind, 0) };
        assert_eq!(copy(device, host, 2), Err(codes::RT_PARAM_INVALID));
        assert_eq!(copy(device, host, 4), Ok(()));
        assert_eq!(copy(host, device, 1), Err(codes::RT_PARAM_INVALID));
        assert_eq!(copy(host, device, 2), Ok(()));
        assert_eq!(copy(pinned, device, 0), Ok(()), "known on both sides: corrected");
        assert_eq!(copy(pinned, host, 4), Err(codes::RT_FEATURE_NOT_SUPPORT));
        assert_eq!(copy(device, pinned, 8), Err(codes::INVALID_PARAM));
        sim.synchronize_device().unwrap();
    }
}

#[test]
fn a_graph_copies_every_time_it_runs() {
    for sim in both() {
        let (device, pinned) = (mapped(&sim), sim.malloc_host(64).unwrap());
        let stream = sim.create_stream().unwrap();
        sim.capture_begin(stream, CaptureMode::Global).unwrap();
        // SAFETY: pinned memory of 64 bytes.
        unsafe { sim.memcpy_async(device, 64, pinned, 64, 1, stream).unwrap() };
        let graph = sim.capture_end(stream).unwrap();
        assert_eq!(bytes(&sim, device, 64), [0; 64], "capturing copies nothing");
        for value in 1..4 {
            // SAFETY: the pinned block has 64 bytes and nothing runs that uses it.
            unsafe { sim.memset(pinned, 64, value, 64).unwrap() };
            sim.graph_execute(graph, stream).unwrap();
            sim.synchronize_stream(stream).unwrap();
            assert_eq!(bytes(&sim, device, 64), [value as u8; 64]);
        }
        sim.free_host(pinned).unwrap();
        sim.graph_execute(graph, stream).unwrap();
        assert_eq!(sim.synchronize_stream(stream), Err(codes::RT_AICORE_TRAP_WRITE_OVERFLOW));
        let findings = sim.findings();
        assert!(findings.iter().any(|text| text.contains("not pinned any more")), "{findings:?}");
    }
}

#[test]
fn a_copy_after_the_end_names_both_calls() {
    for sim in both() {
        let device = mapped(&sim);
        let mut out = [0u8; 8];
        let host = out.as_mut_ptr().expose_provenance() as u64;
        sim.unmap(device).unwrap();
        // SAFETY: the target has eight bytes.
        assert_eq!(unsafe { sim.memcpy(host, 8, device, 8, 2) }, Err(codes::RT_PARAM_INVALID));
        let findings = sim.take_findings();
        assert_eq!(findings.len(), 1, "{findings:?}");
        for part in ["aclrtMemcpy (call 1", "use after aclrtUnmapMem (call 1", "there by aclrtMapMem (call 1"]
        {
            assert!(findings[0].contains(part), "{findings:?}");
        }
        let never = sim.reserve(HUGE).unwrap();
        // SAFETY: the target has eight bytes.
        assert_eq!(unsafe { sim.memcpy(host, 8, never, 8, 2) }, Err(codes::RT_PARAM_INVALID));
        assert!(sim.findings().is_empty(), "nothing was ever there");
    }
}

#[test]
fn threads_copy_side_by_side_while_memory_comes_and_goes() {
    for backing in [BackingMode::Mapped, BackingMode::MetadataOnly] {
        let sim = Sim::new(SimConfig { backing, exec_mode: ExecMode::Threads, ..SimConfig::default() });
        std::thread::scope(|scope| {
            for thread in 0..6u8 {
                let sim = &sim;
                scope.spawn(move || {
                    sim.set_device(0).unwrap();
                    let stream = sim.create_stream().unwrap();
                    let pinned = sim.malloc_host(HUGE).unwrap();
                    for round in 0..20 {
                        let device = sim.malloc(HUGE, 0).unwrap();
                        let value = thread * 20 + round;
                        // SAFETY: all memory is this thread's own and large enough.
                        unsafe {
                            sim.memset_async(device, HUGE, i32::from(value), HUGE, stream).unwrap();
                            sim.memcpy_async(pinned, HUGE, device, HUGE, 2, stream).unwrap();
                        }
                        sim.synchronize_stream(stream).unwrap();
                        // SAFETY: the block has so many bytes, and nothing runs that writes it.
                        let seen = unsafe {
                            let start = std::ptr::with_exposed_provenance::<u8>(pinned as usize);
                            std::slice::from_raw_parts(start, HUGE as usize)
                        };
                        assert!(seen.iter().all(|&byte| byte == value));
                        sim.free(device).unwrap();
                    }
                    sim.free_host(pinned).unwrap();
                });
            }
        });
        assert!(sim.findings().is_empty(), "{:?}", sim.findings());
        assert_eq!(sim.physical_bytes(0), 0);
    }
}

#[test]
fn freeing_under_running_copies_waits_for_their_bytes() {
    // The program is wrong and told so; nothing of this process may break by it.
    for backing in [BackingMode::Mapped, BackingMode::MetadataOnly] {
        let sim = Sim::new(SimConfig { backing, exec_mode: ExecMode::Threads, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let stream = sim.create_stream().unwrap();
        for _ in 0..40 {
            let (device, pinned) = (sim.malloc(4 * HUGE, 0).unwrap(), sim.malloc_host(4 * HUGE).unwrap());
            // SAFETY: the pinned block is checked again when the copy runs.
            unsafe { sim.memcpy_async(device, 4 * HUGE, pinned, 4 * HUGE, 1, stream).unwrap() };
            sim.free(device).unwrap();
            sim.free_host(pinned).unwrap();
        }
        let _ = sim.synchronize_stream(stream);
        let findings = sim.findings();
        assert!(findings.iter().any(|text| text.contains("free of")), "{findings:?}");
        assert_eq!(sim.physical_bytes(0), 0);
    }
}
