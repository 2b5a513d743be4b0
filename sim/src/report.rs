//! What a machine found wrong and what is left in it, for people and for programs.

use std::fmt::{self, Write as _};

use crate::exec::{Finding, Party, TaskUse};
use crate::sim::Sim;

/// A finding that is not the use checker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misuse {
    pub(crate) kind: MisuseKind,
    pub(crate) text: String,
}

/// What a program did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MisuseKind {
    /// Memory was used after it was unmapped or freed.
    UseAfterEnd,
    /// A task named memory that nothing is mapped at.
    NotMapped,
    /// A reservation was to be released with mappings in it.
    ReleaseWhileMapped,
    /// A call that would never return inside a callback.
    CallInCallback,
}

impl MisuseKind {
    const fn name(self) -> &'static str {
        match self {
            Self::UseAfterEnd => "use_after_end",
            Self::NotMapped => "not_mapped",
            Self::ReleaseWhileMapped => "release_while_mapped",
            Self::CallInCallback => "call_in_callback",
        }
    }
}

impl Sim {
    /// Everything that was found wrong so far, in words: unordered uses of memory, uses after its end,
    /// tasks on memory that is not mapped, releases under mappings, calls inside callbacks.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.inner.findings.lock().iter().map(|misuse| misuse.text.clone()).collect();
        all.extend(self.inner.executor.findings().iter().map(ToString::to_string));
        all
    }

    /// The same, and forgets them.
    #[must_use]
    pub fn take_findings(&self) -> Vec<String> {
        let mine = std::mem::take(&mut *self.inner.findings.lock());
        let mut all: Vec<String> = mine.into_iter().map(|misuse| misuse.text).collect();
        all.extend(self.inner.executor.take_findings().iter().map(ToString::to_string));
        all
    }

    /// What is still there, each with the call that made it: reservations, chunks, blocks, pinned and
    /// registered memory, streams, events. At the end of a program: what it leaks.
    #[must_use]
    pub fn leaks(&self) -> Vec<String> {
        let mut all = self.inner.memory.lock().left();
        all.extend(self.inner.executor.left());
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
        let mut items: Vec<String> =
            self.inner.findings.lock().iter().map(|misuse| item(misuse.kind.name(), &misuse.text)).collect();
        items.extend(self.inner.executor.findings().iter().map(unordered));
        array(&items)
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
        "{{\"task\":{},\"device\":{},\"stream\":{},\"number\":{},\"tag\":{},\"write\":{},\"tick\":{}}}",
        Quoted(task.label),
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
                "chunk {one:#x} of 2097152 bytes on device 0 with 1 references and 1 mappings, made by aclrtMallocPhysical (call 1"
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
    fn findings_name_the_calls_on_both_sides() {
        let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let range = sim.reserve(2 << 20).unwrap();
        let chunk = sim.malloc_physical(2 << 20, &PhysicalProp::device(0), 0).unwrap();
        sim.map(range, 2 << 20, 0, chunk, 0).unwrap();
        assert_eq!(sim.release(range), Err(codes::RT_DRV_INTERNAL_ERROR));
        let released = sim.take_findings();
        assert_eq!(released.len(), 1);
        for part in ["aclrtReleaseMemAddress (call 1", "1 mappings are in it", "by aclrtMapMem (call 1"] {
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
        assert!(json.contains("\"first\":{\"task\":\"aclrtMemsetAsync\",\"device\":0,"), "{json}");
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
