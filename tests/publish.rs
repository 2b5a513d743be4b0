//! Publishing through the `metrics` crate: names, labels and values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::publish::{HOST_METRICS, Kind, METRICS};
use ascend_alloc::{Config, DeviceAllocator, PoolOptions};
use ascend_sim::{Sim, SimConfig};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// An allocator on a small device.
fn allocator() -> (Sim, Arc<DeviceAllocator>) {
    let sim = Sim::new(SimConfig { capacity: 1 << 30, ..SimConfig::default() });
    let config = Config::parse("memory_limit_mb:512").unwrap();
    (sim.clone(), Arc::new(DeviceAllocator::new(config, Arc::new(SimDriver::new(sim))).unwrap()))
}

/// Gauges and counters by name and labels, and how often each histogram saw which values.
#[derive(Default)]
struct Seen {
    values: BTreeMap<String, f64>,
    histograms: BTreeMap<String, Vec<f64>>,
    /// Name, labels and kind of everything.
    shapes: BTreeSet<(String, Vec<String>, &'static str)>,
}

fn seen(snapshotter: &Snapshotter) -> Seen {
    let mut seen = Seen::default();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let labels: Vec<String> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        let full = format!("{}{{{}}}", key.name(), labels.join(","));
        let kind = match value {
            DebugValue::Counter(count) => {
                seen.values.insert(full, count as f64);
                "counter"
            }
            DebugValue::Gauge(gauge) => {
                seen.values.insert(full, gauge.into_inner());
                "gauge"
            }
            DebugValue::Histogram(values) => {
                let mut values: Vec<f64> = values.into_iter().map(|value| value.into_inner()).collect();
                values.sort_by(f64::total_cmp);
                seen.histograms.insert(full, values);
                "histogram"
            }
        };
        let names = key.labels().map(|label| label.key().to_owned()).collect();
        seen.shapes.insert((key.name().to_owned(), names, kind));
    }
    seen
}

/// What is published while `run` runs on this thread.
fn published(run: impl FnOnce()) -> Seen {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, run);
    seen(&snapshotter)
}

#[test]
fn metrics_are_the_statistics() {
    let (_, allocator) = allocator();
    let small = allocator.allocate(0, 1000, 0, Stream(0)).unwrap();
    let large = allocator.allocate(0, 30 << 20, 0, Stream(0)).unwrap();
    allocator.deallocate(small).unwrap();
    let values = published(|| allocator.publish()).values;
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
    assert_eq!(values["ascend_alloc_allocations_total{device=0,pool=all}"], 2.0);
    assert_eq!(values["ascend_alloc_frees_total{device=0,pool=small}"], 1.0);
    assert_eq!(values["ascend_alloc_blocks_live{device=0,pool=all}"], 1.0);
    assert_eq!(values["ascend_alloc_device_bytes{device=0}"], (1_u64 << 30) as f64);
    assert_eq!(values["ascend_alloc_limit_bytes{device=0}"], (512_u64 << 20) as f64);
    allocator.deallocate(large).unwrap();
}

#[test]
fn pools_are_told_apart_and_add_up() {
    let (_, allocator) = allocator();
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let weights = allocator.allocate_in(pool, 8 << 20, 0, Stream(0)).unwrap();
    let other = allocator.allocate(0, 4 << 20, 0, Stream(0)).unwrap();
    let values = published(|| allocator.publish()).values;
    let stats = allocator.stats(0).unwrap();
    let of = |what: &str, pool: &str| values[&format!("ascend_alloc_pool_{what}_bytes{{device=0,{pool}}}")];
    let serial = pool.serial;
    let (tagged, default) = (format!("pool={serial},tag=weights"), "pool=0,tag=default");
    let pool_stats = allocator.pool_stats(pool).unwrap();
    assert_eq!(of("allocated", &tagged), pool_stats.allocated_bytes.all.current as f64);
    for (what, whole) in [
        ("allocated", stats.allocated_bytes.all.current),
        ("active", stats.active_bytes.all.current),
        ("reserved", stats.reserved_bytes.all.current),
    ] {
        assert!(of(what, default) > 0.0 && of(what, &tagged) > 0.0, "{what}");
        assert_eq!(of(what, default) + of(what, &tagged), whole as f64, "{what}");
    }
    allocator.deallocate(weights).unwrap();
    allocator.deallocate(other).unwrap();
}

/// A metric keeps its value until it is set again.
#[test]
fn what_is_gone_is_told_once_more() {
    let (_, allocator) = allocator();
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let block = allocator.allocate_in(pool, 8 << 20, 0, Stream(0)).unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let all = || {
        allocator.publish();
        allocator.publish_blocks();
    };
    metrics::with_local_recorder(&recorder, all);
    allocator.deallocate(block).unwrap();
    allocator.release_pool(pool).unwrap();
    allocator.empty_cache(None).unwrap();
    allocator.set_memory_limit(0, None).unwrap();
    metrics::with_local_recorder(&recorder, all);
    let values = seen(&snapshotter).values;
    let of = |name: &str| values[&format!("{name}{{device=0}}")];
    assert_eq!(of("ascend_alloc_limit_bytes"), of("ascend_alloc_device_bytes"), "there is no limit any more");
    let pool = format!("{{device=0,pool={},tag=weights", pool.serial);
    let left: Vec<_> = values.iter().filter(|(name, _)| name.contains(&pool)).collect();
    assert!(left.len() > 3 && left.iter().all(|&(_, &value)| value == 0.0), "{left:?}");
}

#[test]
fn blocks_are_counted_by_pool_class_of_stream_and_state() {
    let (sim, allocator) = allocator();
    let side = Stream(sim.executor().create_stream(0).unwrap());
    let kept = [3 << 20, 5 << 20].map(|bytes| allocator.allocate(0, bytes, 0, Stream(0)).unwrap());
    let beside = allocator.allocate(0, 7 << 20, 0, side).unwrap();
    let seen = published(|| allocator.publish_blocks());
    let of = |name: &str, stream: &str, state: &str| {
        let labels = format!("device=0,pool=0,tag=default,stream={stream},state={state}");
        seen.values[&format!("{name}{{{labels}}}")]
    };
    let size = |block| allocator.block_info(block).unwrap().bytes as f64;
    assert_eq!(of("ascend_alloc_blocks", "default", "allocated"), 2.0);
    assert_eq!(of("ascend_alloc_block_bytes", "default", "allocated"), size(kept[0]) + size(kept[1]));
    assert_eq!(of("ascend_alloc_blocks", "other", "allocated"), 1.0);
    assert_eq!(of("ascend_alloc_block_bytes", "other", "allocated"), size(beside));
    assert_eq!(of("ascend_alloc_blocks", "other", "waiting"), 0.0);
    let stats = allocator.stats(0).unwrap();
    let all: f64 = ["default", "other"]
        .iter()
        .flat_map(|stream| {
            ["allocated", "waiting", "free"].map(|state| of("ascend_alloc_block_bytes", stream, state))
        })
        .sum();
    assert_eq!(all, stats.reserved_bytes.all.current as f64);
    let sizes = &seen.histograms["ascend_alloc_block_size_bytes{device=0,pool=0,tag=default,stream=default,state=allocated}"];
    assert_eq!(*sizes, [size(kept[0]), size(kept[1])]);
    kept.into_iter().chain([beside]).for_each(|block| allocator.deallocate(block).unwrap());
}

#[test]
fn the_list_of_metrics_is_what_is_published() {
    let (_, allocator) = allocator();
    let block = allocator.allocate(0, 1000, 0, Stream(0)).unwrap();
    let seen = published(|| {
        allocator.publish();
        allocator.publish_blocks();
    });
    let listed: BTreeSet<(String, Vec<String>, &str)> = METRICS
        .iter()
        .map(|metric| {
            let kind = match metric.kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
                Kind::Histogram => "histogram",
            };
            (metric.name.to_owned(), metric.labels.iter().map(ToString::to_string).collect(), kind)
        })
        .collect();
    assert_eq!(seen.shapes, listed);
    assert_eq!(listed.len(), METRICS.len(), "each name once");
    allocator.deallocate(block).unwrap();
}

#[test]
fn a_timer_publishes_until_it_is_dropped() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // The timer has a thread of its own, so the recorder must be that of the process; no other test needs one.
    recorder.install().unwrap();
    let (_, allocator) = allocator();
    let block = allocator.allocate(0, 2 << 20, 0, Stream(0)).unwrap();
    let timer = allocator.publish_every(Duration::from_millis(1)).unwrap();
    let live = "ascend_alloc_blocks_live{device=0,pool=all}";
    let wait_for = |wanted: f64| {
        for _ in 0..20_000 {
            if seen(&snapshotter).values.get(live) == Some(&wanted) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{wanted} was never published");
    };
    wait_for(1.0);
    allocator.deallocate(block).unwrap();
    wait_for(0.0);
    // A timer does not keep the allocator, and ends with or without it.
    let left = Arc::downgrade(&allocator);
    drop(allocator);
    for _ in 0..20_000 {
        if left.strong_count() == 0 {
            return drop(timer);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the timer keeps the allocator");
}

#[test]
fn page_locked_memory_is_published_with_names_of_its_own() {
    let sim = Sim::new(SimConfig { capacity: 1 << 30, ..SimConfig::default() });
    let pinned = PinnedAllocator::new(PinnedOptions::default(), Arc::new(SimDriver::new(sim))).unwrap();
    let live = pinned.allocate(3 << 20, 0).unwrap();
    let freed = pinned.allocate(1 << 20, 0).unwrap();
    pinned.deallocate(freed).unwrap();
    let seen = published(|| pinned.publish(&[("of", "loader".to_owned())]));
    let shapes: BTreeSet<_> = HOST_METRICS
        .iter()
        .map(|metric| {
            let mut labels: Vec<String> = metric.labels.iter().map(|&label| label.to_owned()).collect();
            labels.insert(1, "of".to_owned());
            let kind = if metric.kind == Kind::Gauge { "gauge" } else { "counter" };
            (metric.name.to_owned(), labels, kind)
        })
        .collect();
    assert_eq!(seen.shapes, shapes);
    let stats = pinned.stats();
    assert!(stats.num_host_alloc > 0 && stats.allocated_bytes.current >= 4 << 20);
    for (name, value) in [
        ("active_bytes{device=0,of=loader}", 3 << 20),
        ("active_bytes_peak{device=0,of=loader}", stats.active_bytes.peak),
        ("reserved_bytes{device=0,of=loader}", stats.allocated_bytes.current),
        ("blocks{device=0,of=loader}", 1),
        ("waiting_bytes{device=0,of=loader}", 0),
        ("allocations_total{device=0,of=loader}", 2),
        ("frees_total{device=0,of=loader}", 1),
        ("driver_calls_total{device=0,of=loader,call=alloc}", stats.num_host_alloc as i64),
        ("driver_calls_total{device=0,of=loader,call=free}", 0),
    ] {
        assert_eq!(seen.values[&format!("ascend_alloc_host_{name}")], value as f64, "{name}");
    }
    pinned.deallocate(live).unwrap();
}
