//! Tasks that stand for kernels, on streams and in graphs, and whether their memory is there.

use crate::exec::{Access, Task};
use crate::made::Made;
use crate::report::MisuseKind;
use crate::sim::Sim;

/// Where a kernel is about to run.
struct Place {
    /// The driver's number of the device.
    device: u32,
    stream: u64,
    /// The graph it is a part of, or 0.
    graph: u64,
    /// The devices that this one is linked to.
    links: Vec<u32>,
}

impl Sim {
    /// Queues a task, which stands for a kernel, on a stream of the current device. Not an ACL call.
    /// A range of it that is not wholly mapped, or that the device has no access to, is a finding, if
    /// the configuration says so.
    ///
    /// # Errors
    /// The ACL code.
    pub fn submit(&self, stream: u64, task: Task) -> Result<(), i32> {
        let here = self.here().map_err(|refusal| refusal.code)?;
        Made::leave();
        if self.inner.config.check_mapped {
            let place = self.place(here.device, stream, 0);
            for access in &task.accesses {
                self.check_kernel(&place, task.label, access);
            }
        }
        self.inner.executor.submit(here.context, stream, task)
    }

    /// The same look at the kernels of a graph that is about to run on a stream; 0 is the default one.
    pub(super) fn check_graph_kernels(&self, graph: u64, stream: u64) {
        if !self.inner.config.check_mapped {
            return;
        }
        let (Ok(here), Ok(kernels)) = (self.here(), self.inner.executor.graph_kernels(graph)) else { return };
        let place = self.place(here.device, stream, graph);
        for (label, access) in &kernels {
            self.check_kernel(&place, label, access);
        }
    }

    fn place(&self, device: u32, stream: u64, graph: u64) -> Place {
        Place { device, stream, graph, links: self.inner.devices.lock().links_of(device) }
    }

    fn check_kernel(&self, place: &Place, label: &str, access: &Access) {
        let range = (access.start, access.len);
        let memory = self.inner.memory.lock();
        let hole = memory.first_hole(range.0, range.1).filter(|_| !memory.is_pinned(range.0, range.1));
        let before = hole.and_then(|hole| memory.last_mapping(hole));
        let far = memory.first_out_of_reach(range, place.device, |device| place.links.contains(&device));
        drop(memory);
        let used = || use_of(place, label, access);
        match (hole, before) {
            (None, _) => {}
            (Some(hole), None) => {
                let text = format!("{}, but nothing is mapped at {hole:#x}", used());
                self.inner.found(MisuseKind::NotMapped, text);
            }
            (Some(hole), Some((made, ended))) => {
                let text = format!(
                    "{}, but nothing is mapped at {hole:#x}: use after {ended}; it was there by {made}",
                    used()
                );
                self.inner.found(MisuseKind::UseAfterEnd, text);
            }
        }
        if let Some((start, device, granted)) = far {
            let lacking = match granted {
                true => "no aclrtMemSetAccess has granted it access",
                false => "no aclrtDeviceEnablePeerAccess has linked the two",
            };
            let text = format!("{}, but {start:#x} is on device {device}: {lacking}", used());
            self.inner.found(MisuseKind::NoAccess, text);
        }
    }
}

/// Who uses which memory, in words.
fn use_of(place: &Place, label: &str, access: &Access) -> String {
    let &Place { device, stream, graph, .. } = place;
    let of_graph = if graph == 0 { String::new() } else { format!(" of graph {graph:#x}") };
    format!(
        "task \"{label}\"{of_graph} on stream {stream:#x} of device {device} {} {:#x}..{:#x}",
        if access.write { "writes" } else { "reads" },
        access.start,
        access.start.saturating_add(access.len),
    )
}

#[cfg(test)]
mod tests {
    use crate::{AccessDescriptor, Location, PhysicalProp, Sim, SimConfig, Task, codes};

    const HUGE: u64 = 2 << 20;

    #[test]
    fn a_graph_that_runs_after_its_memory_has_gone_is_found() {
        let sim = Sim::new(SimConfig::default());
        sim.set_device(0).unwrap();
        let range = sim.reserve(HUGE).unwrap();
        let chunk = sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0).unwrap();
        sim.map(range, HUGE, 0, chunk, 0).unwrap();
        let stream = sim.create_stream().unwrap();
        sim.capture_begin_raw(stream, 0).unwrap();
        sim.submit(stream, Task::new("softmax").writes(range, HUGE, 0)).unwrap();
        let graph = sim.capture_end(stream).unwrap();
        sim.graph_execute(graph, stream).unwrap();
        sim.synchronize_stream(stream).unwrap();
        sim.graph_run(graph, -1).unwrap();
        sim.unmap(range).unwrap();
        assert_eq!(sim.take_findings(), [""; 0]);
        sim.graph_execute(graph, stream).unwrap();
        sim.synchronize_stream(stream).unwrap();
        sim.graph_run(graph, -1).unwrap();
        let findings = sim.take_findings();
        assert_eq!(findings.len(), 2, "{findings:#?}");
        for finding in findings {
            let start = format!("task \"softmax\" of graph {graph:#x} on stream ");
            assert!(finding.starts_with(&start), "{finding}");
            assert!(finding.contains("use after aclrtUnmapMem (call 1 of it, thread "), "{finding}");
        }
    }

    #[test]
    fn a_kernel_reaches_another_device_only_with_a_grant_or_a_link() {
        let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
        sim.set_device(1).unwrap();
        let block = sim.malloc(4096, 0).unwrap();
        let range = sim.reserve(HUGE).unwrap();
        let chunk = sim.malloc_physical(HUGE, &PhysicalProp::device(1), 0).unwrap();
        sim.map(range, HUGE, 0, chunk, 0).unwrap();
        let kernel = |start| sim.submit(0, Task::new("gather").reads(start, 64, 0)).unwrap();
        kernel(range);
        kernel(block);
        sim.synchronize_device().unwrap();
        sim.set_device(0).unwrap();
        assert_eq!(sim.take_findings(), [""; 0], "its own memory");
        kernel(range);
        kernel(block);
        let findings = sim.take_findings();
        assert_eq!(findings.len(), 2, "{findings:#?}");
        assert!(findings[0].ends_with("is on device 1: no aclrtMemSetAccess has granted it access"));
        assert!(findings[1].ends_with("no aclrtDeviceEnablePeerAccess has linked the two"));
        let grant = AccessDescriptor { flags: codes::ACCESS_READWRITE, location: Location::device(0) };
        sim.set_access(range, HUGE, &[grant]).unwrap();
        sim.enable_peer_access(1, 0).unwrap();
        kernel(range);
        kernel(block);
        assert_eq!(sim.take_findings(), [""; 0]);
        // A grant lives in its mapping.
        sim.synchronize_device().unwrap();
        sim.unmap(range).unwrap();
        sim.map(range, HUGE, 0, chunk, 0).unwrap();
        kernel(range);
        assert!(sim.findings_json().starts_with("[{\"kind\":\"no_access\","), "{}", sim.findings_json());
    }
}
