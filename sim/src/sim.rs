//! The simulator: one object behind which all parts of the model stand.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex};

use crate::allocators::Allocators;
use crate::call::Call;
use crate::config::{SimConfig, Soc};
use crate::control::{Control, LogEntry, UnknownFunction};
use crate::devices::{Devices, Here};
use crate::exec::{ExecConfig, Executor, in_callback};
use crate::hooks::Hooks;
use crate::made::{Made, next_finding};
use crate::memory::{Backing, Memory};
use crate::pools::Pools;
use crate::refusal::{Answer, Refusal, refuse};
use crate::report::{Misuse, MisuseKind};
use crate::settings::Settings;
use crate::{codes, threads};

/// A machine with simulated devices.
///
/// A clone is the same machine. Every method may be called from any thread; the current device is a
/// matter of each thread, as in ACL. Methods named after ACL calls answer with the ACL code as the
/// error ([`codes`]); pointers are numbers, 0 is null. When the last clone is dropped, all device
/// memory and pinned memory is gone; addresses of it must not be used any more.
#[derive(Clone)]
pub struct Sim {
    pub(crate) inner: Arc<Inner>,
}

/// The parts of a machine.
pub(crate) struct Inner {
    /// Tells simulators apart in per-thread state.
    pub(crate) id: u64,
    pub(crate) config: SimConfig,
    pub(crate) control: Control,
    pub(crate) devices: Mutex<Devices>,
    pub(crate) memory: Mutex<Memory>,
    /// Told when bytes have been moved.
    pub(crate) moved: Condvar,
    pub(crate) executor: Executor,
    pub(crate) settings: Mutex<Settings>,
    pub(crate) hooks: Hooks,
    pub(crate) allocators: Mutex<Allocators>,
    pub(crate) pools: Mutex<Pools>,
    /// Whether any event is shared with other processes; spares looking for it.
    pub(crate) shares_events: AtomicBool,
    /// Answers where hardware is stricter than the layers that were observed.
    strict: AtomicBool,
    /// Findings that are not the use checker's.
    pub(crate) findings: Mutex<Vec<Misuse>>,
    /// Devices on which queued work touched memory that was not there, until a wait says so.
    pub(crate) faulted: Box<[AtomicBool]>,
    notes: Vec<String>,
    mapped: bool,
}

impl Sim {
    /// Builds a machine. A number of devices of 0 counts as 1.
    #[must_use]
    pub fn new(config: SimConfig) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut config = config;
        config.devices = config.devices.max(1);
        let mut notes = Vec::new();
        let backing = Backing::new(&config, &mut notes);
        let mapped = backing.is_mapped();
        let executor = Executor::new(ExecConfig {
            devices: config.devices,
            mode: config.exec_mode,
            checker: config.checker,
            lag: config.lag,
            max_events: config.max_events,
            max_streams: config.max_streams,
        });
        let inner = Inner {
            id: NEXT.fetch_add(1, Relaxed),
            control: Control::new(),
            devices: Mutex::new(Devices::new(&config)),
            memory: Mutex::new(Memory::new(&config, backing)),
            moved: Condvar::new(),
            executor,
            settings: Mutex::default(),
            hooks: Hooks::default(),
            allocators: Mutex::default(),
            pools: Mutex::default(),
            shares_events: AtomicBool::new(false),
            strict: AtomicBool::new(config.strict),
            findings: Mutex::new(Vec::new()),
            faulted: (0..config.devices).map(|_| AtomicBool::new(false)).collect(),
            notes,
            mapped,
            config,
        };
        Self { inner: Arc::new(inner) }
    }

    /// What a user should know about this machine's choices: another address window, the
    /// metadata-only mode and why.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.inner.notes
    }

    /// Whether device addresses are real, so that the CPU can read and write mapped memory. False in
    /// the metadata-only mode.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.inner.mapped
    }

    /// The part that is played.
    #[must_use]
    pub fn soc(&self) -> Soc {
        self.inner.config.soc
    }

    /// The streams, events and queued work of all devices, with the driver's device numbers.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.inner.executor
    }

    /// Calls answered so far, by ACL name; without calls that were never made and without calls of
    /// missing symbols. Refused calls count.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.inner.control.counters()
    }

    /// How often that function was called; 0 for a name that is unknown.
    #[must_use]
    pub fn count(&self, function: &str) -> u64 {
        self.inner.control.count(function)
    }

    /// Sets all counters to 0.
    pub fn reset_counters(&self) {
        self.inner.control.reset_counters();
    }

    /// Lets the `k`-th call of a function from now on fail with a code, 1 being the next; with
    /// `always` every later one too. The call changes nothing. Several plans may be made.
    ///
    /// # Errors
    /// The simulator answers no function of that name.
    pub fn fail(&self, function: &str, k: u64, code: i32, always: bool) -> Result<(), UnknownFunction> {
        self.inner.control.fail(function, k, code, always)
    }

    /// Drops all planned failures.
    pub fn clear_faults(&self) {
        self.inner.control.clear_faults();
    }

    /// Plays a library that lacks exactly these functions: they answer [`codes::MISSING_SYMBOL`].
    ///
    /// # Errors
    /// The simulator answers no function of one of the names; then nothing changes.
    pub fn set_missing(&self, functions: &[&str]) -> Result<(), UnknownFunction> {
        self.inner.control.set_missing(functions)
    }

    /// Lets every call of a function take virtual time; 0, the default, is none.
    ///
    /// # Errors
    /// The simulator answers no function of that name.
    pub fn set_cost(&self, function: &str, nanoseconds: u64) -> Result<(), UnknownFunction> {
        self.inner.control.set_cost(function, nanoseconds)
    }

    /// Virtual nanoseconds since the start.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.inner.control.now()
    }

    /// Lets virtual time pass.
    pub fn advance(&self, nanoseconds: u64) {
        self.inner.control.advance(nanoseconds);
    }

    /// Switches the log of calls on or off. It grows until [`take_log`](Self::take_log) is called.
    pub fn set_logging(&self, on: bool) {
        self.inner.control.set_logging(on);
    }

    /// The calls logged since the last time, in the order in which they ended.
    #[must_use]
    pub fn take_log(&self) -> Vec<LogEntry> {
        self.inner.control.take_log()
    }

    /// Bytes of physical memory this process holds on a device (driver's number): chunks and blocks
    /// of `aclrtMalloc`, in whole pages.
    #[must_use]
    pub fn physical_bytes(&self, device: u32) -> u64 {
        self.inner.memory.lock().used(device)
    }

    /// Host memory that the driver could still pin, and all it can pin. What is pinned counts towards this
    /// alone: nothing is locked on this machine.
    #[must_use]
    pub fn host_memory(&self) -> (u64, u64) {
        self.inner.memory.lock().host_memory()
    }

    /// The most [`physical_bytes`](Self::physical_bytes) was since the start or the last
    /// [`reset_peak`](Self::reset_peak).
    #[must_use]
    pub fn physical_peak(&self, device: u32) -> u64 {
        self.inner.memory.lock().peak(device)
    }

    /// Starts the peak anew from what is held now.
    pub fn reset_peak(&self, device: u32) {
        self.inner.memory.lock().reset_peak(device);
    }

    /// Lets other processes hold that many bytes of a device (driver's number).
    pub fn set_foreign_bytes(&self, device: u32, bytes: u64) {
        self.inner.memory.lock().set_foreign(device, bytes);
    }

    /// Changes the capacity of a device (driver's number). What is held stays held.
    pub fn set_capacity(&self, device: u32, bytes: u64) {
        self.inner.memory.lock().set_capacity(device, bytes);
    }

    /// Switches the stricter answers on or off, as [`SimConfig::strict`] does for the start.
    pub fn set_strict(&self, strict: bool) {
        self.inner.strict.store(strict, Relaxed);
        self.inner.memory.lock().set_strict(strict);
    }

    /// Whether the stricter answers are on.
    #[must_use]
    pub fn strict(&self) -> bool {
        self.inner.strict.load(Relaxed)
    }

    /// With the stricter answers: refuses a call of the driver before any device was set.
    pub(crate) fn check_opened(&self) -> Answer<()> {
        if self.strict() && !self.inner.devices.lock().opened {
            return refuse(codes::RT_INVALID_HANDLE, "strict: no device was set in this process");
        }
        Ok(())
    }

    /// Limits the bytes of all reservations together; `None` leaves only the window.
    pub fn set_va_budget(&self, bytes: Option<u64>) {
        self.inner.memory.lock().set_va_budget(bytes);
    }

    /// Bytes of address space that are reserved.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.inner.memory.lock().reserved()
    }

    /// Mappings that exist, blocks of `aclrtMalloc` among them.
    #[must_use]
    pub fn mapping_count(&self) -> usize {
        self.inner.memory.lock().mapping_count()
    }

    /// Holds a range as a copy engine does: unmapping any of it is refused as busy until
    /// [`unhold`](Self::unhold).
    pub fn hold(&self, start: u64, bytes: u64) {
        self.inner.memory.lock().hold(start, bytes);
    }

    /// Ends a hold on exactly that range; false if there is none.
    pub fn unhold(&self, start: u64, bytes: u64) -> bool {
        self.inner.memory.lock().unhold(start, bytes)
    }

    /// A layer above has refused a call before it came here (a null pointer for an answer): counts and
    /// logs it as a call of that function, lets a planned failure strike, keeps the message for
    /// [`recent_error`](Self::recent_error), and gives the code to answer. For a name that the
    /// simulator does not know only the message is kept.
    pub fn refuse(&self, function: &str, code: i32, why: &'static str) -> i32 {
        let Some(call) = Call::by_name(function) else {
            self.note_error(&format!("{function}: {why} [{code} {}]", codes::name(code)), code);
            return code;
        };
        let refused: Result<(), i32> = self.call(call, format_args!("..."), || refuse(code, why));
        refused.err().unwrap_or(code)
    }

    /// A layer above has refused what never was a call here: keeps the message and the code for this thread's
    /// [`recent_error`](Self::recent_error), among those of calls.
    pub fn note_error(&self, text: &str, code: i32) {
        threads::push_message(self.inner.id, text, code);
    }

    /// Counts, logs and answers one call.
    pub(crate) fn call<T>(
        &self,
        call: Call,
        arguments: fmt::Arguments<'_>,
        body: impl FnOnce() -> Answer<T>,
    ) -> Result<T, i32> {
        let admitted = self.inner.control.admit(call).and_then(|()| self.refuse_in_callback(call));
        let answer = admitted.and_then(|()| body());
        let code = answer.as_ref().err().map_or(codes::SUCCESS, |refusal| refusal.code);
        self.inner.control.note(call, arguments, code);
        answer.map_err(|refusal| self.complain(call, arguments, refusal))
    }

    fn refuse_in_callback(&self, call: Call) -> Answer<()> {
        if !in_callback() || !call.blocks_in_callback() {
            return Ok(());
        }
        let text = format!(
            "{} inside a callback of a stream, where nothing may allocate, free, copy, wait or queue work: \
             on a device it would never return",
            Made::now()
        );
        self.inner.found(MisuseKind::CallInCallback, text);
        refuse(codes::RT_INTERNAL_ERROR, "not allowed inside a callback")
    }

    #[cold]
    fn complain(&self, call: Call, arguments: fmt::Arguments<'_>, refusal: Refusal) -> i32 {
        let Refusal { code, why } = refusal;
        let text = format!("{}({arguments}): {why} [{code} {}]", call.name(), codes::name(code));
        threads::push_message(self.inner.id, &text, code);
        code
    }

    /// The current device of this thread (driver's number).
    pub(crate) fn current(&self) -> Answer<u32> {
        self.here().map(|here| here.device)
    }

    /// The current device and context of this thread.
    pub(crate) fn here(&self) -> Answer<Here> {
        self.inner.devices.lock().here(threads::current(self.inner.id))
    }

    /// The executor's number for the current context of this thread.
    pub(crate) fn context(&self) -> Answer<u32> {
        self.here().map(|here| here.context)
    }
}

impl Inner {
    /// Keeps a finding.
    pub(crate) fn found(&self, kind: MisuseKind, text: String) {
        let order = next_finding();
        self.findings.lock().push(Misuse { kind, text, order });
    }

    /// An answer of the executor with a reason.
    pub(crate) fn executed<T>(answer: Result<T, i32>) -> Answer<T> {
        answer.map_err(|code| Refusal::new(code, crate::exec::codes::meaning(code)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        threads::forget(self.id);
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("config", &self.inner.config).field("notes", &self.inner.notes).finish()
    }
}
