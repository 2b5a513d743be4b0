//! What calls that succeed change, and what rows say of names before they are made.

use std::ptr;

use super::Player;
use crate::doctor::conform::arguments::Value;
use crate::doctor::conform::calls::{Call, What};
use crate::doctor::conform::rows::{Expected, Row};
use crate::doctor::conform::world::{Mapping, Object, Registered};
use crate::doctor::conform::{arguments, calls};

impl Player {
    /// Notes what a call changed that succeeded.
    pub(super) fn note_effect(&mut self, call: &Call, values: &[Value], passed: &[u64]) {
        for (value, &place) in values.iter().zip(passed) {
            if let Value::Made(what, name) = value {
                // SAFETY: the place is memory of this process that the call has filled.
                let made = unsafe { ptr::with_exposed_provenance::<u64>(place as usize).read() };
                let bytes = passed.get(1).copied().filter(|_| *what != What::Context).unwrap_or(0);
                self.note_made(call, *what, name.as_deref(), made, bytes);
            }
        }
        let first = passed.first().copied().unwrap_or(0);
        match call.name {
            "Init" => self.world.initialised = true,
            "Finalize" => {
                self.world.initialised = false;
                self.world.finalised = true;
                self.world.set.clear();
            }
            "SetDevice" => {
                self.world.current = first as u32;
                *self.world.set.entry(first as u32).or_default() += 1;
            }
            "ResetDevice" | "ResetDeviceForce" => self.note_reset(call, first as u32),
            "MapMem" | "MemMapNoAccess" => {
                self.world.mappings.push(Mapping { address: first, bytes: passed[1], chunk: passed[3] });
                let inside = |object: &&mut Object| {
                    object.what == What::Range
                        && (object.address..object.address + object.bytes).contains(&first)
                };
                for range in self.world.names.values_mut().filter(inside) {
                    range.used = true;
                }
            }
            "UnmapMem" => self.world.mappings.retain(|mapping| mapping.address != first),
            "FreePhysical" => {
                let count = self.world.references.entry(first).or_default();
                *count = count.saturating_sub(1);
            }
            "ReleaseMemAddress" => self.world.end(What::Range, first),
            "Free" | "FreeWithDevSync" | "FreeHost" | "FreeHostWithDevSync" => {
                self.world.end(What::Block, first);
                self.world.end(What::Pinned, first);
            }
            "HostRegister" | "HostRegisterV2" => {
                let mapped = call.name == "HostRegister" || passed[2] & 2 != 0;
                self.world.registered.push(Registered { address: first, bytes: passed[1], mapped });
            }
            "HostUnregister" => self.world.registered.retain(|memory| memory.address != first),
            "DestroyStream" | "DestroyStreamForce" => self.world.end(What::Stream, first),
            "DestroyEvent" => self.world.end(What::Event, first),
            "DestroyContext" => self.world.end(What::Context, first),
            "RecordEvent" => {
                if let Some(event) = self.world.at(What::Event, first) {
                    event.used = true;
                }
            }
            _ => {}
        }
    }

    fn note_made(&mut self, call: &Call, what: What, name: Option<&str>, address: u64, bytes: u64) {
        if what == What::Chunk {
            let count = self.world.references.entry(address).or_default();
            // A new chunk may have the handle of one that is gone.
            *count = if call.name == "MallocPhysical" { 1 } else { *count + 1 };
        }
        let Some(name) = name else {
            // Nobody can name it again, so it goes back at once.
            let back = match what {
                What::Chunk => "FreePhysical",
                What::Block => "Free",
                What::Pinned => "FreeHost",
                What::Range => "Release",
                _ => return,
            };
            // What cannot be given back stays until the process ends.
            let _stays = self.quietly(&format!("{back}({address:#x})"));
            return;
        };
        let object = Object { what, address, bytes, live: true, used: false };
        self.world.names.insert(name.to_owned(), object);
    }

    /// With its last reference a device takes everything on it with it.
    fn note_reset(&mut self, call: &Call, device: u32) {
        let count = self.world.set.entry(device).or_default();
        *count = if call.name == "ResetDevice" { count.saturating_sub(1) } else { 0 };
        if *count == 0 {
            self.world.mappings.clear();
            let lost = [What::Block, What::Pinned, What::Stream, What::Event, What::Context];
            for object in self.world.names.values_mut().filter(|object| lost.contains(&object.what)) {
                object.live = false;
            }
        }
    }

    /// Notes the names that a skipped row would have made.
    pub(super) fn note_names(&mut self, row: &Row) {
        let Some((_, values)) = understood(row) else { return };
        for value in values {
            if let Value::Made(_, Some(name)) = value {
                self.world.names.remove(&name);
                self.world.skipped.insert(name);
            }
        }
    }

    /// Notes how large the things are that a row names.
    pub(super) fn note_sizes(&mut self, row: &Row) {
        let Some((call, values)) = understood(row) else { return };
        let size = values.get(1).and_then(|value| match value {
            Value::Number(bytes) => Some(*bytes),
            _ => None,
        });
        let works = row.expected == Ok(Expected::Code(0));
        let maps = works && call.name == "MapMem";
        for value in &values {
            let known = match value {
                Value::Made(_, Some(name)) if works => size.map(|bytes| (name, bytes)),
                Value::Named(named) => match (named.bytes, named.what) {
                    (Some(bytes), _) => Some((&named.name, bytes)),
                    // Only the row of that code is about a chunk that is too small.
                    (None, What::Chunk)
                        if call.name == "MapMem" && row.expected != Ok(Expected::Code(207_001)) =>
                    {
                        size.filter(|bytes| bytes % (2 << 20) == 0).map(|bytes| (&named.name, bytes))
                    }
                    // Room for what is mapped, and for as much again: rows go past ends.
                    (None, What::Range) if maps => {
                        size.map(|bytes| (&named.name, named.offset.saturating_add(bytes).saturating_mul(2)))
                    }
                    _ => None,
                },
                _ => None,
            };
            if let Some((name, bytes)) = known {
                let most = self.sizes.entry(name.clone()).or_default();
                *most = bytes.max(*most);
            }
        }
    }
}

fn understood(row: &Row) -> Option<(&'static Call, Vec<Value>)> {
    let request = row.request.as_ref().ok()?;
    let call = calls::find(&request.call)?;
    Some((call, arguments::read(call, request).ok()?))
}
