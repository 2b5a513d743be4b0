//! A device of 64 GiB is filled on a machine that has less memory.

mod common;

use common::{at, machine};

/// A granule.
const GRANULE: u64 = 2 << 20;
/// Memory of the device.
const CAPACITY: u64 = 64 << 30;

/// Memory of this process in use, in bytes; `None` where the system does not say.
fn in_use() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn all_of_64_gib_is_mapped_chunk_by_chunk() {
    let (acl, _turn) = machine();
    let before = in_use();
    let mut prop = [0u32, 0, 4, 0, 1, 0, 0, 0];
    // SAFETY: numbers, live variables, and addresses of the device.
    unsafe {
        acl.call("aclrtSetDevice", &[0]);
        let start = acl.make("aclrtReserveMemAddress", &[CAPACITY, 0, 0, 0]).expect("address space");
        for offset in (0..CAPACITY).step_by(GRANULE as usize) {
            let chunk = acl.make("aclrtMallocPhysical", &[GRANULE, at(&mut prop), 0]).expect("a chunk");
            acl.call("aclrtMapMem", &[start + offset, GRANULE, 0, chunk, 0]);
            acl.call("aclrtFreePhysical", &[chunk]);
        }
        let (mut free, mut total) = (7u64, 7u64);
        acl.call("aclrtGetMemInfo", &[1, at(&mut free), at(&mut total)]);
        assert_eq!((free, total), (0, CAPACITY));
        assert_eq!(acl.make("aclrtMallocPhysical", &[GRANULE, at(&mut prop), 0]), Err(207_001));
        assert_eq!(acl.make("aclrtMalloc", &[64, 0]), Err(207_001));
        // Fill all of it, then look at the ends.
        acl.call("aclrtMemset", &[start, CAPACITY, 6, CAPACITY]);
        let mut bytes = [0u8; 16];
        for place in [start, start + CAPACITY - 16, start + CAPACITY / 2 - 8] {
            acl.call("aclrtMemcpy", &[at(&mut bytes), 16, place, 16, 2]);
            assert_eq!(bytes, [6; 16]);
        }
        if let (Some(before), Some(now)) = (before, in_use()) {
            assert!(
                now - before < 1 << 30,
                "{} MiB of this machine's memory are in use",
                (now - before) >> 20
            );
        }
        for offset in (0..CAPACITY).step_by(GRANULE as usize) {
            acl.call("aclrtUnmapMem", &[start + offset]);
        }
        acl.call("aclrtReleaseMemAddress", &[start]);
        acl.call("aclrtGetMemInfo", &[1, at(&mut free), at(&mut total)]);
        assert_eq!((free, total), (CAPACITY, CAPACITY));
    }
    assert_eq!(acl.json("acl_sim_leaks_json"), "[]");
    assert_eq!(acl.json("acl_sim_findings_json"), "[]");
}
