//! Recording a trace that `ascend-alloc replay` reads.
//!
//! A trace is about one device. The first device that appears has the file that was named, each other one a file with
//! `.deviceN` before the first dot of its name.

use core::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use super::context::{Context, context};
use super::event::{Action, Event};
use super::log::Batch;
use super::output::Output;
use super::paths::{OwnPath, named};
use super::writer::Sink;
use crate::driver::DeviceId;

/// A block that is live when a recording begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) device: DeviceId,
    pub(crate) address: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
}

/// A block in the trace.
#[derive(Clone, Copy, Debug)]
struct Live {
    id: u64,
    /// Bytes asked for, while it is known from the beginning only: its allocation may still come.
    from_before: Option<u64>,
}

/// The trace of one device.
#[derive(Debug, Default)]
struct OfDevice {
    file: Option<Output>,
    live: HashMap<u64, Live>,
    ids: u64,
    /// Lines that are not written yet.
    text: String,
    /// Too much could not be written: the trace ends with what was.
    ended: bool,
}

/// See the module's documentation.
pub(crate) struct Recording {
    path: OwnPath,
    first: Option<DeviceId>,
    devices: HashMap<DeviceId, OfDevice>,
    /// Lines for the first device, before it is known which that is.
    early: String,
    begun: bool,
}

/// The first line of a file.
const TITLE: &str = "# source recorded by ascend-alloc\n";

/// Unwritten lines of a device beyond which its recording ends, bytes.
const MOST_UNWRITTEN: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

impl Recording {
    /// A recording that begins with some live blocks.
    pub(crate) fn new(path: OwnPath, before: &[Before]) -> Self {
        let mut recording =
            Self { path, first: None, devices: HashMap::new(), early: String::new(), begun: false };
        for block in before {
            let device = recording.device(block.device);
            device.allocate(block.address, block.requested, block.stream, Some(block.requested));
        }
        recording
    }

    fn device(&mut self, device: DeviceId) -> &mut OfDevice {
        self.first.get_or_insert(device);
        let early = core::mem::take(&mut self.early);
        let device = self.devices.entry(device).or_default();
        device.text.push_str(&early);
        device
    }

    fn path_of(&self, device: DeviceId) -> PathBuf {
        if self.first.is_none_or(|first| first == device) {
            return self.path.path().to_owned();
        }
        named(self.path.path(), &format!("device{device}"))
    }

    fn event(&mut self, event: &Event) {
        if event.action == Action::UserDefined {
            let Some(Context::Text(text)) = event.context.and_then(context) else { return };
            let label: String =
                text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
            let label = label.trim();
            if label.is_empty() {
                return;
            }
            if self.devices.is_empty() && self.early.len() <= MOST_UNWRITTEN {
                // Writing to a text cannot fail.
                let _ = writeln!(self.early, "m {label}");
            }
            // A marker is for all devices.
            self.devices.values_mut().for_each(|device| device.line(format_args!("m {label}")));
            return;
        }
        let blocks = [Action::Allocate, Action::FreeRequested, Action::FreeCompleted, Action::StreamUse];
        if blocks.contains(&event.action) || event.action == Action::HostWait {
            self.device(event.device).event(event);
        }
    }
}

impl OfDevice {
    fn line(&mut self, line: core::fmt::Arguments<'_>) {
        if !self.ended {
            // Writing to a text cannot fail.
            let _ = writeln!(self.text, "{line}");
        }
    }

    fn allocate(&mut self, address: u64, requested: u64, stream: u64, from_before: Option<u64>) {
        self.ids += 1;
        let id = self.ids;
        self.live.insert(address, Live { id, from_before });
        self.line(format_args!("a {id} {requested} {stream}"));
    }

    fn event(&mut self, event: &Event) {
        let known = self.live.get(&event.address).copied();
        match (event.action, known) {
            // A piece that was cut off a block, and waits: nobody asked for it.
            (Action::Allocate, _) if event.requested == 0 => {}
            (Action::Allocate, Some(live)) if live.from_before == Some(event.requested) => {
                self.live.insert(event.address, Live { from_before: None, ..live });
            }
            (Action::Allocate, known) => {
                if let Some(live) = known {
                    // Its free is among the lost events, or the device was reset.
                    self.line(format_args!("f {}", live.id));
                }
                self.allocate(event.address, event.requested, event.stream.0, None);
            }
            (Action::FreeRequested | Action::FreeCompleted, Some(live)) => {
                self.live.remove(&event.address);
                self.line(format_args!("f {}", live.id));
            }
            (Action::StreamUse, Some(live)) => self.line(format_args!("r {} {}", live.id, event.stream.0)),
            (Action::HostWait, _) => self.line(format_args!("s {}", event.stream.0)),
            _ => {}
        }
    }

    /// Writes what is not written yet.
    fn flush(&mut self, path: &Path) -> io::Result<()> {
        let written = self.append(path);
        if written.is_ok() {
            self.text.clear();
        } else if self.text.len() > MOST_UNWRITTEN {
            // With a hole it would be no trace any more.
            self.ended = true;
            self.text = String::new();
        }
        written
    }

    fn append(&mut self, path: &Path) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            return file.append(&self.text);
        }
        let file = self.file.insert(Output::create(path)?);
        self.text.insert_str(0, TITLE);
        file.append(&self.text)
    }
}

impl Sink for Recording {
    fn write(&mut self, batch: &Batch, _last: bool) -> io::Result<()> {
        for event in &batch.events {
            self.event(event);
        }
        if batch.lost > 0 {
            for device in self.devices.values_mut() {
                device.line(format_args!("# lost {}", batch.lost));
            }
        }
        let mut answer = Ok(());
        if !self.begun {
            // So that a process that allocates nothing leaves no trace of an earlier one.
            answer = Output::create(self.path.path()).and_then(|mut file| file.append(TITLE));
            self.begun = answer.is_ok();
        }
        let ids: Vec<DeviceId> = self.devices.keys().copied().collect();
        for id in ids {
            let path = self.path_of(id);
            if let Some(device) = self.devices.get_mut(&id)
                && let Err(error) = device.flush(&path)
            {
                answer = Err(error);
            }
        }
        answer
    }

    fn path(&self) -> &Path {
        self.path.path()
    }
}

#[cfg(all(test, not(ascend_alloc_loom)))]
mod tests {
    use super::super::intern;
    use super::*;
    use crate::driver::Stream;

    fn event(action: Action, address: u64, context: Option<super::super::ContextId>) -> Event {
        let (sequence, time, device, size, requested, pool, tag) = (1, 0, 0, 512, 512, 0, None);
        let stream = Stream(0);
        Event { sequence, time, action, device, address, size, requested, stream, pool, tag, context }
    }

    #[test]
    fn what_cannot_be_written_is_not_kept_for_ever() {
        let text = intern(&"marker ".repeat(100));
        let pair = [event(Action::Allocate, 512, None), event(Action::FreeCompleted, 512, None)];
        let mark = [event(Action::UserDefined, 0, Some(text))];
        for events in [&pair[..], &mark] {
            let path = OwnPath::new("/proc/no folder/x.trace");
            let mut recording = Recording::new(path, &[]);
            let batch = Batch { events: events.repeat(2000), lost: 0, end: 1 };
            for _ in 0..50 {
                recording.write(&batch, false).unwrap_err();
                let unwritten: usize = recording.devices.values().map(|device| device.text.len()).sum();
                // A batch more, at most.
                assert!(unwritten + recording.early.len() <= MOST_UNWRITTEN + (2 << 20));
            }
        }
    }
}
