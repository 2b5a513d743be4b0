//! What a program can know: its live blocks, and on which streams it may use them.

use std::collections::BTreeMap;

/// A live block.
#[derive(Clone, Debug)]
pub struct Block {
    pub device: u32,
    pub address: u64,
    pub bytes: u64,
    /// The streams whose work may use it: its own and the recorded ones, as long as they live.
    pub streams: Vec<u64>,
    /// Tells it from every other block, also earlier ones at the same address.
    pub tag: u64,
}

impl Block {
    /// Bytes that no other block has.
    pub fn pattern(&self) -> [u8; 8] {
        (self.tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_le_bytes()
    }
}

/// All live blocks.
#[derive(Default)]
pub struct Model {
    /// By address.
    live: BTreeMap<u64, Block>,
    /// Addresses in the order of allocation.
    order: Vec<u64>,
    tags: u64,
}

impl Model {
    /// A new block.
    ///
    /// # Panics
    ///
    /// It overlaps another.
    pub fn insert(&mut self, device: u32, address: u64, bytes: u64, stream: u64) -> Block {
        self.tags += 1;
        let block = Block { device, address, bytes, streams: vec![stream], tag: self.tags };
        self.check_room(&block);
        self.live.insert(address, block.clone());
        self.order.push(address);
        block
    }

    /// The block at an index, modulo the number of blocks.
    pub fn get(&self, index: u8) -> Option<&Block> {
        let index = usize::from(index).checked_rem(self.order.len())?;
        self.live.get(&self.order[index])
    }

    pub fn remove(&mut self, index: u8) -> Option<Block> {
        let index = usize::from(index).checked_rem(self.order.len())?;
        self.live.remove(&self.order.remove(index))
    }

    pub fn remove_last(&mut self) -> Option<Block> {
        self.live.remove(&self.order.pop()?)
    }

    pub fn is_start(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }

    /// The block at `address` with another length.
    ///
    /// # Panics
    ///
    /// It overlaps another now.
    pub fn resize(&mut self, address: u64, bytes: u64) -> Block {
        let mut block = self.live.remove(&address).expect("the block is live");
        block.bytes = bytes;
        self.check_room(&block);
        self.live.insert(address, block.clone());
        block
    }

    /// Work of that stream may use the block now.
    pub fn allow(&mut self, address: u64, stream: u64) {
        self.live.get_mut(&address).expect("the block is live").streams.push(stream);
    }

    /// The stream is no more.
    pub fn forbid(&mut self, device: u32, stream: u64) {
        for block in self.live.values_mut().filter(|block| block.device == device) {
            block.streams.retain(|&known| known != stream);
        }
    }

    /// Number and bytes of the live blocks of a device.
    pub fn totals(&self, device: u32) -> (i64, i64) {
        let of = self.live.values().filter(|block| block.device == device);
        of.fold((0, 0), |(count, bytes), block| (count + 1, bytes + block.bytes as i64))
    }

    fn check_room(&self, block: &Block) {
        let end = block.address.checked_add(block.bytes).expect("a block ends in the address space");
        if let Some((_, before)) = self.live.range(..=block.address).next_back() {
            assert!(before.address + before.bytes <= block.address, "{before:?} overlaps {block:?}");
        }
        if let Some((_, next)) = self.live.range(block.address..).next() {
            assert!(end <= next.address, "{next:?} overlaps {block:?}");
        }
    }
}
