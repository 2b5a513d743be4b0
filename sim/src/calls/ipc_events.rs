//! Events that processes share. Both sides may record them; queries and waits look at the records of
//! all processes.

use std::io::ErrorKind;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::codes;
use crate::exec::{EVENT_IPC, EventMirror, Task, WAIT_FOREVER, Work};
use crate::memory::{COUNTERS, ShareId, SharedCounters};
use crate::refusal::{Answer, Refusal, refuse};
use crate::sim::{Inner, Sim};

/// A shared event for other processes: `aclrtIpcEventHandle`.
pub type IpcEventHandle = [u8; 64];

/// What handles begin with.
const MAGIC: &[u8; 8] = b"acl-simE";
/// How long a stream waits for another process before it gives up.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between two looks at another process's records.
const PAUSE: Duration = Duration::from_micros(100);

/// Looks at another process's records between two looks whether it is still there.
const LOOKS: u32 = 50;
/// Counters of all processes together: records queued and done.
const OF_ALL: usize = 2;
/// Counters of each process that records, behind those: its number, and the same of it.
const OF_EACH: usize = 3;

/// The records of all processes.
struct Records {
    id: ShareId,
    counters: SharedCounters,
    /// Where this process's own are, unless too many others record.
    own: OnceLock<Option<usize>>,
}

impl Records {
    fn new(id: ShareId, counters: SharedCounters) -> Arc<Self> {
        Arc::new(Self { id, counters, own: OnceLock::new() })
    }

    /// Counts one more of this process; `which` of its counters.
    fn count_own(&self, which: usize) {
        let (all, this) = (self.counters.get(), u64::from(std::process::id()));
        let own = self.own.get_or_init(|| {
            let mut places = (OF_ALL..=COUNTERS - OF_EACH).step_by(OF_EACH);
            places.find(|&at| match all[at].compare_exchange(0, this, Relaxed, Relaxed) {
                Ok(_) => true,
                Err(known) => known == this,
            })
        });
        if let Some(at) = *own {
            all[at + which].fetch_add(1, Relaxed);
        }
    }
}

impl EventMirror for Records {
    fn recorded(&self) {
        self.count_own(1);
        self.counters.get()[0].fetch_add(1, Relaxed);
    }

    fn done(&self) {
        self.counters.get()[1].fetch_add(1, Release);
        self.count_own(2);
    }

    fn count(&self) -> u64 {
        self.counters.get()[0].load(Relaxed)
    }

    fn is_done(&self, count: u64) -> bool {
        self.counters.get()[1].load(Acquire) >= count
    }

    fn is_lost(&self) -> bool {
        self.counters.get()[OF_ALL..].chunks_exact(OF_EACH).any(|each| {
            let [process, queued, done] = [0, 1, 2].map(|at: usize| AtomicU64::load(&each[at], Relaxed));
            process != 0 && queued > done && !is_alive(process)
        })
    }

    fn name(&self) -> (u32, u32) {
        (self.id.process, self.id.number)
    }
}

impl Sim {
    /// `aclrtIpcGetEventHandle` of an event made with the flag IPC: the same every time.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107017 for a stale handle, 207000 for an event without the flag.
    pub fn ipc_event_handle(&self, event: u64) -> Result<IpcEventHandle, i32> {
        self.event(Call::IpcGetEventHandle, event, |exec| {
            let known = exec.event_mirror(event)?;
            let mirror = match known {
                Some(mirror) => mirror,
                None => {
                    let id = ShareId::new();
                    let counters = SharedCounters::create(id).map_err(|error| Refusal::from(error).code)?;
                    exec.mirror_event(event, Records::new(id, counters))?;
                    exec.event_mirror(event)?.ok_or(codes::RT_INTERNAL_ERROR)?
                }
            };
            self.inner.shares_events.store(true, Relaxed);
            let (process, number) = mirror.name();
            let mut handle = [0; 64];
            handle[..8].copy_from_slice(MAGIC);
            handle[8..12].copy_from_slice(&process.to_ne_bytes());
            handle[12..16].copy_from_slice(&number.to_ne_bytes());
            Ok(handle)
        })
    }

    /// `aclrtIpcOpenEventHandle`: an event of the current device that stands for another process's.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 107000 for what is no handle, 507899 for an event that is
    /// gone and for one of this process.
    pub fn ipc_open_event(&self, handle: &IpcEventHandle) -> Result<u64, i32> {
        self.call(Call::IpcOpenEventHandle, format_args!(""), || {
            let context = self.context()?;
            if handle[..8] != MAGIC[..] {
                return refuse(codes::RT_PARAM_INVALID, "not a handle of aclrtIpcGetEventHandle");
            }
            let word =
                |at: usize| u32::from_ne_bytes([handle[at], handle[at + 1], handle[at + 2], handle[at + 3]]);
            let id = ShareId { process: word(8), number: word(12) };
            if id.process == std::process::id() {
                return refuse(codes::RT_DRV_INTERNAL_ERROR, "a process cannot open its own event");
            }
            let counters = SharedCounters::open(id)?;
            let executor = &self.inner.executor;
            let event = Inner::executed(executor.create_event(context, EVENT_IPC, true))?;
            Inner::executed(executor.mirror_event(event, Records::new(id, counters)))?;
            self.inner.shares_events.store(true, Relaxed);
            Ok(event)
        })
    }

    /// What an event is shared by; none as long as the machine shares no events at all.
    pub(super) fn mirror_of(&self, event: u64) -> Result<Option<Arc<dyn EventMirror>>, i32> {
        if self.inner.shares_events.load(Relaxed) {
            self.inner.executor.event_mirror(event)
        } else {
            Ok(None)
        }
    }

    /// Whether the records of other processes are done too; an error once they never will be.
    pub(super) fn others_done(&self, event: u64) -> Result<bool, i32> {
        let Some(mirror) = self.mirror_of(event)? else { return Ok(true) };
        let count = mirror.count();
        // The process may have ended just behind its last record.
        if !mirror.is_done(count) && mirror.is_lost() && !mirror.is_done(count) {
            return Err(codes::RT_DRV_INTERNAL_ERROR);
        }
        Ok(mirror.is_done(count))
    }

    /// Waits for the records of other processes, up to `timeout` milliseconds; an error once they never will be done.
    pub(super) fn wait_for_others(&self, event: u64, timeout: i32) -> Result<(), i32> {
        /// The wait for an event took longer than allowed.
        const EVENT_SYNC_TIMEOUT: i32 = 507_047;
        let Some(mirror) = self.mirror_of(event)? else { return Ok(()) };
        let count = mirror.count();
        let limit =
            if timeout == WAIT_FOREVER { PATIENCE } else { Duration::from_millis(timeout.max(0) as u64) };
        match wait(&*mirror, count, limit) {
            Waited::Done => Ok(()),
            Waited::Late => Err(EVENT_SYNC_TIMEOUT),
            Waited::Lost => Err(codes::RT_DRV_INTERNAL_ERROR),
        }
    }

    /// Lets a stream wait for a shared event: for this process's record, if there is one, and for
    /// those of the others. Where one of these is lost the stream goes on. False if the event is not shared.
    pub(super) fn queue_shared_wait(&self, context: u32, stream: u64, event: u64) -> Answer<bool> {
        let executor = &self.inner.executor;
        let Some(mirror) = Inner::executed(self.mirror_of(event))? else { return Ok(false) };
        let count = mirror.count();
        if Inner::executed(executor.is_recorded(event))? || count == 0 {
            Inner::executed(executor.stream_wait_event(context, stream, event))?;
        }
        if !mirror.is_done(count) {
            let work: Work = Box::new(move || {
                wait(&*mirror, count, PATIENCE);
            });
            let task = Task { label: "wait for another process", work: Some(work), ..Task::default() };
            Inner::executed(executor.submit(context, stream, task))?;
        }
        Ok(true)
    }
}

/// What a wait came to.
enum Waited {
    Done,
    /// The time is over.
    Late,
    /// Who recorded is gone.
    Lost,
}

/// Waits for the first `count` records.
fn wait(mirror: &dyn EventMirror, count: u64, limit: Duration) -> Waited {
    let start = Instant::now();
    let mut looks = 0;
    while !mirror.is_done(count) {
        looks += 1;
        // The process may have ended just behind its last record.
        if looks % LOOKS == 0 && mirror.is_lost() && !mirror.is_done(count) {
            return Waited::Lost;
        }
        if start.elapsed() >= limit {
            return Waited::Late;
        }
        thread::sleep(PAUSE);
    }
    Waited::Done
}

/// Whether a process runs; one that has ended and waits to be collected does not.
fn is_alive(process: u64) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        // The second field is a name in brackets that may hold anything.
        Ok(text) => {
            let state = text.rsplit_once(')').and_then(|(_, fields)| fields.trim_start().chars().next());
            !matches!(state, Some('Z' | 'X'))
        }
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}
