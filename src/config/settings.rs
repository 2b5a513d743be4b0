//! The typed settings: one public field per key, in bytes where it is a size.

use crate::driver::PageKind;

/// Bytes of one MiB.
pub(super) const MIB: u64 = 1 << 20;

/// How many size intervals `roundup_power2_divisions` tells apart.
pub const ROUNDUP_INTERVALS: usize = 16;

/// When a chunk's owner is granted access by a driver call of its own (`aclrtMemSetAccess`).
///
/// Mapping alone gives the owner access on all parts seen so far; the call names a device by the
/// driver's own number, so it can hit another device where visible devices are renumbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SetAccess {
    /// On while the process sees the devices under their own numbers, off otherwise, and off after
    /// the driver once answered that it has no such call.
    #[default]
    Auto,
    /// Always; a failing call fails the allocation.
    On,
    /// Never for the owner. Peers are granted access in any case.
    Off,
}

/// The settings about what an allocator tells to the outside. Paths hold no `,` `:` `[` `]`; `%p` in one stands for the
/// number of the process, and a second allocator of a process that would use the same file uses the
/// path with `.2` behind it, a third one `.3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observe {
    /// `history_entries`: so many events are kept from the start; 0 keeps none until the history is started.
    pub history_entries: u64,
    /// `history_file`: events are written here.
    pub history_file: Option<String>,
    /// `history_file_mb`, in bytes: a history file of this size is put aside and another one begun.
    pub history_file_bytes: u64,
    /// `history_files`: how many history files there are at most, with the one being written.
    pub history_files: u32,
    /// `trace_file`: a trace for `ascend-alloc replay` is recorded here.
    pub trace_file: Option<String>,
    /// `oom_report`: reports about requests that failed are written to files whose names begin like this.
    pub oom_report: Option<String>,
    /// `oom_report_s`, in seconds: between two reports.
    pub oom_report_pause: u64,
    /// `oom_report_files`: how many reports are written at most.
    pub oom_report_files: u32,
    /// `stats_export`: the statistics are told here, as JSON.
    pub stats_export: Option<String>,
    /// `stats_export_ms`, in milliseconds: how often that file is written.
    pub stats_export_ms: u64,
}

impl Default for Observe {
    /// Nothing is told.
    fn default() -> Self {
        Self {
            history_entries: 0,
            history_file: None,
            history_file_bytes: 256 * MIB,
            history_files: 4,
            trace_file: None,
            oom_report: None,
            oom_report_pause: 60,
            oom_report_files: 16,
            stats_export: None,
            stats_export_ms: 1000,
        }
    }
}

/// The settings of an allocator.
///
/// The fields may be set directly, as in `Config { headroom: 0.05, ..Config::default() }`;
/// [`Config::validate`] then checks what text would have been
/// checked for, and building an allocator calls it. Text comes in through [`Config::parse`],
/// [`Config::from_env`] and [`Config::from_sources`].
///
/// Two configurations are equal when all settings are equal; where a setting came from
/// ([`Config::source_of`]) and the [`Config::warnings`] do not count.
#[derive(Clone, Debug)]
pub struct Config {
    /// `expandable_segments`: segments grow and shrink by chunks (true), or each is one fixed
    /// block of the driver (false).
    pub expandable_segments: bool,
    /// `max_split_size_mb`, in bytes: fixed blocks of this size and more are never split. `None`
    /// sets no limit.
    pub max_split_size: Option<u64>,
    /// `max_non_split_rounding_mb`, in bytes: by how much a fixed block that is never split may
    /// exceed the request it serves. `None` means [`large_segment_size`](Self::large_segment_size).
    pub max_non_split_rounding: Option<u64>,
    /// `garbage_collection_threshold`: the share of the limit above which idle memory is given back or
    /// moved before the driver is asked for more; greater than 0 and less than 1. `None`: off.
    pub garbage_collection_threshold: Option<f64>,
    /// `roundup_power2_divisions`: into how many equal steps the sizes between two powers of two
    /// are divided, per interval; 0 or 1 leaves sizes alone. Entry `i` counts for sizes from
    /// `1 MiB << i` up to twice that; the first also for all below, the last for all above.
    pub roundup_power2_divisions: [u64; ROUNDUP_INTERVALS],
    /// `large_segment_size_mb`, in bytes: the fixed block fetched for requests of more than 1 MiB
    /// and less than 10 MiB; where set, also the chunks of large growth.
    pub large_segment_size: u64,
    /// `base_addr_aligned_kb`, in bytes: alignment of the blocks of 2 MiB and more in growable
    /// segments; 0 leaves the usual 512.
    pub base_addr_aligned: u64,
    /// `page_size`: the pages behind large requests.
    pub page_size: PageKind,
    /// `multi_stream_lazy_reclaim`: stored only; reclaiming is always lazy.
    pub multi_stream_lazy_reclaim: bool,
    /// `per_process_memory_fraction`: the share of a device's memory this allocator may hold;
    /// greater than 0, at most 1.
    pub per_process_memory_fraction: f64,
    /// `release_lock_on_npumalloc`: stored only; no driver call ever runs under a lock.
    pub release_lock_on_npumalloc: bool,
    /// `throw_on_npumalloc_oom`: stored only; a request over the limit never reaches the driver.
    pub throw_on_npumalloc_oom: bool,
    /// `pin_memory_expandable_segments`: for page-locked memory.
    pub pin_memory_expandable_segments: bool,
    /// `pinned_mem_register`: for page-locked memory.
    pub pinned_mem_register: bool,
    /// `pinned_use_background_threads`: for page-locked memory.
    pub pinned_use_background_threads: bool,
    /// `pinned_reserve_segment_size_mb`, in bytes: for page-locked memory; 0 is none.
    pub pinned_reserve_segment_size: u64,
    /// `pinned_max_round_threshold_mb`, in bytes: for page-locked memory. `None` sets no limit.
    pub pinned_max_round_threshold: Option<u64>,
    /// `pinned_max_cached_size_mb`, in bytes: for page-locked memory. `None` sets no limit.
    pub pinned_max_cached_size: Option<u64>,

    /// `headroom`: by which fraction physical memory may exceed the highest live bytes seen so far
    /// before idle chunks are moved instead of asking the device for new ones; 0 to 1.
    pub headroom: f64,
    /// `adaptive_headroom`: a program that moves chunks all the time may take more memory instead.
    pub adaptive_headroom: bool,
    /// `waiting_headroom`: which fraction of the device, or of the limit, may be held beyond that for blocks that wait for other
    /// streams, where next to nothing else is done.
    pub waiting_headroom: f64,
    /// `device_waits`: a stream may wait for others on the device, so that it can use what they freed.
    pub device_waits: bool,
    /// `front_cache`: blocks of sizes seen before are kept at hand without the device's lock.
    pub front_cache: bool,
    /// `caching`: device memory is kept after a free.
    pub caching: bool,
    /// `reservation_gb`, in bytes: size of one address reservation, at most 8 TiB; 0 chooses by the
    /// device.
    pub reservation: u64,
    /// `set_access`: when the owner of a chunk is granted access by a call of its own.
    pub set_access: SetAccess,
    /// `check_level`: how often the heap is checked; 0 never, 3 after every operation.
    pub check_level: u8,
    /// `stream_order`: memory waits for the streams that used it. False is unsafe with more than
    /// one stream; it exists for tests that show what breaks.
    pub stream_order: bool,
    /// `decay_ms`, in milliseconds: memory idle for longer goes back to the device; 0 keeps it. At
    /// most 10^12.
    pub decay_ms: u64,
    /// `decay_ops`, in frees: memory idle for longer goes back to the device; 0 keeps it.
    /// At most 10^12.
    pub decay_ops: u64,
    /// `memory_limit_mb`, in bytes: the most physical memory of a device that may be held. `None` sets no limit.
    pub memory_limit: Option<u64>,
    /// `soft_limit_mb`, in bytes: beyond it memory is given back and moved before more is taken; nothing
    /// fails because of it. `None` sets no limit.
    pub soft_limit: Option<u64>,
    /// `epoch_frees`: how many frees of a stream one recorded event covers; 64 to 1 048 576.
    pub epoch_frees: u32,

    /// What is told to the outside: history, files, reports.
    pub observe: Observe,

    /// Where the settings came from; nothing to set. It is a public field only so that
    /// `Config { headroom: 0.05, ..Config::default() }` can be written.
    pub provenance: Provenance,
}

/// Where the settings of a [`Config`] came from that were given as text: see
/// [`Config::source_of`] and [`Config::warnings`].
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    pub(super) origins: Vec<Origin>,
    /// Which settings of a text gave way to those of another.
    pub(super) ignored: Vec<String>,
}

/// A setting that came as text.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub key: &'static str,
    /// The value as [`Config::effective`] shows it: when the field no longer has it, the field was
    /// set in code since.
    pub value: String,
    pub source: &'static str,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            expandable_segments: true,
            max_split_size: None,
            max_non_split_rounding: None,
            garbage_collection_threshold: None,
            roundup_power2_divisions: [0; ROUNDUP_INTERVALS],
            large_segment_size: 20 * MIB,
            base_addr_aligned: 0,
            page_size: PageKind::Huge,
            multi_stream_lazy_reclaim: true,
            per_process_memory_fraction: 1.0,
            release_lock_on_npumalloc: true,
            throw_on_npumalloc_oom: true,
            pin_memory_expandable_segments: false,
            pinned_mem_register: false,
            pinned_use_background_threads: false,
            pinned_reserve_segment_size: 0,
            pinned_max_round_threshold: None,
            pinned_max_cached_size: None,
            headroom: 0.02,
            adaptive_headroom: true,
            waiting_headroom: 0.016,
            device_waits: true,
            front_cache: true,
            caching: true,
            reservation: 0,
            set_access: SetAccess::Auto,
            check_level: 0,
            stream_order: true,
            decay_ms: 0,
            decay_ops: 0,
            memory_limit: None,
            soft_limit: None,
            epoch_frees: 72,
            observe: Observe::default(),
            provenance: Provenance::default(),
        }
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.expandable_segments == other.expandable_segments
            && self.max_split_size == other.max_split_size
            && self.max_non_split_rounding == other.max_non_split_rounding
            && self.garbage_collection_threshold == other.garbage_collection_threshold
            && self.roundup_power2_divisions == other.roundup_power2_divisions
            && self.large_segment_size == other.large_segment_size
            && self.base_addr_aligned == other.base_addr_aligned
            && self.page_size == other.page_size
            && self.multi_stream_lazy_reclaim == other.multi_stream_lazy_reclaim
            && self.per_process_memory_fraction == other.per_process_memory_fraction
            && self.release_lock_on_npumalloc == other.release_lock_on_npumalloc
            && self.throw_on_npumalloc_oom == other.throw_on_npumalloc_oom
            && self.pin_memory_expandable_segments == other.pin_memory_expandable_segments
            && self.pinned_mem_register == other.pinned_mem_register
            && self.pinned_use_background_threads == other.pinned_use_background_threads
            && self.pinned_reserve_segment_size == other.pinned_reserve_segment_size
            && self.pinned_max_round_threshold == other.pinned_max_round_threshold
            && self.pinned_max_cached_size == other.pinned_max_cached_size
            && self.headroom == other.headroom
            && self.adaptive_headroom == other.adaptive_headroom
            && self.waiting_headroom == other.waiting_headroom
            && self.device_waits == other.device_waits
            && self.front_cache == other.front_cache
            && self.caching == other.caching
            && self.reservation == other.reservation
            && self.set_access == other.set_access
            && self.check_level == other.check_level
            && self.stream_order == other.stream_order
            && self.decay_ms == other.decay_ms
            && self.decay_ops == other.decay_ops
            && self.memory_limit == other.memory_limit
            && self.soft_limit == other.soft_limit
            && self.epoch_frees == other.epoch_frees
            && self.observe == other.observe
    }
}

impl Config {
    /// Whether idle memory goes back to the device by itself.
    pub(crate) fn decays(&self) -> bool {
        self.decay_ms > 0 || self.decay_ops > 0
    }

    /// Whether growable segments are to grow by chunks of [`large_segment_size`](Self::large_segment_size): where
    /// somebody has set it, or it differs from the default.
    #[must_use]
    pub fn sets_chunk_size(&self) -> bool {
        self.is_set("large_segment_size_mb")
    }

    /// Into how many equal steps sizes like `size` (bytes) are divided between two powers of two;
    /// 0 or 1: not at all.
    #[must_use]
    pub fn roundup_divisions_for(&self, size: u64) -> u64 {
        let first = MIB.ilog2();
        let interval = size.max(MIB).ilog2() - first;
        let interval = (interval as usize).min(ROUNDUP_INTERVALS - 1);
        self.roundup_power2_divisions[interval]
    }
}
