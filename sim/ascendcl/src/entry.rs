//! What stands around every exported call.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ascend_sim::{Sim, codes};

use crate::surface::{CANN_8_0, Surface};
use crate::types::AclError;
use crate::{fork, machine, messages};

/// `ACL_ERROR_INTERNAL_ERROR`: a mistake in the simulator.
const INTERNAL: i32 = 500_000;

/// One exported call: its name and the CANN version that brought it.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    name: &'static str,
    since: Surface,
}

/// A call of the oldest surface.
pub(crate) const fn entry(name: &'static str) -> Entry {
    Entry { name, since: CANN_8_0 }
}

impl Entry {
    /// The call came with that version.
    pub(crate) const fn since(self, since: Surface) -> Self {
        Self { since, ..self }
    }

    /// Runs the body of a call on the machine; the code.
    pub(crate) fn does(self, body: impl FnOnce(&Sim) -> Result<(), i32>) -> AclError {
        match self.run(body) {
            Ok(()) => codes::SUCCESS,
            Err(code) => code,
        }
    }

    /// A call whose answer is a code of its own.
    pub(crate) fn answers(self, body: impl FnOnce(&Sim) -> AclError) -> AclError {
        self.run(|sim| Ok(body(sim))).unwrap_or_else(|code| code)
    }

    /// A call that writes what was answered to `out`, which must not be null. On failure nothing is
    /// written.
    ///
    /// # Safety
    /// `out` is null or valid for a write.
    pub(crate) unsafe fn gives<T>(self, out: *mut T, ask: impl FnOnce(&Sim) -> Result<T, i32>) -> AclError {
        self.does(|sim| {
            self.not_null(sim, out)?;
            let value = ask(sim)?;
            // SAFETY: `out` is not null, so it is valid for a write.
            unsafe { out.write(value) };
            Ok(())
        })
    }

    /// The same with two outputs, neither of which may be null.
    ///
    /// # Safety
    /// Each output is null or valid for a write.
    pub(crate) unsafe fn gives_two<A, B>(
        self,
        out: (*mut A, *mut B),
        ask: impl FnOnce(&Sim) -> Result<(A, B), i32>,
    ) -> AclError {
        self.does(|sim| {
            self.not_null(sim, out.0)?;
            self.not_null(sim, out.1)?;
            let value = ask(sim)?;
            // SAFETY: neither is null, so both are valid for a write.
            unsafe {
                out.0.write(value.0);
                out.1.write(value.1);
            }
            Ok(())
        })
    }

    /// A call whose answer is not a code.
    pub(crate) fn asks<T>(self, ask: impl FnOnce(&Sim) -> Result<T, i32>) -> Result<T, i32> {
        self.run(ask)
    }

    /// A call that answers a text of static storage; null on failure.
    pub(crate) fn text(self, ask: impl FnOnce(&Sim) -> Result<*const c_char, i32>) -> *const c_char {
        self.run(ask).unwrap_or(ptr::null())
    }

    /// Refuses a null pointer as the outermost layer does.
    pub(crate) fn not_null<T>(self, sim: &Sim, pointer: *const T) -> Result<(), i32> {
        if pointer.is_null() {
            Err(self.refuse(sim, codes::INVALID_PARAM, "a pointer is null"))
        } else {
            Ok(())
        }
    }

    /// A text that the caller handed over; a null pointer is refused.
    ///
    /// # Safety
    /// `text` is null or ends with a zero, and stays as it is while the answer is used.
    pub(crate) unsafe fn read_text<'a>(self, sim: &Sim, text: *const c_char) -> Result<Cow<'a, str>, i32> {
        self.not_null(sim, text)?;
        // SAFETY: it is not null, so it ends with a zero.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }

    /// A list that the caller handed over: empty if it is null.
    ///
    /// # Safety
    /// `list` is null or valid for reads of `count` values.
    pub(crate) unsafe fn read_list<T: Copy>(self, list: *const T, count: usize) -> Vec<T> {
        if list.is_null() {
            return Vec::new();
        }
        // SAFETY: it is not null, so it is valid for `count` reads.
        (0..count).map(|index| unsafe { list.add(index).read() }).collect()
    }

    /// Refuses the call in this layer, as a call that the model refuses is refused; the code to answer.
    #[cold]
    pub(crate) fn refuse(self, sim: &Sim, code: i32, why: &'static str) -> i32 {
        sim.refuse(self.name, code, why)
    }

    /// The checks before every call, and the net under it.
    fn run<T>(self, body: impl FnOnce(&Sim) -> Result<T, i32>) -> Result<T, i32> {
        if fork::forked() {
            self.complain(fork::CODE, fork::WHY);
            return Err(fork::CODE);
        }
        // The model keeps its state behind locks that a panic releases; what the closure owns is
        // gone with it.
        let answer = catch_unwind(AssertUnwindSafe(|| {
            machine::with(|sim| {
                if self.since > Surface::played() {
                    return Err(self.absent(sim));
                }
                body(sim)
            })
        }));
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(busy)) => {
                self.complain(fork::CODE, busy);
                Err(fork::CODE)
            }
            Err(panic) => Err(self.panicked(panic)),
        }
    }

    #[cold]
    fn absent(self, sim: &Sim) -> i32 {
        let code = codes::RT_FEATURE_NOT_SUPPORT;
        let why = format!("CANN {} lacks this call, which came with {}", Surface::played(), self.since);
        sim.note_error(&self.message(code, &why), code);
        code
    }

    #[cold]
    fn panicked(self, panic: Box<dyn std::any::Any + Send>) -> i32 {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        self.complain(INTERNAL, &format!("a mistake in the simulator, please report it: {text}"));
        // Dropping what was thrown could throw again.
        std::mem::forget(panic);
        INTERNAL
    }

    #[cold]
    fn complain(self, code: i32, why: &str) {
        messages::push(&self.message(code, why));
    }

    fn message(self, code: i32, why: &str) -> String {
        format!("{}: {why} [{code} {}]", self.name, codes::name(code))
    }
}
