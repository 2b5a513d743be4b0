//! The limit on mappings of the machine that runs the simulator. Alone in its file, because the test
//! uses up what the whole process may have; a sanitizer, which needs mappings too, does not survive it.
#![cfg(target_os = "linux")]

use ascend_sim::{BackingMode, PhysicalProp, Sim, SimConfig, codes};

const HUGE: u64 = 2 << 20;

#[test]
fn a_limit_of_this_machine_is_not_the_devices() {
    let sim = Sim::new(SimConfig { capacity: 4 << 40, backing: BackingMode::Mapped, ..SimConfig::default() });
    if !sim.is_mapped() {
        return;
    }
    let range = sim.reserve(1 << 38).unwrap();
    // One chunk at ever more addresses with gaps between them uses up the mappings of this process.
    let handle = sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0).unwrap();
    let refused = (0..1 << 16).find_map(|index| sim.map(range + index * 2 * HUGE, HUGE, 0, handle, 0).err());
    if let Some(code) = refused {
        assert_eq!(code, codes::HOST_LIMIT);
        assert!(sim.recent_error().unwrap().contains("max_map_count"));
    }
    let before = sim.mapping_count();
    sim.unmap(range).unwrap();
    assert_eq!(sim.mapping_count(), before - 1);
}
