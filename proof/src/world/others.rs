//! Giving memory back, limits, statistics, callbacks, sharing, page-locked memory, threads, failures.

use std::sync::Arc;

use super::{Inner, lock};
use crate::machine::Machine;
use crate::model::{Export, Import, Lane, granted, pick};
use crate::operation::{CODES, FAILING, Operation, Size};
use crate::surface::{Kind, Refusal, Surface};

const MIB: u64 = 1 << 20;

impl Inner {
    pub(super) fn perform_other(&mut self, operation: Operation) {
        match operation {
            Operation::Trim { device, keep } => self.trim(device, keep),
            Operation::Empty { device } => {
                let device = device.map_or(-1, |other| self.device(other) as i32);
                let answer = self.surface().empty(device);
                self.may_be_refused(answer, &[Kind::State]);
            }
            Operation::Fraction { device, parts } => {
                let answer = self.surface().set_fraction(self.device(device), f64::from(parts) / 256.0);
                assert!(parts > 0 || answer.is_err(), "a share of nothing");
                self.may_be_refused(answer, if parts == 0 { &[Kind::Argument] } else { &[] });
            }
            Operation::Limits { device, hard, soft } => {
                let limit = |parts: u8| (parts > 0).then(|| u64::from(parts) * 4 * MIB);
                if let Some(answer) = self.surface().set_limits(self.device(device), limit(hard), limit(soft))
                {
                    self.may_be_refused(answer, &[]);
                }
            }
            Operation::Peers { device, on } => self.set_peers(device, on),
            Operation::ResetPeaks { device } => {
                let device = self.device(device);
                granted(self.surface().reset_peaks(device), "peaks can be reset");
                self.model.peaks[device as usize] = 0;
            }
            Operation::ResetSums { device } => {
                granted(self.surface().reset_sums(self.device(device)), "sums can be reset");
            }
            Operation::Hook { on } => self.set_hook(on),
            Operation::Callback { on } => self.set_callback(on),
            Operation::Spare { block } => self.spare(block),
            Operation::Threads { seed, rounds } => self.threads(seed, rounds),
            Operation::Reset { device } => self.reset(device),
            Operation::Capture { lane } => self.capture_stream(lane),
            Operation::EndCapture { spoil } => self.end_capture(spoil),
            Operation::Fail { call, after, code, always } => self.fail(call, after, code, always),
            Operation::Heal => {
                self.machine.heal();
                self.armed = false;
                self.codes.clear();
            }
            Operation::Crowd { device, chunks } => {
                self.machine.set_foreign(self.device(device), u64::from(chunks % 32) * 2 * MIB);
            }
            operation => self.perform_sharing(operation),
        }
    }

    fn perform_sharing(&mut self, operation: Operation) {
        match operation {
            Operation::Export { block } => self.export(block),
            Operation::ReleaseExport { export } => self.release_export(export),
            Operation::Import { message, lane } => self.import(message, lane),
            Operation::RecordImport { import, lane } => {
                let Some(at) = pick(&self.model.imports, import) else { return };
                let import = self.model.imports[at];
                let lane = self.model.lane_on(import.lane.device, lane);
                granted(self.surface().record_import(import.id, lane.stream), "an import can be recorded");
                self.read_import(import, lane);
            }
            Operation::ReleaseImport { import } => {
                let Some(at) = pick(&self.model.imports, import) else { return };
                let import = self.model.imports.remove(at);
                granted(self.surface().release_import(import.id), "an import can be given up");
            }
            Operation::HostAllocate { size } => self.host_allocate(size),
            Operation::HostFree { block } => {
                let Some(at) = pick(&self.model.host, block) else { return };
                let (address, _) = self.model.host.remove(at);
                granted(self.surface().host_free(address), "a live host block can be freed");
                let again = self.surface().host_free(address).expect_err("it was freed before");
                assert_eq!(again.kind, Kind::Argument, "{again}");
            }
            Operation::HostRecord { block, lane } => {
                let Some(at) = pick(&self.model.host, block) else { return };
                let lane = self.model.lane(lane);
                let answer = self.surface().host_record(self.model.host[at].0, lane.device, lane.stream);
                granted(answer, "a live host block can be recorded");
            }
            Operation::HostEmpty => {
                let answer = self.surface().host_empty(false);
                self.may_be_refused(answer, &[]);
            }
            other => unreachable!("{other:?} is done elsewhere"),
        }
    }

    /// An answer that failing calls may spoil, and nothing else but these kinds.
    pub(super) fn may_be_refused(&self, answer: Result<(), Refusal>, kinds: &[Kind]) {
        if let Err(refusal) = answer {
            let fine = kinds.contains(&refusal.kind) || self.is_planned(&refusal);
            assert!(fine, "{refusal}");
        }
    }

    fn trim(&self, device: bool, keep: u8) {
        let device = self.device(device);
        let before = self.machine.physical_bytes(device);
        let answer = self.surface().trim(device, u64::from(keep) * MIB);
        let after = self.machine.physical_bytes(device);
        match answer {
            Ok(given) => {
                if let (Some(before), Some(after), false) = (before, after, self.armed) {
                    assert_eq!(before.saturating_sub(after), given, "bytes given back, of {before}");
                }
            }
            refused => self.may_be_refused(refused.map(drop), &[Kind::State]),
        }
    }

    fn set_peers(&self, device: bool, on: bool) {
        if self.machine.devices() < 2 {
            return;
        }
        let device = self.device(device);
        let peer = [1 - device];
        let answer = self.surface().set_peers(device, if on { &peer } else { &[] });
        self.may_be_refused(answer, &[]);
    }

    fn set_hook(&self, on: bool) {
        let surface = self.surface();
        if !on {
            return granted(surface.set_hook(None), "the hook can go");
        }
        let (weak, complaints) = (Arc::downgrade(&surface), self.complaints.clone());
        let hook = move |device: u32| {
            let Some(surface) = weak.upgrade() else { return };
            if let Err(refusal) = surface.books(device) {
                lock(&complaints).push(format!("statistics inside the hook: {refusal}"));
            }
        };
        granted(surface.set_hook(Some(Arc::new(hook))), "a hook can be set");
    }

    fn set_callback(&mut self, on: bool) {
        let surface = self.surface();
        match (on, self.callback) {
            (true, None) => {
                let (weak, complaints) = (Arc::downgrade(&surface), self.complaints.clone());
                let spares = self.spares.clone();
                let callback = move |_device: u32| {
                    let (Some(surface), Some(spare)) = (weak.upgrade(), lock(&spares).pop()) else {
                        return false;
                    };
                    if let Err(refusal) = surface.free(spare) {
                        lock(&complaints).push(format!("a free inside the callback: {refusal}"));
                    }
                    true
                };
                self.callback =
                    Some(granted(surface.add_callback(Arc::new(callback)), "a callback can be added"));
            }
            (false, Some(number)) => {
                granted(surface.remove_callback(number), "a callback can be removed");
                self.callback = None;
                lock(&self.spares).clear();
                self.model.live.append(&mut self.model.spares);
            }
            _ => {}
        }
    }

    fn fail(&mut self, call: u8, after: u8, code: u8, always: bool) {
        let call = FAILING[usize::from(call) % FAILING.len()];
        let code = CODES[usize::from(code) % CODES.len()];
        self.fail_call(call, u64::from(after % 16) + 1, code, always);
    }

    /// The k-th call of a function from now on answers that code, and with `always` all later ones.
    pub(super) fn fail_call(&mut self, call: &str, k: u64, code: i32, always: bool) {
        if self.machine.fail(call, k, code, always) {
            self.armed = true;
            self.was_armed = true;
            self.codes.push(code);
        }
    }

    fn export(&mut self, block: u8) {
        let Some(at) = pick(&self.model.live, block).filter(|_| self.model.exports.len() < 6) else { return };
        let (address, device) = (self.model.live[at].address, self.model.live[at].device);
        let surface = self.surface();
        match surface.export(address) {
            Ok((id, message)) => {
                self.model.live[at].exports += 1;
                self.model.exports.push(Export { id, address });
                // Whoever has exported a block has it already.
                let own = surface.import(&message, device, 0).expect_err("its own block is no other's");
                assert_eq!(own.kind, Kind::State, "{own}");
                let mut damaged = message;
                let middle = damaged.len() / 2;
                damaged[middle] ^= 0x10;
                let refused = surface.import(&damaged, device, 0).expect_err("the message is damaged");
                assert_eq!(refused.kind, Kind::Argument, "{refused}");
            }
            // The process has no descriptor or memory left for what is shared.
            Err(refusal) if refusal.text.contains("SIM_HOST_LIMIT") => {}
            // Fixed blocks, memory that sleeps, and chunks with a name of another kind.
            refused => self.may_be_refused(refused.map(drop), &[Kind::State]),
        }
    }

    pub(crate) fn release_export(&mut self, export: u8) {
        let Some(at) = pick(&self.model.exports, export) else { return };
        let export = self.model.exports.remove(at);
        granted(self.surface().release_export(export.id), "an export can be ended");
        let address = export.address;
        let all = self.model.live.iter_mut().chain(&mut self.model.held);
        all.filter(|block| block.address == address).for_each(|block| block.exports -= 1);
        self.model.held.retain(|block| block.exports > 0);
    }

    fn import(&mut self, message: u8, lane: u8) {
        let Some(at) = pick(&self.messages, message).filter(|_| self.model.imports.len() < 6) else { return };
        let lane = self.model.lane_on(0, lane);
        let messages = self.messages.clone();
        match self.surface().import(&messages[at], lane.device, lane.stream) {
            Ok((id, address, bytes)) => {
                self.model.has_imported = true;
                self.follow_spares();
                let import = Import { id, address, bytes, lane };
                assert!(self.model.all().all(|block| {
                    block.address + block.bytes <= address || address + bytes <= block.address
                }));
                self.model.imports.push(import);
                self.read_import(import, lane);
            }
            Err(refusal) => {
                let fine = refusal.kind == Kind::OutOfMemory || self.is_planned(&refusal);
                // What came about before the refusal stays where taking it apart is refused too.
                self.model.has_imported |= self.armed;
                // Address space that is limited does not hold everything.
                assert!(fine || self.little_space && refusal.kind == Kind::Driver, "{refusal}");
            }
        }
    }

    fn read_import(&self, import: Import, lane: Lane) {
        assert!(
            self.machine.is_backed(import.address, import.bytes) != Some(false),
            "I2: {import:x?} is not mapped"
        );
        self.machine.work(lane.device, lane.stream, (import.address, import.bytes), import.id, false);
    }

    fn host_allocate(&mut self, size: Size) {
        let bytes = size.bytes();
        if self.model.host.len() >= 16 || bytes > 64 * MIB {
            return;
        }
        match self.surface().host_allocate(bytes) {
            Ok(0) => assert_eq!(bytes, 0, "something was asked for"),
            Ok(address) => {
                assert_eq!(address % 512, 0, "{address:#x}");
                for &(other, length) in &self.model.host {
                    assert!(other + length <= address || address + bytes <= other, "host blocks overlap");
                }
                self.model.host.push((address, bytes));
            }
            refused => self.may_be_refused(refused.map(drop), &[Kind::OutOfMemory]),
        }
    }

    /// Three threads, each with blocks and a stream of its own. Which of them is first is not chosen here.
    fn threads(&mut self, seed: u8, rounds: u8) {
        self.rough = true;
        let (surface, machine) = (self.surface(), self.machine.clone());
        let armed = self.armed;
        let lanes: Vec<Lane> = (0..3).map(|index| self.model.lane(seed.wrapping_add(index))).collect();
        let rounds = 4 + usize::from(rounds % 16);
        let work = |number: usize| {
            let thread = Hammer { surface: &*surface, machine: &*machine, lane: lanes[number], armed };
            thread.run(u64::from(seed) * 3 + number as u64 + 1, rounds);
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|number| scope.spawn(move || work(number))).collect();
            for thread in threads {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
    }
}

/// One of several threads at once.
struct Hammer<'a> {
    surface: &'a dyn Surface,
    machine: &'a dyn Machine,
    lane: Lane,
    armed: bool,
}

impl Hammer<'_> {
    fn run(&self, seed: u64, rounds: usize) {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut live: Vec<u64> = Vec::new();
        for _ in 0..rounds {
            match next() % 8 {
                0..4 => {
                    let bytes = [512, 4096, 100_000, MIB + 7, 3 * MIB][next() as usize % 5];
                    match self.surface.allocate(self.lane.device, bytes, 0, self.lane.stream) {
                        Ok(address) => live.push(address),
                        Err(refusal) => self.allow(&refusal),
                    }
                }
                4..7 if !live.is_empty() => {
                    let block = live.swap_remove(next() as usize % live.len());
                    granted(self.surface.free(block), "a live block can be freed");
                }
                7 if !live.is_empty() => {
                    let block = live[next() as usize % live.len()];
                    let info = granted(self.surface.block(block), "a live block is known");
                    assert_eq!((info.address, info.device), (block, self.lane.device));
                    granted(self.surface.record(block, 0), "a live block can be recorded");
                }
                _ => self.machine.pass(1),
            }
        }
        for block in live {
            granted(self.surface.free(block), "a live block can be freed");
        }
    }

    fn allow(&self, refusal: &Refusal) {
        // A route may lead to a pool that sleeps.
        let fine = matches!(refusal.kind, Kind::OutOfMemory | Kind::State);
        assert!(fine || self.armed && refusal.kind == Kind::Driver, "{refusal}");
    }
}
