//! Allocators of ACL's own hook: GE graphs and operators take their workspaces from ours.
//!
//! ```text
//!  operator ── alloc(object, size) ──► block ── address(block) ──► device memory
//!                     │                  │
//!                     │                  └─ the block's address, so a block needs no table
//!                     └─ a number that names (device, stream)
//! ```
//!
//! The functions get neither stream nor device, so each pair has an object of its own. Objects are numbers that
//! are looked up: one that was forgotten hands out nothing. Streams that end are learnt from a state callback of
//! this module's own, which notes them; the next call here takes the note up.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use allocator::acl::AllocatorFunctions;
use allocator::driver::{DeviceId, Driver, StateChanges, Stream};
use allocator::{DevicePtr, Error};
use parking_lot::Mutex;

use crate::process::{Failure, Process, argument};
use crate::{guard, process};

/// The streams that are registered, by the number of their object.
static OBJECTS: Mutex<Objects> = Mutex::new(Objects { last: 0, entries: BTreeMap::new() });
/// Streams that end, from the first registration on.
static CHANGES: OnceLock<Arc<StateChanges>> = OnceLock::new();

struct Objects {
    last: usize,
    entries: BTreeMap<usize, (DeviceId, Stream)>,
}

/// Registers this library as allocator of a stream with aclrtAllocatorRegister, so that GE graphs and operators of
/// ACL that run on it take their workspaces from here. Registering a stream twice does no harm. ACL refuses the
/// default stream (null).
///
/// The registration ends with ascend_alloc_unregister_acl_allocator, with ascend_alloc_stream_destroyed, and from
/// CANN 8.5 on with the stream itself. Callable from any thread that has a context of the device.
///
/// # Safety
///
/// stream is a live stream of the device. Unless ascend_alloc_init was called before, what it asks of the
/// environment holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_register_acl_allocator(device: c_int, stream: *mut c_void) -> c_int {
    guard::status(|| {
        process::device(device)?;
        if stream.is_null() {
            return Err(argument("stream is null: ACL takes no allocator for the default stream".to_owned()));
        }
        // SAFETY: the caller's promise.
        let process = unsafe { process::process() }?;
        let device = process::known_device(device)?;
        watch(process);
        heed();
        register(process, device, stream)
    })
}

/// Ends what ascend_alloc_register_acl_allocator began. To be called when no operator is running on the stream that
/// has taken a workspace; blocks still out can be given back all the same. A stream that is not registered is no
/// error. Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_unregister_acl_allocator(device: c_int, stream: *mut c_void) -> c_int {
    guard::release(|| {
        let device = process::known_device(device)?;
        heed();
        end(device, process::stream(stream))
    })
}

/// Ends the registration of a stream that is still live, if there is one.
pub(crate) fn end(device: DeviceId, stream: Stream) -> Result<(), Failure> {
    if !forget(device, stream) {
        return Ok(());
    }
    let Some(process) = process::process_if_set_up() else { return Ok(()) };
    // SAFETY: the stream was registered as a live one.
    let ended = unsafe { process.driver.acl().unregister_allocator(process::pointer(stream.0)) };
    ended.map_err(|error| Error::from(error).into())
}

/// Forgets the objects of streams that have ended. ACL may have kept the registration: should another stream get the
/// same handle, it would be in force for that one.
pub(crate) fn heed() {
    let Some(changes) = CHANGES.get().filter(|changes| changes.any()) else { return };
    // Of more streams than are kept it is not known which; their objects then stay, which does no harm.
    let ended = changes.drain().unwrap_or_default();
    let mut gone = Vec::new();
    OBJECTS.lock().entries.retain(|&number, entry| {
        let stays = !ended.contains(&entry.1);
        if !stays {
            gone.push((number, entry.1));
        }
        stays
    });
    let Some(process) = process::process_if_set_up() else { return };
    for (number, stream) in gone {
        let (acl, stream) = (process.driver.acl(), process::pointer(stream.0));
        // SAFETY: the stream was a live one.
        let object = unsafe { acl.allocator_object(stream) };
        if object.is_ok_and(|object| object.addr() == number) {
            // SAFETY: as above.
            let _ended = unsafe { acl.unregister_allocator(stream) };
        }
    }
}

fn forget(device: DeviceId, stream: Stream) -> bool {
    let mut objects = OBJECTS.lock();
    let before = objects.entries.len();
    objects.entries.retain(|_, entry| *entry != (device, stream));
    objects.entries.len() < before
}

/// Also for a stream that is registered: where ends of streams are not told, it may be another one by now.
fn register(process: &Process, device: DeviceId, stream: *mut c_void) -> Result<(), Failure> {
    let pair = (device, process::stream(stream));
    let (number, new) = {
        let mut objects = OBJECTS.lock();
        let known = objects.entries.iter().find(|(_, entry)| **entry == pair).map(|(&number, _)| number);
        known.map_or_else(
            || {
                objects.last += 1;
                let number = objects.last;
                objects.entries.insert(number, pair);
                (number, true)
            },
            |number| (number, false),
        )
    };
    let functions = AllocatorFunctions {
        object: core::ptr::without_provenance_mut(number),
        alloc: Some(alloc),
        free: Some(free),
        advise: Some(advise),
        address: Some(address),
    };
    // SAFETY: the caller's promise; the functions look the object up and stay for ever.
    let registered = unsafe { process.driver.acl().register_allocator(stream, &functions) };
    registered.map_err(|error| {
        if new {
            OBJECTS.lock().entries.remove(&number);
        }
        Error::from(error).into()
    })
}

/// Has ends of streams noted from now on.
fn watch(process: &Process) {
    CHANGES.get_or_init(|| {
        let changes = Arc::new(StateChanges::default());
        process.driver.watch_states(&changes);
        changes
    });
}

unsafe extern "C" fn alloc(object: *mut c_void, size: usize) -> *mut c_void {
    let run = || {
        // Before ends of streams are taken up: where the handle is that of a new stream by now, that one asks.
        let pair = OBJECTS.lock().entries.get(&object.addr()).copied();
        heed();
        let Some((device, stream)) = pair else {
            return Err(argument(format!("{object:p} is no allocator of a stream that is registered")));
        };
        let bytes = process::size(size)?.max(1);
        let block = process::existing()?.allocate(device, bytes, 0, stream)?;
        Ok(process::pointer(block.address()))
    };
    guard::run(run).unwrap_or(core::ptr::null_mut())
}

unsafe extern "C" fn free(_object: *mut c_void, block: *mut c_void) {
    // Also for an object that is forgotten: the block knows where it belongs.
    let _kept = guard::release(|| match block.is_null() {
        true => Ok(()),
        false => Ok(process::existing()?.deallocate(DevicePtr(block.addr() as u64))?),
    });
}

unsafe extern "C" fn advise(object: *mut c_void, size: usize, _wanted: *mut c_void) -> *mut c_void {
    // Advice may be ignored, and blocks cannot be placed.
    // SAFETY: the object is looked up, not followed.
    unsafe { alloc(object, size) }
}

unsafe extern "C" fn address(block: *mut c_void) -> *mut c_void {
    block
}
