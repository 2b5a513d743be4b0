//! `ascend-alloc bandwidth`: pageable against page-locked against mapped host memory, to a device and back.
//!
//! ```text
//!  bandwidth ─┬─► measure   copies each size each way so many times
//!             └─► plot      the figures as an SVG
//! ```

mod measure;
mod plot;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ascend_alloc::driver::{AclDriver, Driver, SimDriver};
use ascend_alloc::words::counted;
use ascend_sim::{BackingMode, Sim, SimConfig};
use clap::Args;

use crate::output;
use crate::units::{GIB, MIB, parse_bytes};
use measure::{Figure, measure};

/// Status for a machine that cannot be measured.
const REFUSED: u8 = 2;

const EXITS: &str = "\
Copies host memory to the device and back with the calls a program would use, each size so many times, and prints the
median. Zero copy is memory that host and device find at one address (CANN 8.5, Atlas A2 and A3), moved by the copy
engine; no kernel is run. The library is looked for where the allocator looks.

Exit status: 0 measured; 2 there is no usable library or device, or the plot cannot be written.";

/// Options of the command.
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct Bandwidth {
    /// The device to copy to
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,

    /// Copies of each size
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,

    /// The smallest size
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_bytes)]
    smallest: u64,

    /// The largest size; sizes are four times the one before
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    largest: u64,

    /// Writes the plot to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Runs on the simulator inside this program, to try the command out
    #[arg(long)]
    simulate: bool,
}

/// What is said of figures that no device made.
const SIMULATED: &str =
    "these figures are the simulator's: they say how fast this machine copies memory, nothing about any NPU";

impl Bandwidth {
    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self.measured() {
            Ok(code) => code,
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::from(REFUSED)
            }
        }
    }

    fn measured(&self) -> Result<ExitCode, String> {
        if self.smallest > self.largest {
            return Err(format!(
                "--smallest {} is more than --largest {}",
                label(self.smallest),
                label(self.largest)
            ));
        }
        let (driver, simulated) = self.driver()?;
        let sizes = sizes(self.smallest, self.largest);
        let figures = measure(&*driver, self.device, &sizes, self.repeats)?;
        let note = if simulated { SIMULATED } else { "measured on the device" };
        if let Some(path) = &self.svg {
            let plot = plot::render(&figures, note);
            output::write(path, |file| file.write_all(plot.as_bytes()))
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        let mut out = io::stdout().lock();
        match out.write_all(table(&figures, self.repeats, note).as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    /// The driver to measure with, and whether it is the simulator.
    fn driver(&self) -> Result<(Arc<dyn Driver>, bool), String> {
        if self.simulate {
            let capacity = self.largest.checked_next_multiple_of(2 << 20);
            let capacity = capacity.and_then(|bytes| bytes.max(64 << 20).checked_mul(2));
            let capacity = capacity.ok_or("--largest is more than any device has")?;
            let config = SimConfig { capacity, backing: BackingMode::MetadataOnly, ..SimConfig::default() };
            let sim = Sim::new(config);
            sim.set_device(0).map_err(|code| format!("the simulator refuses its device: {code}"))?;
            return Ok((Arc::new(SimDriver::new(sim)), true));
        }
        // SAFETY: what the search finds is taken for ACL, as the allocator takes it; only memory and streams that are
        // the program's own are used.
        let driver = unsafe { AclDriver::open() }
            .map_err(|error| format!("{error}; --simulate tries the command out without a device"))?;
        let simulated = is_simulator(driver.acl().origin());
        Ok((Arc::new(driver), simulated))
    }
}

/// Whether a library has the simulator's own functions beside ACL's.
fn is_simulator(file: &str) -> bool {
    // SAFETY: the library is loaded already, so no code of it runs now.
    let library = unsafe { libloading::Library::new(file) };
    let Ok(library) = library else { return false };
    // SAFETY: the symbol is only looked for.
    unsafe { library.get::<*const core::ffi::c_void>(b"acl_sim_now\0") }.is_ok()
}

/// From the smallest to the largest, each four times the one before; the largest is always one.
fn sizes(smallest: u64, largest: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = std::iter::successors(Some(smallest.max(1)), |size| size.checked_mul(4))
        .take_while(|&size| size < largest)
        .collect();
    sizes.push(largest.max(1));
    sizes
}

/// A size for people, in the largest unit it is a whole number of.
fn label(bytes: u64) -> String {
    let units = [(GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes.is_multiple_of(unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// The figures as lines of text.
fn table(figures: &[Figure], repeats: u32, note: &str) -> String {
    let mut text =
        format!("GiB/s, median of {}; {note}\n\n{:>10}", counted(u64::from(repeats), "cop[y|ies]"), "size");
    for (way, direction) in Figure::COLUMNS {
        let _ = write!(text, " {:>20}", format!("{} {}", way.name(), direction.name()));
    }
    text.push('\n');
    for figure in figures {
        let _ = write!(text, "{:>10}", label(figure.bytes));
        for column in figure.rates {
            let _ = match column {
                Some(rate) => write!(text, " {rate:>20.2}"),
                None => write!(text, " {:>20}", "not here"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_from_the_smallest_to_the_largest() {
        assert_eq!(sizes(4096, 1 << 20), [4096, 16_384, 65_536, 262_144, 1 << 20]);
        assert_eq!(sizes(4096, 5000), [4096, 5000]);
        assert_eq!(sizes(4096, 4096), [4096]);
    }

    #[test]
    fn the_table_says_whose_figures_they_are() {
        let rates = [Some(1.5), Some(2.0), Some(3.0), Some(4.0), None, None];
        let text = table(&[Figure { bytes: 4096, rates }], 20, SIMULATED);
        assert!(text.contains("simulator") && text.contains("nothing about any NPU"), "{text}");
        assert!(text.contains("4 KiB") && text.contains("1.50") && text.contains("not here"), "{text}");
        let header = text.lines().nth(2).expect("a header");
        for (way, direction) in Figure::COLUMNS {
            assert!(header.contains(way.name()) && header.contains(direction.name()), "{header}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_had_are_refused() {
        let with = |smallest, largest| {
            let options = Bandwidth { device: 0, repeats: 1, smallest, largest, svg: None, simulate: true };
            options.measured().expect_err("refused")
        };
        assert!(with(5, 4).contains("--smallest 5 B is more than --largest 4 B"));
        for largest in [u64::MAX, u64::MAX / 2, 1 << 62] {
            assert!(with(largest, largest).len() > 10);
        }
        let sim = SimDriver::new(Sim::new(SimConfig { capacity: 1 << 60, ..SimConfig::default() }));
        assert!(measure(&sim, 0, &[1 << 50], 1).is_err());
    }

    #[test]
    fn the_simulator_is_measured_each_way() {
        let options =
            Bandwidth { device: 0, repeats: 2, smallest: 4096, largest: 64 << 10, svg: None, simulate: true };
        let (driver, simulated) = options.driver().expect("the simulator");
        assert!(simulated);
        let figures = measure(&*driver, 0, &sizes(4096, 64 << 10), 2).expect("measured");
        assert_eq!(figures.len(), 3);
        assert!(
            figures.iter().all(|figure| figure.rates.iter().all(|rate| rate.is_some_and(|rate| rate > 0.0)))
        );
        let svg = plot::render(&figures, SIMULATED);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<polyline").count(), Figure::COLUMNS.len());
        assert!(svg.contains("simulator"));
    }
}
