//! The report when the process ends: findings, and what was not given back.

use std::io::Write;

use ascend_sim::Sim;

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
        if let Some(text) = machine::with_existing(text) {
            write(&target, &text);
        }
    });
}

/// The report of a machine, for people.
pub(crate) fn text(sim: &Sim) -> String {
    let findings = sim.findings();
    let mut text = format!("ascend-sim: {} finding(s)\n", findings.len());
    for finding in &findings {
        text.push_str(&format!("ascend-sim: finding: {finding}\n"));
    }
    let leaks = sim.leaks();
    text.push_str(&format!("ascend-sim: {} leak(s)\n", leaks.len()));
    for leak in &leaks {
        text.push_str(&format!("ascend-sim: leak: {leak}\n"));
    }
    text
}

fn write(target: &str, text: &str) {
    let written = match target {
        "stderr" => std::io::stderr().write_all(text.as_bytes()),
        file => std::fs::write(file, text),
    };
    if let Err(error) = written {
        eprintln!("ascend-sim: the report could not be written to {target}: {error}");
    }
}
