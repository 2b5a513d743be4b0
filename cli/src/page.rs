//! The command `report`: what memory did, as one page that needs nothing else.
//!
//! ```text
//!  snapshot ─► taken ─► a run as it was, and a trace ┐
//!  trace ─► figures::observe ─► record ─► data ─┬─► html: one page, the data as JSON in it
//!                               series, moments └─► svg: single plots
//! ```

mod data;
mod html;
mod moments;
mod record;
mod series;
mod svg;
mod taken;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ascend_alloc::Config;
use ascend_alloc::words::counted;
use clap::Args;

use crate::figures::{Plan, observe};
use crate::output;
use crate::rig::RigOptions;
use crate::trace::Trace;
use crate::units::parse_device;
use data::{Page, Run};
use record::{Recorder, sizes};

/// Version of the layout of the data in a page.
const FORMAT: u32 = 1;

const EXITS: &str = "\
The page is one file that loads nothing: open it with any browser. The data are in it as JSON, in the element
with the id \"data\". Events are numbered from 1 where people read them, from 0 in the data.

Exit status: 0 the page was written; 1 it was, and a replay found something wrong, which the page says; 2 an
option or a file was refused.";

/// Draws what memory did, in replays of traces and in snapshots: one page for a browser, or single plots.
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct Report {
    /// Traces (.trace, .trace.zst, .trace.gz), or snapshots of PyTorch, torch_npu or this allocator (any other name)
    #[arg(required = true, value_name = "TRACE|SNAPSHOT")]
    inputs: Vec<PathBuf>,

    /// Where the page goes; report.html unless only plots are wanted
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// A folder for the plots of each run as SVG files
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,

    /// A configuration as key:value,key:value, with a name before it as in NAME=key:value; to be given once
    /// for each configuration that is compared
    #[arg(long, value_name = "[NAME=]TEXT")]
    conf: Vec<String>,

    /// Memory of the simulated device, a multiple of 2 MiB
    #[arg(long, value_name = "SIZE", default_value = "64GiB", value_parser = parse_device)]
    memory: u64,

    /// Trace events after which a task, or an event recorded behind it, is complete; 0: at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    lag: u64,

    /// Put the allocations on so many streams in turn; 1: on those the trace names
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    spread: u16,

    /// Show the segments after this event too, counted from 1
    #[arg(long, value_name = "EVENT")]
    at: Vec<usize>,

    /// Call empty_cache at each marker, as some programs do between steps
    #[arg(long)]
    empty_cache: bool,
}

/// A configuration with its name.
struct Named {
    name: String,
    text: String,
    config: Config,
}

impl Report {
    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self.make() {
            Ok(found_wrong) => ExitCode::from(u8::from(found_wrong)),
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::from(2)
            }
        }
    }

    /// Answers whether a replay found something wrong.
    fn make(&self) -> Result<bool, String> {
        let configs = self.configs()?;
        let mut page = Page {
            format: FORMAT,
            made_by: format!("ascend-alloc {}", env!("CARGO_PKG_VERSION")),
            runs: Vec::new(),
        };
        for path in &self.inputs {
            if taken::is_trace(path) {
                let trace = Trace::open(path).map_err(|error| error.to_string())?;
                page.runs.extend(self.replays(trace, &configs)?);
                continue;
            }
            let snapshots = match taken::read(path) {
                Ok(snapshots) => snapshots,
                // A trace may have any name.
                Err(reason) => {
                    let trace =
                        Trace::open(path).map_err(|error| format!("{reason}; nor is it a trace: {error}"))?;
                    page.runs.extend(self.replays(trace, &configs)?);
                    continue;
                }
            };
            for taken in snapshots {
                page.runs.push(taken.run);
                if let Some(trace) = taken.trace {
                    page.runs.extend(self.replays(trace, &configs)?);
                }
            }
        }
        let wrong = page.runs.iter().any(|run| run.kind == "trace" && !run.notes.is_empty());
        for run in &page.runs {
            for note in &run.notes {
                eprintln!("warning: {}: {note}", run.name);
            }
        }
        if let Some(folder) = &self.svg {
            svg::write(&page, folder)?;
        }
        if self.output.is_some() || self.svg.is_none() {
            let path = self.output.as_deref().unwrap_or(Path::new("report.html"));
            let text = html::render(&page)?;
            output::write(path, |file| file.write_all(text.as_bytes()))
                .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
            let runs = counted(page.runs.len() as u64, "run[s]");
            eprintln!("{}: {runs}, {} bytes", path.display(), text.len());
        }
        Ok(wrong)
    }

    fn configs(&self) -> Result<Vec<Named>, String> {
        let given = if self.conf.is_empty() { vec![String::new()] } else { self.conf.clone() };
        let named = given.into_iter().map(|given| {
            let (name, text) = split_name(&given);
            let config = Config::parse(&text).map_err(|error| error.to_string())?;
            for warning in config.warnings() {
                eprintln!("warning: {warning}");
            }
            Ok(Named { name, text, config })
        });
        named.collect()
    }

    /// A trace under each configuration.
    fn replays(&self, mut trace: Trace, configs: &[Named]) -> Result<Vec<Run>, String> {
        let disagreements = trace.header_disagreements();
        trace.spread(self.spread);
        let mut runs = Vec::new();
        for named in configs {
            let mut run = self.replay(&trace, named, configs.len() > 1)?;
            run.notes.extend(disagreements.iter().cloned());
            runs.push(run);
        }
        Ok(runs)
    }

    fn replay(&self, trace: &Trace, named: &Named, several: bool) -> Result<Run, String> {
        let plan = Plan {
            rig: RigOptions {
                memory: self.memory,
                config: named.config.clone(),
                lag: self.lag,
                checker: true,
                bytes: false,
            },
            conf: named.text.clone(),
            passes: 1,
            verify: false,
            min_memory: false,
        };
        let mut recorder = Recorder::new(trace, &self.at, self.empty_cache);
        let report = observe(trace, &plan, &mut recorder, &mut |_, _| {})?;
        recorder.end();
        let name = if several { format!("{} · {}", trace.name, named.name) } else { trace.name.clone() };
        let mut figures = serde_json::to_value(&report).map_err(|error| error.to_string())?;
        if let Some(figures) = figures.as_object_mut() {
            for not_measured in ["ns_per_op", "driver_ns_per_op", "min_memory"] {
                figures.remove(not_measured);
            }
            figures.insert("chunks_moved".to_owned(), report.chunks_moved.into());
        }
        let mut notes = report.findings;
        notes.extend(recorder.failed.take());
        Ok(Run {
            name,
            input: trace.name.clone(),
            kind: "trace",
            conf_name: named.name.clone(),
            conf: named.text.clone(),
            events: trace.events.len() as u64,
            figures,
            device: self.memory,
            limit: if recorder.limit == 0 { self.memory } else { recorder.limit },
            lag: self.lag,
            first_oom: report.first_oom.map(|first| first.error),
            series: recorder.series,
            fragmentation: recorder.fragmentation,
            markers: recorder.markers,
            steps: recorder.steps,
            sizes: sizes(trace),
            moments: recorder.moments,
            holders: None,
            notes,
        })
    }
}

/// `NAME=TEXT` in its parts; without a name, the text is the name, and `default` where that is empty.
fn split_name(given: &str) -> (String, String) {
    match given.split_once('=') {
        Some((name, text)) if !name.contains(':') && !name.trim().is_empty() => {
            (name.trim().to_owned(), text.to_owned())
        }
        _ if given.trim().is_empty() => ("default".to_owned(), String::new()),
        _ => (given.to_owned(), given.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_may_have_a_name() {
        for (given, name, text) in [
            ("", "default", ""),
            ("plain=", "plain", ""),
            ("fixed blocks=expandable_segments:False", "fixed blocks", "expandable_segments:False"),
            ("headroom:0.1", "headroom:0.1", "headroom:0.1"),
            ("headroom:a=b", "headroom:a=b", "headroom:a=b"),
        ] {
            assert_eq!(split_name(given), (name.to_owned(), text.to_owned()), "{given}");
        }
    }
}
