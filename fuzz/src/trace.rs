//! Trace files: whatever is accepted is a trace in itself, and whatever is refused is refused with a line and a
//! reason.

use std::collections::BTreeMap;

use ascend_alloc_cli::trace::{Event, Trace};

/// Reads the bytes as a trace.
///
/// # Panics
///
/// Something that must hold does not.
pub fn run(bytes: &[u8]) {
    match Trace::read("fuzzed", "fuzzed.trace", bytes) {
        Ok(trace) => check(&trace),
        Err(error) => {
            let lines = bytes.split(|&byte| byte == b'\n').count() as u64;
            assert!(error.line <= lines, "line {} of {lines}", error.line);
            assert!(!error.reason.is_empty());
            assert!(error.to_string().starts_with("fuzzed.trace:"));
        }
    }
}

/// Plays the trace on a table of live blocks.
fn check(trace: &Trace) {
    let (mut live, mut sum, mut peak) = (BTreeMap::new(), 0_u64, 0_u64);
    let (mut blocks, mut markers) = (0, 0);
    let stream_exists = |stream: u16| assert!(usize::from(stream) < trace.streams.len());
    assert!(!trace.events.is_empty());
    assert_eq!(trace.streams[0], 0);
    for event in &trace.events {
        match *event {
            Event::Allocate { block, stream, bytes } => {
                stream_exists(stream);
                assert_eq!(block as usize, blocks, "blocks are numbered in order");
                assert!(live.insert(block, bytes).is_none());
                blocks += 1;
                sum = sum.checked_add(bytes).expect("the reader refuses sums that overflow");
                peak = peak.max(sum);
            }
            Event::Free { block } => sum -= live.remove(&block).expect("only live blocks are freed"),
            Event::Record { block, stream } => {
                stream_exists(stream);
                assert!(live.contains_key(&block), "only live blocks are recorded");
            }
            Event::Synchronize { stream } => stream_exists(stream),
            Event::Marker { label } => {
                assert_eq!(label as usize, markers);
                markers += 1;
            }
        }
    }
    assert_eq!((blocks, markers, peak), (trace.blocks, trace.labels.len(), trace.peak_live));
    for disagreement in trace.header_disagreements() {
        assert!(!disagreement.is_empty());
    }
}
