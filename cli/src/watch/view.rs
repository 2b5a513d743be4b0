//! Lines of `top`: a table for each process, as wide as the terminal.

use std::path::PathBuf;
use std::time::Duration;

use ascend_alloc::publish::DeviceFigures;
use ascend_alloc::stats::Stat;
use ascend_alloc::words::counted;

use super::document::{Device, Document};
use crate::units::show_bytes;

/// How a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It tells its statistics.
    Telling,
    /// It has not told anything for so long.
    Silent(Duration),
    /// It has ended; what is shown is what it said last.
    Ended,
    /// Nothing can be read.
    Unreadable(String),
}

/// A process that is looked at.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Where its statistics are.
    pub(super) path: PathBuf,
    /// Its name, if it is known.
    pub(super) name: String,
    /// How it is.
    pub(super) state: State,
    /// What it said last.
    pub(super) now: Option<Document>,
    /// What it said the time before, if that was something else.
    pub(super) before: Option<Document>,
}

/// A device in a row.
struct Row {
    figures: DeviceFigures,
    streams: u64,
    /// The device before, and the seconds since then.
    before: Option<(DeviceFigures, f64)>,
}

struct Column {
    title: &'static str,
    width: usize,
    /// Columns with the smallest number stay longest.
    rank: u8,
    cell: fn(&Row) -> String,
}

/// In the order in which they stand.
const COLUMNS: [Column; 14] = [
    Column { title: "DEV", width: 3, rank: 0, cell: |row| row.figures.device.to_string() },
    Column {
        title: "RESERVED",
        width: 11,
        rank: 0,
        cell: |row| bytes(row.figures.stats.reserved_bytes.all.current),
    },
    Column { title: "OF LIMIT", width: 8, rank: 1, cell: share },
    Column { title: "", width: 20, rank: 5, cell: bar },
    Column { title: "LIMIT", width: 11, rank: 4, cell: |row| show_bytes(limit(&row.figures)) },
    Column {
        title: "ALLOCATED",
        width: 11,
        rank: 1,
        cell: |row| bytes(row.figures.stats.allocated_bytes.all.current),
    },
    Column {
        title: "ACTIVE",
        width: 11,
        rank: 6,
        cell: |row| bytes(row.figures.stats.active_bytes.all.current),
    },
    Column {
        title: "PEAK",
        width: 11,
        rank: 3,
        cell: |row| bytes(row.figures.stats.reserved_bytes.all.peak),
    },
    Column {
        title: "BLOCKS",
        width: 8,
        rank: 7,
        cell: |row| row.figures.stats.allocation.all.current.to_string(),
    },
    Column {
        title: "ALLOC/S",
        width: 9,
        rank: 2,
        cell: |row| row.rate(|figures| total(&figures.stats.allocation.all)),
    },
    Column { title: "CALLS/S", width: 9, rank: 3, cell: |row| row.rate(memory_calls) },
    Column { title: "WAITS/S", width: 8, rank: 5, cell: |row| row.rate(waits) },
    Column { title: "STREAMS", width: 7, rank: 8, cell: |row| row.streams.to_string() },
    Column { title: "OOM", width: 5, rank: 2, cell: |row| row.figures.stats.num_ooms.to_string() },
];

impl Row {
    /// How often a second something was counted; a dash where that is not known.
    fn rate(&self, count: fn(&DeviceFigures) -> u64) -> String {
        let Some((before, seconds)) = &self.before else { return "-".to_owned() };
        match count(&self.figures).checked_sub(count(before)) {
            Some(more) if *seconds > 0.0 => format!("{:.0}", more as f64 / seconds),
            // The counts began anew.
            _ => "-".to_owned(),
        }
    }
}

fn bytes(value: i64) -> String {
    show_bytes(u64::try_from(value).unwrap_or(0))
}

fn limit(figures: &DeviceFigures) -> u64 {
    figures.limit_bytes.unwrap_or(figures.total_bytes)
}

fn total(stat: &Stat) -> u64 {
    u64::try_from(stat.allocated).unwrap_or(0)
}

fn memory_calls(figures: &DeviceFigures) -> u64 {
    let calls = &figures.stats.calls;
    sum([calls.map, calls.unmap, calls.malloc_physical, calls.free_physical, calls.malloc, calls.free])
}

fn waits(figures: &DeviceFigures) -> u64 {
    let calls = &figures.stats.calls;
    sum([calls.wait_device, calls.wait_stream, calls.wait_event])
}

/// What another process says need not make sense.
fn sum<const N: usize>(counts: [u64; N]) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// How much of the limit is reserved, from 0 to 1.
fn used(row: &Row) -> f64 {
    let reserved = row.figures.stats.reserved_bytes.all.current.max(0);
    (reserved as f64 / limit(&row.figures).max(1) as f64).min(1.0)
}

fn share(row: &Row) -> String {
    format!("{:.1} %", used(row) * 100.0)
}

fn bar(row: &Row) -> String {
    const CELLS: usize = 18;
    let full = (used(row) * CELLS as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), " ".repeat(CELLS - full))
}

/// The columns that fit into so many characters.
fn fitting(width: usize) -> Vec<&'static Column> {
    let mut most = 9;
    loop {
        let columns: Vec<&Column> = COLUMNS.iter().filter(|column| column.rank <= most).collect();
        let needed: usize = columns.iter().map(|column| column.width + 2).sum();
        if needed <= width || most == 0 {
            return columns;
        }
        most -= 1;
    }
}

/// All processes as lines of at most `width` characters; of more than `height` lines the last ones are left out, and
/// the last line says so.
pub(super) fn render(processes: &[Process], width: usize, height: Option<usize>) -> Vec<String> {
    let mut lines = Vec::new();
    for process in processes {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        one(process, width, &mut lines);
    }
    if processes.is_empty() {
        lines.push("no process exports its statistics there".to_owned());
    }
    if let Some(height) = height
        && lines.len() > height
    {
        let hidden = lines.len() - height.saturating_sub(1);
        lines.truncate(height.saturating_sub(1));
        lines.push(format!("... {}", counted(hidden as u64, "line[s] more")));
    }
    lines.iter().map(|line| cut(line, width)).collect()
}

fn one(process: &Process, width: usize, lines: &mut Vec<String>) {
    let number = process.now.as_ref().map_or_else(String::new, |document| document.process.to_string());
    let name = if process.name.is_empty() { String::new() } else { format!(" ({})", process.name) };
    let state = match &process.state {
        State::Telling => String::new(),
        State::Silent(age) => format!("  silent for {:.0} s", age.as_secs_f64()),
        State::Ended => "  has ended; this is what it said last".to_owned(),
        State::Unreadable(reason) => format!("  {reason}"),
    };
    let Some(document) = &process.now else {
        lines.push(format!("process ?{state}"));
        return;
    };
    lines.push(format!("process {number}{name}{state}  {}", process.path.display()));
    if document.devices.is_empty() {
        lines.push("  no device has been used".to_owned());
        return;
    }
    let columns = fitting(width);
    let head = columns.iter().map(|column| format!("  {:>1$}", column.title, column.width));
    lines.push(head.collect());
    for device in &document.devices {
        let row = row(process, document, device);
        let cells = columns.iter().map(|column| format!("  {:>1$}", (column.cell)(&row), column.width));
        lines.push(cells.collect());
        for pool in &row.figures.pools {
            let tag = if pool.tag.is_empty() { String::new() } else { format!(" {}", plain(&pool.tag)) };
            lines.push(format!(
                "       pool {}{tag}: {} reserved, {} allocated",
                pool.pool,
                show_bytes(pool.reserved_bytes),
                show_bytes(pool.allocated_bytes)
            ));
        }
    }
}

fn row(process: &Process, document: &Document, device: &Device) -> Row {
    let before = process.before.as_ref().and_then(|before| {
        let nanos = document.time_ns.checked_sub(before.time_ns)?;
        let device = before.devices.iter().find(|old| old.device == device.device)?;
        Some((device.figures(), nanos as f64 / 1e9))
    });
    Row { figures: device.figures(), streams: device.streams, before }
}

/// A text of another process, without what a terminal would take for orders.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// At most so many characters of a line.
fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.trim_end().to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(time: u64, reserved: u64, allocations: u64) -> Document {
        let text = format!(
            r#"{{"format":"ascend-alloc statistics","version":1,"process":77,"sequence":1,"time_ns":{time},"period_ms":1000,
            "devices":[{{"device":3,"total_bytes":68719476736,"limit_bytes":34359738368,"streams":2,
            "statistics":{{"reserved_bytes":{{"all":{{"current":{reserved},"peak":25769803776}}}},
            "allocation":{{"all":{{"current":5,"allocated":{allocations}}}}},"num_ooms":4}},
            "driver_calls":{{"aclrtMapMem":{allocations},"aclrtSynchronizeEvent":6}},
            "pools":[{{"pool":9,"tag":"weights\u001b[2J","reserved_bytes":{{"all":{{"current":2097152}}}}}}]}}]}}"#
        );
        Document::parse(&text).unwrap()
    }

    fn process() -> Process {
        Process {
            path: "/run/stats.json".into(),
            name: "train".into(),
            state: State::Telling,
            now: Some(document(3_000_000_000, 17_179_869_184, 1_000)),
            before: Some(document(1_000_000_000, 17_179_869_184, 400)),
        }
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        let lines = render(&[process()], 200, None);
        assert_eq!(lines[0], "process 77 (train)  /run/stats.json");
        for (title, value) in [
            ("DEV", "3"),
            ("RESERVED", "16.00 GiB"),
            ("OF LIMIT", "50.0 %"),
            ("LIMIT", "32.00 GiB"),
            ("PEAK", "24.00 GiB"),
            ("BLOCKS", "5"),
            ("ALLOC/S", "300"),
            ("CALLS/S", "300"),
            ("WAITS/S", "0"),
            ("STREAMS", "2"),
            ("OOM", "4"),
        ] {
            // Titles and values end at the same column.
            let end = lines[1].rfind(&format!(" {title}")).unwrap() + 1 + title.len();
            assert!(lines[2][..end].ends_with(&format!(" {value}")), "{title}: {}", lines[2]);
        }
        assert!(lines[2].contains("[#########         ]"), "{}", lines[2]);
        assert_eq!(lines[3], "       pool 9 weights[2J: 2.00 MiB reserved, 0.00 MiB allocated");
    }

    #[test]
    fn a_narrow_terminal_shows_what_matters_most() {
        for width in [0, 1, 10, 20, 40, 80, 100, 132] {
            let lines = render(&[process()], width, None);
            assert!(lines.iter().all(|line| line.chars().count() <= width.max(1)), "{width}: {lines:?}");
        }
        let narrow = render(&[process()], 20, None);
        assert!(narrow[1].contains("RESERVED") && !narrow[1].contains("ALLOCATED"), "{narrow:?}");
        let usual = render(&[process()], 80, None);
        for title in ["DEV", "RESERVED", "OF LIMIT", "ALLOCATED", "ALLOC/S", "OOM"] {
            assert!(usual[1].contains(title), "{title}: {usual:?}");
        }
    }

    #[test]
    fn rates_need_two_moments_and_counts_that_grow() {
        let first = Process { before: None, ..process() };
        assert!(render(&[first], 200, None)[2].contains(" -  "));
        let restarted = Process { before: Some(document(1_000_000_000, 0, 5_000)), ..process() };
        assert!(!render(&[restarted], 200, None)[2].contains("300"));
    }

    #[test]
    fn counts_that_make_no_sense_are_shown() {
        let absurd =
            Process { now: Some(document(3_000_000_000, u64::MAX >> 1, u64::MAX >> 1)), ..process() };
        assert_eq!(render(&[absurd], 200, None).len(), 4);
        let text = r#"{"format":"ascend-alloc statistics","version":1,"process":7,"devices":[{"device":0,"statistics":{},
            "driver_calls":{"aclrtMapMem":18446744073709551615,"aclrtUnmapMem":1,"aclrtSynchronizeEvent":18446744073709551615,
            "aclrtSynchronizeDevice":1}}]}"#;
        let document = Document::parse(text).unwrap();
        let absurd = Process { now: Some(document.clone()), before: Some(document), ..process() };
        assert_eq!(render(&[absurd], 200, None).len(), 3);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let silent = Process { state: State::Silent(Duration::from_secs(9)), ..process() };
        assert!(render(&[silent], 200, None)[0].contains("silent for 9 s"));
        let ended = Process { state: State::Ended, ..process() };
        assert!(render(&[ended], 200, None)[0].contains("has ended"));
        let gone = Process { state: State::Unreadable("x: cannot be read".into()), now: None, ..process() };
        assert_eq!(render(&[gone], 200, None), ["process ?  x: cannot be read"]);
        assert_eq!(render(&[], 200, None).len(), 1);
    }

    #[test]
    fn a_low_terminal_says_what_is_left_out() {
        let many = vec![process(); 10];
        let lines = render(&many, 200, Some(12));
        assert_eq!(lines.len(), 12);
        // Ten processes of four lines, with nine empty ones between.
        assert_eq!(lines[11], format!("... {} lines more", 49 - 11));
    }
}
