//! What a test can set and read around every call: counters, faults, missing symbols, costs, a log.
//!
//! A call passes through [`Control::admit`] before the model sees it. Nothing here knows what a call
//! does. Without faults, costs and log, admitting a call is a handful of relaxed atomic operations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::call::Call;
use crate::codes;
use crate::made::Made;
use crate::refusal::{Answer, Refusal};

/// A function name that the simulator does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFunction(pub String);

impl fmt::Display for UnknownFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulator answers no function named {}", self.0)
    }
}

impl std::error::Error for UnknownFunction {}

/// One logged call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The function's ACL name.
    pub function: &'static str,
    /// The arguments as text.
    pub arguments: String,
    /// The answer: 0 or an error code.
    pub code: i32,
    /// The calling thread.
    pub thread: ThreadId,
}

/// A planned failure.
struct Fault {
    call: Call,
    /// Calls that still pass before this one strikes.
    passing: u64,
    code: i32,
    always: bool,
}

/// Counters, faults, costs and the log of one simulator.
pub(crate) struct Control {
    counts: Box<[AtomicU64]>,
    costs: Box<[AtomicU64]>,
    missing: Box<[AtomicBool]>,
    /// Virtual nanoseconds since the start.
    clock: AtomicU64,
    /// Whether `faults` may hold anything; spares the lock.
    armed: AtomicBool,
    faults: Mutex<Vec<Fault>>,
    logging: AtomicBool,
    log: Mutex<Vec<LogEntry>>,
}

impl Control {
    pub(crate) fn new() -> Self {
        let zeros = || Call::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            counts: zeros(),
            costs: zeros(),
            missing: Call::ALL.iter().map(|_| AtomicBool::new(false)).collect(),
            clock: AtomicU64::new(0),
            armed: AtomicBool::new(false),
            faults: Mutex::new(Vec::new()),
            logging: AtomicBool::new(false),
            log: Mutex::new(Vec::new()),
        }
    }

    /// Counts the call and lets it pass, or answers for it.
    pub(crate) fn admit(&self, call: Call) -> Answer<()> {
        let index = call.index();
        if self.missing[index].load(Relaxed) {
            return Err(Refusal::new(codes::MISSING_SYMBOL, "the library lacks this symbol"));
        }
        let number = self.counts[index].fetch_add(1, Relaxed) + 1;
        Made::enter(call, number);
        let cost = self.costs[index].load(Relaxed);
        if cost != 0 {
            self.clock.fetch_add(cost, Relaxed);
        }
        if self.armed.load(Relaxed) { self.strike(call) } else { Ok(()) }
    }

    fn strike(&self, call: Call) -> Answer<()> {
        let mut faults = self.faults.lock();
        let mut hit = None;
        for (index, fault) in faults.iter_mut().enumerate().filter(|(_, fault)| fault.call == call) {
            if fault.passing > 0 {
                fault.passing -= 1;
            } else if hit.is_none() {
                hit = Some((index, fault.code, fault.always));
            }
        }
        let Some((index, code, always)) = hit else { return Ok(()) };
        if !always {
            faults.remove(index);
            self.armed.store(!faults.is_empty(), Relaxed);
        }
        Err(Refusal::new(code, "injected fault"))
    }

    /// Writes the call to the log if the log is on.
    pub(crate) fn note(&self, call: Call, arguments: fmt::Arguments<'_>, code: i32) {
        if self.logging.load(Relaxed) {
            let thread = std::thread::current().id();
            let arguments = arguments.to_string();
            self.log.lock().push(LogEntry { function: call.name(), arguments, code, thread });
        }
    }

    pub(crate) fn fail(&self, name: &str, k: u64, code: i32, always: bool) -> Result<(), UnknownFunction> {
        let call = find(name)?;
        self.faults.lock().push(Fault { call, passing: k.saturating_sub(1), code, always });
        self.armed.store(true, Relaxed);
        Ok(())
    }

    pub(crate) fn clear_faults(&self) {
        self.faults.lock().clear();
        self.armed.store(false, Relaxed);
    }

    pub(crate) fn set_missing(&self, names: &[&str]) -> Result<(), UnknownFunction> {
        let calls = names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
        for flag in &self.missing {
            flag.store(false, Relaxed);
        }
        for call in calls {
            self.missing[call.index()].store(true, Relaxed);
        }
        Ok(())
    }

    pub(crate) fn set_cost(&self, name: &str, nanoseconds: u64) -> Result<(), UnknownFunction> {
        self.costs[find(name)?.index()].store(nanoseconds, Relaxed);
        Ok(())
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    pub(crate) fn advance(&self, nanoseconds: u64) {
        self.clock.fetch_add(nanoseconds, Relaxed);
    }

    pub(crate) fn counters(&self) -> BTreeMap<&'static str, u64> {
        let counts = Call::ALL.iter().map(|call| (call.name(), self.counts[call.index()].load(Relaxed)));
        counts.filter(|(_, count)| *count != 0).collect()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        Call::by_name(name).map_or(0, |call| self.counts[call.index()].load(Relaxed))
    }

    pub(crate) fn reset_counters(&self) {
        for count in &self.counts {
            count.store(0, Relaxed);
        }
    }

    pub(crate) fn set_logging(&self, on: bool) {
        self.logging.store(on, Relaxed);
    }

    pub(crate) fn take_log(&self) -> Vec<LogEntry> {
        std::mem::take(&mut *self.log.lock())
    }
}

fn find(name: &str) -> Result<Call, UnknownFunction> {
    Call::by_name(name).ok_or_else(|| UnknownFunction(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_the_kth_call_once_or_from_there_on() {
        let control = Control::new();
        control.fail("aclrtMapMem", 2, 507_899, false).unwrap();
        control.fail("aclrtUnmapMem", 1, 207_001, true).unwrap();
        assert!(control.fail("aclrtNothing", 1, 1, false).is_err());
        let code = |call| control.admit(call).err().map(|refusal| refusal.code);
        assert_eq!([(); 3].map(|()| code(Call::MapMem)), [None, Some(507_899), None]);
        assert_eq!([(); 2].map(|()| code(Call::UnmapMem)), [Some(207_001); 2]);
        assert_eq!(code(Call::Free), None);
        control.clear_faults();
        assert_eq!(code(Call::UnmapMem), None);
        assert_eq!(control.count("aclrtUnmapMem"), 3);
    }

    #[test]
    fn a_missing_symbol_is_not_a_call() {
        let control = Control::new();
        control.set_missing(&["aclrtMemSetAccess"]).unwrap();
        control.set_cost("aclrtFree", 700).unwrap();
        assert_eq!(control.admit(Call::MemSetAccess).unwrap_err().code, codes::MISSING_SYMBOL);
        control.admit(Call::Free).unwrap();
        assert_eq!(control.counters(), BTreeMap::from([("aclrtFree", 1)]));
        assert_eq!(control.now(), 700);
        control.set_missing(&[]).unwrap();
        assert!(control.admit(Call::MemSetAccess).is_ok());
    }
}
