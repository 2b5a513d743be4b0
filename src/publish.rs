//! Publishing statistics through the `metrics` crate.
//!
//! Nothing on the way of an allocation touches a metric: the counts are plain integers, and one call of
//! [`DeviceAllocator::publish`] sets gauges and counters from them.

use metrics::{counter, gauge};

use crate::alloc::DeviceAllocator;
use crate::stats::{StatArray, Stats};

impl DeviceAllocator {
    /// Sets the metrics of every device to its statistics, through the recorder that the program has
    /// installed; without one nothing happens. To be called on demand or on a timer, from any thread.
    ///
    /// Gauges, in bytes, with the labels `device` and `pool` (`all`, `small`, `large`):
    /// `ascend_alloc_allocated_bytes`, `ascend_alloc_active_bytes`, `ascend_alloc_requested_bytes`,
    /// `ascend_alloc_reserved_bytes`, and each with `_peak` behind its name. With the label `device` alone:
    /// `ascend_alloc_cached_handle_bytes`, `ascend_alloc_address_space_bytes`. Counters with the label
    /// `device`: `ascend_alloc_ooms_total`, `ascend_alloc_retries_total`,
    /// `ascend_alloc_chunks_moved_total`; `ascend_alloc_ladder_steps_total` with `device` and `step`, a name of
    /// [`LadderSteps`](crate::stats::LadderSteps); and `ascend_alloc_driver_calls_total` with `device` and
    /// `call`, the call's ACL name.
    pub fn publish(&self) {
        for device in 0..self.device_count() {
            if let Ok(stats) = self.stats(device) {
                publish_device(&device.to_string(), &stats);
            }
        }
    }
}

fn publish_device(device: &str, stats: &Stats) {
    let bytes = [
        ("ascend_alloc_allocated_bytes", "ascend_alloc_allocated_bytes_peak", &stats.allocated_bytes),
        ("ascend_alloc_active_bytes", "ascend_alloc_active_bytes_peak", &stats.active_bytes),
        ("ascend_alloc_requested_bytes", "ascend_alloc_requested_bytes_peak", &stats.requested_bytes),
        ("ascend_alloc_reserved_bytes", "ascend_alloc_reserved_bytes_peak", &stats.reserved_bytes),
    ];
    for (name, peak, array) in bytes {
        publish_array(device, name, peak, array);
    }
    let device = || device.to_owned();
    gauge!("ascend_alloc_cached_handle_bytes", "device" => device()).set(stats.cached_handles as f64);
    gauge!("ascend_alloc_address_space_bytes", "device" => device()).set(stats.reserved_address_space as f64);
    counter!("ascend_alloc_ooms_total", "device" => device()).absolute(stats.num_ooms);
    counter!("ascend_alloc_retries_total", "device" => device()).absolute(stats.num_alloc_retries);
    counter!("ascend_alloc_chunks_moved_total", "device" => device()).absolute(stats.chunks_moved);
    for (step, count) in stats.ladder.by_name() {
        counter!("ascend_alloc_ladder_steps_total", "device" => device(), "step" => step).absolute(count);
    }
    for (call, count) in stats.calls.by_name() {
        counter!("ascend_alloc_driver_calls_total", "device" => device(), "call" => call).absolute(count);
    }
}

fn publish_array(device: &str, name: &'static str, peak: &'static str, array: &StatArray) {
    for (pool, stat) in [("all", array.all), ("small", array.small), ("large", array.large)] {
        gauge!(name, "device" => device.to_owned(), "pool" => pool).set(stat.current as f64);
        gauge!(peak, "device" => device.to_owned(), "pool" => pool).set(stat.peak as f64);
    }
}
