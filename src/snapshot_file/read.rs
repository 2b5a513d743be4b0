//! From what a file says to what it means.

use std::sync::Arc;

use hashbrown::HashMap;

use super::FileError;
use super::document::{Action, Annotation, Block, BlockKind, Document, Entry, Frame, Frames, Segment};
use super::tree::{Node, NodeId, Tree};
use crate::words::counted;

/// Values looked at for each value and place that the file has. A file whose lists refer to one another many times over
/// means far more than it says, and no allocator writes one.
const LOOKS: u64 = 16;
/// Bytes of a text that a document takes; figures and traces have no use for more.
const LONGEST: usize = 4096;
/// Settings and figures that are taken.
const SETTINGS: usize = 1000;
/// Most devices; their numbers are places in a list.
const DEVICES: u64 = 4096;

impl Document {
    /// Takes a snapshot from a tree: PyTorch's dictionary, or only its list of segments as old versions had it.
    ///
    /// Keys that are not known are left out, keys that are missing get the value that says least. An entry or
    /// segment that makes no sense is left out with a warning.
    ///
    /// # Errors
    /// The tree is no snapshot, or refers to its parts so often that it would grow out of all proportion.
    pub fn from_tree(tree: &Tree) -> Result<Document, FileError> {
        let mut reader = Reader {
            tree,
            looks: LOOKS * (tree.size() + 1000),
            frames: HashMap::new(),
            texts: HashMap::new(),
            known: HashMap::new(),
            none: Arc::from([]),
            left_out: Vec::new(),
            document: Document::default(),
        };
        reader.run()?;
        let mut document = reader.document;
        document
            .warnings
            .extend(reader.left_out.into_iter().map(|(what, count)| counted(count, what).to_string()));
        Ok(document)
    }
}

struct Reader<'a> {
    tree: &'a Tree,
    /// How many more values may be looked at.
    looks: u64,
    /// Frames by the list they are.
    frames: HashMap<NodeId, Frames>,
    texts: HashMap<&'a str, Arc<str>>,
    /// The same by the value they are, so that a long text that is shared is looked up once.
    known: HashMap<NodeId, Arc<str>>,
    none: Frames,
    /// What was left out, in words for [`counted`], and how often.
    left_out: Vec<(&'static str, u64)>,
    document: Document,
}

type Read<T> = Result<T, FileError>;

impl<'a> Reader<'a> {
    fn run(&mut self) -> Read<()> {
        let root = self.tree.root();
        match self.tree.node(root) {
            Node::List(_) | Node::Tuple(_) => return self.segments(root),
            Node::Dict(_) => {}
            other => {
                return Err(FileError::whole(format!(
                    "this is {}, not the dictionary of a snapshot",
                    other.kind()
                )));
            }
        }
        let (mut segments, mut traces, mut annotations) = (None, None, None);
        for (key, value) in self.dict(root)? {
            match key {
                "segments" => segments = Some(value),
                "device_traces" => traces = Some(value),
                "external_annotations" => annotations = Some(value),
                "allocator_settings" => self.settings(value)?,
                "ascend_alloc" => self.figures(value)?,
                _ => {}
            }
        }
        if segments.is_none() && traces.is_none() {
            let reason = "a dictionary without segments and device_traces is no snapshot";
            return Err(FileError::whole(reason));
        }
        if let Some(segments) = segments {
            self.segments(segments)?;
        }
        if let Some(traces) = traces {
            self.traces(traces)?;
        }
        if let Some(annotations) = annotations {
            self.annotations(annotations)?;
        }
        Ok(())
    }

    fn segments(&mut self, list: NodeId) -> Read<()> {
        for item in self.list(list, "segments")? {
            match self.segment(item)? {
                Some(segment) => self.document.segments.push(segment),
                None => self.leave_out("segment[s] without address, size or blocks [was|were] left out"),
            }
        }
        self.document.segments.sort_by_key(|segment| (segment.device, segment.address));
        Ok(())
    }

    fn segment(&mut self, item: NodeId) -> Read<Option<Segment>> {
        let mut segment = Segment {
            device: 0,
            address: 0,
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: 0,
            is_large: true,
            pool: (0, 0),
            is_expandable: false,
            is_asleep: false,
            frames: self.none.clone(),
            blocks: Vec::new(),
        };
        let (mut address, mut total, mut blocks) = (None, None, None);
        for (key, value) in self.dict(item)? {
            match key {
                "device" => segment.device = self.size(value).and_then(device_number).unwrap_or(0),
                "address" => address = self.address(value),
                "total_size" => total = self.size(value),
                "stream" => segment.stream = self.address(value).unwrap_or(0),
                "segment_type" => segment.is_large = self.tree.text(value) != Some("small"),
                "segment_pool_id" => segment.pool = self.pool(value).unwrap_or((0, 0)),
                "is_expandable" => segment.is_expandable = self.is_true(value),
                "is_asleep" => segment.is_asleep = self.is_true(value),
                "frames" => segment.frames = self.frames(value)?,
                "blocks" => blocks = Some(value),
                _ => {}
            }
        }
        let (Some(address), Some(blocks)) = (address, blocks) else { return Ok(None) };
        segment.address = address;
        self.blocks(&mut segment, blocks)?;
        let tiled = segment.blocks.iter().try_fold(0_u64, |sum, block| sum.checked_add(block.size));
        let Some(tiled) = tiled.filter(|&tiled| address.checked_add(tiled).is_some()) else {
            return Ok(None);
        };
        segment.total_size = total.unwrap_or(tiled);
        if segment.total_size != tiled {
            self.leave_out("segment[s] [is|are] not as long as [its|their] blocks");
            segment.total_size = segment.total_size.max(tiled);
        }
        if address.checked_add(segment.total_size).is_none() {
            return Ok(None);
        }
        for block in segment.blocks.iter().filter(|block| block.kind.is_active()) {
            segment.active_size += block.size;
            segment.requested_size = segment.requested_size.saturating_add(block.requested_size);
            if block.kind == BlockKind::Allocated {
                segment.allocated_size += block.size;
            }
        }
        Ok(Some(segment))
    }

    /// Blocks lie one behind the other, in the order of their addresses; old versions do not say where.
    fn blocks(&mut self, segment: &mut Segment, list: NodeId) -> Read<()> {
        let mut is_told = true;
        for item in self.list(list, "blocks")? {
            match self.block(item)? {
                Some((address, mut block)) => {
                    is_told &= address.is_some();
                    block.address = address.unwrap_or(0);
                    segment.blocks.push(block);
                }
                None => self.leave_out("block[s] without size or state [was|were] left out"),
            }
        }
        if is_told {
            segment.blocks.sort_by_key(|block| block.address);
        }
        let mut address = segment.address;
        for block in &mut segment.blocks {
            block.address = address;
            address = address.saturating_add(block.size);
        }
        Ok(())
    }

    /// A block, and its address where that is told.
    fn block(&mut self, item: NodeId) -> Read<Option<(Option<u64>, Block)>> {
        let (mut address, mut size, mut kind, mut requested, mut frames, mut history) =
            (None, None, None, None, None, None);
        for (key, value) in self.dict(item)? {
            match key {
                "address" => address = self.address(value),
                "size" => size = self.size(value),
                "state" => kind = self.tree.text(value).and_then(BlockKind::of_word),
                "requested_size" => requested = self.size(value),
                "frames" => frames = Some(self.frames(value)?),
                "history" => history = Some(value),
                _ => {}
            }
        }
        // PyTorch 1.13 and 2.0 kept both in the newest entry of a list.
        if let Some(newest) = history.map(|list| self.list(list, "history")).transpose()?
            && let Some(&newest) = newest.first()
        {
            for (key, value) in self.dict(newest)? {
                match key {
                    "real_size" if requested.is_none() => requested = self.size(value),
                    "frames" if frames.is_none() => frames = Some(self.frames(value)?),
                    _ => {}
                }
            }
        }
        let (Some(size), Some(kind)) = (size, kind) else { return Ok(None) };
        let requested_size = if kind.is_active() { requested.unwrap_or(size).min(size) } else { 0 };
        let frames = frames.unwrap_or_else(|| self.none.clone());
        Ok(Some((address, Block { address: 0, size, requested_size, kind, frames })))
    }

    fn traces(&mut self, list: NodeId) -> Read<()> {
        let devices = self.list(list, "device_traces")?;
        if devices.len() as u64 > DEVICES {
            return Err(FileError::whole(format!(
                "traces of {} devices, and {DEVICES} is the limit",
                devices.len()
            )));
        }
        for device in devices {
            let mut trace = Vec::new();
            for item in self.list(device, "the trace of a device")? {
                match self.entry(item)? {
                    Some(entry) => trace.push(entry),
                    None => self.leave_out("event[s] without action, address or size [was|were] left out"),
                }
            }
            self.document.device_traces.push(trace);
        }
        Ok(())
    }

    fn entry(&mut self, item: NodeId) -> Read<Option<Entry>> {
        let (mut action, mut addr, mut size, mut free) = (None, None, None, None);
        let mut entry = Entry {
            action: Action::Snapshot,
            addr: 0,
            size: 0,
            stream: 0,
            time_us: None,
            pool: None,
            note: None,
            frames: self.none.clone(),
        };
        for (key, value) in self.dict(item)? {
            match key {
                "action" => {
                    action = self.text(value).map(|word| match Action::of_word(&word) {
                        Action::Other(_) => Action::Other(word),
                        known => known,
                    });
                }
                "addr" => addr = self.address(value),
                "device_free" => free = self.address(value),
                "size" => size = self.size(value),
                "stream" => entry.stream = self.address(value).unwrap_or(0),
                "time_us" => entry.time_us = self.int(value).and_then(|time| time.try_into().ok()),
                "pool_id" => entry.pool = self.pool(value),
                "user_metadata" => entry.note = self.text(value),
                "frames" => entry.frames = self.frames(value)?,
                _ => {}
            }
        }
        let Some(action) = action else { return Ok(None) };
        let needs =
            !matches!(action, Action::OutOfMemory | Action::Snapshot | Action::HostWait | Action::Other(_));
        let addr = if action == Action::OutOfMemory { free.or(addr) } else { addr };
        if needs && (addr.is_none() || (size.is_none() && action != Action::StreamUse)) {
            return Ok(None);
        }
        entry.action = action;
        entry.addr = addr.unwrap_or(0);
        entry.size = size.unwrap_or(0);
        if entry.addr.checked_add(entry.size).is_none() && needs {
            return Ok(None);
        }
        Ok(Some(entry))
    }

    fn annotations(&mut self, list: NodeId) -> Read<()> {
        for item in self.list(list, "external_annotations")? {
            let (mut device, mut time, mut name, mut stage) = (0, None, None, None);
            for (key, value) in self.dict(item)? {
                match key {
                    "device" => device = self.size(value).and_then(device_number).unwrap_or(0),
                    "time_us" => time = self.int(value).and_then(|time| i64::try_from(time).ok()),
                    "name" => name = self.text(value),
                    "stage" => stage = self.text(value),
                    _ => {}
                }
            }
            match (time, name) {
                (Some(time_us), Some(name)) => self.document.annotations.push(Annotation {
                    device,
                    time_us,
                    name,
                    stage: stage.unwrap_or_else(|| "".into()),
                }),
                _ => self.leave_out("annotation[s] without time or name [was|were] left out"),
            }
        }
        Ok(())
    }

    fn settings(&mut self, value: NodeId) -> Read<()> {
        for (key, value) in self.dict(value)? {
            let shown = match self.tree.node(value) {
                Node::Text(text) => cut(text).to_owned(),
                Node::Int(value) => value.to_string(),
                Node::Wide(value) => value.to_string(),
                Node::Float(value) => value.to_string(),
                Node::Bool(value) => if *value { "True" } else { "False" }.to_owned(),
                _ => continue,
            };
            if self.document.settings.len() < SETTINGS {
                self.document.settings.push((cut(key).to_owned(), shown));
            }
        }
        Ok(())
    }

    fn figures(&mut self, value: NodeId) -> Read<()> {
        for (key, value) in self.dict(value)? {
            if let Node::Int(value) = self.tree.node(value)
                && self.document.figures.len() < SETTINGS
            {
                self.document.figures.push((cut(key).to_owned(), *value));
            }
        }
        Ok(())
    }

    fn frames(&mut self, list: NodeId) -> Read<Frames> {
        if let Some(known) = self.frames.get(&list) {
            return Ok(known.clone());
        }
        let mut frames = Vec::new();
        for item in self.list(list, "frames")? {
            let mut frame = Frame::default();
            for (key, value) in self.dict(item)? {
                match key {
                    "filename" => frame.filename = self.text(value).unwrap_or_default(),
                    "name" => frame.name = self.text(value).unwrap_or_default(),
                    "line" => frame.line = self.int(value).and_then(|line| line.try_into().ok()).unwrap_or(0),
                    _ => {}
                }
            }
            frames.push(frame);
        }
        let frames = if frames.is_empty() { self.none.clone() } else { Frames::from(frames) };
        self.frames.insert(list, frames.clone());
        Ok(frames)
    }

    /// Keys that are texts, with their values. Anything but a dictionary has none.
    fn dict(&mut self, id: NodeId) -> Read<Vec<(&'a str, NodeId)>> {
        let tree = self.tree;
        let Node::Dict(pairs) = tree.node(id) else { return Ok(Vec::new()) };
        self.look(pairs.len())?;
        Ok(pairs.iter().filter_map(|&(key, value)| Some((tree.text(key)?, value))).collect())
    }

    /// The values of a list; `None` is an empty one.
    fn list(&mut self, id: NodeId, what: &str) -> Read<Vec<NodeId>> {
        match self.tree.node(id) {
            Node::List(items) | Node::Tuple(items) => {
                self.look(items.len())?;
                Ok(items.clone())
            }
            Node::None => Ok(Vec::new()),
            other => Err(FileError::whole(format!("{what}: {} where a list belongs", other.kind()))),
        }
    }

    fn look(&mut self, values: usize) -> Read<()> {
        let left = self.looks.checked_sub(1 + values as u64);
        self.looks = left.ok_or_else(|| {
            FileError::whole(
                "its lists refer to one another so often that it would grow out of all proportion",
            )
        })?;
        Ok(())
    }

    fn int(&self, id: NodeId) -> Option<i128> {
        match self.tree.node(id) {
            Node::Int(value) => Some(i128::from(*value)),
            Node::Wide(value) => Some(**value),
            // JSON of other programs.
            Node::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => Some(*value as i128),
            _ => None,
        }
    }

    /// A size: not negative.
    fn size(&self, id: NodeId) -> Option<u64> {
        self.int(id)?.try_into().ok()
    }

    /// An address or handle: one above 2^63 may have come as a negative number.
    fn address(&self, id: NodeId) -> Option<u64> {
        let value = self.int(id)?;
        u64::try_from(value).ok().or_else(|| i64::try_from(value).ok().map(i64::cast_unsigned))
    }

    fn is_true(&self, id: NodeId) -> bool {
        matches!(self.tree.node(id), Node::Bool(true)) || self.int(id).is_some_and(|value| value != 0)
    }

    fn pool(&self, id: NodeId) -> Option<(u64, u64)> {
        match self.tree.node(id) {
            Node::Tuple(pair) | Node::List(pair) => match pair[..] {
                [first, second] => Some((self.address(first)?, self.address(second)?)),
                _ => None,
            },
            _ => None,
        }
    }

    fn text(&mut self, id: NodeId) -> Option<Arc<str>> {
        if let Some(known) = self.known.get(&id) {
            return Some(known.clone());
        }
        let text = cut(self.tree.text(id)?);
        let text = self.texts.entry(text).or_insert_with(|| text.into()).clone();
        self.known.insert(id, text.clone());
        Some(text)
    }

    fn leave_out(&mut self, what: &'static str) {
        match self.left_out.iter_mut().find(|(known, _)| *known == what) {
            Some((_, count)) => *count += 1,
            None => self.left_out.push((what, 1)),
        }
    }
}

fn device_number(value: u64) -> Option<u32> {
    u32::try_from(value).ok().filter(|&device| u64::from(device) < DEVICES)
}

/// The beginning of a text.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}
