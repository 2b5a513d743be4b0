//! What a program must not do and a device may let pass: each is a finding or a refusal.

use ascend_sim::{Sim, SimConfig, codes};

fn machine() -> Sim {
    let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    sim
}

#[test]
fn pinned_memory_is_unregistered_before_it_is_freed() {
    let sim = machine();
    let frees: [fn(&Sim, u64) -> Result<(), i32>; 3] =
        [Sim::free_host, Sim::free, Sim::free_host_with_dev_sync];
    for (index, free) in frees.into_iter().enumerate() {
        let block = sim.malloc_host(16 << 10).unwrap();
        sim.host_register(block + 4096, 4096, 0).unwrap();
        free(&sim, block).unwrap();
        let findings = sim.take_findings();
        assert_eq!(findings.len(), 1, "{findings:#?}");
        let made = format!("is registered by aclrtHostRegister (call {} of it, thread ", index + 1);
        assert!(findings[0].contains(&made), "{findings:#?}");
        assert_eq!(sim.host_unregister(block + 4096), Err(codes::HOST_MEMORY_NOT_REGISTERED));
        assert_eq!(sim.host_device_pointer(block + 4096, 0), Err(codes::RT_PARAM_INVALID));
    }
    let block = sim.malloc_host(16 << 10).unwrap();
    sim.host_register_v2(block, 4096, 2).unwrap();
    sim.host_unregister(block).unwrap();
    sim.free_host(block).unwrap();
    assert_eq!(sim.findings(), [""; 0]);
}
