//! `--verify`: live blocks are disjoint and keep their bytes.
//!
//! The program's own tasks do the work, in stream order like any other use of a block: the task of
//! an allocation writes a pattern that only this block has, the task just before the free reads it
//! again. In between the allocator may have mapped, unmapped and moved whatever it liked.
//!
//! ```text
//!  block  |head|......|w|..............|w|..............|w|....|tail|
//!                      one word in every 2 MiB, or 64 words over the block if it is larger
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ascend_alloc::words::counted;

/// Bytes of the pattern at each end.
const END: u64 = 64;
/// Most words between the ends.
const MOST_WORDS: u64 = 64;
/// One word in each of these.
const CHUNK: u64 = 2 << 20;

/// Access to the bytes of the device as a running task has it.
pub trait Bytes: Send + Sync {
    /// Writes the bytes at a device address.
    ///
    /// # Errors
    /// Nothing is mapped there.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String>;

    /// Reads bytes at a device address.
    ///
    /// # Errors
    /// Nothing is mapped there.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), String>;
}

/// A block that is being watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Device address of its first byte.
    pub address: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Unique number of the allocation; the pattern is made from it.
    pub tag: u64,
}

/// The work of a task.
pub type Work = Box<dyn FnOnce() + Send>;

/// Watches all live blocks of a replay.
pub struct Verifier {
    bytes: Arc<dyn Bytes>,
    live: BTreeMap<u64, Watched>,
    wrong: Arc<Mutex<Vec<String>>>,
    checked: u64,
}

impl Verifier {
    /// Starts with no live block.
    #[must_use]
    pub fn new(bytes: Arc<dyn Bytes>) -> Self {
        Verifier { bytes, live: BTreeMap::new(), wrong: Arc::default(), checked: 0 }
    }

    /// A block was handed out: checks that it touches no other, and returns the work that writes
    /// its pattern.
    pub fn allocated(&mut self, block: Watched) -> Work {
        let end = block.address.saturating_add(block.bytes);
        let before = self.live.range(..end).next_back();
        if let Some((_, other)) = before
            && other.address + other.bytes > block.address
        {
            note(&self.wrong, format!("verify: {} overlaps {}", show(block), show(*other)));
        }
        self.live.insert(block.address, block);
        let (bytes, wrong) = (Arc::clone(&self.bytes), Arc::clone(&self.wrong));
        Box::new(move || {
            for (offset, length) in places(block) {
                let pattern = pattern(block.tag, offset, length);
                if let Err(error) = bytes.write(block.address + offset, &pattern) {
                    note(&wrong, format!("verify: {} cannot be written at +{offset}: {error}", show(block)));
                    return;
                }
            }
        })
    }

    /// A block is about to be freed: returns the work that checks its pattern.
    pub fn freeing(&mut self, block: Watched) -> Work {
        // Not there, or another one, if it overlapped; that was noted.
        if self.live.get(&block.address) == Some(&block) {
            self.live.remove(&block.address);
        }
        self.checked += 1;
        let (bytes, wrong) = (Arc::clone(&self.bytes), Arc::clone(&self.wrong));
        Box::new(move || {
            let mut found = Vec::new();
            for (offset, length) in places(block) {
                found.resize(length, 0);
                if let Err(error) = bytes.read(block.address + offset, &mut found) {
                    note(&wrong, format!("verify: {} cannot be read at +{offset}: {error}", show(block)));
                    return;
                }
                if found != pattern(block.tag, offset, length) {
                    note(&wrong, format!("verify: {} has lost its bytes at +{offset}", show(block)));
                    return;
                }
            }
        })
    }

    /// How many blocks were checked before their free.
    #[must_use]
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// What went wrong since the last call.
    #[must_use]
    pub fn take_wrong(&self) -> Vec<String> {
        std::mem::take(&mut *self.wrong.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn note(wrong: &Mutex<Vec<String>>, text: String) {
    wrong.lock().unwrap_or_else(PoisonError::into_inner).push(text);
}

fn show(block: Watched) -> String {
    {
        let bytes = counted(block.bytes, "byte[s]");
        format!("block {:#x} of {bytes} (allocation {})", block.address, block.tag)
    }
}

/// Where the pattern stands: offset and length, in ascending order, without overlap.
fn places(block: Watched) -> Vec<(u64, usize)> {
    if block.bytes <= 2 * END {
        return vec![(0, block.bytes as usize)];
    }
    let middle = block.bytes - 2 * END;
    let words = block.bytes.div_ceil(CHUNK).min(MOST_WORDS).min(middle / 8);
    let mut places = vec![(0, END as usize)];
    for word in 0..words {
        // Each word lies anywhere in its own share of the middle.
        let share = middle / words;
        let slack = share - 8;
        let inside = if slack == 0 { 0 } else { mix(block.tag ^ (word << 40)) % slack };
        places.push((END + word * share + inside, 8));
    }
    places.push((block.bytes - END, END as usize));
    places
}

/// The bytes that belong at an offset of an allocation.
fn pattern(tag: u64, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = 0;
    while bytes.len() < length {
        bytes.extend_from_slice(&mix(tag.rotate_left(32) ^ (offset + word)).to_le_bytes());
        word += 8;
    }
    bytes.truncate(length);
    bytes
}

/// Spreads a number over all bits (multiply and fold, twice).
fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of a few bytes.
    struct Memory(Mutex<Vec<u8>>);

    impl Bytes for Memory {
        fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
            let mut memory = self.0.lock().unwrap();
            let at = address as usize;
            memory.get_mut(at..at + bytes.len()).ok_or("unmapped")?.copy_from_slice(bytes);
            Ok(())
        }

        fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
            let memory = self.0.lock().unwrap();
            let at = address as usize;
            bytes.copy_from_slice(memory.get(at..at + bytes.len()).ok_or("unmapped")?);
            Ok(())
        }
    }

    fn watched(address: u64, bytes: u64, tag: u64) -> Watched {
        Watched { address, bytes, tag }
    }

    #[test]
    fn places_are_inside_and_apart() {
        for bytes in [1, 7, 128, 129, 136, 137, 200, 4096, CHUNK, 3 * CHUNK + 5, 900 * CHUNK] {
            for tag in 0..50 {
                let mut end = 0;
                for (offset, length) in places(watched(0, bytes, tag)) {
                    assert!(offset >= end, "{bytes} {tag}");
                    end = offset + length as u64;
                }
                assert_eq!(end, bytes);
            }
        }
    }

    #[test]
    fn bytes_that_stay_are_right_and_bytes_that_change_are_not() {
        let memory = Arc::new(Memory(Mutex::new(vec![0; 10_000])));
        let mut verifier = Verifier::new(memory.clone());
        let (first, second) = (watched(0, 1000, 1), watched(1000, 9000, 2));
        verifier.allocated(first)();
        verifier.allocated(second)();
        verifier.freeing(first)();
        assert_eq!(verifier.take_wrong(), Vec::<String>::new());
        memory.0.lock().unwrap()[9_999] ^= 1;
        verifier.freeing(second)();
        let wrong = verifier.take_wrong();
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].contains("has lost its bytes at +8936"), "{wrong:?}");
    }

    #[test]
    fn overlaps_and_unmapped_blocks_are_noted() {
        let mut verifier = Verifier::new(Arc::new(Memory(Mutex::new(vec![0; 1000]))));
        verifier.allocated(watched(0, 100, 1))();
        verifier.allocated(watched(200, 100, 2))();
        verifier.allocated(watched(100, 100, 3))();
        assert!(verifier.take_wrong().is_empty());
        verifier.allocated(watched(299, 10, 4))();
        assert!(verifier.take_wrong()[0].contains("overlaps"));
        verifier.allocated(watched(990, 20, 5))();
        assert!(verifier.take_wrong()[0].contains("cannot be written"));
    }
}
