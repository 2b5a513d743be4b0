//! What the core notes for the history.

use super::Core;
use super::block::BlockId;
use super::pool::{DEFAULT, PoolIndex};
use super::segment::Class;
use super::stream::StreamId;
use crate::driver::Stream;
use crate::history::Action;
use crate::history::log::Said;
use crate::hook;

/// Ranges that follow one another and become one event.
#[derive(Debug, Default)]
pub(super) struct Stretch(Option<(Action, u64, u64)>);

impl Core {
    /// Notes something about a range, or about the device as a whole.
    #[inline]
    pub(crate) fn keep(&self, action: Action, address: u64, size: u64, stream: Stream, class: Class) {
        if self.noter.is_on() {
            self.keep_now(action, address, (size, 0), stream, class);
        }
    }

    /// Notes something about a block of such length, which was asked for with so many bytes.
    #[inline]
    pub(crate) fn keep_of(
        &self,
        action: Action,
        address: u64,
        sizes: (u64, u64),
        stream: Stream,
        class: Class,
    ) {
        if self.noter.is_on() {
            self.keep_now(action, address, sizes, stream, class);
        }
    }

    /// Notes something about a block as it is, which was asked for with `requested` bytes.
    #[inline]
    pub(crate) fn keep_block(&self, action: Action, id: BlockId, requested: u64) {
        if self.noter.is_on() {
            let block = &self.blocks[id];
            let stream = self.streams[block.home as usize].handle;
            self.keep_now(action, block.addr, (block.len, requested), stream, self.class_of(id));
        }
    }

    /// Notes that work on a further stream uses a block, if anybody keeps that.
    pub(crate) fn keep_use(&self, id: BlockId, stream: Stream) {
        if self.noter.wants_uses() {
            let block = &self.blocks[id];
            self.keep_now(Action::StreamUse, block.addr, (block.len, 0), stream, self.class_of(id));
        }
    }

    /// Notes that a live block of other length, and asked for with other bytes, before is now what it is: as the end
    /// of one block and the beginning of another at its address.
    #[inline]
    pub(crate) fn keep_resized(&self, id: BlockId, (len, requested): (u64, u64)) {
        if self.noter.is_on() {
            let block = &self.blocks[id];
            let (stream, class) = (self.streams[block.home as usize].handle, self.class_of(id));
            if len > 0 {
                self.keep_now(Action::FreeCompleted, block.addr, (len, requested), stream, class);
            }
            self.keep_now(Action::Allocate, block.addr, (block.len, block.requested), stream, class);
        }
    }

    /// Notes that a piece was cut off a live block and waits for streams.
    #[inline]
    fn keep_cut(&self, address: u64, size: u64, stream: Stream, class: Class) {
        if self.noter.is_on() {
            self.keep_now(Action::Allocate, address, (size, 0), stream, class);
            self.keep_now(Action::FreeRequested, address, (size, 0), stream, class);
        }
    }

    /// Notes that `size` bytes at `address` were cut off a live block, and whether they wait for other streams.
    pub(crate) fn note_cut(&mut self, address: u64, size: u64, home: StreamId, class: Class, waits: bool) {
        let stream = self.streams[home as usize].handle;
        self.note(hook::Action::FreeRequested, address, size, stream);
        if waits {
            self.keep_cut(address, size, stream, class);
        } else {
            self.note(hook::Action::FreeCompleted, address, size, stream);
        }
    }

    /// Notes something about several pools, under the name of the first one.
    pub(crate) fn keep_pools(&self, action: Action, pools: &[PoolIndex], bytes: u64) {
        let first = pools.first().copied().unwrap_or(DEFAULT);
        self.keep(action, 0, bytes, Stream(0), Class::SMALL.within(first));
    }

    /// Notes that the host waited for a stream, or for the device, for the hook and for the history.
    pub(super) fn note_wait(&mut self, stream: Stream) {
        self.note(hook::Action::Wait, 0, 0, stream);
        self.keep(Action::Wait, 0, 0, stream, Class::SMALL);
    }

    /// Notes that a request of so many bytes failed.
    pub(super) fn keep_failure(&self, requested: u64, stream: Stream, class: Class) {
        if self.noter.is_on() {
            let free = self.limit.unwrap_or(self.limits.total).saturating_sub(self.held());
            self.keep_now(Action::OutOfMemory, 0, (free, requested), stream, class);
        }
    }

    /// Adds a range to a stretch; what does not go on is noted.
    pub(super) fn stretch(&self, to: &mut Stretch, of: (Action, u64, u64), stream: Stream, class: Class) {
        if !self.noter.is_on() {
            return;
        }
        let (action, address, bytes) = of;
        match &mut to.0 {
            Some((same, from, len)) if *same == action && *from + *len == address => *len += bytes,
            _ => {
                self.end_stretch(to, stream, class);
                to.0 = Some(of);
            }
        }
    }

    /// Notes what a stretch has.
    pub(super) fn end_stretch(&self, stretch: &mut Stretch, stream: Stream, class: Class) {
        if let Some((action, address, bytes)) = stretch.0.take() {
            self.keep(action, address, bytes, stream, class);
        }
    }

    #[inline(never)]
    fn keep_now(
        &self,
        action: Action,
        address: u64,
        (size, requested): (u64, u64),
        stream: Stream,
        class: Class,
    ) {
        let pool = self.pools.get(class.pool());
        let (pool, tag) = (pool.serial, pool.tag);
        self.noter.note(Said { action, address, size, requested, stream, pool, tag });
    }
}
