//! The simulator in this process.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use ascend_sim::exec::{CaptureMode, EVENT_SYNC};
use ascend_sim::{BackingMode, ExecMode, LAG_NEVER, Sim, SimConfig, Soc, Task, WAIT_FOREVER};

use super::{MARK, Machine, ends, mark_of};

/// What kind of machine a program gets; every value is one.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct SimSetup {
    /// Memory of a device: 16 MiB and so many times 4 MiB.
    pub capacity: u8,
    /// How many ticks work stays unfinished; 255 is until something waits for it.
    pub lag: u8,
    /// Chooses which of the streams with work goes on.
    pub schedule: u16,
    /// A part without a pad behind blocks.
    pub soc_950: bool,
    /// Gibibytes of address space; 0 is no limit.
    pub address_space: u8,
    /// The most events of a device; 0 is no limit.
    pub events: u8,
    /// Handles of streams and events are used again.
    pub reuse: bool,
    /// Destroying a stream waits for its work.
    pub destroy_waits: bool,
}

impl SimSetup {
    /// Memory of a device in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        (16 + 4 * u64::from(self.capacity)) << 20
    }

    /// The lag in ticks.
    #[must_use]
    pub fn lag(&self) -> u64 {
        if self.lag == u8::MAX { LAG_NEVER } else { u64::from(self.lag) }
    }
}

/// Two simulated devices.
pub struct SimMachine {
    sim: Sim,
    /// Streams that are being captured; the program neither waits for them nor orders others by them, which a capture
    /// does not allow.
    captured: Mutex<BTreeSet<(u32, u64)>>,
}

impl SimMachine {
    /// A new machine.
    #[must_use]
    pub fn new(setup: &SimSetup) -> Self {
        let mut config = SimConfig {
            devices: 2,
            capacity: setup.capacity(),
            soc: if setup.soc_950 { Soc::Ascend950 } else { Soc::Ascend910B },
            backing: BackingMode::MetadataOnly,
            exec_mode: ExecMode::Deterministic { seed: u64::from(setup.schedule) },
            lag: setup.lag(),
            va_budget: (setup.address_space > 0).then(|| u64::from(setup.address_space) << 30),
            ..SimConfig::default()
        };
        if setup.events > 0 {
            config.max_events = u32::from(setup.events);
        }
        let sim = Sim::new(config);
        sim.executor().set_stream_handle_reuse(setup.reuse);
        sim.executor().set_event_handle_reuse(setup.reuse);
        sim.executor().set_destroy_waits(setup.destroy_waits);
        sim.set_device(0).expect("there are two devices");
        Self { sim, captured: Mutex::default() }
    }

    /// Whether a stream is being captured, or for none any of the device.
    fn is_captured(&self, device: u32, stream: Option<u64>) -> bool {
        let captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        captured.iter().any(|&(of, one)| of == device && stream.is_none_or(|stream| stream == one))
    }

    /// The simulator.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }
}

impl Machine for SimMachine {
    fn devices(&self) -> u32 {
        2
    }

    fn create_stream(&self, device: u32) -> Option<u64> {
        self.sim.executor().create_stream(device).ok()
    }

    fn destroy_stream(&self, device: u32, stream: u64) -> bool {
        self.sim.executor().destroy_stream(device, stream, false).is_ok()
    }

    fn work(&self, device: u32, stream: u64, (address, bytes): (u64, u64), tag: u64, write: bool) -> bool {
        let task = Task::new("work");
        let task = if write { task.writes(address, bytes, tag) } else { task.reads(address, bytes, tag) };
        // Not to the executor: only here it is seen whether the memory is there and within reach.
        matches!(self.sim.on_device(device, || self.sim.submit(stream, task)), Ok(Ok(())))
    }

    fn mark(&self, device: u32, stream: u64, range: (u64, u64), tag: u64) -> bool {
        let mark = [mark_of(tag); MARK as usize];
        for (address, bytes) in ends(range) {
            self.sim.write_bytes(address, &mark[..bytes as usize]).expect("the range is backed");
        }
        self.work(device, stream, range, tag, true)
    }

    fn marks(&self, _device: u32, range: (u64, u64)) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        for (address, bytes) in ends(range) {
            let at = all.len();
            all.resize(at + bytes as usize, 0);
            self.sim.read_bytes(address, &mut all[at..]).expect("the range is backed");
        }
        Some(all)
    }

    fn order(&self, device: u32, first: u64, then: u64) -> bool {
        if [first, then].into_iter().any(|stream| self.is_captured(device, Some(stream))) {
            return false;
        }
        let exec = self.sim.executor();
        let Ok(event) = exec.create_event(device, EVENT_SYNC, true) else { return false };
        let done = exec.record_event(device, event, first).is_ok()
            && exec.stream_wait_event(device, then, event).is_ok();
        exec.destroy_event(event).expect("the event lives");
        done
    }

    fn synchronize_stream(&self, device: u32, stream: u64) -> bool {
        !self.is_captured(device, Some(stream))
            && self.sim.executor().synchronize_stream(device, stream, WAIT_FOREVER).is_ok()
    }

    fn synchronize_device(&self, device: u32) -> bool {
        !self.is_captured(device, None)
            && self.sim.executor().synchronize_device(device, WAIT_FOREVER).is_ok()
    }

    fn pass(&self, ticks: u64) {
        self.sim.executor().tick(ticks);
        self.sim.executor().run_some(ticks);
        self.sim.advance(ticks * 1_000_000);
    }

    fn set_lag(&self, ticks: u64) {
        self.sim.executor().set_lag(ticks);
    }

    fn fail(&self, call: &str, k: u64, code: i32, always: bool) -> bool {
        self.sim.fail(call, k, code, always).is_ok()
    }

    fn heal(&self) {
        self.sim.clear_faults();
    }

    fn set_foreign(&self, device: u32, bytes: u64) -> bool {
        self.sim.set_foreign_bytes(device, bytes);
        true
    }

    fn findings(&self) -> Vec<String> {
        self.sim.findings()
    }

    fn physical_bytes(&self, device: u32) -> Option<u64> {
        Some(self.sim.physical_bytes(device))
    }

    fn is_backed(&self, address: u64, bytes: u64) -> Option<bool> {
        Some(self.sim.is_backed(address, bytes))
    }

    fn mappings(&self) -> Option<u64> {
        Some(self.sim.mapping_count() as u64)
    }

    fn reserved_bytes(&self) -> Option<u64> {
        Some(self.sim.reserved_bytes())
    }

    fn count(&self, call: &str) -> Option<u64> {
        Some(self.sim.count(call))
    }

    fn events(&self) -> Option<(u64, u64)> {
        Some((self.sim.count("aclrtCreateEventExWithFlag"), self.sim.count("aclrtDestroyEvent")))
    }

    fn orders_all_uses(&self) -> bool {
        false
    }

    fn reset(&self, device: u32) -> bool {
        let current = self.current_device();
        if self.sim.reset_device_force(device as i32).is_err() {
            return false;
        }
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).retain(|&(of, _)| of != device);
        self.set_device(device);
        if let Ok(current) = u32::try_from(current) {
            self.set_device(current);
        }
        true
    }

    fn begin_capture(&self, device: u32, stream: u64) -> bool {
        let begun = self.sim.executor().capture_begin(device, stream, CaptureMode::Relaxed).is_ok();
        if begun {
            self.captured.lock().unwrap_or_else(PoisonError::into_inner).insert((device, stream));
        }
        begun
    }

    fn end_capture(&self, device: u32, stream: u64, spoil: bool) -> bool {
        let exec = self.sim.executor();
        if spoil {
            exec.capture_invalidate(device, stream).expect("the stream is captured");
        }
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).remove(&(device, stream));
        exec.capture_end(device, stream).is_ok_and(|graph| exec.capture_destroy(graph).is_ok())
    }

    fn set_device(&self, device: u32) {
        self.sim.set_device(device as i32).expect("there are two devices");
    }

    fn current_device(&self) -> i32 {
        self.sim.get_device().unwrap_or(-1)
    }

    fn lacks(&self) -> Vec<&'static str> {
        Vec::new()
    }
}
