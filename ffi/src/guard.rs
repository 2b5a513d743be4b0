//! What stands around every entry point: no panic leaves it, a forked child is recognised before any lock is
//! taken, and a failure leaves its status and its text.

use core::cell::{Cell, RefCell};
use core::ffi::{c_char, c_int};
use core::ptr;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::process::{AscendAllocStatus, Failure};
use crate::{arguments, fork};

#[cfg(not(panic = "unwind"))]
compile_error!(
    "with panic=abort a mistake in this library would end the host process; build it with panic=unwind"
);

thread_local! {
    /// What the thread's last call answered. Apart from the text, because a call that succeeds after
    /// another that did need not touch a value with a destructor.
    static STATUS: Cell<AscendAllocStatus> = const { Cell::new(AscendAllocStatus::Ok) };
    /// The text of the thread's last failure.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Runs the body of an entry point that a forked child cannot have, and keeps what came of it for the thread.
#[inline]
pub(crate) fn run<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, AscendAllocStatus> {
    if fork::in_child() {
        return Err(keep(fork::refusal()));
    }
    everywhere(body)
}

/// The same for functions whose only answer is the status.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    code(run(body))
}

/// The same for functions that give something back, end something or note something: in a forked child nothing needs
/// that, so they do nothing and succeed.
pub(crate) fn release(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    code(everywhere(|| if fork::in_child() { Ok(()) } else { body() }))
}

/// The same for functions that set something, or end it (`ends`).
pub(crate) fn set(ends: bool, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    if ends { release(body) } else { status(body) }
}

/// The same for functions that give memory back and answer how many bytes: none in a forked child.
///
/// # Safety
///
/// `freed` is null, misaligned or valid for a write.
pub(crate) unsafe fn freed(freed: *mut usize, body: impl FnOnce() -> Result<u64, Failure>) -> c_int {
    code(everywhere(|| {
        arguments::writable(freed, "freed")?;
        let bytes = if fork::in_child() { 0 } else { body()? };
        // SAFETY: the caller's promise.
        unsafe { arguments::answer(freed, "freed", bytes as usize) }
    }))
}

/// The same for functions that a forked child can have.
#[inline]
pub(crate) fn everywhere<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, AscendAllocStatus> {
    // The body owns nothing that outlives it; the allocator's own state is kept by locks that a
    // panic releases.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => {
            STATUS.set(AscendAllocStatus::Ok);
            Ok(answer)
        }
        Ok(Err(failure)) => Err(keep(failure)),
        Err(panic) => Err(keep(of_panic(panic))),
    }
}

/// A result as the number that C callers get.
pub(crate) fn code(result: Result<(), AscendAllocStatus>) -> c_int {
    result.map_or_else(|status| status as c_int, |()| AscendAllocStatus::Ok as c_int)
}

/// What the thread's last call answered.
pub(crate) fn last_status() -> c_int {
    STATUS.get() as c_int
}

#[cold]
fn of_panic(panic: Box<dyn core::any::Any + Send>) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    let text = format!("internal error, please report it: {text}");
    // Dropping what was thrown could throw again.
    core::mem::forget(panic);
    Failure { status: AscendAllocStatus::Internal, text }
}

/// The text of the thread's last call if that failed, else null.
pub(crate) fn last_error() -> *const c_char {
    if STATUS.get() == AscendAllocStatus::Ok {
        return ptr::null();
    }
    TEXT.try_with(|text| text.borrow().as_ptr()).unwrap_or(ptr::null())
}

#[cold]
fn keep(failure: Failure) -> AscendAllocStatus {
    // A text of the driver's may hold anything; a C reader would stop at a zero byte.
    let text = CString::new(failure.text.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no place for the text any more; the status stays.
    let _kept = TEXT.try_with(|last| drop(last.replace(text)));
    STATUS.set(failure.status);
    failure.status
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text() -> Option<String> {
        assert_eq!(last_error().is_null(), last_status() == 0);
        let text = last_error();
        // SAFETY: not null, so it is the thread's text, which nothing replaces before it is copied.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_panic_becomes_a_failure_with_its_text() {
        assert_eq!(run::<()>(|| panic!("number {}", 7)), Err(AscendAllocStatus::Internal));
        assert!(text().unwrap().contains("number 7"));
        assert_eq!(run::<()>(|| panic!("plain")), Err(AscendAllocStatus::Internal));
        assert!(text().unwrap().contains("plain"));
        assert_eq!(run::<()>(|| std::panic::panic_any(7)), Err(AscendAllocStatus::Internal));
        assert!(text().unwrap().contains("no text"));
    }

    #[test]
    fn the_text_is_that_of_the_last_call_of_the_thread() {
        let fail = || Failure { status: AscendAllocStatus::Driver, text: "first\0second".to_owned() };
        assert_eq!(text(), None);
        assert_eq!(run::<()>(|| Err(fail())), Err(AscendAllocStatus::Driver));
        assert_eq!(text().as_deref(), Some("first?second"));
        let elsewhere = std::thread::spawn(text).join().unwrap();
        assert_eq!(elsewhere, None);
        assert_eq!(run(|| Ok(5)), Ok(5));
        assert_eq!(text(), None);
    }
}
