//! What the page knows, as it stands in it: plain data that becomes JSON. Sizes and addresses are bytes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::series::Series;

/// Everything on one page.
#[derive(Debug, Serialize)]
pub struct Page {
    /// Version of this layout.
    pub format: u32,
    /// What made the page.
    pub made_by: String,
    /// One entry for each input and configuration.
    pub runs: Vec<Run>,
}

/// One input under one configuration.
#[derive(Debug, Serialize)]
pub struct Run {
    /// How the page calls it.
    pub name: String,
    /// Name of the input.
    pub input: String,
    /// `trace`: replayed here. `snapshot`: taken elsewhere, and shown as it was.
    pub kind: &'static str,
    /// Name of the configuration.
    pub conf_name: String,
    /// Its text.
    pub conf: String,
    /// Events of the input.
    pub events: u64,
    /// What the figures of a run are, as `replay --json` prints them, without times; `null` for snapshots.
    pub figures: Value,
    /// Memory of the device; zero where it is not known.
    pub device: u64,
    /// The most that the allocator may hold; zero where it is not known.
    pub limit: u64,
    /// Trace events after which a task is complete.
    pub lag: u64,
    /// Error text of the first request that found no memory.
    pub first_oom: Option<String>,
    /// Memory over time.
    pub series: Series,
    /// Fragmentation over time.
    pub fragmentation: Fragmentation,
    /// What happened when.
    pub markers: Vec<Marker>,
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Sizes that were asked for.
    pub sizes: Vec<SizeClass>,
    /// The segments at some moments, in order.
    pub moments: Vec<Moment>,
    /// Of snapshots: the places that made blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<String>>,
    /// What is not as it should be, or not shown.
    pub notes: Vec<String>,
}

/// How free memory was spread, at some events.
#[derive(Debug, Default, Serialize)]
pub struct Fragmentation {
    /// Indices of the events.
    pub at: Vec<u64>,
    /// Bytes with physical memory behind them.
    pub reserved: Vec<u64>,
    /// Bytes handed out.
    pub allocated: Vec<u64>,
    /// Bytes asked for in them.
    pub requested: Vec<u64>,
    /// Bytes free and mapped.
    pub free: Vec<u64>,
    /// The largest free block.
    pub largest: Vec<u64>,
    /// How many free blocks there are.
    pub pieces: Vec<u64>,
}

/// Something that happened; near ones of a kind are one marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Marker {
    /// Index of the event at which it happened first.
    pub at: u64,
    /// `oom`, `host_wait`, `stream_wait`, `given_back`, `empty_cache`.
    pub kind: &'static str,
    /// How often.
    pub count: u64,
    /// Bytes concerned; zero where there are none.
    pub bytes: u64,
}

/// The stretch between two markers of the trace.
#[derive(Debug, Default, Serialize)]
pub struct Step {
    /// Its label; `init` before the first marker.
    pub label: String,
    /// Index of its first event.
    pub at: u64,
    /// Driver calls, by ACL name; those that were not made are left out.
    pub calls: BTreeMap<&'static str, u64>,
}

/// Requests between two powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SizeClass {
    /// The smallest size of the class; the largest is one byte less than twice that. The first class begins at zero.
    pub from: u64,
    /// Requests.
    pub count: u64,
    /// What they asked for in all.
    pub bytes: u64,
}

/// The segments at one moment.
#[derive(Debug, Serialize)]
pub struct Moment {
    /// Why it is shown.
    pub label: String,
    /// Index of the event after which it was taken.
    pub at: u64,
    /// Live bytes then.
    pub live: u64,
    /// Bytes with physical memory behind them.
    pub reserved: u64,
    /// Mapped stretches, by address.
    pub segments: Vec<Segment>,
}

/// A stretch of mapped memory.
#[derive(Debug, Serialize)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Bytes; the blocks tile it.
    pub size: u64,
    /// Which pool, for people.
    pub pool: String,
    /// `small` or `large`.
    pub class: &'static str,
    /// Whether it grows and shrinks by chunks.
    pub expandable: bool,
    /// Five numbers for each block: size, requested size, state, stream, and who made it.
    ///
    /// State: 0 free, 1 allocated, 2 waiting for streams, 3 taken for driver calls. Who made it: index of the
    /// event that allocated it (of traces); in a snapshot, index of a text of `holders`;
    /// -1 where unknown.
    pub blocks: Vec<i64>,
}

impl Segment {
    /// Numbers for each block in [`blocks`](Self::blocks).
    pub const FIELDS: usize = 5;
}
