//! The report when the process ends: findings, and what was not given back.

use std::io::Write;

use crate::{fork, machine};

/// Makes the report be written when the process ends, if the settings say so by then.
pub(crate) fn arm() {
    // The section below needs no arming; the call keeps this file linked from the archive.
    std::hint::black_box(&AT_END);
}

/// Runs when the loader finishes this library: after the exit handlers of the program and after the
/// destructors of libraries that depend on this one, so that what those give back is no leak.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".fini_array"))]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    if fork::forked() {
        return;
    }
    // Nothing may unwind into the loader.
    let _panicked = std::panic::catch_unwind(|| {
        let target = machine::settings(|settings| settings.report.clone());
        if target.is_empty() {
            return;
        }
        let text = machine::with_existing(|sim| text(&sim.findings(), &sim.leaks()));
        write(&target, &text.unwrap_or_else(|| self::text(&[], &[])));
    });
}

/// The report for people.
fn text(findings: &[String], leaks: &[String]) -> String {
    let mut text = String::new();
    for (what, entries) in [("finding", findings), ("leak", leaks)] {
        text.push_str(&format!("ascend-sim: {} {what}(s)\n", entries.len()));
        for entry in entries {
            text.push_str(&format!("ascend-sim: {what}: {entry}\n"));
        }
    }
    text
}

/// Writes a line of the simulator's own to standard error, if that is open.
pub(crate) fn say(text: &str) {
    let _closed = writeln!(std::io::stderr(), "ascend-sim: {text}");
}

fn write(target: &str, text: &str) {
    let written = match target {
        "stderr" => std::io::stderr().write_all(text.as_bytes()),
        file => std::fs::write(file, text),
    };
    if let Err(error) = written {
        say(&format!("the report could not be written to {target}: {error}"));
    }
}
