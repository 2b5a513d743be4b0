//! Performing a step on a driver, without any lock.

use super::plan::{
    Closed, Closing, GiveBack, GivenBack, Means, Outcome, Phase, Recorded, Remap, Remapped, Spare, Step,
    ToClose,
};
use super::stream::StreamId;
use super::wide::Wide;
use crate::driver::{DeviceId, Driver, DriverError, PageKind, PhysicalHandle, Stream};
use crate::stats::DriverCalls;

/// What [`perform`] needs besides the step.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    /// The driver.
    pub(crate) driver: &'a dyn Driver,
    /// The device.
    pub(crate) device: DeviceId,
    /// Bytes of a chunk.
    pub(crate) granule: u64,
    /// Pages behind chunks.
    pub(crate) pages: PageKind,
    /// Wide chunks, if there are any.
    pub(crate) wide: Option<Wide>,
}

/// Calls the driver for a step that needs it, and counts the calls. No lock may be held.
pub(crate) fn perform(caller: Caller<'_>, step: Step, calls: &mut DriverCalls) -> Outcome {
    let Caller { driver, device, .. } = caller;
    match step {
        Step::Query(closing) => query(caller, &closing, calls),
        Step::Record(streams) => Outcome::Recorded(record_all(caller, streams, calls)),
        Step::RecordAndAsk(streams) => {
            let mut recorded = record_all(caller, streams, calls);
            for (_, _, result) in &mut recorded {
                let Recorded::Done(event) = *result else { continue };
                calls.query_event += 1;
                // Where that cannot be told now, somebody asks again later.
                if driver.query_event(device, event).unwrap_or(false) {
                    *result = Recorded::Over(event);
                }
            }
            Outcome::Recorded(recorded)
        }
        Step::Join(waiter, handle, others) => join(caller, waiter, handle, others, calls),
        Step::Reserve(class, wish, least) => Outcome::Reserved(class, reserve(caller, wish, least, calls)),
        Step::Remap(remap) => {
            let remapped = remap_chunks(caller, &remap, calls);
            Outcome::Remapped(remap, Box::new(remapped))
        }
        Step::Classic(class, bytes, stream, source) => {
            calls.malloc += u64::from(source.is_none());
            let answer = match &source {
                None => driver.malloc(device, bytes, PageKind::Huge).map(Some),
                Some(source) => source.allocate(device, bytes, stream),
            };
            let of_device = source.is_none_or(|source| source.is_of_device());
            let answer = answer.map_err(|error| {
                // So that no more is given back than is missing.
                let short = of_device && error.is_out_of_memory();
                let info = short.then(|| driver.memory_info(device).ok()).flatten();
                (error, info.map(|info| info.free))
            });
            Outcome::Classic(class, bytes, answer)
        }
        Step::GiveBack(what) => give_back(caller, what, calls),
        Step::WaitEvent(stream, event, epoch) => {
            calls.wait_event += 1;
            Outcome::Waited(stream, event, epoch, driver.synchronize_event(device, event))
        }
        Step::WaitStream(stream, handle, epoch) => {
            Outcome::WaitedStream(stream, epoch, wait_for_stream(caller, handle, calls))
        }
        Step::WaitDevice(epochs) => {
            calls.wait_device += 1;
            Outcome::Synchronized(epochs, driver.synchronize_device(device))
        }
        Step::Ready(_) | Step::Flush | Step::Ask(_) | Step::Await | Step::Pause | Step::Fail(_) => {
            unreachable!("needs no driver")
        }
    }
}

/// Waits for a stream; nothing where that is being captured. A stream of another context, which may be one of another
/// device, is waited for all the same: nothing else but a wait for that stream tells when it has passed.
fn wait_for_stream(
    caller: Caller<'_>,
    handle: Stream,
    calls: &mut DriverCalls,
) -> Option<Result<(), DriverError>> {
    let Caller { driver, device, .. } = caller;
    match driver.is_capturing(device, handle) {
        Ok(true) => return None,
        Ok(false) => {}
        // What cannot be told of the stream is refused by the wait itself.
        Err(error) if error.is_of_another_context() => {}
        Err(error) => return Some(Err(error)),
    }
    calls.wait_stream += 1;
    match driver.synchronize_stream(device, handle) {
        Err(error) if error.is_captured() => None,
        answer => Some(answer),
    }
}

fn query(caller: Caller<'_>, closing: &Closing, calls: &mut DriverCalls) -> Outcome {
    let mut over = Closing::new();
    let mut failure = None;
    let mut pending = None;
    for &(id, event, epoch) in closing {
        // Events of a stream complete in order: behind one that has not, none has.
        if pending == Some(id) {
            continue;
        }
        calls.query_event += 1;
        match caller.driver.query_event(caller.device, event) {
            Ok(true) => over.push((id, event, epoch)),
            Ok(false) => pending = Some(id),
            Err(error) => {
                failure.get_or_insert(error);
                pending = Some(id);
            }
        }
    }
    Outcome::Queried(over, failure)
}

fn record_all(caller: Caller<'_>, streams: ToClose, calls: &mut DriverCalls) -> Closed {
    let record = |(id, handle, epoch, means)| (id, epoch, record(caller, handle, means, calls));
    streams.into_iter().map(record).collect()
}

fn record(caller: Caller<'_>, handle: Stream, means: Means, calls: &mut DriverCalls) -> Recorded {
    let Caller { driver, device, .. } = caller;
    let event = match means {
        Means::Pooled(event) => Some(event),
        Means::New => None,
        Means::UnderWay(_) => return Recorded::Before,
        Means::None => return Recorded::Without,
    };
    match driver.is_capturing(device, handle) {
        Ok(false) => {}
        Err(error) if error.is_unknown_handle() => return Recorded::Gone(event),
        // Where that cannot be told, the stream is left alone.
        Ok(true) | Err(_) => return Recorded::Captured(event),
    }
    let event = match event.map_or_else(|| driver.create_event(device), Ok) {
        Ok(event) => event,
        // The events of the device are used up: the epoch is closed by a later one.
        Err(_) => return Recorded::Captured(None),
    };
    calls.record_event += 1;
    match driver.record_event(device, event, handle) {
        Ok(()) => Recorded::Done(event),
        // Another thread may be in the context of the stream.
        Err(error) if error.is_of_another_context() => Recorded::Captured(Some(event)),
        Err(error) if error.is_unknown_handle() => Recorded::Gone(Some(event)),
        Err(_) => Recorded::Refused(event),
    }
}

fn join(
    caller: Caller<'_>,
    waiter: StreamId,
    handle: Stream,
    others: ToClose,
    calls: &mut DriverCalls,
) -> Outcome {
    let Caller { driver, device, .. } = caller;
    let captured = driver.is_capturing(device, handle).unwrap_or(true);
    let joined = others.into_iter().map(|(id, other, epoch, means)| {
        let recorded = match means {
            Means::Pooled(event) if captured => Recorded::Captured(Some(event)),
            Means::New if captured => Recorded::Captured(None),
            means => record(caller, other, means, calls),
        };
        let event = match (recorded, means) {
            (Recorded::Done(event), _) | (_, Means::UnderWay(event)) if !captured => event,
            _ => return (id, epoch, recorded, false),
        };
        calls.stream_wait += 1;
        (id, epoch, recorded, driver.stream_wait_event(device, handle, event).is_ok())
    });
    Outcome::Joined(waiter, joined.collect())
}

/// What a reservation of so many bytes takes of the address space: above 512 MiB the driver deals in whole GiB
/// (Ascend 910B and 910C, driver v2). Asked for in full, nothing of it lies idle, and the books are true.
pub(crate) fn whole_reservation(bytes: u64) -> u64 {
    const WHOLE: u64 = 1 << 30;
    if bytes > WHOLE / 2 { bytes.checked_next_multiple_of(WHOLE).unwrap_or(bytes) } else { bytes }
}

/// Reserves as much of the wish as the driver grants, halving it down to the least that helps.
fn reserve(
    caller: Caller<'_>,
    wish: u64,
    least: u64,
    calls: &mut DriverCalls,
) -> Result<(u64, u64), DriverError> {
    let mut bytes = whole_reservation(wish.max(least));
    loop {
        calls.reserve += 1;
        match caller.driver.reserve(caller.device, bytes) {
            Ok(address) => return Ok((address, bytes)),
            Err(error) if bytes <= least || !error.is_out_of_memory() => return Err(error),
            Err(_) => {
                let half = (bytes / 2).next_multiple_of(caller.granule).max(least);
                // The least itself is the last try: not every device deals in whole GiB.
                bytes = if whole_reservation(half) < bytes { whole_reservation(half) } else { half };
            }
        }
    }
}

/// Does what a [`Remap`] says. No lock may be held.
pub(crate) fn remap_chunks(caller: Caller<'_>, remap: &Remap, calls: &mut DriverCalls) -> Remapped {
    let mut done = Remapped { spare: remap.handles.clone(), ..Remapped::default() };
    let wide = create_wide(caller, remap, &mut done, calls);
    if done.failure.is_none() {
        create_and_unmap(caller, remap, &mut done, calls);
    }
    let wide = match done.failure {
        None => map_wide(caller, remap, wide, &mut done, calls),
        Some(_) => wide,
    };
    if done.failure.is_none() {
        map_chunks(caller, remap, &mut done, calls);
    }
    if done.failure.is_some() {
        take_back(caller, wide, &mut done, calls);
    }
    done
}

/// Asks for chunks of one granule and takes others from where they are.
fn create_and_unmap(caller: Caller<'_>, remap: &Remap, done: &mut Remapped, calls: &mut DriverCalls) {
    let Caller { driver, device, granule, pages, .. } = caller;
    for _ in 0..remap.create {
        calls.malloc_physical += 1;
        match driver.malloc_physical(device, granule, pages) {
            Ok(handle) => {
                done.created += 1;
                done.spare.push(Spare { handle, fresh: true, span: 1 });
            }
            Err(error) => {
                done.failure = Some((Phase::Create, error));
                return;
            }
        }
    }
    for run in &remap.runs {
        for (chunk, &handle) in run.handles.iter().enumerate() {
            let address = run.addr + chunk as u64 * granule;
            calls.unmap += 1;
            if let Err(error) = driver.unmap(device, address) {
                done.failure = Some((Phase::Unmap, error));
                return;
            }
            done.unmapped.push(address);
            done.spare.push(Spare { handle, fresh: false, span: 1 });
        }
    }
}

/// Every missing granule gets a chunk.
fn map_chunks(caller: Caller<'_>, remap: &Remap, done: &mut Remapped, calls: &mut DriverCalls) {
    let Caller { driver, device, granule, .. } = caller;
    let mut access = remap.grants.owner && !done.no_access;
    for &address in &remap.missing {
        let Some(spare) = done.spare.pop() else { break };
        let handle = spare.handle;
        calls.map += 1;
        if let Err(error) = driver.map(device, address, granule, handle) {
            done.spare.push(spare);
            done.failure = Some((Phase::Map, error));
            break;
        }
        done.mapped.push((address, handle));
        if access && spare.fresh {
            calls.set_access += 1;
            access = set_access(caller, address, granule, done);
        }
        grant_peers(caller, address, granule, remap, done, calls);
        if done.failure.is_some() {
            break;
        }
    }
}

/// After a failure: what was mapped is taken away again, and wide chunks go back to the device.
fn take_back(
    caller: Caller<'_>,
    mut wide: Vec<PhysicalHandle>,
    done: &mut Remapped,
    calls: &mut DriverCalls,
) {
    let Caller { driver, device, .. } = caller;
    let Remapped { mapped, spare, wide: mapped_wide, stuck, .. } = done;
    mapped.retain(|&(address, handle)| {
        calls.unmap += 1;
        // A chunk that cannot be unmapped again is kept where it is, as free memory.
        let kept = driver.unmap(device, address).is_err();
        if !kept {
            // Access may or may not have been set before the failure: setting it again does no harm.
            spare.push(Spare { handle, fresh: true, span: 1 });
        }
        kept
    });
    mapped_wide.retain(|&(address, handle)| {
        calls.unmap += 1;
        let kept = driver.unmap(device, address).is_err();
        if !kept {
            wide.push(handle);
        }
        kept
    });
    for handle in wide {
        calls.free_physical += 1;
        if driver.free_physical(device, handle).is_err() {
            let span = caller.wide.map_or(1, |wide| wide.span);
            stuck.push(Spare { handle, fresh: false, span });
        }
    }
}

/// Asks for the wide chunks of a remap; those it got.
fn create_wide(
    caller: Caller<'_>,
    remap: &Remap,
    done: &mut Remapped,
    calls: &mut DriverCalls,
) -> Vec<PhysicalHandle> {
    let Caller { driver, device, granule, .. } = caller;
    let mut handles = Vec::new();
    let Some(wide) = caller.wide else { return handles };
    for _ in &remap.wide {
        calls.malloc_physical += 1;
        match driver.malloc_physical(device, u64::from(wide.span) * granule, wide.pages) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                done.no_wide = true;
                done.failure = Some((Phase::Create, error));
                break;
            }
        }
    }
    handles
}

/// Puts wide chunks where they are to go; those that are left.
fn map_wide(
    caller: Caller<'_>,
    remap: &Remap,
    mut handles: Vec<PhysicalHandle>,
    done: &mut Remapped,
    calls: &mut DriverCalls,
) -> Vec<PhysicalHandle> {
    let Caller { driver, device, granule, .. } = caller;
    let bytes = caller.wide.map_or(0, |wide| u64::from(wide.span) * granule);
    let mut access = remap.grants.owner;
    for &address in &remap.wide {
        let Some(handle) = handles.pop() else { break };
        calls.map += 1;
        if let Err(error) = driver.map(device, address, bytes, handle) {
            handles.push(handle);
            done.failure = Some((Phase::Map, error));
            break;
        }
        done.wide.push((address, handle));
        if access {
            calls.set_access += 1;
            access = set_access(caller, address, bytes, done);
        }
        grant_peers(caller, address, bytes, remap, done, calls);
        if done.failure.is_some() {
            break;
        }
    }
    handles
}

/// Grants the owner access to a new mapping; false when the driver has no such call.
fn set_access(caller: Caller<'_>, address: u64, bytes: u64, done: &mut Remapped) -> bool {
    match caller.driver.set_access(caller.device, address, bytes, caller.device) {
        Ok(()) => {}
        Err(error) if error.is_unsupported() => done.no_access = true,
        Err(error) => done.failure = Some((Phase::Map, error)),
    }
    !done.no_access
}

/// Grants the peers access to a new mapping, unless something has failed already.
fn grant_peers(
    caller: Caller<'_>,
    address: u64,
    bytes: u64,
    remap: &Remap,
    done: &mut Remapped,
    calls: &mut DriverCalls,
) {
    for &peer in remap.grants.peers.iter() {
        if done.failure.is_some() {
            return;
        }
        calls.set_access += 1;
        let answer = caller.driver.set_access(caller.device, address, bytes, peer);
        done.failure = answer.err().map(|error| (Phase::Map, error));
    }
}

/// Unmaps and frees; what the driver refuses stays as it is.
fn give_back(caller: Caller<'_>, mut what: GiveBack, calls: &mut DriverCalls) -> Outcome {
    let Caller { driver, device, granule, .. } = caller;
    let mut given = Box::new(GivenBack::default());
    let GivenBack { unmapped, handles, kept, failure, .. } = &mut *given;
    *handles = core::mem::take(&mut what.handles);
    for run in &what.runs {
        for (chunk, &handle) in run.handles.iter().enumerate() {
            let bytes = u64::from(run.span) * granule;
            let address = run.addr + chunk as u64 * bytes;
            calls.unmap += 1;
            match driver.unmap(device, address) {
                Ok(()) => {
                    unmapped.extend((address..address + bytes).step_by(granule as usize));
                    handles.push(Spare { handle, fresh: false, span: run.span });
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
    }
    handles.retain(|spare| {
        calls.free_physical += 1;
        driver.free_physical(device, spare.handle).map_err(|error| failure.get_or_insert(error).code).is_err()
    });
    for returned in &mut what.classic {
        // Dropped here, where no lock is held: its pool may be gone by now.
        let answer = match returned.source.take() {
            Some(source) => source.free(device, returned.address, returned.bytes),
            None => {
                calls.free += 1;
                driver.free(device, returned.address)
            }
        };
        if let Err(error) = answer {
            failure.get_or_insert(error);
            kept.push(returned.block);
        }
    }
    for &(block, address) in &what.reservations {
        calls.release += 1;
        if let Err(error) = driver.release(device, address) {
            failure.get_or_insert(error);
            kept.push(block);
        }
    }
    given.what = what;
    Outcome::GivenBack(given)
}
