//! Pools, the routes that lead requests to them, and captures.

use core::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Weak};

use allocator::driver::{DeviceId, Stream};
use allocator::{EmptyOptions, Error, PoolId, PoolOptions, PoolSource, RouteFilter};
use parking_lot::Mutex;

use crate::arguments::{self, AscendAllocRelease, Held, Versioned};
use crate::process::{self, Failure, argument};
use crate::stats::AscendAllocStatArray;
use crate::{guard, one_handle, tagged};

/// The functions that pools have their memory from.
static FUNCTIONS: Mutex<Vec<Weak<Functions>>> = Mutex::new(Vec::new());

/// Bits of a pool's number that hold its serial; the rest is the device and one.
const SERIAL_BITS: u32 = 40;

/// Gives memory of the device to a pool: the address of size bytes, a multiple of 512, for use first on the
/// stream; null when there is none. Called without any lock, by the thread that allocates; it must not
/// allocate from the same pool, must not give memory that this library has handed out (the request then fails, and the
/// memory stays with the source), and nothing may be thrown out of it. Else it may call this library; what would have
/// to wait for the call that it was called for fails (ASCEND_ALLOC_STATUS_STATE or ASCEND_ALLOC_STATUS_OUT_OF_MEMORY).
pub type AscendAllocSourceMalloc = Option<
    unsafe extern "C" fn(size: usize, device: c_int, stream: *mut c_void, user: *mut c_void) -> *mut c_void,
>;

/// Takes memory back that the function above gave: address and size as then. No queued work uses it any more. Not called
/// for what went with a reset of the device. Called without any lock, by the thread that gives memory back; else as the
/// function above.
pub type AscendAllocSourceFree =
    Option<unsafe extern "C" fn(ptr: *mut c_void, size: usize, device: c_int, user: *mut c_void)>;

/// Whether a route takes the requests for a stream: 0 or not. Called without any lock, by the thread that
/// allocates; it must not allocate from this device, and nothing may be thrown out of it.
pub type AscendAllocAccepts = Option<unsafe extern "C" fn(stream: *mut c_void, user: *mut c_void) -> c_int>;

/// Which requests a route takes.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum AscendAllocFilter {
    /// All of the device.
    All = 0,
    /// Those of the calling thread.
    Thread = 1,
    /// Those for one stream.
    Stream = 2,
    /// Those for one stream, and for streams that are captured into the same graph as it.
    Capture = 3,
}

/// What can be chosen for a pool; all zero but for struct_size is an ordinary one. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocPoolOptions {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// A name for people, and for putting pools to sleep; null for none. Several pools may have the same. Copied.
    pub tag: *const c_char,
    /// Above this it takes idle memory from elsewhere before it asks the device; segments that cannot grow, for which
    /// nothing can be moved, are given back first where they are idle. 0 for never. Nothing fails because of it.
    pub soft_limit: usize,
    /// Where its memory comes from, if not from the device's driver; null for that. It then neither grows
    /// nor moves nor sleeps, and counts towards no limit. Pools with the same functions and source_user share a source: if
    /// that is short, it gets idle memory of all of them back first.
    pub source_malloc: AscendAllocSourceMalloc,
    /// Takes that memory back; not null if source_malloc is not.
    pub source_free: AscendAllocSourceFree,
    /// Passed to both.
    pub source_user: *mut c_void,
    /// Not 0: free blocks are handed out whole or not at all, and merged only when whole chunks of them are wanted
    /// elsewhere.
    pub no_split: c_int,
    /// Not 0: its free blocks serve the default pool before that runs out of memory. While any lent block lives, the pool
    /// cannot be put to sleep; a restored checkpoint leaves lent blocks alone. Lent blocks do not grow in place.
    pub use_on_oom: c_int,
    /// The kind of its segments: 0 as the setting expandable_segments says, 1 those that grow by chunks, whatever it says, so that
    /// the pool can sleep and its blocks can be exported, -1 fixed blocks. Without effect beside source_malloc.
    pub expandable: c_int,
}

// SAFETY: `repr(C)`, the size first, numbers and pointers; a function pointer is checked for null alone, and that
// it is one is the caller's promise.
unsafe impl Versioned for AscendAllocPoolOptions {
    const FIRST: usize = core::mem::offset_of!(Self, expandable);
}

impl Default for AscendAllocPoolOptions {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            tag: core::ptr::null(),
            soft_limit: 0,
            source_malloc: None,
            source_free: None,
            source_user: core::ptr::null_mut(),
            no_split: 0,
            use_on_oom: 0,
            expandable: 0,
        }
    }
}

/// Statistics of a pool. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocPoolStats {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// Bytes handed out, rounded.
    pub allocated_bytes: AscendAllocStatArray,
    /// Bytes handed out or waiting for streams.
    pub active_bytes: AscendAllocStatArray,
    /// Bytes with physical memory behind them.
    pub reserved_bytes: AscendAllocStatArray,
    /// Address space reserved.
    pub reserved_address_space: i64,
    /// Graphs whose addresses are baked in.
    pub graphs: i64,
}

// SAFETY: `repr(C)`, the size first, and only numbers.
unsafe impl Versioned for AscendAllocPoolStats {
    const FIRST: usize = size_of::<Self>();
}

/// A new pool of the device, empty; its number, never 0 and never used again, goes to *pool. options may be
/// null. Sets the allocator up if nobody has.
///
/// Callable from any thread. Given up with ascend_alloc_pool_release.
///
/// # Safety
///
/// options is null or points to as many bytes as its struct_size says, and at least to that field; its tag is
/// null or a text that ends with a zero byte; its functions may be called, from any thread, for as long as the
/// pool has memory. pool is null or valid for a write. Else as ascend_alloc_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_pool_create(
    device: c_int,
    options: *const AscendAllocPoolOptions,
    pool: *mut u64,
) -> c_int {
    guard::status(|| {
        let place = arguments::place(pool, "pool")?;
        let device = process::device(device)?;
        let mut chosen = PoolOptions::default();
        if !options.is_null() {
            // SAFETY: the caller's promise.
            let options = unsafe { arguments::options(options, "options") }?;
            // SAFETY: the caller's promise.
            let tag = unsafe { arguments::text(options.tag, "options->tag") }?;
            chosen.tag = tag.unwrap_or_default().to_owned();
            chosen.no_split = options.no_split != 0;
            chosen.use_on_oom = options.use_on_oom != 0;
            chosen.soft_limit = (options.soft_limit != 0).then_some(options.soft_limit as u64);
            chosen.source = source(&options)?;
            chosen.expandable = kind(options.expandable)?;
        }
        // SAFETY: the caller's promise.
        let made = unsafe { process::allocator() }?.create_pool(device, chosen)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(number(made)) };
        Ok(())
    })
}

/// The kind of segments that a number stands for.
fn kind(expandable: c_int) -> Result<Option<bool>, Failure> {
    match expandable {
        0 => Ok(None),
        1 => Ok(Some(true)),
        -1 => Ok(Some(false)),
        other => Err(argument(format!("options->expandable is {other}, expected -1, 0 or 1"))),
    }
}

/// The number of the device's default pool, for ascend_alloc_pool_begin: requests inside go there whatever routes
/// are outside. 0 for a device that is not there, as far as that is known: once the allocator is set up.
///
/// Callable from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_pool_default(device: c_int) -> u64 {
    guard::everywhere(|| Ok(number(PoolId::default_of(process::known_device(device)?)))).unwrap_or(0)
}

/// Gives up the hold on a pool that ascend_alloc_pool_create made, which is possible once. Live blocks stay valid; what is
/// idle serves other pools, and the pool is gone with its last memory. Until then other calls still take its number. Once
/// nobody holds it any more, idle memory of source_malloc goes back to source_free, because it serves no other pool (while
/// a graph is captured on the device, when that has ended); what is still in use goes with ascend_alloc_empty_cache.
/// ASCEND_ALLOC_STATUS_STATE for the pools that the library makes itself: of tags, of one-handle blocks, and while caching
/// is off.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_pool_release(pool: u64) -> c_int {
    guard::release(|| {
        let pool = id(pool)?;
        if tagged::owns(pool) || one_handle::owns(pool) {
            let reason = "it is the library's own, for a tag or for one-handle blocks, and stays";
            return Err(Error::State { operation: "releasing a pool", reason }.into());
        }
        Ok(process::existing()?.release_pool(pool)?)
    })
}

/// Switches caching of the device off (on is 0) or on again (on is not 0). While it is off, each request that no pool is
/// named for, and no route begun later takes, gets a fixed block of the driver's, which goes back to it with its free; that
/// waits for the streams that used it. A block that was handed out before goes back where it came from. For finding
/// programs that use memory after its free, and how much one needs at least; the blocks are those of a pool with the tag
/// uncached. *before, which may be null, gets 1 if caching was on and 0 if not. Refused while a graph is captured on the
/// device. Sets the allocator up if nobody has.
///
/// Callable from any thread.
///
/// # Safety
///
/// before is null or valid for a write. Else as ascend_alloc_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_caching(device: c_int, on: c_int, before: *mut c_int) -> c_int {
    guard::status(|| {
        arguments::writable(before, "before")?;
        let device = process::device(device)?;
        // SAFETY: the caller's promise.
        let was_on = unsafe { process::allocator() }?.set_caching(device, on != 0)?;
        // SAFETY: the caller's promise.
        unsafe { arguments::answer(before, "before", c_int::from(was_on)) }
    })
}

/// Gives all free memory of the pool back; waits for the streams that used it. Nothing goes back while a graph is being
/// captured on the device. *freed, which may be null, gets the
/// bytes. Callable from any thread. In a forked child it does nothing and succeeds, with 0 bytes.
///
/// # Safety
///
/// freed is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_pool_empty_cache(pool: u64, freed: *mut usize) -> c_int {
    let run = || {
        let pool = id(pool)?;
        let options = EmptyOptions { pool: Some(pool), ..EmptyOptions::default() };
        Ok(process::existing()?.empty_cache_with(Some(pool.device), &options)?)
    };
    // SAFETY: the caller's promise.
    unsafe { guard::freed(freed, run) }
}

/// A block from the pool, whatever routes there are; else as ascend_alloc_malloc.
///
/// # Safety
///
/// As ascend_alloc_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_pool_malloc(
    pool: u64,
    size: usize,
    stream: *mut c_void,
) -> *mut c_void {
    let run = || {
        let (pool, bytes) = (id(pool)?, process::size(size)?);
        let block = process::existing()?.allocate_in(pool, bytes, 0, process::stream(stream))?;
        Ok(process::pointer(block.address()))
    };
    guard::run(run).unwrap_or(core::ptr::null_mut())
}

/// Statistics of a pool; not of the default one. Callable from any thread.
///
/// # Safety
///
/// out is null or points to as many bytes as its struct_size says, and at least to that field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_pool_stats(pool: u64, out: *mut AscendAllocPoolStats) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { arguments::sized(out, "out") }?;
        let stats = process::existing()?.pool_stats(id(pool)?)?;
        let value = AscendAllocPoolStats {
            struct_size: size,
            allocated_bytes: stats.allocated_bytes.into(),
            active_bytes: stats.active_bytes.into(),
            reserved_bytes: stats.reserved_bytes.into(),
            reserved_address_space: stats.reserved_address_space as i64,
            graphs: i64::from(stats.graphs),
        };
        // SAFETY: as above.
        unsafe { arguments::fill(out, size, &value) };
        Ok(())
    })
}

/// From now on requests that the filter, a value of ascend_alloc_filter, takes go to the pool, until
/// ascend_alloc_pool_end. The newest route that takes a request wins, so that routes nest. stream is looked at by
/// the filters that name one. The pool is held meanwhile. No graph is captured by this alone.
///
/// Callable from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_pool_begin(pool: u64, filter: c_int, stream: *mut c_void) -> c_int {
    guard::status(|| {
        let filter = self::filter(filter, stream)?;
        Ok(process::existing()?.begin_route(id(pool)?, filter).map(drop)?)
    })
}

/// The same for requests for streams that a function accepts. Once nobody will call it any more, which can be
/// some time after the route has ended, release is called with user; it may be null. After a failure
/// release is called before this returns.
///
/// # Safety
///
/// accepts may be called with user from any thread until release is called, and release once from any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_pool_begin_with(
    pool: u64,
    accepts: AscendAllocAccepts,
    user: *mut c_void,
    release: AscendAllocRelease,
) -> c_int {
    let held = Held::new(user, release);
    guard::status(move || {
        let filter = accepting(accepts, held)?;
        Ok(process::existing()?.begin_route(id(pool)?, filter).map(drop)?)
    })
}

/// Ends the newest route to the pool that this thread began, or if it began none the newest of all; also one of a
/// capture. Routes of one thread end in the order opposite to the one they began in; another order is refused with
/// ASCEND_ALLOC_STATUS_STATE.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_pool_end(pool: u64) -> c_int {
    guard::release(|| Ok(process::existing()?.end_route(id(pool)?)?))
}

/// Begins to capture a graph into the pool: as ascend_alloc_pool_begin, and the pool's addresses stay mapped until
/// ascend_alloc_graph_release. Until ascend_alloc_pool_end ends the capture, nothing of the whole device's memory
/// is moved, given back or waited for: a request that free and new memory cannot serve fails. Several graphs may share a
/// pool if they never run at the same time, and run in the order they were captured in or use no results of one another. The default pool is refused;
/// ASCEND_ALLOC_STATUS_STATE while the pool sleeps. To be called before the driver begins to capture: streams that may
/// still use the pool's free memory are asked now, by an event each, and no event that another thread is recording comes
/// into the graph. Where a route that begins later, also that of another capture, sends a request that the filter takes to
/// another pool, the addresses of that one stay mapped too (those of the default pool do not).
///
/// Callable from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_capture_begin(pool: u64, filter: c_int, stream: *mut c_void) -> c_int {
    guard::status(|| {
        let filter = self::filter(filter, stream)?;
        Ok(process::existing()?.begin_capture(id(pool)?, filter).map(drop)?)
    })
}

/// The same with a function, as ascend_alloc_pool_begin_with.
///
/// # Safety
///
/// As ascend_alloc_pool_begin_with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_capture_begin_with(
    pool: u64,
    accepts: AscendAllocAccepts,
    user: *mut c_void,
    release: AscendAllocRelease,
) -> c_int {
    let held = Held::new(user, release);
    guard::status(move || {
        let filter = accepting(accepts, held)?;
        Ok(process::existing()?.begin_capture(id(pool)?, filter).map(drop)?)
    })
}

/// A graph captured into the pool is gone, or its capture has failed: once for each
/// ascend_alloc_capture_begin, also after a reset of the device, which ends all graphs: those that it has ended come first,
/// and their release does nothing else. ASCEND_ALLOC_STATUS_STATE when all were released.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_graph_release(pool: u64) -> c_int {
    guard::release(|| Ok(process::existing()?.release_graph(id(pool)?)?))
}

/// The pool that a number names.
pub(crate) fn id(number: u64) -> Result<PoolId, Failure> {
    let unknown =
        || argument(format!("pool is {number:#x}, expected a number from ascend_alloc_pool_create"));
    let device = (number >> SERIAL_BITS).checked_sub(1).ok_or_else(unknown)?;
    let device = DeviceId::try_from(device).map_err(|_| unknown())?;
    Ok(PoolId { device, serial: number & ((1 << SERIAL_BITS) - 1) })
}

/// The number of a pool.
pub(crate) fn number(pool: PoolId) -> u64 {
    (u64::from(pool.device) + 1) << SERIAL_BITS | pool.serial
}

/// The number of a pool as questions answer it: 0 for the default one.
pub(crate) fn shown(pool: PoolId) -> u64 {
    if pool.serial == 0 { 0 } else { number(pool) }
}

fn filter(filter: c_int, stream: *mut c_void) -> Result<RouteFilter, Failure> {
    const ALL: c_int = AscendAllocFilter::All as c_int;
    const THREAD: c_int = AscendAllocFilter::Thread as c_int;
    const STREAM: c_int = AscendAllocFilter::Stream as c_int;
    const CAPTURE: c_int = AscendAllocFilter::Capture as c_int;
    let stream = process::stream(stream);
    Ok(match filter {
        ALL => RouteFilter::All,
        THREAD => RouteFilter::ThisThread,
        STREAM => RouteFilter::Stream(stream),
        CAPTURE => RouteFilter::CapturedWith(stream),
        _ => return Err(argument(format!("filter is {filter}, expected a value of ascend_alloc_filter"))),
    })
}

fn accepting(accepts: AscendAllocAccepts, held: Held) -> Result<RouteFilter, Failure> {
    let Some(accepts) = accepts else { return Err(argument("accepts is null".to_owned())) };
    Ok(RouteFilter::Accepts(Arc::new(move |stream: Stream| {
        // SAFETY: the caller promised that it may be called until the pointer is released.
        unsafe { accepts(process::pointer(stream.0), held.user()) != 0 }
    })))
}

/// Memory from functions of the caller's.
struct Functions {
    malloc: unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, usize, c_int, *mut c_void),
    user: Held,
}

impl Functions {
    /// The one object for these functions and that pointer, so that pools with the same ones have the same source.
    fn shared(self) -> Arc<Self> {
        let mut all = FUNCTIONS.lock();
        all.retain(|known| known.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade).find(|known| known.is(&self));
        known.unwrap_or_else(|| {
            let new = Arc::new(self);
            all.push(Arc::downgrade(&new));
            new
        })
    }

    fn is(&self, other: &Self) -> bool {
        core::ptr::fn_addr_eq(self.malloc, other.malloc)
            && core::ptr::fn_addr_eq(self.free, other.free)
            && self.user.user() == other.user.user()
    }
}

fn source(options: &AscendAllocPoolOptions) -> Result<Option<Arc<dyn PoolSource>>, Failure> {
    match (options.source_malloc, options.source_free) {
        (None, None) => Ok(None),
        (Some(malloc), Some(free)) => {
            Ok(Some(Functions { malloc, free, user: Held::new(options.source_user, None) }.shared()))
        }
        _ => Err(argument("only one of options->source_malloc and source_free is null".to_owned())),
    }
}

impl PoolSource for Functions {
    fn allocate(&self, device: DeviceId, bytes: u64, stream: Stream) -> Option<u64> {
        let (size, device) = (usize::try_from(bytes).ok()?, c_int::try_from(device).ok()?);
        // SAFETY: the caller promised that it may be called while the pool has memory.
        let address = unsafe { (self.malloc)(size, device, process::pointer(stream.0), self.user.user()) };
        (!address.is_null()).then(|| address.expose_provenance() as u64)
    }

    fn free(&self, device: DeviceId, address: u64, bytes: u64) {
        // SAFETY: as above.
        unsafe { (self.free)(process::pointer(address), bytes as usize, device as c_int, self.user.user()) };
    }
}
