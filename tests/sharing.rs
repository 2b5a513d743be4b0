//! Blocks shared by two real processes, this test and another run of its own program, once through the
//! simulator and once through its library; and other devices of one process.
#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use ascend_alloc::acl::{Acl, Search, sys};
use ascend_alloc::driver::{AclDriver, ShareForm, SimDriver, Stream};
use ascend_alloc::{
    Config, DeviceAllocator, DevicePtr, Error, Export, ExportOptions, GrowableBuffer, GrowableOptions,
    ImportedBlock, Importers, Life, PoolOptions, RouteFilter, SharedHandle, SleepMode,
};
use ascend_sim::{BackingMode, LAG_NEVER, Location, Sim, SimConfig, Soc, Task};

const M: u64 = 1 << 20;
const STREAM: Stream = Stream(0);
/// Set for the other process: which machine it uses.
const ROLE: &str = "ASCEND_ALLOC_TEST_SHARE";

/// A machine and an allocator on it.
struct Rig {
    alloc: Arc<DeviceAllocator>,
    machine: Machine,
}

enum Machine {
    Sim(Sim),
    Library(Box<Acl>),
}

impl Rig {
    fn sim() -> Self {
        Self::on(SimConfig { capacity: 256 * M, devices: 2, ..SimConfig::default() })
    }

    fn on(config: SimConfig) -> Self {
        Self::with(config, "check_level:3")
    }

    fn with(config: SimConfig, conf: &str) -> Self {
        let sim = Sim::new(config);
        sim.set_device(0).unwrap();
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let alloc = DeviceAllocator::new(Config::parse(conf).unwrap(), driver).unwrap();
        Self { alloc: Arc::new(alloc), machine: Machine::Sim(sim) }
    }

    fn library() -> Self {
        let test = std::env::current_exe().unwrap();
        let library = Some(test.with_file_name("libascendcl.so"));
        // SAFETY: the simulator's library behaves like ACL's.
        let acl = unsafe { Acl::load(&Search { library, home: None }) }.unwrap();
        // The tests of this program share the library, and only the first starts it.
        let started = acl.init(None);
        assert!(started.as_ref().err().is_none_or(|error| error.code == 100_002), "{started:?}");
        acl.set_device(0).unwrap();
        // SAFETY: the allocator passes only what it was given.
        let driver = Arc::new(unsafe { AclDriver::attach(acl.clone()) });
        let (_, total) = acl.memory_info(sys::ACL_HBM_MEM).unwrap();
        let alloc = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
        // As much as the other machine has.
        alloc.set_memory_fraction(0, (256 * M) as f64 / total as f64).unwrap();
        Self { alloc: Arc::new(alloc), machine: Machine::Library(Box::new(acl)) }
    }

    fn of(role: &str) -> Self {
        if role == "library" { Self::library() } else { Self::sim() }
    }

    fn peek(&self, address: u64) -> u8 {
        let mut byte = [0];
        match &self.machine {
            Machine::Sim(sim) => sim.read_bytes(address, &mut byte).unwrap(),
            Machine::Library(acl) => {
                let from = std::ptr::with_exposed_provenance(address as usize);
                let kind = sys::ACL_MEMCPY_DEVICE_TO_HOST;
                // SAFETY: the address is mapped, the byte is there.
                unsafe { acl.copy(byte.as_mut_ptr().cast(), from, 1, kind) }.unwrap();
            }
        }
        byte[0]
    }

    fn poke(&self, address: u64, byte: u8) {
        match &self.machine {
            Machine::Sim(sim) => sim.write_bytes(address, &[byte]).unwrap(),
            Machine::Library(acl) => {
                let to = std::ptr::with_exposed_provenance_mut(address as usize);
                let kind = sys::ACL_MEMCPY_HOST_TO_DEVICE;
                // SAFETY: the address is mapped, the byte is there.
                unsafe { acl.copy(to, (&raw const byte).cast(), 1, kind) }.unwrap();
            }
        }
    }

    /// Simulated machines only.
    fn machine(&self) -> &Sim {
        match &self.machine {
            Machine::Sim(sim) => sim,
            Machine::Library(_) => panic!("not in this test"),
        }
    }

    fn live_bytes(&self) -> i64 {
        self.alloc.stats(0).unwrap().allocated_bytes.all.current
    }

    /// Address space in use.
    fn space(&self) -> u64 {
        self.alloc.stats(0).unwrap().reserved_address_space
    }
}

/// The other process; it answers one line to each line it is told.
struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").unwrap();
        self.to.flush().unwrap();
        loop {
            let mut answer = String::new();
            assert!(self.from.read_line(&mut answer).unwrap() > 0, "the other process ended at {line}");
            // The test harness prints lines of its own.
            if let Some(at) = answer.find("answer ") {
                return answer[at + 7..].trim().to_owned();
            }
        }
    }

    fn id(&mut self) -> i32 {
        self.ask("id").parse().unwrap()
    }

    /// A block of so many bytes of the other process.
    fn export(&mut self, bytes: u64) -> SharedHandle {
        SharedHandle::from_bytes(&message(&self.ask(&format!("export {bytes}")))).unwrap()
    }

    fn import(&mut self, handle: &SharedHandle) -> String {
        self.import_for(handle, 0)
    }

    fn import_for(&mut self, handle: &SharedHandle, device: u32) -> String {
        let message: String = handle.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.ask(&format!("import {message} {device}"))
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _collected = self.child.wait();
    }
}

/// What the other process does; started by the tests below.
#[test]
#[ignore = "the part of another process, started by the other tests"]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let rig = Rig::of(&role);
    let mut part = Part { imported: Vec::new(), exports: Vec::new(), rig };
    for line in std::io::stdin().lines() {
        let words: Vec<String> = line.unwrap().split(' ').map(str::to_owned).collect();
        println!("\nanswer {}", part.answer(&words));
    }
}

struct Part {
    imported: Vec<ImportedBlock>,
    exports: Vec<Export>,
    rig: Rig,
}

/// The bytes of a handle, out of the text that processes send each other.
fn message(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

impl Part {
    fn answer(&mut self, words: &[String]) -> String {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0].as_str() {
            "id" => self.rig.alloc.process_id(0).unwrap().to_string(),
            "import" => {
                let handle = SharedHandle::from_bytes(&message(&words[1])).unwrap();
                match self.rig.alloc.import(number(2) as u32, &handle, STREAM) {
                    Ok(block) => {
                        self.imported.push(block);
                        "ok".to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            }
            "read" => self.rig.peek(self.imported[0].ptr().0 + number(1)).to_string(),
            "write" => {
                self.rig.poke(self.imported[0].ptr().0 + number(1), number(2) as u8);
                "ok".to_owned()
            }
            "places" => self.imported.iter().map(|block| format!("{:#x} ", block.ptr().0)).collect(),
            "held" => {
                let imported = self.rig.alloc.imported_bytes(0).unwrap();
                format!("{imported} {}", self.rig.space())
            }
            "life" => format!("{:?}", self.imported[0].exporter()),
            "drop" => {
                self.imported.pop();
                "ok".to_owned()
            }
            "export" => {
                let ptr = self.rig.alloc.allocate(0, number(1), 0, STREAM).unwrap();
                self.rig.poke(ptr.0, 77);
                self.exports.push(self.rig.alloc.export(ptr, &ExportOptions::default()).unwrap());
                let bytes = self.exports[0].handle().to_bytes();
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            }
            "check" => format!("{:?}", self.rig.alloc.check()),
            other => panic!("{other}"),
        }
    }
}

/// Both machines.
fn for_both(run: impl Fn(&Rig, Other)) {
    for role in ["sim", "library"] {
        println!("machine: {role}");
        run(&Rig::of(role), Other::start(role));
    }
}

#[test]
fn two_processes_see_one_memory() {
    for_both(|rig, mut other| {
        // A block that begins in the middle of a chunk.
        let _before = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
        let block = rig.alloc.allocate(0, 5 * M, 0, STREAM).unwrap();
        assert!(!block.0.is_multiple_of(2 * M));
        rig.poke(block.0, 11);
        rig.poke(block.0 + 5 * M - 1, 12);
        for form in [ShareForm::V1, ShareForm::V2] {
            let export = rig.alloc.export(block, &ExportOptions::default().named(form)).unwrap();
            assert_eq!((export.handle().bytes(), export.handle().form()), (5 * M, form));
            assert_eq!(other.import(export.handle()), "ok");
            assert_eq!(
                (other.ask("read 0"), other.ask(&format!("read {}", 5 * M - 1))),
                ("11".into(), "12".into())
            );
            other.ask("write 0 99");
            assert_eq!(rig.peek(block.0), 99);
            rig.poke(block.0, 11);
            // Address space for what is mapped, not more; again is the same mapping.
            let held = format!("{0} {0}", export.handle().mapped_bytes());
            assert_eq!(export.handle().mapped_bytes(), 8 * M);
            assert_eq!(other.ask("held"), held);
            assert_eq!(other.import(export.handle()), "ok");
            let places = other.ask("places");
            let places: Vec<&str> = places.split_whitespace().collect();
            assert!(places.len() == 2 && places[0] == places[1], "{places:?}");
            other.ask("drop");
            assert_eq!(other.ask("held"), held, "the other import still has it");
            assert_eq!(other.ask("read 0"), "11");
            other.ask("drop");
            assert_eq!(other.ask("held"), "0 0");
        }
        assert_eq!(other.ask("check"), "Ok(())");
    });
}

#[test]
fn only_named_processes_import() {
    for_both(|rig, mut other| {
        let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
        let export = rig.alloc.export(block, &ExportOptions::for_processes(&[1])).unwrap();
        let refused = other.import(export.handle());
        assert!(refused.contains("aclrtMemImportFromShareableHandle"), "{refused}");
        assert_eq!(other.ask("held"), "0 0");
        let id = other.id();
        export.allow(&[id]).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        // A chunk has one name; for all processes it would be another.
        assert!(matches!(rig.alloc.export(block, &ExportOptions::default()), Err(Error::State { .. })));
        let again = rig.alloc.export(block, &ExportOptions::for_processes(&[id])).unwrap();
        assert!(again.handle() == export.handle());
    });
}

/// No event can be recorded on a stream that is gone, and nothing can be asked about it.
#[test]
fn an_import_that_a_stream_used_which_is_gone_can_be_given_up() {
    let (rig, mut other) = (Rig::sim(), Other::start("sim"));
    let handle = other.export(3 * M);
    let import = rig.alloc.import(0, &handle, STREAM).unwrap();
    let stream = Stream(rig.machine().create_stream().unwrap());
    import.record_stream(stream);
    rig.alloc.stream_destroyed(0, stream).unwrap();
    rig.machine().destroy_stream(stream.0).unwrap();
    drop(import);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
}

/// Growing publishes a block anew; it must not forget that an export holds it.
#[test]
fn an_exported_block_that_has_grown_stays_too() {
    for (size, grown) in [(M, M), (3 * M, 3 * M), (3 * M, 7 * M)] {
        let rig = Rig::sim();
        let block = rig.alloc.allocate(0, size, 0, STREAM).unwrap();
        let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        assert!(rig.alloc.grow_in_place(block, grown).unwrap());
        rig.alloc.deallocate(block).unwrap();
        assert!(rig.live_bytes() >= grown as i64, "the export holds it");
        let other = rig.alloc.allocate(0, size, 0, STREAM).unwrap();
        assert_ne!(other, block, "memory of importers was handed out");
        drop(export);
        rig.alloc.deallocate(other).unwrap();
        assert_eq!(rig.live_bytes(), 0);
        rig.alloc.check().unwrap();
    }
}

/// Some drivers name a chunk once and no more.
#[test]
fn a_chunk_that_could_not_be_freed_keeps_its_name() {
    for refused in ["aclrtUnmapMem", "aclrtFreePhysical"] {
        for asleep in [false, true] {
            let rig = Rig::on(SimConfig { soc: Soc::Ascend950, capacity: 256 * M, ..SimConfig::default() });
            let Machine::Sim(sim) = &rig.machine else { unreachable!("made so") };
            let pool = rig.alloc.create_pool(0, PoolOptions::tagged("shared")).unwrap();
            let export = || {
                let block = rig.alloc.allocate_in(pool, 40 * M, 0, STREAM).unwrap();
                drop(rig.alloc.export(block, &ExportOptions::default()).unwrap());
                block
            };
            let block = export();
            if !asleep {
                rig.alloc.deallocate(block).unwrap();
            }
            sim.fail(refused, 3, 507_899, true).unwrap();
            // What is refused here is told or not; it stays.
            let _ = match asleep {
                true => rig.alloc.sleep(None, &["shared"], SleepMode::Discard).map(drop),
                false => rig.alloc.empty_cache(None).map(drop),
            };
            sim.clear_faults();
            assert!(sim.physical_bytes(0) >= 30 * M, "{refused}: most chunks stay");
            rig.alloc.wake(None, &["shared"]).unwrap();
            if asleep {
                rig.alloc.deallocate(block).unwrap();
            }
            // The same chunks, and others that were made while some were gone.
            let first = export();
            let second = export();
            [first, second].into_iter().for_each(|block| rig.alloc.deallocate(block).unwrap());
            rig.alloc.empty_cache(None).unwrap();
            rig.alloc.check().unwrap();
            assert_eq!(sim.physical_bytes(0), 0);
        }
    }
}

#[test]
fn an_exported_block_stays_until_its_exports_end() {
    for_both(|rig, mut other| {
        let block = rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
        rig.poke(block.0, 5);
        let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        let second = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        assert!(matches!(rig.alloc.shrink_in_place(block, M), Err(Error::State { .. })));
        rig.alloc.deallocate(block).unwrap();
        assert!(matches!(rig.alloc.deallocate(block), Err(Error::Pointer { .. })), "freed once");
        assert!(matches!(rig.alloc.export(block, &ExportOptions::default()), Err(Error::Pointer { .. })));
        // Nothing takes its chunks, however short memory is.
        let big = rig.alloc.allocate(0, 200 * M, 0, STREAM).unwrap();
        assert!(matches!(rig.alloc.allocate(0, 30 * M, 0, STREAM), Err(Error::OutOfMemory(_))));
        rig.alloc.empty_cache(None).unwrap();
        rig.alloc.deallocate(big).unwrap();
        drop(export);
        assert_eq!((rig.peek(block.0), other.ask("read 0")), (5, "5".into()));
        assert!(rig.live_bytes() > 40 * M as i64 - 1);
        other.ask("drop");
        drop(second);
        assert_eq!(rig.live_bytes(), 0);
        rig.alloc.check().unwrap();
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!(rig.space(), 0);
    });
}

#[test]
fn either_process_may_die() {
    for_both(|rig, mut other| {
        // The importer.
        let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
        rig.poke(block.0, 9);
        let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        assert_eq!(other.ask("life"), "Alive");
        other.kill();
        assert_eq!(rig.peek(block.0), 9);
        drop(export);
        rig.alloc.deallocate(block).unwrap();
    });
    for_both(|rig, mut other| {
        // The exporter.
        let handle = other.export(3 * M);
        let block = rig.alloc.import(0, &handle, STREAM).unwrap();
        assert_eq!((rig.peek(block.ptr().0), block.exporter()), (77, Life::Alive));
        other.kill();
        assert_eq!(block.exporter(), Life::Gone);
        drop(block);
        assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
        let late = rig.alloc.import(0, &handle, STREAM);
        assert!(matches!(late, Err(Error::Driver(_))), "{late:?}");
        assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
        rig.alloc.check().unwrap();
    });
}

/// As B19: many imports take the address space of what they map, and give it back.
#[test]
fn imports_reserve_what_they_map() {
    let rig = Rig::sim();
    let mut other = Other::start("sim");
    let blocks: Vec<DevicePtr> =
        (0..20).map(|_| rig.alloc.allocate(0, 2 * M - 64, 0, STREAM).unwrap()).collect();
    let exports: Vec<Export> =
        blocks.iter().map(|&block| rig.alloc.export(block, &ExportOptions::default()).unwrap()).collect();
    for export in &exports {
        assert_eq!(other.import(export.handle()), "ok");
    }
    let mapped: u64 = exports.iter().map(|export| export.handle().mapped_bytes()).sum();
    assert!(mapped <= 80 * M);
    assert_eq!(other.ask("held"), format!("{mapped} {mapped}"));
    for _ in &exports {
        other.ask("drop");
    }
    for _ in 0..100 {
        assert_eq!(other.import(exports[3].handle()), "ok");
        other.ask("drop");
    }
    assert_eq!(other.ask("held"), "0 0");
}

#[test]
fn the_own_process_needs_no_import() {
    let rig = Rig::sim();
    let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
    assert!(matches!(rig.alloc.import(0, export.handle(), STREAM), Err(Error::State { .. })));
    assert!(matches!(rig.alloc.import(9, export.handle(), STREAM), Err(Error::Argument { .. })));
    let wrong = [DevicePtr(block.0 + 512), DevicePtr::NULL, DevicePtr(0x1000)];
    for ptr in wrong {
        assert!(matches!(rig.alloc.export(ptr, &ExportOptions::default()), Err(Error::Pointer { .. })));
    }
}

#[test]
fn what_cannot_be_exported_says_why() {
    let rig = Rig::sim();
    let fabric = ExportOptions::default().named(ShareForm::Fabric);
    let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    assert!(matches!(rig.alloc.export(block, &fabric), Err(Error::Driver(error)) if error.is_unsupported()));
    for call in ["aclrtMemExportToShareableHandle", "aclrtMemSetPidToShareableHandle"] {
        rig.machine().fail(call, 2, 507_899, false).unwrap();
        let answer = rig.alloc.export(block, &ExportOptions::for_processes(&[1]));
        assert!(matches!(&answer, Err(Error::Driver(error)) if error.call == call), "{answer:?}");
        rig.machine().clear_faults();
    }
    // No refused export holds it.
    rig.alloc.deallocate(block).unwrap();
    assert_eq!(rig.live_bytes(), 0);
    rig.alloc.empty_cache(None).unwrap();
    let pool = rig.alloc.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let block = rig.alloc.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
    assert!(matches!(rig.alloc.sleep(None, &["weights"], SleepMode::Discard), Err(Error::State { .. })));
    drop(export);
    rig.alloc.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    assert!(matches!(rig.alloc.export(block, &ExportOptions::default()), Err(Error::State { .. })));
    rig.alloc.wake(None, &["weights"]).unwrap();
    rig.alloc.deallocate(block).unwrap();
    let sim = Sim::new(SimConfig::default());
    let fixed = Config::parse("expandable_segments:False").unwrap();
    let alloc = Arc::new(DeviceAllocator::new(fixed, Arc::new(SimDriver::new(sim))).unwrap());
    let block = alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    assert!(matches!(alloc.export(block, &ExportOptions::default()), Err(Error::State { .. })));
}

#[test]
fn a_growing_buffer_is_exported_as_it_is() {
    for_both(|rig, mut other| {
        let options = GrowableOptions::up_to(32 * M).beginning_with(6 * M);
        let mut buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options).unwrap();
        rig.poke(buffer.ptr().0 + 5 * M, 44);
        let export = rig.alloc.export(buffer.ptr(), &ExportOptions::default()).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        assert_eq!(other.ask(&format!("read {}", 5 * M)), "44");
        buffer.resize(20 * M).unwrap();
        assert!(matches!(buffer.resize(6 * M), Err(Error::State { .. })));
        drop(buffer);
        assert_eq!(other.ask(&format!("read {}", 5 * M)), "44");
        drop(export);
        assert_eq!(rig.live_bytes(), 0);
        rig.alloc.check().unwrap();
    });
}

/// A name belongs to a chunk: a new chunk with an old handle has none.
#[test]
fn names_end_with_their_chunks() {
    let rig = Rig::on(SimConfig { soc: Soc::Ascend950, capacity: 64 * M, ..SimConfig::default() });
    for round in 0..4 {
        // The driver of a 950 names a chunk once only.
        let block = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
        let named = ExportOptions::for_processes(&[1]);
        let options = if round < 2 { ExportOptions::default() } else { named };
        let first = rig.alloc.export(block, &options).unwrap();
        let again = rig.alloc.export(block, &options).unwrap();
        assert!(first.handle() == again.handle());
        drop((first, again));
        rig.alloc.deallocate(block).unwrap();
        if round == 1 {
            rig.alloc.empty_cache(None).unwrap();
        }
    }
    assert_eq!(rig.machine().count("aclrtMemExportToShareableHandle"), 20);
}

/// The drop of an import waits for no stream, and nothing is unmapped under queued work.
#[test]
fn queued_work_keeps_an_import_mapped() {
    let rig = Rig::on(SimConfig { lag: LAG_NEVER, devices: 2, ..SimConfig::default() });
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let second = Stream(rig.machine().create_stream().unwrap());
    let block = rig.alloc.import(0, &handle, STREAM).unwrap();
    block.record_stream(second);
    let task = Task::new("reads").reads(block.ptr().0, 3 * M, 1);
    rig.machine().submit(second.0, task).unwrap();
    drop(block);
    assert_eq!(rig.machine().count("aclrtUnmapMem"), 0);
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 4 * M);
    let waits = ["aclrtSynchronizeStream", "aclrtSynchronizeEvent", "aclrtSynchronizeDevice"];
    assert_eq!(waits.map(|call| rig.machine().count(call)), [0; 3]);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
    // Failing calls leave nothing mapped that cannot be released later.
    for call in ["aclrtMemImportFromShareableHandle", "aclrtReserveMemAddress", "aclrtMapMem"] {
        rig.machine().fail(call, 1, 507_899, false).unwrap();
        let answer = rig.alloc.import(0, &handle, STREAM);
        assert!(matches!(&answer, Err(Error::Driver(error)) if error.call == call), "{answer:?}");
    }
    for call in ["aclrtUnmapMem", "aclrtFreePhysical", "aclrtReleaseMemAddress"] {
        let block = rig.alloc.import(0, &handle, STREAM).unwrap();
        rig.machine().fail(call, 1, 507_899, false).unwrap();
        drop(block);
        rig.alloc.empty_cache(None).unwrap();
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0), "{call}");
    }
    assert_eq!(rig.machine().findings(), Vec::<String>::new());
    let sim = rig.machine().clone();
    drop(rig);
    assert_eq!((sim.mapping_count(), sim.reserved_bytes()), (0, 0));
}

/// Work that is being captured may hold the address: nothing is asked, waited for or unmapped before the end.
#[test]
fn a_capture_keeps_an_import_mapped() {
    let rig = Rig::sim();
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let block = rig.alloc.import(0, &handle, STREAM).unwrap();
    let pool = rig.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let capture = rig.alloc.capture(pool, RouteFilter::ThisThread).unwrap();
    let before = rig.machine().counters();
    drop(block);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(rig.machine().counters(), before);
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 4 * M);
    // An import that fails was used by nobody and leaves nothing behind.
    let handle = other.export(3 * M);
    rig.machine().fail("aclrtMapMem", 1, 507_899, false).unwrap();
    assert!(rig.alloc.import(0, &handle, STREAM).is_err());
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 4 * M);
    drop(capture);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
}

/// What was imported before is mapped as well.
#[test]
fn peers_reach_what_was_imported_before() {
    let rig = Rig::on(SimConfig { devices: 2, soc: Soc::Ascend950, ..SimConfig::default() });
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let block = rig.alloc.import(0, &handle, STREAM).unwrap();
    let granted = || rig.machine().get_access(block.ptr().0 & !(2 * M - 1), Location::device(1));
    assert_ne!(granted(), Ok(3));
    rig.alloc.set_peers(0, &[1]).unwrap();
    assert_eq!(granted(), Ok(3));
    drop(block);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 0);
}

/// As B17.
#[test]
fn peers_reach_all_that_is_mapped() {
    let rig = Rig::on(SimConfig { devices: 3, soc: Soc::Ascend950, ..SimConfig::default() });
    let sim = rig.machine();
    let grants = |address: u64, device: u32| sim.get_access(address, Location::device(device)).unwrap();
    let all = |ptr: DevicePtr, bytes: u64, device: u32| {
        (ptr.0..ptr.0 + bytes).step_by(2 << 20).all(|address| grants(address, device) == 3)
    };
    let a = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    let b = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    assert_eq!(sim.count("aclrtMemSetAccess"), 20);
    rig.alloc.set_peers(0, &[1]).unwrap();
    assert_eq!((rig.alloc.peers(0).unwrap(), rig.alloc.peers(1).unwrap()), (vec![1], vec![]));
    assert_eq!(sim.count("aclrtMemSetAccess"), 40);
    assert_eq!((sim.peer_access_status(0, 1), sim.peer_access_status(1, 0)), (Ok(1), Ok(1)));
    let c = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    assert_eq!(sim.count("aclrtMemSetAccess"), 60, "new chunks are granted to the owner and the peer");
    assert!(all(a, 20 * M, 1) && all(b, 20 * M, 1) && all(c, 20 * M, 1));
    assert!(!all(a, 20 * M, 2));
    // Chunks that move take no grant along: they get it anew.
    rig.alloc.deallocate(a).unwrap();
    rig.alloc.deallocate(c).unwrap();
    let moved = sim.count("aclrtUnmapMem");
    let d = rig.alloc.allocate(0, 38 * M, 0, STREAM).unwrap();
    assert!(sim.count("aclrtUnmapMem") > moved);
    assert!(all(d, 38 * M, 1));
    rig.alloc.set_peers(0, &[2, 1, 1]).unwrap();
    assert!(all(d, 38 * M, 2) && all(b, 20 * M, 2));
    // Growing in place, and buffers that grow.
    let options = GrowableOptions::up_to(32 * M).beginning_with(6 * M);
    let buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options).unwrap();
    assert!(all(buffer.ptr(), 6 * M, 2));
    // Without peers nothing more is granted.
    rig.alloc.set_peers(0, &[]).unwrap();
    let before = sim.count("aclrtMemSetAccess");
    let e = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    assert!(grants(e.0 + 18 * M, 1) != 3 && sim.count("aclrtMemSetAccess") <= before + 11);
    rig.alloc.check().unwrap();
}

#[test]
fn peers_that_cannot_be_change_nothing() {
    let rig = Rig::on(SimConfig { devices: 2, soc: Soc::Ascend950, ..SimConfig::default() });
    let sim = rig.machine();
    for peers in [&[0][..], &[5], &[1, 0]] {
        assert!(matches!(rig.alloc.set_peers(0, peers), Err(Error::Argument { .. })), "{peers:?}");
    }
    assert!(matches!(rig.alloc.set_peers(7, &[1]), Err(Error::Argument { .. })));
    let block = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    sim.fail("aclrtMemSetAccess", 4, 507_899, false).unwrap();
    assert!(matches!(rig.alloc.set_peers(0, &[1]), Err(Error::Driver(_))));
    assert_eq!(rig.alloc.peers(0).unwrap(), Vec::<u32>::new());
    rig.alloc.set_peers(0, &[1]).unwrap();
    // A grant that fails undoes the map.
    let before = (rig.live_bytes(), sim.mapping_count(), sim.physical_bytes(0));
    sim.fail("aclrtMemSetAccess", 2, 507_899, false).unwrap();
    let answer = rig.alloc.allocate(0, 20 * M, 0, STREAM);
    assert!(matches!(answer, Err(Error::Driver(_))), "{answer:?}");
    assert_eq!((rig.live_bytes(), sim.mapping_count(), sim.physical_bytes(0)), before);
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.check().unwrap();
    // A library without the call: the error says so, whether something is mapped or not.
    for emptied in [false, true] {
        let rig = Rig::on(SimConfig { devices: 2, ..SimConfig::default() });
        rig.machine().set_missing(&["aclrtMemSetAccess"]).unwrap();
        if !emptied {
            rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
        }
        let answer = rig.alloc.set_peers(0, &[1]);
        let text = answer.unwrap_err().to_string();
        assert!(text.contains("no symbol aclrtMemSetAccess"), "{text}");
        rig.alloc.allocate(0, 8 * M, 0, STREAM).unwrap();
    }
}

/// The call takes the driver's numbers.
#[test]
fn peers_are_translated() {
    let visible_devices = Some(vec![1, 3]);
    let rig = Rig::on(SimConfig { devices: 4, visible_devices, ..SimConfig::default() });
    rig.alloc.set_peers(0, &[1]).unwrap();
    let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    let access = |device| rig.machine().get_access(block.0 & !(2 * M - 1), Location::device(device));
    assert_eq!((access(3), access(2)), (Ok(3), Ok(0)));
}

/// Threads allocate and free while the set of peers changes: in the end every chunk is granted.
#[test]
fn peers_are_set_while_others_map() {
    let backing = BackingMode::MetadataOnly;
    // While other threads run, the checker sees counts and blocks of different moments.
    let rig = Rig::with(SimConfig { capacity: 64 * M, devices: 2, backing, ..SimConfig::default() }, "");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let rig = &rig;
            scope.spawn(move || {
                rig.machine().set_device(0).unwrap();
                let stream = Stream(rig.machine().create_stream().unwrap());
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..150 {
                    let block = rig.alloc.allocate(0, random.u64(M..20 * M), 0, stream).unwrap();
                    rig.alloc.deallocate(block).unwrap();
                }
            });
        }
        for peers in [&[1][..], &[], &[1], &[], &[1]] {
            rig.alloc.set_peers(0, peers).unwrap();
            std::thread::yield_now();
        }
    });
    let block = rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
    let mut granted = HashMap::new();
    for segment in rig.alloc.snapshot(0).unwrap().segments {
        let first = segment.address & !(2 * M - 1);
        for address in (first..segment.address + segment.total_size).step_by(2 << 20) {
            let access = rig.machine().get_access(address, Location::device(1)).unwrap();
            *granted.entry(access).or_insert(0) += 1;
        }
    }
    assert!(granted.len() == 1 && granted[&3] >= 20, "{granted:?}");
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.check().unwrap();
    assert_eq!(Importers::default(), Importers::Any);
}
