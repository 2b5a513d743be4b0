//! Times the allocator alone: passes without the program's work and without the use checker.
//!
//! The events are prepared in one flat list and every block has its place for a pointer before the
//! clock starts, so the loop that is timed does nothing but call the allocator. The clock is the
//! CPU time of the process. `s` and `m` are left out: they are no calls of the allocator.

use ascend_alloc::driver::Stream;
use ascend_alloc::words::counted;
use ascend_alloc::{DevicePtr, Error};

use crate::meter::{Timing, cpu_nanos};
use crate::rig::{DEVICE, Rig, RigOptions};
use crate::trace::{Event, Trace};

/// What a timed pass cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Calls into the allocator.
    pub ops: u64,
    /// CPU nanoseconds per call, without the driver.
    pub ns_per_op: f64,
    /// CPU nanoseconds in the driver per call.
    pub driver_ns_per_op: f64,
}

/// Replays the trace `passes` times on one allocator and says what the last pass cost.
///
/// # Errors
/// The allocator refused something for another reason than memory.
pub fn time(trace: &Trace, options: &RigOptions, passes: u32) -> Result<Cost, String> {
    let options = RigOptions { lag: 0, checker: false, bytes: false, ..options.clone() };
    let rig = Rig::new(&options, trace.streams.len(), Timing::new())?;
    let ops: Vec<Op> = trace.events.iter().filter_map(|event| Op::of(event, &rig)).collect();
    let mut slots = vec![None; trace.blocks];
    let mut cost = None;
    for _ in 0..passes.max(1) {
        let driver_before = rig.probe().nanos();
        let before = cpu_nanos();
        run(&rig, &ops, &mut slots)?;
        let all = cpu_nanos() - before;
        let driver = rig.probe().nanos() - driver_before;
        let count = ops.len().max(1) as f64;
        cost = Some(Cost {
            ops: ops.len() as u64,
            ns_per_op: all.saturating_sub(driver) as f64 / count,
            driver_ns_per_op: driver as f64 / count,
        });
        for slot in &mut slots {
            if let Some(address) = slot.take() {
                rig.allocator.deallocate(address).map_err(|error| format!("freeing failed: {error}"))?;
            }
        }
    }
    cost.ok_or_else(|| "no pass was run".to_owned())
}

/// A call into the allocator, with everything looked up.
#[derive(Clone, Copy)]
enum Op {
    Allocate { slot: u32, stream: Stream, bytes: u64 },
    Free { slot: u32 },
    Record { slot: u32, stream: Stream },
}

impl Op {
    fn of(event: &Event, rig: &Rig<Timing>) -> Option<Op> {
        match *event {
            Event::Allocate { block, stream, bytes } => {
                Some(Op::Allocate { slot: block, stream: rig.stream(stream), bytes })
            }
            Event::Free { block } => Some(Op::Free { slot: block }),
            Event::Record { block, stream } => Some(Op::Record { slot: block, stream: rig.stream(stream) }),
            Event::Synchronize { .. } | Event::Marker { .. } => None,
        }
    }
}

/// The loop that is timed.
#[inline(never)]
fn run(rig: &Rig<Timing>, ops: &[Op], slots: &mut [Option<DevicePtr>]) -> Result<(), String> {
    let allocator = &rig.allocator;
    for op in ops {
        match *op {
            Op::Allocate { slot, stream, bytes } => match allocator.allocate(DEVICE, bytes, 0, stream) {
                Ok(address) => slots[slot as usize] = Some(address),
                Err(Error::OutOfMemory(_) | Error::Size { .. }) => {}
                Err(error) => {
                    return Err(format!("allocating {} failed: {error}", counted(bytes, "byte[s]")));
                }
            },
            Op::Free { slot } => {
                if let Some(address) = slots[slot as usize].take() {
                    allocator.deallocate(address).map_err(|error| format!("freeing failed: {error}"))?;
                }
            }
            Op::Record { slot, stream } => {
                if let Some(address) = slots[slot as usize] {
                    allocator
                        .record_stream(address, stream)
                        .map_err(|error| format!("recording a stream failed: {error}"))?;
                }
            }
        }
    }
    Ok(())
}
