//! The figures of one replay, as a table for people.

use std::fmt::{self, Write};

use ascend_alloc::words::counted;

use crate::report::{Report, Step};
use crate::units::show_bytes;

/// Steps shown in full; of more, the first and the last ones.
const MOST_STEPS: usize = 24;
/// Steps shown from the end when not all are.
const LAST_STEPS: usize = 6;
/// Findings shown.
const MOST_FINDINGS: usize = 10;

/// The report as lines of text, with the last line's end.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, report);
    text
}

fn write(out: &mut String, report: &Report) -> fmt::Result {
    let conf = if report.conf.is_empty() { "default" } else { &report.conf };
    let run = &report.run;
    let (events, calls) =
        (counted(run.events, "event[s]"), counted(report.ops, "call[s] into the allocator"));
    writeln!(out, "{}: {events}, {calls}", report.trace)?;
    let spread = if run.spread > 1 { format!(", spread over {} streams", run.spread) } else { String::new() };
    writeln!(
        out,
        "  device {} ({}), configuration {conf}, lag {}{spread}, pass {}",
        show_bytes(run.memory),
        run.simulator.first().map_or("", String::as_str),
        run.lag,
        run.passes
    )?;
    for choice in run.simulator.iter().skip(1) {
        writeln!(out, "  {choice}")?;
    }
    memory(out, report)?;
    time(out, report)?;
    steps(out, report)?;
    match &report.first_oom {
        None => writeln!(out, "\n  out of memory: never")?,
        Some(first) => writeln!(
            out,
            "\n  out of memory: {}, so the figures are those of an incomplete replay;\n  \
             first at event {} in step {}: {}",
            counted(report.ooms, "time[s]"),
            first.event,
            first.step,
            first.error
        )?,
    }
    if let Some(blocks) = report.verified_blocks {
        writeln!(out, "  verified: {}", counted(blocks, "block[s]"))?;
    }
    findings(out, report)
}

fn memory(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "\n  {:<16} {:>14} {:>16} {:>9}", "memory", "", "bytes", "of live")?;
    let rows = [
        ("peak live", Some(report.peak_live)),
        ("peak allocated", Some(report.peak_allocated)),
        ("peak active", Some(report.peak_active)),
        ("peak reserved", Some(report.peak_reserved)),
        ("peak physical", Some(report.peak_physical)),
        ("smallest device", report.min_memory),
    ];
    for (name, bytes) in rows {
        let Some(bytes) = bytes else { continue };
        let ratio = bytes as f64 / report.peak_live.max(1) as f64;
        writeln!(out, "  {name:<16} {:>14} {bytes:>16} {ratio:>9.4}", show_bytes(bytes))?;
    }
    if report.search_replays > 0 && report.min_memory.is_none() {
        writeln!(out, "  {:<16} {:>14}", "smallest device", "none found")?;
    }
    if report.search_replays > 0 {
        writeln!(out, "  (the search took {})", counted(report.search_replays, "replay[s]"))?;
    }
    Ok(())
}

fn time(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "\n  {:<32} {:>10.1} ns", "host time per call", report.ns_per_op)?;
    writeln!(out, "  {:<32} {:>10.1} ns", "driver time per call", report.driver_ns_per_op)?;
    let syncs = report.syncs;
    writeln!(
        out,
        "  {:<32} {:>10} for the device, {} for streams, {} for events",
        "host waits", syncs.device, syncs.stream, syncs.event
    )?;
    writeln!(
        out,
        "  {:<32} {:>10} recorded, {}, {}",
        "events",
        report.events_recorded,
        counted(report.event_queries, "quer[y|ies]"),
        counted(report.device_waits, "wait[s] by streams")
    )?;
    writeln!(
        out,
        "  {:<32} {:>10} reserved, {} released",
        "address ranges", report.calls.reserve, report.calls.release
    )?;
    writeln!(out, "  {:<32} {:>10}", "chunks moved", report.chunks_moved)?;
    if report.fixed_blocks != (0, 0) {
        let (taken, given) = report.fixed_blocks;
        writeln!(out, "  {:<32} {taken:>10} taken, {given} given back", "fixed blocks")?;
    }
    Ok(())
}

fn steps(out: &mut String, report: &Report) -> fmt::Result {
    let width = report.steps.iter().map(|step| step.label.chars().count()).max().unwrap_or(0).clamp(5, 40);
    writeln!(
        out,
        "\n  {:<width$} {:>8} {:>8} {:>8} {:>8} {:>10}",
        "driver calls", "map", "unmap", "malloc", "free", "set_access"
    )?;
    let width = width.max("driver calls".len());
    let all = report.steps.len();
    let first = if all <= MOST_STEPS { all } else { MOST_STEPS - LAST_STEPS - 1 };
    for step in &report.steps[..first] {
        row(out, step, width)?;
    }
    if first < all {
        let more = counted((all - first - LAST_STEPS) as u64, "step[s] more");
        writeln!(out, "  ... {more}; --json has them all")?;
        for step in &report.steps[all - LAST_STEPS..] {
            row(out, step, width)?;
        }
    }
    let calls = report.calls;
    let total = Step {
        label: "total".to_owned(),
        map: calls.map,
        unmap: calls.unmap,
        malloc_physical: calls.malloc_physical,
        free_physical: calls.free_physical,
        set_access: calls.set_access,
        peak_live: 0,
    };
    row(out, &total, width)?;
    if let Some(share) = report.settled() {
        let percent = share * 100.0;
        writeln!(
            out,
            "  settled: {percent:.3} % of two calls per chunk, a step (steps after the fourth without a new peak)"
        )?;
    }
    Ok(())
}

fn row(out: &mut String, step: &Step, width: usize) -> fmt::Result {
    let label: String = step.label.chars().take(width).collect();
    writeln!(
        out,
        "  {label:<width$} {:>8} {:>8} {:>8} {:>8} {:>10}",
        step.map, step.unmap, step.malloc_physical, step.free_physical, step.set_access
    )
}

fn findings(out: &mut String, report: &Report) -> fmt::Result {
    if report.findings.is_empty() {
        return writeln!(out, "  findings: none");
    }
    writeln!(out, "  findings: {}; no figure above counts", report.findings.len())?;
    for finding in report.findings.iter().take(MOST_FINDINGS) {
        writeln!(out, "    {finding}")?;
    }
    if report.findings.len() > MOST_FINDINGS {
        writeln!(out, "    ... {} more; --json has them", report.findings.len() - MOST_FINDINGS)?;
    }
    Ok(())
}
