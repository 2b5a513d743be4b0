//! Random values and random bytes.

use ascend_alloc::snapshot_file::{Document, Limits, Node, NodeId, Tree, TreeBuilder, json, pickle};
use proptest::prelude::*;

use super::sample::{pickled, read};

/// A value on its own.
#[derive(Clone, Debug)]
enum Value {
    Leaf(Node),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Dict(Vec<(String, Value)>),
    /// The same value so many times over, shared.
    Shared(Box<Value>, usize),
}

fn values() -> impl Strategy<Value = Value> {
    let edges = prop_oneof![
        Just(0),
        Just(255),
        Just(256),
        Just(65535),
        Just(65536),
        Just(i128::from(i32::MAX)),
        Just(i128::from(i32::MAX) + 1),
        Just(i128::from(i32::MIN)),
        Just(i128::from(i32::MIN) - 1),
        Just(i128::from(i64::MIN)),
        Just(i128::from(u64::MAX)),
        Just(i128::MIN),
        Just(i128::MAX),
        any::<i128>(),
        any::<i64>().prop_map(i128::from),
        any::<i16>().prop_map(i128::from),
    ];
    let text = prop_oneof![any::<String>(), "[a-z]{250,260}", "[a-z]{1,3}"];
    let leaf = prop_oneof![
        Just(Node::None),
        any::<bool>().prop_map(Node::Bool),
        edges.prop_map(|value| i64::try_from(value).map_or_else(|_| Node::Wide(Box::new(value)), Node::Int)),
        any::<f64>().prop_map(Node::Float),
        text.prop_map(|text| Node::Text(text.into())),
    ];
    leaf.prop_map(Value::Leaf).prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Tuple),
            prop::collection::vec((any::<String>(), inner.clone()), 0..8).prop_map(Value::Dict),
            (inner, 0..4_usize).prop_map(|(value, times)| Value::Shared(Box::new(value), times)),
        ]
    })
}

fn add(builder: &mut TreeBuilder, value: &Value) -> NodeId {
    let mut all = |items: &[Value]| items.iter().map(|item| add(builder, item)).collect();
    let node = match value {
        Value::Leaf(node) => node.clone(),
        Value::List(items) => Node::List(all(items)),
        Value::Tuple(items) => Node::Tuple(all(items)),
        Value::Shared(value, times) => {
            let id = add(builder, value);
            Node::List(vec![id; *times])
        }
        Value::Dict(pairs) => Node::Dict(
            pairs
                .iter()
                .map(|(key, value)| (builder.text(key).expect("within the limits"), add(builder, value)))
                .collect(),
        ),
    };
    builder.push(node).expect("within the limits")
}

fn tree(value: &Value) -> Tree {
    let mut builder = TreeBuilder::new(Limits::default());
    let root = add(&mut builder, value);
    builder.finish(root).expect("not deep")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_tree_comes_back_from_both_pickles(value in values()) {
        let tree = tree(&value);
        for protocol in [pickle::Protocol::Two, pickle::Protocol::Four] {
            prop_assert_eq!(&read(&pickled(&tree, protocol)), &tree);
        }
        let mut text = Vec::new();
        json::write(&tree, &mut text).expect("writing to memory");
        prop_assert!(core::str::from_utf8(&text).is_ok_and(|text| text.lines().count() == 1));
    }

    #[test]
    fn random_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = pickle::read(&bytes, &Limits::default()) {
            prop_assert!(error.offset.is_none_or(|at| at <= bytes.len() as u64));
            prop_assert!(!error.reason.is_empty());
        }
    }

    #[test]
    fn random_opcodes_are_read_or_refused(
        opcodes in prop::collection::vec(prop::sample::select(&b"(01NK\x01\x07]}l)t\x85\x86\x87dsuaeq\x00h\x01r2\x94\x88\x8f\x90\x91X\x01\x00\x00\x00a"[..]), 0..300)
    ) {
        let bytes = [&opcodes[..], b"."].concat();
        if let Ok(tree) = pickle::read(&bytes, &Limits::default()) {
            // Sets come back as tuples.
            let again = read(&pickled(&tree, pickle::Protocol::Four));
            prop_assert_eq!(again.written_out(), tree.written_out());
            let _meaning = Document::from_tree(&tree);
        }
    }
}
