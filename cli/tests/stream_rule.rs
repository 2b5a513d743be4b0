//! The use checker sees what happens when the allocator ignores streams, and nothing when it does not.
//!
//! The traces are made here, with the two patterns in which streams matter most: parameters gathered
//! on one stream and used on another, and a random mix on four streams.

mod common;

use std::fmt::Write;
use std::path::PathBuf;

use common::{file, findings, replay, repository_trace};

/// Sharded training: stream 1 gathers the parameters of each layer, stream 0 computes with them. The
/// buffer is recorded for stream 0 and freed at once; the next layer's is gathered meanwhile. The
/// later layers have gradients of about the same size, made on stream 0 and reduced on stream 1.
fn gathered(name: &str) -> PathBuf {
    const MIB: u64 = 1 << 20;
    let mut text = String::new();
    let mut next = 0;
    let mut allocate = |text: &mut String, bytes: u64, stream: u32| {
        next += 1;
        writeln!(text, "a {next} {bytes} {stream}").unwrap();
        next
    };
    let weights: Vec<u64> = (0..4).map(|_| allocate(&mut text, 11 * MIB + 4, 0)).collect();
    for step in 0..6 {
        writeln!(text, "m step {step}").unwrap();
        let mut prefetched = allocate(&mut text, 37 * MIB, 1);
        for layer in 0..12 {
            let flat = prefetched;
            prefetched = allocate(&mut text, 37 * MIB, 1);
            writeln!(text, "r {flat} 0").unwrap();
            let activation = allocate(&mut text, (layer % 3 + 1) * MIB + 77, 0);
            writeln!(text, "f {flat}\nf {activation}").unwrap();
            if layer >= 6 {
                let gradient = allocate(&mut text, 36 * MIB, 0);
                let reduced = allocate(&mut text, 36 * MIB, 1);
                writeln!(text, "r {gradient} 1\nf {gradient}\nf {reduced}").unwrap();
            }
            if layer % 5 == 4 {
                writeln!(text, "s 0").unwrap();
            }
        }
        writeln!(text, "r {prefetched} 0\nf {prefetched}\ns 0").unwrap();
    }
    writeln!(text, "m teardown").unwrap();
    for weight in weights {
        writeln!(text, "f {weight}").unwrap();
    }
    file(name, text.as_bytes())
}

/// A random mix: sizes from 512 B to 8 MiB, four streams, some blocks used on a second one.
fn mixed(name: &str) -> PathBuf {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut text = String::new();
    let mut live: Vec<u64> = Vec::new();
    for id in 1..=3000_u64 {
        let bytes = (512 << random.below(14)) + random.below(512);
        let stream = if random.below(5) == 0 { 1 + random.below(3) } else { 0 };
        writeln!(text, "a {id} {bytes} {stream}").unwrap();
        live.push(id);
        if random.below(8) == 0 {
            writeln!(text, "r {} {}", live[random.below(live.len() as u64) as usize], random.below(4))
                .unwrap();
        }
        while live.len() > 40 + random.below(40) as usize {
            let freed = live.swap_remove(random.below(live.len() as u64) as usize);
            writeln!(text, "f {freed}").unwrap();
        }
        if id % 500 == 0 {
            writeln!(text, "m part {}\ns {}", id / 500, random.below(4)).unwrap();
        }
    }
    writeln!(text, "m teardown").unwrap();
    for id in live {
        writeln!(text, "f {id}").unwrap();
    }
    file(name, text.as_bytes())
}

/// A small generator with a fixed start (xorshift), so that the traces never change.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

#[test]
fn with_the_rule_nothing_is_found() {
    for trace in [gathered("gathered-on.trace"), mixed("mixed-on.trace")] {
        for lag in ["0", "7", "300"] {
            let run = replay(&trace, &["--json", "--verify", "--lag", lag, "--passes", "2"]);
            let report = run.json();
            assert_eq!(findings(&report), Vec::<String>::new(), "{} lag {lag}", trace.display());
            assert_eq!((run.code, report["ooms"].as_u64()), (0, Some(0)));
            assert_eq!(report["syncs"]["device"], 0);
        }
    }
}

#[test]
fn without_the_rule_the_checker_speaks() {
    // Where work lags behind, recorded blocks wait and are not there to be taken wrongly.
    for (trace, lags) in
        [(gathered("gathered-off.trace"), &["0"][..]), (mixed("mixed-off.trace"), &["0", "300"])]
    {
        for &lag in lags {
            let run = replay(&trace, &["--json", "--conf", "stream_order:False", "--lag", lag]);
            assert_eq!(run.code, 1, "{} lag {lag}", trace.display());
            let found = findings(&run.json());
            assert!(!found.is_empty());
            assert!(found[0].contains("unordered use"), "{}", found[0]);
            assert!(run.err.contains("no figure counts"), "{}", run.err);
        }
        let table = replay(&trace, &["--conf", "stream_order:False"]);
        assert_eq!(table.code, 1);
        assert!(table.out.contains("no figure above counts"), "{}", table.out);
    }
}

#[test]
fn real_traces_with_two_and_four_streams_need_the_rule() {
    for name in ["T8.trace.zst", "S2.trace.zst"] {
        let run = replay(&repository_trace(name), &["--json", "--conf", "stream_order:False"]);
        assert_eq!(run.code, 1, "{name}");
        assert!(!findings(&run.json()).is_empty(), "{name}");
        let run = replay(&repository_trace(name), &["--json"]);
        assert_eq!((run.code, findings(&run.json())), (0, vec![]), "{name}");
    }
}

#[test]
fn the_search_counts_findings_too() {
    let trace = gathered("gathered-search.trace");
    let run = replay(&trace, &["--json", "--min-memory"]);
    let report = run.json();
    assert_eq!((run.code, findings(&report)), (0, vec![]));
    assert!(report["min_memory"].as_u64().unwrap() >= report["peak_live"].as_u64().unwrap());
    let run = replay(&trace, &["--json", "--min-memory", "--conf", "stream_order:False"]);
    assert_eq!(run.code, 1);
}
