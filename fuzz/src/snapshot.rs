//! Snapshots: whatever is accepted comes back from both pickles and means the same, and becomes a trace; whatever is
//! refused is refused with a place in the file and a reason.

use std::collections::HashSet;

use ascend_alloc::snapshot_file::{Document, Limits, Node, Tree, json, pickle};
use ascend_alloc_cli::convert::{Story, write};
use ascend_alloc_cli::snapshot::input;
use ascend_alloc_cli::trace::Trace;

/// Values written out as JSON, at most.
const WRITTEN_OUT: u64 = 100_000;

/// Reads the bytes as a snapshot.
///
/// # Panics
///
/// Something that must hold does not.
pub fn run(bytes: &[u8]) {
    let limits = Limits { nodes: 100_000, ..Limits::default() };
    if let Err(error) = pickle::read(bytes, &limits) {
        assert!(error.offset.is_none_or(|at| at <= bytes.len() as u64), "{error} of {} bytes", bytes.len());
        assert!(!error.reason.is_empty());
    }
    let tree = match input::tree(bytes, &limits) {
        Ok((tree, _)) => tree,
        Err(reason) => return assert!(!reason.is_empty()),
    };
    for protocol in [pickle::Protocol::Two, pickle::Protocol::Four] {
        let again = reread(&tree, protocol);
        // Sets and bytes are tuples from then on.
        assert!(is_plain(&again));
        assert_eq!(reread(&again, protocol), again);
        assert!(!is_plain(&tree) || again == tree);
    }
    if tree.written_out() <= WRITTEN_OUT {
        let mut text = Vec::new();
        json::write(&tree, &mut text).expect("it is not too large");
        let text = String::from_utf8(text).expect("JSON is text");
        assert_eq!(text.lines().count(), 1);
        // A file that is JSON is a dictionary or a list.
        if text.starts_with(['{', '[']) {
            input::tree(text.as_bytes(), &Limits::default()).expect("what was written is read");
        }
    }
    if let Ok(document) = Document::from_tree(&tree) {
        check(document);
    }
}

fn reread(tree: &Tree, protocol: pickle::Protocol) -> Tree {
    let mut bytes = Vec::new();
    pickle::write(tree, protocol, &mut bytes).expect("writing to memory");
    let mut again = Vec::new();
    pickle::write(tree, protocol, &mut again).expect("writing to memory");
    assert_eq!(bytes, again, "the same tree gives the same pickle");
    pickle::read(&bytes, &Limits::default()).expect("what was written is read")
}

/// Whether there are no sets and bytes.
fn is_plain(tree: &Tree) -> bool {
    let (mut open, mut seen) = (vec![tree.root()], HashSet::new());
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        match tree.node(id) {
            Node::Bytes(_) | Node::Set(_) => return false,
            Node::List(items) | Node::Tuple(items) => open.extend(items),
            Node::Dict(pairs) => open.extend(pairs.iter().flat_map(|&(key, value)| [key, value])),
            _ => {}
        }
    }
    true
}

/// What holds for every snapshot.
fn check(mut document: Document) {
    document.warnings.clear();
    let tree = document.to_tree().expect("no more values than were read");
    let mut again = Document::from_tree(&tree).expect("what was written is read");
    again.warnings.clear();
    assert_eq!(again, document);

    for device in document.devices().into_iter().take(4) {
        let story = Story::of(&document, device);
        let mut text = Vec::new();
        write(&mut text, &story, "fuzzed", device).expect("writing to memory");
        match Trace::read("fuzzed", "fuzzed.trace", text.as_slice()) {
            Ok(trace) => {
                assert_eq!(trace.peak_live, story.peak_live);
                assert_eq!(trace.header_disagreements(), Vec::<String>::new());
            }
            Err(error) => {
                let known = ["pass 2^64", "holds no event", "65536 streams"];
                assert!(known.iter().any(|part| error.reason.contains(part)), "{error}");
            }
        }
    }
    document.leave_out_contradictions();
    assert_eq!(document.leave_out_contradictions(), 0, "what is left agrees");
}
