//! Copies of many pieces by one call: rectangles and batches.

use ascend_sim::{BatchAttribute, BatchCopy, BatchRefusal, Pitched, Sim};

use crate::entry::{Entry, entry};
use crate::surface::{CANN_8_2, CANN_8_3};
use crate::types::{AclError, Handle, MemcpyBatchAttr, address};

/// Copies the rows of a rectangle at once.
///
/// # Safety
/// A side that is host memory is valid for every row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpy2d(
    to: Handle,
    to_pitch: usize,
    from: Handle,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: u32,
) -> AclError {
    entry("aclrtMemcpy2d").does(|sim| {
        let area = pitched((to, to_pitch), (from, from_pitch), width, height);
        // SAFETY: the caller's promise.
        unsafe { sim.memcpy_2d(&area, kind) }
    })
}

/// The same in stream order.
///
/// # Safety
/// A side that is host memory is valid for every row until the copy has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpy2dAsync(
    to: Handle,
    to_pitch: usize,
    from: Handle,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: u32,
    stream: Handle,
) -> AclError {
    entry("aclrtMemcpy2dAsync").does(|sim| {
        let area = pitched((to, to_pitch), (from, from_pitch), width, height);
        // SAFETY: the caller's promise.
        unsafe { sim.memcpy_2d_async(&area, kind, address(stream)) }
    })
}

/// Copies a batch at once. `failed` may be null; it gets the copy that is to blame, or `SIZE_MAX`.
///
/// # Safety
/// The lists are null or valid for reads of their lengths, `failed` is null or valid for a write, and
/// sides that are host memory are valid for their copies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpyBatch(
    to: *const Handle,
    rooms: *const usize,
    from: *const Handle,
    counts: *const usize,
    copies: usize,
    attributes: *const MemcpyBatchAttr,
    first: *const usize,
    attribute_count: usize,
    failed: *mut usize,
) -> AclError {
    let entry = entry("aclrtMemcpyBatch").since(CANN_8_2);
    let lists = Lists { to, rooms, from, counts, copies, attributes, first, attribute_count };
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        unsafe {
            let batch = lists.read(entry, sim)?;
            blame(failed, sim.memcpy_batch(&batch.copies, &batch.attributes, &batch.first))
        }
    })
}

/// The same in stream order.
///
/// # Safety
/// As [`aclrtMemcpyBatch`]; host memory until the copies have run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpyBatchAsync(
    to: *const Handle,
    rooms: *const usize,
    from: *const Handle,
    counts: *const usize,
    copies: usize,
    attributes: *const MemcpyBatchAttr,
    first: *const usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: Handle,
) -> AclError {
    let entry = entry("aclrtMemcpyBatchAsync").since(CANN_8_3);
    let lists = Lists { to, rooms, from, counts, copies, attributes, first, attribute_count };
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        unsafe {
            let batch = lists.read(entry, sim)?;
            let stream = address(stream);
            blame(failed, sim.memcpy_batch_async(&batch.copies, &batch.attributes, &batch.first, stream))
        }
    })
}

/// A batch as C describes it.
struct Lists {
    to: *const Handle,
    rooms: *const usize,
    from: *const Handle,
    counts: *const usize,
    copies: usize,
    attributes: *const MemcpyBatchAttr,
    first: *const usize,
    attribute_count: usize,
}

/// A batch as the model takes it.
struct Batch {
    copies: Vec<BatchCopy>,
    attributes: Vec<BatchAttribute>,
    first: Vec<usize>,
}

impl Lists {
    /// # Safety
    /// The lists are null or valid for reads of their lengths.
    unsafe fn read(&self, entry: Entry, sim: &Sim) -> Result<Batch, i32> {
        for list in [self.to, self.from] {
            entry.not_null(sim, list)?;
        }
        for list in [self.rooms, self.counts, self.first] {
            entry.not_null(sim, list)?;
        }
        entry.not_null(sim, self.attributes)?;
        let copy = |index| {
            // SAFETY: none of the lists is null, so they are valid for their lengths.
            unsafe {
                BatchCopy {
                    to: address(self.to.add(index).read()),
                    room: self.rooms.add(index).read() as u64,
                    from: address(self.from.add(index).read()),
                    count: self.counts.add(index).read() as u64,
                }
            }
        };
        // More attributes than copies are refused by the model, which need not see them all.
        let attributes = self.attribute_count.min(self.copies.saturating_add(1));
        // SAFETY: as above.
        let (list, first) = unsafe {
            (entry.read_list(self.attributes, attributes), entry.read_list(self.first, attributes))
        };
        Ok(Batch {
            copies: (0..self.copies).map(copy).collect(),
            attributes: list.into_iter().map(BatchAttribute::from).collect(),
            first,
        })
    }
}

fn pitched(to: (Handle, usize), from: (Handle, usize), width: usize, height: usize) -> Pitched {
    Pitched {
        to: address(to.0),
        to_pitch: to.1 as u64,
        from: address(from.0),
        from_pitch: from.1 as u64,
        width: width as u64,
        height: height as u64,
    }
}

/// # Safety
/// `failed` is null or valid for a write.
unsafe fn blame(failed: *mut usize, answer: Result<(), BatchRefusal>) -> Result<(), i32> {
    answer.map_err(|refusal| {
        if !failed.is_null() {
            // SAFETY: it is not null, so it is valid for a write.
            unsafe { failed.write(refusal.index) };
        }
        refusal.code
    })
}
