//! What a test can set and see: faults, limits, counters, costs, the log, devices of threads.

use std::collections::BTreeMap;

use ascend_sim::codes::{self, attr};
use ascend_sim::{BackingMode, PhysicalProp, Sim, SimConfig};

const HUGE: u64 = 2 << 20;

fn machine() -> Sim {
    let backing = BackingMode::MetadataOnly;
    Sim::new(SimConfig { devices: 2, capacity: 16 * HUGE, backing, ..SimConfig::default() })
}

fn chunk(sim: &Sim, size: u64) -> Result<u64, i32> {
    sim.malloc_physical(size, &PhysicalProp::device(0), 0)
}

#[test]
fn a_planned_failure_changes_nothing() {
    let sim = machine();
    let range = sim.reserve(HUGE).unwrap();
    let handle = chunk(&sim, HUGE).unwrap();
    sim.fail("aclrtMapMem", 1, codes::RT_DRV_INTERNAL_ERROR, false).unwrap();
    assert_eq!(sim.map(range, HUGE, 0, handle, 0), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert_eq!(sim.mapping_count(), 0);
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    sim.fail("aclrtUnmapMem", 2, codes::RT_DRV_INTERNAL_ERROR, true).unwrap();
    sim.unmap(range).unwrap();
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    assert_eq!(sim.unmap(range), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert_eq!(sim.unmap(range), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert!(sim.is_backed(range, HUGE));
    sim.clear_faults();
    sim.unmap(range).unwrap();
    assert!(sim.fail("cudaMalloc", 1, 1, false).is_err());
}

#[test]
fn a_held_range_is_busy() {
    let sim = machine();
    let range = sim.reserve(4 * HUGE).unwrap();
    let handle = chunk(&sim, 2 * HUGE).unwrap();
    sim.map(range, 2 * HUGE, 0, handle, 0).unwrap();
    sim.hold(range + HUGE, 4096);
    assert_eq!(sim.unmap(range), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert!(!sim.unhold(range, 4096));
    assert!(sim.unhold(range + HUGE, 4096));
    sim.unmap(range).unwrap();
}

#[test]
fn memory_ends_where_the_capacity_and_other_processes_say() {
    let sim = machine();
    sim.set_device(0).unwrap();
    let handles: Vec<u64> = std::iter::from_fn(|| chunk(&sim, HUGE).ok()).collect();
    assert_eq!(handles.len(), 16);
    assert_eq!(chunk(&sim, HUGE), Err(codes::RT_MEMORY_ALLOCATION));
    assert!(sim.malloc_physical(HUGE, &PhysicalProp::device(1), 0).is_ok(), "the other device has room");
    sim.free_physical(handles[3]).unwrap();
    sim.set_foreign_bytes(0, HUGE);
    assert_eq!(sim.mem_info(attr::HBM), Ok((0, 16 * HUGE)));
    assert_eq!(chunk(&sim, HUGE), Err(codes::RT_MEMORY_ALLOCATION));
    sim.set_foreign_bytes(0, 0);
    assert!(chunk(&sim, HUGE).is_ok());
    sim.set_capacity(0, 17 * HUGE);
    assert!(chunk(&sim, HUGE).is_ok());
}

#[test]
fn address_space_can_be_short() {
    let sim = machine();
    sim.set_va_budget(Some(4 * HUGE));
    let range = sim.reserve(3 * HUGE).unwrap();
    assert_eq!(sim.reserve(2 * HUGE), Err(codes::RT_MEMORY_ALLOCATION));
    sim.release(range).unwrap();
    assert!(sim.reserve(4 * HUGE).is_ok());
    let config = SimConfig { max_reservation: Some(128 << 30), ..SimConfig::default() };
    let sim = Sim::new(SimConfig { backing: BackingMode::MetadataOnly, ..config });
    assert!(sim.reserve(128 << 30).is_ok());
    assert_eq!(sim.reserve((128 << 30) + 1), Err(codes::RT_MEMORY_ALLOCATION));
}

#[test]
fn strict_machines_refuse_what_hardware_may() {
    let sim =
        Sim::new(SimConfig { strict: true, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    assert_eq!(sim.reserve(4 * HUGE), Err(codes::RT_INVALID_HANDLE), "no device was set");
    assert_eq!(sim.reserve(0), Err(codes::INVALID_PARAM), "the layer above comes first");
    assert_eq!(chunk(&sim, HUGE), Err(codes::RT_INVALID_HANDLE));
    assert_eq!(chunk(&sim, 0), Err(codes::INVALID_PARAM));
    sim.set_device(0).unwrap();
    let range = sim.reserve(4 * HUGE).unwrap();
    let handle = chunk(&sim, 2 * HUGE).unwrap();
    assert_eq!(sim.map(range, HUGE, 0, handle, 0), Err(codes::RT_PARAM_INVALID));
    sim.map(range, 2 * HUGE, 0, handle, 0).unwrap();
    assert_eq!(sim.reserve((128 << 30) + 1), Err(codes::RT_MEMORY_ALLOCATION));
    assert!(sim.reserve(128 << 30).is_ok());
    let memory = vec![0u8; 16384];
    let start = (memory.as_ptr().expose_provenance() as u64).next_multiple_of(4096);
    assert_eq!(sim.host_register(start + 64, 100, 0), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert_eq!(sim.host_register_v2(start + 64, 100, 2), Err(codes::RT_DRV_INTERNAL_ERROR));
    sim.host_register(start, 100, 0).unwrap();
    sim.host_unregister(start).unwrap();
    sim.set_strict(false);
    assert!(!sim.strict());
    sim.host_register(start + 64, 100, 0).unwrap();
    sim.unmap(range).unwrap();
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    assert!(sim.reserve((128 << 30) + 1).is_ok());
    let sim = Sim::new(SimConfig { backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    assert!(sim.reserve(HUGE).is_ok(), "the observed layers need no device");
    sim.set_strict(true);
    assert_eq!(sim.reserve(HUGE), Err(codes::RT_INVALID_HANDLE));
}

#[test]
fn calls_are_counted_timed_and_logged() {
    let sim = machine();
    sim.set_cost("aclrtReserveMemAddress", 2500).unwrap();
    sim.set_logging(true);
    let range = sim.reserve(HUGE).unwrap();
    assert!(sim.unmap(range).is_err());
    sim.set_logging(false);
    sim.release(range).unwrap();
    let expected = [("aclrtReleaseMemAddress", 1), ("aclrtReserveMemAddress", 1), ("aclrtUnmapMem", 1)];
    assert_eq!(sim.counters(), BTreeMap::from(expected));
    assert_eq!(sim.now(), 2500);
    sim.advance(500);
    assert_eq!(sim.now(), 3000);
    let log = sim.take_log();
    let short: Vec<_> = log.iter().map(|entry| (entry.function, entry.code)).collect();
    assert_eq!(short, [("aclrtReserveMemAddress", 0), ("aclrtUnmapMem", 507_899)]);
    assert_eq!(log[1].arguments, format!("{range:#x}"));
    assert_eq!(log[1].thread, std::thread::current().id());
    sim.reset_counters();
    assert!(sim.counters().is_empty());
}

#[test]
fn messages_are_newest_first_and_read_once() {
    let sim = machine();
    assert_eq!(sim.recent_error(), None);
    sim.unmap(0x1000).unwrap_err();
    sim.free_physical(0).unwrap_err();
    let text = sim.recent_error().unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("aclrtFreePhysical(0x0)") && lines[0].contains("100000"), "{text}");
    assert!(lines[1].starts_with("aclrtUnmapMem(0x1000)"), "{text}");
    assert_eq!(sim.recent_error(), None);
    sim.unmap(0x1000).unwrap_err();
    let other = sim.clone();
    std::thread::spawn(move || assert_eq!(other.recent_error(), None)).join().unwrap();
    assert!(sim.recent_error().is_some());
}

#[test]
fn the_current_device_belongs_to_the_thread() {
    let sim = machine();
    sim.set_device(1).unwrap();
    let context = sim.create_context(0).unwrap();
    assert_eq!(sim.get_device(), Ok(0));
    assert_eq!(sim.get_current_context(), Ok(context));
    let other = sim.clone();
    let seen = std::thread::spawn(move || (other.get_device(), other.on_device(1, || other.get_device())));
    let (outside, inside) = seen.join().unwrap();
    assert_eq!((outside, inside), (Err(codes::RT_CONTEXT_NULL), Ok(Ok(1))));
    assert_eq!(sim.on_device(1, || sim.get_device()), Ok(Ok(1)));
    assert_eq!(sim.get_current_context(), Ok(context), "the explicit context is back");
    sim.set_device(1).unwrap();
    assert_ne!(sim.get_current_context(), Ok(context), "setting a device drops it");
    let primary = sim.get_current_context().unwrap();
    sim.set_current_context(context).unwrap();
    sim.set_current_context(primary).unwrap();
    assert_eq!(sim.get_device(), Ok(1));
    sim.reset_device_force(1).unwrap();
    assert_eq!(sim.get_device(), Err(codes::RT_CONTEXT_NULL));
}

#[test]
fn visible_devices_renumber_everything_but_access() {
    let visible_devices = Some(vec![1, 2, 9, 3]);
    let backing = BackingMode::MetadataOnly;
    let sim = Sim::new(SimConfig { devices: 4, visible_devices, backing, ..SimConfig::default() });
    assert_eq!(sim.device_count(), Ok(2), "the list ends at the device that is not there");
    let handle = chunk(&sim, HUGE).unwrap();
    assert_eq!((sim.physical_bytes(0), sim.physical_bytes(1)), (0, HUGE));
    assert_eq!(sim.handle_properties(handle).unwrap().location.id, 0);
    let range = sim.reserve(HUGE).unwrap();
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    assert_eq!(sim.pointer_attributes(range).unwrap().location.id, 0);
    let driver = |id| ascend_sim::Location::device(id);
    assert_eq!(sim.get_access(range, driver(0)), Ok(0));
    assert_eq!(sim.get_access(range, driver(1)), Ok(3));
    assert_eq!(sim.driver_device(1), Ok(2));
    assert_eq!(sim.set_device(2), Err(codes::RT_INVALID_DEVICEID));
}

#[test]
fn a_reset_takes_memory_away_and_leaves_the_rest_of_the_machine() {
    let sim = machine();
    sim.set_device(0).unwrap();
    sim.malloc(HUGE, 0).unwrap();
    let handle = chunk(&sim, HUGE).unwrap();
    let other = sim.malloc_physical(HUGE, &PhysicalProp::device(1), 0).unwrap();
    sim.reset_device(0).unwrap();
    assert_eq!((sim.physical_bytes(0), sim.physical_bytes(1)), (0, HUGE));
    let range = sim.reserve(HUGE).unwrap();
    assert_eq!(sim.map(range, HUGE, 0, handle, 0), Err(codes::RT_DRV_INTERNAL_ERROR));
    sim.free_physical(handle).unwrap();
    sim.map(range, HUGE, 0, other, 0).unwrap();
}

#[test]
fn calls_from_many_threads_keep_the_books() {
    let backing = BackingMode::Mapped;
    let sim = Sim::new(SimConfig { capacity: 256 * HUGE, backing, ..SimConfig::default() });
    let range = sim.reserve(256 * HUGE).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let sim = &sim;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(part);
                for _ in 0..200 {
                    let at = range + (part * 64 + random.u64(..60)) * HUGE;
                    let handle = chunk(sim, 2 * HUGE).unwrap();
                    sim.map(at, 2 * HUGE, 0, handle, 0).unwrap();
                    let mark = [part as u8, random.u8(..)];
                    sim.write_bytes(at + HUGE - 1, &mark).unwrap();
                    let mut seen = [0; 2];
                    sim.read_bytes(at + HUGE - 1, &mut seen).unwrap();
                    assert_eq!(seen, mark);
                    sim.unmap(at).unwrap();
                    sim.free_physical(handle).unwrap();
                }
            });
        }
    });
    assert_eq!((sim.physical_bytes(0), sim.mapping_count()), (0, 0));
    assert_eq!(sim.count("aclrtMapMem"), 800);
    sim.release(range).unwrap();
}
