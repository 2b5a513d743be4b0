//! A library of scenarios in which every call of the driver fails, once and from then on, at several places and
//! with each plausible code; those that `core_faults.rs` does not have: callbacks, sleep, growing buffers,
//! captures, sharing, imports of another process's blocks, page-locked memory, pools, limits, streams that end,
//! resets.
//!
//! A scenario is a program of the package `ascend-alloc-proof` and an operation. While the operation runs a call fails;
//! whatever it answers must be an answer that the failure explains, with its code. Then nothing fails any more: all
//! invariants hold, the same operation is done again, everything is given back, and nothing is left.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, Error};
use ascend_sim::{BackingMode, Sim, SimConfig};
use proof::machine::SimSetup;
use proof::operation::{FAILING, Operation as Do, Size, Step};
use proof::partner::{self, Partner};
use proof::setup::Setup;
use proof::world::{Ground, World};

/// Codes a call may fail with: no memory, not supported, refused by the driver, a wrong argument.
const CODES: [i32; 4] = [207_001, 207_000, 507_899, 107_000];

/// Calls that random programs do not let fail.
const MORE: [&str; 1] = ["aclrtMemImportFromShareableHandle"];

/// All calls that fail here.
fn failing() -> impl Iterator<Item = &'static str> {
    FAILING.into_iter().chain(MORE)
}

/// Another process whose blocks are imported; it ends when this one does.
static PARTNER: LazyLock<Partner> = LazyLock::new(|| Partner::start("the_other_process"));

#[test]
#[ignore = "the part of another process, started by the other tests"]
fn the_other_process() {
    partner::act();
}

/// Streams of device 0: the default one and two more.
const DEFAULT: u8 = 0;
const ONE: u8 = 1;
const TWO: u8 = 2;

struct Scenario {
    name: &'static str,
    /// Memory of a device in MiB.
    capacity: u8,
    classic: bool,
    before: Vec<Do>,
    operation: Do,
}

fn mib(mib: u16) -> Size {
    Size { kind: 14, value: mib / 2 }
}

fn block(size: u16, lane: u8) -> Do {
    Do::Allocate { size: mib(size), lane, align: 1, pool: None }
}

fn pooled(size: u16, lane: u8) -> Do {
    Do::Allocate { size: mib(size), lane, align: 1, pool: Some(0) }
}

fn pool(use_on_oom: bool, no_split: bool) -> Do {
    Do::CreatePool { device: false, tag: 0, no_split, use_on_oom, soft: 0 }
}

fn buffer(max: u16, size: u16) -> Do {
    Do::CreateBuffer { lane: ONE, max: mib(max), size: mib(size) }
}

fn used(block: u8) -> Do {
    Do::Use { block, user: 0, write: true }
}

fn scenario(name: &'static str, before: Vec<Do>, operation: Do) -> Scenario {
    Scenario { name, capacity: 64, classic: false, before, operation }
}

fn setup(scenario: &Scenario) -> Setup {
    let machine = SimSetup {
        capacity: (scenario.capacity - 16) / 4,
        lag: 255,
        schedule: 1,
        soc_950: true,
        address_space: 0,
        events: 0,
        reuse: false,
        destroy_waits: true,
    };
    Setup {
        machine,
        classic: scenario.classic,
        without_front: false,
        divisions: 9,
        headroom: 2,
        reservation: 0,
        decay: 0,
        wide: 0,
        max_split: 0,
        collect: false,
    }
}

/// Callbacks, limits, streams.
fn under_pressure() -> Vec<Scenario> {
    let spare = vec![Do::Callback { on: true }, block(40, ONE), used(0), Do::Spare { block: 0 }];
    let busy =
        vec![block(20, ONE), Do::Record { block: 0, lane: TWO }, block(20, TWO), Do::Free { block: 0 }];
    let mut ending = busy.clone();
    ending.push(Do::DestroyStream { lane: TWO });
    vec![
        scenario("a callback frees what a request lacks", spare, block(40, TWO)),
        scenario("a request waits for two streams", busy.clone(), block(38, DEFAULT)),
        scenario("a stream with waiting blocks ends", busy.clone(), Do::DestroyStream { lane: TWO }),
        scenario("a request after a stream has ended", ending, block(38, DEFAULT)),
        scenario(
            "a request within a limit",
            vec![
                block(30, ONE),
                used(0),
                Do::Free { block: 0 },
                Do::Limits { device: false, hard: 9, soft: 4 },
            ],
            block(34, TWO),
        ),
        scenario("giving back what streams still use", busy, Do::Empty { device: Some(false) }),
        Scenario {
            classic: true,
            ..scenario(
                "a fixed block where others are cached",
                vec![block(24, ONE), used(0), block(20, ONE), Do::Free { block: 0 }, Do::Free { block: 0 }],
                block(40, TWO),
            )
        },
        scenario(
            "memory that others have taken",
            vec![Do::Crowd { device: false, chunks: 28 }],
            block(10, ONE),
        ),
    ]
}

/// Pools, captures, sleep.
fn in_pools() -> Vec<Scenario> {
    let awake = vec![
        pool(false, false),
        pooled(8, ONE),
        used(0),
        pooled(4, TWO),
        pooled(6, ONE),
        Do::Free { block: 1 },
    ];
    let asleep = |keep| [awake.clone(), vec![Do::Sleep { device: false, tag: 0, keep }]].concat();
    let capture =
        vec![pool(false, false), Do::BeginRoute { pool: 0, filter: 0, capture: true }, block(8, ONE)];
    let fixed = [capture.clone(), vec![Do::EndRoute, Do::Free { block: 0 }]].concat();
    let lending = vec![pool(true, false), pooled(40, ONE), used(0), Do::Free { block: 0 }];
    let unsplit = vec![
        pool(false, true),
        pooled(20, ONE),
        pooled(20, ONE),
        Do::Free { block: 0 },
        Do::Free { block: 0 },
    ];
    let short = [asleep(true), vec![block(50, ONE), used(2), Do::Free { block: 2 }]].concat();
    let mut last = asleep(true);
    last.push(Do::Free { block: 0 });
    vec![
        scenario("the first block of a pool", vec![pool(false, false)], pooled(10, ONE)),
        scenario(
            "a pool falls asleep with its content",
            awake.clone(),
            Do::Sleep { device: false, tag: 0, keep: true },
        ),
        scenario(
            "a pool falls asleep without",
            awake.clone(),
            Do::Sleep { device: false, tag: 0, keep: false },
        ),
        scenario("a pool wakes with its content", asleep(true), Do::Wake { device: false, tag: 0 }),
        scenario("a pool wakes without", asleep(false), Do::Wake { device: false, tag: 0 }),
        scenario("a pool wakes where memory must move", short, Do::Wake { device: false, tag: 0 }),
        scenario("the last block of a sleeping pool is freed", last, Do::FreeLast),
        scenario("a request during a capture", capture, block(20, TWO)),
        scenario("a request that a graph's pool cannot help", fixed, block(60, TWO)),
        scenario("a pool lends its block", lending, block(30, ONE)),
        scenario("unsplit blocks give their chunks", unsplit, block(50, TWO)),
        scenario("a pool is let go", awake, Do::ReleasePool { pool: 0 }),
    ]
}

/// Growing buffers, sharing, peers, page-locked memory.
fn in_other_memory() -> Vec<Scenario> {
    let cut = vec![
        buffer(60, 30),
        Do::RecordBuffer { buffer: 0, lane: TWO },
        Do::ResizeBuffer { buffer: 0, size: mib(4) },
    ];
    let exported = vec![block(6, ONE), block(6, ONE), Do::Export { block: 0 }, Do::Free { block: 0 }];
    let ended = [exported.clone(), vec![Do::ReleaseExport { export: 0 }]].concat();
    let host = |bytes| Do::HostAllocate { size: mib(bytes) };
    let recorded = vec![host(4), Do::HostRecord { block: 0, lane: ONE }, block(2, ONE), used(0)];
    let rested =
        [recorded.clone(), vec![Do::HostFree { block: 0 }, host(2), Do::HostFree { block: 0 }]].concat();
    vec![
        scenario("a growing buffer is made", vec![], buffer(40, 10)),
        scenario("a buffer grows", vec![buffer(40, 4)], Do::ResizeBuffer { buffer: 0, size: mib(30) }),
        scenario(
            "a buffer grows where memory must move",
            vec![block(50, TWO), used(0), Do::Free { block: 0 }, buffer(60, 4)],
            Do::ResizeBuffer { buffer: 0, size: mib(40) },
        ),
        scenario(
            "a buffer grows over what another stream uses",
            cut,
            Do::ResizeBuffer { buffer: 0, size: mib(30) },
        ),
        scenario("a buffer goes", vec![buffer(40, 20)], Do::DestroyBuffer { buffer: 0 }),
        scenario("a block is exported", vec![block(10, ONE)], Do::Export { block: 0 }),
        scenario(
            "memory is given back while an export holds some",
            exported.clone(),
            Do::Empty { device: None },
        ),
        scenario("an export of a freed block ends", exported, Do::ReleaseExport { export: 0 }),
        scenario("named chunks are given back", ended, Do::Empty { device: None }),
        scenario("peers get access", vec![block(10, ONE)], Do::Peers { device: false, on: true }),
        scenario("a request with peers", vec![Do::Peers { device: false, on: true }], block(10, ONE)),
        scenario("the first page-locked block", vec![], host(4)),
        scenario("a page-locked block that a stream uses is freed", recorded, Do::HostFree { block: 0 }),
        scenario("page-locked memory is given back", rested.clone(), Do::HostEmpty),
        scenario("a page-locked block where one waits", rested, host(6)),
    ]
}

fn step(world: &mut World, operation: Do) {
    world.step(&Step { thread: 0, operation });
}

/// Blocks of another process: one of ten chunks and one that begins in the middle of a chunk.
fn of_another_process() -> Vec<Scenario> {
    let import = |message| Do::Import { message, lane: ONE };
    let used = vec![import(3), Do::RecordImport { import: 0, lane: TWO }, import(1)];
    let given_up = [used.clone(), vec![Do::ReleaseImport { import: 0 }]].concat();
    vec![
        scenario("a block of another process is mapped", vec![], import(3)),
        scenario("part of a chunk is mapped", vec![block(10, ONE)], import(1)),
        scenario("a block is mapped a second time", vec![import(3)], import(3)),
        scenario("an import with peers", vec![Do::Peers { device: false, on: true }], import(3)),
        scenario("peers get access to an import", vec![import(3)], Do::Peers { device: false, on: true }),
        scenario("an import that two streams use is given up", used, Do::ReleaseImport { import: 0 }),
        scenario("what was given up is unmapped", given_up.clone(), Do::Empty { device: None }),
        scenario("a block is mapped while it is unmapped", given_up, import(3)),
    ]
}

fn prepared(scenario: &Scenario, ground: &Ground) -> World {
    let mut world = World::new(ground, &setup(scenario)).expect("an allocator");
    for &operation in &scenario.before {
        step(&mut world, operation);
    }
    world
}

/// How often each call is made when nothing fails.
fn calls_of(scenario: &Scenario, ground: &Ground) -> Vec<(&'static str, u64)> {
    let mut world = prepared(scenario, ground);
    world.check(scenario.name);
    let count = |world: &World, call: &str| world.count(call).expect("it is a simulator");
    let before: Vec<u64> = failing().map(|call| count(&world, call)).collect();
    step(&mut world, scenario.operation);
    let calls = failing().zip(before);
    let calls = calls.map(|(call, before)| (call, count(&world, call) - before)).collect();
    world.check(scenario.name);
    world.close();
    calls
}

/// Plays a scenario with one failure.
fn play(scenario: &Scenario, ground: &Ground, call: &str, k: u64, code: i32, always: bool) {
    let what = format!("{}: call {k} of {call} answers {code}, always: {always}", scenario.name);
    let play = std::panic::AssertUnwindSafe(|| {
        let mut world = prepared(scenario, ground);
        world.fail(call, k, code, always);
        step(&mut world, scenario.operation);
        step(&mut world, Do::Heal);
        world.check("after the failure");
        step(&mut world, scenario.operation);
        world.check("the second time");
        world.close();
    });
    assert!(std::panic::catch_unwind(play).is_ok(), "{what}");
}

/// Plays all failures of these scenarios, and says how many there were; the calls that failed.
fn play_all(scenarios: &[Scenario], ground: &Ground) -> BTreeSet<&'static str> {
    let mut points = BTreeSet::new();
    let mut reached = BTreeSet::new();
    for scenario in scenarios {
        for (call, count) in calls_of(scenario, ground) {
            if count == 0 {
                continue;
            }
            reached.insert(call);
            // The first, the second, one in the middle, the last.
            let places: BTreeSet<u64> =
                [1, 2, count.div_ceil(2), count].into_iter().map(|k| k.clamp(1, count)).collect();
            for code in CODES {
                points.insert((scenario.name, call, code));
                places.iter().for_each(|&k| play(scenario, ground, call, k, code, false));
                play(scenario, ground, call, 1, code, true);
            }
        }
    }
    println!("{} points of scenario, call and code; calls that failed: {reached:?}", points.len());
    assert!(points.len() > 100, "only {} points", points.len());
    reached
}

#[test]
fn requests_under_pressure() {
    play_all(&under_pressure(), &Ground::sim());
}

#[test]
fn pools_captures_and_sleep() {
    play_all(&in_pools(), &Ground::sim());
}

#[test]
fn buffers_sharing_and_page_locked_memory() {
    play_all(&in_other_memory(), &Ground::sim());
}

#[test]
fn imports_of_another_process() {
    let ground = Ground { messages: PARTNER.messages.clone(), ..Ground::sim() };
    let reached = play_all(&of_another_process(), &ground);
    for call in
        MORE.into_iter().chain(["aclrtMapMem", "aclrtUnmapMem", "aclrtFreePhysical", "aclrtMemSetAccess"])
    {
        assert!(reached.contains(call), "{call} was not made");
    }
}

/// A device that was reset: the request that sets it up again may fail at every call, and the next one succeeds.
#[test]
fn requests_after_a_reset() {
    let mut points = 0;
    for call in FAILING {
        for code in CODES {
            let sim = Sim::new(SimConfig {
                capacity: 64 << 20,
                backing: BackingMode::MetadataOnly,
                ..SimConfig::default()
            });
            sim.set_device(0).unwrap();
            let config = Config::parse("check_level:3").unwrap();
            let allocator = DeviceAllocator::new(config, Arc::new(SimDriver::new(sim.clone()))).unwrap();
            let stale = allocator.allocate(0, 10 << 20, 0, Stream(0)).unwrap();
            sim.reset_device(0).unwrap();
            allocator.device_was_reset(0).unwrap();
            sim.set_device(0).unwrap();
            sim.fail(call, 1, code, true).unwrap();
            match allocator.allocate(0, 20 << 20, 0, Stream(0)) {
                Ok(block) => allocator.deallocate(block).unwrap(),
                Err(Error::Driver(error)) => assert_eq!((error.call, error.code), (call, code), "{error}"),
                Err(Error::OutOfMemory(report)) => assert_eq!(code, 207_001, "{report}"),
                Err(error) => panic!("{call} answers {code}: {error}"),
            }
            sim.clear_faults();
            allocator.check().unwrap();
            let block = allocator.allocate(0, 20 << 20, 0, Stream(0)).unwrap();
            assert_ne!(block, stale);
            allocator.deallocate(stale).unwrap();
            allocator.deallocate(block).unwrap();
            allocator.empty_cache(None).unwrap();
            assert_eq!(allocator.stats(0).unwrap().reserved_bytes.all.current, 0);
            points += 1;
        }
    }
    println!("{points} points of call and code after a reset");
}
