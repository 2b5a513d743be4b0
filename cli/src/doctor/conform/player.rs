//! Plays the rows of one group, in this process.
//!
//! A row is written for the state that the rows before it left, and some of those are not listed. So before a row is
//! played, [`setup`] brings about what it needs and lacks: a name that nothing has made yet is made, a
//! call that the row repeats is made a first time. What was done so is told with the row.

mod effect;
mod setup;

use std::ffi::CString;
use std::ptr;

use ascend_alloc::acl::sys;
use ascend_alloc::words::counted;
use serde::{Deserialize, Serialize};

use super::arguments::{self, Named, Spec, Value};
use super::calls::{Call, Kind, find};
use super::hazard;
use super::raw::Raw;
use super::rows::{Expected, Group, Row};
use super::syntax::Request;
use super::world::World;

/// What came of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// The listed answer.
    Same,
    /// Another answer.
    Differs(i32),
    /// Not played, for this reason.
    Skipped(String),
    /// Not played: this was not understood.
    NotUnderstood(String),
    /// Not played: the library lacks this symbol.
    Missing(String),
    /// Not played: its state could not be brought about.
    Unprepared(String),
    /// It ended the process with this signal (0: it ended it otherwise).
    Crashed(i32),
    /// It did not come back in time.
    Hung,
}

/// Why a row is not played.
#[derive(Debug)]
pub(super) enum Stop {
    Skipped(String),
    NotUnderstood(String),
    Missing(&'static str),
    Unprepared(String),
}

/// Plays rows on a library.
pub struct Player {
    raw: Raw,
    pub(super) world: World,
    /// How many devices there are.
    pub(super) devices: u32,
    /// By name: the bytes that rows of the group suppose.
    pub(super) sizes: std::collections::HashMap<String, u64>,
    /// The calls that brought the state of the present row about.
    first: Vec<String>,
    is_old_kernel: bool,
    /// Whether all rows of the group are listed.
    is_complete: bool,
    /// Whether ACL is to be initialised before the first row of a complete group.
    init_first: bool,
    /// The first line of a complete group that was not played and may have changed the state.
    lost_at: Option<usize>,
    /// Whether rows that are not for hardware are played.
    all: bool,
}

impl Player {
    /// A player that has made nothing yet.
    #[must_use]
    pub fn new(raw: Raw, devices: u32, group: &Group, all: bool) -> Self {
        let mut player = Self {
            raw,
            world: World::default(),
            devices,
            sizes: std::collections::HashMap::new(),
            first: Vec::new(),
            is_old_kernel: hazard::is_old_kernel(),
            is_complete: group.is_complete,
            init_first: group.is_complete && !group.begins_before_init,
            lost_at: None,
            all,
        };
        for row in &group.rows {
            player.note_sizes(row);
        }
        player
    }

    /// Plays one row: what came of it, and what was called first to bring its state about.
    pub fn play(&mut self, row: &Row) -> (Outcome, Vec<String>) {
        self.first.clear();
        let allows = |code| row.expected.as_ref().is_ok_and(|expected| expected.allows(code));
        let outcome = match self.try_play(row) {
            Ok(code) if allows(code) => Outcome::Same,
            Ok(code) => Outcome::Differs(code),
            Err(Stop::NotUnderstood(what)) => {
                self.lose(row);
                Outcome::NotUnderstood(what)
            }
            Err(Stop::Missing(symbol)) => {
                if allows(0) {
                    self.lose(row);
                }
                Outcome::Missing(symbol.to_owned())
            }
            Err(Stop::Unprepared(why)) => Outcome::Unprepared(why),
            Err(Stop::Skipped(why)) => {
                if allows(0) {
                    self.lose(row);
                    self.note_names(row);
                }
                Outcome::Skipped(why)
            }
        };
        (outcome, std::mem::take(&mut self.first))
    }

    /// A row was not played that may have changed the state. In a complete group nothing makes up for it.
    fn lose(&mut self, row: &Row) {
        if self.is_complete && self.lost_at.is_none() {
            self.lost_at = Some(row.line);
        }
    }

    fn try_play(&mut self, row: &Row) -> Result<i32, Stop> {
        if let Some(line) = self.lost_at {
            return Err(Stop::NotUnderstood(format!("the state, which line {line} may have changed")));
        }
        let request = row.request.as_ref().map_err(|what| Stop::NotUnderstood(what.clone()))?;
        let expected = *row.expected.as_ref().map_err(|what| Stop::NotUnderstood(what.clone()))?;
        let (call, values) = understand(request)?;
        if !self.raw.has(call.symbol) {
            return Err(Stop::Missing(call.symbol));
        }
        self.check_devices(call, &values, request, expected)?;
        if request.note.pending {
            return Err(Stop::Skipped(hazard::PENDING.to_owned()));
        }
        if matches!(expected, Expected::Signal(_)) && !self.all {
            return Err(Stop::Skipped(hazard::SIGNAL.to_owned()));
        }
        self.prepare(call, &values, request, expected)?;
        let passed = self.resolve(call, &values)?;
        let candidate = hazard::Candidate { call, values: &values, passed: &passed, expected };
        if let Some(why) = hazard::of(&candidate, &self.world, self.is_old_kernel).filter(|_| !self.all) {
            return Err(Stop::Skipped(why.to_owned()));
        }
        let page = if is_1g(&values) { 1 << 30 } else { 1 };
        self.check_memory(call, &passed, page, expected)?;
        let code = self.make(call, &values, &passed)?;
        self.world.calls.insert(key_of(request));
        Ok(code)
    }

    /// A call that brings a state about; it must succeed.
    pub(super) fn quietly(&mut self, text: &str) -> Result<(), Stop> {
        let request = Request::parse(text).map_err(Stop::NotUnderstood)?;
        let (call, values) = understand(&request)?;
        let passed = self.resolve(call, &values)?;
        let code = self.make(call, &values, &passed)?;
        self.first.push(text.to_owned());
        self.world.calls.insert(key_of(&request));
        // That ACL was initialised before is as good.
        match code {
            0 | 100_002 => Ok(()),
            code => Err(Stop::Unprepared(format!("{text} answered {code}"))),
        }
    }

    /// The same for a row's own call, made a first time.
    pub(super) fn first_time(&mut self, call: &Call, values: &[Value]) -> Result<(), Stop> {
        let passed = self.resolve(call, values)?;
        let code = self.make(call, values, &passed)?;
        self.first.push(format!("{} a first time", call.symbol));
        match code {
            0 => Ok(()),
            code => Err(Stop::Unprepared(format!("{} answered {code} the first time", call.symbol))),
        }
    }

    /// Makes a call and notes what it changed.
    fn make(&mut self, call: &Call, values: &[Value], passed: &[u64]) -> Result<i32, Stop> {
        // SAFETY: the table of calls has the symbols' arguments; places are valid (see `resolve`). What rows with
        // invented handles do to the process is told by the process above, and they are played only on demand.
        let code = unsafe { self.raw.call(call.symbol, passed) }.ok_or(Stop::Missing(call.symbol))?;
        if code == 0 || (call.name == "Init" && code == 100_002) {
            self.note_effect(call, values, passed);
        }
        Ok(code)
    }

    /// The arguments as they are passed.
    pub(super) fn resolve(&mut self, call: &Call, values: &[Value]) -> Result<Vec<u64>, Stop> {
        let mut passed = Vec::with_capacity(values.len());
        for (slot, value) in call.slots.iter().zip(values) {
            passed.push(match value {
                Value::Null => 0,
                Value::Number(number) => *number,
                Value::Relative(_) if self.world.expected_address == 0 => {
                    return Err(Stop::NotUnderstood(
                        "an address like one before, and there was none".to_owned(),
                    ));
                }
                Value::Relative(offset) => self.world.expected_address.wrapping_add(*offset),
                Value::Named(named) => self.address(named)?,
                Value::Gone(what) => self.gone(*what)?,
                Value::Invented => self.world.keep(4096, 8),
                // No call writes more than this to one place.
                Value::Made(..) | Value::Place => self.world.keep(512, 8),
                Value::Text(text) => self.text(text)?,
                Value::Specs(kind, specs) => self.describe(*kind, specs),
            });
            if slot.key == "expect" && matches!(value, Value::Number(_) | Value::Named(_)) {
                self.world.expected_address = *passed.last().unwrap_or(&0);
            }
        }
        Ok(passed)
    }

    /// Where a name is, offset included.
    pub(super) fn address(&self, named: &Named) -> Result<u64, Stop> {
        let object = self.world.names.get(&named.name);
        let object = object.ok_or_else(|| Stop::NotUnderstood(format!("what is `{}`?", named.name)))?;
        Ok(object.address.wrapping_add(named.offset))
    }

    fn text(&mut self, text: &str) -> Result<u64, Stop> {
        let text = CString::new(text).map_err(|error| Stop::NotUnderstood(error.to_string()))?;
        let bytes = text.as_bytes_with_nul();
        let address = self.world.keep(bytes.len(), 8);
        // SAFETY: the memory was made for so many bytes, and nothing else uses it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), pointer::<u8>(address), bytes.len()) };
        Ok(address)
    }

    /// Memory with a description of memory, a location, or an array of descriptions of access.
    fn describe(&mut self, kind: Kind, specs: &[Spec]) -> u64 {
        // Always room for three descriptions: a row may claim more than it lists.
        let address = self.world.keep(3 * size_of::<sys::aclrtMemAccessDesc>(), 8);
        for (index, spec) in specs.iter().chain(std::iter::repeat(&specs[0])).take(3).enumerate() {
            let location = sys::aclrtMemLocation { id: spec.id, type_: spec.location };
            // SAFETY: the memory is large enough for each of these, aligned to 8, and used by nothing else.
            unsafe {
                match kind {
                    Kind::Access => pointer::<sys::aclrtMemAccessDesc>(address)
                        .add(index)
                        .write(sys::aclrtMemAccessDesc { flags: spec.access, location, rsv: [0; 12] }),
                    Kind::Location if index == 0 => pointer::<sys::aclrtMemLocation>(address).write(location),
                    Kind::Prop if index == 0 => {
                        pointer::<sys::aclrtPhysicalMemProp>(address).write(sys::aclrtPhysicalMemProp {
                            handleType: spec.handle,
                            allocationType: spec.allocation,
                            memAttr: spec.attr,
                            location,
                            reserve: spec.reserve,
                        });
                    }
                    _ => {}
                }
            }
        }
        address
    }

    /// Whether the machine has the devices that a row supposes.
    fn check_devices(
        &self,
        call: &Call,
        values: &[Value],
        request: &Request,
        expected: Expected,
    ) -> Result<(), Stop> {
        if let Some(wanted) = request.note.devices.filter(|wanted| *wanted != self.devices) {
            return Err(Stop::Skipped(format!(
                "it is for {}, and here {}",
                counted(u64::from(wanted), "device[s]"),
                counted(u64::from(self.devices), "[is|are]")
            )));
        }
        let Some(named) = hazard::device_named(call, values) else { return Ok(()) };
        let is_refused = matches!(expected, Expected::Code(107_000 | 107_001));
        match (named >= self.devices, is_refused) {
            (true, false) if named < 8 => {
                Err(Stop::Skipped(format!("it needs {}", counted(u64::from(named) + 1, "device[s]"))))
            }
            (false, true) if named > 8 => Err(Stop::Skipped(format!("device {named} exists here"))),
            _ => Ok(()),
        }
    }

    /// Whether the device has the memory that a row supposes.
    fn check_memory(
        &mut self,
        call: &Call,
        passed: &[u64],
        page: u64,
        expected: Expected,
    ) -> Result<(), Stop> {
        let Some(&bytes) = passed.get(1).filter(|_| call.name.starts_with("Malloc")) else { return Ok(()) };
        let bytes = bytes.checked_next_multiple_of(page).unwrap_or(bytes);
        let may_lack = match expected {
            // A small request is not worth the question.
            Expected::Code(0) => bytes >= 64 << 20,
            Expected::Code(207_001) => true,
            _ => false,
        };
        if !may_lack || bytes == u64::MAX {
            return Ok(());
        }
        let (free, total) = (self.world.keep(8, 8), self.world.keep(8, 8));
        // SAFETY: two places for a number each; attribute 1 is the memory of the device.
        let code = unsafe { self.raw.call("aclrtGetMemInfo", &[1, free, total]) };
        // SAFETY: both are memory of this process that holds a number.
        let (free, total) = unsafe { (pointer::<u64>(free).read(), pointer::<u64>(total).read()) };
        match (code, expected) {
            (Some(0), Expected::Code(0)) if free < bytes => {
                Err(Stop::Skipped(format!("it needs {} MiB, and {} MiB are free", bytes >> 20, free >> 20)))
            }
            (Some(0), Expected::Code(207_001)) if bytes <= total => {
                Err(Stop::Skipped(format!("the device has the {} MiB that it should lack", bytes >> 20)))
            }
            _ => Ok(()),
        }
    }
}

/// The call of a request and its values.
fn understand(request: &Request) -> Result<(&'static Call, Vec<Value>), Stop> {
    let call =
        find(&request.call).ok_or_else(|| Stop::NotUnderstood(format!("the call `{}`", request.call)))?;
    let values = arguments::read(call, request).map_err(Stop::NotUnderstood)?;
    Ok((call, values))
}

/// Whether the memory is described as one in pages of 1 GiB.
fn is_1g(values: &[Value]) -> bool {
    // The four kinds of `aclrtMemAttr` with 1G in their names.
    let is_1g = |spec: &Spec| matches!(spec.attr, 10 | 11 | 14 | 17);
    values.iter().any(|value| matches!(value, Value::Specs(_, specs) if specs.iter().any(is_1g)))
}

/// A call without its notes, to recognise it again.
pub(super) fn key_of(request: &Request) -> String {
    let first = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    let arguments: Vec<String> = request.arguments.iter().map(|argument| first(&argument.text)).collect();
    format!("{}({})", request.call, arguments.join(","))
}

/// Memory of this process by its address.
fn pointer<T>(address: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(address as usize)
}
