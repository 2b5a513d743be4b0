//! The C interface. A process has one allocator, so there is one of these in a process.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::ffi::CString;

use super::functions::{
    BlockEntry, BlockEntryInfo, BufferEntry, BufferOptions, Event, Functions, HostStats, PoolOptions,
    Request, SegmentEntry, Stats,
};
use super::{
    Answer, BlockInfo, Books, BufferInfo, Filter, FreeMemory, Hook, HostBooks, Kind, Piece, PoolChoice,
    Refusal, Stretch, Surface,
};

/// The allocator of this process, by its C functions.
#[derive(Clone, Copy, Debug)]
pub struct CSurface {
    c: Functions,
}

fn pointer(number: u64) -> *mut c_void {
    with_exposed_provenance_mut(number as usize)
}

fn number(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// A struct with its size, as the library wants it.
macro_rules! sized {
    ($kind:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut made = $kind::zero();
        made.struct_size = size_of::<$kind>();
        $(made.$field = $value;)*
        made
    }};
}

impl CSurface {
    /// Sets the allocator of this process up. Where it is set up already, its settings stay.
    ///
    /// # Errors
    ///
    /// What the library says.
    ///
    /// # Safety
    ///
    /// As `ascend_alloc_init`; the caller passes through this surface only what those functions take.
    pub unsafe fn new(c: Functions, conf: &str) -> Answer<Self> {
        let surface = Self { c };
        let conf = CString::new(conf).expect("a configuration has no zero byte");
        // SAFETY: the text ends; else the caller's promise.
        match surface.answer(unsafe { (c.init)(conf.as_ptr()) }) {
            Err(refusal) if refusal.kind != Kind::State => Err(refusal),
            _ => Ok(surface),
        }
    }

    /// The functions.
    #[must_use]
    pub fn functions(&self) -> &Functions {
        &self.c
    }

    fn answer(&self, status: c_int) -> Answer<()> {
        if status == 0 { Ok(()) } else { Err(self.refusal(status)) }
    }

    fn refusal(&self, status: c_int) -> Refusal {
        // SAFETY: no arguments; the text is this thread's and copied before its next call.
        let text = unsafe { (self.c.last_error)() };
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: not null, so a text that ends.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let kind = match status {
            1 => Kind::Argument,
            4 => Kind::Driver,
            5 => Kind::State,
            6 => Kind::OutOfMemory,
            _ => Kind::Other,
        };
        Refusal { kind, text: format!("status {status}: {text}") }
    }

    /// A block, or why there is none.
    fn block_or_why(&self, block: *mut c_void) -> Answer<u64> {
        // SAFETY: no arguments.
        let status = unsafe { (self.c.last_status)() };
        match (block.is_null(), status) {
            (_, 0) => Ok(number(block)),
            (true, status) => Err(self.refusal(status)),
            (false, status) => panic!("{block:?} with status {status}"),
        }
    }
}

fn filter(filter: Filter) -> (c_int, *mut c_void) {
    match filter {
        Filter::All => (0, null_mut()),
        Filter::Thread => (1, null_mut()),
        Filter::Stream(stream) => (2, pointer(stream)),
    }
}

unsafe extern "C" fn told(event: *const Event, user: *mut c_void) {
    // SAFETY: the library passes an event and the hook it was given, until it releases it.
    unsafe { (*user.cast::<Hook>())((*event).device as u32) };
}

unsafe extern "C" fn asked(device: c_int, _bytes: usize, user: *mut c_void) -> c_int {
    // SAFETY: the library passes the callback it was given, until it releases it.
    c_int::from(unsafe { (*user.cast::<FreeMemory>())(device as u32) })
}

unsafe extern "C" fn drop_hook(user: *mut c_void) {
    // SAFETY: made by `Box::into_raw` and released once.
    drop(unsafe { Box::from_raw(user.cast::<Hook>()) });
}

unsafe extern "C" fn drop_callback(user: *mut c_void) {
    // SAFETY: made by `Box::into_raw` and released once.
    drop(unsafe { Box::from_raw(user.cast::<FreeMemory>()) });
}

unsafe extern "C" fn visit(segment: *const SegmentEntry, block: *const BlockEntry, user: *mut c_void) {
    // SAFETY: `snapshot` passes its list, and the library one entry at a time.
    let (stretches, segment, block) =
        unsafe { (&mut *user.cast::<Vec<Stretch>>(), segment.as_ref(), block.as_ref()) };
    if let Some(segment) = segment {
        stretches.push(Stretch {
            address: number(segment.ptr),
            bytes: segment.size as u64,
            is_asleep: segment.is_asleep != 0,
            chunks: None,
            pieces: Vec::new(),
        });
    }
    if let (Some(block), Some(stretch)) = (block, stretches.last_mut()) {
        stretch.pieces.push(Piece {
            address: number(block.ptr),
            bytes: block.size as u64,
            requested: block.requested as u64,
            live: block.state == 1,
            active: block.state != 0,
        });
    }
}

// In all calls below pointers are to values on the stack of the caller that have their size said, and what the
// addresses and numbers stand for is the program's to know: hence one reason for all of them.
macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: places for answers are on this stack, structs say their size; else the promise of `new`.
        unsafe { ($self.c.$name)($($argument),*) }
    };
}

impl Surface for CSurface {
    fn allocate(&self, device: u32, bytes: u64, align: u64, stream: u64) -> Answer<u64> {
        if align == 0 {
            return self.block_or_why(call!(self.malloc(bytes as usize, device as c_int, pointer(stream))));
        }
        let request = sized!(Request {
            size: bytes as usize,
            alignment: align as usize,
            stream: pointer(stream),
            device: device as c_int,
        });
        let mut out = null_mut();
        self.answer(call!(self.allocate(&raw const request, &raw mut out)))?;
        Ok(number(out))
    }

    fn allocate_in(&self, pool: u64, bytes: u64, stream: u64) -> Answer<u64> {
        self.block_or_why(call!(self.pool_malloc(pool, bytes as usize, pointer(stream))))
    }

    fn free(&self, address: u64) -> Answer<()> {
        self.answer(call!(self.release(pointer(address))))
    }

    fn record(&self, address: u64, stream: u64) -> Answer<()> {
        self.answer(call!(self.record_stream(pointer(address), pointer(stream))))
    }

    fn erase(&self, address: u64, stream: u64) -> Answer<()> {
        self.answer(call!(self.erase_stream(pointer(address), pointer(stream))))
    }

    fn grow(&self, address: u64, bytes: u64) -> Answer<bool> {
        let mut grown = 7;
        self.answer(call!(self.grow_in_place(pointer(address), bytes as usize, &raw mut grown)))?;
        Ok(grown != 0)
    }

    fn shrink(&self, address: u64, bytes: u64) -> Answer<()> {
        self.answer(call!(self.shrink_in_place(pointer(address), bytes as usize)))
    }

    fn block(&self, address: u64) -> Answer<BlockInfo> {
        let mut info = sized!(BlockEntryInfo {});
        self.answer(call!(self.block_info(pointer(address), &raw mut info)))?;
        Ok(BlockInfo {
            device: info.device as u32,
            address: number(info.ptr),
            bytes: info.size as u64,
            requested: info.requested as u64,
            stream: number(info.stream),
            segment: number(info.segment),
            segment_bytes: info.segment_size as u64,
        })
    }

    fn stream_destroyed(&self, device: u32, stream: u64) -> Answer<()> {
        self.answer(call!(self.stream_destroyed(device as c_int, pointer(stream))))
    }

    fn device_was_reset(&self, device: u32) -> Answer<()> {
        self.answer(call!(self.device_was_reset(device as c_int)))
    }

    fn trim(&self, device: u32, keep: u64) -> Answer<u64> {
        let mut freed = 0;
        self.answer(call!(self.trim(device as c_int, keep as usize, &raw mut freed)))?;
        Ok(freed as u64)
    }

    fn empty(&self, device: i32) -> Answer<()> {
        self.answer(call!(self.empty_cache(device)))
    }

    fn set_fraction(&self, device: u32, fraction: f64) -> Answer<()> {
        self.answer(call!(self.set_memory_fraction(fraction, device as c_int)))
    }

    fn set_limits(&self, _device: u32, _hard: Option<u64>, _soft: Option<u64>) -> Option<Answer<()>> {
        None
    }

    fn set_peers(&self, device: u32, peers: &[u32]) -> Answer<()> {
        let peers: Vec<i32> = peers.iter().map(|&peer| peer as i32).collect();
        self.answer(call!(self.set_peers(device as c_int, peers.as_ptr(), peers.len())))
    }

    fn books(&self, device: u32) -> Answer<Books> {
        let mut stats = sized!(Stats {});
        self.answer(call!(self.stats(device as c_int, &raw mut stats)))?;
        Ok(Books {
            allocations: stats.allocation.all.current,
            allocated: stats.allocated_bytes.all.current,
            allocated_peak: stats.allocated_bytes.all.peak,
            requested: stats.requested_bytes.all.current,
            active: stats.active_bytes.all.current,
            reserved: stats.reserved_bytes.all.current,
            segments: stats.segment.all.current,
            sleeping: stats.sleeping_bytes,
            cached_handles: stats.cached_handles,
            address_space: stats.reserved_address_space,
        })
    }

    fn reset_peaks(&self, device: u32) -> Answer<()> {
        self.answer(call!(self.reset_peak_stats(device as c_int)))
    }

    fn reset_sums(&self, device: u32) -> Answer<()> {
        self.answer(call!(self.reset_accumulated_stats(device as c_int)))
    }

    fn snapshot(&self, device: u32) -> Answer<Vec<Stretch>> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let user = (&raw mut stretches).cast();
        self.answer(call!(self.snapshot_visit(device as c_int, Some(visit), user)))?;
        Ok(stretches)
    }

    fn set_hook(&self, hook: Option<Hook>) -> Answer<()> {
        self.answer(match hook {
            None => call!(self.set_event_hook(None, null_mut(), None)),
            Some(hook) => {
                let user = Box::into_raw(Box::new(hook)).cast();
                call!(self.set_event_hook(Some(told), user, Some(drop_hook)))
            }
        })
    }

    fn add_callback(&self, callback: FreeMemory) -> Answer<u64> {
        let (user, mut added) = (Box::into_raw(Box::new(callback)).cast(), 0);
        self.answer(call!(self.add_memory_callback(Some(asked), user, Some(drop_callback), &raw mut added)))?;
        Ok(added)
    }

    fn remove_callback(&self, number: u64) -> Answer<()> {
        self.answer(call!(self.remove_memory_callback(number)))
    }

    fn create_pool(&self, device: u32, choice: PoolChoice) -> Answer<u64> {
        let tag = CString::new(choice.tag).expect("a tag has no zero byte");
        let options = sized!(PoolOptions {
            tag: tag.as_ptr(),
            soft_limit: choice.soft_limit as usize,
            no_split: c_int::from(choice.no_split),
            use_on_oom: c_int::from(choice.use_on_oom),
        });
        let mut pool = 0;
        self.answer(call!(self.pool_create(device as c_int, &raw const options, &raw mut pool)))?;
        Ok(pool)
    }

    fn release_pool(&self, pool: u64) -> Answer<()> {
        self.answer(call!(self.pool_release(pool)))
    }

    fn begin_route(&self, pool: u64, chosen: Filter) -> Answer<()> {
        let (kind, stream) = filter(chosen);
        self.answer(call!(self.pool_begin(pool, kind, stream)))
    }

    fn begin_capture(&self, pool: u64, chosen: Filter) -> Answer<()> {
        let (kind, stream) = filter(chosen);
        self.answer(call!(self.capture_begin(pool, kind, stream)))
    }

    fn end_route(&self, pool: u64) -> Answer<()> {
        self.answer(call!(self.pool_end(pool)))
    }

    fn release_graph(&self, pool: u64) -> Answer<()> {
        self.answer(call!(self.graph_release(pool)))
    }

    fn checkpoint(&self, pool: u64) -> Answer<u64> {
        let mut checkpoint = 0;
        self.answer(call!(self.checkpoint(pool, &raw mut checkpoint)))?;
        Ok(checkpoint)
    }

    fn restore(&self, checkpoint: u64) -> Answer<(Vec<u64>, Vec<u64>)> {
        const ROOM: usize = 4096;
        let (mut freed, mut handed_out) = (vec![null_mut(); ROOM], vec![null_mut(); ROOM]);
        let (mut freed_count, mut count) = (0, 0);
        self.answer(call!(self.checkpoint_restore(
            checkpoint,
            freed.as_mut_ptr(),
            ROOM,
            &raw mut freed_count,
            handed_out.as_mut_ptr(),
            ROOM,
            &raw mut count,
        )))?;
        assert!(freed_count <= ROOM && count <= ROOM, "programs are smaller than that");
        let addresses = |list: &[*mut c_void]| list.iter().map(|&ptr| number(ptr)).collect();
        Ok((addresses(&freed[..freed_count]), addresses(&handed_out[..count])))
    }

    fn release_checkpoint(&self, checkpoint: u64) -> Answer<()> {
        self.answer(call!(self.checkpoint_release(checkpoint)))
    }

    fn sleep(&self, device: u32, tag: &str, keep: bool) -> Answer<()> {
        let tag = CString::new(tag).expect("a tag has no zero byte");
        let tags = [tag.as_ptr()];
        self.answer(call!(self.sleep(device as c_int, tags.as_ptr(), 1, c_int::from(keep), null_mut())))
    }

    fn wake(&self, device: u32, tag: &str) -> Answer<()> {
        let tag = CString::new(tag).expect("a tag has no zero byte");
        let tags = [tag.as_ptr()];
        self.answer(call!(self.wake(device as c_int, tags.as_ptr(), 1, null_mut())))
    }

    fn is_asleep(&self, pool: u64) -> Answer<bool> {
        let mut asleep = 7;
        self.answer(call!(self.is_asleep(pool, &raw mut asleep)))?;
        Ok(asleep != 0)
    }

    fn create_buffer(&self, device: u32, stream: u64, max: u64, bytes: u64) -> Answer<u64> {
        let options = sized!(BufferOptions { max_size: max as usize, size: bytes as usize });
        let mut buffer = 0;
        let status =
            call!(self.buffer_create(device as c_int, pointer(stream), &raw const options, &raw mut buffer));
        self.answer(status)?;
        Ok(buffer)
    }

    fn resize_buffer(&self, buffer: u64, bytes: u64) -> Answer<()> {
        self.answer(call!(self.buffer_resize(buffer, bytes as usize)))
    }

    fn record_buffer(&self, buffer: u64, stream: u64) -> Answer<()> {
        self.answer(call!(self.buffer_record_stream(buffer, pointer(stream))))
    }

    fn buffer(&self, buffer: u64) -> Answer<BufferInfo> {
        let mut info = sized!(BufferEntry {});
        self.answer(call!(self.buffer_info(buffer, &raw mut info)))?;
        Ok(BufferInfo {
            address: number(info.ptr),
            bytes: info.size as u64,
            max_bytes: info.max_size as u64,
            mapped_bytes: info.mapped as u64,
        })
    }

    fn destroy_buffer(&self, buffer: u64) -> Answer<()> {
        self.answer(call!(self.buffer_destroy(buffer)))
    }

    fn export(&self, address: u64) -> Answer<(u64, Vec<u8>)> {
        let (mut export, mut length) = (0, 0);
        self.answer(call!(self.export(pointer(address), null(), &raw mut export)))?;
        self.answer(call!(self.export_message(export, null_mut(), 0, &raw mut length)))?;
        let mut message = vec![0u8; length];
        let room = message.len();
        self.answer(call!(self.export_message(export, message.as_mut_ptr().cast(), room, &raw mut length)))?;
        Ok((export, message))
    }

    fn release_export(&self, export: u64) -> Answer<()> {
        self.answer(call!(self.export_release(export)))
    }

    fn import(&self, message: &[u8], device: u32, stream: u64) -> Answer<(u64, u64, u64)> {
        let (mut ptr, mut size, mut import) = (null_mut(), 0, 0);
        self.answer(call!(self.import(
            message.as_ptr().cast(),
            message.len(),
            device as c_int,
            pointer(stream),
            &raw mut ptr,
            &raw mut size,
            &raw mut import,
        )))?;
        Ok((import, number(ptr), size as u64))
    }

    fn record_import(&self, import: u64, stream: u64) -> Answer<()> {
        self.answer(call!(self.import_record_stream(import, pointer(stream))))
    }

    fn release_import(&self, import: u64) -> Answer<()> {
        self.answer(call!(self.import_release(import)))
    }

    fn host_allocate(&self, bytes: u64) -> Answer<u64> {
        self.block_or_why(call!(self.host_malloc(bytes as usize, 0)))
    }

    fn host_free(&self, address: u64) -> Answer<()> {
        self.answer(call!(self.host_free(pointer(address))))
    }

    fn host_record(&self, address: u64, device: u32, stream: u64) -> Answer<()> {
        self.answer(call!(self.host_record_stream(pointer(address), device as c_int, pointer(stream))))
    }

    fn host_empty(&self, waiting: bool) -> Answer<()> {
        self.answer(match waiting {
            true => call!(self.host_empty_cache_waiting()),
            false => call!(self.host_empty_cache()),
        })
    }

    fn host_books(&self) -> Answer<HostBooks> {
        let mut stats = sized!(HostStats {});
        self.answer(call!(self.host_get_stats(0, &raw mut stats)))?;
        Ok(HostBooks {
            active_requests: stats.active_requests.current,
            active: stats.active_bytes.current,
            held: stats.allocated_bytes.current,
        })
    }

    fn check(&self) -> Result<(), Vec<String>> {
        Ok(())
    }
}
