//! What a program may do next, for proptest: enough of a program's state to make operations that find something to
//! work on. What really is there the model of [`world`](crate::world) knows.

use proptest::prelude::*;
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;

use crate::machine::SimSetup;
use crate::operation::{Operation, Size, Step};
use crate::setup::Setup;

/// Which operations programs are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flavor {
    /// Calls fail now and then.
    pub faults: bool,
    /// Fixed blocks only.
    pub classic: bool,
    /// Several threads at once; such programs are not the same each time.
    pub threads: bool,
    /// Devices are reset.
    pub resets: bool,
    /// Streams are captured by the runtime.
    pub captures: bool,
}

/// How much of each kind a program may have at most, as far as its operations tell.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The setup of the program.
    pub setup: Setup,
    flavor: Flavor,
    blocks: usize,
    pools: usize,
    routes: usize,
    buffers: usize,
    checkpoints: usize,
    exports: usize,
    imports: usize,
    host: usize,
}

/// The setups of a flavor.
pub fn setups(flavor: Flavor) -> impl Strategy<Value = Setup> + Clone {
    let machine = (
        prop_oneof![0..8u8, 4..64u8, 0..=255u8],
        prop_oneof![Just(0u8), 0..32u8, Just(255u8)],
        any::<u16>(),
        any::<bool>(),
        prop_oneof![7 => Just(0u8), 1 => 1..6u8],
        prop_oneof![7 => Just(0u8), 1 => 1..5u8],
        any::<bool>(),
        any::<bool>(),
    );
    let machine = machine.prop_map(
        |(capacity, lag, schedule, soc_950, address_space, events, reuse, destroy_waits)| SimSetup {
            capacity,
            lag,
            schedule,
            soc_950,
            address_space,
            events,
            reuse,
            destroy_waits,
        },
    );
    let rest = (any::<bool>(), 0..8u8, 0..=255u8, 0..3u8, 0..100u8, 0..16u8, 0..=255u8, any::<bool>());
    (machine, rest).prop_map(
        move |(
            machine,
            (without_front, divisions, headroom, reservation, decay, wide, max_split, collect),
        )| Setup {
            machine,
            classic: flavor.classic,
            without_front,
            divisions,
            headroom,
            reservation,
            decay,
            wide,
            max_split,
            collect,
        },
    )
}

fn sizes() -> impl Strategy<Value = Size> + Clone {
    (0..16u8, any::<u16>()).prop_map(|(kind, value)| Size { kind, value })
}

/// Sizes without those that no device has.
fn usual_sizes() -> impl Strategy<Value = Size> + Clone {
    (1..15u8, any::<u16>()).prop_map(|(kind, value)| Size { kind, value })
}

type Choice = (u32, BoxedStrategy<Operation>);

impl Plan {
    /// A program's beginning.
    #[must_use]
    pub fn new(setup: Setup, flavor: Flavor) -> Self {
        Self {
            setup,
            flavor,
            blocks: 0,
            pools: 0,
            routes: 0,
            buffers: 0,
            checkpoints: 0,
            exports: 0,
            imports: 0,
            host: 0,
        }
    }

    /// The steps that make sense now.
    pub fn next(&self) -> BoxedStrategy<Step> {
        let mut choices = self.always();
        choices.extend(self.with_blocks());
        choices.extend(self.with_pools());
        choices.extend(self.with_others());
        let operation = Union::new_weighted(choices);
        (prop_oneof![5 => Just(0u8), 1 => Just(1), 1 => Just(2)], operation)
            .prop_map(|(thread, operation)| Step { thread, operation })
            .boxed()
    }

    fn always(&self) -> Vec<Choice> {
        let (b, i) = (any::<bool>, any::<u8>);
        let pool = prop_oneof![2 => Just(None), 1 => any::<u8>().prop_map(Some)];
        let mut choices: Vec<Choice> = vec![
            (
                30,
                (prop_oneof![9 => usual_sizes(), 1 => sizes()], i(), i(), pool)
                    .prop_map(|(size, lane, align, pool)| Operation::Allocate { size, lane, align, pool })
                    .boxed(),
            ),
            (1, (i(), any::<u16>()).prop_map(|(block, offset)| Operation::Misuse { block, offset }).boxed()),
            (2, b().prop_map(|device| Operation::CreateStream { device }).boxed()),
            (2, i().prop_map(|lane| Operation::DestroyStream { lane }).boxed()),
            (2, (i(), i()).prop_map(|(first, then)| Operation::Order { first, then }).boxed()),
            (2, i().prop_map(|lane| Operation::Synchronize { lane }).boxed()),
            (1, b().prop_map(|device| Operation::SynchronizeDevice { device }).boxed()),
            (5, i().prop_map(|ticks| Operation::Pass { ticks }).boxed()),
            (1, i().prop_map(|ticks| Operation::Lag { ticks }).boxed()),
            (2, (b(), i()).prop_map(|(device, keep)| Operation::Trim { device, keep }).boxed()),
            (2, proptest::option::of(b()).prop_map(|device| Operation::Empty { device }).boxed()),
            (1, (b(), i()).prop_map(|(device, parts)| Operation::Fraction { device, parts }).boxed()),
            (
                1,
                (b(), 0..64u8, 0..64u8)
                    .prop_map(|(device, hard, soft)| Operation::Limits { device, hard, soft })
                    .boxed(),
            ),
            (1, (b(), b()).prop_map(|(device, on)| Operation::Peers { device, on }).boxed()),
            (1, b().prop_map(|device| Operation::ResetPeaks { device }).boxed()),
            (1, b().prop_map(|device| Operation::ResetSums { device }).boxed()),
            (1, b().prop_map(|on| Operation::Hook { on }).boxed()),
            (2, b().prop_map(|on| Operation::Callback { on }).boxed()),
            (2, (b(), i()).prop_map(|(device, chunks)| Operation::Crowd { device, chunks }).boxed()),
        ];
        if self.flavor.faults {
            let fail = (i(), i(), i(), b());
            let fail =
                fail.prop_map(|(call, after, code, always)| Operation::Fail { call, after, code, always });
            choices.push((5, fail.boxed()));
            choices.push((4, Just(Operation::Heal).boxed()));
        }
        if self.flavor.threads {
            let threads = (i(), i()).prop_map(|(seed, rounds)| Operation::Threads { seed, rounds });
            choices.push((6, threads.boxed()));
        }
        if self.flavor.resets {
            choices.push((2, b().prop_map(|device| Operation::Reset { device }).boxed()));
        }
        if self.flavor.captures {
            choices.push((4, i().prop_map(|lane| Operation::Capture { lane }).boxed()));
            let end = prop::bool::weighted(0.2).prop_map(|spoil| Operation::EndCapture { spoil });
            choices.push((4, end.boxed()));
        }
        choices
    }

    fn with_blocks(&self) -> Vec<Choice> {
        if self.blocks == 0 {
            return Vec::new();
        }
        let (b, i) = (any::<bool>, any::<u8>);
        vec![
            (20, i().prop_map(|block| Operation::Free { block }).boxed()),
            (6, Just(Operation::FreeLast).boxed()),
            (7, (i(), i()).prop_map(|(block, lane)| Operation::Record { block, lane }).boxed()),
            (2, (i(), i()).prop_map(|(block, user)| Operation::Erase { block, user }).boxed()),
            (
                6,
                (i(), i(), b())
                    .prop_map(|(block, user, write)| Operation::Use { block, user, write })
                    .boxed(),
            ),
            (3, (i(), usual_sizes()).prop_map(|(block, size)| Operation::Grow { block, size }).boxed()),
            (3, (i(), i()).prop_map(|(block, parts)| Operation::Shrink { block, parts }).boxed()),
            (2, i().prop_map(|block| Operation::Spare { block }).boxed()),
            (1, i().prop_map(|block| Operation::Export { block }).boxed()),
        ]
    }

    fn with_pools(&self) -> Vec<Choice> {
        let (b, i) = (any::<bool>, any::<u8>);
        let create = (b(), i(), prop::bool::weighted(0.2), prop::bool::weighted(0.3), i());
        let create = create.prop_map(|(device, tag, no_split, use_on_oom, soft)| Operation::CreatePool {
            device,
            tag,
            no_split,
            use_on_oom,
            soft,
        });
        let mut choices: Vec<Choice> = vec![(if self.pools < 4 { 2 } else { 1 }, create.boxed())];
        if self.pools > 0 {
            let route = (i(), i(), prop::bool::weighted(0.4));
            let route =
                route.prop_map(|(pool, filter, capture)| Operation::BeginRoute { pool, filter, capture });
            choices.extend([
                (1, i().prop_map(|pool| Operation::ReleasePool { pool }).boxed()),
                (3, route.boxed()),
                (2, i().prop_map(|pool| Operation::ReleaseGraph { pool }).boxed()),
                (2, i().prop_map(|pool| Operation::Checkpoint { pool }).boxed()),
                (
                    4,
                    (b(), i(), b())
                        .prop_map(|(device, tag, keep)| Operation::Sleep { device, tag, keep })
                        .boxed(),
                ),
                (4, (b(), i()).prop_map(|(device, tag)| Operation::Wake { device, tag }).boxed()),
            ]);
        }
        if self.routes > 0 {
            choices.push((6, Just(Operation::EndRoute).boxed()));
        }
        if self.checkpoints > 0 {
            choices.push((3, i().prop_map(|checkpoint| Operation::Restore { checkpoint }).boxed()));
        }
        choices
    }

    fn with_others(&self) -> Vec<Choice> {
        let i = any::<u8>;
        let buffer = (i(), usual_sizes(), usual_sizes());
        let buffer = buffer.prop_map(|(lane, max, size)| Operation::CreateBuffer { lane, max, size });
        let mut choices: Vec<Choice> = vec![
            (2, buffer.boxed()),
            (1, (i(), i()).prop_map(|(message, lane)| Operation::Import { message, lane }).boxed()),
            (2, usual_sizes().prop_map(|size| Operation::HostAllocate { size }).boxed()),
        ];
        if self.buffers > 0 {
            choices.extend([
                (
                    4,
                    (i(), sizes())
                        .prop_map(|(buffer, size)| Operation::ResizeBuffer { buffer, size })
                        .boxed(),
                ),
                (1, (i(), i()).prop_map(|(buffer, lane)| Operation::RecordBuffer { buffer, lane }).boxed()),
                (1, i().prop_map(|buffer| Operation::DestroyBuffer { buffer }).boxed()),
            ]);
        }
        if self.exports > 0 {
            choices.push((2, i().prop_map(|export| Operation::ReleaseExport { export }).boxed()));
        }
        if self.imports > 0 {
            choices.push((
                1,
                (i(), i()).prop_map(|(import, lane)| Operation::RecordImport { import, lane }).boxed(),
            ));
            choices.push((1, i().prop_map(|import| Operation::ReleaseImport { import }).boxed()));
        }
        if self.host > 0 {
            choices.extend([
                (2, i().prop_map(|block| Operation::HostFree { block }).boxed()),
                (1, (i(), i()).prop_map(|(block, lane)| Operation::HostRecord { block, lane }).boxed()),
                (1, Just(Operation::HostEmpty).boxed()),
            ]);
        }
        choices
    }

    /// What is there after a step, at most.
    #[must_use]
    pub fn after(mut self, step: &Step) -> Self {
        let less = |count: &mut usize| *count = count.saturating_sub(1);
        match step.operation {
            Operation::Allocate { .. } => self.blocks += 1,
            Operation::Free { .. } | Operation::FreeLast | Operation::Spare { .. } => less(&mut self.blocks),
            Operation::CreatePool { .. } => self.pools += 1,
            Operation::ReleasePool { .. } => less(&mut self.pools),
            Operation::BeginRoute { .. } => self.routes += 1,
            Operation::EndRoute => less(&mut self.routes),
            Operation::CreateBuffer { .. } => self.buffers += 1,
            Operation::DestroyBuffer { .. } => less(&mut self.buffers),
            Operation::Checkpoint { .. } => self.checkpoints += 1,
            Operation::Export { .. } => self.exports += 1,
            Operation::ReleaseExport { .. } => less(&mut self.exports),
            Operation::Import { .. } => self.imports += 1,
            Operation::ReleaseImport { .. } => less(&mut self.imports),
            Operation::HostAllocate { .. } => self.host += 1,
            Operation::HostFree { .. } => less(&mut self.host),
            _ => {}
        }
        self
    }

    /// Whether a step still makes sense after others were taken out before it.
    #[must_use]
    pub fn allows(&self, step: &Step) -> bool {
        match step.operation {
            Operation::Free { .. }
            | Operation::FreeLast
            | Operation::Record { .. }
            | Operation::Erase { .. }
            | Operation::Use { .. }
            | Operation::Grow { .. }
            | Operation::Shrink { .. }
            | Operation::Spare { .. }
            | Operation::Export { .. } => self.blocks > 0,
            Operation::EndRoute => self.routes > 0,
            Operation::ReleasePool { .. } | Operation::BeginRoute { .. } => self.pools > 0,
            Operation::ResizeBuffer { .. } | Operation::DestroyBuffer { .. } => self.buffers > 0,
            _ => true,
        }
    }
}

/// The reference machine of a flavor, which proptest asks for.
macro_rules! reference {
    ($name:ident, $flavor:expr) => {
        /// Programs of that flavor.
        #[derive(Clone, Debug)]
        pub struct $name;

        impl ReferenceStateMachine for $name {
            type State = Plan;
            type Transition = Step;

            fn init_state() -> BoxedStrategy<Plan> {
                setups($flavor).prop_map(|setup| Plan::new(setup, $flavor)).boxed()
            }

            fn transitions(plan: &Plan) -> BoxedStrategy<Step> {
                plan.next()
            }

            fn apply(plan: Plan, step: &Step) -> Plan {
                plan.after(step)
            }

            fn preconditions(plan: &Plan, step: &Step) -> bool {
                plan.allows(step)
            }
        }
    };
}

const PLAIN: Flavor =
    Flavor { faults: false, classic: false, threads: false, resets: false, captures: false };

reference!(Chunks, PLAIN);
reference!(ChunksAndFaults, Flavor { faults: true, ..PLAIN });
reference!(Classic, Flavor { classic: true, ..PLAIN });
reference!(ClassicAndFaults, Flavor { faults: true, classic: true, ..PLAIN });
reference!(Threads, Flavor { faults: true, threads: true, ..PLAIN });
reference!(Resets, Flavor { resets: true, ..PLAIN });
reference!(ResetsAndFaults, Flavor { faults: true, resets: true, captures: true, ..PLAIN });
reference!(Captures, Flavor { captures: true, ..PLAIN });
