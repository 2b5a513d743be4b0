//! Snapshots as JSON text.

use std::io::{self, Write};

use super::tree::{Node, NodeId, Tree};

/// Most that is written ([`Tree::written_out`]); about 100 GB of text.
const MOST: u64 = 1 << 32;

/// Writes a tree as JSON on one line, with a line end behind it.
///
/// Tuples and sets become lists, bytes lists of numbers, numbers that are no number or infinite `null`, keys that
/// are no text their JSON text. What the tree shares is written out each time.
///
/// # Errors
/// What `out` answers, and [`io::ErrorKind::InvalidData`] for more than 2^32 values when written out.
pub fn write(tree: &Tree, out: &mut impl Write) -> io::Result<()> {
    if tree.written_out() > MOST {
        let reason = "more than 2^32 values when everything shared is written out; write a pickle instead";
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    value(tree, tree.root(), out)?;
    out.write_all(b"\n")
}

/// Writes a value. A tree is not deep, so this may recurse.
fn value(tree: &Tree, id: NodeId, out: &mut impl Write) -> io::Result<()> {
    match tree.node(id) {
        Node::None => out.write_all(b"null"),
        Node::Bool(value) => write!(out, "{value}"),
        Node::Int(value) => write!(out, "{value}"),
        Node::Wide(value) => write!(out, "{value}"),
        // With a point or an exponent, so that it is read as a number with a fraction again.
        Node::Float(value) if value.is_finite() => write!(out, "{value:?}"),
        Node::Float(_) => out.write_all(b"null"),
        Node::Text(value) => text(value, out),
        Node::Bytes(bytes) => list(bytes, out, |byte, out| write!(out, "{byte}")),
        Node::List(items) | Node::Tuple(items) | Node::Set(items) => {
            list(items, out, |&item, out| value(tree, item, out))
        }
        Node::Dict(pairs) => {
            out.write_all(b"{")?;
            for (index, &(key, held)) in pairs.iter().enumerate() {
                if index > 0 {
                    out.write_all(b",")?;
                }
                if let Some(key) = tree.text(key) {
                    text(key, out)?;
                } else {
                    let mut shown = Vec::new();
                    value(tree, key, &mut shown)?;
                    text(&String::from_utf8_lossy(&shown), out)?;
                }
                out.write_all(b":")?;
                value(tree, held, out)?;
            }
            out.write_all(b"}")
        }
    }
}

fn list<T, W: Write>(
    items: &[T],
    out: &mut W,
    each: impl Fn(&T, &mut W) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(b"[")?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        each(item, out)?;
    }
    out.write_all(b"]")
}

fn text(text: &str, out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"\"")?;
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.write_all(&text.as_bytes()[plain..at])?;
        plain = at + 1;
        match byte {
            b'"' => out.write_all(b"\\\"")?,
            b'\\' => out.write_all(b"\\\\")?,
            b'\n' => out.write_all(b"\\n")?,
            _ => write!(out, "\\u{byte:04x}")?,
        }
    }
    out.write_all(&text.as_bytes()[plain..])?;
    out.write_all(b"\"")
}
