//! Publishing through the `metrics` crate: names, labels and values.

use std::collections::BTreeMap;
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_sim::{Sim, SimConfig};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn metrics_are_the_statistics() {
    let sim = Sim::new(SimConfig { capacity: 1 << 30, ..SimConfig::default() });
    let allocator = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim))).unwrap();
    let small = allocator.allocate(0, 1000, 0, Stream(0)).unwrap();
    let large = allocator.allocate(0, 30 << 20, 0, Stream(0)).unwrap();
    allocator.deallocate(small).unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || allocator.publish());

    let mut values: BTreeMap<String, f64> = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<String> = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(_) => panic!("no histogram is published"),
        };
        values.insert(format!("{}{{{}}}", key.key().name(), labels.join(",")), value);
    }
    let stats = allocator.stats(0).unwrap();
    let allocated = |pool: &str| values[&format!("ascend_alloc_allocated_bytes{{device=0,pool={pool}}}")];
    assert_eq!(allocated("all"), stats.allocated_bytes.all.current as f64);
    assert_eq!((allocated("small"), allocated("large")), (0.0, stats.allocated_bytes.large.current as f64));
    let peak = values["ascend_alloc_allocated_bytes_peak{device=0,pool=all}"];
    assert_eq!(peak, stats.allocated_bytes.all.peak as f64);
    let maps = values["ascend_alloc_driver_calls_total{device=0,call=aclrtMapMem}"];
    assert!(maps >= 16.0, "{maps} maps for more than 30 MiB");
    assert_eq!(maps, stats.calls.map as f64);
    assert_eq!(values["ascend_alloc_ooms_total{device=0}"], 0.0);
    let mapped = values["ascend_alloc_ladder_steps_total{device=0,step=mapped}"];
    assert_eq!((mapped, stats.ladder.mapped), (2.0, 2));
    allocator.deallocate(large).unwrap();
}
