//! JSON as the values of a snapshot.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use ascend_alloc::snapshot_file::{FileError, Limits, Node, NodeId, Tree, TreeBuilder};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Reads JSON. Pools become pairs again, as in a pickle; JSON has lists only.
///
/// # Errors
/// It is no JSON, or passes a limit.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Tree, String> {
    if bytes.len() as u64 > limits.bytes {
        return Err(format!("{} bytes, and the limit is {}", bytes.len(), limits.bytes));
    }
    let builder = RefCell::new(Builder { tree: TreeBuilder::new(*limits), keys: HashMap::new() });
    let mut input = serde_json::Deserializer::from_slice(bytes);
    let root =
        Seed { builder: &builder, pair: false }.deserialize(&mut input).map_err(|error| error.to_string())?;
    input.end().map_err(|error| error.to_string())?;
    builder.into_inner().tree.finish(root).map_err(|error| error.to_string())
}

struct Builder {
    tree: TreeBuilder,
    /// Keys of dictionaries are the same few texts.
    keys: HashMap<String, NodeId>,
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    builder: &'a RefCell<Builder>,
    /// Whether a list is a pair.
    pair: bool,
}

impl Seed<'_> {
    fn push<E: Error>(self, node: Node) -> Result<NodeId, E> {
        self.builder.borrow_mut().tree.push(node).map_err(refused)
    }
}

fn refused<E: Error>(error: FileError) -> E {
    E::custom(error.reason)
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = NodeId;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<NodeId, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = NodeId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<NodeId, E> {
        self.push(Node::None)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<NodeId, E> {
        self.push(Node::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<NodeId, E> {
        self.push(Node::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<NodeId, E> {
        self.builder.borrow_mut().tree.int(value.into()).map_err(refused)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<NodeId, E> {
        self.push(Node::Float(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NodeId, E> {
        self.push(Node::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NodeId, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(Seed { pair: false, ..self })? {
            items.push(item);
        }
        self.push(if self.pair { Node::Tuple(items) } else { Node::List(items) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NodeId, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let pair = matches!(key.as_str(), "segment_pool_id" | "pool_id");
            let value = map.next_value_seed(Seed { pair, ..self })?;
            let mut builder = self.builder.borrow_mut();
            let id = match builder.keys.get(&key) {
                Some(&id) => id,
                None => {
                    let id = builder.tree.text(&key).map_err(refused)?;
                    builder.keys.insert(key, id);
                    id
                }
            };
            pairs.push((id, value));
        }
        self.push(Node::Dict(pairs))
    }
}

#[cfg(test)]
mod tests {
    use ascend_alloc::snapshot_file::json;

    use super::*;

    fn again(text: &str) -> String {
        let tree = read(text.as_bytes(), &Limits::default()).expect(text);
        let mut out = Vec::new();
        json::write(&tree, &mut out).expect("writing to memory");
        String::from_utf8(out).expect("text").trim_end().to_owned()
    }

    #[test]
    fn json_comes_back() {
        for text in [
            "null",
            r#"[1,-1,18446744073709551615,1.5,true,false,"a\"\\\n\u0001é"]"#,
            r#"{"segments":[{"segment_pool_id":[0,3],"pool_id":null}],"a":{"a":{}}}"#,
        ] {
            assert_eq!(again(text), text);
        }
        assert_eq!(again(" [ 1 , 2 ] \n"), "[1,2]");
        let tree = read(br#"{"pool_id":[0,3]}"#, &Limits::default()).unwrap();
        assert_eq!(tree.node(tree.get(tree.root(), "pool_id").unwrap()).kind(), "a tuple");
    }

    #[test]
    fn what_is_no_json_is_refused_with_line_and_column() {
        let refused = |text: &str, part: &str| {
            let error = read(text.as_bytes(), &Limits { nodes: 50, ..Limits::default() }).unwrap_err();
            assert!(error.contains(part), "{error} should say {part}");
        };
        refused("[1,", "EOF while parsing");
        refused("[1] 2", "trailing characters at line 1 column 5");
        refused("{\"a\":\nnul}", "line 2");
        refused(
            "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]",
            "more than 50 values",
        );
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let error = read(deep.as_bytes(), &Limits::default()).unwrap_err();
        assert!(error.contains("deeper than 64"), "{error}");
        let deep = "[".repeat(100_000);
        assert!(read(deep.as_bytes(), &Limits::default()).unwrap_err().contains("recursion limit"));
    }
}
