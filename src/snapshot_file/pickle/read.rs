//! The reader: a stack of values, a memo, and no way to make anything but data.

use hashbrown::HashMap;

use super::super::tree::{Node, NodeId, Tree, TreeBuilder};
use super::super::{FileError, Limits};
use super::old;
use super::opcode as op;
use crate::words::counted;

/// Reads a pickle of protocols 0 to 5. What follows its end is not looked at.
///
/// Texts with halves of surrogate pairs get U+FFFD in their place. Whole numbers beyond 128 bits are refused.
///
/// # Errors
/// The bytes are no pickle, end too early, hold something else than data (objects, functions, references to
/// something outside: refused by opcode and offset, and never looked up), or pass a limit.
///
/// ```
/// use ascend_alloc::snapshot_file::{Limits, Node, pickle};
///
/// let tree = pickle::read(b"\x80\x04K\x07.", &Limits::default())?;
/// assert_eq!(tree.node(tree.root()), &Node::Int(7));
/// // A pickle that would run a command.
/// let error = pickle::read(b"cos\nsystem\n(S'true'\ntR.", &Limits::default()).unwrap_err();
/// assert_eq!(error.to_string(), "at byte 0: GLOBAL names os.system: this is a program, not data; it was not run");
/// # Ok::<(), ascend_alloc::snapshot_file::FileError>(())
/// ```
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Tree, FileError> {
    if bytes.len() as u64 > limits.bytes {
        let (has, limit) = (bytes.len(), limits.bytes);
        return Err(FileError::whole(format!("{has} bytes, and the limit is {limit}")));
    }
    Reader::new(bytes, limits).run()
}

/// Marks that may be open at a time. A writer has one for each list or dictionary that it is in, and those are not
/// nested so deep.
const MOST_MARKS: usize = 1000;

struct Reader<'a> {
    bytes: &'a [u8],
    /// Where the next byte is read.
    at: usize,
    /// Where the opcode in hand began.
    start: usize,
    tree: TreeBuilder,
    stack: Vec<NodeId>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: Memo,
}

/// Numbers of the memo are given in turn by all known writers; others are kept too.
#[derive(Default)]
struct Memo {
    dense: Vec<NodeId>,
    sparse: HashMap<u32, NodeId>,
}

impl Memo {
    fn put(&mut self, number: u32, id: NodeId) {
        let place = number as usize;
        if place < self.dense.len() {
            self.dense[place] = id;
        } else if place == self.dense.len() {
            self.dense.push(id);
        } else {
            self.sparse.insert(number, id);
        }
    }

    fn get(&self, number: u32) -> Option<NodeId> {
        self.dense.get(number as usize).or_else(|| self.sparse.get(&number)).copied()
    }

    fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }
}

/// What an opcode led to.
type Step = Result<(), FileError>;

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], limits: &Limits) -> Self {
        Reader {
            bytes,
            at: 0,
            start: 0,
            tree: TreeBuilder::new(*limits),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
        }
    }

    fn run(mut self) -> Result<Tree, FileError> {
        loop {
            self.start = self.at;
            let opcode = self.take(1)?[0];
            if opcode == op::STOP {
                let root = self.pop()?;
                return self.tree.finish(root);
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Step {
        match opcode {
            op::PROTO | op::FRAME => self.header(opcode),
            op::MARK => {
                if self.marks.len() >= MOST_MARKS {
                    return Err(self.wrong(format!("more than {MOST_MARKS} open marks, which is the limit")));
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::POP => self.pop_or_unmark(),
            op::POP_MARK => self.pop_mark().map(|_| ()),
            op::DUP => {
                let top = self.top()?;
                self.put_on_stack(top)
            }
            op::NONE => self.push(Node::None),
            op::NEWTRUE => self.push(Node::Bool(true)),
            op::NEWFALSE => self.push(Node::Bool(false)),
            op::EMPTY_LIST => self.push(Node::List(Vec::new())),
            op::EMPTY_TUPLE => self.push(Node::Tuple(Vec::new())),
            op::EMPTY_DICT => self.push(Node::Dict(Vec::new())),
            op::EMPTY_SET => self.push(Node::Set(Vec::new())),
            op::TUPLE1 => self.tuple(1),
            op::TUPLE2 => self.tuple(2),
            op::TUPLE3 => self.tuple(3),
            op::LIST | op::TUPLE | op::DICT | op::FROZENSET => self.collect(opcode),
            op::APPEND | op::APPENDS | op::ADDITEMS => self.append(opcode),
            op::SETITEM | op::SETITEMS => self.set_items(opcode),
            op::PUT | op::BINPUT | op::LONG_BINPUT | op::MEMOIZE => self.put(opcode),
            op::GET | op::BINGET | op::LONG_BINGET => self.get(opcode),
            _ => self.scalar(opcode),
        }
    }

    /// Numbers and texts.
    fn scalar(&mut self, opcode: u8) -> Step {
        let node = match opcode {
            op::BININT1 => Node::Int(self.take(1)?[0].into()),
            op::BININT2 => Node::Int(self.fixed::<2>().map(u16::from_le_bytes)?.into()),
            op::BININT => Node::Int(self.fixed::<4>().map(i32::from_le_bytes)?.into()),
            op::LONG1 | op::LONG4 => self.long(opcode)?,
            op::BINFLOAT => Node::Float(self.fixed::<8>().map(f64::from_be_bytes)?),
            op::SHORT_BINUNICODE | op::BINUNICODE | op::BINUNICODE8 => old::text(self.counted(opcode)?),
            op::SHORT_BINSTRING | op::BINSTRING => old::text(self.counted(opcode)?),
            op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                Node::Bytes(self.counted(opcode)?.into())
            }
            op::INT | op::LONG => {
                let line = self.line()?;
                old::whole_number(line, opcode == op::LONG).map_err(|reason| self.wrong(reason))?
            }
            op::FLOAT => {
                let line = self.line()?;
                old::fraction(line).map_err(|reason| self.wrong(reason))?
            }
            op::UNICODE => {
                let line = self.line()?;
                old::raw_unicode(line).map_err(|reason| self.wrong(reason))?
            }
            op::STRING => {
                let line = self.line()?;
                old::quoted(line).map_err(|reason| self.wrong(reason))?
            }
            other => return Err(self.not_followed(other)),
        };
        self.push(node)
    }

    fn header(&mut self, opcode: u8) -> Step {
        if opcode == op::PROTO {
            let protocol = self.take(1)?[0];
            return if protocol <= 5 {
                Ok(())
            } else {
                Err(self.wrong(format!("protocol {protocol}, and 0 to 5 are known")))
            };
        }
        let length = self.fixed::<8>().map(u64::from_le_bytes)?;
        let left = (self.bytes.len() - self.at) as u64;
        if length > left {
            let (length, left) = (counted(length, "byte[s]"), counted(left, "[is|are] left"));
            return Err(self.wrong(format!("a frame of {length}, and {left}: the file was cut")));
        }
        Ok(())
    }

    fn long(&mut self, opcode: u8) -> Result<Node, FileError> {
        let bytes = self.counted(opcode)?;
        let len = bytes.len();
        if len > 16 {
            return Err(self.wrong(format!("a number of {len} bytes, and 16 is the limit")));
        }
        let negative = bytes.last().is_some_and(|&top| top >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 16];
        wide[..len].copy_from_slice(bytes);
        let value = i128::from_le_bytes(wide);
        Ok(i64::try_from(value).map_or_else(|_| Node::Wide(Box::new(value)), Node::Int))
    }

    /// The bytes behind a length of one, four or eight bytes.
    fn counted(&mut self, opcode: u8) -> Result<&'a [u8], FileError> {
        let len = match opcode {
            op::LONG1 | op::SHORT_BINUNICODE | op::SHORT_BINSTRING | op::SHORT_BINBYTES => {
                u64::from(self.take(1)?[0])
            }
            op::BINUNICODE8 | op::BINBYTES8 | op::BYTEARRAY8 => self.fixed::<8>().map(u64::from_le_bytes)?,
            // Python reads these two with a sign, and refuses what is negative; so far no file is that long.
            _ => self.fixed::<4>().map(u32::from_le_bytes)?.into(),
        };
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn tuple(&mut self, len: usize) -> Step {
        let from = self.stack.len().checked_sub(len).filter(|&from| from >= self.floor());
        let Some(from) = from else { return Err(self.too_few()) };
        let items = self.stack.split_off(from);
        self.push(Node::Tuple(items))
    }

    /// A list, tuple, dictionary or set of what is above the mark.
    fn collect(&mut self, opcode: u8) -> Step {
        let items = self.pop_mark()?;
        let node = match opcode {
            op::LIST => Node::List(items),
            op::TUPLE => Node::Tuple(items),
            op::DICT => Node::Dict(self.pairs(&items)?),
            _ => Node::Set(items),
        };
        self.push(node)
    }

    fn append(&mut self, opcode: u8) -> Step {
        let items = if opcode == op::APPEND { vec![self.pop()?] } else { self.pop_mark()? };
        self.tree.charge(items.len() as u64)?;
        let target = self.top()?;
        match (self.tree.node_mut(target), opcode) {
            (Some(Node::List(list)), op::APPEND | op::APPENDS) => list.extend(items),
            (Some(Node::Set(set)), op::ADDITEMS) => set.extend(items),
            (Some(node), _) => {
                let kind = node.kind();
                return Err(self.wrong(format!("values are added to {kind}")));
            }
            (None, _) => return Err(self.too_few()),
        }
        Ok(())
    }

    fn set_items(&mut self, opcode: u8) -> Step {
        let items = if opcode == op::SETITEM {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.pop_mark()?
        };
        let pairs = self.pairs(&items)?;
        self.tree.charge(items.len() as u64)?;
        let target = self.top()?;
        match self.tree.node_mut(target) {
            Some(Node::Dict(dict)) => dict.extend(pairs),
            Some(node) => {
                let kind = node.kind();
                return Err(self.wrong(format!("keys are set in {kind}")));
            }
            None => return Err(self.too_few()),
        }
        Ok(())
    }

    /// Keys and values; a key is a plain value or a tuple, as in Python.
    fn pairs(&self, items: &[NodeId]) -> Result<Vec<(NodeId, NodeId)>, FileError> {
        if !items.len().is_multiple_of(2) {
            return Err(self.wrong("a key without a value"));
        }
        let pairs: Vec<_> = items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        for &(key, _) in &pairs {
            if let Some(node @ (Node::List(_) | Node::Dict(_))) = self.tree.node(key) {
                return Err(self.wrong(format!("{} is the key of a dictionary", node.kind())));
            }
        }
        Ok(pairs)
    }

    fn put(&mut self, opcode: u8) -> Step {
        let number = match opcode {
            op::BINPUT => self.take(1)?[0].into(),
            op::LONG_BINPUT => self.fixed::<4>().map(u32::from_le_bytes)?,
            op::MEMOIZE => {
                u32::try_from(self.memo.len()).map_err(|_| self.wrong("more than 2^32 values in the memo"))?
            }
            _ => self.memo_line()?,
        };
        let top = self.top()?;
        self.tree.has_room_beside(self.memo.len())?;
        self.memo.put(number, top);
        Ok(())
    }

    fn get(&mut self, opcode: u8) -> Step {
        let number = match opcode {
            op::BINGET => self.take(1)?[0].into(),
            op::LONG_BINGET => self.fixed::<4>().map(u32::from_le_bytes)?,
            _ => self.memo_line()?,
        };
        let found = self.memo.get(number);
        let id =
            found.ok_or_else(|| self.wrong(format!("value {number} of the memo was never put there")))?;
        self.put_on_stack(id)
    }

    fn memo_line(&mut self) -> Result<u32, FileError> {
        let line = self.line()?;
        old::memo_number(line).map_err(|reason| self.wrong(reason))
    }

    fn push(&mut self, node: Node) -> Step {
        let id = self.tree.push(node)?;
        self.stack.push(id);
        Ok(())
    }

    /// Puts a value on the stack that has been counted when it was made.
    fn put_on_stack(&mut self, id: NodeId) -> Step {
        self.tree.has_room_beside(self.stack.len())?;
        self.stack.push(id);
        Ok(())
    }

    /// Height of the stack below which nothing may be taken: the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<NodeId, FileError> {
        if self.stack.len() > self.floor() {
            self.stack.last().copied().ok_or_else(|| self.too_few())
        } else {
            Err(self.too_few())
        }
    }

    fn pop(&mut self) -> Result<NodeId, FileError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// `POP` takes a mark where that is what is on top.
    fn pop_or_unmark(&mut self) -> Step {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(|_| ())
    }

    /// What is above the last mark, which goes too.
    fn pop_mark(&mut self) -> Result<Vec<NodeId>, FileError> {
        let Some(height) = self.marks.pop() else { return Err(self.wrong("there is no mark")) };
        Ok(self.stack.split_off(height))
    }

    /// The next bytes.
    fn take(&mut self, len: usize) -> Result<&'a [u8], FileError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..len) else {
            let more = counted(len as u64, "more byte[s] belong[s|]");
            let left = counted(rest.len() as u64, "[is|are] left");
            let reason = format!("the pickle ends where {more}, {left}");
            return Err(self.wrong(reason));
        };
        self.at += len;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let taken = self.take(N)?;
        let mut fixed = [0; N];
        fixed.copy_from_slice(taken);
        Ok(fixed)
    }

    /// The bytes up to the next line end, which goes too.
    fn line(&mut self) -> Result<&'a [u8], FileError> {
        let rest = &self.bytes[self.at..];
        let Some(len) = rest.iter().position(|&byte| byte == b'\n') else {
            return Err(self.wrong("the pickle ends inside of a line"));
        };
        self.at += len + 1;
        Ok(&rest[..len])
    }

    fn wrong(&self, reason: impl Into<String>) -> FileError {
        FileError::at(self.start, reason)
    }

    fn too_few(&self) -> FileError {
        self.wrong("the opcode needs more values than there are")
    }

    /// The error for an opcode that is none, or that is no data.
    fn not_followed(&mut self, opcode: u8) -> FileError {
        let Some(name) = op::refused(opcode) else {
            if self.start == 0 {
                return self.wrong("this is no pickle");
            }
            return self.wrong(format!("{opcode:#04x} is no opcode"));
        };
        let mut named = String::new();
        if opcode == op::GLOBAL
            && let (Ok(module), Ok(object)) = (self.line(), self.line())
        {
            let (module, object) = (String::from_utf8_lossy(module), String::from_utf8_lossy(object));
            let short = |text: &str| text.chars().take(60).collect::<String>();
            named = format!(" names {}.{}", short(&module), short(&object));
        }
        self.wrong(format!("{name}{named}: this is a program, not data; it was not run"))
    }
}
