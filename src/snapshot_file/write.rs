//! From what a snapshot means to the dictionary of a file.

use std::sync::Arc;

use hashbrown::HashMap;

use super::document::{Action, Annotation, Block, Document, Entry, Frame, Frames, Segment};
use super::tree::{Node, NodeId, Tree, TreeBuilder};
use super::{FileError, Limits};

impl Document {
    /// The dictionary that PyTorch's tools read. Frames that entries share are shared in the tree, and so in a pickle.
    ///
    /// # Errors
    /// More values than the default [`Limits`] allow.
    pub fn to_tree(&self) -> Result<Tree, FileError> {
        let mut writer = Writer {
            tree: TreeBuilder::new(Limits::default()),
            texts: HashMap::new(),
            lines: HashMap::new(),
            frames: HashMap::new(),
        };
        let root = writer.document(self)?;
        writer.tree.finish(root)
    }
}

struct Writer<'a> {
    tree: TreeBuilder,
    texts: HashMap<&'a str, NodeId>,
    lines: HashMap<&'a Frame, NodeId>,
    /// Lists of frames by where their content is.
    frames: HashMap<*const Frame, NodeId>,
}

type Written = Result<NodeId, FileError>;

impl<'a> Writer<'a> {
    fn document(&mut self, document: &'a Document) -> Written {
        let segments = self.list(&document.segments, Self::segment)?;
        let traces = self.list(&document.device_traces, |writer, trace| writer.list(trace, Self::entry))?;
        let mut pairs = vec![("segments", segments), ("device_traces", traces)];
        if !document.settings.is_empty() {
            let mut settings = Vec::new();
            for (key, value) in &document.settings {
                settings.push((key.as_str(), self.text(value)?));
            }
            pairs.push(("allocator_settings", self.dict(&settings)?));
        }
        if !document.annotations.is_empty() {
            pairs.push(("external_annotations", self.list(&document.annotations, Self::annotation)?));
        }
        if !document.figures.is_empty() {
            let mut figures = Vec::new();
            for (key, value) in &document.figures {
                figures.push((key.as_str(), self.tree.push(Node::Int(*value))?));
            }
            pairs.push(("ascend_alloc", self.dict(&figures)?));
        }
        self.dict(&pairs)
    }

    fn segment(&mut self, segment: &'a Segment) -> Written {
        let mut pairs = vec![
            ("device", self.int(segment.device.into())?),
            ("address", self.int(segment.address)?),
            ("total_size", self.int(segment.total_size)?),
            ("allocated_size", self.int(segment.allocated_size)?),
            ("active_size", self.int(segment.active_size)?),
            ("requested_size", self.int(segment.requested_size)?),
            ("stream", self.int(segment.stream)?),
            ("segment_type", self.text(if segment.is_large { "large" } else { "small" })?),
            ("segment_pool_id", self.pool(segment.pool)?),
            ("is_expandable", self.tree.push(Node::Bool(segment.is_expandable))?),
            ("frames", self.frames(&segment.frames)?),
            ("blocks", self.list(&segment.blocks, Self::block)?),
        ];
        if segment.is_asleep {
            pairs.push(("is_asleep", self.tree.push(Node::Bool(true))?));
        }
        self.dict(&pairs)
    }

    fn block(&mut self, block: &'a Block) -> Written {
        let pairs = [
            ("address", self.int(block.address)?),
            ("size", self.int(block.size)?),
            ("requested_size", self.int(block.requested_size)?),
            ("state", self.text(block.kind.word())?),
            ("frames", self.frames(&block.frames)?),
        ];
        self.dict(&pairs)
    }

    fn entry(&mut self, entry: &'a Entry) -> Written {
        let place = if entry.action == Action::OutOfMemory { "device_free" } else { "addr" };
        let mut pairs = vec![
            ("action", self.text(entry.action.word())?),
            (place, self.int(entry.addr)?),
            ("size", self.int(entry.size)?),
            ("stream", self.int(entry.stream)?),
        ];
        if let Some(time) = entry.time_us {
            pairs.push(("time_us", self.tree.push(Node::Int(time))?));
        }
        if let Some(pool) = entry.pool {
            pairs.push(("pool_id", self.pool(pool)?));
        }
        if let Some(note) = &entry.note {
            pairs.push(("user_metadata", self.text(note)?));
        }
        if !entry.frames.is_empty() {
            pairs.push(("frames", self.frames(&entry.frames)?));
        }
        self.dict(&pairs)
    }

    fn annotation(&mut self, annotation: &'a Annotation) -> Written {
        let pairs = [
            ("device", self.int(annotation.device.into())?),
            ("time_us", self.tree.push(Node::Int(annotation.time_us))?),
            ("name", self.text(&annotation.name)?),
            ("stage", self.text(&annotation.stage)?),
        ];
        self.dict(&pairs)
    }

    fn frames(&mut self, frames: &'a Frames) -> Written {
        // All empty ones are one list.
        let place = if frames.is_empty() { core::ptr::null() } else { Arc::as_ptr(frames).cast::<Frame>() };
        if let Some(&known) = self.frames.get(&place) {
            return Ok(known);
        }
        let list = self.list(frames, Self::frame)?;
        self.frames.insert(place, list);
        Ok(list)
    }

    fn frame(&mut self, frame: &'a Frame) -> Written {
        if let Some(&known) = self.lines.get(frame) {
            return Ok(known);
        }
        let pairs = [
            ("filename", self.text(&frame.filename)?),
            ("line", self.tree.push(Node::Int(frame.line))?),
            ("name", self.text(&frame.name)?),
        ];
        let id = self.dict(&pairs)?;
        self.lines.insert(frame, id);
        Ok(id)
    }

    fn list<T>(&mut self, items: &'a [T], mut each: impl FnMut(&mut Self, &'a T) -> Written) -> Written {
        let mut ids = Vec::with_capacity(items.len());
        for item in items {
            ids.push(each(self, item)?);
        }
        self.tree.push(Node::List(ids))
    }

    fn dict(&mut self, pairs: &[(&'a str, NodeId)]) -> Written {
        let mut ids = Vec::with_capacity(pairs.len());
        for &(key, value) in pairs {
            ids.push((self.text(key)?, value));
        }
        self.tree.push(Node::Dict(ids))
    }

    fn int(&mut self, value: u64) -> Written {
        self.tree.int(value.into())
    }

    fn pool(&mut self, (first, second): (u64, u64)) -> Written {
        let pair = vec![self.int(first)?, self.int(second)?];
        self.tree.push(Node::Tuple(pair))
    }

    fn text(&mut self, text: &'a str) -> Written {
        if let Some(&known) = self.texts.get(text) {
            return Ok(known);
        }
        let id = self.tree.text(text)?;
        self.texts.insert(text, id);
        Ok(id)
    }
}
