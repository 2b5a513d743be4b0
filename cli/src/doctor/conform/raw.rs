//! Calls of the loaded library by symbol, with arguments as numbers.
//!
//! The typed calls of the allocator's crate cannot be asked what rows ask: a null where a place belongs, a call
//! that the allocator never makes. So here any symbol is called with whatever a row says.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};

use ascend_alloc::acl::Acl;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// Most arguments of a call.
pub const MOST: usize = 10;

/// Every argument fills a register or a stack slot of its own, whatever its type in C is.
type AnyCall = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> c_int;

/// The library that the allocator loads, by its symbols.
pub struct Raw {
    library: Library,
    found: RefCell<HashMap<&'static str, Option<AnyCall>>>,
}

impl Raw {
    /// The library that `acl` is.
    ///
    /// # Errors
    ///
    /// What the loader says.
    pub fn of(acl: &Acl) -> Result<Self, String> {
        // SAFETY: it is loaded already, so no initialiser runs.
        let library = unsafe { Library::open(Some(acl.origin()), RTLD_LAZY | RTLD_LOCAL) };
        let library = library.map_err(|error| error.to_string())?;
        Ok(Self { library, found: RefCell::default() })
    }

    /// Whether the library has the symbol.
    #[must_use]
    pub fn has(&self, symbol: &'static str) -> bool {
        self.function(symbol).is_some()
    }

    fn function(&self, symbol: &'static str) -> Option<AnyCall> {
        *self.found.borrow_mut().entry(symbol).or_insert_with(|| {
            let name = CString::new(symbol).ok()?;
            // SAFETY: the address is used under another type only by `call`, which says why it may.
            let found = unsafe { self.library.get::<*const c_void>(name.as_bytes_with_nul()) }.ok()?;
            let address = found.into_raw();
            // SAFETY: it is not null, and a function's address.
            (!address.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, AnyCall>(address) })
        })
    }

    /// Calls a function that answers a code; `None` if the library does not have it.
    ///
    /// # Safety
    ///
    /// The symbol is a function of at most [`MOST`] integers and pointers that answers an `int`. Addresses it
    /// writes to are valid for that. It may end the process all the same if it trusts a handle.
    pub unsafe fn call(&self, symbol: &'static str, arguments: &[u64]) -> Option<i32> {
        let function = self.function(symbol)?;
        let mut all = [0_u64; MOST];
        for (place, value) in all.iter_mut().zip(arguments) {
            *place = *value;
        }
        let [a, b, c, d, e, f, g, h, i, j] = all;
        // SAFETY: the 64-bit conventions of x86-64 and Arm pass each integer and pointer in a register or stack
        // slot of 64 bits, of which a narrower parameter takes the lower part, and the caller removes the slots:
        // more arguments than the function has are not seen. The rest is this function's contract.
        Some(unsafe { function(a, b, c, d, e, f, g, h, i, j) })
    }
}
