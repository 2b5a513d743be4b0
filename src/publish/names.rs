//! The names of all metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A count that only grows, but where the statistics it comes from are reset.
    Counter,
    /// How often which values were seen.
    Histogram,
}

/// A metric that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels. Whoever publishes for several processes adds `process`, and `allocator` for further ones of a process.
    pub labels: &'static [&'static str],
    /// What it says; where the name ends with `bytes` the unit is bytes.
    pub help: &'static str,
}

/// All metrics, in the order of `docs/metrics.md`.
pub const METRICS: &[Metric] = &[
    gauge("ascend_alloc_allocated_bytes", CLASS, "bytes handed out, rounded"),
    gauge("ascend_alloc_allocated_bytes_peak", CLASS, "the highest value since the last reset of peaks"),
    gauge("ascend_alloc_active_bytes", CLASS, "bytes handed out or waiting for streams"),
    gauge("ascend_alloc_active_bytes_peak", CLASS, "the highest value since the last reset of peaks"),
    gauge("ascend_alloc_requested_bytes", CLASS, "bytes handed out or waiting, as asked for"),
    gauge("ascend_alloc_requested_bytes_peak", CLASS, "the highest value since the last reset of peaks"),
    gauge("ascend_alloc_reserved_bytes", CLASS, "bytes with physical memory behind them"),
    gauge("ascend_alloc_reserved_bytes_peak", CLASS, "the highest value since the last reset of peaks"),
    gauge("ascend_alloc_blocks_live", CLASS, "blocks handed out"),
    counter("ascend_alloc_allocations_total", CLASS, "blocks handed out so far"),
    counter("ascend_alloc_frees_total", CLASS, "blocks freed so far"),
    counter("ascend_alloc_allocated_bytes_total", CLASS, "bytes handed out so far"),
    gauge("ascend_alloc_device_bytes", DEVICE, "memory of the device"),
    gauge("ascend_alloc_limit_bytes", DEVICE, "the most that may be held, where there is a limit"),
    gauge("ascend_alloc_cached_handle_bytes", DEVICE, "physical memory held without an address"),
    gauge("ascend_alloc_address_space_bytes", DEVICE, "address space reserved"),
    gauge("ascend_alloc_sleeping_bytes", DEVICE, "bytes of blocks whose pool sleeps"),
    counter("ascend_alloc_ooms_total", DEVICE, "requests that failed for lack of memory"),
    counter("ascend_alloc_retries_total", DEVICE, "requests served only after memory was given back"),
    counter("ascend_alloc_chunks_moved_total", DEVICE, "chunks put at another address"),
    counter(
        "ascend_alloc_size_mismatches_total",
        DEVICE,
        "frees whose caller said another size than it had asked for",
    ),
    counter(
        "ascend_alloc_ladder_steps_total",
        &["device", "step"],
        "steps taken for requests without a free block",
    ),
    counter("ascend_alloc_driver_calls_total", &["device", "call"], "calls of the driver, by ACL name"),
    gauge("ascend_alloc_pool_allocated_bytes", POOL, "bytes handed out from the pool"),
    gauge("ascend_alloc_pool_active_bytes", POOL, "bytes handed out from the pool or waiting for streams"),
    gauge("ascend_alloc_pool_reserved_bytes", POOL, "bytes of the pool with physical memory behind them"),
    gauge("ascend_alloc_blocks", BLOCK, "blocks by pool, class of stream and state"),
    gauge("ascend_alloc_block_bytes", BLOCK, "bytes in blocks by pool, class of stream and state"),
    Metric {
        name: "ascend_alloc_block_size_bytes",
        kind: Kind::Histogram,
        labels: BLOCK,
        help: "sizes of blocks, each block once with each look",
    },
];

/// The metrics of page-locked host memory, which
/// [`PinnedAllocator::publish`](crate::host::PinnedAllocator::publish) sets, in the order of `docs/metrics.md`.
pub const HOST_METRICS: &[Metric] = &[
    gauge("ascend_alloc_host_active_bytes", DEVICE, "page-locked bytes handed out or waiting for streams"),
    gauge("ascend_alloc_host_active_bytes_peak", DEVICE, "the highest value since the last reset of peaks"),
    gauge("ascend_alloc_host_waiting_bytes", DEVICE, "page-locked bytes waiting for streams"),
    gauge("ascend_alloc_host_reserved_bytes", DEVICE, "page-locked bytes held of the driver"),
    gauge("ascend_alloc_host_reserved_bytes_peak", DEVICE, "the highest value since the last reset of peaks"),
    gauge("ascend_alloc_host_blocks", DEVICE, "page-locked blocks handed out or waiting for streams"),
    counter("ascend_alloc_host_allocations_total", DEVICE, "page-locked blocks handed out so far"),
    counter("ascend_alloc_host_frees_total", DEVICE, "page-locked blocks freed so far, and free of streams"),
    counter(
        "ascend_alloc_host_driver_calls_total",
        HOST_CALL,
        "times that page-locked memory was taken or given back",
    ),
    counter("ascend_alloc_host_driver_microseconds_total", HOST_CALL, "microseconds that this took"),
];

const DEVICE: &[&str] = &["device"];
const CLASS: &[&str] = &["device", "pool"];
const POOL: &[&str] = &["device", "pool", "tag"];
const HOST_CALL: &[&str] = &["device", "call"];
const BLOCK: &[&str] = &["device", "pool", "tag", "stream", "state"];

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

/// Tells the recorder that is installed what each metric is; exporters show it beside the values.
pub fn describe() {
    for Metric { name, kind, help, .. } in METRICS.iter().chain(HOST_METRICS) {
        let (name, help) = (*name, *help);
        let unit = if name.contains("bytes") { Unit::Bytes } else { Unit::Count };
        match kind {
            Kind::Gauge => describe_gauge!(name, unit, help),
            Kind::Counter => describe_counter!(name, unit, help),
            Kind::Histogram => describe_histogram!(name, unit, help),
        }
    }
}
