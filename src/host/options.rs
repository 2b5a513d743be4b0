//! How a [`PinnedAllocator`](super::PinnedAllocator) is set up.

use std::time::Duration;

use crate::config::Config;
use crate::driver::DeviceId;

/// How page-locked memory is taken of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PinnedForm {
    /// In regions of `aclrtMallocHost`, which are taken and given back as a whole and split into blocks.
    #[default]
    Regions,
    /// In reservations backed chunk by chunk with physical memory of the host, which shrink anywhere. Where the driver
    /// cannot do that, in regions.
    Virtual,
}

/// What makes sure that no copy touches a region while it is given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FreeOrder {
    /// Our own order: a region goes back once every stream recorded on its blocks has passed their frees. The device
    /// is not stopped. Uses that were not recorded are not waited for.
    #[default]
    Epochs,
    /// The driver's as well: `aclrtFreeHostWithDevSync`, or where that is missing a wait for the device before
    /// `aclrtFreeHost`; in the virtual form a wait before a chunk is unmapped. Each region or chunk that is given back
    /// stops the device, which covers uses on the device it was taken through that nobody recorded.
    DeviceSync,
}

/// The settings of a [`PinnedAllocator`](super::PinnedAllocator). Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedOptions {
    /// The device in whose context memory is taken. Streams of any device may use it.
    pub device: DeviceId,
    /// How memory is taken.
    pub form: PinnedForm,
    /// Regions get one address for host and device, where the part has that (`aclrtMallocHostWithCfg`).
    pub common_addresses: bool,
    /// Regions are registered for the device, so that kernels can reach them. Not in the virtual form.
    pub registered: bool,
    /// The most memory held of the driver. `None`: as much as there is.
    pub max_total: Option<u64>,
    /// The most free memory that is kept; what is beyond goes back with the call that makes or finds it free: a free, a
    /// request, a look for streams that have passed. With a value every free takes the lock. `None`: no limit.
    pub max_cached: Option<u64>,
    /// The largest request, more than 0: single regions of 200 GB and more have been seen to fail.
    pub largest_request: u64,
    /// Requests up to this size are rounded up to steps of an eighth of the power of two below them. `None`: all
    /// sizes are multiples of 512 bytes.
    pub round_up_to: Option<u64>,
    /// Memory that is taken at the start, in one region. It is free memory like any other: it shrinks
    /// again by trimming and emptying.
    pub reserve: u64,
    /// A thread looks for streams that have passed, so that a request need not.
    pub background: bool,
    /// Free memory older than this goes back, a little with every so many calls. `None` keeps it.
    pub decay: Option<Duration>,
    /// What a region waits for when it is given back.
    pub free_order: FreeOrder,
    /// Whether memory waits for the streams recorded on it. False is unsafe and exists for tests that show what breaks.
    pub stream_order: bool,
    /// How often the heap is checked in debug builds: see `check_level` of [`Config`].
    pub check_level: u8,
}

impl Default for PinnedOptions {
    fn default() -> Self {
        Self {
            device: 0,
            form: PinnedForm::Regions,
            common_addresses: false,
            registered: false,
            max_total: None,
            max_cached: None,
            largest_request: 192 << 30,
            round_up_to: None,
            reserve: 0,
            background: false,
            decay: None,
            free_order: FreeOrder::Epochs,
            stream_order: true,
            check_level: 0,
        }
    }
}

impl PinnedOptions {
    /// What the `pin_memory_*` and `pinned_*` settings of a configuration say, with `stream_order` and
    /// `check_level`; the rest as by default.
    #[must_use]
    pub fn from_config(config: &Config) -> Self {
        let form =
            if config.pin_memory_expandable_segments { PinnedForm::Virtual } else { PinnedForm::Regions };
        Self {
            form,
            registered: config.pinned_mem_register,
            max_cached: config.pinned_max_cached_size,
            round_up_to: config.pinned_max_round_threshold,
            reserve: config.pinned_reserve_segment_size,
            background: config.pinned_use_background_threads,
            stream_order: config.stream_order,
            check_level: config.check_level,
            ..Self::default()
        }
    }

    /// The settings of the allocator below, but for the limit, which a setting says in whole MiB.
    pub(super) fn below(&self) -> Config {
        Config {
            expandable_segments: self.form == PinnedForm::Virtual,
            front_cache: false,
            // The host cannot be made to wait by the device.
            device_waits: false,
            set_access: crate::config::SetAccess::Off,
            check_level: self.check_level,
            decay_ms: self.decay.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX).max(1)),
            ..Config::default()
        }
    }
}
