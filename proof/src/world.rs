//! Runs programs. After every operation everything that can be compared is compared:
//!
//! - the heap checker and the simulator's use checker find nothing;
//! - I1: requested, allocated, active and reserved bytes are in order and within the device;
//! - I2: live blocks are disjoint, on their device, backed by memory, and keep their marks;
//! - I3: mappings of the machine are the chunks of the allocator;
//! - I4: the snapshot adds up to the statistics, and its live blocks are the program's;
//! - I5: physical memory of the machine is what the allocator says it holds;
//! - I6: at the end nothing is left, and the current device is what it was.

mod blocks;
mod close;
mod others;
mod pools;
mod resets;
mod verify;
mod workers;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::machine::{AclMachine, Machine, SimMachine};
use crate::model::{Block, Lane, Model};
use crate::operation::{Operation, Program, Step};
use crate::setup::Setup;
use crate::surface::{Kind, Refusal, RustSurface, Surface};
use workers::Worker;

/// Where programs run.
#[derive(Clone)]
pub enum Place {
    /// Each program on a simulator and an allocator of its own, through the Rust interface.
    Sim,
    /// Each program on an allocator of its own, through the Rust interface, all on one library of ACL.
    Acl(Arc<AclMachine>, Arc<ascend_alloc::driver::AclDriver>),
    /// All programs on the allocator of the process, through any interface.
    Process(Arc<AclMachine>, Arc<dyn Surface>),
}

/// What programs share.
#[derive(Clone)]
pub struct Ground {
    /// Where they run.
    pub place: Place,
    /// Messages of blocks that another process has exported from its device 0, and keeps.
    pub messages: Arc<Vec<Vec<u8>>>,
}

impl Ground {
    /// Programs on simulators in this process, without another process.
    #[must_use]
    pub fn sim() -> Self {
        Self { place: Place::Sim, messages: Arc::default() }
    }
}

/// Runs a program from its first operation to its end.
///
/// # Panics
///
/// Something that must hold does not; the text says what.
pub fn run(ground: &Ground, program: &Program) {
    run_counting(ground, program, None);
}

/// The same; counts the steps that were begun.
///
/// # Panics
///
/// As [`run`].
pub fn run_counting(ground: &Ground, program: &Program, begun: Option<&AtomicUsize>) {
    let trace = std::env::var_os("ASCEND_ALLOC_TRACE").is_some();
    if trace {
        eprintln!("{:?}", program.setup);
    }
    let Some(mut world) = World::new(ground, &program.setup) else { return };
    for step in &program.steps {
        if trace {
            eprintln!("  {step:?}");
        }
        if let Some(begun) = begun {
            begun.fetch_add(1, Relaxed);
        }
        world.step(step);
        world.verify(&step.operation);
    }
    world.close();
}

/// A running program.
pub struct World {
    inner: Arc<Mutex<Inner>>,
    /// Threads 1 and 2, once they are needed.
    workers: [Option<Worker>; 2],
}

/// What the threads of a program share; one of them uses it at a time.
pub(crate) struct Inner {
    pub(crate) machine: Arc<dyn Machine>,
    /// Nothing once the program has ended.
    pub(crate) surface: Option<Arc<dyn Surface>>,
    pub(crate) model: Model,
    pub(crate) messages: Arc<Vec<Vec<u8>>>,
    /// Bytes of a device, where they are known.
    pub(crate) capacity: Option<u64>,
    /// Whether the allocator is this program's own.
    pub(crate) owned: bool,
    /// Whether address space may run out.
    pub(crate) little_space: bool,
    /// Whether destroying a stream waits for its work.
    pub(crate) destroy_waits: bool,
    /// Whether calls may fail at this moment.
    pub(crate) armed: bool,
    /// What calls that fail at this moment answer.
    pub(crate) codes: Vec<i32>,
    /// Whether any call may have failed.
    pub(crate) was_armed: bool,
    /// Whether a device was reset.
    pub(crate) was_reset: bool,
    /// Whether an operation may have had more bytes at once than there are after it.
    pub(crate) rough: bool,
    pub(crate) callback: Option<u64>,
    /// Addresses that the callback may free.
    pub(crate) spares: Arc<Mutex<Vec<u64>>>,
    /// What went wrong inside hooks and callbacks, which must not panic.
    pub(crate) complaints: Arc<Mutex<Vec<String>>>,
    pub(crate) current_device: i32,
    pub(crate) steps: usize,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// The world of a setup; nothing where no allocator can be had on it.
    #[must_use]
    pub fn new(ground: &Ground, setup: &Setup) -> Option<Self> {
        let (machine, surface, owned): (Arc<dyn Machine>, Arc<dyn Surface>, bool) = match &ground.place {
            Place::Sim => {
                let machine = Arc::new(SimMachine::new(&setup.machine));
                let driver = Arc::new(ascend_alloc::driver::SimDriver::new(machine.sim().clone()));
                let surface = RustSurface::new(&setup.config(), driver).ok()?;
                (machine, Arc::new(surface), true)
            }
            Place::Acl(machine, driver) => {
                let surface = RustSurface::new(&setup.config(), driver.clone()).ok()?;
                (machine.clone(), Arc::new(surface), true)
            }
            Place::Process(machine, surface) => (machine.clone(), surface.clone(), false),
        };
        let simulated = matches!(ground.place, Place::Sim);
        machine.set_lag(setup.machine.lag());
        machine.set_device(0);
        let mut inner = Inner {
            machine,
            surface: Some(surface),
            model: Model::default(),
            messages: ground.messages.clone(),
            capacity: simulated.then(|| setup.machine.capacity()),
            owned,
            little_space: simulated && setup.machine.address_space > 0,
            destroy_waits: !simulated || setup.machine.destroy_waits,
            armed: false,
            codes: Vec::new(),
            was_armed: false,
            was_reset: false,
            rough: false,
            callback: None,
            spares: Arc::default(),
            complaints: Arc::default(),
            current_device: 0,
            steps: 0,
        };
        inner.current_device = inner.machine.current_device();
        inner.begin();
        Some(Self { inner: Arc::new(Mutex::new(inner)), workers: [None, None] })
    }

    /// Does one step, on the thread it names; a route ends on the thread that began it.
    ///
    /// # Panics
    ///
    /// An answer that nothing may give.
    pub fn step(&mut self, step: &Step) {
        let operation = step.operation;
        let last_route = lock(&self.inner).model.routes.last().map(|route| route.thread);
        let thread = match (operation, last_route) {
            (Operation::EndRoute, Some(thread)) => thread,
            // It has a current device.
            (Operation::Reset { .. }, _) => 0,
            _ => usize::from(step.thread % 8),
        };
        match thread {
            1 | 2 => {
                let worker = &mut self.workers[thread - 1];
                let worker = worker.get_or_insert_with(|| Worker::start(&self.inner, thread));
                worker.run(operation);
            }
            _ => lock(&self.inner).perform(0, operation),
        }
    }

    /// Compares everything, if it is time to.
    ///
    /// # Panics
    ///
    /// Something does not hold.
    pub fn verify(&self, after: &Operation) {
        let mut inner = lock(&self.inner);
        inner.steps += 1;
        if inner.model.live.len() < 200 || inner.steps.is_multiple_of(64) {
            inner.verify(&format!("after {after:?}"));
        }
    }

    /// Compares everything now.
    ///
    /// # Panics
    ///
    /// Something does not hold.
    pub fn check(&self, when: &str) {
        let mut inner = lock(&self.inner);
        // Operations since the last look may have had more at once.
        inner.rough = true;
        inner.verify(when);
    }

    /// Lets the k-th call of a function from now on answer a code, and with `always` all later ones: simulators.
    pub fn fail(&self, call: &str, k: u64, code: i32, always: bool) {
        lock(&self.inner).fail_call(call, k, code, always);
    }

    /// How often a function of the machine was called, where that is known.
    #[must_use]
    pub fn count(&self, call: &str) -> Option<u64> {
        lock(&self.inner).machine.count(call)
    }

    /// How many blocks are live.
    #[must_use]
    pub fn live(&self) -> usize {
        lock(&self.inner).model.live.len()
    }

    /// Gives everything back and looks whether anything is left.
    ///
    /// # Panics
    ///
    /// Something is.
    pub fn close(mut self) {
        let routes = lock(&self.inner).model.routes.len();
        for _ in 0..routes {
            self.step(&Step { thread: 0, operation: Operation::EndRoute });
        }
        self.workers = [None, None];
        lock(&self.inner).close();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The allocator of a process must serve the next program, also after this one was found wrong.
        let mut inner = lock(&self.inner);
        if inner.surface.is_some() && !inner.owned {
            inner.abandon();
        }
    }
}

impl Inner {
    pub(crate) fn surface(&self) -> Arc<dyn Surface> {
        self.surface.clone().expect("the program runs")
    }

    /// Each device gets its default stream and two more.
    fn begin(&mut self) {
        let surface = self.surface();
        for device in 0..self.machine.devices() {
            self.model.add_lane(device, 0);
            for _ in 0..2 {
                if let Some(stream) = self.machine.create_stream(device) {
                    self.model.add_lane(device, stream);
                }
            }
            if !self.owned {
                surface.reset_peaks(device).expect("the device exists");
                self.model.peaks[device as usize] =
                    surface.books(device).expect("the device exists").allocated_peak;
            }
        }
    }

    /// Whether a call failed because of a failure that is planned at this moment: it says so.
    pub(crate) fn is_planned(&self, refusal: &Refusal) -> bool {
        let says = |code: &i32| refusal.text.contains(&format!("answered {code}"));
        self.armed && refusal.kind == Kind::Driver && self.codes.iter().any(says)
    }

    pub(crate) fn device(&self, other: bool) -> u32 {
        u32::from(other) % self.machine.devices()
    }

    /// Does one operation on the calling thread, which has this number.
    pub(crate) fn perform(&mut self, thread: usize, operation: Operation) {
        self.rough = false;
        match operation {
            Operation::Allocate { size, lane, align, pool } => self.allocate(thread, size, lane, align, pool),
            Operation::Free { block } => self.free(block, true),
            Operation::FreeLast => self.free(self.model.live.len().saturating_sub(1).min(255) as u8, false),
            Operation::Record { block, lane } => self.record(block, lane),
            Operation::Erase { block, user } => self.erase(block, user),
            Operation::Use { block, user, write } => self.use_block(block, user, write),
            Operation::Grow { block, size } => self.grow(block, size),
            Operation::Shrink { block, parts } => self.shrink(block, parts),
            Operation::Misuse { block, offset } => self.misuse(block, offset),
            Operation::CreateStream { device } => self.create_stream(device),
            Operation::DestroyStream { lane } => self.destroy_stream(lane),
            Operation::Order { first, then } => {
                let then = self.model.lane(then);
                let first = self.model.lane_on(then.device, first);
                // Whether an event can be had is the machine's matter.
                self.machine.order(then.device, first.stream, then.stream);
            }
            Operation::Synchronize { lane } => {
                let lane = self.model.lane(lane);
                self.machine.synchronize_stream(lane.device, lane.stream);
            }
            Operation::SynchronizeDevice { device } => {
                self.machine.synchronize_device(self.device(device));
            }
            Operation::Pass { ticks } => self.machine.pass(u64::from(ticks % 32)),
            Operation::Lag { ticks } => self.machine.set_lag(u64::from(ticks)),
            operation => self.perform_on_pools(thread, operation),
        }
        self.follow_spares();
        self.follow_sleep();
    }

    fn perform_on_pools(&mut self, thread: usize, operation: Operation) {
        match operation {
            Operation::CreatePool { device, tag, no_split, use_on_oom, soft } => {
                self.create_pool(device, tag, (no_split, use_on_oom, soft));
            }
            Operation::ReleasePool { pool } => self.release_pool(pool),
            Operation::BeginRoute { pool, filter, capture } => {
                self.begin_route(thread, pool, filter, capture)
            }
            Operation::EndRoute => self.end_route(),
            Operation::ReleaseGraph { pool } => self.release_graph(pool),
            Operation::Checkpoint { pool } => self.checkpoint(pool),
            Operation::Restore { checkpoint } => self.restore(checkpoint),
            Operation::Sleep { device, tag, keep } => self.sleep(device, tag, keep),
            Operation::Wake { device, tag } => self.wake(device, tag),
            Operation::CreateBuffer { lane, max, size } => self.create_buffer(thread, lane, max, size),
            Operation::ResizeBuffer { buffer, size } => self.resize_buffer(buffer, size),
            Operation::RecordBuffer { buffer, lane } => self.record_buffer(buffer, lane),
            Operation::DestroyBuffer { buffer } => self.destroy_buffer(buffer),
            operation => self.perform_other(operation),
        }
    }

    /// Another stream came into being.
    fn create_stream(&mut self, device: bool) {
        let device = self.device(device);
        if self.model.lanes.len() >= 12 {
            return;
        }
        if let Some(stream) = self.machine.create_stream(device) {
            self.model.add_lane(device, stream);
        }
    }

    /// A stream goes, and the allocator is told before. Default streams stay, and so do those of buffers.
    fn destroy_stream(&mut self, lane: u8) {
        let lane = self.model.lane(lane);
        let in_use = |home: &Lane| home.id == lane.id;
        if lane.stream == 0
            || self.model.buffers.iter().any(|buffer| in_use(&buffer.home))
            || self.model.imports.iter().any(|import| in_use(&import.lane))
            || self.model.captured.iter().any(in_use)
        {
            return;
        }
        crate::model::granted(
            self.surface().stream_destroyed(lane.device, lane.stream),
            "told of a stream's end",
        );
        let gone = self.machine.destroy_stream(lane.device, lane.stream);
        assert!(gone, "the machine keeps stream {:#x}", lane.stream);
        self.model.end_lane(lane.id, !self.destroy_waits);
    }

    /// Orders a stream behind all others that may use the block; false where that cannot be.
    pub(crate) fn order_behind(&self, block: &Block, lane: Lane) -> bool {
        block.users.iter().filter(|&&user| user != lane.id).all(|&user| {
            let Some(other) = self.model.lane_of(user) else { return true };
            self.machine.order(block.device, other.stream, lane.stream)
        })
    }

    /// Queues work with a block on a stream that may use it.
    pub(crate) fn work(&self, block: &Block, lane: Lane, write: bool) {
        if !block.is_usable() || self.machine.orders_all_uses() && !self.order_behind(block, lane) {
            return;
        }
        self.machine.work(block.device, lane.stream, block.range(), block.tag, write);
    }

    /// Marks a block on its own stream; it has its mark afterwards if the answer is true.
    pub(crate) fn mark(&self, block: &Block) -> bool {
        let home = block.users.first().and_then(|&home| self.model.lane_of(home));
        let Some(home) = home.filter(|_| block.has_home && block.is_usable()) else { return false };
        if self.machine.orders_all_uses() && !self.order_behind(block, home) {
            return false;
        }
        self.machine.mark(block.device, home.stream, block.range(), block.tag)
    }

    /// Compares a block's mark, if it has one that can be read.
    pub(crate) fn check_mark(&self, block: &Block) {
        // Through a library every look waits for the device, so only some blocks are looked at.
        let seldom = self.machine.orders_all_uses() && !block.tag.is_multiple_of(4);
        if !block.marked || !block.is_usable() || seldom {
            return;
        }
        if let Some(found) = self.machine.marks(block.device, block.range()) {
            assert!(block.has_mark(&found), "I2: the content of {block:x?} is {found:?}");
        }
    }
}
