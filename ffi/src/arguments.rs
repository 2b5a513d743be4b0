//! Arguments of C callers: checked as far as they can be before they are used.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::NonNull;

use crate::process::{Failure, argument};

/// A struct of the header whose first field is its size, so that later versions can grow at the end.
///
/// # Safety
///
/// The type is `repr(C)`, its first field is a `usize` with its size, and every bit pattern is a value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// Its size in the first version of the header that had it.
    const FIRST: usize;
}

/// A place for an answer; null means that it is not wanted where `wanted` is false.
pub(crate) fn place<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    let Some(place) = NonNull::new(pointer) else {
        return Err(argument(format!("{name} is null")));
    };
    if !pointer.is_aligned() {
        return Err(argument(format!(
            "{name} is {pointer:p}, expected a multiple of {}",
            core::mem::align_of::<T>()
        )));
    }
    Ok(place)
}

/// Writes an answer to a place that may be null.
///
/// # Safety
///
/// The place is null, misaligned, or valid for a write.
pub(crate) unsafe fn answer<T>(pointer: *mut T, name: &str, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: not null, aligned, and the caller's promise.
    unsafe { place(pointer, name)?.write(value) };
    Ok(())
}

/// Checks that answers can be written before anything is done.
pub(crate) fn writable<T>(pointer: *mut T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() { Ok(()) } else { place(pointer, name).map(drop) }
}

/// Checks a struct for an answer; its size as the caller knows it.
///
/// # Safety
///
/// The pointer is null, misaligned, or valid for reads and writes of the size that its first field names.
pub(crate) unsafe fn sized<T: Versioned>(pointer: *mut T, name: &str) -> Result<usize, Failure> {
    let place = place(pointer, name)?;
    // SAFETY: the caller's promise; the first field is the size.
    let size = unsafe { place.cast::<usize>().read() };
    if !(T::FIRST..=size_of::<T>()).contains(&size) {
        return Err(argument(format!(
            "{name}->struct_size is {size}, expected sizeof *{name}: {} to {} for this library",
            T::FIRST,
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// Fills a struct whose size was checked with [`sized`].
///
/// # Safety
///
/// As [`sized`], which has answered `size`.
pub(crate) unsafe fn fill<T: Versioned>(pointer: *mut T, size: usize, value: &T) {
    let header = size_of::<usize>();
    // SAFETY: both sides have `size` bytes; the size field itself stays.
    unsafe {
        core::ptr::from_ref(value)
            .cast::<u8>()
            .add(header)
            .copy_to_nonoverlapping(pointer.cast::<u8>().add(header), size - header);
    }
}

/// A struct with options, zero where the caller's version has no such field.
///
/// # Safety
///
/// As [`sized`], for reads.
pub(crate) unsafe fn options<T: Versioned + Default>(pointer: *const T, name: &str) -> Result<T, Failure> {
    // SAFETY: the caller's promise; only read.
    let size = unsafe { sized(pointer.cast_mut(), name) }?;
    let mut value = T::default();
    // SAFETY: `size` bytes are there to read, no more than the type has, and any bits are a value.
    unsafe { pointer.cast::<u8>().copy_to_nonoverlapping((&raw mut value).cast::<u8>(), size) };
    Ok(value)
}

/// A text; nothing for null.
///
/// # Safety
///
/// The pointer is null or points to a text that ends with a zero byte and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|error| argument(format!("{name} is not UTF-8: {error}")))
}

/// Writes a text as snprintf does: at most `room` bytes with the zero behind them, and the length of the whole
/// text without the zero to `length`.
///
/// # Safety
///
/// `buffer` is null or valid for writes of `room` bytes; `length` is null, misaligned or valid for a write.
pub(crate) unsafe fn copy_text(
    text: &str,
    buffer: *mut c_char,
    room: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    if buffer.is_null() && room > 0 {
        return Err(argument(format!("buffer is null and room is {room}, expected 0 with null")));
    }
    // SAFETY: the caller's promise.
    unsafe { answer(length, "length", text.len()) }?;
    if room > 0 {
        let count = text.len().min(room - 1);
        // SAFETY: the buffer has `room` bytes, of which these and the zero are written.
        unsafe {
            text.as_ptr().copy_to_nonoverlapping(buffer.cast::<u8>(), count);
            buffer.add(count).write(0);
        }
    }
    Ok(())
}

/// Something of the caller's that is handed back to its functions.
#[derive(Clone, Copy)]
pub(crate) struct User(*mut c_void);

// SAFETY: the library never looks behind the pointer; the header tells callers which threads get it.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// The function that is told when a [`User`] is not handed out any more.
pub type AscendAllocRelease = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// A [`User`] that is released with the last holder.
pub(crate) struct Held {
    user: User,
    release: AscendAllocRelease,
}

impl Held {
    pub(crate) fn new(user: *mut c_void, release: AscendAllocRelease) -> Self {
        Self { user: User(user), release }
    }

    pub(crate) fn user(&self) -> *mut c_void {
        self.user.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: whoever gave the function promised that it takes this, once, from any thread.
            unsafe { release(self.user.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Sample {
        struct_size: usize,
        first: u64,
        later: u64,
    }

    // SAFETY: `repr(C)`, the size first, and only numbers.
    unsafe impl Versioned for Sample {
        const FIRST: usize = 16;
    }

    #[test]
    fn structs_of_older_headers_get_what_they_have_room_for() {
        let mut old = Sample { struct_size: 16, first: 1, later: 2 };
        // SAFETY: the struct has more bytes than it says.
        let size = unsafe { sized(&raw mut old, "out") }.unwrap();
        // SAFETY: as above.
        unsafe { fill(&raw mut old, size, &Sample { struct_size: 24, first: 7, later: 8 }) };
        assert_eq!(old, Sample { struct_size: 16, first: 7, later: 2 });
        // SAFETY: as above.
        let options = unsafe { options(&raw const old, "options") }.unwrap();
        assert_eq!(options, Sample { struct_size: 16, first: 7, later: 0 });
    }

    #[test]
    fn other_sizes_nulls_and_odd_addresses_are_refused() {
        for wrong in [0, 8, 15, 25, usize::MAX] {
            let mut value = Sample { struct_size: wrong, ..Sample::default() };
            // SAFETY: the first field is there.
            let failure = unsafe { sized(&raw mut value, "out") }.unwrap_err();
            assert!(failure.text.contains("struct_size"), "{}", failure.text);
        }
        assert!(place(core::ptr::null_mut::<u64>(), "out").unwrap_err().text.contains("null"));
        let odd = core::ptr::without_provenance_mut::<u64>(9);
        assert!(place(odd, "out").unwrap_err().text.contains("multiple of 8"));
        assert!(writable(odd, "out").is_err() && writable(core::ptr::null_mut::<u64>(), "out").is_ok());
    }

    #[test]
    fn texts_are_cut_as_snprintf_cuts() {
        let mut buffer = [b'x'; 8];
        let mut length = 0;
        // SAFETY: eight bytes and a place.
        unsafe { copy_text("0123456789", buffer.as_mut_ptr().cast(), 8, &raw mut length) }.unwrap();
        assert_eq!((&buffer, length), (b"0123456\0", 10));
        // SAFETY: nothing is written.
        unsafe { copy_text("0123456789", core::ptr::null_mut(), 0, core::ptr::null_mut()) }.unwrap();
        // SAFETY: refused before anything is written.
        assert!(unsafe { copy_text("0", core::ptr::null_mut(), 1, core::ptr::null_mut()) }.is_err());
    }
}
