//! The writer: some 25 opcodes, all of which PyTorch's web page for snapshots knows too.

use std::io::{self, Write};

use hashbrown::HashMap;

use super::super::tree::{Node, NodeId, Tree};
use super::opcode as op;

/// Which pickle is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Protocol 2: Python 2.3 and later.
    Two,
    /// Protocol 4: Python 3.4 and later; smaller.
    #[default]
    Four,
}

/// Values that one opcode adds at most, as in Python. Readers keep them on a stack.
const BATCH: usize = 1000;
/// A frame is closed at the first value behind so many bytes.
const FRAME_BYTES: usize = 64 << 10;

/// Writes a tree as a pickle. Texts, and what is shared in the tree, are written once and referred to.
///
/// Sets are written as tuples and bytes as tuples of numbers: PyTorch's page knows neither, and snapshots have none.
///
/// # Errors
/// What `out` answers, and [`io::ErrorKind::InvalidData`] for a text above 4 GiB or more than 2^32 memoised values.
pub fn write(tree: &Tree, protocol: Protocol, out: &mut impl Write) -> io::Result<()> {
    let version = if protocol == Protocol::Four { 4 } else { 2 };
    out.write_all(&[op::PROTO, version])?;
    let mut writer = Writer {
        tree,
        protocol,
        references: tree.references(),
        texts: HashMap::new(),
        places: HashMap::new(),
        memoised: 0,
        frame: Vec::new(),
        out,
    };
    writer.value(tree.root())?;
    writer.frame.push(op::STOP);
    writer.flush()
}

struct Writer<'a, W> {
    tree: &'a Tree,
    protocol: Protocol,
    references: Vec<u32>,
    /// Numbers of the memo.
    texts: HashMap<&'a str, u32>,
    places: HashMap<NodeId, u32>,
    memoised: u32,
    frame: Vec<u8>,
    out: &'a mut W,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Writes a value. A tree is not deep, so this may recurse.
    fn value(&mut self, id: NodeId) -> io::Result<()> {
        if let Some(&number) = self.places.get(&id) {
            self.get(number);
            return Ok(());
        }
        let tree = self.tree;
        match tree.node(id) {
            Node::None => self.frame.push(op::NONE),
            Node::Bool(true) => self.frame.push(op::NEWTRUE),
            Node::Bool(false) => self.frame.push(op::NEWFALSE),
            Node::Int(value) => self.int(i128::from(*value)),
            Node::Wide(value) => self.int(**value),
            Node::Float(value) => {
                self.frame.push(op::BINFLOAT);
                self.frame.extend(value.to_be_bytes());
            }
            Node::Text(text) => self.text(id, text)?,
            Node::Bytes(bytes) => {
                self.frame.push(op::MARK);
                bytes.iter().for_each(|&byte| self.int(byte.into()));
                self.frame.push(op::TUPLE);
                self.memoise_shared(id)?;
            }
            Node::List(items) => {
                self.frame.push(op::EMPTY_LIST);
                self.memoise_shared(id)?;
                for batch in items.chunks(BATCH) {
                    self.frame.push(op::MARK);
                    for &item in batch {
                        self.value(item)?;
                    }
                    self.frame.push(op::APPENDS);
                }
            }
            Node::Tuple(items) | Node::Set(items) => self.tuple(id, items)?,
            Node::Dict(pairs) => {
                self.frame.push(op::EMPTY_DICT);
                self.memoise_shared(id)?;
                for batch in pairs.chunks(BATCH) {
                    self.frame.push(op::MARK);
                    for &(key, value) in batch {
                        self.value(key)?;
                        self.value(value)?;
                    }
                    self.frame.push(op::SETITEMS);
                }
            }
        }
        if self.frame.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn tuple(&mut self, id: NodeId, items: &[NodeId]) -> io::Result<()> {
        if items.len() > 3 {
            self.frame.push(op::MARK);
        }
        for &item in items {
            self.value(item)?;
        }
        self.frame.push(match items.len() {
            0 => op::EMPTY_TUPLE,
            1 => op::TUPLE1,
            2 => op::TUPLE2,
            3 => op::TUPLE3,
            _ => op::TUPLE,
        });
        self.memoise_shared(id)
    }

    fn int(&mut self, value: i128) {
        if let Ok(small) = u8::try_from(value) {
            self.frame.extend([op::BININT1, small]);
        } else if let Ok(small) = u16::try_from(value) {
            self.frame.push(op::BININT2);
            self.frame.extend(small.to_le_bytes());
        } else if let Ok(small) = i32::try_from(value) {
            self.frame.push(op::BININT);
            self.frame.extend(small.to_le_bytes());
        } else {
            let bytes = value.to_le_bytes();
            // The bytes that repeat the sign of the one below are left out.
            let mut len = bytes.len();
            while len > 1 {
                let (top, below) = (bytes[len - 1], bytes[len - 2]);
                if !(top == 0 && below < 0x80 || top == 0xff && below >= 0x80) {
                    break;
                }
                len -= 1;
            }
            // At most 16.
            self.frame.extend([op::LONG1, len as u8]);
            self.frame.extend(&bytes[..len]);
        }
    }

    fn text(&mut self, id: NodeId, text: &'a str) -> io::Result<()> {
        if let Some(&number) = self.texts.get(text) {
            self.places.insert(id, number);
            self.get(number);
            return Ok(());
        }
        if let (Protocol::Four, Ok(short)) = (self.protocol, u8::try_from(text.len())) {
            self.frame.extend([op::SHORT_BINUNICODE, short]);
        } else {
            let len = u32::try_from(text.len()).map_err(|_| invalid("a text of more than 4 GiB"))?;
            self.frame.push(op::BINUNICODE);
            self.frame.extend(len.to_le_bytes());
        }
        self.frame.extend(text.as_bytes());
        let number = self.memoise()?;
        self.texts.insert(text, number);
        // So that a long text which is shared is not looked at each time.
        self.places.insert(id, number);
        Ok(())
    }

    /// Puts the value in hand into the memo if it is referred to again.
    fn memoise_shared(&mut self, id: NodeId) -> io::Result<()> {
        if self.references.get(id.0 as usize).is_some_and(|&count| count > 1) {
            let number = self.memoise()?;
            self.places.insert(id, number);
        }
        Ok(())
    }

    fn memoise(&mut self) -> io::Result<u32> {
        let number = self.memoised;
        self.memoised = number.checked_add(1).ok_or_else(|| invalid("more than 2^32 memoised values"))?;
        if self.protocol == Protocol::Four {
            self.frame.push(op::MEMOIZE);
        } else if let Ok(short) = u8::try_from(number) {
            self.frame.extend([op::BINPUT, short]);
        } else {
            self.frame.push(op::LONG_BINPUT);
            self.frame.extend(number.to_le_bytes());
        }
        Ok(number)
    }

    fn get(&mut self, number: u32) {
        if let Ok(short) = u8::try_from(number) {
            self.frame.extend([op::BINGET, short]);
        } else {
            self.frame.push(op::LONG_BINGET);
            self.frame.extend(number.to_le_bytes());
        }
    }

    /// Writes what has come together, in protocol 4 as a frame.
    fn flush(&mut self) -> io::Result<()> {
        if self.protocol == Protocol::Four {
            self.out.write_all(&[op::FRAME])?;
            self.out.write_all(&(self.frame.len() as u64).to_le_bytes())?;
        }
        self.out.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use crate::snapshot_file::Limits;
    use crate::snapshot_file::tree::TreeBuilder;

    /// The first 256 values that come again have short numbers in protocol 2, the others long ones.
    #[test]
    fn more_values_than_short_numbers_come_again() {
        let mut builder = TreeBuilder::new(Limits::default());
        let texts: Vec<NodeId> =
            (0..600).map(|number| builder.text(&format!("frame {number}")).unwrap()).collect();
        let twice: Vec<NodeId> = texts.iter().chain(texts.iter().rev()).copied().collect();
        let root = builder.push(Node::List(twice)).unwrap();
        let tree = builder.finish(root).unwrap();
        let mut sizes = Vec::new();
        for protocol in [Protocol::Two, Protocol::Four] {
            let mut bytes = Vec::new();
            write(&tree, protocol, &mut bytes).unwrap();
            let back = read(&bytes, &Limits::default()).unwrap();
            assert_eq!(back, tree);
            assert_eq!(back.len(), 601, "what is shared stays shared");
            sizes.push(bytes.len());
        }
        assert!(sizes.iter().all(|&size| size < 20_000), "each text is written once: {sizes:?}");
    }
}
