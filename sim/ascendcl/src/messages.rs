//! Texts of calls that this layer refused, each thread its own, and the text a thread was given last.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr;

/// Texts of one thread are cut to this many bytes, oldest first, if nobody reads them.
const MOST: usize = 4096;

thread_local! {
    /// Newest first, one a line.
    static REFUSED: RefCell<String> = const { RefCell::new(String::new()) };
    /// What `aclGetRecentErrMsg` answered last.
    static GIVEN: RefCell<CString> = RefCell::default();
}

/// Adds the text of a refused call. A thread that is ending may have no place for it any more.
#[cold]
pub(crate) fn push(text: &str) {
    let _ending = REFUSED.try_with(|texts| {
        let mut texts = texts.borrow_mut();
        let old = std::mem::take(&mut *texts);
        *texts = if old.is_empty() { text.to_owned() } else { format!("{text}\n{old}") };
        let cut = texts.floor_char_boundary(MOST);
        texts.truncate(cut);
    });
}

/// Takes what was pushed.
pub(crate) fn take() -> Option<String> {
    let texts = REFUSED.try_with(|texts| std::mem::take(&mut *texts.borrow_mut()));
    texts.ok().filter(|texts| !texts.is_empty())
}

/// Hands a text out: valid until the thread's next call of this.
pub(crate) fn give(text: Option<String>) -> *const c_char {
    let Some(text) = text.and_then(|text| CString::new(text.replace('\0', "?")).ok()) else {
        return ptr::null();
    };
    let given = GIVEN.try_with(|given| {
        let mut given = given.borrow_mut();
        *given = text.clone();
        given.as_ptr()
    });
    // In a thread that is ending the text has no owner any more and stays for good.
    given.unwrap_or_else(|_| text.into_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_comes_first_and_reading_forgets() {
        push("one");
        push("two");
        assert_eq!(take().as_deref(), Some("two\none"));
        assert_eq!(take(), None);
        for _ in 0..3000 {
            push("much text");
        }
        assert!(take().unwrap().len() <= MOST);
        assert!(give(None).is_null());
    }
}
