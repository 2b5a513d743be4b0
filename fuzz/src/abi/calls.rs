//! What a fuzzer's bytes become: calls, and arguments that mostly mean something.

use arbitrary::Arbitrary;

/// A pointer to what may be a block.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Pointer {
    /// None.
    Null,
    /// A block that was handed out; it may have been freed since.
    Block(u8),
    /// An address in one.
    Inside(u8, u16),
    /// Any address.
    Any(u64),
}

/// A number that may name something.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Number {
    /// One that some function has answered.
    Known(u8),
    /// Any.
    Any(u64),
}

/// A size.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Bytes {
    /// As programs ask for.
    Usual(proof::operation::Size),
    /// Any.
    Any(u64),
}

/// A text.
#[derive(Arbitrary, Clone, Debug)]
pub enum Text {
    /// None.
    Null,
    /// One that pools may have.
    Tag(bool),
    /// Any bytes, without those behind a zero.
    Any(Vec<u8>),
}

/// One call.
#[derive(Arbitrary, Clone, Debug)]
#[allow(missing_docs)]
pub enum Call {
    Malloc {
        size: Bytes,
        device: i8,
        stream: u8,
    },
    Allocate {
        size: Bytes,
        align: u64,
        pool: Number,
        flags: u8,
        device: i8,
        stream: u8,
        told: u16,
        out: bool,
    },
    PoolMalloc {
        pool: Number,
        size: Bytes,
        stream: u8,
    },
    Tagged {
        size: Bytes,
        device: i8,
        stream: u8,
    },
    Release {
        block: Pointer,
    },
    Free {
        block: Pointer,
        size: u64,
        device: i8,
        tagged: bool,
    },
    Grow {
        block: Pointer,
        size: Bytes,
        out: bool,
    },
    Shrink {
        block: Pointer,
        size: Bytes,
    },
    Record {
        block: Pointer,
        stream: u8,
        erase: bool,
    },
    StreamEnds {
        stream: u8,
        device: i8,
    },
    Register {
        stream: u8,
        device: i8,
        end: bool,
    },
    Empty {
        device: i8,
    },
    Trim {
        device: i8,
        keep: u64,
        out: bool,
    },
    BufferCreate {
        max: Bytes,
        least: u64,
        size: Bytes,
        pool: Number,
        device: i8,
        stream: u8,
        told: u16,
        out: bool,
    },
    BufferResize {
        buffer: Number,
        size: Bytes,
    },
    BufferRecord {
        buffer: Number,
        stream: u8,
    },
    BufferInfo {
        buffer: Number,
        told: u16,
        out: bool,
    },
    BufferDestroy {
        buffer: Number,
    },
    Checkpoint {
        pool: Number,
        out: bool,
    },
    Restore {
        checkpoint: Number,
        room: u8,
    },
    CheckpointRelease {
        checkpoint: Number,
    },
    PoolCreate {
        tag: Text,
        soft: u64,
        split: u8,
        device: i8,
        told: u16,
        out: bool,
    },
    PoolRelease {
        pool: Number,
    },
    PoolDefault {
        device: i8,
    },
    PoolEmpty {
        pool: Number,
    },
    PoolStats {
        pool: Number,
        told: u16,
        out: bool,
    },
    Begin {
        pool: Number,
        filter: i8,
        stream: u8,
        capture: bool,
    },
    End {
        pool: Number,
    },
    GraphRelease {
        pool: Number,
    },
    ProcessId {
        device: i8,
        out: bool,
    },
    Export {
        block: Pointer,
        form: i8,
        only: Option<Vec<i32>>,
        told: u16,
        out: bool,
    },
    ExportMessage {
        export: Number,
        room: u16,
        out: bool,
    },
    ExportAllow {
        export: Number,
        processes: Vec<i32>,
    },
    ExportRelease {
        export: Number,
    },
    Import {
        export: Number,
        flip: Option<u16>,
        cut: u8,
        device: i8,
        stream: u8,
    },
    ImportRaw {
        message: Vec<u8>,
        device: i8,
    },
    ImportRecord {
        import: Number,
        stream: u8,
    },
    ImportRelease {
        import: Number,
    },
    Peers {
        device: i8,
        peers: Vec<i8>,
    },
    Sleep {
        tags: Vec<Text>,
        mode: i8,
        device: i8,
        told: u16,
        out: bool,
    },
    Wake {
        tags: Vec<Text>,
        device: i8,
        told: u16,
        out: bool,
    },
    IsAsleep {
        pool: Number,
        out: bool,
    },
    Stats {
        device: i8,
        told: u16,
        out: bool,
    },
    Reset {
        device: i8,
        sums: bool,
    },
    Fraction {
        bits: u64,
        device: i8,
    },
    BlockInfo {
        block: Pointer,
        told: u16,
        out: bool,
    },
    Base {
        block: Pointer,
        out: bool,
    },
    Json {
        device: i8,
        room: u16,
        out: bool,
    },
    SetTag {
        tag: Text,
    },
    GetTag {
        room: u8,
        out: bool,
    },
    HostCopy {
        tag: Text,
        on: i8,
    },
    Pause {
        tag: Text,
        copy: i8,
    },
    Resume {
        tag: Text,
    },
    HostMalloc {
        size: Bytes,
        device: i8,
    },
    HostFree {
        block: Pointer,
    },
    HostRecord {
        block: Pointer,
        stream: u8,
        device: i8,
    },
    HostEmpty,
    HostStats {
        device: i8,
        told: u16,
        out: bool,
    },
    Pass {
        ticks: u8,
    },
}
