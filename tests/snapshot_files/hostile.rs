//! Pickles that are cut, wrong, or meant to do harm.

use std::fmt::Write;

use ascend_alloc::snapshot_file::{Action, Document, Limits, Node, json, pickle};

use super::sample::{self, document, pickled};

fn refused(bytes: &[u8], part: &str) -> String {
    let error = pickle::read(bytes, &Limits::default()).expect_err(part).to_string();
    assert!(error.contains(part), "{error:?} should say {part:?}");
    error
}

#[test]
fn every_cut_is_refused() {
    let tree = document().to_tree().unwrap();
    for protocol in [pickle::Protocol::Two, pickle::Protocol::Four] {
        let bytes = pickled(&tree, protocol);
        for len in 0..bytes.len() {
            let error = pickle::read(&bytes[..len], &Limits::default()).expect_err("a cut pickle");
            assert!(error.offset.is_some_and(|at| at <= len as u64), "{error}");
        }
    }
}

#[test]
fn every_changed_byte_is_read_or_refused() {
    let bytes = pickled(&document().to_tree().unwrap(), pickle::Protocol::Two);
    let (mut read, mut not) = (0, 0);
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            match pickle::read(&changed, &Limits::default()).and_then(|tree| Document::from_tree(&tree)) {
                Ok(_) => read += 1,
                Err(error) => {
                    assert!(!error.reason.is_empty());
                    not += 1;
                }
            }
        }
    }
    // Some changes are of numbers, some of opcodes.
    assert!(read > 1000 && not > 1000, "{read} read, {not} refused");
}

#[test]
fn programs_are_refused_by_opcode_and_place_and_not_run() {
    let error = refused(b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00true\x85R.", "it was not run");
    assert_eq!(error, "at byte 2: GLOBAL names os.system: this is a program, not data; it was not run");
    refused(b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "at byte 14: STACK_GLOBAL");
    refused(b"cos\n", "GLOBAL: this is a program");
    for (code, name) in [
        (&b"NNR."[..], "at byte 2: REDUCE"),
        (b"NNb.", "BUILD"),
        (b"(ios\nsystem\n.", "INST"),
        (b"(No.", "OBJ"),
        (b"NN\x81.", "NEWOBJ"),
        (b"NNN\x92.", "NEWOBJ_EX"),
        (b"\x82\x01.", "EXT1"),
        (b"\x83\x01\x00.", "EXT2"),
        (b"\x84\x01\x00\x00\x00.", "EXT4"),
        (b"P1\n.", "PERSID"),
        (b"NQ.", "BINPERSID"),
        (b"\x97.", "NEXT_BUFFER"),
        (b"N\x98.", "READONLY_BUFFER"),
    ] {
        refused(code, name);
    }
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    refused(b"", "at byte 0: the pickle ends");
    refused(b"PK\x03\x04", "PERSID");
    refused(b"\x1f\x8b\x08", "at byte 0: this is no pickle");
    refused(b"N\xffN.", "at byte 1: 0xff is no opcode");
    refused(b"\x80\x06N.", "protocol 6");
    refused(b".", "needs more values");
    refused(b"(.", "needs more values");
    refused(b"N(a.", "needs more values");
    refused(b"]a.", "needs more values");
    refused(b"Na.", "needs more values");
    refused(b"NNa.", "values are added to None");
    refused(b"](K\x01\x90.", "values are added to a list");
    refused(b"\x8f(K\x01e.", "values are added to a set");
    refused(b"]NNs.", "keys are set in a list");
    refused(b"}(Nu.", "a key without a value");
    refused(b"}]Ns.", "a list is the key");
    refused(b"N\x86.", "needs more values");
    refused(b"e.", "there is no mark");
    refused(b"h\x00.", "value 0 of the memo was never put there");
    refused(b"Np-1\n.", "no number of the memo");
    refused(b"I12", "ends inside of a line");
    refused(b"Ixyz\n.", "no whole number");
    refused(b"\x8a\x11AAAAAAAAAAAAAAAAA.", "a number of 17 bytes");
    refused(b"\x95\xff\xff\xff\xff\x00\x00\x00\x00N.", "a frame of 4294967295 bytes");
    // A length that is only claimed takes no memory.
    refused(b"X\xff\xff\xff\xffabc", "4294967295 more bytes belong, 3 are left");
    refused(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "more bytes belong, 3 are left");
    refused(b"]q\x00h\x00a.", "holds itself");
    refused(b"]q\x00(h\x00te.", "there is no mark");
    refused(b"}q\x00K\x01h\x00\x85s.", "holds itself");
}

#[test]
fn what_the_opcodes_of_all_protocols_mean() {
    let means = |bytes: &[u8], shown: &str| {
        let mut text = Vec::new();
        json::write(&sample::read(bytes), &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().trim_end(), shown, "{bytes:?}");
    };
    means(b"(lp0\nI1\naI01\naL-5L\naF2.5\naS'it\\'s'\nag0\n0N\x85.", "[null]");
    means(
        b"(lp0\nI1\naI01\naL-5L\naF2.5\naS'it\\'s'\naVsnow \\u2603\na.",
        r#"[1,true,-5,2.5,"it's","snow ☃"]"#,
    );
    means(b"(dp0\nS'a'\nI1\ns.", r#"{"a":1}"#);
    means(b"(K\x01K\x02d.", r#"{"1":2}"#);
    means(b"(NK\x011N.", "null");
    means(b"(0K\x01.", "1");
    means(b"K\x012\x86.", "[1,1]");
    means(
        b"](J\xfe\xff\xff\xffM\x00\x01\x8a\x02\x00\x80\x8a\x00\x8b\x03\x00\x00\x00\x01\x00\x00e.",
        "[-2,256,-32768,0,1]",
    );
    means(b"(U\x01aT\x01\x00\x00\x00bC\x01\x02B\x01\x00\x00\x00\x03t.", r#"["a","b",[2],[3]]"#);
    means(b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00\x07.", "[7]");
    means(b"\x8f(K\x01K\x02\x90.", "[1,2]");
    means(b"(K\x01\x91.", "[1]");
    means(b"Nr\xff\xff\xff\xff0j\xff\xff\xff\xff.", "null");
    means(b"G\x7f\xf8\x00\x00\x00\x00\x00\x00.", "null");
    means(b"X\x03\x00\x00\x00\xed\xa0\x80.", "\"\u{fffd}\u{fffd}\u{fffd}\"");
    // What follows the end is not looked at, such as what PyTorch pads with.
    means(b"K\x05.\x00\x00", "5");
}

#[test]
fn sets_and_bytes_are_written_as_tuples_also_where_they_are_keys() {
    let tree = sample::read(b"}(\x8f(K\x01K\x02\x90C\x02\x00\xff(K\x01\x91N\x8fNu.");
    for protocol in [pickle::Protocol::Two, pickle::Protocol::Four] {
        let mut text = Vec::new();
        json::write(&sample::read(&pickled(&tree, protocol)), &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "{\"[1,2]\":[0,255],\"[1]\":null,\"[]\":null}\n");
    }
}

/// A list of ten times the list before, and so on: small to write down, 10^levels values.
fn nested_sharing(levels: usize) -> Vec<u8> {
    let mut bytes = b"\x80\x04]\x94".to_vec();
    for level in 0..levels {
        bytes.extend(b"](");
        for _ in 0..10 {
            bytes.extend([b'h', level as u8]);
        }
        bytes.extend(b"e\x94");
    }
    bytes.push(b'.');
    bytes
}

#[test]
fn sharing_does_not_grow() {
    let tree = sample::read(&nested_sharing(60));
    assert_eq!((tree.len(), tree.written_out()), (61, u64::MAX));
    // It can be written as it is; not with everything written out.
    assert!(pickled(&tree, pickle::Protocol::Four).len() < 2500);
    let error = json::write(&tree, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("2^32 values"), "{error}");
    // Long texts that are shared count by their length.
    let long =
        [&b"](X\x40\x42\x0f\x00"[..], &b"x".repeat(1_000_000), b"q\x00", &b"h\x00".repeat(100_000), b"e."]
            .concat();
    let tree = sample::read(&long);
    assert!(json::write(&tree, &mut Vec::new()).unwrap_err().to_string().contains("2^32 values"));
    assert!(pickled(&tree, pickle::Protocol::Two).len() < 2_000_000);
    // Nor does it get to mean more than it says.
    let mut text = String::from("(dS'segments'\n(l");
    text.push_str("(dS'address'\nI0\nsS'blocks'\n(l(dS'size'\nI1\nsS'state'\nS'inactive'\nsp0\na");
    for _ in 0..4000 {
        text.push_str("g0\na");
    }
    text.push_str("sp1\na");
    for _ in 0..4000 {
        write!(text, "g1\na").unwrap();
    }
    text.push_str("s.");
    let error = Document::from_tree(&sample::read(text.as_bytes())).unwrap_err();
    assert!(error.reason.contains("out of all proportion"), "{error}");
}

#[test]
fn nesting_is_limited() {
    let nested = |levels: usize| {
        let mut bytes = vec![b'N'];
        bytes.extend(vec![0x85; levels - 1]);
        bytes.push(b'.');
        bytes
    };
    assert!(pickle::read(&nested(64), &Limits::default()).is_ok());
    refused(&nested(65), "nested deeper than 64 levels");
    refused(&nested(1_000_000), "nested deeper");
    let lists = [&b"]".repeat(1_000_000)[..], &b"a".repeat(999_999), b"."].concat();
    refused(&lists, "nested deeper");
    refused(&b"(".repeat(1_000_000), "at byte 1000: more than 1000 open marks");
    refused(&b"(".repeat(1000), "ends where 1 more byte belongs, 0 are left");
    // More depth than this is never allowed, since trees are walked by recursion.
    let limits = Limits { depth: u32::MAX, ..Limits::default() };
    assert!(pickle::read(&nested(200), &limits).is_ok());
    assert!(pickle::read(&nested(201), &limits).is_err());
}

#[test]
fn length_and_number_of_values_are_limited() {
    let limits = Limits { bytes: 10, ..Limits::default() };
    let error = pickle::read(&[b'N'; 11], &limits).unwrap_err();
    assert_eq!(error.to_string(), "11 bytes, and the limit is 10");
    let limits = Limits { nodes: 1000, ..Limits::default() };
    for bytes in [b"]".repeat(2000), [&b"]("[..], &b"N".repeat(2000), b"e."].concat(), b"N\x85".repeat(2000)]
    {
        let error = pickle::read(&bytes, &limits).unwrap_err();
        assert!(error.reason.contains("more than 1000 values"), "{error}");
    }
    // Nor may the stack or the memo hold one value more often: these bytes may have been a few when they were
    // compressed.
    for again in [&b"2"[..], b"h\x00", b"\x94"] {
        let bytes = [&b"]q\x00"[..], &again.repeat(2000), b"."].concat();
        let error = pickle::read(&bytes, &limits).unwrap_err();
        assert!(error.reason.contains("more than 1000 values"), "{again:?}: {error}");
    }
}

#[test]
fn what_is_data_but_no_snapshot_is_refused() {
    let refused = |bytes: &[u8], part: &str| {
        let error = Document::from_tree(&sample::read(bytes)).unwrap_err();
        assert!(error.reason.contains(part), "{error} should say {part}");
    };
    refused(b"K\x01.", "this is a number, not the dictionary of a snapshot");
    refused(b"}.", "without segments and device_traces");
    refused(b"}X\x08\x00\x00\x00segmentsK\x01s.", "segments: a number where a list belongs");
    refused(
        b"}X\x0d\x00\x00\x00device_traces](K\x01es.",
        "the trace of a device: a number where a list belongs",
    );
    let many = [&b"}X\x0d\x00\x00\x00device_traces]("[..], &b"]".repeat(5000), b"es."].concat();
    refused(&many, "traces of 5000 devices");
}

#[test]
fn parts_that_make_no_sense_are_left_out_and_counted() {
    let text = "(dS'segments'\n(lI7\na(dS'address'\nI8\nsaNasS'device_traces'\n(l(l\
        (dS'action'\nS'alloc'\nsa(dS'action'\nS'alloc'\nsS'addr'\nI-1\nsS'size'\nI5\nsa\
        (dS'action'\nS'alloc'\nsS'addr'\nI1\nsS'size'\nI-5\nsa\
        (dS'action'\nS'alloc'\nsS'addr'\nI-16\nsS'size'\nI5\nsa\
        (dS'action'\nS'never heard of'\nsaI1\naas.";
    let document = Document::from_tree(&sample::read(text.as_bytes())).unwrap();
    assert_eq!(
        document.warnings,
        [
            "3 segments without address, size or blocks were left out",
            "4 events without action, address or size were left out"
        ]
    );
    let trace = &document.device_traces[0];
    // A negative address is one above 2^63.
    assert_eq!((trace.len(), trace[0].addr, trace[0].size), (2, u64::MAX - 15, 5));
    assert_eq!(trace[1].action, Action::Other("never heard of".into()));
    assert!(matches!(sample::read(b"N.").node(sample::read(b"N.").root()), Node::None));
}
