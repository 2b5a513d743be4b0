//! Single plots as SVG files: the same data as the page, without its script.

mod axes;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::data::{Moment, Page, Run, Segment};
use crate::output;
use crate::units::show_bytes;
use axes::{Axes, Plot};

/// Colors of runs, calls and streams, in turn.
const HUES: [&str; 8] =
    ["#2a6fdb", "#12a594", "#a04bd0", "#d9582b", "#6b8e1f", "#c23d80", "#0f8fb8", "#8a6d3b"];

/// Driver calls in the plot of calls.
const CALLS: [&str; 7] = [
    "aclrtMapMem",
    "aclrtUnmapMem",
    "aclrtMallocPhysical",
    "aclrtFreePhysical",
    "aclrtMemSetAccess",
    "aclrtMallocAlign32",
    "aclrtFree",
];
/// Waits, and the calls behind them.
const WAITS: [&str; 6] = [
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeStream",
    "aclrtSynchronizeEvent",
    "aclrtStreamWaitEvent",
    "aclrtRecordEvent",
    "aclrtQueryEventStatus",
];

/// Writes the plots of all runs into a folder, which is made if it is not there.
///
/// # Errors
/// The folder cannot be made, or a file not written.
pub(super) fn write(page: &Page, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    let mut taken = BTreeSet::new();
    let mut put = |name: &str, plot: &str, text: Option<String>| {
        let Some(text) = text else { return Ok(()) };
        let mut file = format!("{}-{plot}.svg", plain(name));
        // Two runs may differ in what a file name cannot hold.
        let mut number = 2;
        while !taken.insert(file.clone()) {
            file = format!("{}-{number}-{plot}.svg", plain(name));
            number += 1;
        }
        let path = folder.join(file);
        let written = output::write(&path, |file| file.write_all(text.as_bytes()));
        written.map_err(|error| format!("{} cannot be written: {error}", path.display()))
    };
    for run in &page.runs {
        put(&run.name, "memory", memory(run))?;
        put(&run.name, "fragmentation", fragmentation(run))?;
        put(&run.name, "segments", fullest(run).map(|moment| segments(run, moment)))?;
        put(&run.name, "sizes", sizes(run))?;
        put(&run.name, "calls", calls(run, "Driver calls by step", &CALLS))?;
        put(&run.name, "waits", calls(run, "Waits and events by step", &WAITS))?;
    }
    let inputs: BTreeSet<&str> = page.runs.iter().map(|run| run.input.as_str()).collect();
    for input in inputs {
        let runs: Vec<&Run> = page.runs.iter().filter(|run| run.input == input).collect();
        if runs.len() > 1 {
            put(input, "comparison", Some(comparison(input, &runs)))?;
        }
    }
    Ok(())
}

/// A name as part of a file name.
fn plain(name: &str) -> String {
    let kept = name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' });
    let kept: String = kept.take(80).collect();
    kept.trim_start_matches('.').to_owned()
}

fn memory(run: &Run) -> Option<String> {
    let series = &run.series;
    let top = series.reserved.high.iter().copied().max()?.max(run.limit);
    let mut plot = Plot::new(&format!("{}: memory over time", run.name), 420.0);
    let axes = Axes { from: 0.0, to: run.events as f64, top: top as f64 * 1.04, height: 420.0 };
    plot.byte_axis(&axes);
    plot.event_axis(&axes);
    for (spread, name, hue) in [
        (&series.reserved, "reserved", "#8c96a5"),
        (&series.active, "active", "#e2890b"),
        (&series.allocated, "allocated", "#12a594"),
        (&series.live, "live", "#2a6fdb"),
    ] {
        // Of a snapshot only some series are known.
        if !spread.high.is_empty() {
            plot.band(&axes, &series.at, &spread.low, &spread.high, hue);
            plot.legend(name, hue);
        }
    }
    if run.limit > 0 {
        plot.level(&axes, run.limit as f64, "#d3343f");
        plot.legend("limit", "#d3343f");
    }
    for (kind, name, hue) in [
        ("oom", "out of memory", "#d3343f"),
        ("host_wait", "host waits", "#a04bd0"),
        ("stream_wait", "waits of streams", "#e2890b"),
        ("given_back", "memory given back", "#5b6675"),
        ("empty_cache", "empty_cache", "#1d63d8"),
    ] {
        let places: Vec<f64> =
            run.markers.iter().filter(|marker| marker.kind == kind).map(|marker| marker.at as f64).collect();
        if !places.is_empty() {
            plot.markers(&axes, &places, hue);
            plot.legend(name, hue);
        }
    }
    Some(plot.end())
}

fn comparison(input: &str, runs: &[&Run]) -> String {
    let highest = runs.iter().flat_map(|run| &run.series.reserved.high).copied().max().unwrap_or(1);
    let events = runs.iter().map(|run| run.events).max().unwrap_or(1);
    let mut plot = Plot::new(&format!("{input}: reserved memory over time"), 420.0);
    let axes = Axes { from: 0.0, to: events as f64, top: highest as f64 * 1.04, height: 420.0 };
    plot.byte_axis(&axes);
    plot.event_axis(&axes);
    for (run, hue) in runs.iter().zip(HUES.iter().cycle()) {
        plot.band(&axes, &run.series.at, &run.series.reserved.low, &run.series.reserved.high, hue);
        plot.legend(&run.conf_name, hue);
    }
    plot.end()
}

fn fragmentation(run: &Run) -> Option<String> {
    let list = &run.fragmentation;
    if list.at.is_empty() {
        return None;
    }
    let share = |part: &dyn Fn(usize) -> u64, whole: &[u64]| -> Vec<f64> {
        let shares = whole.iter().enumerate().map(|(index, &whole)| {
            if whole == 0 { 0.0 } else { (part(index) as f64 / whole as f64).min(1.0) }
        });
        shares.collect()
    };
    let mut plot = Plot::new(&format!("{}: fragmentation over time", run.name), 340.0);
    let axes = Axes { from: 0.0, to: run.events as f64, top: 1.0, height: 340.0 };
    plot.share_axis(&axes);
    plot.event_axis(&axes);
    let idle = share(&|i| list.reserved[i].saturating_sub(list.allocated[i]), &list.reserved);
    let scattered = share(&|i| list.free[i].saturating_sub(list.largest[i]), &list.free);
    let rounding = share(&|i| list.allocated[i].saturating_sub(list.requested[i]), &list.allocated);
    for (values, name, hue) in [
        (idle, "reserved and not allocated", "#8c96a5"),
        (scattered, "free outside of the largest free block", "#e2890b"),
        (rounding, "lost to rounding", "#2a6fdb"),
    ] {
        plot.line(&axes, &list.at, &values, hue);
        plot.legend(name, hue);
    }
    Some(plot.end())
}

fn sizes(run: &Run) -> Option<String> {
    let groups: Vec<(String, Vec<f64>)> =
        run.sizes.iter().map(|class| (show_size(class.from), vec![class.count as f64])).collect();
    let name = "requests of this size up to twice it";
    (!groups.is_empty()).then(|| bars(&format!("{}: sizes that were asked for", run.name), &groups, &[name]))
}

fn show_size(bytes: u64) -> String {
    match bytes {
        0 => "< 1 KiB".to_owned(),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

fn calls(run: &Run, title: &str, names: &[&'static str]) -> Option<String> {
    let made: Vec<&'static str> = names
        .iter()
        .copied()
        .filter(|name| run.steps.iter().any(|step| step.calls.contains_key(name)))
        .collect();
    let of = |step: &super::data::Step, name: &str| step.calls.get(name).copied().unwrap_or(0) as f64;
    let groups: Vec<(String, Vec<f64>)> = run
        .steps
        .iter()
        .map(|step| (step.label.clone(), made.iter().map(|name| of(step, name)).collect()))
        .collect();
    (!made.is_empty()).then(|| bars(&format!("{}: {title}", run.name), &groups, &made))
}

/// Stacked bars: a group for each label, a part for each name.
fn bars(title: &str, groups: &[(String, Vec<f64>)], names: &[&str]) -> String {
    let sums = groups.iter().map(|(_, parts)| parts.iter().sum::<f64>());
    let mut plot = Plot::new(title, 380.0);
    let top = sums.fold(1.0, f64::max) * 1.05;
    let axes = Axes { from: 0.0, to: groups.len() as f64, top, height: 380.0 };
    plot.count_axis(&axes);
    for (index, (label, parts)) in groups.iter().enumerate() {
        let mut sum = 0.0;
        for (part, hue) in parts.iter().zip(HUES.iter().cycle()) {
            plot.bar(&axes, index, sum, sum + part, hue);
            sum += part;
        }
        plot.group_label(&axes, index, label);
    }
    for (name, hue) in names.iter().zip(HUES.iter().cycle()) {
        plot.legend(name, hue);
    }
    plot.end()
}

/// The moment with the highest live bytes.
fn fullest(run: &Run) -> Option<&Moment> {
    run.moments.iter().max_by_key(|moment| moment.live)
}

/// The map of the segments: rows of equal length, segment after segment.
fn segments(run: &Run, moment: &Moment) -> String {
    const WIDE: f64 = 1000.0;
    const ROW: f64 = 16.0;
    const LEFT: f64 = 20.0;
    const TOP: f64 = 64.0;
    let mut row_bytes = 1_u64 << 20;
    while row_bytes.saturating_mul(40) < moment.reserved {
        row_bytes *= 2;
    }
    let scale = WIDE / row_bytes as f64;
    let (mut x, mut row, mut shapes) = (0.0, 0, String::new());
    for segment in &moment.segments {
        if x > WIDE - 4.0 {
            (x, row) = (0.0, row + 1);
        }
        for block in segment.blocks.chunks_exact(Segment::FIELDS) {
            let (mut left, hue) = (block[0] as f64 * scale, block_hue(block));
            while left > 1e-6 {
                if x >= WIDE - 1e-6 {
                    (x, row) = (0.0, row + 1);
                }
                let part = left.min(WIDE - x);
                // Writing to a string cannot fail.
                let _ = writeln!(
                    shapes,
                    "<rect x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{:.1}\" fill=\"{hue}\"/>",
                    LEFT + x,
                    TOP + f64::from(row) * ROW,
                    part.max(0.3),
                    ROW - 4.0
                );
                x += part;
                left -= part;
            }
        }
        x += 3.0;
    }
    let height = TOP + f64::from(row + 1) * ROW + 20.0;
    let mut plot = Plot::new(&format!("{}: segments after event {}", run.name, moment.at + 1), height);
    plot.note(&format!(
        "{} reserved, {} live; a row is {}; colors are streams, grey is free, amber waits for streams",
        show_bytes(moment.reserved),
        show_bytes(moment.live),
        show_bytes(row_bytes)
    ));
    plot.raw(&shapes);
    plot.end()
}

fn block_hue(block: &[i64]) -> &'static str {
    match block[2] {
        0 => "#d9dde3",
        2 => "#e2890b",
        3 => "#a04bd0",
        _ => HUES[block[3].rem_euclid(HUES.len() as i64) as usize],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_plain() {
        assert_eq!(plain("T1 · fixed/blocks"), "T1___fixed_blocks");
        assert_eq!(plain("../../x"), "_.._x");
        assert_eq!(plain(&"a".repeat(500)).len(), 80);
    }
}
