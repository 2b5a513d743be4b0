//! The reports as text for a person.

use std::fmt::Write;

use ascend_alloc::words::counted;

use super::conform::{self, Outcome, Played};
use super::examine::{Access, Answer, Examination, Library};
use super::limits::{Addresses, Events};
use super::outlook::{Outlook, Works};

/// Why nothing could be done, and every place that was looked at.
pub fn render_refusal<'a>(reason: &str, places: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    let mut places = places.peekable();
    if places.peek().is_none() {
        return format!("error: {reason}\n");
    }
    text += "error: no runtime library of ACL can be used. Looked at, in this order:\n";
    for (place, reason) in places {
        line(&mut text, format_args!("  {place}\n      {reason}"));
    }
    text += "Set ASCEND_ALLOC_ACL_LIBRARY to the file of the library, or ASCEND_HOME_PATH to the toolkit's folder.\n";
    text
}

/// The rows of a file: how many answered as listed, and all others.
pub fn render_rows(report: &conform::Report) -> String {
    let mut text = String::new();
    let soc = report.soc.as_deref().unwrap_or("part unknown");
    let rows = counted(report.rows.len() as u64, "row[s]");
    line(&mut text, format_args!("{} of {} on {} ({soc})", rows, report.file, report.library));
    line(
        &mut text,
        format_args!("  {:>4} answered as listed", report.count(|outcome| *outcome == Outcome::Same)),
    );
    let bad =
        |outcome: &Outcome| matches!(outcome, Outcome::Differs(_) | Outcome::Crashed(_) | Outcome::Hung);
    section(&mut text, report, "differ", bad, |row| match &row.outcome {
        Outcome::Differs(code) => format!("listed {}, answered {code} ({})", row.listed, name(*code)),
        Outcome::Crashed(0) => format!("listed {}, the process ended", row.listed),
        Outcome::Crashed(signal) => format!("listed {}, the process ended with signal {signal}", row.listed),
        _ => format!("listed {}, did not come back", row.listed),
    });
    let kind = |outcome: &Outcome| matches!(outcome, Outcome::Unprepared(_));
    section(&mut text, report, "could not be played: their state could not be brought about", kind, detail);
    let kind = |outcome: &Outcome| matches!(outcome, Outcome::NotUnderstood(_));
    section(&mut text, report, "not understood", kind, detail);
    let kind = |outcome: &Outcome| matches!(outcome, Outcome::Missing(_));
    section(&mut text, report, "not played: the library lacks the call", kind, detail);
    skipped(&mut text, report);
    for remark in &report.remarks {
        line(&mut text, format_args!("  {remark}"));
    }
    text
}

fn section(
    text: &mut String,
    report: &conform::Report,
    title: &str,
    is_kind: impl Fn(&Outcome) -> bool,
    say: impl Fn(&Played) -> String,
) {
    let rows: Vec<&Played> = report.rows.iter().filter(|row| is_kind(&row.outcome)).collect();
    line(text, format_args!("  {:>4} {title}", rows.len()));
    for row in rows {
        line(text, format_args!("       line {}, {}: {}", row.line, row.group, row.call));
        line(text, format_args!("           {}", say(row)));
        if !row.first.is_empty() {
            line(text, format_args!("           after {}", row.first.join(", ")));
        }
    }
}

/// The skipped rows by reason.
fn skipped(text: &mut String, report: &conform::Report) {
    let mut reasons: Vec<(&str, Vec<&Played>)> = Vec::new();
    for row in &report.rows {
        let Outcome::Skipped(why) = &row.outcome else { continue };
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, rows)) => rows.push(row),
            None => reasons.push((why, vec![row])),
        }
    }
    let count: usize = reasons.iter().map(|(_, rows)| rows.len()).sum();
    line(text, format_args!("  {count:>4} skipped"));
    for (reason, rows) in reasons {
        line(text, format_args!("       {reason}:"));
        // A group that is skipped as a whole needs no list.
        let mut groups: Vec<(&str, usize)> = Vec::new();
        for row in rows.iter().filter(|_| reason.starts_with("the group is")) {
            match groups.last_mut().filter(|(group, _)| *group == row.group) {
                Some((_, count)) => *count += 1,
                None => groups.push((&row.group, 1)),
            }
        }
        for (group, count) in &groups {
            line(text, format_args!("           {group}: {}", counted(*count as u64, "row[s]")));
        }
        for row in rows.iter().filter(|_| groups.is_empty()) {
            line(text, format_args!("           line {}, {}: {}", row.line, row.group, row.call));
        }
    }
}

fn detail(row: &Played) -> String {
    match &row.outcome {
        Outcome::Unprepared(text)
        | Outcome::NotUnderstood(text)
        | Outcome::Missing(text)
        | Outcome::Skipped(text) => text.clone(),
        _ => String::new(),
    }
}

fn name(code: i32) -> &'static str {
    ascend_alloc::acl::codes::name(code)
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _always = writeln!(text, "{what}");
}

/// What was found out about the library and a device.
pub fn render(found: &Examination) -> String {
    let mut text = String::new();
    library(&mut text, &found.library);
    device(&mut text, found);
    if let Some(addresses) = &found.addresses {
        reservations(&mut text, addresses);
    }
    let Events { made, refused, documented, .. } = &found.events;
    let end =
        refused.as_ref().map_or("and no more were asked for".to_owned(), |error| format!("then {error}"));
    item(
        &mut text,
        "events",
        format_args!("{made} recorded and held at once, {end}; documented: {documented}"),
    );
    match &found.access {
        Some(Answer::Is(access)) => access_to(&mut text, access),
        Some(Answer::Refused(error)) => item(&mut text, "access", format_args!("{error}")),
        None => {}
    }
    kernels(&mut text, found);
    text += "\nWhat the allocator does here\n";
    match &found.outlook {
        Outlook::Works(works) => outlook(&mut text, works),
        Outlook::Fails(error) => item(&mut text, "it fails", format_args!("{error}")),
    }
    for problem in &found.problems {
        line(&mut text, format_args!("\nPROBLEM: {problem}"));
    }
    text
}

fn library(text: &mut String, library: &Library) {
    *text += "Library\n";
    let how = if library.is_named { "named by ASCEND_ALLOC_ACL_LIBRARY" } else { "found" };
    item(text, "file", format_args!("{} ({how})", library.file));
    let toolkit = library.toolkit.map_or(String::new(), |toolkit| format!(" ({toolkit})"));
    item(text, "interface", format_args!("{}{toolkit}", show(&library.version)));
    for (package, version) in &library.packages {
        item(text, package, format_args!("{}", show(version)));
    }
    item(text, "part", format_args!("{}", library.soc.as_deref().unwrap_or("unknown")));
    if library.missing.is_empty() {
        item(text, "missing", format_args!("nothing"));
    }
    for (symbol, consequence) in &library.missing {
        item(text, "missing", format_args!("{symbol}: {consequence}"));
    }
    if let Some(visible) = &library.visible_devices {
        item(text, "visible", format_args!("ASCEND_RT_VISIBLE_DEVICES is {visible}"));
    }
    let rule = if library.registers_own_only {
        "only memory of aclrtMallocHost may be registered"
    } else {
        "memory of the process may be registered"
    };
    item(text, "Linux", format_args!("{}: {rule}", library.kernel));
}

fn device(text: &mut String, found: &Examination) {
    line(text, format_args!("\nDevice {} of {}", found.device, found.devices));
    match &found.memory {
        Answer::Is(memory) => {
            item(text, "memory", format_args!("{} free of {}", size(memory.free), size(memory.total)));
        }
        Answer::Refused(error) => item(text, "memory", format_args!("{error}")),
    }
    for granule in &found.granules {
        let known = match &granule.granule {
            Answer::Is(bytes) => size(*bytes),
            Answer::Refused(error) => error.clone(),
        };
        item(text, "granule", format_args!("{known} for {}", granule.memory));
    }
    if !found.library.has_virtual_memory {
        item(text, "virtual memory", format_args!("none"));
    }
}

fn reservations(text: &mut String, found: &Addresses) {
    let at = |start: Option<u64>| start.map_or("refused".to_owned(), |start| format!("at {start:#x}"));
    let (small, large) = (at(found.small), at(found.large));
    item(text, "addresses", format_args!("2 MiB {small}, 1 GiB {large}"));
    let next = found.refused.as_ref().map_or(String::new(), |error| format!("; beyond: {error}"));
    item(text, "largest", format_args!("{} in one reservation{next}", size(found.largest)));
    let more = if found.total_is_open { "or more " } else { "" };
    item(text, "in all", format_args!("{} {more}in pieces of {}", size(found.total), size(found.piece)));
    if found.not_released > 0 {
        item(text, "NOT RELEASED", format_args!("{}", counted(found.not_released as u64, "reservation[s]")));
    }
}

fn access_to(text: &mut String, access: &Access) {
    item(
        text,
        "access",
        format_args!("after the mapping alone: {} (3: read and write)", show(&access.after_map)),
    );
    let copies = match &access.usable_after_map {
        Answer::Is(true) => "bytes come back as they were sent".to_owned(),
        Answer::Is(false) => "BYTES COME BACK CHANGED".to_owned(),
        Answer::Refused(error) => error.clone(),
    };
    item(text, "", format_args!("a copy there and back: {copies}"));
    let set = match &access.set_access {
        Answer::Is(_) => "works for the owner".to_owned(),
        Answer::Refused(error) => error.clone(),
    };
    item(text, "", format_args!("aclrtMemSetAccess: {set}"));
    let needed = match access.is_needed() {
        Some(true) => "the owner NEEDS the call",
        Some(false) => "the owner does not need the call",
        None => "whether the owner needs the call could not be told",
    };
    item(text, "", format_args!("{needed}"));
}

/// The rule for memory that is handed out in pieces.
fn kernels(text: &mut String, found: &Examination) {
    let rule = match &found.tail_pad {
        Answer::Is(0) => "engines end where a block ends: pieces of a block need no pad".to_owned(),
        Answer::Is(pad) => format!(
            "engines may read past the end: a piece of a block has its size up to 32, and {}",
            counted(*pad, "byte[s]")
        ),
        Answer::Refused(error) => error.clone(),
    };
    item(text, "kernels", format_args!("{rule}"));
}

fn outlook(text: &mut String, works: &Works) {
    let kind = if works.growable { "growable" } else { "fixed blocks of the driver" };
    item(text, "segments", format_args!("{kind}: {}", works.growable_reason));
    item(text, "address space", format_args!("{} for a segment", size(works.segment)));
    if works.growable {
        item(text, "granule", format_args!("{} ({} pages)", size(works.granule), works.pages));
    }
    let (pad, block) = (works.tail_pad, works.small_block);
    item(
        text,
        "pad",
        format_args!("{}: a request of 1000 bytes becomes a block of {block}", counted(pad, "byte[s]")),
    );
    let (all, large) = (works.alignment, works.large_alignment);
    item(text, "alignment", format_args!("{all} bytes; blocks of 2 MiB and more {large}"));
    let calls = works.set_access_calls;
    item(text, "set_access", format_args!("{}: {}", counted(calls, "call[s]"), works.set_access_reason));
    item(
        text,
        "events",
        format_args!(
            "one for {}, and made anew only while all are in use",
            counted(u64::from(works.frees_per_event), "free[s]")
        ),
    );
    let calls: Vec<String> = works.calls.iter().map(|(call, count)| format!("{call} {count}")).collect();
    item(text, "calls", format_args!("{}", calls.join(", ")));
    item(text, "given back", format_args!("{}", if works.kept == 0 { "all" } else { "NOT ALL" }));
    for (key, value, source) in &works.settings {
        item(text, "setting", format_args!("{key}:{value} from {source}"));
    }
    for warning in &works.warnings {
        item(text, "warning", format_args!("{warning}"));
    }
}

fn item(text: &mut String, name: &str, what: std::fmt::Arguments<'_>) {
    line(text, format_args!("  {name:<15}{what}"));
}

fn show<T: std::fmt::Display>(answer: &Answer<T>) -> String {
    match answer {
        Answer::Is(value) => value.to_string(),
        Answer::Refused(error) => error.clone(),
    }
}

/// Bytes in the largest unit that leaves no rest.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or(counted(bytes, "byte[s]").to_string(), |(shift, name)| format!("{} {name}", bytes >> shift))
}
