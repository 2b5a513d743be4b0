//! The target `operations` on a runtime library: its programs in the words of [`proof::operation`], so that one corpus
//! serves both. What belongs to the simulated machine's setup is left out; what only a simulator can do does nothing.

use proof::machine::SimSetup;
use proof::operation::{Operation as To, Step};
use proof::world::{Ground, run as run_steps};

use crate::program::{Operation, Program, Setup};

/// The most operations of a program, as on the simulator.
const MOST_OPERATIONS: usize = 150;

/// Runs a program.
///
/// # Panics
///
/// Something that must hold does not.
pub fn run(ground: &Ground, program: &Program) {
    let operations = program.operations.iter().take(MOST_OPERATIONS);
    let steps = operations.map(|operation| Step { thread: 0, operation: translated(operation) }).collect();
    run_steps(ground, &proof::operation::Program { setup: setup(&program.setup), steps });
}

fn setup(setup: &Setup) -> proof::setup::Setup {
    proof::setup::Setup {
        machine: SimSetup {
            capacity: setup.capacity,
            lag: setup.lag,
            schedule: 0,
            soc_950: setup.soc_950,
            address_space: setup.address_space,
            events: 0,
            reuse: false,
            destroy_waits: setup.destroy_waits,
        },
        classic: setup.classic,
        without_front: setup.without_front,
        divisions: setup.divisions,
        headroom: setup.headroom,
        reservation: setup.reservation,
        decay: setup.decay,
        wide: 0,
        max_split: setup.max_split,
        collect: setup.collect,
    }
}

/// Each device has three streams, the first device's come first.
fn lane(stream: u8, other_device: bool) -> u8 {
    stream % 3 + if other_device { 3 } else { 0 }
}

fn translated(operation: &Operation) -> To {
    match *operation {
        Operation::Allocate { size, stream, other_device, align } => {
            // A multiple of four is an exponent; the others are the usual alignment.
            let align = align.map_or(1, |power| power & !3);
            To::Allocate { size, lane: lane(stream, other_device), align, pool: None }
        }
        Operation::Free { block } => To::Free { block },
        Operation::FreeLast => To::FreeLast,
        Operation::Misuse { block, offset } => To::Misuse { block, offset },
        Operation::Record { block, stream } => To::Record { block, lane: stream },
        Operation::Use { block, stream, write } => To::Use { block, user: stream, write },
        Operation::Grow { block, size } => To::Grow { block, size },
        Operation::Shrink { block, parts } => To::Shrink { block, parts },
        Operation::Trim { other_device, keep } => To::Trim { device: other_device, keep },
        Operation::EmptyCache { other_device } => To::Empty { device: other_device.then_some(true) },
        Operation::Limit { parts } => To::Fraction { device: false, parts },
        Operation::Wait { stream, other_device } => To::Synchronize { lane: lane(stream, other_device) },
        Operation::Pass { ticks } => To::Pass { ticks },
        Operation::Replace { stream, other_device } => To::DestroyStream { lane: lane(stream, other_device) },
        Operation::Fail { call, after, code, always } => To::Fail { call, after, code, always },
        Operation::Heal => To::Heal,
        Operation::Crowd { chunks } => To::Crowd { device: false, chunks },
        Operation::Hook => To::Hook { on: true },
        Operation::Reset => To::ResetPeaks { device: false },
    }
}
