//! Prometheus text, the list of metrics in the documentation, and the dashboard.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::publish::{HOST_METRICS, Kind, METRICS, Metric};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_sim::{Sim, SimConfig};
use common::{file, replay, repository_trace, run};
use serde_json::Value;

fn documentation(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(path)).unwrap()
}

#[test]
fn the_documentation_lists_each_metric() {
    let text = documentation("metrics.md");
    let listed: Vec<&str> = text.lines().filter(|line| line.starts_with("| `ascend_alloc_")).collect();
    let expected: Vec<String> = METRICS
        .iter()
        .chain(HOST_METRICS)
        .map(|Metric { name, kind, labels, help }| {
            let kind = match kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
                Kind::Histogram => "histogram",
            };
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{name}` | {kind} | {} | {help} |", labels.join(", "))
        })
        .collect();
    assert_eq!(listed, expected);
}

/// All texts in a JSON value under members of these names.
fn texts<'a>(value: &'a Value, names: &[&str], found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if names.contains(&name.as_str()) => found.push(text),
                    _ => texts(member, names, found),
                }
            }
        }
        Value::Array(entries) => entries.iter().for_each(|entry| texts(entry, names, found)),
        _ => {}
    }
}

/// Words of letters, digits and underscores in a query, outside of quotation marks.
fn words(query: &str) -> Vec<String> {
    let outside: String = query.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    outside
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The labels that a query names for a metric: in the braces behind it, and behind "by", where "le" is of histograms.
fn labels_of(query: &str, metric: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for (at, _) in query.match_indices(&format!("{metric}{{")) {
        let inside = &query[at + metric.len() + 1..];
        labels.extend(words(&inside[..inside.find('}').unwrap()]));
    }
    for (at, by) in query.match_indices("by (") {
        let inside = &query[at + by.len()..];
        labels.extend(words(&inside[..inside.find(')').unwrap()]));
    }
    labels.retain(|label| label != "le");
    labels
}

#[test]
fn the_dashboard_asks_for_exactly_these_metrics() {
    let dashboard: Value = serde_json::from_str(&documentation("grafana/ascend-alloc.json")).unwrap();
    let mut queries = Vec::new();
    texts(&dashboard, &["expr", "definition", "query"], &mut queries);
    assert!(queries.len() > 30, "{queries:?}");
    let all = || METRICS.iter().chain(HOST_METRICS);
    let known: BTreeSet<&str> = all().map(|metric| metric.name).collect();
    let mut asked = BTreeSet::new();
    for query in &queries {
        for word in words(query).into_iter().filter(|word| word.starts_with("ascend_alloc_")) {
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| word.strip_suffix(part));
            let name = match histogram {
                Some(name) if all().any(|m| m.name == name && m.kind == Kind::Histogram) => name,
                _ => &word,
            };
            let metric = all().find(|metric| metric.name == name);
            let metric = metric.unwrap_or_else(|| panic!("{word} of {query} is not published"));
            asked.insert(metric.name);
            for label in labels_of(query, &word) {
                assert!(metric.labels.contains(&label.as_str()), "{word} has no label {label}: {query}");
            }
            if metric.kind == Kind::Counter {
                assert!(
                    query.contains("rate(") || query.contains("increase("),
                    "a counter as it is: {query}"
                );
            }
        }
    }
    assert_eq!(asked, known, "the dashboard shows every metric");
    let mut legends = Vec::new();
    texts(&dashboard, &["legendFormat"], &mut legends);
    assert!(legends.iter().all(|legend| !legend.is_empty()));
}

/// The value of a line of Prometheus text; labels as they are written there.
fn value(text: &str, line: &str) -> f64 {
    let found: Vec<&str> = text.lines().filter_map(|all| all.strip_prefix(line)?.strip_prefix(' ')).collect();
    assert_eq!(found.len(), 1, "{line} in\n{text}");
    found[0].parse().unwrap()
}

#[test]
fn a_replay_prints_what_it_would_publish() {
    let trace = repository_trace("T0.trace.zst");
    let run = replay(&trace, &["--prometheus", "--conf", "memory_limit_mb:1024"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let report = replay(&trace, &["--json"]).json();
    for (line, expected) in [
        ("ascend_alloc_allocated_bytes_peak{device=\"0\",pool=\"all\"}", &report["peak_allocated"]),
        ("ascend_alloc_reserved_bytes_peak{device=\"0\",pool=\"all\"}", &report["peak_reserved"]),
        ("ascend_alloc_driver_calls_total{device=\"0\",call=\"aclrtMapMem\"}", &report["calls"]["map"]),
        ("ascend_alloc_ooms_total{device=\"0\"}", &report["ooms"]),
    ] {
        assert_eq!(value(&run.out, line), expected.as_f64().unwrap(), "{line}");
    }
    let published: BTreeSet<&str> =
        run.out.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(published, METRICS.iter().map(|metric| metric.name).collect());
    // Behind the last event everything is freed, so what the histogram counts is free.
    let free = "ascend_alloc_block_size_bytes_count{device=\"0\",pool=\"0\",tag=\"default\",stream=\"default\",state=\"free\"}";
    let blocks = free.replace("_size_bytes_count", "s");
    assert!(value(&run.out, free) >= 1.0);
    assert_eq!(value(&run.out, free), value(&run.out, &blocks));
    let both = run_two(&trace);
    assert!(both.1.contains("--prometheus takes one trace"), "{}", both.1);
    assert_eq!(both.0, 2);
}

fn run_two(trace: &Path) -> (i32, String) {
    let path = trace.to_str().unwrap();
    let run = run(&["replay", path, path, "--prometheus"]);
    (run.code, run.err)
}

/// An allocator of this process that exports its statistics.
fn exporting(path: &Path, conf: &str) -> DeviceAllocator {
    let sim = Sim::new(SimConfig { devices: 2, capacity: 1 << 30, ..SimConfig::default() });
    let conf = format!("stats_export:{},stats_export_ms:10{conf}", path.display());
    DeviceAllocator::new(Config::parse(&conf).unwrap(), Arc::new(SimDriver::new(sim))).unwrap()
}

/// Tries until there is an answer that is accepted.
fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..500 {
        if let Some(found) = ask() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("what was waited for did not come");
}

#[test]
fn exported_statistics_become_prometheus_text() {
    let (path, socket) = (file("metrics.json", b""), file("metrics.sock", b""));
    fs::remove_file(&path).unwrap();
    fs::remove_file(&socket).unwrap();
    let allocator = exporting(&path, ",memory_limit_mb:256");
    let block = allocator.allocate(1, 5 << 20, 0, Stream(0)).unwrap();
    let stats = allocator.stats(1).unwrap();
    let process = std::process::id();
    let line = format!("ascend_alloc_allocated_bytes{{device=\"1\",process=\"{process}\",pool=\"all\"}}");
    let text = eventually(|| {
        let run = run(&["metrics", path.to_str().unwrap()]);
        (run.code == 0 && run.out.contains(&line)).then_some(run.out)
    });
    assert_eq!(value(&text, &line), stats.allocated_bytes.all.current as f64);
    let limit = format!("ascend_alloc_limit_bytes{{device=\"1\",process=\"{process}\"}}");
    assert_eq!(value(&text, &limit), (256 << 20) as f64);
    let maps =
        format!("ascend_alloc_driver_calls_total{{device=\"1\",process=\"{process}\",call=\"aclrtMapMem\"}}");
    assert_eq!(value(&text, &maps), stats.calls.map as f64);
    // A socket says the same, and the environment may name it.
    let second = exporting(&socket, "");
    let other = second.allocate(0, 1 << 20, 0, Stream(0)).unwrap();
    let from_environment = eventually(|| {
        let output = Command::new(env!("CARGO_BIN_EXE_ascend-alloc"))
            .arg("metrics")
            .env("ASCEND_ALLOC_CONF", format!("stats_export:{}", socket.display()))
            .output()
            .unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    });
    let line = format!("ascend_alloc_blocks_live{{device=\"0\",process=\"{process}\",pool=\"small\"}}");
    assert_eq!(value(&from_environment, &line), 1.0);
    // The first look at blocks is that of the first answer.
    let labels = format!(
        "{{device=\"0\",process=\"{process}\",pool=\"0\",tag=\"default\",stream=\"default\",state=\"allocated\"}}"
    );
    let bytes = second.stats(0).unwrap().allocated_bytes.all.current as f64;
    assert_eq!(value(&from_environment, &format!("ascend_alloc_blocks{labels}")), 1.0);
    assert_eq!(value(&from_environment, &format!("ascend_alloc_block_bytes{labels}")), bytes);
    allocator.deallocate(block).unwrap();
    second.deallocate(other).unwrap();
}

#[test]
fn a_pattern_stands_for_all_allocators_of_processes_that_have_not_ended() {
    let folder = file("exports", b"").with_extension("of-processes");
    let _left_by_an_earlier_run = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let pattern = folder.join("stats-%p.json");
    let allocators = [exporting(&pattern, ""), exporting(&pattern, "")];
    let blocks = [1, 2].map(|count: usize| {
        let of = &allocators[count - 1];
        (0..count).map(|_| of.allocate(0, 3 << 20, 0, Stream(0)).unwrap()).collect::<Vec<_>>()
    });
    let process = std::process::id();
    let live = |more: &str| {
        format!("ascend_alloc_blocks_live{{device=\"0\",process=\"{process}\"{more},pool=\"all\"}}")
    };
    let (first, second) = (live(""), live(",allocator=\"2\""));
    let mut text = eventually(|| {
        let run = run(&["metrics", pattern.to_str().unwrap()]);
        (run.code == 0 && run.out.contains(&first) && run.out.contains(&second)).then_some(run.out)
    });
    assert_eq!([&first, &second].map(|line| value(&text, line)), [1.0, 2.0]);

    // Numbers of processes are smaller than that.
    let gone = folder.join("stats-999999999.json");
    let said = fs::read_to_string(folder.join(format!("stats-{process}.json"))).unwrap();
    fs::write(&gone, said.replacen(&process.to_string(), "999999999", 1)).unwrap();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options().write(true).open(&gone).unwrap().set_modified(hour_ago).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.join("stats-999999998.json")).unwrap());
    let run_of = |path: &Path| run(&["metrics", path.to_str().unwrap()]);
    let answer = run_of(&pattern);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    text = answer.out;
    assert!(text.contains(&first) && !text.contains("99999999"), "{text}");
    let named = run_of(&gone);
    assert!(named.code == 0 && named.out.contains("process=\"999999999\""), "{}", named.err);
    for (of, blocks) in allocators.iter().zip(blocks) {
        blocks.into_iter().for_each(|block| of.deallocate(block).unwrap());
    }
    drop(allocators);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_cannot_be_read_is_said() {
    let no_document =
        file("no-document.json", b"{\"format\":\"other\",\"version\":1,\"process\":1,\"devices\":[]}");
    let run_of = |path: &str| run(&["metrics", path]);
    let run = run_of(no_document.to_str().unwrap());
    assert_eq!(run.code, 2);
    assert!(
        run.err.contains("no-document.json") && run.err.contains("its format is \"other\""),
        "{}",
        run.err
    );
    let run = run_of("/no/such/file.json");
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.contains("/no/such/file.json: cannot be read"), "{}", run.err);
    let nothing = Command::new(env!("CARGO_BIN_EXE_ascend-alloc"))
        .arg("metrics")
        .env_remove("ASCEND_ALLOC_CONF")
        .output()
        .unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("stats_export"));
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served() {
    let path = file("served.json", b"");
    fs::remove_file(&path).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ascend-alloc"))
        .args(["metrics", path.to_str().unwrap(), "--serve", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let _server = Server(child);
    let address = said.trim().strip_prefix("serving http://").unwrap().strip_suffix("/metrics").unwrap();
    let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    assert!(ask(address, get).starts_with("HTTP/1.1 503 "), "nobody exports yet");
    let allocator = exporting(&path, "");
    let block = allocator.allocate(0, 2 << 20, 0, Stream(0)).unwrap();
    let line =
        format!("ascend_alloc_blocks_live{{device=\"0\",process=\"{}\",pool=\"all\"}} 1", std::process::id());
    let answer = eventually(|| Some(ask(address, get)).filter(|answer| answer.contains(&line)));
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    // Each look is a new one.
    allocator.deallocate(block).unwrap();
    let none = line.replace("} 1", "} 0");
    eventually(|| Some(ask(address, get)).filter(|answer| answer.contains(&none)));
}
