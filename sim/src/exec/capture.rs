//! Capture: streams whose tasks go into a graph (an `aclmdlRI` model) instead of running.
//!
//! A capture begins on one stream, the origin. Another stream enters it by waiting for an event
//! recorded on a capturing stream (a fork) and must be joined before the end: the origin has to
//! wait, directly or through others, for everything captured on it. Capture has a small vector
//! clock of its own for that, counted in captured operations.
//!
//! The graph keeps what its tasks touch and what they do as often as they run (copies and fills);
//! executing it queues one task with all of that. Closures that run once only are dropped.

use std::collections::{BTreeMap, HashMap};
use std::thread::{self, ThreadId};

use smallvec::SmallVec;

use super::codes;
use super::event::refuse_if;
use super::state::State;
use super::table::Table;
use super::task::{Access, Repeat, Task, Work};
use crate::made::Made;

/// Which threads a running capture forbids synchronous copies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// All threads, but for those that exchanged their mode.
    #[default]
    Global,
    /// Only the thread that captures.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl CaptureMode {
    /// The mode of an `aclmdlRICaptureMode` value.
    ///
    /// # Errors
    /// `PARAM_INVALID` for values that are no mode.
    pub fn from_value(value: i32) -> Result<Self, i32> {
        match value {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(codes::PARAM_INVALID),
        }
    }
}

/// Whether a stream is being captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// No.
    None,
    /// Yes.
    Active,
    /// Yes, but an error has spoilt the capture.
    Invalidated,
}

/// How much of each stream's captured operations came before a point; by slot.
type GraphClock = BTreeMap<u32, u64>;

/// The record of an event on a capturing stream.
#[derive(Clone, Debug)]
pub(super) struct CapturedRecord {
    pub(super) model: u64,
    clock: GraphClock,
}

/// All captures and graphs.
pub(super) struct Captures {
    models: Table<Capture>,
    thread_modes: HashMap<ThreadId, CaptureMode>,
    /// Captures that have not ended.
    running: usize,
    /// Groups of tasks made so far; their handles are numbers from [`GROUPS`] on.
    groups: u64,
}

/// Where handles of groups start.
const GROUPS: u64 = 0xf000_0000_0000;

impl Default for Captures {
    fn default() -> Self {
        Self { models: Table::new(0x53), thread_modes: HashMap::new(), running: 0, groups: 0 }
    }
}

struct Capture {
    device: u32,
    context: u32,
    origin: u32,
    mode: CaptureMode,
    thread: ThreadId,
    invalid: bool,
    ended: bool,
    /// Streams that take part, and what each knows.
    clocks: BTreeMap<u32, GraphClock>,
    accesses: SmallVec<[Access; 2]>,
    /// Those of tasks that stand for kernels, with the tasks' names.
    kernels: Vec<(&'static str, Access)>,
    /// What the captured tasks do, in the order of capture, which respects every dependency.
    repeats: Vec<Repeat>,
    /// Functions of the program to call when the graph is destroyed.
    last: Vec<Work>,
    made: Made,
}

impl State {
    /// Begins a capture on a stream.
    pub(super) fn capture_begin(&mut self, slot: u32, mode: CaptureMode) -> Result<(), i32> {
        let stream = self.stream(slot);
        refuse_if(stream.default, codes::FEATURE_NOT_SUPPORT)?;
        refuse_if(stream.capture.is_some(), codes::STREAM_CAPTURED)?;
        let capture = Capture {
            device: stream.device,
            context: stream.context,
            origin: slot,
            mode,
            thread: thread::current().id(),
            invalid: false,
            ended: false,
            clocks: BTreeMap::from([(slot, GraphClock::new())]),
            accesses: SmallVec::new(),
            kernels: Vec::new(),
            repeats: Vec::new(),
            last: Vec::new(),
            made: Made::now(),
        };
        let model = self.captures.models.insert(capture).ok_or(codes::INTERNAL_ERROR)?;
        self.captures.running += 1;
        self.stream_mut(slot).capture = Some(model);
        Ok(())
    }

    /// Whether a stream is being captured, and into which graph (zero for none).
    pub(super) fn capture_status(&self, slot: u32) -> (CaptureStatus, u64) {
        let Some(model) = self.stream(slot).capture else { return (CaptureStatus::None, 0) };
        match self.captures.models.get(model) {
            Some(capture) if capture.invalid => (CaptureStatus::Invalidated, model),
            Some(_) => (CaptureStatus::Active, model),
            None => (CaptureStatus::None, 0),
        }
    }

    /// Ends the capture of a stream and returns the graph.
    pub(super) fn capture_end(&mut self, slot: u32) -> Result<u64, i32> {
        refuse_if(self.stream(slot).default, codes::FEATURE_NOT_SUPPORT)?;
        let model = self.stream(slot).capture.ok_or(codes::STREAM_NOT_CAPTURED)?;
        let index = self.captures.models.index(model).ok_or(codes::STREAM_NOT_CAPTURED)?;
        let capture = self.captures.models.at_mut(index).ok_or(codes::STREAM_NOT_CAPTURED)?;
        refuse_if(capture.origin != slot, codes::STREAM_CAPTURE_UNMATCHED)?;
        let failure = if capture.mode != CaptureMode::Relaxed && capture.thread != thread::current().id() {
            Some(codes::STREAM_CAPTURE_WRONG_THREAD)
        } else if capture.invalid {
            Some(codes::STREAM_CAPTURE_INVALIDATED)
        } else if !capture.is_joined() {
            Some(codes::STREAM_UNJOINED)
        } else {
            None
        };
        capture.ended = true;
        let slots = core::mem::take(&mut capture.clocks);
        self.captures.running -= 1;
        for slot in slots.into_keys() {
            let stream = self.stream_mut(slot);
            (stream.capture, stream.group_open) = (None, false);
        }
        match failure {
            None => Ok(model),
            Some(code) => {
                self.captures.models.retire(index);
                self.captures.models.free(index);
                Err(code)
            }
        }
    }

    /// Ends the captures of a device without a graph, and destroys its graphs.
    pub(super) fn capture_reset(&mut self, device: u32) -> Vec<Work> {
        let mut last = Vec::new();
        let all = self.captures.models.live().filter(|(_, capture)| capture.device == device);
        let models: Vec<u64> = all.map(|(model, _)| model).collect();
        for model in models {
            let Some(index) = self.captures.models.index(model) else { continue };
            self.captures.models.retire(index);
            let Some(capture) = self.captures.models.free(index) else { continue };
            self.captures.running -= usize::from(!capture.ended);
            for slot in capture.clocks.into_keys() {
                self.stream_mut(slot).capture = None;
            }
            last.extend(capture.last);
        }
        last
    }

    /// The index of a finished graph.
    pub(super) fn finished_model(&self, model: u64) -> Result<u32, i32> {
        refuse_if(model == 0, codes::INVALID_PARAM)?;
        let index = self.captures.models.index(model).ok_or(codes::PARAM_INVALID)?;
        let ended = self.captures.models.at(index).is_some_and(|capture| capture.ended);
        refuse_if(!ended, codes::MODEL_CAPTURED)?;
        Ok(index)
    }

    /// Destroys a finished graph: what is to be called then.
    pub(super) fn capture_destroy(&mut self, model: u64) -> Result<Vec<Work>, i32> {
        let index = self.finished_model(model)?;
        self.captures.models.retire(index);
        let capture = self.captures.models.free(index);
        Ok(capture.map(|capture| capture.last).unwrap_or_default())
    }

    /// A function is to be called when the graph is destroyed.
    pub(super) fn tell_destroyed(&mut self, model: u64, call: Work) -> Result<(), i32> {
        let index = self.finished_model(model)?;
        if let Some(capture) = self.captures.models.at_mut(index) {
            capture.last.push(call);
        }
        Ok(())
    }

    /// The handle of a new group of tasks.
    pub(super) fn new_group(&mut self) -> u64 {
        self.captures.groups += 1;
        GROUPS + self.captures.groups * 0x10
    }

    /// Whether there is such a group.
    pub(super) fn is_group(&self, group: u64) -> bool {
        let number = group
            .checked_sub(GROUPS)
            .filter(|offset| offset.is_multiple_of(0x10))
            .map(|offset| offset / 0x10);
        number.is_some_and(|number| number > 0 && number <= self.captures.groups)
    }

    /// One line for each graph that exists, with the call that began its capture.
    pub(super) fn graphs_left(&self) -> impl Iterator<Item = String> {
        self.captures.models.live().map(|(handle, capture)| {
            format!("graph {handle:#x} of device {}, begun by {}", capture.device, capture.made)
        })
    }

    /// One run of a finished graph as a task.
    pub(super) fn capture_task(&self, context: u32, model: u64) -> Result<Task, i32> {
        let device = self.device_of(context)?;
        let index = self.finished_model(model)?;
        let capture = self.captures.models.at(index).ok_or(codes::PARAM_INVALID)?;
        refuse_if(capture.device != device, codes::STREAM_CONTEXT)?;
        let repeats = capture.repeats.clone();
        let work =
            (!repeats.is_empty()).then(|| -> Work { Box::new(move || repeats.iter().for_each(|run| run())) });
        Ok(Task { label: "captured graph", accesses: capture.accesses.clone(), work })
    }

    /// What the kernels of a finished graph touch, with their names.
    pub(super) fn graph_kernels(&self, model: u64) -> Result<Vec<(&'static str, Access)>, i32> {
        let index = self.finished_model(model)?;
        let capture = self.captures.models.at(index).ok_or(codes::PARAM_INVALID)?;
        Ok(capture.kernels.clone())
    }

    /// Puts a task into the graph that the stream is being captured into; false if it is not.
    pub(super) fn capture_submit(
        &mut self,
        slot: u32,
        (label, accesses): (&'static str, &[Access]),
        repeat: Option<&Repeat>,
    ) -> Result<bool, i32> {
        let Some(capture) = self.open_capture(slot)? else { return Ok(false) };
        capture.accesses.extend_from_slice(accesses);
        match repeat {
            // Copies and fills look for their memory when they run.
            Some(repeat) => capture.repeats.push(repeat.clone()),
            None => capture.kernels.extend(accesses.iter().map(|access| (label, *access))),
        }
        capture.step(slot);
        Ok(true)
    }

    /// The record of an event on a capturing stream; `None` if it is not one.
    pub(super) fn capture_record(&mut self, slot: u32, ex: bool) -> Result<Option<CapturedRecord>, i32> {
        let model = self.stream(slot).capture;
        let Some(capture) = self.open_capture(slot)? else { return Ok(None) };
        capture.refuse_spoiling(!ex, codes::FEATURE_NOT_SUPPORT)?;
        // A record adds nothing to the graph: it only names what is there.
        let clock = capture.clocks.get(&slot).cloned().unwrap_or_default();
        Ok(model.map(|model| CapturedRecord { model, clock }))
    }

    /// A stream waits for an event whose record is `captured` or outside any capture; returns
    /// whether the wait went into a graph.
    pub(super) fn capture_wait(
        &mut self,
        slot: u32,
        captured: Option<&CapturedRecord>,
        ex: bool,
    ) -> Result<bool, i32> {
        let Some(record) = captured else {
            if let Some(capture) = self.open_capture(slot)? {
                capture.refuse_spoiling(!ex, codes::FEATURE_NOT_SUPPORT)?;
                capture.refuse_spoiling(true, codes::CAPTURE_DEPENDENCY)?;
            }
            return Ok(false);
        };
        let (current, default) = (self.stream(slot).capture, self.stream(slot).default);
        let index = self.captures.models.index(record.model).ok_or(codes::CAPTURE_DEPENDENCY)?;
        let capture = self.captures.models.at_mut(index).ok_or(codes::CAPTURE_DEPENDENCY)?;
        capture.refuse_spoiling(default, codes::STREAM_CAPTURE_IMPLICIT)?;
        refuse_if(capture.invalid, codes::STREAM_CAPTURE_INVALIDATED)?;
        // One stream cannot be in two graphs.
        capture.refuse_spoiling(
            current.is_some_and(|model| model != record.model),
            codes::STREAM_CAPTURE_CONFLICT,
        )?;
        let clock = capture.clocks.entry(slot).or_default();
        for (other, number) in &record.clock {
            let known = clock.entry(*other).or_default();
            *known = (*known).max(*number);
        }
        capture.step(slot);
        self.stream_mut(slot).capture = Some(record.model);
        Ok(true)
    }

    /// Whether an event's record belongs to a capture that has not ended.
    pub(super) fn is_capturing_into(&self, model: u64) -> bool {
        self.captures.models.get(model).is_some_and(|capture| !capture.ended)
    }

    /// Whether any stream of a context is being captured.
    pub(super) fn context_captures(&self, context: u32) -> bool {
        self.captures.running > 0
            && self.captures.models.live().any(|(_, capture)| !capture.ended && capture.context == context)
    }

    /// Refuses a synchronous copy or fill by the calling thread where a capture forbids it.
    pub(super) fn capture_refuse_copy(&self, context: u32) -> Result<(), i32> {
        if self.captures.running == 0 {
            return Ok(());
        }
        let thread = thread::current().id();
        let own_mode = self.captures.thread_modes.get(&thread).copied().unwrap_or_default();
        let forbidden = self.captures.models.live().any(|(_, capture)| {
            !capture.ended
                && capture.context == context
                && match capture.mode {
                    CaptureMode::Global => own_mode == CaptureMode::Global,
                    CaptureMode::ThreadLocal => capture.thread == thread && own_mode != CaptureMode::Relaxed,
                    CaptureMode::Relaxed => false,
                }
        });
        refuse_if(forbidden, codes::CAPTURE_MODE_NOT_SUPPORT)
    }

    /// Sets the calling thread's mode and returns the one before.
    pub(super) fn capture_exchange_mode(&mut self, mode: CaptureMode) -> CaptureMode {
        self.captures.thread_modes.insert(thread::current().id(), mode).unwrap_or_default()
    }

    /// Spoils the capture of a stream, as a failing captured task does.
    pub(super) fn capture_invalidate(&mut self, slot: u32) -> Result<(), i32> {
        let capture = self.open_capture(slot)?.ok_or(codes::STREAM_NOT_CAPTURED)?;
        capture.invalid = true;
        Ok(())
    }

    /// The capture that a stream takes part in; an error if it is spoilt.
    fn open_capture(&mut self, slot: u32) -> Result<Option<&mut Capture>, i32> {
        let Some(model) = self.stream(slot).capture else { return Ok(None) };
        let Some(index) = self.captures.models.index(model) else { return Ok(None) };
        let Some(capture) = self.captures.models.at_mut(index) else { return Ok(None) };
        refuse_if(capture.invalid, codes::STREAM_CAPTURE_INVALIDATED)?;
        Ok(Some(capture))
    }
}

impl Capture {
    /// One more captured operation on a stream; returns what the stream knows with it.
    fn step(&mut self, slot: u32) -> &GraphClock {
        let clock = self.clocks.entry(slot).or_default();
        *clock.entry(slot).or_default() += 1;
        clock
    }

    /// Whether the origin knows everything captured on the other streams.
    fn is_joined(&self) -> bool {
        let none = GraphClock::new();
        let origin = self.clocks.get(&self.origin).unwrap_or(&none);
        self.clocks.iter().all(|(slot, clock)| origin.get(slot) >= clock.get(slot))
    }

    /// Refuses a captured operation if the condition holds, which spoils the capture.
    fn refuse_spoiling(&mut self, condition: bool, code: i32) -> Result<(), i32> {
        self.invalid |= condition;
        refuse_if(condition, code)
    }
}
