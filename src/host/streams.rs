//! The streams of all devices as one row of numbers, and events for them.
//!
//! The allocator below knows one "device", the host, whose default stream 0 is the host itself: what the host did
//! is over at once. Every stream of a device gets a number of its own. An event of the allocator is a number too;
//! which event of a device stands behind it is decided when it is recorded, because only then the device is known.

use std::collections::{BTreeSet, HashMap};

use super::source::wait_for_stream;
use crate::driver::{DeviceId, Driver, DriverResult, Event, Stream};
use crate::sync::Mutex;

/// The host: nothing it did is still to come.
pub(super) const HOST: Stream = Stream(0);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    numbers: HashMap<(DeviceId, Stream), u64>,
    /// By number less one. Of destroyed streams too: numbers are never used again.
    streams: Vec<(DeviceId, Stream)>,
    /// The devices of all of them.
    devices: BTreeSet<DeviceId>,
    events: HashMap<u64, Recorded>,
    next_event: u64,
    /// Events of devices that stand behind no number.
    spare: Vec<(DeviceId, Event)>,
}

/// What a number of an event stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    /// Never recorded, or recorded on the host: complete.
    Over,
    /// Recorded on a stream of this device.
    On(DeviceId, Event),
}

impl Streams {
    /// The number of a stream, which is added when it is new.
    pub(super) fn number(&self, device: DeviceId, stream: Stream) -> Stream {
        let mut guard = self.0.lock();
        let tables = &mut *guard;
        let number = tables.numbers.entry((device, stream)).or_insert_with(|| {
            tables.streams.push((device, stream));
            tables.devices.insert(device);
            tables.streams.len() as u64
        });
        Stream(*number)
    }

    /// Forgets a stream that is being destroyed; its number, if it had one.
    pub(super) fn forget(&self, device: DeviceId, stream: Stream) -> Option<Stream> {
        self.0.lock().numbers.remove(&(device, stream)).map(Stream)
    }

    /// Forgets streams of any device with these handles, or all but default ones; the numbers they had.
    pub(super) fn forget_handles(&self, handles: Option<&[Stream]>) -> Vec<Stream> {
        let ended = |stream: Stream| stream.0 != 0 && handles.is_none_or(|ended| ended.contains(&stream));
        let mut tables = self.0.lock();
        let mut numbers: Vec<Stream> = tables
            .numbers
            .extract_if(|&(_, stream), _| ended(stream))
            .map(|(_, number)| Stream(number))
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// The stream behind a number; none for the host.
    pub(super) fn stream(&self, number: Stream) -> Option<(DeviceId, Stream)> {
        let index = usize::try_from(number.0.checked_sub(1)?).ok()?;
        self.0.lock().streams.get(index).copied()
    }

    /// Waits for a stream by its number, or for its device where the stream has been forgotten: its handle may be
    /// another one's by now.
    pub(super) fn wait(&self, driver: &dyn Driver, number: Stream) -> DriverResult<()> {
        let Some((device, stream)) = self.stream(number) else { return Ok(()) };
        let is_known = self.0.lock().numbers.get(&(device, stream)) == Some(&number.0);
        if is_known { wait_for_stream(driver, device, stream) } else { driver.synchronize_device(device) }
    }

    /// The devices whose streams have been used.
    pub(super) fn devices(&self) -> Vec<DeviceId> {
        self.0.lock().devices.iter().copied().collect()
    }

    /// A new number for an event. No event of a device stands behind it yet.
    pub(super) fn create(&self) -> Event {
        let mut tables = self.0.lock();
        tables.next_event += 1;
        let number = tables.next_event;
        tables.events.insert(number, Recorded::Over);
        Event(number)
    }

    /// Takes a number back; its event of a device, to be destroyed.
    pub(super) fn destroy(&self, number: Event) -> Option<(DeviceId, Event)> {
        match self.0.lock().events.remove(&number.0) {
            Some(Recorded::On(device, event)) => Some((device, event)),
            Some(Recorded::Over) | None => None,
        }
    }

    /// Takes all events of devices out, to be destroyed.
    pub(super) fn take_spare(&self) -> Vec<(DeviceId, Event)> {
        core::mem::take(&mut self.0.lock().spare)
    }

    /// Records an event on a stream, by their numbers.
    pub(super) fn record(&self, driver: &dyn Driver, number: Event, stream: Stream) -> DriverResult<()> {
        let Some((device, handle)) = self.stream(stream) else {
            self.put(number, Recorded::Over);
            return Ok(());
        };
        while let Some(event) = self.event_for(number, device) {
            match driver.record_event(device, event, handle) {
                // The event went with a reset, or the stream is gone, which a new event shows. No error when destroying
                // it: then it is gone already.
                Err(error) if error.is_unknown_handle() => _ = driver.destroy_event(device, event),
                answer => return self.note(number, device, event, answer),
            }
        }
        let event = driver.create_event(device)?;
        self.note(number, device, event, driver.record_event(device, event, handle))
    }

    /// What became of recording an event of a device under a number.
    fn note(
        &self,
        number: Event,
        device: DeviceId,
        event: Event,
        answer: DriverResult<()>,
    ) -> DriverResult<()> {
        match answer {
            Ok(()) => self.put(number, Recorded::On(device, event)),
            Err(_) => self.0.lock().spare.push((device, event)),
        }
        answer
    }

    /// The event of a device that was recorded last under the number; none where the host is all there was.
    pub(super) fn recorded(&self, number: Event) -> Option<(DeviceId, Event)> {
        match self.0.lock().events.get(&number.0) {
            Some(&Recorded::On(device, event)) => Some((device, event)),
            Some(Recorded::Over) | None => None,
        }
    }

    /// The event of a device behind a number is gone, and what it stood for is over.
    pub(super) fn lose(&self, number: Event) {
        self.0.lock().events.insert(number.0, Recorded::Over);
    }

    /// An event of the device that is free to be recorded: the number's own, or a spare one.
    fn event_for(&self, number: Event, device: DeviceId) -> Option<Event> {
        let mut guard = self.0.lock();
        let tables = &mut *guard;
        if let Some(Recorded::On(owner, event)) = tables.events.insert(number.0, Recorded::Over) {
            if owner == device {
                return Some(event);
            }
            tables.spare.push((owner, event));
        }
        let at = tables.spare.iter().position(|&(owner, _)| owner == device)?;
        Some(tables.spare.swap_remove(at).1)
    }

    fn put(&self, number: Event, recorded: Recorded) {
        let mut guard = self.0.lock();
        let tables = &mut *guard;
        let before = tables.events.insert(number.0, recorded);
        if let Some(Recorded::On(device, event)) = before
            && before != Some(recorded)
        {
            tables.spare.push((device, event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_a_new_stream_gets_a_new_number() {
        let streams = Streams::default();
        let first = streams.number(0, Stream(7));
        assert_eq!(streams.number(0, Stream(7)), first);
        assert_ne!(streams.number(1, Stream(7)), first, "devices have streams of their own");
        assert_ne!(streams.number(1, Stream(0)), HOST, "no default stream is the host");
        assert_eq!(streams.forget(0, Stream(7)), Some(first));
        assert_ne!(streams.number(0, Stream(7)), first);
        assert_eq!(streams.stream(first), Some((0, Stream(7))), "what waits for it is still known");
        assert_eq!(streams.stream(HOST), None);
        assert_eq!(streams.devices(), [0, 1]);
    }

    #[test]
    fn ended_handles_are_forgotten_on_every_device() {
        let streams = Streams::default();
        let numbers =
            [(0, 7), (1, 7), (0, 9), (0, 0)].map(|(device, handle)| streams.number(device, Stream(handle)));
        assert_eq!(streams.forget_handles(Some(&[Stream(7), Stream(8)])), numbers[..2]);
        assert_eq!(streams.forget_handles(None), numbers[2..3], "default streams stay");
        assert_eq!(streams.number(0, Stream(0)), numbers[3]);
    }

    #[test]
    fn what_the_host_records_is_over() {
        let driver = crate::driver::SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default()));
        let streams = Streams::default();
        let event = streams.create();
        streams.record(&driver, event, HOST).unwrap();
        assert_eq!(streams.recorded(event), None);
        let stream = streams.number(0, Stream(0));
        streams.record(&driver, event, stream).unwrap();
        let (device, behind) = streams.recorded(event).expect("recorded on a device");
        assert_eq!(device, 0);
        streams.record(&driver, event, HOST).unwrap();
        assert_eq!(streams.take_spare(), [(0, behind)], "the event of the device is kept");
        assert_eq!(streams.destroy(event), None);
    }
}
