//! Handing texts to C, and keeping texts for good.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};

use parking_lot::Mutex;

/// Copies a text into a buffer of `room` bytes as `snprintf` does: cut to fit, always with a zero
/// behind it unless `room` is 0; the length of the whole text without the zero.
///
/// # Safety
/// `buffer` is null or valid for writes of `room` bytes.
pub(crate) unsafe fn print(text: &str, buffer: *mut c_char, room: usize) -> c_int {
    if !buffer.is_null() && room > 0 {
        let fits = text.floor_char_boundary(room - 1);
        // SAFETY: `fits` + 1 bytes are within `room`; a new text does not overlap the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), fits);
            buffer.add(fits).write(0);
        }
    }
    c_int::try_from(text.len()).unwrap_or(c_int::MAX)
}

/// The text as one that lives for ever; one copy of each is kept. A zero inside becomes `?`.
pub(crate) fn kept(text: &str) -> &'static CStr {
    static KEPT: Mutex<BTreeMap<String, &'static CStr>> = Mutex::new(BTreeMap::new());
    let mut kept = KEPT.lock();
    if let Some(found) = kept.get(text) {
        return found;
    }
    let new = CString::new(text.replace('\0', "?")).unwrap_or_default();
    let new: &'static CStr = Box::leak(new.into_boxed_c_str());
    kept.insert(text.to_owned(), new);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_fit() {
        let mut buffer = [7 as c_char; 6];
        // SAFETY: the room is that of the buffer, or less.
        unsafe {
            assert_eq!(print("hello", buffer.as_mut_ptr(), 0), 5);
            assert_eq!(buffer[0], 7);
            assert_eq!(print("hello", buffer.as_mut_ptr(), 4), 5);
            assert_eq!((buffer[2], buffer[3], buffer[4]), (b'l' as c_char, 0, 7));
            assert_eq!(print("hello", buffer.as_mut_ptr(), 6), 5);
            assert_eq!(buffer[5], 0);
            assert_eq!(print("hello", std::ptr::null_mut(), 6), 5);
            assert_eq!(print("é", buffer.as_mut_ptr(), 2), 2, "half a character is none");
            assert_eq!(buffer[0], 0);
        }
    }
}
