//! Nonsense in every argument: calls may refuse, but never panic, and the books stay right.

use ascend_sim::{
    AccessDescriptor, BackingMode, CaptureMode, Location, MallocAttribute, PhysicalProp, PoolProps, Sim,
    SimConfig, Soc, Task,
};

const HUGE: u64 = 2 << 20;

struct Nonsense {
    random: fastrand::Rng,
    /// Numbers that once were addresses or handles.
    seen: Vec<u64>,
}

impl Nonsense {
    fn number(&mut self) -> u64 {
        let near = self.seen[self.random.usize(..self.seen.len())];
        match self.random.u8(..12) {
            0 => 0,
            1 => self.random.u64(..40),
            2 => u64::MAX - self.random.u64(..40),
            3 => 1 << self.random.u32(..64),
            4 => u64::MAX << self.random.u32(..64),
            5 => self.random.u64(..),
            6 => self.random.u64(..8) * HUGE,
            7 => near.wrapping_add(self.random.u64(..8) * HUGE),
            8 => near.wrapping_sub(1),
            _ => near,
        }
    }

    fn small(&mut self) -> u32 {
        if self.random.bool() { self.random.u32(..18) } else { self.number() as u32 }
    }

    fn place(&mut self) -> Location {
        Location { id: if self.random.bool() { 0 } else { self.small() }, kind: self.random.u32(..6) }
    }

    fn prop(&mut self) -> PhysicalProp {
        let usual = PhysicalProp::device(self.random.u32(..2));
        let odd = PhysicalProp { attr: self.small(), location: self.place(), ..usual };
        if self.random.u8(..3) == 0 { odd } else { usual }
    }

    fn size(&mut self) -> u64 {
        if self.random.bool() { self.random.u64(1..6) * HUGE } else { self.number() }
    }

    fn keep(&mut self, made: Result<u64, i32>) -> Result<(), i32> {
        made.map(|number| self.seen.push(number))
    }

    /// Makes one call and says whether it was accepted.
    fn call(&mut self, sim: &Sim) -> bool {
        let (one, two, size) = (self.number(), self.number(), self.size());
        let answer = match self.random.u8(..28) {
            0..3 => {
                let made = sim.reserve(size);
                self.keep(made)
            }
            3 => {
                let mut start = 0;
                let answer = sim.reserve_into(&mut start, size, two, one, self.random.u64(..3));
                self.keep(answer.map(|()| start))
            }
            4 => sim.release(one),
            5..8 => {
                let made = sim.malloc_physical(size, &self.prop(), u64::from(self.random.u8(..9) == 0));
                self.keep(made)
            }
            8 => sim.free_physical(one),
            9..13 => sim.map(one, size, 0, two, 0),
            13 => sim.unmap(one),
            14 => sim.granularity(&self.prop(), self.small()).map(drop),
            15 => {
                let grant = AccessDescriptor { flags: 3, location: self.place() };
                sim.set_access(one, size, &vec![grant; self.random.usize(..3)])
            }
            16 => {
                let made = sim.retain_handle(one);
                self.keep(made)
            }
            17 => sim.address_range(one).and(sim.pointer_attributes(one)).map(drop),
            18 => {
                let made = if self.random.bool() {
                    sim.malloc(size, two as u32)
                } else {
                    sim.malloc_host(size % 9000)
                };
                self.keep(made)
            }
            19 => sim.free(one),
            20 => sim.host_register_v2(one, size, self.small()).and(sim.host_unregister(two)),
            21 => sim.fill_bytes(one, size, 5),
            22 => sim.copy_bytes(one, two, size.min(HUGE)),
            23 => sim.write_bytes(one, &[1; 300]),
            24 => {
                let made =
                    if self.random.bool() { sim.create_stream() } else { sim.create_event_ex(self.small()) };
                self.keep(made)
            }
            25 => sim.record_event(one, two).and(sim.stream_wait_event(two, one)),
            26 => sim.submit(one, Task::new("task").writes(one, size, two).reads(two, size, 0)),
            27 if self.random.bool() => self.newer(sim, one, two, size),
            _ => self.rare(sim, one, two),
        };
        answer.is_ok()
    }

    fn newer(&mut self, sim: &Sim, one: u64, two: u64, size: u64) -> Result<(), i32> {
        let (device, peer) = (one as i32 & 3, two as i32 & 3);
        match self.random.u8(..17) {
            0 => sim.mem_flush(one, size).and(sim.mem_invalidate(two, size)),
            1 => {
                let config = [MallocAttribute { kind: self.small(), value: one }; 2];
                let made = if self.random.bool() {
                    sim.malloc_with_config(size, self.small(), &config)
                } else {
                    sim.malloc_host_with_config(size % 9000, &config)
                };
                self.keep(made)
            }
            2 => {
                let props = PoolProps {
                    allocation_type: 0,
                    handle_type: 0,
                    location: self.place(),
                    max_size: size,
                    reserved_zero: self.random.u8(..9) != 0,
                };
                let made = sim.pool_create(&props);
                self.keep(made)
            }
            3..6 => {
                let made = sim.pool_malloc_async(size % (9 * HUGE), one, two);
                self.keep(made)
            }
            6 => sim.pool_free_async(one, two),
            7 => sim.pool_trim_to(one, size).and(sim.pool_set_attr(one, self.small(), two)),
            8 => sim.pool_destroy(one).and(sim.pool_attr(two, self.small()).map(drop)),
            9 => {
                let made = sim.export_handle(one, u32::from(self.random.u8(..5) == 0), self.random.u64(..3));
                self.keep(made)
            }
            10 => sim.import_handle(one, device).map(drop).and(sim.set_share_pids(two, &[1])),
            11 => {
                let key = sim.ipc_export_key(one, size, 65, 0)?;
                sim.ipc_close(&key).and(sim.ipc_import(&key, 0).map(drop))
            }
            12 => sim.enable_peer_access(device, 0).and(sim.map_p2p(one, size, peer, 0)),
            13 => sim.capture_begin_raw(one, device).and(sim.task_group_begin(one)),
            14 => sim.task_group_end(one).and_then(|group| sim.task_update_begin(two, group)),
            15 => sim.set_stream_attribute(one, self.small(), two).and(sim.stream_id(two).map(drop)),
            _ => sim.check_memory_type(&[one, two], self.small(), 0).and(sim.stream_abort(one)),
        }
    }

    fn rare(&mut self, sim: &Sim, one: u64, two: u64) -> Result<(), i32> {
        match self.random.u8(..12) {
            0 => sim.set_device(one as i32),
            1 => sim.reset_device(one as i32),
            2 => sim.set_current_context(one),
            3 => sim.destroy_context(one),
            4 => {
                let made = sim.create_context(one as i32 & 3);
                self.keep(made)
            }
            5 => sim.capture_begin(one, CaptureMode::Relaxed).and(sim.capture_end(two).map(drop)),
            6 => sim.destroy_stream(one).and(sim.destroy_event(two)),
            7 => sim.synchronize_stream(one).and(sim.query_event_status(two).map(drop)),
            8 => sim.free_host(one),
            9 => sim.mem_info(one as u32).map(drop),
            10 => {
                sim.hold(one, two);
                sim.unhold(one, two).then_some(()).ok_or(0)
            }
            _ => {
                sim.set_foreign_bytes(0, self.random.u64(..40) * HUGE);
                sim.set_device(0)
            }
        }
    }
}

#[test]
fn nonsense_is_refused_and_the_books_stay_right() {
    for seed in 0..6 {
        let backing = [BackingMode::Mapped, BackingMode::MetadataOnly][seed as usize % 2];
        let soc = [Soc::Ascend910B, Soc::Ascend950][seed as usize / 2 % 2];
        let sim =
            Sim::new(SimConfig { devices: 2, capacity: 64 * HUGE, backing, soc, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let window = sim.reserve(HUGE).unwrap();
        let mut nonsense = Nonsense { random: fastrand::Rng::with_seed(seed), seen: vec![window] };
        let accepted = (0..20_000).filter(|_| nonsense.call(&sim)).count();
        assert!((1000..19_000).contains(&accepted), "seed {seed}: {accepted} accepted");
        for device in 0..2 {
            assert!(sim.physical_bytes(device) <= sim.physical_peak(device));
            assert!(sim.physical_peak(device) <= 64 * HUGE);
        }
        sim.init().unwrap();
        sim.finalize().unwrap();
        assert_eq!((sim.physical_bytes(0), sim.mapping_count()), (0, 0), "seed {seed}");
    }
}
