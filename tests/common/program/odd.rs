//! What programs do besides using memory: calls that must be refused, other settings, hooks, calls of the driver that fail.

use super::super::*;
use super::Program;

/// Functions of the driver that may fail.
const FUNCTIONS: [&str; 17] = [
    "aclrtGetMemInfo",
    "aclrtReserveMemAddress",
    "aclrtReleaseMemAddress",
    "aclrtMallocPhysical",
    "aclrtFreePhysical",
    "aclrtMapMem",
    "aclrtUnmapMem",
    "aclrtMemSetAccess",
    "aclrtMallocAlign32",
    "aclrtFree",
    "aclrtCreateEventExWithFlag",
    "aclrtRecordEvent",
    "aclrtQueryEventStatus",
    "aclrtSynchronizeEvent",
    "aclrtSynchronizeDevice",
    "aclrtStreamWaitEvent",
    "aclmdlRICaptureGetInfo",
];

impl Program {
    /// Calls that must be refused and change nothing.
    pub(super) fn nonsense(&mut self) {
        let lane = self.lane();
        let alloc = self.world.alloc.clone();
        let refused = |answer: Result<()>| {
            assert!(matches!(answer, Err(Error::Pointer { .. })), "{answer:?}");
        };
        let before = self.books(lane.device);
        self.log.push("nonsense".to_owned());
        let live = &self.world.live;
        if let Some(&ptr) = self.stale.iter().rfind(|ptr| !live.contains_key(&ptr.0)) {
            refused(alloc.deallocate(ptr));
            refused(alloc.record_stream(ptr, lane.stream));
            refused(alloc.shrink_in_place(ptr, 1));
        }
        refused(alloc.deallocate(DevicePtr(0x1000)));
        refused(alloc.deallocate(DevicePtr(u64::MAX)));
        if let Some(ptr) = self.some_block() {
            let inside = self.rng.u64(1..self.world.live[&ptr.0].bytes);
            refused(alloc.deallocate(DevicePtr(ptr.0 + inside)));
            refused(alloc.record_stream(DevicePtr(ptr.0 + inside), lane.stream));
        }
        let answer = alloc.allocate(lane.device, u64::MAX - self.rng.u64(..1024), 0, lane.stream);
        // A device is set up at its first request, which may fail.
        let unlucky = self.armed && matches!(answer, Err(Error::Driver(_)));
        assert!(unlucky || matches!(answer, Err(Error::Size { .. })), "{answer:?}");
        let answer = alloc.allocate(lane.device, 100, 3 + 2 * self.rng.u64(..1000), lane.stream);
        assert!(matches!(answer, Err(Error::Argument { .. })), "{answer:?}");
        let answer = alloc.allocate(self.flavor.devices, 100, 0, lane.stream);
        assert!(matches!(answer, Err(Error::Argument { .. })), "{answer:?}");
        if !unlucky {
            assert_eq!(alloc.allocate(lane.device, 0, 0, lane.stream).expect("nothing"), DevicePtr::NULL);
        }
        alloc.deallocate(DevicePtr::NULL).expect("nothing");
        assert_eq!(self.books(lane.device), before);
    }

    /// Statistics without those of free pieces: what rests in the front is none until a call, even one that
    /// is refused, brings it back.
    fn books(&self, device: DeviceId) -> Stats {
        let none = ascend_alloc::stats::StatArray::default();
        let stats = self.world.alloc.stats(device).expect("statistics");
        Stats { inactive_split: none, inactive_split_bytes: none, ..stats }
    }

    pub(super) fn settings(&mut self) {
        let device = self.lane().device;
        match self.rng.u8(..4) {
            0 => {
                self.log.push(format!("reset peaks of {device}"));
                self.world.alloc.reset_peak_stats(device).expect("reset");
                self.peaks[device as usize] = 0;
            }
            1 => {
                self.log.push(format!("reset sums of {device}"));
                // The calls made so far are compared with the machine's, which go on.
                let before = self.world.alloc.stats(device).expect("statistics").calls;
                self.world.alloc.reset_accumulated_stats(device).expect("reset");
                self.world.calls_before.push(before);
                self.requests[device as usize] = 0;
            }
            2 => {
                let grow = self.rng.bool();
                self.log.push(format!("growable segments {grow}"));
                self.world.alloc.set_expandable_segments(grow);
            }
            _ => {
                self.fraction = [1.0, 0.75, 0.5][self.rng.usize(..3)];
                self.log.push(format!("fraction {}", self.fraction));
                for device in 0..self.flavor.devices {
                    match self.world.alloc.set_memory_fraction(device, self.fraction) {
                        Ok(()) => {}
                        Err(error) => assert!(self.armed, "{error}"),
                    }
                }
            }
        }
    }

    pub(super) fn toggle_hook(&mut self) {
        let on = self.rng.bool();
        self.log.push(format!("hook {on}"));
        let hook: ascend_alloc::hook::EventHook = Arc::new(|event| assert!(event.device < 8));
        self.world.alloc.set_event_hook(on.then_some(hook));
    }

    pub(super) fn fault(&mut self) {
        if !self.flavor.faults {
            return;
        }
        if self.armed && self.rng.bool() {
            self.world.sim.clear_faults();
            self.armed = false;
            self.log.push("no more faults".to_owned());
            return;
        }
        let function = FUNCTIONS[self.rng.usize(..FUNCTIONS.len())];
        let code = [207_001, 507_899][self.rng.usize(..2)];
        let (k, always) = (self.rng.u64(1..6), self.rng.bool());
        self.log.push(format!("call {k} of {function} fails with {code}, always: {always}"));
        self.world.sim.fail(function, k, code, always).expect("a function");
        self.armed = true;
    }
}
