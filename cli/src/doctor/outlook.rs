//! What the allocator does on this device: seen by letting it do it, not foretold.

use std::sync::Arc;

use ascend_alloc::config::SetAccess;
use ascend_alloc::driver::{AclDriver, DeviceId, Driver, PageKind, Stream};
use ascend_alloc::{Config, DeviceAllocator};
use serde::Serialize;

const MIB: u64 = 1 << 20;
/// The small and the large request that are made.
const SMALL: u64 = 1000;
/// See [`SMALL`].
const LARGE: u64 = 24 * MIB;

/// How it went.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outlook {
    /// Both requests were served, and all went back.
    Works(Box<Works>),
    /// The allocator's error.
    Fails(String),
}

/// What was seen. Sizes in bytes.
#[derive(Debug, Serialize)]
pub struct Works {
    /// Whether segments grow and shrink by chunks. Otherwise each is one fixed block of the driver.
    pub growable: bool,
    /// Why segments are of that kind.
    pub growable_reason: &'static str,
    /// Address space of the segment of the large request.
    pub segment: u64,
    /// Bytes of the chunk that segments grow by; 0 for fixed ones.
    pub granule: u64,
    /// `huge` or `1g`.
    pub pages: &'static str,
    /// Bytes that every block has beyond what was asked for.
    pub tail_pad: u64,
    /// What a small request becomes.
    pub small_block: u64,
    /// The least alignment of a block.
    pub alignment: u64,
    /// Alignment of blocks of 2 MiB and more.
    pub large_alignment: u64,
    /// How often access was set for the owner of a new chunk.
    pub set_access_calls: u64,
    /// Why it was or was not.
    pub set_access_reason: &'static str,
    /// Frees that one event covers.
    pub frees_per_event: u32,
    /// Every driver call that was made for the two requests and for giving all back.
    pub calls: Vec<(&'static str, u64)>,
    /// Bytes that did not go back.
    pub kept: i64,
    /// Settings that are not the default, and where they came from.
    pub settings: Vec<(&'static str, String, &'static str)>,
    /// What the configuration's warnings say.
    pub warnings: Vec<String>,
}

impl Outlook {
    /// Lets an allocator with the environment's configuration serve two requests.
    #[must_use]
    pub fn of(driver: Arc<AclDriver>, device: DeviceId) -> Self {
        let config = match Config::from_env() {
            Ok(config) => config,
            Err(error) => return Self::Fails(error.to_string()),
        };
        match try_out(config, driver, device) {
            Ok(works) => Self::Works(Box::new(works)),
            Err(error) => Self::Fails(error.to_string()),
        }
    }
}

fn try_out(config: Config, driver: Arc<AclDriver>, device: DeviceId) -> ascend_alloc::Result<Works> {
    let allocator = DeviceAllocator::new(config, driver.clone())?;
    let small = allocator.allocate(device, SMALL, 0, Stream(0))?;
    let large = allocator.allocate(device, LARGE, 0, Stream(0))?;
    let (small_block, segment) =
        (allocator.block_info(small)?.bytes, allocator.block_info(large)?.segment_bytes);
    let snapshot = allocator.snapshot(device)?;
    let growable = snapshot.segments.iter().any(|part| {
        part.is_expandable && (part.address..part.address + part.total_size).contains(&large.address())
    });
    allocator.deallocate(small)?;
    allocator.deallocate(large)?;
    allocator.empty_cache(Some(device))?;
    let stats = allocator.stats(device)?;
    let config = allocator.config();
    let granule = if growable { driver.granularity(device, config.page_size)? } else { 0 };
    let has_virtual_memory = driver.acl().has_virtual_memory();
    Ok(Works {
        growable,
        growable_reason: why_growable(config, growable, has_virtual_memory),
        segment,
        granule,
        pages: if config.page_size == PageKind::Huge1G { "1g" } else { "huge" },
        tail_pad: driver.tail_pad(device)?,
        small_block,
        alignment: 512,
        large_alignment: config.base_addr_aligned.max(512),
        set_access_calls: stats.calls.set_access,
        set_access_reason: why_access(config, growable, &driver, device, stats.calls.set_access),
        frees_per_event: config.epoch_frees,
        calls: stats.calls.by_name().into_iter().filter(|(_, count)| *count > 0).collect(),
        kept: stats.reserved_bytes.all.current,
        settings: settings(config),
        warnings: config.warnings(),
    })
}

fn settings(config: &Config) -> Vec<(&'static str, String, &'static str)> {
    config.effective().into_iter().filter(|(_, _, source)| *source != ascend_alloc::config::DEFAULT).collect()
}

fn why_growable(config: &Config, growable: bool, has_virtual_memory: bool) -> &'static str {
    match (growable, config.expandable_segments, has_virtual_memory) {
        (true, ..) => "the library has virtual memory, and expandable_segments is True",
        (false, false, _) => "expandable_segments is False",
        (false, true, false) => "the library lacks calls for virtual memory",
        (false, true, true) => "the driver refused virtual memory",
    }
}

fn why_access(
    config: &Config,
    growable: bool,
    driver: &AclDriver,
    device: DeviceId,
    calls: u64,
) -> &'static str {
    let lacks = driver.acl().missing().contains(&"aclrtMemSetAccess");
    match config.set_access {
        _ if !growable => "fixed blocks have access from the start",
        SetAccess::Off => "set_access is off",
        SetAccess::On => "set_access is on",
        SetAccess::Auto if !driver.owner_access_is_addressable(device) => {
            "visible devices are renumbered, and the call takes the driver's own numbers"
        }
        SetAccess::Auto if lacks => {
            "the library lacks the call, so it is not made again; mapping gives the owner access"
        }
        SetAccess::Auto if calls == 1 => "the driver refused the call, so it is not made again",
        SetAccess::Auto => "devices have the driver's own numbers, and the call works",
    }
}
