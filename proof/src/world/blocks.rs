//! Blocks: allocated, used, recorded, resized, freed.

use super::{Inner, lock};
use crate::model::{Block, granted, pick};
use crate::operation::Size;
use crate::surface::{Kind, Refusal};

/// No device has a block of this size.
pub(super) const HUGE: u64 = 1 << 36;

impl Inner {
    pub(super) fn allocate(&mut self, thread: usize, size: Size, lane: u8, align: u8, pool: Option<u8>) {
        let lane = self.model.lane(lane);
        let bytes = size.bytes();
        let align = if align.is_multiple_of(4) { 1 << (align % 24) } else { 0 };
        let named = pool.and_then(|index| pick(&self.model.pools, index)).map(|at| &self.model.pools[at]);
        let named = named.filter(|pool| pool.device == lane.device).map(|pool| pool.id);
        let surface = self.surface();
        let (pool, align, answer) = match named {
            Some(id) => (Some(id), 0, surface.allocate_in(id, bytes, lane.stream)),
            None => {
                let pool = self.model.routed(thread, lane);
                (pool, align, surface.allocate(lane.device, bytes, align, lane.stream))
            }
        };
        match answer {
            Ok(address) if bytes == 0 => assert_eq!(address, 0, "nothing was asked for"),
            Ok(address) => {
                assert_eq!(address % align.max(512), 0, "{address:#x} is not aligned to {align}");
                let block = self.noted(address, bytes, lane.device, vec![lane.id], lane.stream, pool);
                self.add(block);
                self.begin_use();
            }
            Err(refusal) => self.allow_refusal(&refusal, lane.device, bytes, pool),
        }
    }

    /// The youngest block is marked.
    fn begin_use(&mut self) {
        let block = self.model.live.last().expect("it was added").clone();
        let marked = self.mark(&block);
        self.model.live.last_mut().expect("it was added").marked = marked;
    }

    /// What is known of a block that was handed out.
    pub(super) fn noted(
        &mut self,
        address: u64,
        requested: u64,
        device: u32,
        users: Vec<u32>,
        stream: u64,
        pool: Option<u64>,
    ) -> Block {
        let info = granted(self.surface().block(address), "a live block is known");
        assert_eq!((info.device, info.address, info.requested), (device, address, requested), "{info:x?}");
        assert_eq!(info.stream, stream, "{info:x?}");
        assert!(info.bytes >= requested, "{info:x?}");
        let end = info.segment + info.segment_bytes;
        assert!(info.segment <= address && address + info.bytes <= end, "I2: {info:x?} leaves its segment");
        assert!(self.machine.is_backed(address, info.bytes) != Some(false), "I2: no memory behind {info:x?}");
        Block {
            address,
            bytes: info.bytes,
            requested,
            device,
            tag: self.model.next_tag(),
            users,
            has_home: true,
            lost: false,
            marked: false,
            pool,
            asleep: false,
            exports: 0,
        }
    }

    /// Refusals of a request for memory that are in order.
    pub(super) fn allow_refusal(&self, refusal: &Refusal, device: u32, bytes: u64, pool: Option<u64>) {
        let fine = match refusal.kind {
            Kind::OutOfMemory => true,
            Kind::Driver => self.is_planned(refusal),
            Kind::Argument => bytes > HUGE,
            Kind::State => {
                let asleep = pool.is_some_and(|pool| self.surface().is_asleep(pool).unwrap_or(true));
                asleep || self.model.is_capturing(device)
            }
            Kind::Other => false,
        };
        assert!(fine, "{bytes} bytes on device {device}, pool {pool:?}: {refusal}");
    }

    pub(super) fn free(&mut self, block: u8, look: bool) {
        let Some(at) = pick(&self.model.live, block) else { return };
        let block = self.model.live.remove(at);
        if look {
            self.check_mark(&block);
        }
        granted(self.surface().free(block.address), "a live block can be freed");
        self.model.freed = Some(block.address);
        if block.exports > 0 {
            self.model.held.push(block);
        }
    }

    pub(super) fn record(&mut self, block: u8, lane: u8) {
        let Some(at) = pick(&self.model.live, block) else { return };
        let block = self.model.live[at].clone();
        let lane = self.model.lane_on(block.device, lane);
        let surface = self.surface();
        let home = block.users.first().and_then(|&home| self.model.lane_of(home)).filter(|_| block.has_home);
        let Some(home) = home.filter(|_| block.is_usable()) else { return };
        if block.users.contains(&lane.id) {
            // Its own stream and those recorded before change nothing.
            return granted(surface.record(block.address, lane.stream), "a live block can be recorded");
        }
        if !self.machine.order(block.device, home.stream, lane.stream) {
            return;
        }
        granted(surface.record(block.address, lane.stream), "a live block can be recorded");
        self.model.live[at].users.push(lane.id);
        self.work(&block, lane, true);
    }

    pub(super) fn erase(&mut self, block: u8, user: u8) {
        let Some(at) = pick(&self.model.live, block) else { return };
        let block = self.model.live[at].clone();
        let others = block.users.get(usize::from(block.has_home)..).unwrap_or_default();
        let Some(lane) = pick(others, user).and_then(|index| self.model.lane_of(others[index])) else {
            return;
        };
        let home = block.users.first().and_then(|&home| self.model.lane_of(home)).filter(|_| block.has_home);
        let behind = match home {
            Some(home) => self.machine.order(block.device, lane.stream, home.stream),
            None => self.machine.synchronize_stream(block.device, lane.stream),
        };
        if behind {
            granted(self.surface().erase(block.address, lane.stream), "a recorded stream can be erased");
            self.model.live[at].users.retain(|&user| user != lane.id);
        }
    }

    pub(super) fn use_block(&self, block: u8, user: u8, write: bool) {
        let Some(at) = pick(&self.model.live, block) else { return };
        let block = &self.model.live[at];
        let Some(index) = pick(&block.users, user) else { return };
        if let Some(lane) = self.model.lane_of(block.users[index]) {
            self.work(block, lane, write);
        }
    }

    pub(super) fn grow(&mut self, block: u8, size: Size) {
        let Some(at) = pick(&self.model.live, block) else { return };
        let block = self.model.live[at].clone();
        let bytes = block.requested.saturating_add(size.bytes());
        self.check_mark(&block);
        match self.surface().grow(block.address, bytes) {
            Ok(true) => {
                self.order_users(&block);
                self.resized(at, bytes);
            }
            Ok(false) => {}
            Err(refusal) => {
                let fine = match refusal.kind {
                    Kind::OutOfMemory => true,
                    Kind::Driver => self.is_planned(&refusal),
                    Kind::Argument => bytes > HUGE,
                    Kind::State => block.asleep || block.exports > 0 || self.model.is_capturing(block.device),
                    Kind::Other => false,
                };
                assert!(fine, "grow {block:x?} to {bytes}: {refusal}");
            }
        }
    }

    pub(super) fn shrink(&mut self, block: u8, parts: u8) {
        let Some(at) = pick(&self.model.live, block) else { return };
        let block = self.model.live[at].clone();
        let bytes = (u128::from(block.requested) * u128::from(parts) / 256) as u64;
        self.check_mark(&block);
        match self.surface().shrink(block.address, bytes) {
            Ok(()) => self.resized(at, bytes),
            Err(refusal) => {
                let fine = match refusal.kind {
                    Kind::Argument => bytes == 0,
                    Kind::State => block.asleep || block.exports > 0,
                    _ => false,
                };
                assert!(fine, "shrink {block:x?} to {bytes}: {refusal}");
            }
        }
    }

    /// A block has another length now, and its mark at the new end. New bytes are in order for the block's own
    /// stream only: the others come behind it from here on, and those that cannot use the block no more.
    fn order_users(&mut self, block: &Block) {
        let Some(at) = self.model.live.iter().position(|live| live.address == block.address) else { return };
        let home = block.users.first().and_then(|&home| self.model.lane_of(home)).filter(|_| block.has_home);
        let others = block.users.get(usize::from(block.has_home)..).unwrap_or_default();
        for &other in others {
            let ordered = match (home, self.model.lane_of(other)) {
                (Some(home), Some(lane)) => self.machine.order(block.device, home.stream, lane.stream),
                _ => false,
            };
            if !ordered {
                self.model.live[at].users.retain(|&user| user != other);
            }
        }
    }

    fn resized(&mut self, at: usize, bytes: u64) {
        let (address, device) = (self.model.live[at].address, self.model.live[at].device);
        let info = granted(self.surface().block(address), "a live block is known");
        assert_eq!((info.device, info.address, info.requested), (device, address, bytes), "{info:x?}");
        assert!(info.bytes >= bytes, "{info:x?}");
        let mut block = self.model.live.remove(at);
        (block.requested, block.bytes) = (bytes, info.bytes);
        let backed = block.asleep || self.machine.is_backed(address, info.bytes) != Some(false);
        assert!(backed, "I2: no memory behind {info:x?}");
        block.marked = self.mark(&block);
        self.add(block);
    }

    pub(super) fn misuse(&mut self, block: u8, offset: u16) {
        let live = pick(&self.model.live, block).map(|at| self.model.live[at].address);
        let address = match (live, offset) {
            (Some(address), 1..) => address.wrapping_add(u64::from(offset)),
            _ => self.model.freed.unwrap_or(0x1000),
        };
        let surface = self.surface();
        if !self.model.is_start(address) {
            let answers = [
                surface.free(address).err(),
                surface.record(address, 0).err(),
                surface.erase(address, 0).err(),
                surface.grow(address, 1 << 20).err(),
                surface.shrink(address, 1).err(),
                surface.block(address).err(),
                surface.export(address).err(),
            ];
            for answer in answers {
                let refused = answer.unwrap_or_else(|| panic!("{address:#x} is taken for a block"));
                // Before the first block there is nothing that could be asked.
                assert!(matches!(refused.kind, Kind::Argument | Kind::State), "{address:#x}: {refused}");
            }
        }
        let refused = [
            surface.allocate(9, 512, 0, 0).err(),
            surface.allocate(0, 512, 3 + 2 * u64::from(block), 0).err(),
        ];
        for answer in refused {
            let refusal = answer.expect("there is no such device, and no such alignment");
            assert_eq!(refusal.kind, Kind::Argument, "{refusal}");
        }
    }

    /// Lets the callback free a block when memory is short.
    pub(super) fn spare(&mut self, block: u8) {
        let Some(at) = pick(&self.model.live, block) else { return };
        if self.callback.is_some() && self.model.live[at].exports == 0 {
            let block = self.model.live.remove(at);
            lock(&self.spares).push(block.address);
            self.model.spares.push(block);
        }
    }

    /// A block is live; what the callback freed for it is not.
    pub(super) fn add(&mut self, block: Block) {
        self.follow_spares();
        self.model.add(block);
    }

    /// The model forgets what the callback has freed.
    pub(crate) fn follow_spares(&mut self) {
        let left = lock(&self.spares).clone();
        let before = self.model.spares.len();
        self.model.spares.retain(|block| left.contains(&block.address));
        self.rough |= self.model.spares.len() != before;
    }
}
