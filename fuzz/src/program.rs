//! Programs: settings and a list of operations, such that every value is one. Indexes are taken modulo what is
//! there; sizes come in kinds, so that small inputs reach every path.

use arbitrary::Arbitrary;
use proof::operation::Size;

/// A whole run.
#[derive(Arbitrary, Clone, Debug)]
pub struct Program {
    /// What the allocator and the devices are built from.
    pub setup: Setup,
    /// What happens, in order.
    pub operations: Vec<Operation>,
}

/// Settings of the allocator and of the machine.
#[derive(Arbitrary, Clone, Debug)]
pub struct Setup {
    /// Fixed blocks only.
    pub classic: bool,
    /// Freed blocks are not kept at hand.
    pub without_front: bool,
    /// Fixed blocks of this size and more are not split: 11 MiB and more; 0 is no limit.
    pub max_split: u8,
    /// Idle fixed blocks go first above nine tenths.
    pub collect: bool,
    /// `roundup_power2_divisions` of two to this power; above 3 it is off.
    pub divisions: u8,
    /// `headroom` in percent, modulo 101.
    pub headroom: u8,
    /// `reservation_gb`, modulo 4; 0 lets the allocator choose.
    pub reservation: u8,
    /// `epoch_frees` is 64 plus this.
    pub epoch_frees: u8,
    /// `decay_ms`; 0 is never.
    pub decay: u8,
    /// Blocks from 2 MiB on begin at multiples of 16 KiB.
    pub aligned: bool,
    /// A part without a pad behind blocks.
    pub soc_950: bool,
    /// Memory of each of the two devices: 64 MiB plus this many times 2 MiB.
    pub capacity: u8,
    /// Gibibytes of address space; 0 is no limit.
    pub address_space: u8,
    /// Functions that the library lacks: see [`OPTIONAL`].
    pub missing: u8,
    /// How many operations queued work stays unfinished; 255 is until something waits for it.
    pub lag: u8,
    /// Destroying a stream waits for its work.
    pub destroy_waits: bool,
}

/// Functions that a library may lack; bit `i` of [`Setup::missing`] takes the `i`-th away.
pub const OPTIONAL: [&str; 5] = [
    "aclrtMemSetAccess",
    "aclmdlRICaptureGetInfo",
    "aclrtReserveMemAddress",
    "aclrtMallocPhysical",
    "aclrtMapMem",
];

/// Functions whose calls can be told to fail: those that these programs reach.
pub const FAILING: &[&str] = proof::operation::FAILING.split_at(20).0;

/// One step of a program. `block` is an index into the live blocks, `stream` one into the streams of the
/// block's device.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Operation {
    /// Allocate, and write the block's first and last bytes.
    Allocate {
        /// How much.
        size: Size,
        /// The stream it is for.
        stream: u8,
        /// The second device.
        other_device: bool,
        /// Alignment of two to this power, modulo 24; mostly the usual one.
        align: Option<u8>,
    },
    /// Free, after the bytes written were read again.
    Free {
        /// Which.
        block: u8,
    },
    /// Free the youngest block.
    FreeLast,
    /// Give the allocator a pointer that is not the start of a live block.
    Misuse {
        /// Which block to start from.
        block: u8,
        /// How far from its start; at 0 the block freed last is freed again.
        offset: u16,
    },
    /// Another stream will use the block: record it, and let that stream wait for the contents.
    Record {
        /// Which.
        block: u8,
        /// Which stream.
        stream: u8,
    },
    /// Queue work that uses the block on one of the streams it may be used on.
    Use {
        /// Which.
        block: u8,
        /// Which of its streams.
        stream: u8,
        /// Whether the work writes.
        write: bool,
    },
    /// Grow in place.
    Grow {
        /// Which.
        block: u8,
        /// By how much.
        size: Size,
    },
    /// Shrink in place to a fraction of 256.
    Shrink {
        /// Which.
        block: u8,
        /// How many parts of 256 remain.
        parts: u8,
    },
    /// Give idle memory back.
    Trim {
        /// The second device.
        other_device: bool,
        /// Mebibytes to keep.
        keep: u8,
    },
    /// Give all free memory back.
    EmptyCache {
        /// Of the second device only; of all otherwise.
        other_device: bool,
    },
    /// Limit the memory to a fraction of 256; 0 is a wrong value.
    Limit {
        /// How many parts of 256.
        parts: u8,
    },
    /// The host waits for a stream.
    Wait {
        /// Which.
        stream: u8,
        /// Of the second device.
        other_device: bool,
    },
    /// Time passes: ticks for queued work, milliseconds for the clock.
    Pass {
        /// How much.
        ticks: u8,
    },
    /// The program destroys a stream and makes another.
    Replace {
        /// Which, without the default stream.
        stream: u8,
        /// Of the second device.
        other_device: bool,
    },
    /// A call fails, from its `after`-th time on counted from here.
    Fail {
        /// Which of [`FAILING`].
        call: u8,
        /// How many pass before.
        after: u8,
        /// Which of [`CODES`](proof::operation::CODES).
        code: u8,
        /// Whether all later ones fail too.
        always: bool,
    },
    /// Calls work again.
    Heal,
    /// Another process takes memory of the device.
    Crowd {
        /// How much in units of 2 MiB.
        chunks: u8,
    },
    /// Set or remove the hook that is told of events and asks the allocator in turn.
    Hook,
    /// Start peaks and sums again.
    Reset,
}
