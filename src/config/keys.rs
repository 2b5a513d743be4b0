//! The table of keys: the one place that knows their names, values, sources and effects.
//!
//! Parsing, checking, showing and the documentation all read this table.

use super::settings::{Config, MIB};
use super::slot::{Slot, field};

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

/// The variable that takes our own keys too; read first.
pub const OWN_VARIABLE: &str = "ASCEND_ALLOC_CONF";

/// The environment variables that are read, the first to win first.
pub const VARIABLES: [&str; 3] = [OWN_VARIABLE, "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// The variable of torch_npu that switches caching off: 1 is `caching:False`, 0 is `caching:True`.
pub const CACHING_VARIABLE: &str = "PYTORCH_NO_NPU_MEMORY_CACHING";

/// A key of a configuration text.
pub struct Key {
    /// The name in a text.
    pub name: &'static str,
    /// What it does here, in one or two sentences.
    pub effect: &'static str,
    pub(super) slot: Slot,
    pub(super) family: Family,
    pub(super) reach: Reach,
}

/// A key of another allocator's grammar that is refused here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedKey {
    /// The name in a text.
    pub name: &'static str,
    /// Why it is refused.
    pub reason: &'static str,
}

/// Whose grammar a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// torch_npu's: accepted from every source.
    TorchNpu,
    /// torch_npu's, but an old name of another key.
    OldName(&'static str),
    /// Ours: refused in PyTorch's variables.
    Own,
}

/// Which part of the allocator looks at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Everything,
    /// Only segments that grow.
    Growable,
    /// Only segments that are one fixed block.
    Fixed,
    /// Nothing: what True asks for is always done.
    AlwaysOn,
    /// The allocator of page-locked host memory.
    Pinned,
}

impl Key {
    /// The kind of value, in words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.slot.kind()
    }

    /// The values accepted, in words.
    #[must_use]
    pub fn accepted(&self) -> String {
        self.slot.accepted()
    }

    /// What holds when the key is not set.
    #[must_use]
    pub fn default(&self) -> String {
        match self.family {
            Family::OldName(of) => format!("see {of}"),
            Family::TorchNpu | Family::Own => self.slot.show(&Config::default()),
        }
    }

    /// The environment variables it is read from, the first to win first.
    #[must_use]
    pub fn variables(&self) -> &'static [&'static str] {
        match self.family {
            Family::Own => &VARIABLES[..1],
            Family::TorchNpu | Family::OldName(_) => &VARIABLES,
        }
    }

    /// The key under which the setting is known: the name, unless that is an old one.
    pub(super) fn setting(&self) -> &'static str {
        match self.family {
            Family::OldName(of) => of,
            Family::TorchNpu | Family::Own => self.name,
        }
    }
}

/// The key of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

const fn torch_npu(name: &'static str, slot: Slot, reach: Reach, effect: &'static str) -> Key {
    Key { name, effect, slot, family: Family::TorchNpu, reach }
}

const fn own(name: &'static str, slot: Slot, reach: Reach, effect: &'static str) -> Key {
    Key { name, effect, slot, family: Family::Own, reach }
}

/// The largest size in units of `unit` bytes: 1 EiB, so that sums of sizes cannot overflow.
const fn most(unit: u64) -> u64 {
    (1 << 60) / unit
}

/// In GiB: all the address space that reservations share.
const MOST_RESERVED: u64 = 8 << 10;

/// In milliseconds, about 30 years: its nanoseconds still fit in 64 bits.
const MOST_DECAY: u64 = 1_000_000_000_000;

/// All keys that are accepted.
pub(super) static KEYS: [Key; 44] = [
    torch_npu(
        "expandable_segments",
        Slot::Flag(field!(expandable_segments)),
        Reach::Everything,
        "True: segments grow and shrink by chunks of physical memory, and fixed blocks serve only where the \
         device cannot do that. False: every segment is one fixed block, but those of pools that were made with a \
         kind of their own. Counts for segments made from then on; torch_npu's default is False.",
    ),
    torch_npu(
        "max_split_size_mb",
        Slot::OptionalSize {
            unit: MIB,
            range: (11, most(MIB)),
            none: "unlimited",
            field: field!(max_split_size),
        },
        Reach::Fixed,
        "Fixed blocks of this size and more are never split. At least large_segment_size_mb; refused together \
         with expandable_segments:True.",
    ),
    torch_npu(
        "max_non_split_rounding_mb",
        Slot::OptionalSize {
            unit: MIB,
            range: (11, most(MIB)),
            none: "as large_segment_size_mb",
            field: field!(max_non_split_rounding),
        },
        Reach::Fixed,
        "By how much a fixed block that is never split may exceed the request it serves. At least \
         large_segment_size_mb.",
    ),
    torch_npu(
        "garbage_collection_threshold",
        Slot::OptionalFraction { none: "off", field: field!(garbage_collection_threshold) },
        Reach::Everything,
        "Above this share of the limit (of the device's memory where no limit is set) idle memory is given \
         back or, in growable segments, moved, longest idle first, before the driver is asked for more. \
         Refused together with expandable_segments:True as in torch_npu, although it acts on growable \
         segments too: leave that key out, it is the default.",
    ),
    torch_npu(
        "roundup_power2_divisions",
        Slot::Roundup(field!(roundup_power2_divisions)),
        Reach::Everything,
        "Sizes are rounded up to one of this many equal steps between two powers of two; 0 and 1 leave them \
         alone. In a list the number after a size S counts from S MiB to less than twice that, the first also \
         for everything below, the one after `>` for everything above.",
    ),
    torch_npu(
        "large_segment_size_mb",
        Slot::Size { unit: MIB, range: (11, most(MIB)), field: field!(large_segment_size) },
        Reach::Everything,
        "Size of the fixed block fetched for requests of more than 1 MiB and less than 10 MiB, as long as there is \
         room for it. Where it is set, also the size of the chunks by which growable segments grow inside a large \
         enough block: fewer driver calls, but such a chunk goes back to the device only when all of it is free. Where \
         it is not set they grow by the smallest chunks.",
    ),
    Key {
        name: "segment_size_mb",
        slot: Slot::Size { unit: MIB, range: (20, 512), field: field!(large_segment_size) },
        family: Family::OldName("large_segment_size_mb"),
        reach: Reach::Everything,
        effect: "Old name of large_segment_size_mb; refused together with it in one text.",
    },
    torch_npu(
        "base_addr_aligned_kb",
        Slot::Alignment { unit: KIB, most: 16 * KIB, field: field!(base_addr_aligned) },
        Reach::Growable,
        "Alignment of blocks of 2 MiB and more in growable segments; 0 is the 512 bytes of all blocks. \
         torch_npu's default is 16, which leaves small gaps.",
    ),
    torch_npu(
        "page_size",
        Slot::Pages(field!(page_size)),
        Reach::Everything,
        "1g: where a request covers a whole 1 GiB of new memory that is a page of 1 GiB, on devices that have \
         such pages and one left; it goes back only when all of it is free. Everything else has the device's usual pages, called huge, and so has everything otherwise.",
    ),
    torch_npu(
        "multi_stream_lazy_reclaim",
        Slot::Flag(field!(multi_stream_lazy_reclaim)),
        Reach::AlwaysOn,
        "Always on here: events are only queried when memory is wanted back. Stored and shown; False changes \
         nothing and gives a warning.",
    ),
    torch_npu(
        "per_process_memory_fraction",
        Slot::Fraction { zero: false, field: field!(per_process_memory_fraction) },
        Reach::Everything,
        "The share of each device's memory that this allocator may hold; what the runtime library takes for itself is not \
         counted. 0 is refused, because nothing could be allocated.",
    ),
    torch_npu(
        "release_lock_on_npumalloc",
        Slot::Flag(field!(release_lock_on_npumalloc)),
        Reach::AlwaysOn,
        "Always on here: no driver call runs under a lock. Stored and shown; False changes nothing and gives \
         a warning.",
    ),
    torch_npu(
        "throw_on_npumalloc_oom",
        Slot::Flag(field!(throw_on_npumalloc_oom)),
        Reach::AlwaysOn,
        "Always on here: a request that exceeds the limit is an error before the driver is asked. Stored and \
         shown; False changes nothing and gives a warning.",
    ),
    torch_npu(
        "pin_memory_expandable_segments",
        Slot::Flag(field!(pin_memory_expandable_segments)),
        Reach::Pinned,
        "True: page-locked host memory is reserved address space backed chunk by chunk with physical memory of the \
         host, and shrinks anywhere; where the driver cannot do that, regions as with False. Refused together with \
         pinned_mem_register:True.",
    ),
    torch_npu(
        "pinned_mem_register",
        Slot::Flag(field!(pinned_mem_register)),
        Reach::Pinned,
        "True: regions of page-locked host memory are registered for the device, so that kernels can reach them. \
         Refused together with pin_memory_expandable_segments:True.",
    ),
    torch_npu(
        "pinned_use_background_threads",
        Slot::Flag(field!(pinned_use_background_threads)),
        Reach::Pinned,
        "True: a thread looks which streams have passed freed page-locked memory, so that requests need not.",
    ),
    torch_npu(
        "pinned_reserve_segment_size_mb",
        Slot::Size { unit: MIB, range: (0, most(MIB)), field: field!(pinned_reserve_segment_size) },
        Reach::Pinned,
        "Page-locked host memory taken at the start, in one region. Unlike torch_npu's it shrinks again with \
         trimming and emptying. 0 takes none.",
    ),
    torch_npu(
        "pinned_max_round_threshold_mb",
        Slot::OptionalSize {
            unit: MIB,
            range: (0, most(MIB)),
            none: "unlimited",
            field: field!(pinned_max_round_threshold),
        },
        Reach::Pinned,
        "Requests of page-locked memory up to this size are rounded up to steps of an eighth of a power of two, by \
         12.5 % at most (torch_npu: to powers of two); larger ones, and all where it is not set, to 512 bytes.",
    ),
    torch_npu(
        "pinned_max_cached_size_mb",
        Slot::OptionalSize {
            unit: MIB,
            range: (0, most(MIB)),
            none: "unlimited",
            field: field!(pinned_max_cached_size),
        },
        Reach::Pinned,
        "The most free page-locked memory that is kept; what is beyond goes back with the call that makes \
         or finds it free. With less than pinned_max_round_threshold_mb a warning is given.",
    ),
    own(
        "headroom",
        Slot::Fraction { zero: true, field: field!(headroom) },
        Reach::Growable,
        "By which fraction physical memory may exceed the highest live bytes seen so far before idle chunks \
         are moved instead of asking the device for new ones.",
    ),
    own(
        "adaptive_headroom",
        Slot::Flag(field!(adaptive_headroom)),
        Reach::Growable,
        "True: a program that moves chunks all the time and has needed a sixth of the device may hold up to 4.9 % more \
         than its highest live bytes before chunks are moved; one that has needed three eighths follows a peak that \
         creeps up, and may hold a fifth more where most of its sizes are new. False: the headroom alone decides.",
    ),
    own(
        "waiting_headroom",
        Slot::Fraction { zero: true, field: field!(waiting_headroom) },
        Reach::Growable,
        "Which fraction of the device, or of the memory limit, may be held beyond the headroom where a program does next to \
         nothing but allocate, use on another stream and free: as many blocks of its sizes wait for the other stream as \
         makes events rare. The default is enough for blocks of up to 2 MiB: such a pair of calls then costs about 1.3 times \
         one without the other stream. One of 20 MiB costs 1.4 to 1.9 times that and one of 64 MiB 1.7 to 3.3 times; with \
         0.125, 1.3 and 1.5 times. 0, or adaptive_headroom:False: none.",
    ),
    own(
        "device_waits",
        Slot::Flag(field!(device_waits)),
        Reach::Growable,
        "True: where memory freed on other streams is worth it, a stream waits for them on the device \
         (aclrtStreamWaitEvent) before new memory is taken beyond the headroom or the host waits. Captured \
         streams never do. False: no stream ever waits for another.",
    ),
    own(
        "front_cache",
        Slot::Flag(field!(front_cache)),
        Reach::Growable,
        "True: freed blocks of common sizes are kept at hand so that the next request of that size on that \
         stream takes no device-wide lock.",
    ),
    own(
        "caching",
        Slot::Flag(field!(caching)),
        Reach::Everything,
        "False: device memory is not kept after a free, as after set_caching(device, false), until a program switches \
         that; for looking for uses after a free. Page-locked memory is kept all the same.",
    ),
    own(
        "reservation_gb",
        Slot::Size { unit: GIB, range: (0, MOST_RESERVED), field: field!(reservation) },
        Reach::Growable,
        "Size of one address reservation. 0 chooses by the device's memory.",
    ),
    own(
        "set_access",
        Slot::Access(field!(set_access)),
        Reach::Growable,
        "Whether a chunk's owner is granted access by a call of its own at the chunk's first map. auto: yes, \
         unless visible devices are renumbered or the driver has no such call.",
    ),
    own(
        "check_level",
        Slot::Level { most: 3, field: field!(check_level) },
        Reach::Everything,
        "How often the heap is checked in debug builds: 0 never, 1 now and then, 2 after every call the core \
         serves, 3 after every call. Slow; builds without debug assertions never do it.",
    ),
    own(
        "stream_order",
        Slot::Flag(field!(stream_order)),
        Reach::Everything,
        "False: a free block serves every stream at once; only streams it was recorded on are still waited \
         for. Unsafe with more than one stream; for tests that show what breaks.",
    ),
    own(
        "decay_ms",
        Slot::Size { unit: 1, range: (0, MOST_DECAY), field: field!(decay_ms) },
        Reach::Everything,
        "Memory idle for longer than this many milliseconds goes back to the device, a few chunks with every \
         so many frees, while the program runs. 0 keeps it.",
    ),
    own(
        "decay_ops",
        Slot::Size { unit: 1, range: (0, MOST_DECAY), field: field!(decay_ops) },
        Reach::Everything,
        "The same with ages counted in frees. With both, memory goes that is past either. 0 keeps it.",
    ),
    own(
        "memory_limit_mb",
        Slot::OptionalSize {
            unit: MIB,
            range: (1, most(MIB)),
            none: "unlimited",
            field: field!(memory_limit),
        },
        Reach::Everything,
        "The most memory of each device that this allocator may hold, counted exactly by what is mapped. \
         Together with per_process_memory_fraction the smaller one counts.",
    ),
    own(
        "soft_limit_mb",
        Slot::OptionalSize { unit: MIB, range: (1, most(MIB)), none: "unlimited", field: field!(soft_limit) },
        Reach::Everything,
        "Beyond this much memory of a device, idle memory is moved or given back, callbacks are asked and \
         streams wait on the device before more is taken. Then it is taken: nothing fails and no host waits \
         because of it.",
    ),
    own(
        "epoch_frees",
        Slot::Count { least: 64, most: 1 << 20, field: field!(epoch_frees) },
        Reach::Everything,
        "How many frees must have happened for each event that is recorded, on average over all streams.",
    ),
    own(
        "history_entries",
        Slot::Size { unit: 1, range: (0, MOST_ENTRIES), field: field!(observe.history_entries) },
        Reach::Everything,
        "So many events (allocations, frees, maps, waits and so on) are kept from the start, the newest ones, mostly 24 \
         bytes each. 0 keeps none until the program starts the history.",
    ),
    own(
        "history_file",
        Slot::OptionalPath(field!(observe.history_file)),
        Reach::Everything,
        "All events are written to this file, compressed where its name ends with .zst, for as long as the process \
         lives.",
    ),
    own(
        "history_file_mb",
        Slot::Size { unit: MIB, range: (1, most(MIB)), field: field!(observe.history_file_bytes) },
        Reach::Everything,
        "A history file of this size gets a number behind its name, and another one is begun.",
    ),
    own(
        "history_files",
        Slot::Count { least: 1, most: 1000, field: field!(observe.history_files) },
        Reach::Everything,
        "How many history files there are at most, with the one being written and those that an earlier process put aside under the same name; the oldest is removed.",
    ),
    own(
        "trace_file",
        Slot::OptionalPath(field!(observe.trace_file)),
        Reach::Everything,
        "A trace that ascend-alloc replay reads is recorded to this file, compressed where its name ends with .zst. \
         The variable ASCEND_ALLOC_TRACE says the same.",
    ),
    own(
        "oom_report",
        Slot::OptionalPath(field!(observe.oom_report)),
        Reach::Everything,
        "When a request fails for lack of memory, a report as text and a snapshot with the last events are written to \
         files whose names begin with this path.",
    ),
    own(
        "oom_report_s",
        Slot::Size { unit: 1, range: (0, 1 << 20), field: field!(observe.oom_report_pause) },
        Reach::Everything,
        "After a report no other one is written for so many seconds.",
    ),
    own(
        "oom_report_files",
        Slot::Count { least: 1, most: 10_000, field: field!(observe.oom_report_files) },
        Reach::Everything,
        "How many such reports a process writes at most.",
    ),
    own(
        "stats_export",
        Slot::OptionalPath(field!(observe.stats_export)),
        Reach::Everything,
        "The statistics are told as JSON: written to this file once a period, or, where the path ends with .sock, to \
         everybody who connects to this Unix socket. docs/statistics.md has the format.",
    ),
    own(
        "stats_export_ms",
        Slot::Size { unit: 1, range: (10, 3_600_000), field: field!(observe.stats_export_ms) },
        Reach::Everything,
        "Milliseconds between two writes of that file.",
    ),
];

/// More events than any machine has memory for make no sense.
const MOST_ENTRIES: u64 = 1 << 32;

const fn refused(name: &'static str, reason: &'static str) -> RefusedKey {
    RefusedKey { name, reason }
}

/// Keys of PyTorch's grammar for other devices, refused by torch_npu too.
pub(super) static REFUSED: [RefusedKey; 11] = [
    refused("backend", "there is one allocator here, so there is nothing to choose"),
    refused("release_lock_on_cudamalloc", "it is CUDA's; no driver call runs under a lock here"),
    refused("release_lock_on_hipmalloc", "it is ROCm's; no driver call runs under a lock here"),
    refused(
        "throw_on_cudamalloc_oom",
        "it is CUDA's; a request over the limit never reaches the driver here",
    ),
    refused(
        "expandable_segments_reserve",
        "it is CUDA's; reservation_gb sets the size of a reservation here",
    ),
    refused("expandable_segments_reserve_by_class", "it is CUDA's; there are no classes of streams here"),
    refused(
        "graph_capture_record_stream_reuse",
        "it is CUDA's; what a captured graph may reuse is not a setting here",
    ),
    refused(
        "pinned_use_cuda_host_register",
        "it is CUDA's; pinned_mem_register is the key for Ascend devices",
    ),
    refused(
        "pinned_use_hip_host_register",
        "it is ROCm's; pinned_mem_register is the key for Ascend devices",
    ),
    refused("pinned_num_register_threads", "it is CUDA's; registering is one call on Ascend devices"),
    refused("pinned_free_catch_all", "it is CUDA's; errors of driver calls are not hidden here"),
];
