//! Events are few on some devices: how many the allocator takes, and what it does when there is none for a while.

mod common;

use ascend_alloc::driver::Stream;
use common::{M, Setup, World};

/// A program of that many streams, each of which in turn takes memory of other sizes than the one before, on a machine
/// that ends work after so many ticks.
struct Rounds {
    world: World,
    streams: Vec<Stream>,
    /// What is taken in a round, MiB.
    sizes: fn(u64) -> Vec<u64>,
    round: u64,
}

impl Rounds {
    fn new(setup: Setup, streams: usize, sizes: fn(u64) -> Vec<u64>) -> Self {
        let mut world = Setup { scripted: false, ..setup }.build();
        world.contents = false;
        let streams = (0..streams).map(|_| world.stream()).collect();
        Self { world, streams, sizes, round: 0 }
    }

    /// The next stream takes blocks, works with them and frees them.
    fn pass(&mut self) {
        let stream = self.streams[self.round as usize % self.streams.len()];
        let alloc = self.world.alloc.clone();
        for bytes in (self.sizes)(self.round).into_iter().map(|size| size * M) {
            let block = alloc.allocate(0, bytes, 0, stream).expect("memory");
            let task = ascend_sim::Task::new("work").writes(block.0, bytes, self.round);
            let sim = &self.world.sim;
            sim.on_device(0, || sim.submit(stream.0, task)).unwrap().expect("queued");
            alloc.deallocate(block).expect("freed");
        }
        self.round += 1;
        self.world.verify();
    }
}

/// What streams freed while the device had no event for them is not lost to the others for good.
#[test]
fn events_that_are_refused_for_a_while_are_tried_again() {
    let mut setup = Setup::default().capacity(1024 * M);
    setup.sim.lag = 0;
    let mut program = Rounds::new(setup, 12, |round| [vec![30 + round * 7 % 30], vec![3; 23]].concat());
    program.world.sim.fail("aclrtRecordEvent", 1, 207_007, true).unwrap();
    for _ in 0..24 {
        program.pass();
    }
    let grown = program.world.reserved();
    assert!(grown > 200 * M, "without events memory stays with its stream: {grown}");
    program.world.sim.clear_faults();
    // Each refusal makes the pause before the next try longer.
    for _ in 0..48 {
        program.pass();
    }
    let grown = program.world.reserved();
    for _ in 0..72 {
        program.pass();
    }
    assert_eq!(program.world.reserved(), grown, "memory of other streams serves again");
    program.world.alloc.trim(0, 0).unwrap();
    for _ in 0..24 {
        program.pass();
    }
    assert!(program.world.reserved() <= 100 * M, "{}", program.world.reserved());
    assert_eq!(program.world.stats().calls.wait_stream, 0);
    program.world.close();
}

/// A device that never comes to an end is asked for more and more, and the program still finds events.
#[test]
fn behind_a_slow_device_most_events_are_left_to_the_program() {
    for conf in ["", "device_waits:False"] {
        let mut setup = Setup::default().capacity(200 * M).conf(conf);
        setup.sim.lag = 100_000;
        setup.sim.max_events = 1023;
        let mut program = Rounds::new(setup, 40, |round| vec![5 + round * 7 % 5]);
        for _ in 0..600 {
            program.pass();
        }
        let sim = program.world.sim.clone();
        let (_, left) = sim.executor().available(0).unwrap();
        assert!(left >= 511, "{left} events are left");
        assert_eq!(program.world.stats().num_ooms, 0);
        program.world.close();
    }
}
