//! Snapshots as traces: what becomes of each event.

mod common;

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::history::HistoryOptions;
use ascend_alloc::snapshot_file::{Document, Limits, pickle};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_alloc_cli::convert::{Line, Story, write};
use ascend_alloc_cli::snapshot::input;
use ascend_alloc_cli::trace::{Event, Trace};
use ascend_sim::{Sim, SimConfig};
use common::recorded::{Segment, event, snapshot};

/// What a snapshot becomes: the lines without metadata, and the notes.
fn told(text: &str) -> (Vec<String>, Vec<String>) {
    let (tree, _) = input::tree(text.as_bytes(), &Limits::default()).expect(text);
    let document = Document::from_tree(&tree).expect(text);
    let story = Story::of(&document, 0);
    let mut out = Vec::new();
    write(&mut out, &story, "x", 0).unwrap();
    let trace = Trace::read("x", "x.trace", out.as_slice()).expect("a trace");
    assert_eq!(trace.header_disagreements(), Vec::<String>::new());
    assert_eq!(trace.peak_live, story.peak_live);
    let out = String::from_utf8(out).unwrap();
    let lines = out.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    (lines, story.warnings)
}

fn becomes(segments: &[Segment], events: &[String], lines: &[&str], notes: &[&str]) {
    let (told, said) = told(&snapshot(segments, events));
    assert_eq!(told, lines);
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    assert_eq!(said, notes);
}

#[test]
fn a_plain_free_is_one_line() {
    let events = [
        event("alloc", 512, 100, 0),
        event("free_requested", 512, 100, 0),
        event("free_completed", 512, 100, 0),
        event("alloc", 512, 300, 0),
    ];
    becomes(&[], &events, &["a 1 100 0", "f 1", "a 2 300 0"], &[]);
}

#[test]
fn a_free_that_is_completed_later_was_of_a_block_used_on_another_stream() {
    let events = [
        event("alloc", 512, 100, 0),
        event("alloc", 1024, 50, 7),
        event("free_requested", 512, 100, 0),
        event("alloc", 2048, 60, 0),
        event("free_completed", 512, 100, 0),
        event("free_requested", 1024, 50, 7),
        event("free_requested", 2048, 60, 0),
        event("free_completed", 2048, 60, 0),
        event("free_completed", 1024, 50, 7),
    ];
    let lines = ["a 1 100 0", "a 2 50 1", "r 1 1", "f 1", "a 3 60 0", "r 2 0", "f 2", "f 3"];
    becomes(&[], &events, &lines, &["2 uses on the other stream, taken from when the memory was free again"]);
}

#[test]
fn without_another_stream_one_is_made_up() {
    // The block waits at the end of the snapshot.
    let blocks: &[_] = &[(512, "active_pending_free", 100), (512, "inactive", 0)];
    let events = [event("alloc", 512, 100, 0), event("free_requested", 512, 100, 0)];
    let note = "1 use on another stream that is not told: put on one that is made up";
    becomes(&[(512, blocks)], &events, &["a 1 100 0", "r 1 1", "f 1"], &[note]);
}

#[test]
fn blocks_from_before_the_ring_are_there_at_the_beginning() {
    // One is freed in the trace, one is live at the end, one waits from before to after.
    let blocks: &[_] = &[
        (512, "active_allocated", 400),
        (512, "inactive", 0),
        (1024, "active_allocated", 1000),
        (512, "active_pending_free", 500),
    ];
    let events = [
        event("free_requested", 4608, 300, 3),
        event("free_completed", 4608, 300, 3),
        event("alloc", 5120, 1000, 0),
    ];
    becomes(
        &[(4096, blocks)],
        &events,
        &["a 3 400 0", "a 1 300 1", "a 4 500 0", "m history", "f 1", "a 2 1000 0", "f 4"],
        &["1 block that was freed before the first event and waits still: freed at the end"],
    );
}

#[test]
fn a_wait_that_began_before_the_ring_holds_the_memory() {
    let events = [event("alloc", 512, 1, 0), event("free_completed", 1024, 300, 0)];
    let note = "1 block that was freed before the first event and waited: live until it was free";
    becomes(&[], &events, &["a 2 300 0", "m history", "a 1 1 0", "f 2"], &[note]);
}

#[test]
fn what_no_event_tells_of_follows_from_what_comes_later() {
    // A free, an allocation in between, an allocation whose block is live at the end.
    let blocks: &[_] = &[(512, "active_allocated", 80)];
    let events = [
        event("alloc", 1024, 100, 0),
        event("alloc", 1300, 50, 0),
        event("free_requested", 1300, 50, 0),
        event("free_completed", 1300, 50, 0),
        event("free_requested", 1024, 90, 0),
        event("free_completed", 1024, 90, 0),
        event("alloc", 512, 10, 0),
        event("free_requested", 512, 10, 0),
        event("free_completed", 512, 10, 0),
    ];
    becomes(
        &[(512, blocks)],
        &events,
        &["a 1 100 0", "a 2 50 0", "f 2", "f 1", "a 3 10 0", "f 3", "a 4 80 0"],
        &["1 live block whose allocation no event tells of, put at the end"],
    );
    let events = [
        event("alloc", 1024, 500, 0),
        event("alloc", 1200, 50, 0),
        event("free_requested", 1024, 90, 0),
        event("free_completed", 1024, 90, 0),
    ];
    becomes(
        &[],
        &events,
        &["a 1 500 0", "f 1", "a 2 50 0", "a 3 90 0", "f 3"],
        &[
            "1 allocation that no event tells of, put before the first event of the block",
            "1 free that no event tells of, put where the memory was used again",
        ],
    );
}

#[test]
fn recorders_that_skip_one_of_the_two_events_of_a_free() {
    let completed =
        [event("alloc", 512, 100, 0), event("free_completed", 512, 100, 0), event("alloc", 512, 9, 0)];
    becomes(&[], &completed, &["a 1 100 0", "f 1", "a 2 9 0"], &[]);
    let requested =
        [event("alloc", 512, 100, 0), event("free_requested", 512, 100, 0), event("alloc", 512, 9, 0)];
    becomes(&[], &requested, &["a 1 100 0", "f 1", "a 2 9 0"], &[]);
    let twice = [
        event("alloc", 512, 100, 0),
        event("free_requested", 512, 100, 0),
        event("free_requested", 512, 100, 0),
    ];
    becomes(&[], &twice, &["a 1 100 0", "f 1"], &["1 second free of one block: left out"]);
}

#[test]
fn other_events_become_markers_or_are_counted() {
    let events = [
        r#"{"action":"oom","size":1000,"device_free":20,"stream":0,"frames":[]}"#.to_owned(),
        r#"{"action":"snapshot","addr":0,"size":0,"stream":0}"#.to_owned(),
        r#"{"action":"user_defined","addr":0,"size":0,"stream":0,"user_metadata":"epoch 1"}"#.to_owned(),
        r#"{"action":"user_defined","addr":0,"size":0,"stream":0,"user_metadata":"teardown"}"#.to_owned(),
        r#"{"action":"workspace_snapshot","addr":0,"size":0,"stream":0}"#.to_owned(),
        r#"{"action":"annotate","addr":0,"size":0,"stream":0,"user_metadata":"weights"}"#.to_owned(),
        r#"{"action":"alloc","addr":512,"size":5,"stream":0,"user_metadata":"step\n1","frames":null}"#
            .to_owned(),
        r#"{"action":"stream_use","addr":512,"size":5,"stream":9,"user_metadata":"step\n1"}"#.to_owned(),
        r#"{"action":"host_wait","addr":0,"size":0,"stream":9}"#.to_owned(),
        event("segment_map", 0, 1 << 20, 0),
        event("segment_alloc", 1 << 30, 1 << 20, 0),
    ];
    becomes(
        &[],
        &events,
        &[
            "m out of memory: 1000 bytes asked for, 20 free on the device",
            "m snapshot",
            "m epoch 1",
            "m teardown (recorded)",
            "m workspace_snapshot",
            "m step 1",
            "a 1 5 0",
            "r 1 1",
            "s 1",
        ],
        &["1 event \"annotate\"", "2 events about segments: a replay takes its own"],
    );
}

#[test]
fn annotations_stand_where_their_time_is() {
    let text = r#"{"segments":[],"external_annotations":[
        {"device":0,"time_us":15,"name":"later","stage":"START"},{"device":0,"time_us":5,"name":"first","stage":"START"},
        {"device":0,"time_us":16,"name":"later","stage":"END"},{"device":1,"time_us":5,"name":"elsewhere","stage":"START"},
        {"device":0,"time_us":99,"name":"last","stage":""}],
        "device_traces":[[{"action":"alloc","addr":1,"size":2,"stream":0,"time_us":10},
        {"action":"alloc","addr":9,"size":3,"stream":0,"time_us":20}]]}"#;
    assert_eq!(told(text).0, ["m first", "a 1 2 0", "m later", "a 2 3 0", "m last"]);
}

#[test]
fn the_peak_of_the_recorded_allocator_follows_from_segments_and_events() {
    let peak = |text: &str| {
        let (tree, _) = input::tree(text.as_bytes(), &Limits::default()).unwrap();
        Story::of(&Document::from_tree(&tree).unwrap(), 0).recorded_peak
    };
    let events = [
        event("segment_alloc", 1 << 30, 600, 0),
        event("segment_unmap", 1 << 20, 500, 0),
        event("segment_free", 1 << 30, 600, 0),
        event("segment_map", 512, 300, 0),
    ];
    let blocks: &[_] = &[(1024, "inactive", 0)];
    // Backwards: 1024 at the end, 724, 1324, 1824, 1224.
    assert_eq!(peak(&snapshot(&[(512, blocks)], &events)), Some(1824));
    // More was taken than there is at the end.
    assert_eq!(peak(&snapshot(&[(512, blocks)], &[event("segment_map", 0, 5000, 0)])), None);
}

/// Runs the events of a trace on an allocator that keeps a history, and reads them back from its snapshot.
fn run_and_convert(trace: &Trace, events: &[Event]) -> Story {
    let sim = Sim::new(SimConfig { capacity: 64 << 30, ..SimConfig::default() });
    let allocator = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone()))).unwrap();
    allocator.start_history(&HistoryOptions { entries: 100_000, uses: true, stacks: false });
    sim.set_device(0).unwrap();
    let mut streams = vec![Stream(0)];
    streams.extend((1..trace.streams.len()).map(|_| Stream(sim.create_stream().unwrap())));
    let mut blocks = vec![None; trace.blocks];
    for event in events {
        match *event {
            Event::Allocate { block, stream, bytes } => {
                let ptr = allocator.allocate(0, bytes, 0, streams[usize::from(stream)]).unwrap();
                blocks[block as usize] = Some(ptr);
            }
            Event::Free { block } => allocator.deallocate(blocks[block as usize].take().unwrap()).unwrap(),
            Event::Record { block, stream } => {
                allocator
                    .record_stream(blocks[block as usize].unwrap(), streams[usize::from(stream)])
                    .unwrap();
            }
            Event::Synchronize { stream } => {
                allocator.note_host_wait(0, streams[usize::from(stream)]).unwrap();
            }
            Event::Marker { label } => allocator.mark(&trace.labels[label as usize]),
        }
    }
    let pickle = allocator.full_snapshot(true).to_pickle(pickle::Protocol::Two).unwrap();
    let document = Document::from_tree(&pickle::read(&pickle, &Limits::default()).unwrap()).unwrap();
    assert!(document.figures.contains(&("events_left_out".to_owned(), 0)), "{:?}", document.figures);
    blocks.into_iter().flatten().for_each(|ptr| allocator.deallocate(ptr).unwrap());
    Story::of(&document, 0)
}

#[test]
fn a_trace_that_ran_here_comes_back_from_the_snapshot() {
    // T8 has two streams, uses on both, and waits.
    for (name, most) in [("T0.trace.zst", usize::MAX), ("T8.trace.zst", 8000)] {
        let trace = Trace::open(&common::repository_trace(name)).unwrap();
        let events = &trace.events[..trace.events.len().min(most)];
        let story = run_and_convert(&trace, events);
        assert_eq!(story.before, []);
        let number = |stream: u16| u32::from(stream);
        let expected: Vec<Line> = events
            .iter()
            .map(|event| match *event {
                Event::Allocate { block, stream, bytes } => {
                    Line::Allocate { id: u64::from(block) + 1, bytes, stream: number(stream) }
                }
                Event::Free { block } => Line::Free { id: u64::from(block) + 1 },
                Event::Record { block, stream } => {
                    Line::Record { id: u64::from(block) + 1, stream: number(stream) }
                }
                Event::Synchronize { stream } => Line::Wait { stream: number(stream) },
                Event::Marker { label } => {
                    let label = &trace.labels[label as usize];
                    let recorded = if label == "teardown" { " (recorded)" } else { "" };
                    Line::Marker { label: format!("{label}{recorded}") }
                }
            })
            .collect();
        let differs = story.lines.iter().zip(&expected).position(|(told, ran)| told != ran);
        assert_eq!(differs.map(|at| (at, &story.lines[at], &expected[at])), None, "{name}");
        assert_eq!(story.lines.len(), expected.len());
        if name == "T8.trace.zst" {
            assert!(expected.iter().any(|line| matches!(line, Line::Record { .. })));
        }
    }
}

/// Keys that some versions do not write change nothing that is not about them, nor does the order of blocks.
#[test]
fn what_old_versions_leave_out_changes_nothing_else() {
    let blocks: &[_] =
        &[(512, "active_allocated", 400), (1024, "inactive", 0), (512, "active_pending_free", 500)];
    let events = [
        event("segment_alloc", 4096, 2048, 0),
        event("alloc", 4096, 400, 0),
        event("alloc", 4608, 1000, 7),
        event("free_requested", 4608, 1000, 7),
        event("free_completed", 4608, 1000, 7),
        event("alloc", 5632, 500, 0),
        event("free_requested", 5632, 500, 0),
    ];
    let mut whole: serde_json::Value = serde_json::from_str(&snapshot(&[(4096, blocks)], &events)).unwrap();
    let segment = whole["segments"][0].as_object_mut().unwrap();
    for (key, value) in [("allocated_size", 512), ("active_size", 1024), ("requested_size", 900)] {
        segment.insert(key.to_owned(), value.into());
    }
    segment.insert("segment_type".to_owned(), "large".into());
    segment.insert("segment_pool_id".to_owned(), serde_json::json!([0, 0]));
    segment.insert("is_expandable".to_owned(), false.into());
    segment.insert("frames".to_owned(), serde_json::json!([]));
    for (block, address) in segment["blocks"].as_array_mut().unwrap().iter_mut().zip([4096, 4608, 5632]) {
        block["address"] = address.into();
    }
    for (at, event) in whole["device_traces"][0].as_array_mut().unwrap().iter_mut().enumerate() {
        event["time_us"] = at.into();
        event["compile_context"] = "N/A".into();
        event["user_metadata"] = "".into();
        event["pool_id"] = serde_json::json!([0, 0]);
    }
    let expected = told(&whole.to_string());
    assert_eq!(expected.0, ["a 1 400 0", "a 2 1000 1", "f 2", "a 3 500 0", "r 3 1", "f 3"]);
    let without = |of: &str, key: &str| {
        let mut less = whole.clone();
        for part in less.pointer_mut(of).unwrap().as_array_mut().unwrap() {
            part.as_object_mut().unwrap().remove(key).unwrap_or_else(|| panic!("{of} has no {key}"));
        }
        assert_eq!(told(&less.to_string()), expected, "without {key} in {of}");
    };
    for key in [
        "device",
        "total_size",
        "allocated_size",
        "active_size",
        "requested_size",
        "stream",
        "segment_type",
        "segment_pool_id",
        "is_expandable",
        "frames",
    ] {
        without("/segments", key);
    }
    for key in ["address", "frames"] {
        without("/segments/0/blocks", key);
    }
    for key in ["frames", "time_us", "compile_context", "user_metadata", "pool_id"] {
        without("/device_traces/0", key);
    }
    let mut turned = whole.clone();
    turned["segments"][0]["blocks"].as_array_mut().unwrap().reverse();
    assert_eq!(told(&turned.to_string()), expected, "blocks from the last to the first");
}

/// Every key that PyTorch 2.15 writes for a GPU, and some of versions to come.
#[test]
fn the_dictionary_of_a_recent_pytorch() {
    let text = r#"{"segments":[{"device":0,"address":140000000000000,"total_size":2097152,"allocated_size":1024,
        "active_size":1024,"requested_size":1000,"stream":94000000000000,"segment_type":"small","segment_pool_id":[0,2],
        "is_expandable":true,"registration_counter":-1,"frames":[],"blocks":[{"address":140000000000000,"size":1024,
        "requested_size":1000,"state":"active_allocated","frames":[{"filename":"m.py","line":-1,"name":"f",
        "fx_node_op":"call_function","fx_node_name":"relu","fx_original_trace":"x"},{"filename":null,"line":null,"name":null}]},
        {"address":140000000001024,"size":2096128,"requested_size":0,"state":"inactive","frames":[]}]}],
        "device_traces":[[{"action":"segment_map","addr":140000000000000,"size":2097152,"stream":94000000000000,"time_us":1,
        "compile_context":"N/A","user_metadata":"","pool_id":[0,2],"frames":[]},
        {"action":"alloc","addr":140000000000000,"size":1000,"stream":94000000000000,"time_us":2,"compile_context":"0/0",
        "user_metadata":"train","internal_metadata":"mallocWithAddress","pool_id":[0,2],"frames":[]},
        {"action":"annotate","addr":140000000000000,"size":1000,"stream":0,"time_us":3,"user_metadata":"weight"},
        {"action":"oom","device_free":77,"size":5,"stream":0,"time_us":4}],[]],
        "allocator_settings":{"PYTORCH_CUDA_ALLOC_CONF":"expandable_segments:True","max_split_size":-1,
        "garbage_collection_threshold":0.0,"roundup_power2_divisions":{"1":0,"2":0},"release_lock_on_cudamalloc":false},
        "external_annotations":[{"device":0,"time_us":2,"name":"forward","stage":"START"}],
        "host_segments":[{"address":1}],"host_traces":[[]],"something_new":{"a":[1]}}"#;
    let (lines, notes) = told(text);
    let expected =
        ["m forward", "m train", "a 1 1000 1", "m out of memory: 5 bytes asked for, 77 free on the device"];
    assert_eq!(lines, expected);
    assert_eq!(notes, ["1 event \"annotate\"", "1 event about segments: a replay takes its own"]);
    let (tree, _) = input::tree(text.as_bytes(), &Limits::default()).unwrap();
    let document = Document::from_tree(&tree).unwrap();
    assert_eq!(document.warnings, Vec::<String>::new());
    let segment = &document.segments[0];
    assert_eq!((segment.pool, segment.is_large, segment.stream), ((0, 2), false, 94_000_000_000_000));
    assert_eq!((segment.blocks[0].frames[0].line, &*segment.blocks[0].frames[1].name), (-1, ""));
    assert_eq!(document.trace(0)[1].pool, Some((0, 2)));
}
