//! The devices a process sees: numbering, how often each is set, contexts.

use std::collections::{BTreeSet, HashMap};

use crate::codes;
use crate::config::SimConfig;
use crate::made::Made;
use crate::refusal::{Answer, refuse};
use crate::threads::Current;

/// Handles of primary contexts start here, those of explicit ones above.
const CONTEXTS: u64 = 0xc000_0000_0000;

/// One device of the machine.
#[derive(Debug, Default)]
struct Device {
    /// How often it was set and not reset.
    references: u64,
    /// How often it was torn down.
    generation: u64,
}

/// A context made by the program.
#[derive(Clone, Copy, Debug)]
struct Context {
    /// The driver's number of its device.
    device: u32,
    /// Its number in the executor, which keeps its streams.
    number: u32,
    made: Made,
}

/// Where a thread's calls go: the driver's number of the current device, and the number of the
/// current context in the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Here {
    pub(crate) device: u32,
    pub(crate) context: u32,
}

/// All devices of the machine, by the driver's numbers, and what the process sees of them.
#[derive(Debug)]
pub(crate) struct Devices {
    /// The driver's number of each visible device.
    visible: Vec<u32>,
    devices: Vec<Device>,
    /// Explicit contexts.
    contexts: HashMap<u64, Context>,
    next_context: u64,
    /// Links between devices (driver's numbers): the first may use memory of the second.
    pub(crate) peers: BTreeSet<(u32, u32)>,
    /// Whether any device was ever set, or a context of one made.
    pub(crate) opened: bool,
    /// `aclInit` calls that were not undone.
    pub(crate) inits: u64,
    /// Whether `aclFinalize` was called since the last `aclInit`.
    pub(crate) finalized: bool,
}

impl Devices {
    pub(crate) fn new(config: &SimConfig) -> Self {
        let mut visible = Vec::new();
        for device in config.visible_devices.clone().unwrap_or_else(|| (0..config.devices).collect()) {
            let ascending = visible.last().is_none_or(|&last| last < device);
            if device >= config.devices || !ascending {
                break;
            }
            visible.push(device);
        }
        Self {
            visible,
            devices: (0..config.devices).map(|_| Device::default()).collect(),
            contexts: HashMap::new(),
            next_context: CONTEXTS + (1 << 32),
            peers: BTreeSet::new(),
            opened: false,
            inits: 0,
            finalized: false,
        }
    }

    /// How many devices the process sees.
    pub(crate) fn count(&self) -> u32 {
        self.visible.len() as u32
    }

    /// The driver's number of a device of the process.
    pub(crate) fn driver_id(&self, user: u32) -> Answer<u32> {
        let found = self.visible.get(user as usize).copied();
        found.map_or(refuse(codes::RT_INVALID_DEVICEID, "no such device is visible"), Ok)
    }

    /// The process's number of a device of the driver.
    pub(crate) fn user_id(&self, driver: u32) -> Option<u32> {
        self.visible.iter().position(|&device| device == driver).map(|index| index as u32)
    }

    /// Sets a device (process's number): what becomes current.
    pub(crate) fn set(&mut self, user: u32) -> Answer<Current> {
        let device = self.driver_id(user)?;
        let state = &mut self.devices[device as usize];
        state.references += 1;
        self.opened = true;
        Ok(Current::Primary { device, generation: state.generation })
    }

    /// What is current after switching to a device without holding it longer than it is held.
    pub(crate) fn enter(&mut self, user: u32) -> Answer<Current> {
        let device = self.driver_id(user)?;
        let state = &mut self.devices[device as usize];
        // The first to use a device opens it, as a driver that sets a device for a moment would.
        state.references = state.references.max(1);
        self.opened = true;
        Ok(Current::Primary { device, generation: state.generation })
    }

    /// Whether dropping one reference (or all) of a device would drop the last.
    pub(crate) fn ends(&self, user: u32, all: bool) -> Answer<bool> {
        let references = self.devices[self.driver_id(user)? as usize].references;
        Ok(references == 1 || (all && references > 0))
    }

    /// Drops one reference (or all) of a device: its driver's number if that was the last.
    pub(crate) fn reset(&mut self, user: u32, all: bool) -> Answer<Option<u32>> {
        let device = self.driver_id(user)?;
        let state = &mut self.devices[device as usize];
        if state.references == 0 {
            return refuse(codes::RT_CONTEXT_RELEASE_ERROR, "the device is not set");
        }
        state.references = if all { 0 } else { state.references - 1 };
        Ok((state.references == 0).then(|| self.end(device)))
    }

    /// Ends all that a process has of a device (driver's number), which it gives back.
    pub(crate) fn end(&mut self, device: u32) -> u32 {
        let state = &mut self.devices[device as usize];
        state.references = 0;
        state.generation += 1;
        self.contexts.retain(|_, context| context.device != device);
        self.peers.retain(|link| link.0 != device && link.1 != device);
        device
    }

    /// The devices that a device may use memory of (driver's numbers).
    pub(crate) fn links_of(&self, device: u32) -> Vec<u32> {
        self.peers.range((device, 0)..=(device, u32::MAX)).map(|link| link.1).collect()
    }

    /// Whether a device (driver's number) is set.
    pub(crate) fn is_set(&self, device: u32) -> bool {
        self.devices.get(device as usize).is_some_and(|state| state.references > 0)
    }

    /// Devices that are set or have contexts, as the process and the driver number them.
    pub(crate) fn held(&self) -> Vec<(u32, u32)> {
        let held = |&(_, device): &(u32, u32)| {
            self.devices[device as usize].references > 0
                || self.contexts.values().any(|context| context.device == device)
        };
        (0..).zip(self.visible.iter().copied()).filter(held).collect()
    }

    /// Where the calls of a thread with that state go.
    pub(crate) fn here(&self, current: Current) -> Answer<Here> {
        let here = match current {
            Current::Nothing => None,
            Current::Primary { device, generation } => {
                let same = self.devices[device as usize].generation == generation;
                same.then_some(Here { device, context: device })
            }
            Current::Explicit(handle) => self
                .contexts
                .get(&handle)
                .map(|context| Here { device: context.device, context: context.number }),
        };
        here.map_or(refuse(codes::RT_CONTEXT_NULL, "the thread has no current device or context"), Ok)
    }

    /// The handle of a thread's current context.
    pub(crate) fn context_of(&self, current: Current) -> Answer<u64> {
        let device = self.here(current)?.device;
        Ok(match current {
            Current::Explicit(handle) => handle,
            _ => self.primary(device),
        })
    }

    /// The handle of a device's primary context, which is another one after a reset.
    fn primary(&self, device: u32) -> u64 {
        let generation = self.devices[device as usize].generation & 0xff;
        CONTEXTS + 0x100 + (generation << 24) + (u64::from(device) << 8)
    }

    /// One line for each explicit context, with the call that made it.
    pub(crate) fn left(&self) -> Vec<String> {
        let line = |(handle, context): (&u64, &Context)| {
            format!("context {handle:#x} of device {}, made by {}", context.device, context.made)
        };
        let mut lines: Vec<String> = self.contexts.iter().map(line).collect();
        lines.sort();
        lines
    }

    /// A new explicit context of a device (driver's number), with that number in the executor.
    pub(crate) fn create_context(&mut self, device: u32, number: u32) -> u64 {
        let handle = self.next_context;
        self.next_context += 0x100;
        self.opened = true;
        self.contexts.insert(handle, Context { device, number, made: Made::now() });
        handle
    }

    /// The number of an explicit context in the executor.
    pub(crate) fn context_number(&self, handle: u64) -> Answer<u32> {
        match self.contexts.get(&handle) {
            Some(context) => Ok(context.number),
            None => refuse(codes::RT_CONTEXT_NULL, "unknown, destroyed or primary context"),
        }
    }

    /// Forgets an explicit context: its number in the executor.
    pub(crate) fn destroy_context(&mut self, handle: u64) -> Answer<u32> {
        let number = self.context_number(handle)?;
        self.contexts.remove(&handle);
        Ok(number)
    }

    /// The state of a thread that makes that context current.
    pub(crate) fn enter_context(&self, handle: u64) -> Answer<Current> {
        if self.contexts.contains_key(&handle) {
            return Ok(Current::Explicit(handle));
        }
        let device = (0..self.devices.len() as u32).find(|&device| self.primary(device) == handle);
        match device.map(|device| (device, &self.devices[device as usize])) {
            Some((device, state)) if state.references > 0 => {
                Ok(Current::Primary { device, generation: state.generation })
            }
            _ => refuse(codes::RT_PARAM_INVALID, "no such context"),
        }
    }
}
