//! Two real processes that share blocks: the test, and another run of its own program, once through the simulator and
//! once through its library.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use ascend_alloc::acl::{Acl, Search, sys};
use ascend_alloc::driver::{AclDriver, SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, Export, ExportOptions, ImportedBlock, SharedHandle};
use ascend_sim::{Sim, SimConfig};

use super::M;

const STREAM: Stream = Stream(0);
/// Set for the other process: which machine it uses.
const ROLE: &str = "ASCEND_ALLOC_TEST_SHARE";

/// A machine and an allocator on it.
pub struct Rig {
    pub alloc: Arc<DeviceAllocator>,
    pub machine: Machine,
}

pub enum Machine {
    Sim(Sim),
    Library(Box<Acl>),
}

impl Rig {
    pub fn sim() -> Self {
        Self::on(SimConfig { capacity: 256 * M, devices: 2, ..SimConfig::default() })
    }

    pub fn on(config: SimConfig) -> Self {
        Self::with(config, "check_level:3")
    }

    pub fn with(config: SimConfig, conf: &str) -> Self {
        let sim = Sim::new(config);
        sim.set_device(0).unwrap();
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let alloc = DeviceAllocator::new(Config::parse(conf).unwrap(), driver).unwrap();
        Self { alloc: Arc::new(alloc), machine: Machine::Sim(sim) }
    }

    pub fn library() -> Self {
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

    pub fn of(role: &str) -> Self {
        if role == "library" { Self::library() } else { Self::sim() }
    }

    pub fn peek(&self, address: u64) -> u8 {
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

    pub fn poke(&self, address: u64, byte: u8) {
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
    pub fn machine(&self) -> &Sim {
        match &self.machine {
            Machine::Sim(sim) => sim,
            Machine::Library(_) => panic!("not in this test"),
        }
    }

    pub fn live_bytes(&self) -> i64 {
        self.alloc.stats(0).unwrap().allocated_bytes.all.current
    }

    /// Address space in use.
    pub fn space(&self) -> u64 {
        self.alloc.stats(0).unwrap().reserved_address_space
    }
}

/// The other process; it answers one line to each line it is told.
pub struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    pub fn start(role: &str) -> Self {
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

    pub fn ask(&mut self, line: &str) -> String {
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

    pub fn id(&mut self) -> i32 {
        self.ask("id").parse().unwrap()
    }

    /// A block of so many bytes of the other process.
    pub fn export(&mut self, bytes: u64) -> SharedHandle {
        SharedHandle::from_bytes(&message(&self.ask(&format!("export {bytes}")))).unwrap()
    }

    pub fn import(&mut self, handle: &SharedHandle) -> String {
        self.import_for(handle, 0)
    }

    pub fn import_for(&mut self, handle: &SharedHandle, device: u32) -> String {
        let message: String = handle.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.ask(&format!("import {message} {device}"))
    }

    pub fn kill(mut self) {
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

/// What the other process does. A test program that starts one has an ignored test `the_other_process` with this.
pub fn play_the_other() {
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
                let export = self.rig.alloc.export(ptr, &ExportOptions::default()).unwrap();
                let bytes = export.handle().to_bytes();
                self.exports.push(export);
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            }
            "check" => format!("{:?}", self.rig.alloc.check()),
            other => panic!("{other}"),
        }
    }
}

/// Both machines.
pub fn for_both(run: impl Fn(&Rig, Other)) {
    for role in ["sim", "library"] {
        println!("machine: {role}");
        run(&Rig::of(role), Other::start(role));
    }
}
