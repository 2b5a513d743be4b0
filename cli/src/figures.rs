//! Takes all figures of one trace: replays with the checker, timed passes, the search.

use ascend_alloc::Stats;
use ascend_alloc::stats::DriverCalls;
use ascend_alloc::words::counted;

use crate::meter::{Call, Counting};
use crate::replay::{OnOom, Outcome, Played, Player, Watcher};
use crate::report::{Calls, FirstOom, Report, Run, Step, Syncs};
use crate::rig::{DEVICE, Rig, RigOptions};
use crate::search;
use crate::timing;
use crate::trace::Trace;

/// Most findings a report carries; a further one says how many are left out.
const MOST_FINDINGS: usize = 100;

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device and the allocator.
    pub rig: RigOptions,
    /// The configuration text, for the report.
    pub conf: String,
    /// Replays on the same allocator; the last is reported. At least 1.
    pub passes: u32,
    /// Whether blocks are watched over.
    pub verify: bool,
    /// Whether the smallest device is searched for.
    pub min_memory: bool,
}

/// Which part of the work has begun, for a person who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Replay number `0` of `1`, with the use checker.
    Replay(u32, u32),
    /// The timed passes.
    Timing,
    /// The search for the smallest device; instead of events, replays are counted.
    Search,
}

/// Looks at the allocator after each event of a replay.
pub trait Observer {
    /// The event was played on this rig.
    fn after(&mut self, rig: &Rig<Counting>, played: &Played);
}

/// Replays a trace with the checker, lets somebody look on, and answers the figures; nothing is timed, and
/// no smallest device is searched for. `progress` is told how many events of a replay are done.
///
/// What goes wrong during a replay stands in [`Report::findings`].
///
/// # Errors
/// No allocator could be built.
pub fn observe(
    trace: &Trace,
    plan: &Plan,
    observer: &mut dyn Observer,
    progress: &mut dyn FnMut(Phase, usize),
) -> Result<Report, String> {
    let mut report = blank(trace, plan);
    report.ops = trace.events.iter().filter(|event| event.is_call()).count() as u64;
    replay(trace, plan, &mut report, Some(observer), progress)?;
    cap(&mut report.findings);
    Ok(report)
}

/// A report that names what is measured and has no figure yet.
fn blank(trace: &Trace, plan: &Plan) -> Report {
    Report {
        trace: trace.name.clone(),
        conf: plan.conf.clone(),
        run: Run {
            events: trace.events.len() as u64,
            memory: plan.rig.memory,
            lag: plan.rig.lag,
            spread: trace.spread,
            passes: plan.passes.max(1),
            verify: plan.verify,
            min_memory: plan.min_memory,
            ..Run::default()
        },
        peak_live: trace.peak_live,
        ..Report::default()
    }
}

/// Takes all figures of a trace. `progress` is told the phase and how many events of a replay are done.
///
/// What goes wrong during a replay stands in [`Report::findings`].
///
/// # Errors
/// No allocator could be built.
pub fn measure(trace: &Trace, plan: &Plan, progress: &mut dyn FnMut(Phase, usize)) -> Result<Report, String> {
    let mut report = blank(trace, plan);
    let stopped = replay(trace, plan, &mut report, None, progress)?;
    if !stopped {
        progress(Phase::Timing, 0);
        match timing::time(trace, &plan.rig, plan.passes) {
            Ok(cost) => {
                report.ops = cost.ops;
                report.ns_per_op = round(cost.ns_per_op);
                report.driver_ns_per_op = round(cost.driver_ns_per_op);
            }
            Err(reason) => report.findings.push(format!("the timed replay stopped: {reason}")),
        }
        if plan.min_memory {
            progress(Phase::Search, 0);
            let found = search::min_memory(trace, &plan.rig, report.peak_physical, &mut |replays| {
                progress(Phase::Search, replays);
            });
            report.min_memory = found.bytes;
            report.search_replays = found.replays;
            report.findings.extend(found.findings);
        }
    }
    cap(&mut report.findings);
    Ok(report)
}

/// Whole tenths: more is noise.
fn round(nanos: f64) -> f64 {
    (nanos * 10.0).round() / 10.0
}

fn cap(findings: &mut Vec<String>) {
    if findings.len() > MOST_FINDINGS {
        let more = findings.len() - MOST_FINDINGS;
        findings.truncate(MOST_FINDINGS);
        findings.push(format!("and {}", counted(more as u64, "more finding[s]")));
    }
}

/// The replays with checker; answers whether they stopped early.
fn replay(
    trace: &Trace,
    plan: &Plan,
    report: &mut Report,
    mut observer: Option<&mut dyn Observer>,
    progress: &mut dyn FnMut(Phase, usize),
) -> Result<bool, String> {
    let options = RigOptions { checker: true, bytes: plan.verify, ..plan.rig.clone() };
    let rig = Rig::new(&options, trace.streams.len(), Counting::default())?;
    report.run.simulator = rig.choices();
    let mut player = Player::new(&rig, trace, plan.verify);
    let mut stopped = false;
    let passes = report.run.passes;
    for pass in 1..=passes {
        let phase = Phase::Replay(pass, passes);
        let mut progress = |events| progress(phase, events);
        let mut audit = Audit::start(&rig, trace, plan.verify, pass == 1, &mut progress)?;
        audit.observer = match &mut observer {
            Some(observer) => Some(&mut **observer),
            None => None,
        };
        let result = player.pass(OnOom::Continue, &mut audit);
        if let Ok(outcome) = &result {
            audit.peak_live = outcome.peak_live;
        }
        audit.end_step();
        let last = pass == passes;
        match result {
            Ok(outcome) if last => audit.fill(report, &outcome)?,
            Ok(_) => {}
            Err(failure) => {
                let event = failure.event + 1;
                audit.findings.push(format!("the replay stopped at event {event}: {}", failure.reason));
                audit.fill(report, &Outcome::default())?;
                stopped = true;
            }
        }
        report.findings.append(&mut audit.findings);
        report.findings.extend(rig.take_findings());
        if stopped {
            break;
        }
        if let Err(failure) = player.rewind() {
            report.findings.push(format!("the replay stopped at its end: {}", failure.reason));
            stopped = true;
            break;
        }
    }
    // The last tasks run now, and with them the last checks.
    report.findings.extend(rig.wait_device().err());
    report.findings.extend(player.take_wrong());
    report.verified_blocks = player.verified();
    drop(player);
    report.findings.extend(rig.close(!stopped));
    Ok(stopped)
}

/// Reads the counters at every marker and compares the books of the allocator with those of the
/// simulator.
struct Audit<'a> {
    rig: &'a Rig<Counting>,
    trace: &'a Trace,
    heap_check: bool,
    progress: &'a mut dyn FnMut(usize),
    observer: Option<&'a mut dyn Observer>,
    /// At the start of the pass.
    base: DriverCalls,
    base_stream_waits: u64,
    base_moved: u64,
    /// At the start of the step.
    before: DriverCalls,
    label: String,
    peak_live: u64,
    steps: Vec<Step>,
    findings: Vec<String>,
}

impl<'a> Audit<'a> {
    /// Begins a pass. The first one counts from the making of the allocator on.
    fn start(
        rig: &'a Rig<Counting>,
        trace: &'a Trace,
        heap_check: bool,
        first: bool,
        progress: &'a mut dyn FnMut(usize),
    ) -> Result<Self, String> {
        let (mut base, mut base_stream_waits, mut base_moved) = (DriverCalls::default(), 0, 0);
        if !first {
            let stats = stats(rig)?;
            base = stats.calls;
            base_moved = stats.chunks_moved;
            base_stream_waits = rig.probe().tried(Call::StreamWaitEvent);
            rig.allocator.reset_peak_stats(DEVICE).map_err(|error| error.to_string())?;
            rig.reset_peak_physical();
        }
        Ok(Audit {
            rig,
            trace,
            heap_check,
            progress,
            observer: None,
            base,
            base_stream_waits,
            base_moved,
            before: base,
            label: "init".to_owned(),
            peak_live: 0,
            steps: Vec::new(),
            findings: Vec::new(),
        })
    }

    /// Closes the step in hand.
    fn end_step(&mut self) {
        let stats = match stats(self.rig) {
            Ok(stats) => stats,
            Err(reason) => {
                self.findings.push(reason);
                return;
            }
        };
        let (now, before) = (stats.calls, self.before);
        let label = std::mem::take(&mut self.label);
        self.compare(&stats, &label);
        self.steps.push(Step {
            label,
            map: now.map - before.map,
            unmap: now.unmap - before.unmap,
            malloc_physical: now.malloc_physical - before.malloc_physical,
            free_physical: now.free_physical - before.free_physical,
            set_access: now.set_access - before.set_access,
            peak_live: self.peak_live,
        });
        self.before = now;
    }

    /// Compares the books.
    fn compare(&mut self, stats: &Stats, label: &str) {
        let reserved = u64::try_from(stats.reserved_bytes.all.current).unwrap_or(0);
        let (held, physical) = (reserved + stats.cached_handles, self.rig.physical());
        if held != physical {
            self.findings.push(format!(
                "accounting: at the end of step {label}, {reserved} bytes reserved and {} in cached handles \
                 make {held}, the simulator has {physical} in use",
                stats.cached_handles
            ));
        }
        let count = self.rig.probe();
        let calls = &stats.calls;
        for (name, said, call) in [
            ("map", calls.map, Call::Map),
            ("unmap", calls.unmap, Call::Unmap),
            ("malloc_physical", calls.malloc_physical, Call::MallocPhysical),
            ("free_physical", calls.free_physical, Call::FreePhysical),
            ("reserve", calls.reserve, Call::Reserve),
            ("release", calls.release, Call::Release),
            ("set_access", calls.set_access, Call::SetAccess),
            ("malloc", calls.malloc, Call::Malloc),
            ("free", calls.free, Call::Free),
            ("record_event", calls.record_event, Call::RecordEvent),
            ("query_event", calls.query_event, Call::QueryEvent),
            ("wait_event", calls.wait_event, Call::WaitEvent),
            ("wait_stream", calls.wait_stream, Call::WaitStream),
            ("wait_device", calls.wait_device, Call::WaitDevice),
        ] {
            // Whether a refused call counts is the allocator's choice.
            if said < count.done(call) || said > count.tried(call) {
                self.findings.push(format!(
                    "accounting: at the end of step {label} the allocator counts {said} calls of {name}, \
                     its driver {} tried and {} done",
                    count.tried(call),
                    count.done(call)
                ));
            }
        }
        if self.heap_check
            && let Err(wrong) = self.rig.allocator.check()
        {
            self.findings.extend(wrong.into_iter().map(|text| format!("heap, step {label}: {text}")));
        }
    }

    /// Writes the figures of the pass into the report.
    fn fill(&mut self, report: &mut Report, outcome: &Outcome) -> Result<(), String> {
        let stats = stats(self.rig)?;
        let peak = |value: i64| u64::try_from(value).unwrap_or(0);
        report.peak_allocated = peak(stats.allocated_bytes.all.peak);
        report.peak_active = peak(stats.active_bytes.all.peak);
        report.peak_reserved = peak(stats.reserved_bytes.all.peak);
        report.peak_physical = self.rig.peak_physical();
        let (now, base) = (stats.calls, self.base);
        report.calls = Calls {
            map: now.map - base.map,
            unmap: now.unmap - base.unmap,
            malloc_physical: now.malloc_physical - base.malloc_physical,
            free_physical: now.free_physical - base.free_physical,
            reserve: now.reserve - base.reserve,
            release: now.release - base.release,
            set_access: now.set_access - base.set_access,
        };
        report.syncs = Syncs {
            device: now.wait_device - base.wait_device,
            stream: now.wait_stream - base.wait_stream,
            event: now.wait_event - base.wait_event,
        };
        report.events_recorded = now.record_event - base.record_event;
        report.event_queries = now.query_event - base.query_event;
        report.device_waits = self.rig.probe().tried(Call::StreamWaitEvent) - self.base_stream_waits;
        report.fixed_blocks = (now.malloc - base.malloc, now.free - base.free);
        report.chunks_moved = stats.chunks_moved - self.base_moved;
        report.ooms = outcome.ooms;
        report.first_oom = outcome.first_oom.as_ref().map(|(event, error)| FirstOom {
            event: event + 1,
            step: step_of(self.trace, *event),
            error: error.clone(),
        });
        report.steps = std::mem::take(&mut self.steps);
        Ok(())
    }
}

impl Watcher for Audit<'_> {
    fn marker(&mut self, label: u32, peak_live: u64) {
        self.peak_live = peak_live;
        self.end_step();
        self.label.clone_from(&self.trace.labels[label as usize]);
    }

    fn progress(&mut self, events: usize) {
        (self.progress)(events);
    }

    fn after(&mut self, played: &Played) {
        if let Some(observer) = &mut self.observer {
            observer.after(self.rig, played);
        }
    }
}

fn stats(rig: &Rig<Counting>) -> Result<Stats, String> {
    rig.allocator.stats(DEVICE).map_err(|error| format!("statistics cannot be read: {error}"))
}

/// The label of the step an event falls into.
fn step_of(trace: &Trace, event: usize) -> String {
    let label = trace.events[..event].iter().rev().find_map(|event| match event {
        crate::trace::Event::Marker { label } => trace.labels.get(*label as usize),
        _ => None,
    });
    label.map_or_else(|| "init".to_owned(), Clone::clone)
}
