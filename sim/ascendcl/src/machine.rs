//! The one machine of the process.
//!
//! It is built at the first call and replaced by `acl_sim_reset`. A call holds the machine shared
//! while it runs, so that a reset never takes it away under a call. A reset that finds calls running
//! tries again for a while and then gives up. New calls step aside for it, so that threads which call
//! without a pause do not keep it out, but only for a moment, so that calls from inside calls
//! (callbacks) get through. Calls that come while the machine is replaced wait for the new one.
//!
//! Controls come in any order before the first call: as long as a machine is fresh (no call was made on
//! it), one that describes the machine builds it anew and makes the other controls' changes again.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ascend_sim::Sim;
use ascend_sim::exec::in_callback;
use parking_lot::{Mutex, RwLock};

use crate::settings::Settings;
use crate::{fork, report};

/// How long a reset waits for calls to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a new call steps aside for a reset that waits for calls to end.
const ASIDE: Duration = Duration::from_millis(10);
/// How often those who wait look again.
const PAUSE: Duration = Duration::from_micros(200);

const REPLACING: &str = "the machine is being replaced by acl_sim_reset";

/// What a call finds.
enum Machine {
    /// Nothing yet.
    Unbuilt,
    /// The machine.
    Ready(Sim),
    /// The old machine is being taken apart.
    Replacing,
}

static MACHINE: RwLock<Machine> = RwLock::new(Machine::Unbuilt);
/// Whether a reset waits for calls to end.
static RESETTING: AtomicBool = AtomicBool::new(false);
static SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);
/// Devices of the machine that is there.
static DEVICES: AtomicU32 = AtomicU32::new(0);
/// What controls have changed on a machine that is still fresh.
static CHANGES: Mutex<Vec<Change>> = Mutex::new(Vec::new());

/// What a control does to a machine; the code.
type Change = Box<dyn Fn(&Sim) -> i32 + Send>;

/// Runs something on the machine, which is built if there is none. Err says why there is none.
pub(crate) fn with<T>(body: impl FnOnce(&Sim) -> T) -> Result<T, &'static str> {
    if RESETTING.load(Relaxed) {
        wait_until(ASIDE, || !RESETTING.load(Relaxed));
    }
    loop {
        if let Machine::Ready(sim) = &*MACHINE.read() {
            return Ok(body(sim));
        }
        let replacing = || matches!(*MACHINE.read(), Machine::Replacing);
        // The replacement waits for callbacks that are running.
        let over = if in_callback() { !replacing() } else { wait_until(PATIENCE, || !replacing()) };
        if !over {
            return Err(REPLACING);
        }
        // The next replacement may begin before this thread looks again.
        build();
    }
}

/// Waits for something, but no longer than that.
#[cold]
fn wait_until(limit: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !reached() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Runs something on the machine if there is one and no reset is going on.
pub(crate) fn with_existing<T>(body: impl FnOnce(&Sim) -> T) -> Option<T> {
    match &*MACHINE.try_read()? {
        Machine::Ready(sim) => Some(body(sim)),
        _ => None,
    }
}

/// Reads or changes the settings.
pub(crate) fn settings<T>(change: impl FnOnce(&mut Settings) -> T) -> T {
    let mut settings = SETTINGS.lock();
    change(settings.get_or_insert_with(|| {
        let variable = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
        let (settings, complaints) = Settings::read(variable);
        complaints.iter().for_each(|complaint| report::say(complaint));
        settings
    }))
}

/// How many devices the machine has that was built last.
pub(crate) fn devices() -> u32 {
    DEVICES.load(Relaxed)
}

/// Changes the machine that is there: the code of the change.
pub(crate) fn adjust(change: impl Fn(&Sim) -> i32 + Send + 'static) -> Result<i32, &'static str> {
    with(|sim| {
        let code = change(sim);
        if code == 0 && is_fresh(sim) {
            CHANGES.lock().push(Box::new(change));
        }
        code
    })
}

/// Changes what machines are built from: also the one that is there, if it is fresh.
pub(crate) fn describe(change: impl FnOnce(&mut Settings)) {
    settings(change);
    if with_existing(is_fresh) == Some(true) {
        // If another thread is calling, the machine is fresh no more.
        let _busy = replace();
    }
}

/// Whether no call was made on the machine yet.
fn is_fresh(sim: &Sim) -> bool {
    sim.counters().is_empty()
}

/// Takes the machine apart, so that the next call builds a new one from the settings; false if calls
/// would not end. A queued callback that never returns keeps this waiting.
pub(crate) fn reset() -> bool {
    let replaced = replace();
    if replaced {
        CHANGES.lock().clear();
    }
    replaced
}

fn replace() -> bool {
    RESETTING.store(true, Relaxed);
    let mut old = None;
    wait_until(PATIENCE, || {
        // Not a waiting lock, behind which calls from inside calls would queue up.
        let Some(mut machine) = MACHINE.try_write() else { return false };
        old = Some(std::mem::replace(&mut *machine, Machine::Replacing));
        true
    });
    RESETTING.store(false, Relaxed);
    let Some(old) = old else { return false };
    // Its workers end here. Without the lock, because a callback of theirs may call in.
    drop(old);
    *MACHINE.write() = Machine::Unbuilt;
    true
}

#[cold]
fn build() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fork::watch();
        report::arm();
    });
    let settings = settings(|settings| settings.clone());
    let mut machine = MACHINE.write();
    if matches!(*machine, Machine::Unbuilt) {
        settings.surface.play_unless_chosen();
        let sim = Sim::new(settings.config());
        DEVICES.store(settings.devices, Relaxed);
        prepare(&sim, &settings).iter().for_each(|complaint| report::say(complaint));
        for change in CHANGES.lock().iter() {
            // It was good on a machine like this; a device may be gone from the new one.
            let _code = change(&sim);
        }
        *machine = Machine::Ready(sim);
    }
}

/// Does what a new machine needs to be told besides its configuration.
fn prepare(sim: &Sim, settings: &Settings) -> Vec<String> {
    let mut complaints = Vec::new();
    for device in 0..settings.devices {
        sim.set_foreign_bytes(device, settings.foreign);
    }
    for (function, cost) in &settings.costs {
        complaints.extend(sim.set_cost(function, *cost).err().map(|error| error.to_string()));
    }
    for failure in &settings.failures {
        let planned = sim.fail(&failure.function, failure.k, failure.code, failure.always);
        complaints.extend(planned.err().map(|error| error.to_string()));
    }
    complaints
}
