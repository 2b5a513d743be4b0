//! The device under a program: where its streams, its work and its bytes are.
//!
//! [`SimMachine`] is the simulator in this process. [`AclMachine`] is the vendor's runtime library, or the simulator's
//! drop-in of it; what only a simulator can do is asked of the library by name and left out where it is missing.

mod acl;
mod sim;

pub use acl::AclMachine;
pub use sim::{SimMachine, SimSetup};

/// Bytes at either end of a block that hold its mark.
pub const MARK: u64 = 64;

/// What a program does with a device besides calling the allocator, and what can be seen of the device.
///
/// Sizes in bytes, devices and streams as the process numbers them, stream 0 is a device's default stream. A call that
/// answers `false` or nothing could not be done, because a failure is planned or because only a simulator can do
/// it; the program then goes on without.
pub trait Machine: Send + Sync {
    /// How many devices there are.
    fn devices(&self) -> u32;

    /// A new stream.
    fn create_stream(&self, device: u32) -> Option<u64>;

    /// Destroys a stream. The allocator is told by the caller.
    fn destroy_stream(&self, device: u32, stream: u64) -> bool;

    /// Queues work on a stream that uses all of a range.
    fn work(&self, device: u32, stream: u64, range: (u64, u64), tag: u64, write: bool) -> bool;

    /// Writes the mark of a tag to both ends of a range, in the order of a stream.
    fn mark(&self, device: u32, stream: u64, range: (u64, u64), tag: u64) -> bool;

    /// Reads both ends of a range after everything queued on the device; nothing if that cannot be waited for.
    fn marks(&self, device: u32, range: (u64, u64)) -> Option<Vec<u8>>;

    /// Lets a stream wait on the device for what another has queued.
    fn order(&self, device: u32, first: u64, then: u64) -> bool;

    /// The host waits for a stream.
    fn synchronize_stream(&self, device: u32, stream: u64) -> bool;

    /// The host waits for a device.
    fn synchronize_device(&self, device: u32) -> bool;

    /// Simulators: lets time pass, and with it queued work.
    fn pass(&self, ticks: u64);

    /// Simulators: how long work stays unfinished.
    fn set_lag(&self, ticks: u64);

    /// Simulators: the k-th call of that function from now on fails, and with `always` all later ones.
    fn fail(&self, call: &str, k: u64, code: i32, always: bool) -> bool;

    /// Simulators: nothing fails any more.
    fn heal(&self);

    /// Simulators: memory that others hold.
    fn set_foreign(&self, device: u32, bytes: u64) -> bool;

    /// Simulators: what the use checker found; through a library, what it found since it was asked last.
    fn findings(&self) -> Vec<String>;

    /// Simulators: physical memory that this process holds on the device.
    fn physical_bytes(&self, device: u32) -> Option<u64>;

    /// The simulator in this process: whether all of a range has memory behind it.
    fn is_backed(&self, address: u64, bytes: u64) -> Option<bool>;

    /// The simulator in this process: mappings that exist, fixed blocks among them.
    fn mappings(&self) -> Option<u64>;

    /// The simulator in this process: address space that is reserved.
    fn reserved_bytes(&self) -> Option<u64>;

    /// The simulator in this process: how often a function was called.
    fn count(&self, call: &str) -> Option<u64>;

    /// The simulator in this process: events made and destroyed so far.
    fn events(&self) -> Option<(u64, u64)>;

    /// Whether the use checker wants uses of one object ordered too; it knows objects by their tags where it is
    /// told them.
    fn orders_all_uses(&self) -> bool;

    /// The simulator in this process: resets a device and opens it again. Streams, events and memory of it are gone.
    fn reset(&self, device: u32) -> bool {
        let _device = device;
        false
    }

    /// The simulator in this process: begins to capture a stream into a graph; what is queued there runs no more.
    fn begin_capture(&self, device: u32, stream: u64) -> bool {
        let _stream = (device, stream);
        false
    }

    /// Ends that; with `spoil` the capture fails first. Whether there is a graph.
    fn end_capture(&self, device: u32, stream: u64, spoil: bool) -> bool {
        let _capture = (device, stream, spoil);
        false
    }

    /// Makes a device current in the calling thread.
    fn set_device(&self, device: u32);

    /// The current device of the calling thread, negative for none.
    fn current_device(&self) -> i32;

    /// What only a simulator can do and this machine cannot, by name.
    fn lacks(&self) -> Vec<&'static str>;
}

/// The two ends of a range that are marked; one where it is short.
fn ends((address, bytes): (u64, u64)) -> Vec<(u64, u64)> {
    let part = bytes.min(MARK);
    match bytes {
        0 => Vec::new(),
        1..=MARK => vec![(address, part)],
        _ => vec![(address, part), (address + bytes - part, part)],
    }
}

/// The byte that marks what has this tag.
#[must_use]
pub fn mark_of(tag: u64) -> u8 {
    (tag % 251) as u8 + 1
}
