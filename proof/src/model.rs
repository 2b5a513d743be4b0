//! What a program can know without the allocator: which blocks it holds, and on which streams it may use them.

use crate::machine::mark_of;
use crate::surface::{Answer, Filter};

/// A stream that lives. Its handle may have belonged to another stream before; its number has not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub(crate) id: u32,
    pub(crate) device: u32,
    pub(crate) stream: u64,
}

/// A block, or the filled part of a growing buffer.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    /// Bytes of the block.
    pub(crate) bytes: u64,
    /// Bytes asked for.
    pub(crate) requested: u64,
    pub(crate) device: u32,
    /// Tells it from every other block.
    pub(crate) tag: u64,
    /// The streams that may use it, by number, as long as they live; its own first.
    pub(crate) users: Vec<u32>,
    /// Whether its own stream lives.
    pub(crate) has_home: bool,
    /// Whether work that nothing can be ordered behind may still use it.
    pub(crate) lost: bool,
    /// Whether its ends hold its mark.
    pub(crate) marked: bool,
    pub(crate) pool: Option<u64>,
    /// Whether its pool sleeps.
    pub(crate) asleep: bool,
    /// Exports that hold it.
    pub(crate) exports: u32,
}

impl Block {
    /// Its range as far as the program may use it.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.address, self.requested)
    }

    pub(crate) fn has_mark(&self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| byte == mark_of(self.tag))
    }

    /// Whether the program may queue work on it.
    pub(crate) fn is_usable(&self) -> bool {
        !self.asleep && !self.lost && self.requested > 0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) id: u64,
    pub(crate) device: u32,
    pub(crate) graphs: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) pool: u64,
    pub(crate) device: u32,
    pub(crate) filter: Filter,
    /// The thread that began it.
    pub(crate) thread: usize,
    pub(crate) capture: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) id: u64,
    pub(crate) max: u64,
    pub(crate) block: Block,
    pub(crate) home: Lane,
}

#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) id: u64,
    pub(crate) pool: u64,
    pub(crate) device: u32,
    pub(crate) blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Export {
    pub(crate) id: u64,
    pub(crate) address: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Import {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) lane: Lane,
}

/// Everything a program holds.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) live: Vec<Block>,
    /// Freed blocks that exports keep.
    pub(crate) held: Vec<Block>,
    /// Blocks that the memory callback may free.
    pub(crate) spares: Vec<Block>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) routes: Vec<Route>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) exports: Vec<Export>,
    pub(crate) imports: Vec<Import>,
    /// Page-locked blocks: address and bytes asked for.
    pub(crate) host: Vec<(u64, u64)>,
    /// Highest allocated bytes by device.
    pub(crate) peaks: [i64; 2],
    pub(crate) last_tag: u64,
    pub(crate) last_lane: u32,
    /// Blocks that were live when their device was reset, and were not freed since: device and address.
    pub(crate) stale: Vec<(u32, u64)>,
    /// Address space that resets have left behind.
    pub(crate) lost_space: u64,
    /// Streams that are being captured, oldest first.
    pub(crate) captured: Vec<Lane>,
    /// The address that was freed last.
    pub(crate) freed: Option<u64>,
    /// Whether memory of other processes was mapped at any time.
    pub(crate) has_imported: bool,
}

/// The place of an index in a list; none in an empty one.
pub(crate) fn pick<T>(list: &[T], index: u8) -> Option<usize> {
    usize::from(index).checked_rem(list.len())
}

impl Model {
    pub(crate) fn lane(&self, index: u8) -> Lane {
        self.lanes[usize::from(index) % self.lanes.len()]
    }

    /// A stream of a device.
    pub(crate) fn lane_on(&self, device: u32, index: u8) -> Lane {
        let lanes: Vec<_> = self.lanes.iter().filter(|lane| lane.device == device).collect();
        *lanes[usize::from(index) % lanes.len()]
    }

    pub(crate) fn lane_of(&self, id: u32) -> Option<Lane> {
        self.lanes.iter().copied().find(|lane| lane.id == id)
    }

    pub(crate) fn add_lane(&mut self, device: u32, stream: u64) {
        self.last_lane += 1;
        self.lanes.push(Lane { id: self.last_lane, device, stream });
    }

    /// The stream of that number is gone; `lost` says that its work may go on all the same.
    pub(crate) fn end_lane(&mut self, id: u32, lost: bool) {
        self.lanes.retain(|lane| lane.id != id);
        let saved = self.checkpoints.iter_mut().flat_map(|checkpoint| &mut checkpoint.blocks);
        let buffers = self.buffers.iter_mut().map(|buffer| &mut buffer.block);
        for block in
            self.live.iter_mut().chain(&mut self.held).chain(&mut self.spares).chain(saved).chain(buffers)
        {
            if block.users.first() == Some(&id) {
                block.has_home = false;
            }
            if block.users.contains(&id) {
                block.lost |= lost;
                block.users.retain(|&user| user != id);
            }
        }
    }

    /// The pool that a request without one goes to.
    pub(crate) fn routed(&self, thread: usize, lane: Lane) -> Option<u64> {
        let takes = |route: &&Route| {
            route.device == lane.device
                && match route.filter {
                    Filter::All => true,
                    Filter::Thread => route.thread == thread,
                    Filter::Stream(stream) => stream == lane.stream,
                }
        };
        self.routes.iter().rev().find(takes).map(|route| route.pool)
    }

    pub(crate) fn is_capturing(&self, device: u32) -> bool {
        self.routes.iter().any(|route| route.capture && route.device == device)
            || self.captured.iter().any(|lane| lane.device == device)
    }

    /// All blocks that must be live, those of buffers among them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Block> {
        let buffers = self.buffers.iter().map(|buffer| &buffer.block).filter(|block| block.requested > 0);
        self.live.iter().chain(&self.held).chain(&self.spares).chain(buffers)
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Block> {
        let buffers = self.buffers.iter_mut().map(|buffer| &mut buffer.block);
        self.live.iter_mut().chain(&mut self.held).chain(&mut self.spares).chain(buffers)
    }

    pub(crate) fn is_start(&self, address: u64) -> bool {
        self.all().any(|block| block.address == address)
            || self.stale.iter().any(|&(_, stale)| stale == address)
    }

    /// A block that was handed out.
    ///
    /// # Panics
    ///
    /// It overlaps another.
    pub(crate) fn add(&mut self, block: Block) {
        let end = block.address.checked_add(block.bytes).expect("a block ends in the address space");
        let stale = self.stale.iter().any(|&(_, address)| address == block.address);
        assert!(!stale, "a block that was not freed yet after a reset has the address of {block:x?}");
        for other in self.all() {
            let apart = other.address + other.bytes <= block.address || end <= other.address;
            assert!(apart, "I2: {other:x?} overlaps {block:x?}");
        }
        self.live.push(block);
    }

    pub(crate) fn next_tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }
}

/// The answer of a call that nothing may refuse.
///
/// # Panics
///
/// It was refused.
pub(crate) fn granted<T>(answer: Answer<T>, what: &str) -> T {
    answer.unwrap_or_else(|refusal| panic!("{what}: {refusal}"))
}
