//! What a file says: values in one list, by number, so that what is shared stays shared.

use hashbrown::HashSet;

use super::{FileError, Limits};

/// Deepest nesting that any limit allows: those who walk a tree recurse that deep.
const DEEPEST: u32 = 200;

/// The number of a value in its [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Python's `None`, JSON's `null`.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number beyond 64 bits with a sign, such as an address above 2^63.
    Wide(Box<i128>),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(Box<str>),
    /// Bytes that are no text.
    Bytes(Box<[u8]>),
    /// A list.
    List(Vec<NodeId>),
    /// A tuple; JSON has lists only.
    Tuple(Vec<NodeId>),
    /// A set; JSON has lists only.
    Set(Vec<NodeId>),
    /// A dictionary, in the order of the file. Where a key is there twice the last one counts.
    Dict(Vec<(NodeId, NodeId)>),
}

impl Node {
    /// What it is, in a word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Node::None => "None",
            Node::Bool(_) => "a truth value",
            Node::Int(_) | Node::Wide(_) => "a number",
            Node::Float(_) => "a number with a fraction",
            Node::Text(_) => "a text",
            Node::Bytes(_) => "bytes",
            Node::List(_) => "a list",
            Node::Tuple(_) => "a tuple",
            Node::Set(_) => "a set",
            Node::Dict(_) => "a dictionary",
        }
    }

    /// The values directly inside, keys before their values.
    fn children(&self) -> impl Iterator<Item = NodeId> + '_ {
        let (items, pairs): (&[NodeId], &[(NodeId, NodeId)]) = match self {
            Node::List(items) | Node::Tuple(items) | Node::Set(items) => (items, &[]),
            Node::Dict(pairs) => (&[], pairs),
            _ => (&[], &[]),
        };
        items.iter().copied().chain(pairs.iter().flat_map(|&(key, value)| [key, value]))
    }

    /// The value directly inside at this place.
    fn child(&self, place: usize) -> Option<NodeId> {
        match self {
            Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.get(place).copied(),
            Node::Dict(pairs) => {
                pairs.get(place / 2).map(|&(key, value)| if place.is_multiple_of(2) { key } else { value })
            }
            _ => None,
        }
    }
}

/// The values of one file. No value holds itself, and none is nested deeper than the limits allowed.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    root: NodeId,
    size: u64,
    written_out: u64,
}

impl Tree {
    /// The value that the file is.
    #[must_use]
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// A value by its number; [`Node::None`] for a number of another tree that this one has not.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(id.0 as usize).unwrap_or(&Node::None)
    }

    /// How many values there are, shared ones counted once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no value; never, as there is a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many values and places in lists and dictionaries there are: a measure of the memory it takes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many values there would be if nothing was shared, as in JSON; texts and bytes count one more for each 16
    /// bytes. `u64::MAX` stands for all above it.
    #[must_use]
    pub fn written_out(&self) -> u64 {
        self.written_out
    }

    /// The value of a key of a dictionary.
    #[must_use]
    pub fn get(&self, dict: NodeId, key: &str) -> Option<NodeId> {
        let Node::Dict(pairs) = self.node(dict) else { return None };
        pairs.iter().rev().find(|&&(name, _)| self.text(name) == Some(key)).map(|&(_, value)| value)
    }

    /// The text that a value is.
    #[must_use]
    pub fn text(&self, id: NodeId) -> Option<&str> {
        match self.node(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// How often each value is referred to, by its number.
    pub(super) fn references(&self) -> Vec<u32> {
        let mut count = vec![0_u32; self.nodes.len()];
        for child in self.nodes.iter().flat_map(Node::children) {
            if let Some(count) = count.get_mut(child.0 as usize) {
                *count = count.saturating_add(1);
            }
        }
        count
    }
}

/// Whether two trees say the same, shared or not. Numbers that are not a number are the same.
impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        same(self, self.root, other, other.root, &mut HashSet::new())
    }
}

/// Compares two values; `known` are lists and dictionaries that were found to be the same, each compared once.
fn same(left: &Tree, a: NodeId, right: &Tree, b: NodeId, known: &mut HashSet<(NodeId, NodeId)>) -> bool {
    let (first, second) = (left.node(a), right.node(b));
    let is_same = match (first, second) {
        (Node::List(_), Node::List(_))
        | (Node::Tuple(_), Node::Tuple(_))
        | (Node::Set(_), Node::Set(_))
        | (Node::Dict(_), Node::Dict(_)) => {
            if known.contains(&(a, b)) {
                return true;
            }
            first.children().count() == second.children().count()
                && first.children().zip(second.children()).all(|(a, b)| same(left, a, right, b, known))
        }
        (Node::Float(a), Node::Float(b)) => return a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
        (a, b) => return a == b,
    };
    if is_same {
        known.insert((a, b));
    }
    is_same
}

/// Puts a tree together, from the leaves up.
#[derive(Debug)]
pub struct TreeBuilder {
    nodes: Vec<Node>,
    limits: Limits,
    /// Values and places so far.
    used: u64,
    /// Numbers of `None`, `False`, `True` and 0 to 255, which are kept once.
    common: [Option<NodeId>; 3 + 256],
}

impl TreeBuilder {
    /// An empty one, which keeps to the limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        TreeBuilder { nodes: Vec::new(), limits, used: 0, common: [None; 259] }
    }

    /// Adds a value.
    ///
    /// # Errors
    /// There are more values than the limit allows.
    pub fn push(&mut self, node: Node) -> Result<NodeId, FileError> {
        let place = match &node {
            Node::None => Some(0),
            Node::Bool(value) => Some(1 + usize::from(*value)),
            Node::Int(value) => u8::try_from(*value).ok().map(|value| 3 + usize::from(value)),
            _ => None,
        };
        if let Some(id) = place.and_then(|place| self.common[place]) {
            return Ok(id);
        }
        let places = match &node {
            Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.len(),
            Node::Dict(pairs) => pairs.len() * 2,
            _ => 0,
        };
        self.charge(1 + places as u64)?;
        let id = u32::try_from(self.nodes.len()).map_err(|_| self.too_many())?;
        self.nodes.push(node);
        if let Some(place) = place {
            self.common[place] = Some(NodeId(id));
        }
        Ok(NodeId(id))
    }

    /// Adds a whole number of any size.
    ///
    /// # Errors
    /// As [`TreeBuilder::push`].
    pub fn int(&mut self, value: i128) -> Result<NodeId, FileError> {
        self.push(i64::try_from(value).map_or_else(|_| Node::Wide(Box::new(value)), Node::Int))
    }

    /// Adds a text.
    ///
    /// # Errors
    /// As [`TreeBuilder::push`].
    pub fn text(&mut self, text: &str) -> Result<NodeId, FileError> {
        self.push(Node::Text(text.into()))
    }

    /// The value of a number, to be looked at.
    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0 as usize)
    }

    /// The value of a number, to be added to; who adds calls [`TreeBuilder::charge`] before.
    pub(super) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id.0 as usize)
    }

    /// Counts values or places that are about to be added.
    pub(super) fn charge(&mut self, count: u64) -> Result<(), FileError> {
        self.used = self.used.saturating_add(count);
        if self.used > self.limits.nodes { Err(self.too_many()) } else { Ok(()) }
    }

    /// That a reader who holds so many references to values, on a stack or in a memo, may have one more.
    pub(super) fn has_room_beside(&self, held: usize) -> Result<(), FileError> {
        if held as u64 >= self.limits.nodes { Err(self.too_many()) } else { Ok(()) }
    }

    fn too_many(&self) -> FileError {
        FileError::whole(format!("more than {} values, which is the limit", self.limits.nodes))
    }

    /// The tree with this root.
    ///
    /// # Errors
    /// A value holds itself, is nested deeper than the limit allows, or refers to one that is not there.
    pub fn finish(self, root: NodeId) -> Result<Tree, FileError> {
        let written_out = measure(&self.nodes, root, self.limits.depth.min(DEEPEST))?;
        Ok(Tree { nodes: self.nodes, root, size: self.used, written_out })
    }
}

/// What the walk knows of a value.
#[derive(Clone, Copy)]
enum Seen {
    No,
    /// On the way from the root to where the walk is.
    Open,
    /// Done: levels below it, itself included, and values when written out.
    Done(u32, u64),
}

/// What a value alone comes to when it is written out.
fn weight(node: &Node) -> u64 {
    match node {
        Node::Text(text) => 1 + text.len() as u64 / 16,
        Node::Bytes(bytes) => 1 + bytes.len() as u64 / 16,
        _ => 1,
    }
}

/// Walks all values from the root, each once, without recursion. Answers how many there are when written out.
fn measure(nodes: &[Node], root: NodeId, limit: u32) -> Result<u64, FileError> {
    struct Level {
        id: NodeId,
        next: usize,
        below: u32,
        written_out: u64,
    }
    let too_deep = || FileError::whole(format!("nested deeper than {limit} levels, which is the limit"));
    let mut seen = vec![Seen::No; nodes.len()];
    let open =
        |id: NodeId| Level { id, next: 0, below: 0, written_out: nodes.get(id.0 as usize).map_or(1, weight) };
    let mut way = vec![open(root)];
    let mut total = 0;
    while let Some(level) = way.last_mut() {
        let id = level.id.0 as usize;
        let Some(node) = nodes.get(id) else {
            return Err(FileError::whole("refers to a value that is not there"));
        };
        let Some(child) = node.child(level.next) else {
            let (below, written_out) = (level.below + 1, level.written_out);
            if below > limit {
                return Err(too_deep());
            }
            seen[id] = Seen::Done(below, written_out);
            total = written_out;
            way.pop();
            if let Some(parent) = way.last_mut() {
                parent.below = parent.below.max(below);
                parent.written_out = parent.written_out.saturating_add(written_out);
            }
            continue;
        };
        seen[id] = Seen::Open;
        level.next += 1;
        match seen.get(child.0 as usize) {
            Some(Seen::Done(below, written_out)) => {
                level.below = level.below.max(*below);
                level.written_out = level.written_out.saturating_add(*written_out);
            }
            Some(Seen::Open) => return Err(FileError::whole("a list or dictionary that holds itself")),
            _ if way.len() >= limit as usize => return Err(too_deep()),
            _ => way.push(open(child)),
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_counts_once_and_is_measured_written_out() {
        let mut builder = TreeBuilder::new(Limits::default());
        let mut level = builder.push(Node::List(Vec::new())).unwrap();
        for _ in 0..50 {
            level = builder.push(Node::List(vec![level; 10])).unwrap();
        }
        let tree = builder.finish(level).unwrap();
        assert_eq!(tree.len(), 51);
        // 1 + 10 + ... + 10^50 values.
        assert_eq!(tree.written_out(), u64::MAX);
        // Nor are they compared so often.
        assert_eq!(tree.clone(), tree);
    }

    #[test]
    fn depth_and_number_are_limited() {
        let limits = Limits { depth: 3, nodes: 12, ..Limits::default() };
        let nest = |levels: usize| {
            let mut builder = TreeBuilder::new(limits);
            let mut id = builder.push(Node::None).unwrap();
            for _ in 1..levels {
                id = builder.push(Node::Tuple(vec![id])).unwrap();
            }
            builder.finish(id)
        };
        assert_eq!(nest(3).unwrap().written_out(), 3);
        assert!(nest(4).unwrap_err().reason.contains("deeper than 3 levels"));
        let mut builder = TreeBuilder::new(limits);
        let zero = builder.int(0).unwrap();
        assert_eq!(builder.int(0).unwrap(), zero);
        assert!(builder.push(Node::List(vec![zero; 10])).is_ok());
        assert!(builder.push(Node::Float(0.0)).unwrap_err().reason.contains("more than 12 values"));
    }

    #[test]
    fn a_shared_value_does_not_hide_how_deep_it_is() {
        let limits = Limits { depth: 4, ..Limits::default() };
        let mut builder = TreeBuilder::new(limits);
        let leaf = builder.push(Node::List(Vec::new())).unwrap();
        let one = builder.push(Node::List(vec![leaf])).unwrap();
        let two = builder.push(Node::List(vec![one])).unwrap();
        // First met at the top, then again below two more levels.
        let deep = builder.push(Node::List(vec![two])).unwrap();
        let deeper = builder.push(Node::List(vec![deep])).unwrap();
        let root = builder.push(Node::List(vec![two, deeper])).unwrap();
        assert!(builder.finish(root).unwrap_err().reason.contains("deeper"));
    }
}
