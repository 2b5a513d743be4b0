//! Feeds a trace to an allocator, one event at a time, and runs the work it implies.
//!
//! | event | call of the allocator | task of the program |
//! |---|---|---|
//! | `a` | allocate | one that writes the block, on its stream |
//! | `r` | record the stream | one that reads and writes it, on the named stream |
//! | `f` | free, after the tasks | one that reads and writes it, on its own and on each recorded stream |
//! | `s` | none | the program waits for the stream |
//!
//! A task names its block by a number that is unique per allocation: uses of one block among each
//! other are the program's business, a use that meets another block's is the allocator's.
//!
//! A program that lets a second stream use a block makes that stream wait for the block's contents,
//! and a trace does not show it. So the program here records an event behind the first task of such
//! a block, and a stream named by `r` waits for it before it uses the block. Nothing else is
//! ordered: what the second stream does is unknown to the first, and to the host.

use ascend_alloc::DevicePtr;
use ascend_alloc::Error;
use ascend_alloc::words::counted;
use ascend_sim::Access;

use crate::meter::Probe;
use crate::rig::{DEVICE, Rig};
use crate::trace::{Event, Trace};
use crate::verify::{Verifier, Watched, Work};

/// What to do when a request finds no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOom {
    /// Go on without the block.
    Continue,
    /// End the pass.
    Stop,
}

/// Looks on while a pass runs.
pub trait Watcher {
    /// A marker was reached; `peak_live` is the highest sum of live requested bytes so far.
    fn marker(&mut self, label: u32, peak_live: u64);

    /// So many events are done; called now and then.
    fn progress(&mut self, events: usize);

    /// An event was played; called for each.
    fn after(&mut self, _played: &Played) {}
}

/// An event that was played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Its index, from 0.
    pub index: usize,
    /// The event.
    pub event: Event,
    /// Sum of live requested bytes after it.
    pub live: u64,
    /// Where the block is that it allocated; `None` for other events, and if it found no memory.
    pub address: Option<u64>,
}

/// Watches nothing.
impl Watcher for () {
    fn marker(&mut self, _label: u32, _peak_live: u64) {}

    fn progress(&mut self, _events: usize) {}
}

/// How a pass ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests that found no memory.
    pub ooms: u64,
    /// The first of them: index of the event, from 0, and what the allocator said.
    pub first_oom: Option<(usize, String)>,
    /// Highest sum of requested bytes that were live together, of those that found memory.
    pub peak_live: u64,
}

/// A pass that could not go on: index of the event, from 0, and why. The allocator refused
/// something it must not refuse, or the simulator did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index of the event, from 0.
    pub event: usize,
    /// What happened.
    pub reason: String,
}

/// A block of the trace, while it is live.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Where it is; `None` before it is allocated, after it is freed, and if it found no memory.
    address: Option<DevicePtr>,
    bytes: u64,
    stream: u16,
    /// Recorded streams, without its own.
    recorded: Vec<u16>,
    /// Event of the program behind the first task, if another stream is going to use the block.
    written: Option<u64>,
}

/// Replays a trace on a rig, any number of times.
pub struct Player<'a, P> {
    rig: &'a Rig<P>,
    trace: &'a Trace,
    verifier: Option<Verifier>,
    slots: Vec<Slot>,
    /// Blocks that another stream than their own is going to use.
    shared: Vec<bool>,
    /// Events of the program that are free for use.
    events: Vec<u64>,
    live: u64,
    wrong: Vec<String>,
    /// Added to a block index it gives the tag; grows from pass to pass, so that tags stay unique.
    first_tag: u64,
}

/// How many events lie between two calls of [`Watcher::progress`].
const PROGRESS: usize = 4096;

impl<'a, P: Probe + 'static> Player<'a, P> {
    /// Prepares a replay; with `verify`, blocks are watched over.
    #[must_use]
    pub fn new(rig: &'a Rig<P>, trace: &'a Trace, verify: bool) -> Self {
        Player {
            rig,
            trace,
            verifier: verify.then(|| Verifier::new(rig.bytes())),
            slots: vec![Slot::default(); trace.blocks],
            shared: shared(trace),
            events: Vec::new(),
            live: 0,
            wrong: Vec::new(),
            first_tag: 1,
        }
    }

    /// Replays the trace once.
    ///
    /// # Errors
    /// The allocator or the simulator refused something for another reason than memory.
    pub fn pass(&mut self, on_oom: OnOom, watcher: &mut impl Watcher) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        for (index, event) in self.trace.events.iter().enumerate() {
            let at = |reason| Failure { event: index, reason };
            match *event {
                Event::Allocate { block, stream, bytes } => {
                    if let Some(error) = self.allocate(block, stream, bytes).map_err(at)? {
                        outcome.ooms += 1;
                        outcome.first_oom.get_or_insert((index, error));
                        if on_oom == OnOom::Stop {
                            return Ok(outcome);
                        }
                    }
                    outcome.peak_live = outcome.peak_live.max(self.live);
                }
                Event::Free { block } => self.free(block).map_err(at)?,
                Event::Record { block, stream } => self.record(block, stream).map_err(at)?,
                Event::Synchronize { stream } => {
                    let stream = self.rig.stream(stream);
                    self.rig.wait(stream).map_err(at)?;
                    self.rig
                        .allocator
                        .note_host_wait(DEVICE, stream)
                        .map_err(|error| at(error.to_string()))?;
                }
                Event::Marker { label } => {
                    self.rig.allocator.mark(&self.trace.labels[label as usize]);
                    watcher.marker(label, outcome.peak_live);
                }
            }
            self.rig.tick();
            let address = match *event {
                Event::Allocate { block, .. } => self.slots[block as usize].address.map(DevicePtr::address),
                _ => None,
            };
            watcher.after(&Played { index, event: *event, live: self.live, address });
            if index % PROGRESS == 0 {
                watcher.progress(index);
            }
        }
        watcher.progress(self.trace.events.len());
        Ok(outcome)
    }

    /// Frees what the trace left live, so that it can be replayed again.
    ///
    /// # Errors
    /// The allocator or the simulator refused something.
    pub fn rewind(&mut self) -> Result<(), Failure> {
        for block in 0..self.slots.len() {
            // There are fewer than 2^32 blocks, as the reader made sure.
            self.free(block as u32).map_err(|reason| Failure { event: self.trace.events.len(), reason })?;
        }
        self.first_tag += self.slots.len() as u64;
        Ok(())
    }

    /// What was wrong with the blocks since the last call: memory that is not there, and with
    /// `verify` what that found in the tasks that have run.
    #[must_use]
    pub fn take_wrong(&mut self) -> Vec<String> {
        let mut wrong = std::mem::take(&mut self.wrong);
        wrong.extend(self.verifier.as_ref().map_or_else(Vec::new, Verifier::take_wrong));
        wrong
    }

    /// How many blocks `--verify` has checked, if it is on.
    #[must_use]
    pub fn verified(&self) -> Option<u64> {
        self.verifier.as_ref().map(Verifier::checked)
    }

    /// Allocates a block and writes it; answers the error if there is no memory.
    fn allocate(&mut self, block: u32, stream: u16, bytes: u64) -> Result<Option<String>, String> {
        let handle = self.rig.stream(stream);
        let address = match self.rig.allocator.allocate(DEVICE, bytes, 0, handle) {
            Ok(address) => address,
            // A size that no device can serve is a request that finds no memory as well.
            Err(error @ (Error::OutOfMemory(_) | Error::Size { .. })) => return Ok(Some(error.to_string())),
            Err(error) => return Err(format!("allocating {} failed: {error}", counted(bytes, "byte[s]"))),
        };
        self.live += bytes;
        let slot = &mut self.slots[block as usize];
        slot.address = Some(address);
        slot.bytes = bytes;
        slot.stream = stream;
        let tag = self.first_tag + u64::from(block);
        let watched = Watched { address: address.address(), bytes, tag };
        let work = match &mut self.verifier {
            Some(verifier) if bytes > 0 => Some(verifier.allocated(watched)),
            _ => None,
        };
        self.touch(watched, stream, "write", work)?;
        if self.shared[block as usize] {
            let event = self.events.pop().map_or_else(|| self.rig.create_event(), Ok)?;
            self.rig.record_event(event, handle)?;
            self.slots[block as usize].written = Some(event);
        }
        Ok(None)
    }

    fn record(&mut self, block: u32, stream: u16) -> Result<(), String> {
        let slot = &mut self.slots[block as usize];
        let Some(address) = slot.address else { return Ok(()) };
        if stream != slot.stream && !slot.recorded.contains(&stream) {
            slot.recorded.push(stream);
            if let Some(event) = slot.written {
                self.rig.stream_wait_event(self.rig.stream(stream), event)?;
            }
        }
        let watched =
            Watched { address: address.address(), bytes: slot.bytes, tag: self.first_tag + u64::from(block) };
        self.rig
            .allocator
            .record_stream(address, self.rig.stream(stream))
            .map_err(|error| format!("recording a stream failed: {error}"))?;
        self.touch(watched, stream, "use", None)
    }

    fn free(&mut self, block: u32) -> Result<(), String> {
        let slot = &mut self.slots[block as usize];
        let Some(address) = slot.address.take() else { return Ok(()) };
        let (bytes, stream) = (slot.bytes, slot.stream);
        let recorded = std::mem::take(&mut slot.recorded);
        // A stream that waits for the event keeps to the record it found, so it can be used again.
        self.events.extend(slot.written.take());
        self.live -= bytes;
        let watched = Watched { address: address.address(), bytes, tag: self.first_tag + u64::from(block) };
        let work = match &mut self.verifier {
            Some(verifier) if bytes > 0 => Some(verifier.freeing(watched)),
            _ => None,
        };
        for recorded in recorded {
            self.touch(watched, recorded, "last use", None)?;
        }
        self.touch(watched, stream, "last use", work)?;
        self.rig.allocator.deallocate(address).map_err(|error| format!("freeing failed: {error}"))
    }

    /// Queues a task that writes the block; for the order of uses, reading and writing is writing.
    fn touch(
        &mut self,
        block: Watched,
        stream: u16,
        label: &'static str,
        work: Option<Work>,
    ) -> Result<(), String> {
        if block.bytes == 0 {
            return Ok(());
        }
        // The simulated device would fault; here the replay goes on.
        if !self.rig.is_backed(block.address, block.bytes) {
            self.wrong.push(format!(
                "task \"{label}\" uses {} at {:#x} (tag {}), where not all is mapped",
                counted(block.bytes, "byte[s]"),
                block.address,
                block.tag
            ));
        }
        let access = Access { start: block.address, len: block.bytes, write: true, tag: block.tag };
        self.rig.submit(self.rig.stream(stream), label, access, work)
    }
}

/// For each block, whether a stream is recorded that is not its own.
fn shared(trace: &Trace) -> Vec<bool> {
    let mut own = vec![0; trace.blocks];
    let mut shared = vec![false; trace.blocks];
    for event in &trace.events {
        match *event {
            Event::Allocate { block, stream, .. } => own[block as usize] = stream,
            Event::Record { block, stream } => shared[block as usize] |= own[block as usize] != stream,
            _ => {}
        }
    }
    shared
}
