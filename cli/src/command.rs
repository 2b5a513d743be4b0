//! The command line: options in, tables or JSON out.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use ascend_alloc::Config;
use ascend_alloc::words::counted;
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::bandwidth::Bandwidth;
use crate::convert::Convert;
use crate::doctor::Doctor;
use crate::figures::{Observer, Phase, Plan, measure, observe};
use crate::meter::Counting;
use crate::page::Report;
use crate::replay::Played;
use crate::rig::{Rig, RigOptions};
use crate::snapshot::Snapshot;
use crate::table;
use crate::trace::Trace;
use crate::units::parse_device;
use crate::watch::prometheus::{self, Metrics};
use crate::watch::top::Top;

/// A caching allocator for Ascend NPU memory: tried out on a simulated device, and looked after on a real one.
#[derive(Debug, Parser)]
#[command(name = "ascend-alloc", version)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Replays allocation traces through the allocator on a simulated device and prints what it cost.
    #[command(after_help = EXITS)]
    Replay(Replay),
    /// Draws what memory did, in replays of traces and in snapshots: one page for a browser, or single plots.
    Report(Report),
    /// Shows the memory of running processes that export their statistics.
    Top(Top),
    /// Prints or serves the statistics that processes export, for Prometheus.
    Metrics(Metrics),
    /// Looks at the runtime library of this machine and says what the allocator will do on it.
    Doctor(Doctor),
    /// Measures copies between host memory and a device: pageable, page-locked, and zero copy.
    Bandwidth(Bandwidth),
    /// Shows who holds memory in a snapshot of PyTorch, torch_npu or this allocator; turns pickles into JSON and back.
    Snapshot(Snapshot),
    /// Turns the events of a snapshot into a trace, to see with `replay` what this allocator would have needed.
    Convert(Convert),
}

const EXITS: &str = "\
The work a trace implies is run as well: tasks on streams use each block, and a checker reports
memory that is handed out, unmapped or freed while unordered work may still use it.

Exit status: 0 all traces were replayed (also where a request found no memory); 1 something was
found wrong, so that no figure of that trace counts; 2 an option or a trace was refused.";

#[derive(Debug, Args)]
struct Replay {
    /// Traces: .trace, .trace.zst or .trace.gz
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// Memory of the simulated device, a multiple of 2 MiB
    #[arg(long, value_name = "SIZE", default_value = "64GiB", value_parser = parse_device)]
    memory: u64,

    /// Configuration of the allocator, as key:value,key:value; the environment is not read
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    conf: String,

    /// Search for the smallest device, in steps of 2 MiB, from which on the next 16 steps complete too
    #[arg(long)]
    min_memory: bool,

    /// Replay this often on the same allocator and report the last pass
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,

    /// Trace events after which a task, or an event recorded behind it, is complete; 0: at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    lag: u64,

    /// Put the allocations on so many streams in turn; 1: on those the trace names
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    spread: u16,

    /// Check that live blocks are disjoint and keep their bytes, and the allocator's heap at every marker
    #[arg(long)]
    verify: bool,

    /// One line of JSON for each trace, sizes in bytes, times in nanoseconds; "run" in it has these options
    #[arg(long)]
    json: bool,

    /// Print the allocator's metrics behind the last event as Prometheus text, and nothing else; for one trace
    #[arg(long, conflicts_with_all = ["json", "min_memory"])]
    prometheus: bool,
}

/// Runs the command of this process.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().action {
        Action::Replay(replay) => replay.run(),
        Action::Report(report) => report.run(),
        Action::Top(top) => top.run(),
        Action::Metrics(metrics) => metrics.run(),
        Action::Doctor(doctor) => doctor.run(),
        Action::Bandwidth(bandwidth) => bandwidth.run(),
        Action::Snapshot(snapshot) => snapshot.run(),
        Action::Convert(convert) => convert.run(),
    }
}

/// Status for findings.
const FOUND: u8 = 1;
/// Status for options and traces that were refused.
const REFUSED: u8 = 2;

impl Replay {
    fn run(&self) -> ExitCode {
        let config = match Config::parse(&self.conf) {
            Ok(config) => config,
            Err(error) => return self.refused(&error.to_string()),
        };
        for warning in config.warnings() {
            eprintln!("warning: {warning}");
        }
        let plan = Plan {
            rig: RigOptions { memory: self.memory, config, lag: self.lag, checker: true, bytes: false },
            conf: self.conf.clone(),
            passes: self.passes,
            verify: self.verify,
            min_memory: self.min_memory,
        };
        if self.prometheus && self.traces.len() > 1 {
            return self
                .refused("--prometheus takes one trace, since the metrics of two would have the same names");
        }
        let mut status = 0;
        for (index, path) in self.traces.iter().enumerate() {
            let one = match Trace::open(path) {
                Ok(mut trace) => {
                    for disagreement in trace.header_disagreements() {
                        eprintln!("warning: {}: {disagreement}", trace.name);
                    }
                    trace.spread(self.spread);
                    self.one(index, &trace, &plan)
                }
                Err(error) => {
                    eprintln!("error: {error}");
                    Ok(REFUSED)
                }
            };
            match one {
                Ok(code) => status = status.max(code),
                // Whoever read the output has gone.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::from(status),
                Err(error) => return self.refused(&format!("cannot write the results: {error}")),
            }
        }
        ExitCode::from(status)
    }

    fn refused(&self, reason: &str) -> ExitCode {
        eprintln!("error: {reason}");
        ExitCode::from(REFUSED)
    }

    /// Replays one trace and prints what was found; the exit status that follows from it.
    fn one(&self, index: usize, trace: &Trace, plan: &Plan) -> io::Result<u8> {
        if self.prometheus {
            return self.publish(trace, plan);
        }
        let mut bar = Bar::new(trace);
        let measured = measure(trace, plan, &mut |phase, events| bar.show(phase, events));
        bar.clear();
        let report = match measured {
            Ok(report) => report,
            Err(reason) => {
                eprintln!("error: {}: {reason}", trace.name);
                return Ok(REFUSED);
            }
        };
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", report.json())?;
        } else {
            let gap = if index > 0 { "\n" } else { "" };
            write!(out, "{gap}{}", table::render(&report))?;
        }
        out.flush()?;
        if report.findings.is_empty() {
            return Ok(0);
        }
        if self.json {
            let found = counted(report.findings.len() as u64, "finding[s]");
            eprintln!("{}: {found}; no figure counts", trace.name);
            for finding in report.findings.iter().take(5) {
                eprintln!("  {finding}");
            }
        }
        Ok(FOUND)
    }
}

/// Publishes behind the last event.
struct AtEnd {
    last: usize,
    text: Result<String, String>,
}

impl Observer for AtEnd {
    fn after(&mut self, rig: &Rig<Counting>, played: &Played) {
        if played.index == self.last {
            self.text = prometheus::text_of(|| {
                rig.allocator.publish();
                rig.allocator.publish_blocks();
            });
        }
    }
}

impl Replay {
    /// Replays one trace and prints the metrics that the allocator publishes.
    fn publish(&self, trace: &Trace, plan: &Plan) -> io::Result<u8> {
        let mut at_end =
            AtEnd { last: trace.events.len() - 1, text: Err("the replay ended early".to_owned()) };
        let report = observe(trace, plan, &mut at_end, &mut |_, _| {});
        match report.and_then(|report| at_end.text.map(|text| (report, text))) {
            Ok((report, text)) => {
                io::stdout().write_all(text.as_bytes())?;
                for finding in report.findings.iter().take(5) {
                    eprintln!("{}: {finding}", trace.name);
                }
                Ok(if report.findings.is_empty() { 0 } else { FOUND })
            }
            Err(reason) => {
                eprintln!("error: {}: {reason}", trace.name);
                Ok(REFUSED)
            }
        }
    }
}

/// A progress bar, on terminals only.
struct Bar {
    bar: ProgressBar,
    name: String,
    phase: Option<Phase>,
}

impl Bar {
    fn new(trace: &Trace) -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(trace.events.len() as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{msg:44} {bar:40} {percent:>3} %") {
            bar.set_style(style);
        }
        Bar { bar, name: trace.name.clone(), phase: None }
    }

    fn show(&mut self, phase: Phase, events: usize) {
        if phase == Phase::Search {
            // How many replays a search takes is not known before its end.
            self.bar.set_position(0);
            let replays = counted(events as u64, "replay[s]");
            self.bar.set_message(format!("{}: smallest device, {replays}", self.name));
            return;
        }
        if self.phase != Some(phase) {
            self.phase = Some(phase);
            self.bar.set_message(match phase {
                Phase::Replay(1, 1) => format!("{}: replay", self.name),
                Phase::Replay(pass, passes) => format!("{}: replay {pass} of {passes}", self.name),
                Phase::Timing | Phase::Search => format!("{}: timing", self.name),
            });
        }
        self.bar.set_position(events as u64);
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
