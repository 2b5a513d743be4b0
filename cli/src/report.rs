//! The figures of one replay, as one line of JSON.

use serde::Serialize;

/// Driver calls of the allocator, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// Chunks mapped.
    pub map: u64,
    /// Chunks unmapped.
    pub unmap: u64,
    /// Chunks taken from the device.
    pub malloc_physical: u64,
    /// Chunks given back to the device.
    pub free_physical: u64,
    /// Address ranges reserved.
    pub reserve: u64,
    /// Address ranges released.
    pub release: u64,
    /// Mappings given access by a call of its own.
    pub set_access: u64,
}

/// How often the allocator made the host wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Syncs {
    /// For the whole device.
    pub device: u64,
    /// For a stream.
    pub stream: u64,
    /// For an event.
    pub event: u64,
}

/// Driver calls between two markers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The marker's label; `init` before the first marker.
    pub label: String,
    /// Chunks mapped.
    pub map: u64,
    /// Chunks unmapped.
    pub unmap: u64,
    /// Chunks taken from the device.
    pub malloc_physical: u64,
    /// Chunks given back to the device.
    pub free_physical: u64,
    /// Mappings given access by a call of its own.
    pub set_access: u64,
    /// Highest live bytes since the start of the trace, at the end of the step.
    #[serde(skip)]
    pub peak_live: u64,
}

/// The first request that found no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstOom {
    /// The event's number in the trace, from 1.
    pub event: usize,
    /// Label of the step it fell into.
    pub step: String,
    /// What the allocator said.
    pub error: String,
}

/// How the figures of a report came about; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The version of this command.
    pub version: &'static str,
    /// Events in the trace.
    pub events: u64,
    /// Memory of the device.
    pub memory: u64,
    /// What the simulator chose for this machine: first, how it keeps bytes.
    pub simulator: Vec<String>,
    /// Trace events after which a task is complete.
    pub lag: u64,
    /// Streams that the allocations were put on in turn; 1: those that the trace names.
    pub spread: u16,
    /// Replays on the same allocator. The figures are those of the last.
    pub passes: u32,
    /// Whether blocks were watched over.
    pub verify: bool,
    /// Whether the smallest device was searched for.
    pub min_memory: bool,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            events: 0,
            memory: 0,
            simulator: Vec::new(),
            lag: 0,
            spread: 1,
            passes: 1,
            verify: false,
            min_memory: false,
        }
    }
}

/// Everything a replay found out about one trace; sizes in bytes.
///
/// The order of the fields is the order in the JSON. What is skipped there is for the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Name of the trace.
    pub trace: String,
    /// The configuration text given; empty for the default.
    pub conf: String,
    /// Of which version, and with which other options.
    pub run: Run,
    /// Calls into the allocator in one pass: allocate, free and record.
    pub ops: u64,
    /// CPU nanoseconds of the process per call into the allocator, driver calls left out.
    pub ns_per_op: f64,
    /// CPU nanoseconds of the process in driver calls, per call into the allocator.
    pub driver_ns_per_op: f64,
    /// Highest sum of requested bytes.
    pub peak_live: u64,
    /// Highest sum of block sizes handed out.
    pub peak_allocated: u64,
    /// The same with blocks that wait for streams.
    pub peak_active: u64,
    /// Highest bytes with physical memory behind them, as the allocator counts.
    pub peak_reserved: u64,
    /// Highest physical memory in use, as the simulator counts.
    pub peak_physical: u64,
    /// Smallest device that completes the trace, if it was searched for and found.
    pub min_memory: Option<u64>,
    /// Driver calls.
    pub calls: Calls,
    /// Host waits.
    pub syncs: Syncs,
    /// Events recorded.
    pub events_recorded: u64,
    /// Events asked whether they have completed.
    pub event_queries: u64,
    /// Waits that a stream does for an event, without the host.
    pub device_waits: u64,
    /// Requests that found no memory.
    pub ooms: u64,
    /// What the use checker, the accounting and `--verify` found wrong; empty is good.
    pub findings: Vec<String>,
    /// Driver calls by step.
    pub steps: Vec<Step>,

    /// The first request that found no memory.
    #[serde(skip)]
    pub first_oom: Option<FirstOom>,
    /// Fixed blocks taken from and given back to the device (classic mode).
    #[serde(skip)]
    pub fixed_blocks: (u64, u64),
    /// Chunks moved from one address to another.
    #[serde(skip)]
    pub chunks_moved: u64,
    /// Replays that the search for the smallest device took.
    #[serde(skip)]
    pub search_replays: u64,
    /// Live blocks whose bytes were checked.
    #[serde(skip)]
    pub verified_blocks: Option<u64>,
}

impl Report {
    /// The report as one line of JSON, without the line's end.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()))
    }

    /// Map, unmap, take and give back calls per step once the trace has settled, as a share of
    /// twice the chunks that hold its peak live bytes. The steps that count come after the fourth
    /// and do not raise the peak; `None` when there is none.
    #[must_use]
    pub fn settled(&self) -> Option<f64> {
        let chunks = self.peak_live.div_ceil(crate::units::DEVICE_STEP);
        let (mut steps, mut calls) = (0_u64, 0_u64);
        // The first of `steps` is `init`; a marker interval is settled when it is the fifth or later.
        for (before, step) in self.steps.iter().zip(self.steps.iter().skip(1)).skip(4) {
            if step.label != crate::trace::TEARDOWN && step.peak_live <= before.peak_live {
                steps += 1;
                calls += step.map + step.unmap + step.malloc_physical + step.free_physical;
            }
        }
        (steps > 0 && chunks > 0).then(|| calls as f64 / steps as f64 / (2 * chunks) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(label: &str, map: u64, peak_live: u64) -> Step {
        Step { label: label.to_owned(), map, peak_live, ..Step::default() }
    }

    #[test]
    fn json_has_the_agreed_fields_in_order() {
        let report = Report { trace: "T".into(), steps: vec![step("init", 1, 5)], ..Report::default() };
        let json = report.json();
        let mut at = 0;
        for field in [
            "trace",
            "conf",
            "run",
            "ops",
            "ns_per_op",
            "driver_ns_per_op",
            "peak_live",
            "peak_allocated",
            "peak_active",
            "peak_reserved",
            "peak_physical",
            "min_memory",
            "calls",
            "syncs",
            "events_recorded",
            "event_queries",
            "device_waits",
            "ooms",
            "findings",
            "steps",
        ] {
            let found = json[at..].find(&format!("\"{field}\":"));
            at += found.unwrap_or_else(|| panic!("{field} is missing or out of order in {json}"));
        }
        assert!(json.ends_with(
            "\"steps\":[{\"label\":\"init\",\"map\":1,\"unmap\":0,\"malloc_physical\":0,\
             \"free_physical\":0,\"set_access\":0}]}"
        ));
        assert!(!json.contains('\n'));
    }

    #[test]
    fn settled_counts_from_the_fifth_marker_interval() {
        let mut steps = vec![step("init", 100, 10)];
        steps.extend((0..4).map(|i| step(&format!("step {i}"), 100, 20)));
        let mut report = Report { peak_live: 4 << 20, steps, ..Report::default() };
        assert_eq!(report.settled(), None);
        report.steps.push(step("step 4", 1, 20));
        report.steps.push(step("step 5", 50, 30));
        report.steps.push(step("step 6", 3, 30));
        report.steps.push(step("teardown", 77, 30));
        // (1 + 3) / 2 calls of 2 x 2 chunks.
        assert_eq!(report.settled(), Some(0.5));
    }
}
