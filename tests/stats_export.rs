//! Statistics told to other processes: the document, the file, the socket, and what fails.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, PoolOptions};
use ascend_sim::{Sim, SimConfig};
use serde_json::Value;

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stats_export-{name}-{}", std::process::id()));
    // It need not be there.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn allocator(conf: &str) -> DeviceAllocator {
    let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
    DeviceAllocator::new(Config::parse(conf).expect("a configuration"), Arc::new(SimDriver::new(sim)))
        .expect("an allocator")
}

/// Asks until there is an answer that `wanted` accepts. Fails after so many tries that it would never come.
fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2000 {
        if let Some(found) = ask() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("what was waited for did not come");
}

fn number(value: &Value, path: &str) -> i64 {
    value.pointer(path).and_then(Value::as_i64).unwrap_or_else(|| panic!("no number {path} in {value}"))
}

/// Whether the document says what the allocator says.
fn agrees(document: &Value, allocator: &DeviceAllocator) -> bool {
    let stats = allocator.stats(0).expect("statistics");
    let told = document.pointer("/devices/0/statistics").expect("statistics");
    told == &serde_json::from_str::<Value>(&stats.to_json()).expect("JSON")
        && number(told, "/allocated_bytes/all/current") == stats.allocated_bytes.all.current
        && number(told, "/active_bytes/large/peak") == stats.active_bytes.large.peak
        && number(told, "/requested_bytes/small/freed") == stats.requested_bytes.small.freed
        && number(document, "/devices/0/driver_calls/aclrtMapMem") == stats.calls.map as i64
        && number(document, "/devices/0/ladder/mapped") == stats.ladder.mapped as i64
}

fn read(path: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).expect("a whole document, whenever it is read"))
}

#[test]
fn a_file_has_the_statistics_of_all_devices_and_is_replaced() {
    let folder = folder("file");
    let path = folder.join("of-%p.json");
    let allocator =
        allocator(&format!("stats_export:{},stats_export_ms:10,memory_limit_mb:512", path.display()));
    let path = folder.join(format!("of-{}.json", std::process::id()));
    let pool = allocator.create_pool(0, PoolOptions::tagged("a \"tag\"")).expect("a pool");
    let route = allocator.route(pool, ascend_alloc::RouteFilter::ThisThread).expect("a route");
    let pooled = allocator.allocate(0, 3 << 20, 0, Stream(0)).expect("a block");
    drop(route);
    let small = allocator.allocate(0, 700, 0, Stream(0)).expect("a block");
    allocator.deallocate(small).expect("freed");

    let document =
        eventually(|| read(&path).filter(|it| it["devices"][0].is_object() && agrees(it, &allocator)));
    assert_eq!(document["format"], "ascend-alloc statistics");
    assert_eq!(number(&document, "/version"), 1);
    assert_eq!(number(&document, "/process"), i64::from(std::process::id()));
    assert_eq!(document["devices"].as_array().map(Vec::len), Some(1));
    assert_eq!(number(&document, "/devices/0/limit_bytes"), 512 << 20);
    assert_eq!(document["devices"][0]["soft_limit_bytes"], Value::Null);
    assert_eq!(document["devices"][0]["pools"][0]["tag"], "a \"tag\"");
    assert_eq!(number(&document, "/devices/0/pools/0/allocated_bytes/all/current"), (3 << 20) + 512);

    let groups = document["devices"][0]["blocks"]["groups"].as_array().expect("groups of blocks");
    let states: Vec<_> =
        groups.iter().map(|group| (&group["pool"], &group["stream"], &group["state"])).collect();
    assert!(
        states.len() >= 6 && (1..states.len()).all(|at| !states[..at].contains(&states[at])),
        "{states:?}"
    );

    let before = number(&document, "/sequence");
    allocator.allocate(1, 700, 0, Stream(0)).expect("a block on another device");
    eventually(|| {
        read(&path).filter(|it| number(it, "/sequence") > before && it["devices"][1]["device"] == 1)
    });
    allocator.deallocate(pooled).expect("freed");
    drop(allocator);
    let last = read(&path).expect("the last document stays");
    assert_eq!(number(&last, "/devices/0/pools/0/allocated_bytes/all/current"), 0);
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1, "nothing else is left behind");
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_socket_answers_everybody_and_goes_with_the_allocator() {
    let folder = folder("socket");
    let path = folder.join("a.sock");
    // What a process that ended left behind.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let one = allocator(&format!("stats_export:{}", path.display()));
    let two = allocator(&format!("stats_export:{}", path.display()));
    one.allocate(0, 5 << 20, 0, Stream(0)).expect("a block");
    let ask = |path: &Path| {
        let mut text = String::new();
        UnixStream::connect(path).ok()?.read_to_string(&mut text).ok()?;
        serde_json::from_str::<Value>(&text).ok()
    };
    for _ in 0..3 {
        let document = eventually(|| ask(&path));
        assert!(agrees(&document, &one), "{document}");
        let groups = document["devices"][0]["blocks"]["groups"].as_array().expect("groups of blocks");
        let there: Vec<&Value> =
            groups.iter().filter(|group| group["state"] != "free" && group["blocks"] != 0).collect();
        let bytes = one.stats(0).expect("statistics").allocated_bytes.all.current;
        let expected = serde_json::json!(
            {"pool": 0, "stream": "default", "state": "allocated", "blocks": 1, "bytes": bytes}
        );
        assert_eq!(there, [&expected]);
    }
    let other = eventually(|| ask(&folder.join("a.2.sock")));
    assert_eq!(other["devices"], Value::Array(Vec::new()), "the second allocator has not been used");
    drop((one, two));
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0, "both sockets are gone");
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn what_cannot_be_written_disturbs_nobody_and_is_tried_again() {
    let folder = folder("refused");
    let path = folder.join("missing").join("stats.json");
    let allocator = allocator(&format!("stats_export:{},stats_export_ms:10", path.display()));
    let block = allocator.allocate(0, 700, 0, Stream(0)).expect("a block");
    eventually(|| (allocator.failed_writes() > 1).then_some(()));
    std::fs::create_dir(folder.join("missing")).expect("a folder");
    eventually(|| read(&path));
    allocator.deallocate(block).expect("freed");
    drop(allocator);
    std::fs::remove_dir_all(folder).expect("removed");
}
