//! The trace reader on files: compression, damage, and the traces of the repository.

mod common;

use std::io::Write;

use ascend_alloc_cli::trace::{Event, Trace};
use common::{file, gzip, repository_trace};

const SMALL: &str =
    "# events 8\n# task test\na 1 100 0\na 2 5000 3\nr 1 3\nm step 0\nf 1\ns 3\nm teardown\nf 2\n";

#[test]
fn plain_gzip_and_zstd_hold_the_same() {
    let text = SMALL.as_bytes();
    let plain = Trace::open(&file("same.trace", text)).unwrap();
    let gz = Trace::open(&file("same.trace.gz", &gzip(text))).unwrap();
    let zst = Trace::open(&file("same.trace.zst", &zstd::encode_all(text, 3).unwrap())).unwrap();
    assert_eq!(plain, gz);
    assert_eq!(plain, zst);
    assert_eq!(plain.name, "same");
    assert_eq!(plain.events.len(), 8);
    assert_eq!(plain.header_disagreements(), Vec::<String>::new());
}

#[test]
fn several_compressed_parts_in_a_row_are_one_trace() {
    let (head, tail) = SMALL.as_bytes().split_at(41);
    let gz = [gzip(head), gzip(tail)].concat();
    let zst = [zstd::encode_all(head, 3).unwrap(), zstd::encode_all(tail, 3).unwrap()].concat();
    for path in [file("parts.trace.gz", &gz), file("parts.trace.zst", &zst)] {
        assert_eq!(Trace::open(&path).unwrap().events.len(), 8, "{}", path.display());
    }
}

#[test]
fn damaged_files_are_refused_with_a_reason() {
    let long: String = (0..20_000).map(|id| format!("a {id} {} 0\n", id * 7919 % 65_537)).collect();
    let zst = zstd::encode_all(long.as_bytes(), 3).unwrap();
    let gz = gzip(long.as_bytes());
    for (name, bytes, reason) in [
        ("cut.trace.zst", &zst[..zst.len() / 2], "ends too early"),
        ("cut.trace.gz", &gz[..gz.len() / 2], "ends too early"),
        ("empty.trace.gz", &[][..], "ends too early"),
        ("empty.trace.zst", &[][..], "ends too early"),
        ("empty.trace", &[][..], "holds no event"),
        ("text.trace.zst", SMALL.as_bytes(), "cannot be read"),
        ("text.trace.gz", SMALL.as_bytes(), "cannot be read"),
        ("zstd-inside.trace", &zst[..], "call it .trace.zst"),
        ("gzip-inside.trace", &gz[..], "call it .trace.gz"),
    ] {
        let path = file(name, bytes);
        let error = Trace::open(&path).expect_err(name);
        assert!(error.reason.contains(reason), "{error} should say {reason}");
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error} should name the file");
    }
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(SMALL.as_bytes()).unwrap();
    let mut changed = encoder.finish().unwrap();
    *changed.last_mut().unwrap() ^= 0x55;
    let error = Trace::open(&file("changed.trace.zst", &changed)).unwrap_err();
    assert!(error.reason.contains("cannot be read"), "{error}");
    let error = Trace::open(&file("cut-line.trace.zst", &zst[..zst.len() / 2])).unwrap_err();
    assert!(error.line > 1, "the line where it ends is named: {error}");
}

#[test]
fn a_folder_and_a_missing_file_are_refused() {
    let folder = repository_trace("");
    assert!(Trace::open(&folder).unwrap_err().reason.contains("cannot be read"));
    let error = Trace::open(&folder.join("none.trace")).unwrap_err();
    assert!(error.reason.contains("cannot be opened"));
    assert_eq!(error.line, 0);
}

#[test]
fn the_traces_of_the_repository_are_what_their_headers_say() {
    for (name, events, peak_live) in [("T0", 261, 35_026_952), ("T1", 122_139, 55_939_301_824)] {
        let trace = Trace::open(&repository_trace(&format!("{name}.trace.zst"))).unwrap();
        assert_eq!(trace.name, name);
        assert_eq!((trace.events.len(), trace.peak_live), (events, peak_live));
        assert_eq!(trace.metadata("events"), Some(events.to_string().as_str()));
        assert_eq!(trace.header_disagreements(), Vec::<String>::new());
        assert_eq!(trace.streams, [0]);
        assert_eq!(trace.labels.last().map(String::as_str), Some("teardown"));
        let frees = trace.events.iter().filter(|event| matches!(event, Event::Free { .. })).count();
        assert_eq!(frees, trace.blocks, "nothing is left live");
    }
}
