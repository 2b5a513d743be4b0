//! The controls, from outside.

mod common;

use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use common::{at, clean, library, machine, program, run};

fn text(text: &std::ffi::CStr) -> u64 {
    text.as_ptr().expose_provenance() as u64
}

#[test]
fn capacity_and_foreign_bytes_change_what_a_device_has() {
    let (acl, _turn) = machine();
    // SAFETY: numbers, and live variables.
    unsafe {
        acl.call("aclrtSetDevice", &[1]);
        acl.call("acl_sim_set_capacity", &[1, 64 << 20]);
        let memory = || {
            let (mut free, mut total) = (0u64, 0u64);
            acl.call("aclrtGetMemInfo", &[1, at(&mut free), at(&mut total)]);
            (free, total)
        };
        assert_eq!(memory(), (64 << 20, 64 << 20));
        acl.call("acl_sim_set_foreign_bytes", &[1, 32 << 20]);
        assert_eq!(memory(), (32 << 20, 64 << 20));
        assert_eq!(acl.make("aclrtMalloc", &[48 << 20, 0]), Err(207_001));
        acl.call("acl_sim_set_foreign_bytes", &[1, 0]);
        assert!(acl.make("aclrtMalloc", &[48 << 20, 0]).is_ok());
        for device in [2, u64::from(u32::MAX)] {
            assert_eq!(acl.try_call("acl_sim_set_capacity", &[device, 1]), 107_001);
        }
    }
}

#[test]
fn a_planned_failure_strikes_and_is_forgotten() {
    let (acl, _turn) = machine();
    // SAFETY: texts that end with a zero, numbers, and live variables.
    unsafe {
        acl.call("aclrtSetDevice", &[0]);
        acl.call("acl_sim_fail", &[text(c"aclrtMalloc"), 2, 207_001, 0]);
        acl.call("acl_sim_fail", &[text(c"aclrtFree"), 1, 507_899, 1]);
        let block = acl.make("aclrtMalloc", &[64, 0]).expect("the first passes");
        assert_eq!(acl.make("aclrtMalloc", &[64, 0]), Err(207_001));
        assert!(acl.make("aclrtMalloc", &[64, 0]).is_ok());
        for _ in 0..3 {
            assert_eq!(acl.try_call("aclrtFree", &[block]), 507_899);
        }
        acl.call("acl_sim_clear_failures", &[]);
        acl.call("aclrtFree", &[block]);
        // Calls that are refused for a null pointer are calls as well.
        acl.call("acl_sim_fail", &[text(c"aclrtMalloc"), 2, 207_001, 0]);
        assert_eq!(acl.try_call("aclrtMalloc", &[0, 64, 0]), 100_000);
        assert_eq!(acl.try_call("aclrtMalloc", &[0, 64, 0]), 207_001);
        assert!(acl.json("acl_sim_counters_json").contains("\"aclrtMalloc\":5"));
        assert_eq!(acl.try_call("acl_sim_fail", &[text(c"aclrtNothing"), 1, 1, 0]), 100_000);
        assert_eq!(acl.try_call("acl_sim_fail", &[0, 1, 1, 0]), 100_000);
    }
}

#[test]
fn costs_run_up_a_virtual_clock() {
    let (acl, _turn) = machine();
    // SAFETY: texts that end with a zero, and numbers.
    unsafe {
        acl.call("acl_sim_set_cost", &[text(c"aclrtSetDevice"), 300]);
        acl.call("aclrtSetDevice", &[0]);
        acl.call("aclrtSetDevice", &[0]);
        assert_eq!(acl.try_call("acl_sim_now", &[]), 600);
    }
}

#[test]
fn a_lag_keeps_events_unfinished_until_ticks_pass_or_somebody_waits() {
    for execution in ["deterministic", "threads"] {
        let (acl, _turn) = machine();
        acl.set("acl_sim_set_exec", execution);
        // SAFETY: numbers, and live variables.
        unsafe {
            acl.call("aclrtSetDevice", &[0]);
            let event = acl.make("aclrtCreateEventExWithFlag", &[1]).expect("an event");
            let status = || {
                let mut status = 7u64;
                acl.call("aclrtQueryEventStatus", &[event, at(&mut status)]);
                status & 0xffff_ffff
            };
            if execution == "deterministic" {
                acl.call("aclrtRecordEvent", &[event, 0]);
                assert_eq!(status(), 1, "without a lag work is done as it is queued");
            }
            acl.call("acl_sim_set_event_lag", &[10]);
            acl.call("aclrtRecordEvent", &[event, 0]);
            assert_eq!(status(), 0, "{execution}");
            acl.call("acl_sim_tick", &[9]);
            assert_eq!(status(), 0, "{execution}");
            acl.call("acl_sim_tick", &[1]);
            // With threads it now begins, which takes a moment.
            while execution == "threads" && status() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(status(), 1, "{execution}");
            acl.call("aclrtRecordEvent", &[event, 0]);
            assert_eq!(status(), 0, "{execution}");
            acl.call("aclrtSynchronizeEvent", &[event]);
            assert_eq!(status(), 1, "{execution}");
        }
    }
}

#[test]
fn messages_of_calls_that_a_surface_lacks_stand_among_the_others() {
    let (acl, _turn) = machine();
    acl.set("acl_sim_set_surface", "8.1");
    let mut number = 0u64;
    // SAFETY: a live variable, and numbers.
    unsafe {
        assert_eq!(acl.try_call("aclrtGetDevice", &[at(&mut number)]), 107_002);
        assert_eq!(acl.try_call("aclrtFreeWithDevSync", &[0]), 207_000);
        assert_eq!(acl.try_call("aclrtPeekAtLastError", &[0]), 207_000);
        assert_eq!(acl.try_call("aclrtUnmapMem", &[0]), 100_000);
    }
    let messages = acl.error();
    acl.set("acl_sim_set_surface", "9.x");
    let begins: Vec<&str> = messages.lines().filter_map(|line| line.split([':', '(']).next()).collect();
    assert_eq!(begins, ["aclrtUnmapMem", "aclrtFreeWithDevSync", "aclrtGetDevice"], "the newest first");
    assert!(!acl.json("acl_sim_counters_json").contains("aclrtFreeWithDevSync"), "it was no call");
}

#[test]
fn a_reset_forgets_the_old_machine_and_keeps_what_describes_the_next() {
    let (acl, _turn) = machine();
    // SAFETY: numbers, and live variables.
    unsafe {
        acl.call("aclInit", &[0]);
        acl.call("aclrtSetDevice", &[0]);
        acl.call("acl_sim_set_capacity", &[0, 1 << 20]);
        acl.call("acl_sim_set_devices", &[5]);
        acl.set("acl_sim_set_soc", "Ascend910_9391");
        let mut count = 0u64;
        acl.call("aclrtGetDeviceCount", &[at(&mut count)]);
        assert_eq!(count, 2, "the machine that is there stays as it is");
        acl.call("acl_sim_reset", &[]);
        assert_eq!(acl.json("acl_sim_counters_json"), "{}");
        acl.call("aclrtGetDeviceCount", &[at(&mut count)]);
        assert_eq!(count, 5);
        assert_eq!(acl.try_call("aclrtGetDevice", &[at(&mut count)]), 107_002);
        acl.call("aclInit", &[0]);
        acl.call("aclrtSetDevice", &[4]);
        let (mut free, mut total) = (0u64, 0u64);
        acl.call("aclrtGetMemInfo", &[1, at(&mut free), at(&mut total)]);
        assert_eq!(total, 64 << 30);
        assert_eq!(acl.try_call("acl_sim_set_devices", &[0]), 100_000);
        acl.call("acl_sim_set_devices", &[2]);
        acl.set("acl_sim_set_soc", "Ascend910B3");
        assert_eq!(acl.try_call("acl_sim_set_soc", &[0]), 100_000);
        assert_eq!(acl.try_call("acl_sim_set_exec", &[text(c"fast")]), 100_000);
        assert_eq!(acl.try_call("acl_sim_set_surface", &[text(c"7.0")]), 100_000);
    }
}

#[test]
fn before_the_first_call_controls_come_in_any_order() {
    let (acl, _turn) = machine();
    // SAFETY: texts that end with a zero, numbers, and live variables.
    unsafe {
        acl.call("acl_sim_set_capacity", &[1, 32 << 20]);
        acl.call("acl_sim_fail", &[text(c"aclrtSetDevice"), 2, 107_001, 0]);
        acl.call("acl_sim_set_devices", &[3]);
        acl.call("acl_sim_set_capacity", &[2, 16 << 20]);
        acl.set("acl_sim_set_soc", "Ascend950PR_9599");
        let mut count = 0u64;
        acl.call("aclrtGetDeviceCount", &[at(&mut count)]);
        assert_eq!(count, 3);
        acl.call("aclrtSetDevice", &[1]);
        assert_eq!(acl.try_call("aclrtSetDevice", &[2]), 107_001);
        let (mut free, mut total) = (0u64, 0u64);
        for (device, capacity) in [(0, 64 << 30), (1, 32 << 20), (2, 16 << 20)] {
            acl.call("aclrtSetDevice", &[device]);
            acl.call("aclrtGetMemInfo", &[1, at(&mut free), at(&mut total)]);
            assert_eq!(total, capacity);
        }
        // Now there were calls: the machine stays as it is, and the rest is for the next.
        acl.call("acl_sim_set_devices", &[2]);
        acl.set("acl_sim_set_soc", "Ascend910B3");
        acl.call("aclrtGetDeviceCount", &[at(&mut count)]);
        assert_eq!(count, 3);
        acl.call("acl_sim_set_capacity", &[2, 8 << 20]);
        acl.call("acl_sim_reset", &[]);
        acl.call("aclrtGetDeviceCount", &[at(&mut count)]);
        assert_eq!(count, 2);
        assert_eq!(acl.try_call("acl_sim_set_capacity", &[2, 8 << 20]), 107_001);
        acl.call("aclrtSetDevice", &[1]);
        acl.call("aclrtGetMemInfo", &[1, at(&mut free), at(&mut total)]);
        assert_eq!(total, 64 << 30, "what was changed on the old machine is gone with it");
    }
}

#[test]
fn findings_and_leaks_are_told_as_json() {
    let (acl, _turn) = machine();
    // SAFETY: numbers, and live variables.
    unsafe {
        acl.call("aclrtSetDevice", &[0]);
        assert_eq!(acl.json("acl_sim_findings_json"), "[]");
        assert_eq!(acl.json("acl_sim_leaks_json"), "[]");
        let stream = acl.make("aclrtCreateStream", &[]).expect("a stream");
        let other = acl.make("aclrtCreateStream", &[]).expect("a stream");
        let block = acl.make("aclrtMalloc", &[4096, 0]).expect("device memory");
        assert!(acl.json("acl_sim_leaks_json").contains("by aclrtMalloc (call 1"));
        // Two streams write the same memory and nothing orders them.
        acl.call("aclrtMemsetAsync", &[block, 4096, 1, 4096, stream]);
        acl.call("aclrtMemsetAsync", &[block, 4096, 2, 4096, other]);
        acl.call("aclrtSynchronizeDevice", &[]);
        let findings = acl.json("acl_sim_findings_json");
        assert!(
            findings.starts_with("[{\"kind\":\"unordered_use\",\"text\":\"")
                && findings.contains("aclrtMemsetAsync"),
            "{findings}"
        );
        acl.call("acl_sim_set_checker", &[0]);
        acl.call("acl_sim_reset", &[]);
        assert_eq!(acl.json("acl_sim_findings_json"), "[]");
        // A buffer that is too small holds a part and says what would be needed.
        let length = acl.json("acl_sim_counters_json").len();
        let mut small = [7u8; 4];
        let told = acl.try_call("acl_sim_counters_json", &[at(&mut small), 2]);
        assert_eq!((told as usize, &small), (length, b"{\0\x07\x07"));
    }
}

#[test]
fn kernels_are_seen_by_the_use_checker_and_hold_streams_up() {
    let (acl, _turn) = machine();
    // SAFETY: numbers, live variables and texts that end with a zero.
    unsafe {
        let label = text(c"matmul");
        assert_eq!(acl.try_call("acl_sim_kernel", &[0, label, 0, 0, 0]), 107_002);
        acl.call("aclrtSetDevice", &[0]);
        let stream = acl.make("aclrtCreateStream", &[]).expect("a stream");
        let block = acl.make("aclrtMalloc", &[4096, 0]).expect("device memory");
        let mut ranges = [[block, 64, 0], [block + 64, 64, 1]];
        acl.call("acl_sim_kernel", &[stream, label, at(&mut ranges), 2, 20_000]);
        let mut status = 7u64;
        acl.call("aclrtStreamQuery", &[stream, at(&mut status)]);
        assert_eq!(status & 0xffff_ffff, 1, "it runs for a while");
        acl.call("aclrtFree", &[block]);
        acl.call("aclrtSynchronizeStream", &[stream]);
        let findings = acl.json("acl_sim_findings_json");
        assert!(findings.contains("matmul") && findings.contains("aclrtFree"), "{findings}");
        assert_eq!(acl.try_call("acl_sim_kernel", &[stream, 0, 0, 0, 0]), 100_000);
        assert_eq!(acl.try_call("acl_sim_kernel", &[stream, label, 0, 1, 0]), 100_000);
    }
}

#[test]
fn address_space_ends_and_held_ranges_are_busy() {
    let (acl, _turn) = machine();
    let mut prop = [0u32, 0, 4, 0, 1, 0, 0, 0];
    // SAFETY: numbers and live variables.
    unsafe {
        acl.call("aclrtSetDevice", &[0]);
        acl.call("acl_sim_set_address_space", &[4 << 20]);
        let start = acl.make("aclrtReserveMemAddress", &[4 << 20, 0, 0, 0]).expect("address space");
        assert_eq!(acl.make("aclrtReserveMemAddress", &[2 << 20, 0, 0, 0]), Err(207_001));
        acl.call("acl_sim_set_address_space", &[u64::MAX]);
        assert!(acl.make("aclrtReserveMemAddress", &[2 << 20, 0, 0, 0]).is_ok());
        let chunk = acl.make("aclrtMallocPhysical", &[2 << 20, at(&mut prop), 0]).expect("a chunk");
        acl.call("aclrtMapMem", &[start, 2 << 20, 0, chunk, 0]);
        acl.call("acl_sim_hold", &[start + 4096, 64]);
        assert_eq!(acl.try_call("aclrtUnmapMem", &[start]), 507_899);
        assert_eq!(acl.try_call("acl_sim_unhold", &[start, 64]), 100_000);
        acl.call("acl_sim_unhold", &[start + 4096, 64]);
        acl.call("aclrtUnmapMem", &[start]);
    }
}

#[test]
fn a_reset_under_calls_of_other_threads_is_safe() {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
    let (acl, _turn) = machine();
    let (stop, made) = (AtomicBool::new(false), AtomicU32::new(0));
    // SAFETY: numbers and live variables; a block of an old machine is refused.
    let work = || unsafe {
        match acl.make("aclrtMalloc", &[64, 0]) {
            Ok(block) => {
                made.fetch_add(1, SeqCst);
                let code = acl.try_call("aclrtFree", &[block]);
                assert!([0, 107_000].contains(&code), "{code}");
            }
            // No device is set on the new machine. A call that comes between two waits for it.
            Err(code) => {
                assert_eq!(code, 107_002);
                acl.call("aclrtSetDevice", &[1]);
            }
        }
    };
    std::thread::scope(|scope| {
        let call = || {
            while !stop.load(SeqCst) {
                work();
            }
        };
        let threads = [(); 3].map(|()| scope.spawn(call));
        let mut busy = 0;
        for _ in 0..8 {
            let before = made.load(SeqCst);
            // SAFETY: the control has no arguments.
            let code = unsafe { acl.try_call("acl_sim_reset", &[]) };
            assert!([0, 507_899].contains(&code), "{code}");
            busy += u32::from(code != 0);
            // A thread that has ended has failed; the scope says so.
            while made.load(SeqCst) == before && !threads.iter().any(|thread| thread.is_finished()) {
                std::thread::yield_now();
            }
        }
        stop.store(true, SeqCst);
        assert!(busy < 4, "threads that call without a pause keep resets out: {busy} of 8");
    });
}

#[test]
fn the_environment_sets_what_the_controls_set() {
    let version = program("version.c", true);
    let printed = |name: &str, value: &str| {
        let output = run(clean(&version).arg(library()).env(name, value));
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (out.into_owned(), err.into_owned())
    };
    assert_eq!(printed("ASCEND_SIM_SURFACE", "8.5"), ("1.16.0\n".to_owned(), String::new()));
    assert_eq!(printed("ASCEND_SIM_SURFACE", "9.x"), ("1.17.0\n".to_owned(), String::new()));
    let (number, complaint) = printed("ASCEND_SIM_DEVICES", "many");
    assert_eq!(number, "1.17.0\n");
    assert!(complaint.contains("ASCEND_SIM_DEVICES=many"), "{complaint}");
    // Bytes that are no text are not understood either.
    let odd = std::ffi::OsStr::from_bytes(b"Ascend\xff");
    for name in ["ASCEND_SIM_SOC", "ASCEND_SIM_CHECKER", "ASCEND_SIM_REPORT"] {
        let output = run(clean(&version).arg(library()).env(name, odd));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaint.contains(&format!("{name}=Ascend")), "{name}: {complaint}");
    }
    let script = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); n = ctypes.c_uint(); \
                  l.aclrtGetDeviceCount(ctypes.byref(n)); f, t = ctypes.c_size_t(), ctypes.c_size_t(); \
                  l.aclrtSetDevice(1); l.aclrtGetMemInfo(1, ctypes.byref(f), ctypes.byref(t)); \
                  l.aclrtGetSocName.restype = ctypes.c_char_p; \
                  print(n.value, f.value >> 20, t.value >> 20, l.aclrtGetSocName().decode(), \
                  l.aclrtSetDevice(0), l.aclrtSetDevice(0))";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(library()).env_remove("ASCEND_RT_VISIBLE_DEVICES");
    python.env("ASCEND_SIM_DEVICES", "4").env("ASCEND_SIM_CAPACITY", "3G").env("ASCEND_SIM_FOREIGN", "1G");
    python.env("ASCEND_SIM_SOC", "Ascend910B2").env("ASCEND_SIM_FAIL", "aclrtSetDevice:3:107001");
    assert_eq!(common::printed(&mut python), "4 2048 3072 Ascend910B2 0 107001\n");
}
