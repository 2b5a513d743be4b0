//! What stands around every entry point: no panic leaves it, and a failure leaves its text.

use core::cell::{Cell, RefCell};
use core::ffi::c_char;
use core::ptr;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::process::{AscendAllocStatus, Failure};

thread_local! {
    /// Whether the thread's last call failed. Apart from the text, because a call that succeeds after
    /// another that did need not touch a value with a destructor.
    static FAILED: Cell<bool> = const { Cell::new(false) };
    /// The text of the thread's last failure.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Runs the body of an entry point and keeps the text of its failure for the thread.
pub(crate) fn run<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, AscendAllocStatus> {
    // The body owns nothing that outlives it; the allocator's own state is kept by locks that a
    // panic releases.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => {
            FAILED.set(false);
            return Ok(answer);
        }
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            let text = format!("internal error, please report it: {text}");
            // Dropping what was thrown could throw again.
            core::mem::forget(panic);
            Failure { status: AscendAllocStatus::Internal, text }
        }
    };
    keep(failure.text);
    Err(failure.status)
}

/// The text of the thread's last call if that failed, else null.
pub(crate) fn last_error() -> *const c_char {
    if !FAILED.get() {
        return ptr::null();
    }
    TEXT.try_with(|text| text.borrow().as_ptr()).unwrap_or(ptr::null())
}

#[cold]
fn keep(text: String) {
    // A text of the driver's may hold anything; a C reader would stop at a zero byte.
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no place for the text any more.
    let kept = TEXT.try_with(|last| drop(last.replace(text)));
    FAILED.set(kept.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text() -> Option<String> {
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
