//! The calls as methods of [`Acl`]: a `Result` instead of a code and out-pointers.
//!
//! Names follow ACL's without the prefix; sizes, counts and addresses are ACL's own, in bytes.
//! A method is `unsafe` where ACL trusts a pointer or a handle it is given; where it checks
//! everything and answers a code, the method is safe. Nothing is translated or retried here: that
//! is the driver's part.

mod allocator;
mod device;
mod host;
mod memory;
mod stream;
mod virtual_memory;

pub use allocator::AllocatorFunctions;

use core::ffi::{CStr, c_int};
use core::fmt;

use super::table::Acl;
use super::{codes, sys};
use crate::driver::{CODE_NOT_SUPPORTED, DriverError, DriverResult};

impl Acl {
    /// Runs one call. `arguments` becomes text only if it fails.
    #[inline]
    fn call<F>(
        &self,
        name: &'static str,
        function: Option<F>,
        arguments: fmt::Arguments<'_>,
        run: impl FnOnce(F) -> c_int,
    ) -> DriverResult<()> {
        match function {
            None => Err(missing(name, arguments)),
            Some(function) => match run(function) {
                codes::SUCCESS => Ok(()),
                code => Err(self.failure(name, code, arguments)),
            },
        }
    }

    /// The error of a call that answered a code, with what the library says about it.
    #[cold]
    fn failure(&self, call: &'static str, code: i32, arguments: fmt::Arguments<'_>) -> DriverError {
        self.forget_last_error();
        DriverError {
            call,
            arguments: arguments.to_string(),
            code,
            name: codes::name(code),
            message: self.recent_message(),
            missing_symbol: None,
        }
    }

    /// What the library has to say since it was asked last, on this thread. Asked after every
    /// failure: what nobody reads piles up and would be shown with a later error.
    #[must_use]
    pub fn recent_message(&self) -> Option<String> {
        let function = self.functions.aclGetRecentErrMsg?;
        // SAFETY: no arguments; the answer is null or a text that lives until the next call.
        let text = unsafe { function() };
        if text.is_null() {
            return None;
        }
        // SAFETY: as above, and it is copied before any other call of this thread.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Takes the code of this thread's last failed call away from the library. It was answered here and is dealt with;
    /// left there, a program that looks for errors of its own calls would find it.
    #[cold]
    fn forget_last_error(&self) {
        if let Some(function) = self.functions.aclrtGetLastError {
            // SAFETY: no pointers; any level is checked.
            let _known = unsafe { function(sys::ACL_RT_THREAD_LEVEL) };
        }
    }
}

/// The error of a call that the loaded library does not have.
#[cold]
fn missing(call: &'static str, arguments: fmt::Arguments<'_>) -> DriverError {
    DriverError {
        call,
        arguments: arguments.to_string(),
        code: CODE_NOT_SUPPORTED,
        name: codes::name(CODE_NOT_SUPPORTED),
        message: None,
        missing_symbol: Some(call),
    }
}
