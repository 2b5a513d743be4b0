//! What a machine found wrong and what is left in it, for people and for programs.

use std::fmt::{self, Write as _};

use crate::exec::{Finding, Party, TaskUse};
use crate::sim::Sim;

/// A finding that is not the use checker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misuse {
    pub(crate) kind: MisuseKind,
    pub(crate) text: String,
    /// As that of [`Finding`].
    pub(crate) order: u64,
}

/// What a program did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MisuseKind {
    /// Memory was used after it was unmapped or freed.
    UseAfterEnd,
    /// A task named memory that nothing is mapped at.
    NotMapped,
    /// A task named memory of another device that its own has no access to.
    NoAccess,
    /// A reservation was to be released with mappings in it.
    ReleaseWhileMapped,
    /// Pinned memory was freed with a registration in it.
    FreeWhileRegistered,
    /// A call that would never return inside a callback.
    CallInCallback,
}

impl MisuseKind {
    const fn name(self) -> &'static str {
        match self {
            Self::UseAfterEnd => "use_after_end",
            Self::NotMapped => "not_mapped",
            Self::NoAccess => "no_access",
            Self::ReleaseWhileMapped => "release_while_mapped",
            Self::FreeWhileRegistered => "free_while_registered",
            Self::CallInCallback => "call_in_callback",
        }
    }
}

impl Sim {
    /// Everything that was found wrong so far, in words: unordered uses of memory, uses after its end,
    /// tasks on memory that is not mapped or not granted, releases under mappings, frees under
    /// registrations, calls inside callbacks.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let mine = self.inner.findings.lock().clone();
        texts(&mine, &self.inner.executor.findings())
    }

    /// The same, and forgets them.
    #[must_use]
    pub fn take_findings(&self) -> Vec<String> {
        let mine = std::mem::take(&mut *self.inner.findings.lock());
        texts(&mine, &self.inner.executor.take_findings())
    }

    /// What is still there, each with the call that made it: reservations, chunks, blocks, pinned and
    /// registered memory, streams, events, graphs, pools, contexts. At the end of a program: what it leaks.
    #[must_use]
    pub fn leaks(&self) -> Vec<String> {
        let mut all = self.inner.memory.lock().left();
        all.extend(self.inner.executor.left());
        all.extend(self.inner.pools.lock().left());
        all.extend(self.inner.devices.lock().left());
        all
    }

    /// The report of a machine that is not used any more: its findings, and what it leaks.
    #[must_use]
    pub fn finish(&self) -> Vec<String> {
        let mut all = self.findings();
        all.extend(self.leaks().into_iter().map(|text| format!("leak: {text}")));
        all
    }

    /// The findings as a JSON array of objects with `kind` and `text`; an `unordered_use` has also
    /// `start`, `bytes`, `first` and `second`, which name tasks and host operations.
    #[must_use]
    pub fn findings_json(&self) -> String {
        let mine = self.inner.findings.lock().clone();
        let unordered_uses = self.inner.executor.findings();
        let mine = mine.iter().map(|misuse| (misuse.order, item(misuse.kind.name(), &misuse.text)));
        array(&in_order(mine.chain(unordered_uses.iter().map(|finding| (finding.order, unordered(finding))))))
    }

    /// What [`leaks`](Self::leaks) says, as a JSON array of objects with `kind` (`leak`) and `text`.
    #[must_use]
    pub fn leaks_json(&self) -> String {
        let items: Vec<String> = self.leaks().iter().map(|text| item("leak", text)).collect();
        array(&items)
    }

    /// The counters as a JSON object: ACL name to number of calls.
    #[must_use]
    pub fn counters_json(&self) -> String {
        let counts: Vec<String> =
            self.counters().iter().map(|(name, count)| format!("{}:{count}", Quoted(name))).collect();
        format!("{{{}}}", counts.join(","))
    }
}

fn texts(mine: &[Misuse], unordered_uses: &[Finding]) -> Vec<String> {
    let mine = mine.iter().map(|misuse| (misuse.order, misuse.text.clone()));
    in_order(mine.chain(unordered_uses.iter().map(|finding| (finding.order, finding.to_string()))))
}

/// Findings as they were made, so that a cause stands before what follows from it.
fn in_order(findings: impl Iterator<Item = (u64, String)>) -> Vec<String> {
    let mut findings: Vec<(u64, String)> = findings.collect();
    findings.sort_by_key(|(order, _)| *order);
    findings.into_iter().map(|(_, text)| text).collect()
}

fn array(items: &[String]) -> String {
    format!("[{}]", items.join(","))
}

fn item(kind: &str, text: &str) -> String {
    format!("{{\"kind\":{},\"text\":{}}}", Quoted(kind), Quoted(text))
}

fn unordered(finding: &Finding) -> String {
    let second = match &finding.second {
        Party::Task(task) => task_json(task),
        Party::Host { operation, start, len, tick, call } => format!(
            "{{\"host\":{},\"call\":{},\"start\":{start},\"bytes\":{len},\"tick\":{tick}}}",
            Quoted(&operation.to_string()),
            Quoted(call)
        ),
    };
    format!(
        "{{\"kind\":\"unordered_use\",\"text\":{},\"start\":{},\"bytes\":{},\"first\":{},\"second\":{second}}}",
        Quoted(&finding.to_string()),
        finding.start,
        finding.len,
        task_json(&finding.first)
    )
}

fn task_json(task: &TaskUse) -> String {
    format!(
        "{{\"task\":{},\"call\":{},\"device\":{},\"stream\":{},\"number\":{},\"tag\":{},\"write\":{},\"tick\":{}}}",
        Quoted(task.label),
        Quoted(&task.call),
        task.device,
        task.stream,
        task.number,
        task.tag,
        task.write,
        task.tick
    )
}

/// A text as a JSON string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for letter in self.0.chars() {
            match letter {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                control if control < ' ' => write!(f, "\\u{:04x}", control as u32)?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LAG_NEVER, PhysicalProp, SimConfig, Task, codes};

    #[test]
    fn texts_are_quoted() {
        assert_eq!(Quoted("a \"b\" \\ \n é").to_string(), "\"a \\\"b\\\" \\\\ \\u000a é\"");
    }

    #[test]
    fn what_is_left_names_its_calls() {
        let sim = Sim::new(SimConfig::default());
        sim.set_device(0).unwrap();
        assert!(sim.leaks().is_empty());
        let range = sim.reserve(4 << 20).unwrap();
        let prop = PhysicalProp::device(0);
        let (one, two) = (
            sim.malloc_physical(2 << 20, &prop, 0).unwrap(),
            sim.malloc_physical(2 << 20, &prop, 0).unwrap(),
        );
        sim.map(range, 2 << 20, 0, one, 0).unwrap();
        sim.map(range + (2 << 20), 2 << 20, 0, two, 0).unwrap();
        sim.free_physical(two).unwrap();
        let block = sim.malloc(100, 0).unwrap();
        let pinned = sim.malloc_host(64).unwrap();
        let (stream, event) = (sim.create_stream().unwrap(), sim.create_event_ex(1).unwrap());
        let leaks = sim.leaks();
        for part in [
            format!(
                "reservation {range:#x} of 4194304 bytes with 2 mappings, made by aclrtReserveMemAddress (call 1"
            ),
            format!(
                "chunk {one:#x} of 2097152 bytes on device 0 with 1 reference and 1 mapping, made by aclrtMallocPhysical (call 1"
            ),
            format!(
                "mapping {:#x} of 2097152 bytes, whose handle was freed, made by aclrtMapMem (call 2",
                range + (2 << 20)
            ),
            format!("block {block:#x} of 4096 bytes on device 0, made by aclrtMalloc (call 1"),
            format!("pinned block {pinned:#x} of 64 bytes, made by aclrtMallocHost (call 1"),
            format!("stream {stream:#x} of device 0, made by aclrtCreateStream (call 1"),
            format!("event {event:#x} of device 0, made by aclrtCreateEventExWithFlag (call 1"),
        ] {
            assert!(leaks.iter().any(|leak| leak.starts_with(&part)), "{part}: {leaks:#?}");
        }
        assert_eq!(leaks.len(), 7);
        assert_eq!(sim.finish().len(), 7);
        assert!(sim.leaks_json().starts_with("[{\"kind\":\"leak\",\"text\":\"reservation 0x"));
        sim.reset_device(0).unwrap();
        sim.free_host(pinned).unwrap();
        let leaks = sim.leaks();
        assert!(
            leaks.iter().all(|leak| leak.contains("was reset") || leak.contains("for ever")),
            "{leaks:#?}"
        );
    }

    #[test]
    fn contexts_graphs_and_pools_can_be_left() {
        let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
        let context = sim.create_context(1).unwrap();
        sim.set_device(0).unwrap();
        let stream = sim.create_stream().unwrap();
        sim.capture_begin_raw(stream, 2).unwrap();
        let graph = sim.capture_end(stream).unwrap();
        sim.destroy_stream(stream).unwrap();
        assert_eq!(
            sim.leaks().iter().map(|leak| leak.split(", ").next().unwrap_or_default()).collect::<Vec<_>>(),
            [format!("graph {graph:#x} of device 0"), format!("context {context:#x} of device 1")]
        );
        sim.graph_destroy(graph).unwrap();
        sim.destroy_context(context).unwrap();
        assert_eq!(sim.leaks(), [""; 0]);
    }

    #[test]
    fn findings_come_in_the_order_of_their_causes() {
        let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let (one, two) = (sim.create_stream().unwrap(), sim.create_stream().unwrap());
        let block = sim.malloc(4096, 0).unwrap();
        // SAFETY: only device memory is named.
        unsafe {
            sim.memset_async(block, 64, 1, 64, one).unwrap();
            sim.memset_async(block, 64, 2, 64, two).unwrap();
        }
        sim.free(block).unwrap();
        assert_eq!(sim.synchronize_stream(one), Err(codes::RT_AICORE_TRAP_WRITE_OVERFLOW));
        let findings = sim.findings();
        let place = |begin: &str, part: &str| {
            findings.iter().position(|text| text.starts_with(begin) && text.contains(part)).unwrap()
        };
        let reuse = place("unordered use of", "aclrtMemsetAsync (call 2 of it, thread");
        let free = place("unordered use of", "by aclrtFree (call 1 of it, thread");
        let after = place("aclrtMemsetAsync (call 1 of it", "use after aclrtFree (call 1 of it, thread");
        assert!(reuse < free && free < after, "{findings:#?}");
        assert!(findings[0].contains("is not ordered behind aclrtMemsetAsync (call 1 of it, thread"));
        let json = sim.findings_json();
        let at = |text: &str| json.find(text).unwrap_or(usize::MAX);
        assert!(at("unordered_use") < at("use_after_end"), "{json}");
        assert!(!json.contains("tick 0") && !json.contains("untagged"), "{json}");
    }

    #[test]
    fn what_cannot_be_done_in_a_callback_is_reported_with_the_call() {
        let sim = Sim::new(SimConfig::default());
        sim.set_device(0).unwrap();
        let stream = sim.create_stream().unwrap();
        let inside = sim.clone();
        let work = Box::new(move || {
            inside.set_device(0).unwrap();
            assert_eq!(inside.synchronize_stream(stream), Err(codes::RT_INTERNAL_ERROR));
            assert_eq!(inside.malloc(64, 0), Err(codes::RT_INTERNAL_ERROR));
        });
        sim.launch_host_func(stream, work).unwrap();
        sim.synchronize_stream(stream).unwrap();
        let findings = sim.findings();
        assert_eq!(findings.len(), 2, "{findings:#?}");
        assert!(findings[0].starts_with("aclrtSynchronizeStream (call "), "{findings:#?}");
        assert!(findings[1].starts_with("aclrtMalloc (call 1 of it, thread "), "{findings:#?}");
    }

    #[test]
    fn findings_name_the_calls_on_both_sides() {
        let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let range = sim.reserve(2 << 20).unwrap();
        let chunk = sim.malloc_physical(2 << 20, &PhysicalProp::device(0), 0).unwrap();
        sim.map(range, 2 << 20, 0, chunk, 0).unwrap();
        assert_eq!(sim.release(range), Err(codes::RT_DRV_INTERNAL_ERROR));
        let released = sim.take_findings();
        assert_eq!(released.len(), 1);
        for part in ["aclrtReleaseMemAddress (call 1", "mappings are in it (1)", "by aclrtMapMem (call 1"] {
            assert!(released[0].contains(part), "{released:?}");
        }
        let stream = sim.create_stream().unwrap();
        // SAFETY: only device memory is touched.
        unsafe { sim.memset_async(range, 64, 1, 64, stream).unwrap() };
        sim.submit(0, Task::new("kernel \"x\"").writes(range, 8, 0)).unwrap();
        sim.unmap(range).unwrap();
        let findings = sim.findings();
        assert!(findings[0].contains("aclrtMemsetAsync") && findings[0].contains("kernel"), "{findings:?}");
        assert!(findings.iter().any(|text| text.contains("by aclrtUnmapMem (call 1")), "{findings:?}");
        let json = sim.findings_json();
        assert!(json.starts_with("[{\"kind\":\"unordered_use\",\"text\":\"unordered use of 0x"), "{json}");
        assert!(
            json.contains(
                "\"first\":{\"task\":\"aclrtMemsetAsync\",\"call\":\"aclrtMemsetAsync (call 1 of it, thread"
            ),
            "{json}"
        );
        assert!(json.contains("\"task\":\"kernel \\\"x\\\"\""), "{json}");
        assert!(
            json.contains("{\"host\":\"unmap\",\"call\":\"aclrtUnmapMem (call 1 of it, thread"),
            "{json}"
        );
        assert!(sim.counters_json().contains("\"aclrtUnmapMem\":1"));
        sim.submit(0, Task::new("late").reads(range, 8, 0)).unwrap();
        let late = sim.findings().into_iter().find(|text| text.contains("late")).unwrap_or_default();
        assert!(
            late.contains("use after aclrtUnmapMem (call 1") && late.contains("by aclrtMapMem (call 1"),
            "{late}"
        );
        assert!(sim.findings_json().contains("{\"kind\":\"use_after_end\",\"text\":\"task \\\"late\\\""));
    }
}
