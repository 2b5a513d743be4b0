//! One allocator on one simulated device, and the program's own way to that device.
//!
//! ```text
//!   replay ──► DeviceAllocator ──► Metered (counts or times) ──► SimDriver ─┐
//!      │                                                                    ├─► Sim
//!      └── tasks, waits, ticks, bytes: the program's work ──────────────────┘
//! ```
//!
//! Nothing of a trace reaches the configuration of the allocator: the rig is built before the first
//! event, from the options of the command alone.

use std::sync::Arc;

use ascend_alloc::driver::{DeviceId, SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_sim::exec::EVENT_SYNC;
use ascend_sim::{Access, BackingMode, Sim, SimConfig, Task, WAIT_FOREVER};

use crate::meter::{Metered, Probe};
use crate::verify::{Bytes, Work};

/// The device that replays use.
pub const DEVICE: DeviceId = 0;

/// What a rig is built from.
#[derive(Clone, Debug)]
pub struct RigOptions {
    /// Memory of the device, bytes.
    pub memory: u64,
    /// Configuration of the allocator.
    pub config: Config,
    /// Trace events after which a task is complete.
    pub lag: u64,
    /// Whether the use checker is on.
    pub checker: bool,
    /// Whether bytes of device memory are looked at.
    pub bytes: bool,
}

/// An allocator, its device, and the streams of the program.
pub struct Rig<P> {
    /// The allocator under test.
    pub allocator: DeviceAllocator,
    driver: Arc<Metered<SimDriver, P>>,
    sim: Sim,
    streams: Vec<Stream>,
}

impl<P: Probe + 'static> Rig<P> {
    /// Builds a device with `streams` streams (the first is the default stream) and an allocator on it.
    ///
    /// # Errors
    /// Why the allocator or a stream could not be made.
    pub fn new(options: &RigOptions, streams: usize, probe: P) -> Result<Self, String> {
        let sim = Sim::new(SimConfig {
            devices: 1,
            capacity: options.memory,
            // Without a look at bytes, real mappings would only cost time.
            backing: if options.bytes { BackingMode::Auto } else { BackingMode::MetadataOnly },
            checker: options.checker,
            lag: options.lag,
            ..SimConfig::default()
        });
        let mut handles = vec![Stream(0)];
        for number in 1..streams {
            let handle = sim
                .executor()
                .create_stream(DEVICE)
                .map_err(|code| format!("the simulator refuses stream number {number} with {code}"))?;
            handles.push(Stream(handle));
        }
        let driver = Arc::new(Metered::new(SimDriver::new(sim.clone()), probe));
        let allocator = DeviceAllocator::new(options.config.clone(), driver.clone())
            .map_err(|error| format!("the allocator cannot be made: {error}"))?;
        Ok(Rig { allocator, driver, sim, streams: handles })
    }

    /// The stream of a stream index.
    #[must_use]
    pub fn stream(&self, index: u16) -> Stream {
        self.streams[usize::from(index)]
    }

    /// The probe around the allocator's driver calls.
    #[must_use]
    pub fn probe(&self) -> &P {
        self.driver.probe()
    }

    /// Queues a task of the program that uses one range of device memory.
    ///
    /// # Errors
    /// The simulator refuses it.
    pub fn submit(
        &self,
        stream: Stream,
        label: &'static str,
        access: Access,
        work: Option<Work>,
    ) -> Result<(), String> {
        let task = Task { label, accesses: [access].into_iter().collect(), work };
        self.sim
            .executor()
            .submit(DEVICE, stream.0, task)
            .map_err(|code| format!("the simulator refuses task {label} with {code}"))
    }

    /// The program waits for a stream.
    ///
    /// # Errors
    /// The simulator refuses it.
    pub fn wait(&self, stream: Stream) -> Result<(), String> {
        self.sim
            .executor()
            .synchronize_stream(DEVICE, stream.0, WAIT_FOREVER)
            .map_err(|code| format!("the program's wait failed with {code}"))
    }

    /// A new event of the program.
    ///
    /// # Errors
    /// The simulator refuses it.
    pub fn create_event(&self) -> Result<u64, String> {
        self.sim
            .executor()
            .create_event(DEVICE, EVENT_SYNC, true)
            .map_err(|code| format!("the simulator refuses an event of the program with {code}"))
    }

    /// The program records its event on a stream.
    ///
    /// # Errors
    /// The simulator refuses it.
    pub fn record_event(&self, event: u64, stream: Stream) -> Result<(), String> {
        self.sim
            .executor()
            .record_event(DEVICE, event, stream.0)
            .map_err(|code| format!("the simulator refuses a record of the program with {code}"))
    }

    /// The program makes a stream wait for its event.
    ///
    /// # Errors
    /// The simulator refuses it.
    pub fn stream_wait_event(&self, stream: Stream, event: u64) -> Result<(), String> {
        self.sim
            .executor()
            .stream_wait_event(DEVICE, stream.0, event)
            .map_err(|code| format!("the simulator refuses a stream's wait of the program with {code}"))
    }

    /// The program waits for the device.
    ///
    /// # Errors
    /// The simulator refuses it.
    pub fn wait_device(&self) -> Result<(), String> {
        self.sim
            .executor()
            .synchronize_device(DEVICE, WAIT_FOREVER)
            .map_err(|code| format!("the program's wait failed with {code}"))
    }

    /// Whether every byte of a range has physical memory behind it.
    #[must_use]
    pub fn is_backed(&self, address: u64, bytes: u64) -> bool {
        self.sim.is_backed(address, bytes)
    }

    /// One trace event has passed; so the ticks that findings name are numbers of events, from 0.
    pub fn tick(&self) {
        self.sim.executor().tick(1);
    }

    /// Physical memory in use, as the simulator counts, bytes.
    #[must_use]
    pub fn physical(&self) -> u64 {
        self.sim.physical_bytes(DEVICE)
    }

    /// The highest value of [`physical`](Self::physical) since the start or the last reset.
    #[must_use]
    pub fn peak_physical(&self) -> u64 {
        self.sim.physical_peak(DEVICE)
    }

    /// Starts a new peak at the present value.
    pub fn reset_peak_physical(&self) {
        self.sim.reset_peak(DEVICE);
    }

    /// What the simulator found wrong since the last call.
    #[must_use]
    pub fn take_findings(&self) -> Vec<String> {
        self.sim.take_findings()
    }

    /// How the simulator keeps the bytes of the device, and what else it chose for this machine.
    #[must_use]
    pub fn choices(&self) -> Vec<String> {
        let mode = if self.sim.is_mapped() { "bytes in mapped memory" } else { "metadata only" };
        std::iter::once(mode.to_owned()).chain(self.sim.notes().iter().cloned()).collect()
    }

    /// The program's way to the bytes of the device.
    #[must_use]
    pub fn bytes(&self) -> Arc<dyn Bytes> {
        Arc::new(SimBytes(self.sim.clone()))
    }

    /// Drops the allocator when all work is done and says what was wrong with that. If `all_freed`,
    /// no block is live any more, and so no memory may stay with the device.
    #[must_use]
    pub fn close(self, all_freed: bool) -> Vec<String> {
        let mut findings = Vec::new();
        findings.extend(self.wait_device().err());
        drop(self.allocator);
        findings.extend(self.sim.take_findings());
        let left = self.sim.physical_bytes(DEVICE);
        if all_freed && left != 0 {
            findings.push(format!("accounting: {left} bytes of physical memory outlive the allocator"));
        }
        findings
    }
}

/// Bytes of device memory through the simulator.
struct SimBytes(Sim);

impl Bytes for SimBytes {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.write_bytes(address, bytes).map_err(|code| format!("the simulator answers {code}"))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.0.read_bytes(address, bytes).map_err(|code| format!("the simulator answers {code}"))
    }
}
