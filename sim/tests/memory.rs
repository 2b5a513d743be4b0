//! Bytes and accounting: aliases, content that outlives mappings, both backings alike.

use ascend_sim::codes::{self, attr, policy};
use ascend_sim::{BackingMode, Location, PhysicalProp, Sim, SimConfig, Soc};

const HUGE: u64 = 2 << 20;

fn machine(backing: BackingMode) -> Sim {
    Sim::new(SimConfig { devices: 2, capacity: 256 << 20, backing, ..SimConfig::default() })
}

fn both() -> [Sim; 2] {
    [machine(BackingMode::Mapped), machine(BackingMode::MetadataOnly)]
}

fn chunk(sim: &Sim, size: u64) -> u64 {
    sim.malloc_physical(size, &PhysicalProp::device(0), 0).unwrap()
}

fn bytes<const N: usize>(sim: &Sim, address: u64) -> [u8; N] {
    let mut out = [0; N];
    sim.read_bytes(address, &mut out).unwrap();
    out
}

#[test]
fn aliases_show_the_same_bytes() {
    for sim in both() {
        let (one, two) = (sim.reserve(8 * HUGE).unwrap(), sim.reserve(8 * HUGE).unwrap());
        let handle = chunk(&sim, 2 * HUGE);
        sim.map(one, 2 * HUGE, 0, handle, 0).unwrap();
        sim.map(one + 4 * HUGE, 2 * HUGE, 0, handle, 0).unwrap();
        sim.map(two + HUGE, 2 * HUGE, 0, handle, 0).unwrap();
        sim.write_bytes(one + HUGE - 2, b"edge").unwrap();
        assert_eq!(&bytes(&sim, one + 5 * HUGE - 2), b"edge");
        assert_eq!(&bytes(&sim, two + 2 * HUGE - 2), b"edge");
        assert_eq!(sim.physical_bytes(0), 2 * HUGE);
    }
}

#[test]
fn content_survives_unmap_and_moves_with_its_chunk() {
    for sim in both() {
        let range = sim.reserve(64 * HUGE).unwrap();
        let (a, b) = (chunk(&sim, HUGE), chunk(&sim, HUGE));
        sim.map(range, HUGE, 0, a, 0).unwrap();
        sim.map(range + HUGE, HUGE, 0, b, 0).unwrap();
        sim.fill_bytes(range, HUGE, 7).unwrap();
        sim.write_bytes(range + HUGE + 100, b"second").unwrap();
        sim.unmap(range).unwrap();
        assert_eq!(sim.read_bytes(range, &mut [0]), Err(codes::RT_PARAM_INVALID));
        sim.unmap(range + HUGE).unwrap();
        sim.map(range + 40 * HUGE, HUGE, 0, b, 0).unwrap();
        sim.map(range + 41 * HUGE, HUGE, 0, a, 0).unwrap();
        assert_eq!(&bytes(&sim, range + 40 * HUGE + 100), b"second");
        assert_eq!(bytes::<4>(&sim, range + 41 * HUGE), [7; 4]);
        assert_eq!(bytes::<4>(&sim, range + 42 * HUGE - 4), [7; 4]);
    }
}

#[test]
fn mapped_memory_can_be_used_through_its_address() {
    let sim = machine(BackingMode::Mapped);
    if !sim.is_mapped() {
        // A machine that refuses real mappings says so and goes on without.
        assert!(sim.notes().iter().any(|note| note.contains("metadata-only")), "{:?}", sim.notes());
        return;
    }
    let range = sim.reserve(4 * HUGE).unwrap();
    let handle = chunk(&sim, HUGE);
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    sim.map(range + 2 * HUGE, HUGE, 0, handle, 0).unwrap();
    let pointer = std::ptr::with_exposed_provenance_mut::<u64>(range as usize);
    let alias = std::ptr::with_exposed_provenance::<u64>((range + 2 * HUGE) as usize);
    // SAFETY: both ranges are mapped, aligned, and only this thread uses them.
    let seen = unsafe {
        pointer.write_volatile(0x1234_5678);
        alias.read_volatile()
    };
    assert_eq!(seen, 0x1234_5678);
    assert_eq!(bytes(&sim, range), 0x1234_5678_u64.to_ne_bytes());
}

#[test]
fn physical_memory_is_counted_until_its_last_reference() {
    for sim in both() {
        sim.set_device(0).unwrap();
        let free = || sim.mem_info(attr::HBM).unwrap().0;
        let range = sim.reserve(64 * HUGE).unwrap();
        let handle = chunk(&sim, 8 * HUGE);
        assert_eq!(free(), (256 << 20) - 8 * HUGE);
        sim.map(range, 8 * HUGE, 0, handle, 0).unwrap();
        assert_eq!(sim.retain_handle(range), Ok(handle));
        sim.free_physical(handle).unwrap();
        sim.free_physical(handle).unwrap();
        assert_eq!(sim.free_physical(handle), Err(codes::RT_PARAM_INVALID));
        assert_eq!(free(), (256 << 20) - 8 * HUGE);
        sim.unmap(range).unwrap();
        assert_eq!(free(), 256 << 20);
        assert_eq!((sim.physical_bytes(0), sim.physical_peak(0)), (0, 8 * HUGE));
        sim.reset_peak(0);
        assert_eq!(sim.physical_peak(0), 0);
    }
}

#[test]
fn blocks_take_whole_pages_of_their_policy() {
    for sim in both() {
        sim.set_device(1).unwrap();
        let mut last = 0;
        let mut grown = |address: Result<u64, i32>| {
            address.unwrap();
            let used = sim.physical_bytes(1);
            used - std::mem::replace(&mut last, used)
        };
        assert_eq!(grown(sim.malloc(1, policy::HUGE_FIRST)), 4096);
        assert_eq!(grown(sim.malloc(4096, policy::HUGE_FIRST)), 8192, "32 bytes of pad");
        assert_eq!(grown(sim.malloc_align32(4096, policy::HUGE_FIRST)), 4096);
        assert_eq!(grown(sim.malloc(HUGE, policy::HUGE_FIRST)), 2 * HUGE, "32 bytes of pad");
        assert_eq!(grown(sim.malloc_align32(HUGE, policy::HUGE_FIRST)), HUGE);
        assert_eq!(grown(sim.malloc(1, policy::HUGE_ONLY)), HUGE);
        assert_eq!(grown(sim.malloc(3 << 20, policy::NORMAL_ONLY)), (3 << 20) + 4096);
    }
    let sim = Sim::new(SimConfig { soc: Soc::Ascend950, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    sim.malloc(HUGE, policy::HUGE_FIRST).unwrap();
    assert_eq!(sim.physical_bytes(0), HUGE, "no pad");
}

#[test]
fn a_large_device_costs_only_what_is_written() {
    let sim = Sim::new(SimConfig { devices: 8, capacity: 64 << 30, ..SimConfig::default() });
    assert!(!sim.is_mapped());
    assert!(sim.notes().iter().any(|note| note.contains("metadata-only mode")), "{:?}", sim.notes());
    let range = sim.reserve(128 << 30).unwrap();
    let mut start = range;
    while sim.physical_bytes(0) < 64 << 30 {
        let handle = chunk(&sim, 256 << 20);
        sim.map(start, 256 << 20, 0, handle, 0).unwrap();
        start += 256 << 20;
    }
    assert_eq!(sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0), Err(codes::RT_MEMORY_ALLOCATION));
    sim.fill_bytes(range + 5, (64 << 30) - 10, 3).unwrap();
    sim.copy_bytes(range + (32 << 30), range, 1 << 30).unwrap();
    assert_eq!(bytes::<6>(&sim, range + (32 << 30)), [0, 0, 0, 0, 0, 3]);
    assert_eq!(bytes::<1>(&sim, range + (64 << 30) - 6), [3]);
}

#[test]
fn addresses_come_from_the_device_window() {
    let sim = machine(BackingMode::MetadataOnly);
    assert_eq!(sim.reserve(1), Ok(0x12c0_0000_0000));
    assert_eq!(sim.reserve(5377 << 30), Err(codes::RT_MEMORY_ALLOCATION));
    let big = sim.reserve(513 << 20).unwrap();
    assert_eq!(big % (1 << 30), 0);
    assert_eq!(sim.reserved_bytes(), HUGE + (1 << 30));
    let sim = machine(BackingMode::MetadataOnly);
    sim.reserve(5376 << 30).unwrap();
    assert_eq!(sim.reserve(1), Err(codes::RT_MEMORY_ALLOCATION));
    let sim = machine(BackingMode::MetadataOnly);
    let fit = (0..100).take_while(|_| sim.reserve(72 << 30).is_ok()).count();
    assert_eq!(fit, 74);
}

#[test]
fn a_refused_expectation_is_written_out() {
    let sim = machine(BackingMode::MetadataOnly);
    let taken = sim.reserve(HUGE).unwrap();
    let mut start = 1;
    assert_eq!(sim.reserve_into(&mut start, HUGE, 0, taken, 0), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert_eq!(start, taken);
    assert_eq!(sim.reserve_into(&mut start, 9 << 40, 0, 0, 0), Err(codes::RT_MEMORY_ALLOCATION));
    assert_eq!(start, taken);
}

#[test]
fn access_ends_with_the_mapping() {
    let sim = machine(BackingMode::MetadataOnly);
    let range = sim.reserve(HUGE).unwrap();
    let handle = chunk(&sim, HUGE);
    let peer = ascend_sim::AccessDescriptor { flags: 3, location: Location::device(1) };
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    assert_eq!(sim.get_access(range, Location::device(0)), Ok(3));
    assert_eq!(sim.get_access(range, Location::device(1)), Ok(0));
    sim.set_access(range, HUGE, &[peer]).unwrap();
    assert_eq!(sim.get_access(range + 5, Location::device(1)), Ok(3));
    sim.unmap(range).unwrap();
    sim.map(range, HUGE, 0, handle, 0).unwrap();
    assert_eq!(sim.get_access(range, Location::device(1)), Ok(0));
}

/// One random program on a machine with real mappings and on one with tables: every answer, every
/// byte and every count must be the same.
#[test]
fn both_backings_are_one_model() {
    let (mut maps, mut reads) = (0, 0);
    for seed in 0..12 {
        let pair = both();
        let mut programs = pair.each_ref().map(|sim| Program::new(sim, seed));
        for step in 0..600 {
            let [mapped, tables] = programs.each_mut().map(Program::step);
            assert_eq!(mapped, tables, "seed {seed}, step {step}");
            reads += usize::from(tables.code.is_ok() && tables.bytes.iter().any(|&byte| byte != 0));
        }
        maps += pair[1].mapping_count();
    }
    assert!(maps > 50 && reads > 50, "the programs did too little: {maps} mappings, {reads} reads");
}

/// What one step of a program shows.
#[derive(Debug, PartialEq)]
struct Shown {
    code: Result<u64, i32>,
    bytes: Vec<u8>,
    used: [u64; 2],
    free: u64,
    mappings: usize,
}

struct Program<'a> {
    sim: &'a Sim,
    random: fastrand::Rng,
    base: u64,
    ranges: Vec<u64>,
    chunks: Vec<u64>,
    blocks: Vec<u64>,
}

impl<'a> Program<'a> {
    fn new(sim: &'a Sim, seed: u64) -> Self {
        sim.set_device(0).unwrap();
        let base = sim.reserve(1).unwrap();
        let random = fastrand::Rng::with_seed(seed);
        Self { sim, random, base, ranges: vec![base], chunks: vec![1], blocks: vec![base] }
    }

    fn address(&mut self) -> u64 {
        let range = self.ranges[self.random.usize(..self.ranges.len())];
        let block = self.blocks[self.random.usize(..self.blocks.len())];
        let near = if self.random.u8(..5) == 0 { block } else { range + self.random.u64(..12) * HUGE };
        if self.random.u8(..3) == 0 { near + self.random.u64(..5000) } else { near }
    }

    fn step(&mut self) -> Shown {
        let sim = self.sim;
        let mut bytes = Vec::new();
        let (one, two) = (self.address(), self.address());
        let handle = self.chunks[self.random.usize(..self.chunks.len())];
        let len = self.random.u64(1..1 << 21) >> self.random.u32(..21);
        let huge = self.random.u64(1..4) * HUGE;
        let value = self.random.u8(..3);
        let code = match self.random.u8(..20) {
            0 => sim.reserve(huge * 4).map(|start| {
                self.ranges.push(start);
                start - self.base
            }),
            1 => sim.release(one).map(|()| 0),
            2..4 => {
                let device = u32::from(self.random.u8(..10) == 0);
                let made = sim.malloc_physical(huge, &PhysicalProp::device(device), 0);
                made.inspect(|&handle| self.chunks.push(handle))
            }
            4 => sim.free_physical(handle).map(|()| 0),
            5..10 => sim.map(one, huge, 0, handle, 0).map(|()| 0),
            10 => sim.unmap(one).map(|()| 0),
            11 => sim.malloc(len, u32::from(self.random.u8(..4))).map(|block| {
                self.blocks.push(block);
                0
            }),
            12 => sim.free(one).map(|()| 0),
            13 => sim.fill_bytes(one, len, value).map(|()| 0),
            14..16 => {
                let data: Vec<u8> = (0..len.min(9000)).map(|_| self.random.u8(..)).collect();
                sim.write_bytes(one, &data).map(|()| 0)
            }
            16 => sim.copy_bytes(one, two, len).map(|()| 0),
            _ => {
                bytes.resize(len as usize, 0);
                sim.read_bytes(one, &mut bytes).map(|()| 0)
            }
        };
        let used = [sim.physical_bytes(0), sim.physical_bytes(1)];
        let free = sim.mem_info(attr::HBM).unwrap().0;
        Shown { code, bytes, used, free, mappings: sim.mapping_count() }
    }
}
