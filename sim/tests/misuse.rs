//! What a program must not do and a device may let pass: each is a finding or a refusal.

use ascend_sim::exec::{EVENT_SYNC, STREAM_CPU_SCHEDULE, STREAM_PERSISTENT};
use ascend_sim::{LAG_NEVER, Sim, SimConfig, Task, codes};

fn machine() -> Sim {
    let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    sim
}

#[test]
fn pinned_memory_is_unregistered_before_it_is_freed() {
    let sim = machine();
    type Free = fn(&Sim, u64) -> Result<(), i32>;
    let frees: [Free; 3] = [Sim::free_host, Sim::free, Sim::free_host_with_dev_sync];
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

/// Everything that allocates, frees, copies, waits or queues work, in all its forms.
#[test]
fn nothing_that_blocks_is_called_in_a_callback() {
    let sim = machine();
    let (stream, other) = (sim.create_stream().unwrap(), sim.create_stream().unwrap());
    let event = sim.create_event_ex(EVENT_SYNC).unwrap();
    sim.record_event(event, other).unwrap();
    let context = sim.create_context(0).unwrap();
    sim.set_device(0).unwrap();
    let block = sim.malloc(4096, 0).unwrap();
    let inside = sim.clone();
    let work = Box::new(move || {
        // SAFETY: only device memory is named.
        let copied = unsafe { inside.memcpy_async_with_condition(block, 64, block + 64, 64, 3, other) };
        let refused = [
            copied,
            inside.record_event_with_flag(event, other, 0),
            inside.stream_wait_event_with_flag(other, event, 0),
            inside.stream_wait_event_with_timeout(other, event, 1),
            inside.reset_event(event, other),
            inside.destroy_stream(other),
            inside.destroy_stream_force(other),
            inside.destroy_context(context),
            inside.device_task_abort(0, 1),
            inside.process_report(1, 5),
            inside.pool_destroy(1),
            inside.pool_trim_to(1, 0),
            inside.import_handle(1, 0).map(drop),
            inside.ipc_import("key", 0).map(drop),
            inside.ipc_close("key"),
            inside.reset_device(0),
            inside.reset_device_force(0),
            inside.finalize_reference().map(drop),
            inside.finalize(),
        ];
        for (index, answer) in refused.into_iter().enumerate() {
            assert_eq!(answer, Err(codes::RT_INTERNAL_ERROR), "the call with the number {index}");
        }
        // These only look, or set what is the thread's own.
        inside.query_event_status(event).unwrap();
        inside.set_device(0).unwrap();
    });
    sim.launch_host_func(stream, work).unwrap();
    sim.synchronize_stream(stream).unwrap();
    let findings = sim.take_findings();
    assert_eq!(findings.len(), 19, "{findings:#?}");
    assert!(
        findings.iter().all(|finding| finding.contains(" inside a callback of a stream")),
        "{findings:#?}"
    );
    assert!(sim.stream_query(other).unwrap(), "nothing was reset or destroyed");
}

/// The runtime comes back from them at once.
#[test]
fn streams_that_stay_are_waited_for_with_events() {
    for flags in [STREAM_PERSISTENT, STREAM_CPU_SCHEDULE, STREAM_PERSISTENT | 0x3] {
        let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let stream = sim.create_stream_with_config(0, flags).unwrap();
        let event = sim.create_event_ex(EVENT_SYNC).unwrap();
        let (one, two) = (sim.malloc(4096, 0).unwrap(), sim.malloc(4096, 0).unwrap());
        let kernel = |block| sim.submit(stream, Task::new("kernel").writes(block, 64, 0)).unwrap();
        kernel(one);
        sim.synchronize_stream(stream).unwrap();
        sim.synchronize_stream_with_timeout(stream, 10).unwrap();
        assert_eq!(sim.stream_query(stream), Ok(false));
        sim.free(one).unwrap();
        assert_eq!(sim.take_findings().len(), 1, "the wait has waited for nothing");
        kernel(two);
        sim.record_event(event, stream).unwrap();
        sim.synchronize_event(event).unwrap();
        sim.free(two).unwrap();
        assert_eq!(sim.take_findings(), [""; 0]);
    }
}
