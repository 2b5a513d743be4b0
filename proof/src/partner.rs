//! Another process that has exported blocks and keeps them: another run of the test's own program, which
//! ends with this one.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ascend_alloc::driver::SimDriver;
use ascend_alloc::{Config, DeviceAllocator, ExportOptions, driver::Stream};
use ascend_sim::{Sim, SimConfig};

/// Set in the other process.
const VARIABLE: &str = "ASCEND_ALLOC_TEST_PARTNER";
/// What begins the lines with messages.
const WORD: &str = "message ";

/// The other process; it ends when this is dropped.
pub struct Partner {
    child: Child,
    /// What its blocks' importers need.
    pub messages: Arc<Vec<Vec<u8>>>,
}

impl Partner {
    /// Starts the test of that name of this program in another process, which calls [`act`].
    ///
    /// # Panics
    ///
    /// It cannot be started, or says no messages.
    #[must_use]
    pub fn start(test: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be run");
        let mut messages = Vec::new();
        let out = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        for line in out.lines().map_while(Result::ok) {
            // The test harness prints words of its own.
            let Some(at) = line.find(WORD) else { continue };
            let text = line[at + WORD.len()..].trim();
            if text == "end" {
                break;
            }
            let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
            messages.push((0..text.len()).step_by(2).map(byte).collect());
        }
        assert!(!messages.is_empty(), "the other process exported nothing");
        Self { child, messages: Arc::new(messages) }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _collected = self.child.wait();
    }
}

/// What the other process does: exports blocks of several sizes from a simulator, and waits for its input to end. In
/// any other process this does nothing.
///
/// # Panics
///
/// A block cannot be exported.
pub fn act() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let sim = Sim::new(SimConfig { capacity: 256 << 20, devices: 2, ..SimConfig::default() });
    sim.set_device(0).expect("there are two devices");
    let driver = Arc::new(SimDriver::new(sim));
    let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver).expect("an allocator"));
    let mut exports = Vec::new();
    for bytes in [1000, 3 << 20, 2 << 20, 20 << 20] {
        let block = allocator.allocate(0, bytes, 0, Stream(0)).expect("there is memory");
        let export = allocator.export(block, &ExportOptions::default()).expect("it can be exported");
        let message: String = export.handle().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("\n{WORD}{message}");
        exports.push(export);
    }
    println!("\n{WORD}end");
    let mut rest = Vec::new();
    // The parent's end of the pipe closes when the parent ends.
    let _read = std::io::stdin().read_to_end(&mut rest);
}
