//! What a process tells of its statistics: the document of docs/statistics.md, read.

use std::collections::BTreeMap;

use ascend_alloc::publish::{BlockFigures, DeviceFigures, PoolFigures};
use ascend_alloc::stats::{DriverCalls, LadderSteps, Stat, StatArray};
use ascend_alloc::{Stats, driver::DeviceId};
use serde::Deserialize;

/// What every document says of itself.
const FORMAT: &str = "ascend-alloc statistics";
/// The version that is understood.
const VERSION: u64 = 1;

/// Statistics of a process at one moment; sizes in bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Document {
    format: String,
    version: u64,
    /// Number of the process.
    pub process: u32,
    /// Documents it has made, with this one.
    #[serde(default)]
    pub sequence: u64,
    /// The driver's clock, nanoseconds from an arbitrary start.
    #[serde(default)]
    pub time_ns: u64,
    /// How often a file is replaced, milliseconds.
    #[serde(default)]
    pub period_ms: u64,
    /// Devices that have been used.
    pub devices: Vec<Device>,
}

/// Statistics of a device.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub device: DeviceId,
    /// Its memory.
    #[serde(default)]
    pub total_bytes: u64,
    /// The most that may be held of it.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Streams the allocator has met.
    #[serde(default)]
    pub streams: u64,
    statistics: Statistics,
    #[serde(default)]
    driver_calls: BTreeMap<String, u64>,
    #[serde(default)]
    ladder: BTreeMap<String, u64>,
    #[serde(default)]
    pools: Vec<Pool>,
    #[serde(default)]
    blocks: Blocks,
}

/// What a look at each block saw.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Blocks {
    groups: Vec<Group>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Group {
    pool: u64,
    stream: String,
    state: String,
    blocks: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct One {
    current: i64,
    peak: i64,
    allocated: i64,
    freed: i64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Array {
    all: One,
    small: One,
    large: One,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Statistics {
    allocation: Array,
    allocated_bytes: Array,
    requested_bytes: Array,
    active: Array,
    active_bytes: Array,
    segment: Array,
    reserved_bytes: Array,
    inactive_split: Array,
    inactive_split_bytes: Array,
    oversize_allocations: One,
    oversize_segments: One,
    num_alloc_retries: u64,
    num_ooms: u64,
    num_sync_all_streams: u64,
    num_device_alloc: u64,
    num_device_free: u64,
    reserved_address_space: u64,
    cached_handles: u64,
    sleeping_bytes: u64,
    chunks_moved: u64,
    size_mismatches: u64,
    max_split_size: i64,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Pool {
    pool: u64,
    #[serde(default)]
    tag: String,
    #[serde(default)]
    allocated_bytes: Array,
    #[serde(default)]
    active_bytes: Array,
    #[serde(default)]
    reserved_bytes: Array,
}

impl Document {
    /// Reads a document; members that are not known are passed over.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: Self = serde_json::from_str(text.trim())
            .map_err(|error| format!("is no document of statistics: {error}"))?;
        if document.format != FORMAT {
            return Err(format!("is no document of statistics: its format is {:?}", document.format));
        }
        if document.version != VERSION {
            return Err(format!("has version {}; version {VERSION} can be read", document.version));
        }
        Ok(document)
    }
}

impl Device {
    /// What is published of it.
    #[must_use]
    pub fn figures(&self) -> DeviceFigures {
        DeviceFigures {
            device: self.device,
            total_bytes: self.total_bytes,
            limit_bytes: self.limit_bytes,
            stats: self.stats(),
            pools: self.pools.iter().map(Pool::figures).collect(),
            blocks: self.blocks.groups.iter().map(Group::figures).collect(),
        }
    }

    /// Its statistics as the allocator has them.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let said = &self.statistics;
        Stats {
            allocation: said.allocation.into(),
            allocated_bytes: said.allocated_bytes.into(),
            requested_bytes: said.requested_bytes.into(),
            active: said.active.into(),
            active_bytes: said.active_bytes.into(),
            segment: said.segment.into(),
            reserved_bytes: said.reserved_bytes.into(),
            inactive_split: said.inactive_split.into(),
            inactive_split_bytes: said.inactive_split_bytes.into(),
            oversize_allocations: said.oversize_allocations.into(),
            oversize_segments: said.oversize_segments.into(),
            num_alloc_retries: said.num_alloc_retries,
            num_ooms: said.num_ooms,
            num_sync_all_streams: said.num_sync_all_streams,
            num_device_alloc: said.num_device_alloc,
            num_device_free: said.num_device_free,
            max_split_size: said.max_split_size,
            reserved_address_space: said.reserved_address_space,
            cached_handles: said.cached_handles,
            sleeping_bytes: said.sleeping_bytes,
            chunks_moved: said.chunks_moved,
            size_mismatches: said.size_mismatches,
            calls: calls(&self.driver_calls),
            ladder: ladder(&self.ladder),
        }
    }
}

impl Pool {
    fn figures(&self) -> PoolFigures {
        let bytes = |array: &Array| u64::try_from(array.all.current).unwrap_or(0);
        PoolFigures {
            pool: self.pool,
            tag: self.tag.clone(),
            allocated_bytes: bytes(&self.allocated_bytes),
            active_bytes: bytes(&self.active_bytes),
            reserved_bytes: bytes(&self.reserved_bytes),
        }
    }
}

impl Group {
    fn figures(&self) -> BlockFigures {
        let Group { pool, stream, state, blocks, bytes } = self.clone();
        BlockFigures { pool, stream, state, blocks, bytes }
    }
}

impl From<One> for Stat {
    fn from(one: One) -> Self {
        Stat { current: one.current, peak: one.peak, allocated: one.allocated, freed: one.freed }
    }
}

impl From<Array> for StatArray {
    fn from(array: Array) -> Self {
        StatArray { all: array.all.into(), small: array.small.into(), large: array.large.into() }
    }
}

fn calls(by_name: &BTreeMap<String, u64>) -> DriverCalls {
    let count = |name: &str| by_name.get(name).copied().unwrap_or(0);
    DriverCalls {
        map: count("aclrtMapMem"),
        unmap: count("aclrtUnmapMem"),
        malloc_physical: count("aclrtMallocPhysical"),
        free_physical: count("aclrtFreePhysical"),
        reserve: count("aclrtReserveMemAddress"),
        release: count("aclrtReleaseMemAddress"),
        set_access: count("aclrtMemSetAccess"),
        malloc: count("aclrtMallocAlign32"),
        free: count("aclrtFree"),
        record_event: count("aclrtRecordEvent"),
        query_event: count("aclrtQueryEventStatus"),
        stream_wait: count("aclrtStreamWaitEvent"),
        wait_event: count("aclrtSynchronizeEvent"),
        wait_stream: count("aclrtSynchronizeStream"),
        wait_device: count("aclrtSynchronizeDevice"),
    }
}

fn ladder(by_name: &BTreeMap<String, u64>) -> LadderSteps {
    let count = |name: &str| by_name.get(name).copied().unwrap_or(0);
    LadderSteps {
        requests: count("requests"),
        flushed: count("flushed"),
        queried: count("queried"),
        closed: count("closed"),
        reserved: count("reserved"),
        mapped: count("mapped"),
        fetched: count("fetched"),
        released: count("released"),
        asked: count("asked"),
        joined: count("joined"),
        waited: count("waited"),
        synchronized: count("synchronized"),
        awaited: count("awaited"),
        failed: count("failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_its_name() {
        let numbered = |names: Vec<&'static str>| -> BTreeMap<String, u64> {
            names.into_iter().zip(1..).map(|(name, count)| (name.to_owned(), count)).collect()
        };
        let said = numbered(DriverCalls::default().by_name().map(|(name, _)| name).to_vec());
        let counted = calls(&said).by_name().map(|(name, count)| (name.to_owned(), count));
        assert_eq!(BTreeMap::from(counted), said);
        let said = numbered(LadderSteps::default().by_name().map(|(name, _)| name).to_vec());
        let counted = ladder(&said).by_name().map(|(name, count)| (name.to_owned(), count));
        assert_eq!(BTreeMap::from(counted), said);
    }

    #[test]
    fn what_is_no_document_is_refused() {
        for (text, part) in [
            ("", "no document"),
            ("{\"format\":", "no document"),
            ("[]", "no document"),
            ("{\"format\":\"x\",\"version\":1,\"process\":1,\"devices\":[]}", "its format is \"x\""),
            (
                "{\"format\":\"ascend-alloc statistics\",\"version\":2,\"process\":1,\"devices\":[]}",
                "has version 2",
            ),
        ] {
            assert!(Document::parse(text).unwrap_err().contains(part), "{text}");
        }
        let more = "{\"format\":\"ascend-alloc statistics\",\"version\":1,\"process\":7,\"new\":[1],\"devices\":[]}\n";
        assert_eq!(Document::parse(more).unwrap().process, 7);
    }
}
