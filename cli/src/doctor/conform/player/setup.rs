//! Brings about the state that a row is written for, where the rows before it did not.
//!
//! Three sources say what that state is: the listed answer (what succeeds needs its objects), the note (`double`:
//! done before; `while mapped`: a mapping), and otherwise that everything a row names is there.

use super::{Player, Stop, key_of};
use crate::doctor::conform::arguments::{Named, Value};
use crate::doctor::conform::calls::{Call, What};
use crate::doctor::conform::rows::Expected;
use crate::doctor::conform::syntax::{Note, Request};
use crate::doctor::conform::world::{Object, Registered};

/// `RT_CONTEXT_NULL`: what a call answers before a device is set.
const NO_CONTEXT: i32 = 107_002;
/// `REPEAT_INITIALIZE`.
const REPEATED: i32 = 100_002;

/// What a row asks of the state.
struct Wish<'a> {
    call: &'a Call,
    values: &'a [Value],
    note: &'a Note,
    /// The call is to succeed.
    works: bool,
}

impl Player {
    /// Does what the row needs done first.
    pub(super) fn prepare(
        &mut self,
        call: &Call,
        values: &[Value],
        request: &Request,
        expected: Expected,
    ) -> Result<(), Stop> {
        if self.is_complete {
            return self.prepare_complete(values);
        }
        let note = &request.note;
        let works = expected == Expected::Code(0);
        let wish = Wish { call, values, note, works };
        self.prepare_process(&wish, expected)?;
        if note.after_reset {
            self.prepare_reset(&wish)?;
        } else {
            for value in values {
                if let Value::Named(named) = value {
                    self.prepare_name(named, &wish)?;
                }
            }
        }
        match call.name {
            "Init" | "SetDevice" if note.repeated && !self.world.calls.contains(&key_of(request)) => {
                self.first_time(call, values)
            }
            "MapMem" | "MemMapNoAccess" => self.prepare_map(&wish),
            "UnmapMem" => self.prepare_unmap(&wish),
            "ReleaseMemAddress" => self.prepare_release(&wish),
            "FreePhysical" => self.prepare_free_physical(&wish),
            "MemSetAccess"
            | "MemGetAccess"
            | "MemRetainAllocationHandle"
            | "MemGetAddressRange"
            | "PointerGetAttributes" => self.prepare_mapped(&wish),
            "HostRegister" | "HostRegisterV2" | "HostUnregister" | "HostGetDevicePointer" => {
                self.prepare_registered(&wish)
            }
            "Free" | "FreeHost" | "DestroyStream" | "DestroyEvent" | "DestroyContext"
                if note.repeated && !works && self.first_is_live(&wish) =>
            {
                self.first_time(call, values)
            }
            "StreamWaitEvent" | "EventElapsedTime" | "EventGetTimestamp" => self.prepare_recorded(&wish),
            _ => Ok(()),
        }
    }

    /// For a group whose rows are all there: only what is no row is brought about.
    fn prepare_complete(&mut self, values: &[Value]) -> Result<(), Stop> {
        if std::mem::take(&mut self.init_first) {
            self.quietly("aclInit(NULL)")?;
        }
        for value in values {
            let Value::Named(named) = value else { continue };
            if self.world.names.contains_key(&named.name) {
                continue;
            }
            let is_no_row = named.what == What::Own || named.name == "window";
            match self.world.skipped.contains(&named.name) {
                false if is_no_row => self.create(named, named.what)?,
                false => return Err(Stop::NotUnderstood(format!("what is `{}`?", named.name))),
                true => return Err(Stop::Skipped(came_from_skipped(&named.name))),
            }
        }
        Ok(())
    }

    /// ACL and the devices, as far as the row wants them.
    fn prepare_process(&mut self, wish: &Wish<'_>, expected: Expected) -> Result<(), Stop> {
        let note = wish.note;
        if note.no_init || note.after_reset || wish.call.name == "GetDeviceCount" {
            return Ok(());
        }
        let wants_no_init = match wish.call.name {
            "Init" => expected != Expected::Code(REPEATED) && !note.repeated,
            "Finalize" | "FinalizeReference" => note.repeated,
            _ => false,
        };
        if !wants_no_init && !self.world.initialised {
            self.quietly("aclInit(NULL)")?;
        }
        let device = match wish.values.first() {
            Some(Value::Number(number)) => *number as u32,
            _ => 0,
        };
        let is_set = |player: &Self| player.world.set.get(&device).is_some_and(|&count| count > 0);
        match wish.call.name {
            "Init" | "SetDevice" | "GetVersion" => Ok(()),
            "Finalize" | "FinalizeReference" if note.repeated => {
                let is_first = !self.world.finalised;
                if is_first && !self.world.initialised {
                    self.quietly("aclInit(NULL)")?;
                }
                if is_first || self.world.initialised {
                    self.first_time(wish.call, wish.values)
                } else {
                    Ok(())
                }
            }
            "Finalize" | "FinalizeReference" => Ok(()),
            "ResetDevice" | "ResetDeviceForce" if wish.works && !is_set(self) => {
                self.quietly(&format!("aclrtSetDevice({device})"))
            }
            "ResetDevice" | "ResetDeviceForce" => {
                while !wish.works && note.repeated && is_set(self) {
                    self.first_time(wish.call, wish.values)?;
                }
                Ok(())
            }
            _ if note.no_device || expected == Expected::Code(NO_CONTEXT) => Ok(()),
            _ => self.open_devices(wish),
        }
    }

    /// What the row names, on a device that was reset since.
    fn prepare_reset(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        for value in wish.values {
            let Value::Named(named) = value else { continue };
            if self.world.names.contains_key(&named.name) {
                continue;
            }
            if !self.world.initialised {
                self.quietly("aclInit(NULL)")?;
            }
            self.open_devices(wish)?;
            self.create(named, named.what)?;
            match named.what {
                What::Range => self.quietly_map(self.address(named)?, 2 << 20, "some_chunk")?,
                What::Chunk => {
                    self.quietly("Reserve(&some_Range,1G)")?;
                    let start = self.address(&name("some_Range", What::Range))?;
                    let bytes = self.sizes.get(&named.name).copied().unwrap_or(2 << 20);
                    self.quietly_map(start, bytes, &named.name)?;
                }
                _ => {}
            }
        }
        let current = self.world.current;
        while self.world.set.get(&current).is_some_and(|&count| count > 0) {
            self.quietly(&format!("aclrtResetDevice({current})"))?;
        }
        Ok(())
    }

    /// Device 0, unless another is set, and those that the row names.
    fn open_devices(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        let named = crate::doctor::conform::hazard::device_named(wish.call, wish.values)
            .filter(|device| *device < self.devices);
        if self.world.set.values().all(|&count| count == 0) {
            self.quietly("aclrtSetDevice(0)")?;
        }
        let Some(other) = named else { return Ok(()) };
        if self.world.set.get(&other).is_none_or(|&count| count == 0) {
            let current = self.world.current;
            self.quietly(&format!("aclrtSetDevice({other})"))?;
            // Back to the one before, with as many references as it had.
            self.quietly(&format!("aclrtSetDevice({current})"))?;
            self.quietly(&format!("aclrtResetDevice({current})"))?;
        }
        Ok(())
    }

    /// What the row names is there, unless the row is about its being gone.
    fn prepare_name(&mut self, named: &Named, wish: &Wish<'_>) -> Result<(), Stop> {
        let ends = wish.call.name.starts_with("Free")
            || wish.call.name.starts_with("Destroy")
            || matches!(wish.call.name, "ReleaseMemAddress" | "HostUnregister");
        let may_be_gone = (wish.note.repeated && ends && !wish.works)
            || (wish.note.released && named.what == What::Range)
            || (wish.note.destroyed && named.what.is_handle());
        let known = self.world.names.contains_key(&named.name);
        if known && (may_be_gone || self.world.is_live(&named.name)) {
            return Ok(());
        }
        if !known && self.world.skipped.contains(&named.name) {
            return Err(Stop::Skipped(came_from_skipped(&named.name)));
        }
        // Which kind of pointer is meant is in its name alone here: ranges are called va, vb and so on.
        let is_range = wish.call.name == "PointerGetAttributes" && named.name.starts_with('v');
        self.create(named, if is_range { What::Range } else { named.what })
    }

    fn create(&mut self, named: &Named, what: What) -> Result<(), Stop> {
        let name = &named.name;
        let bytes = |usual: u64| named.bytes.or_else(|| self.sizes.get(name).copied()).unwrap_or(usual);
        match what {
            What::Range if name == "window" => {
                // The first address of reservations, for rows that count from there.
                self.quietly("Reserve(&window,2M)")?;
                self.quietly("Release(window)")?;
                if let Some(window) = self.world.names.get_mut(name) {
                    window.live = true;
                }
                Ok(())
            }
            What::Range => {
                // Text in the row says it exactly; what other rows map is the least.
                let bytes = named.bytes.unwrap_or_else(|| bytes(64 << 20).max(64 << 20));
                self.quietly(&format!("Reserve(&{name},{bytes})"))?;
                if named.is_mapped {
                    let start = self.address(named)?;
                    self.quietly_map(start, 2 << 20, "h")?;
                }
                Ok(())
            }
            What::Chunk => {
                let place = match named.device {
                    _ if named.is_host => "host0 DDR_HUGE".to_owned(),
                    device => format!("dev{}", device.unwrap_or(0)),
                };
                let bytes = bytes(2 << 20);
                self.quietly(&format!("MallocPhysical(&{name} {place},{bytes})"))
            }
            What::Block => {
                let bytes = bytes(2 << 20);
                self.quietly(&format!("aclrtMalloc(&{name},{bytes})"))
            }
            What::Pinned => {
                let bytes = bytes(4096);
                self.quietly(&format!("aclrtMallocHost(&{name},{bytes})"))
            }
            What::Own => {
                let bytes = 16 << 20;
                let address = self.world.keep(bytes, 2 << 20);
                let object = Object { what, address, bytes: bytes as u64, live: true, used: false };
                self.world.names.insert(name.clone(), object);
                Ok(())
            }
            What::Stream => self.quietly(&format!("aclrtCreateStream(&{name})")),
            What::Event => self.quietly(&format!("aclrtCreateEventWithFlag(&{name},SYNC|TIME_LINE)")),
            What::Context => self.quietly(&format!("aclrtCreateContext(&{name},0)")),
            What::Graph => Err(Stop::NotUnderstood(format!("what is `{name}`?"))),
        }
    }

    /// The one that was destroyed last, or one made and destroyed for that.
    pub(super) fn gone(&mut self, what: What) -> Result<u64, Stop> {
        if !self.world.destroyed.contains_key(&what) {
            match what {
                What::Stream => {
                    self.quietly("aclrtCreateStream(&some_Stream)")?;
                    self.quietly("aclrtDestroyStream(some_Stream)")?;
                }
                What::Event => {
                    self.quietly("aclrtCreateEvent(&some_Event)")?;
                    self.quietly("aclrtDestroyEvent(some_Event)")?;
                }
                _ => return Err(Stop::NotUnderstood(format!("a destroyed {what:?}"))),
            }
        }
        Ok(self.world.destroyed.get(&what).copied().unwrap_or(0))
    }

    fn quietly_map(&mut self, address: u64, bytes: u64, chunk: &str) -> Result<(), Stop> {
        if !self.world.is_live(chunk) {
            let named = name(chunk, What::Chunk);
            self.create(&Named { bytes: Some(bytes), ..named }, What::Chunk)?;
        }
        self.quietly(&format!("Map({address:#x},{bytes},0,{chunk},0)"))
    }

    fn quietly_unmap(&mut self, starts: Vec<u64>) -> Result<(), Stop> {
        starts.into_iter().try_for_each(|start| self.quietly(&format!("Unmap({start:#x})")))
    }

    fn prepare_map(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        let [Value::Named(range), Value::Number(bytes), _, chunk, ..] = wish.values else { return Ok(()) };
        let address = self.address(range)?;
        let taken = self.world.overlapping(address, *bytes);
        if wish.works {
            return self.quietly_unmap(taken);
        }
        if wish.note.released && self.world.is_live(&range.name) {
            self.quietly_unmap(self.world.inside(&range.name))?;
            return self.quietly(&format!("Release({})", range.name));
        }
        if (wish.note.repeated || wish.note.overlaps) && taken.is_empty() {
            return self.quietly_map(address, 2 << 20, "some_chunk");
        }
        let is_foreign =
            matches!(chunk, Value::Named(chunk) if chunk.device.is_some_and(|device| device > 0));
        if is_foreign && self.world.names.get(&range.name).is_some_and(|range| !range.used) {
            // What is refused is memory of another device than that of the first mapping.
            self.quietly_map(address, 2 << 20, "some_chunk")?;
            return self.quietly_unmap(vec![address]);
        }
        Ok(())
    }

    fn prepare_unmap(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        let Some(Value::Named(range)) = wish.values.first() else { return Ok(()) };
        if wish.note.after_reset {
            return Ok(());
        }
        let address = self.address(range)?;
        let is_mapped = self.world.mappings.iter().any(|mapping| mapping.address == address);
        match (wish.works, is_mapped) {
            (true, false) => {
                self.quietly_unmap(self.world.overlapping(address, 2 << 20))?;
                self.quietly_map(address, 2 << 20, "some_chunk")
            }
            (false, true) if wish.note.repeated => self.first_time(wish.call, wish.values),
            _ => Ok(()),
        }
    }

    fn prepare_release(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        let Some(Value::Named(range)) = wish.values.first() else { return Ok(()) };
        let inside = self.world.inside(&range.name);
        let is_live = self.world.is_live(&range.name);
        if wish.note.after_reset || range.what != What::Range {
            return Ok(());
        }
        if wish.works {
            return self.quietly_unmap(inside);
        }
        if wish.note.repeated && is_live {
            self.quietly_unmap(inside)?;
            return self.first_time(wish.call, wish.values);
        }
        if wish.note.while_mapped && inside.is_empty() {
            let start = self.address(range)?;
            return self.quietly_map(start, 2 << 20, "h");
        }
        Ok(())
    }

    fn prepare_free_physical(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        let Some(Value::Named(chunk)) = wish.values.first() else { return Ok(()) };
        if wish.note.after_reset {
            return Ok(());
        }
        let handle = self.address(chunk)?;
        let count = self.world.references.get(&handle).copied().unwrap_or(0);
        if wish.note.while_mapped && self.world.uses(handle) == 0 && count > 0 {
            let bytes = self.sizes.get(&chunk.name).copied().unwrap_or(2 << 20);
            self.quietly(&format!("Reserve(&some_Range,{})", bytes.max(64 << 20)))?;
            let start = self.address(&name("some_Range", What::Range))?;
            self.quietly_map(start, bytes, &chunk.name)?;
        }
        if wish.works && count == 0 {
            let mapping = self.world.mappings.iter().find(|mapping| mapping.chunk == handle);
            if let Some(start) = mapping.map(|mapping| mapping.address) {
                return self.quietly(&format!("Retain({start:#x},&{})", chunk.name));
            }
        }
        if !wish.works && wish.note.repeated {
            for _ in 0..count {
                self.first_time(wish.call, wish.values)?;
            }
        }
        Ok(())
    }

    /// For calls about a mapping.
    fn prepare_mapped(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        let Some(Value::Named(range)) = wish.values.first() else { return Ok(()) };
        let Some(known) = self.world.names.get(&range.name).cloned() else { return Ok(()) };
        if known.what != What::Range {
            return Ok(());
        }
        let address = self.address(range)?;
        let around = self.world.around(address).map(|mapping| mapping.address);
        let bytes = match wish.values.get(1) {
            Some(Value::Number(bytes)) if wish.works => *bytes,
            _ => self.sizes.get("h").copied().unwrap_or(4 << 20),
        };
        if wish.note.not_mapped {
            if wish.works && !known.used {
                self.quietly_map(known.address, bytes, "h")?;
                return self.quietly(&format!("Unmap({:#x})", known.address));
            }
            return self.quietly_unmap(around.into_iter().collect());
        }
        let is_asked_only = wish.call.name == "PointerGetAttributes";
        if wish.note.never_mapped {
            return if known.used { self.create(range, What::Range) } else { Ok(()) };
        }
        let lacks = if wish.works { around.is_none() } else { self.world.inside(&range.name).is_empty() };
        if lacks && !(is_asked_only && (known.used || !wish.works)) {
            return self.quietly_map(known.address, bytes, "h");
        }
        Ok(())
    }

    fn prepare_registered(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        let Some(Value::Named(memory)) = wish.values.first() else { return Ok(()) };
        let address = self.address(memory)?;
        let around = |known: &&Registered| (known.address..known.address + known.bytes).contains(&address);
        let starts = |player: &Self| player.world.registered.iter().any(|known| known.address == address);
        let is_plain = memory.what == What::Own && !memory.name.starts_with('&');
        match wish.call.name {
            "HostRegister" | "HostRegisterV2" => {
                let bytes = match wish.values.get(1) {
                    Some(Value::Number(bytes)) => *bytes,
                    _ => 1,
                };
                let is_taken = self.world.is_registered(address, bytes);
                if wish.works && is_taken {
                    let end = address.saturating_add(bytes);
                    let known = self.world.registered.iter();
                    let known =
                        known.filter(|known| known.address < end && address < known.address + known.bytes);
                    let starts: Vec<u64> = known.map(|known| known.address).collect();
                    return starts
                        .into_iter()
                        .try_for_each(|start| self.quietly(&format!("aclrtHostUnregister({start:#x})")));
                }
                if !wish.works && !is_taken && (wish.note.repeated || wish.note.overlaps) {
                    return self.quietly(&format!("aclrtHostRegisterV2({},4M,MAPPED)", memory.name));
                }
                Ok(())
            }
            "HostUnregister" if wish.works && !starts(self) => {
                self.quietly(&format!("aclrtHostRegister({},4M,MAPPED)", memory.name))
            }
            "HostUnregister" if wish.note.repeated && starts(self) => self.first_time(wish.call, wish.values),
            "HostGetDevicePointer" if is_plain && (wish.works || wish.note.pinned_only) => {
                if let Some(known) = self.world.registered.iter().find(around).cloned() {
                    if known.mapped == wish.works {
                        return Ok(());
                    }
                    self.quietly(&format!("aclrtHostUnregister({:#x})", known.address))?;
                }
                let flag = if wish.works { "MAPPED" } else { "PINNED" };
                self.quietly(&format!("aclrtHostRegisterV2({},4M,{flag})", memory.name))
            }
            _ => Ok(()),
        }
    }

    fn prepare_recorded(&mut self, wish: &Wish<'_>) -> Result<(), Stop> {
        for value in wish.values {
            let Value::Named(event) = value else { continue };
            let Some(known) = self.world.names.get(&event.name).filter(|known| known.what == What::Event)
            else {
                continue;
            };
            if wish.note.never_recorded && known.used {
                self.create(event, What::Event)?;
            } else if wish.works && !known.used {
                self.quietly(&format!("aclrtRecordEvent({},NULL)", event.name))?;
                self.quietly(&format!("aclrtSynchronizeEvent({})", event.name))?;
            }
        }
        Ok(())
    }

    fn first_is_live(&self, wish: &Wish<'_>) -> bool {
        matches!(wish.values.first(), Some(Value::Named(named)) if self.world.is_live(&named.name))
    }
}

fn came_from_skipped(name: &str) -> String {
    format!("`{name}` was to come from a row that was skipped")
}

fn name(text: &str, what: What) -> Named {
    Named {
        name: text.to_owned(),
        what,
        offset: 0,
        bytes: None,
        device: None,
        is_host: false,
        is_mapped: false,
    }
}
