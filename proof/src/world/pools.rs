//! Pools, routes, captures, checkpoints, sleep, and growing buffers.

use super::Inner;
use crate::model::{Block, Buffer, Checkpoint, Pool, Route, granted, pick};
use crate::operation::{Size, TAGS};
use crate::surface::{Filter, Kind, PoolChoice, Refusal};

const MIB: u64 = 1 << 20;

impl Inner {
    pub(super) fn create_pool(
        &mut self,
        device: bool,
        tag: u8,
        (no_split, use_on_oom, soft): (bool, bool, u8),
    ) {
        if self.model.pools.len() >= 4 {
            return;
        }
        let device = self.device(device);
        let tag = TAGS[usize::from(tag) % TAGS.len()];
        let soft_limit = if soft < 192 { 0 } else { u64::from(soft - 191) * MIB };
        let choice = PoolChoice { tag, no_split, use_on_oom, soft_limit };
        match self.surface().create_pool(device, choice) {
            Ok(id) => self.model.pools.push(Pool { id, device, graphs: 0 }),
            // A device is set up when it is first used.
            Err(refusal) => assert!(self.is_planned(&refusal), "{refusal}"),
        }
    }

    /// Lets a pool go: it lives as long as its blocks. Graphs are released before, routes keep it.
    pub(super) fn release_pool(&mut self, pool: u8) {
        let Some(at) = pick(&self.model.pools, pool) else { return };
        let pool = self.model.pools[at].clone();
        if self.model.routes.iter().any(|route| route.pool == pool.id) {
            return;
        }
        let surface = self.surface();
        self.model.pools.remove(at);
        self.forget_checkpoints(|checkpoint| checkpoint.pool == pool.id);
        for _ in 0..pool.graphs {
            granted(surface.release_graph(pool.id), "a graph is held");
        }
        granted(surface.release_pool(pool.id), "a pool can be released once");
        let again = surface.release_pool(pool.id).expect_err("it was released before");
        assert_eq!(again.kind, Kind::Argument, "{again}");
    }

    fn forget_checkpoints(&mut self, which: impl Fn(&Checkpoint) -> bool) {
        let surface = self.surface();
        self.model.checkpoints.retain(|checkpoint| {
            let goes = which(checkpoint);
            if goes {
                granted(surface.release_checkpoint(checkpoint.id), "a checkpoint can be released");
            }
            !goes
        });
    }

    pub(super) fn begin_route(&mut self, thread: usize, pool: u8, filter: u8, capture: bool) {
        let Some(at) = pick(&self.model.pools, pool).filter(|_| self.model.routes.len() < 3) else { return };
        let Pool { id, device, .. } = self.model.pools[at];
        let filter = match filter % 3 {
            0 => Filter::All,
            1 => Filter::Thread,
            _ => Filter::Stream(self.model.lane_on(device, filter / 3).stream),
        };
        let surface = self.surface();
        if capture {
            match surface.begin_capture(id, filter) {
                Ok(()) => self.model.pools[at].graphs += 1,
                Err(refusal) => {
                    assert_eq!(refusal.kind, Kind::State, "{refusal}");
                    return assert!(granted(surface.is_asleep(id), "the pool lives"), "{refusal}");
                }
            }
        } else {
            granted(surface.begin_route(id, filter), "a pool that lives can be routed to");
        }
        self.model.routes.push(Route { pool: id, device, filter, thread, capture });
    }

    /// Ends the newest route; the caller sees to it that this is its thread.
    pub(super) fn end_route(&mut self) {
        if let Some(route) = self.model.routes.pop() {
            granted(self.surface().end_route(route.pool), "the newest route can be ended");
        }
    }

    pub(super) fn release_graph(&mut self, pool: u8) {
        let Some(at) = pick(&self.model.pools, pool) else { return };
        let capturing =
            self.model.routes.iter().any(|route| route.capture && route.pool == self.model.pools[at].id);
        let pool = &mut self.model.pools[at];
        if capturing {
            return;
        }
        let (id, held) = (pool.id, pool.graphs > 0);
        pool.graphs = pool.graphs.saturating_sub(1);
        match self.surface().release_graph(id) {
            Ok(()) => assert!(held, "no graph holds the pool"),
            Err(refusal) => assert!(!held && refusal.kind == Kind::State, "{refusal}"),
        }
    }

    pub(super) fn checkpoint(&mut self, pool: u8) {
        let Some(at) = pick(&self.model.pools, pool).filter(|_| self.model.checkpoints.len() < 4) else {
            return;
        };
        let Pool { id: pool, device, .. } = self.model.pools[at];
        let id = granted(self.surface().checkpoint(pool), "a pool that lives has a checkpoint");
        let blocks =
            self.model.live.iter().chain(&self.model.spares).filter(|block| block.pool == Some(pool));
        let blocks = blocks.cloned().collect();
        self.model.checkpoints.push(Checkpoint { id, pool, device, blocks });
    }

    /// Goes back to a checkpoint, where no work runs.
    pub(super) fn restore(&mut self, checkpoint: u8) {
        let Some(at) = pick(&self.model.checkpoints, checkpoint) else { return };
        let Checkpoint { id, pool, device, blocks } = self.model.checkpoints[at].clone();
        let held = self.model.held.iter().chain(&self.model.spares).any(|block| block.pool == Some(pool));
        let exported = self.model.live.iter().any(|block| block.pool == Some(pool) && block.exports > 0);
        if held || exported || !self.machine.synchronize_device(device) {
            return;
        }
        self.rough = true;
        let answer = self.surface().restore(id);
        let (freed, handed_out) = match answer {
            Ok(both) => both,
            Err(refusal) => return assert_eq!(refusal.kind, Kind::State, "{refusal}"),
        };
        let mut before: Vec<u64> = Vec::new();
        self.model.live.retain(|block| {
            let goes = block.pool == Some(pool);
            before.extend(goes.then_some(block.address));
            !goes
        });
        before.sort_unstable();
        assert_eq!(freed, before, "what was freed");
        let mut expected: Vec<u64> = blocks.iter().map(|block| block.address).collect();
        expected.sort_unstable();
        assert_eq!(handed_out, expected, "what was handed out");
        for saved in blocks {
            let block = Block {
                tag: self.model.next_tag(),
                users: saved.users.first().copied().filter(|_| saved.has_home).into_iter().collect(),
                lost: false,
                marked: false,
                asleep: false,
                exports: 0,
                ..saved
            };
            self.add(block);
        }
    }

    pub(super) fn sleep(&mut self, device: bool, tag: u8, keep: bool) {
        let device = self.device(device);
        let tag = TAGS[usize::from(tag) % TAGS.len()];
        let answer = self.surface().sleep(device, tag, keep);
        if let Err(refusal) = &answer {
            let fine = match refusal.kind {
                Kind::Argument | Kind::State => true,
                // There may be no host memory for what is to be kept.
                Kind::OutOfMemory => keep,
                Kind::Driver => self.is_planned(refusal),
                Kind::Other => false,
            };
            assert!(fine, "sleep {tag}: {refusal}");
        }
        let awake: Vec<u64> =
            self.model.all().filter(|block| !block.asleep).map(|block| block.address).collect();
        self.follow_sleep();
        let kept = keep && answer.is_ok();
        for block in self.model.all_mut().filter(|block| block.asleep && awake.contains(&block.address)) {
            block.marked &= kept;
        }
    }

    pub(super) fn wake(&mut self, device: bool, tag: u8) {
        let device = self.device(device);
        let tag = TAGS[usize::from(tag) % TAGS.len()];
        if let Err(refusal) = self.surface().wake(device, tag) {
            let fine = match refusal.kind {
                Kind::Argument | Kind::OutOfMemory | Kind::State => true,
                Kind::Driver => self.is_planned(&refusal),
                Kind::Other => false,
            };
            assert!(fine, "wake {tag}: {refusal}");
        }
    }

    /// Which blocks have no memory at the moment is what the snapshot says; that their memory is gone is
    /// compared with the machine.
    pub(crate) fn follow_sleep(&mut self) {
        if self.model.all().all(|block| block.pool.is_none()) {
            return;
        }
        let surface = self.surface();
        let mut sleeping = Vec::new();
        for device in 0..self.machine.devices() {
            let stretches = granted(surface.snapshot(device), "a snapshot can be had");
            let asleep = stretches.into_iter().filter(|stretch| stretch.is_asleep);
            sleeping.extend(asleep.map(|stretch| stretch.address..stretch.address + stretch.bytes));
        }
        for block in self.model.all_mut().filter(|block| block.pool.is_some()) {
            block.asleep = sleeping.iter().any(|range| range.contains(&block.address));
        }
    }

    pub(super) fn create_buffer(&mut self, thread: usize, lane: u8, max: Size, size: Size) {
        if self.model.buffers.len() >= 4 {
            return;
        }
        let lane = self.model.lane(lane);
        let max = max.bytes().max(1);
        let bytes = size.bytes().min(max);
        let pool = self.model.routed(thread, lane);
        let surface = self.surface();
        self.rough = true;
        let id = match surface.create_buffer(lane.device, lane.stream, max, bytes) {
            Ok(id) => id,
            Err(refusal) => return self.allow_buffer_refusal(&refusal, lane.device, max, pool),
        };
        let info = granted(surface.buffer(id), "a buffer is known");
        assert!(info.bytes == bytes && info.max_bytes >= bytes && info.mapped_bytes >= bytes, "{info:x?}");
        let block = Block {
            address: info.address,
            bytes,
            requested: bytes,
            device: lane.device,
            tag: self.model.next_tag(),
            users: vec![lane.id],
            has_home: true,
            lost: false,
            marked: false,
            pool,
            asleep: false,
            exports: 0,
        };
        let marked = self.mark(&block);
        let block = Block { marked, ..block };
        self.model.buffers.push(Buffer { id, max: info.max_bytes, block, home: lane });
    }

    fn allow_buffer_refusal(&self, refusal: &Refusal, device: u32, bytes: u64, pool: Option<u64>) {
        // Without virtual memory there are no growing buffers.
        if refusal.kind != Kind::Driver || !self.was_armed {
            self.allow_refusal(refusal, device, bytes, pool);
        }
    }

    pub(super) fn resize_buffer(&mut self, buffer: u8, size: Size) {
        let Some(at) = pick(&self.model.buffers, buffer) else { return };
        let Buffer { id, max, block, .. } = self.model.buffers[at].clone();
        let bytes = size.bytes();
        self.check_mark(&block);
        self.rough = true;
        match self.surface().resize_buffer(id, bytes) {
            Ok(()) => assert!(bytes <= max, "{bytes} bytes in a buffer of {max}"),
            Err(refusal) if bytes > max => return assert_eq!(refusal.kind, Kind::Argument, "{refusal}"),
            Err(refusal) if refusal.kind == Kind::State && block.asleep => return,
            Err(refusal) => return self.allow_buffer_refusal(&refusal, block.device, bytes, block.pool),
        }
        let info = granted(self.surface().buffer(id), "a buffer is known");
        assert!(info.bytes == bytes && info.address == block.address, "{info:x?}");
        let mut block = Block { bytes, requested: bytes, ..block };
        if bytes == 0 {
            // What was recorded is over with what it was recorded for.
            block.users.truncate(1);
        }
        block.marked = self.mark(&block);
        self.model.buffers[at].block = block;
    }

    pub(super) fn record_buffer(&mut self, buffer: u8, lane: u8) {
        let Some(at) = pick(&self.model.buffers, buffer) else { return };
        let Buffer { id, block, home, .. } = self.model.buffers[at].clone();
        let lane = self.model.lane_on(block.device, lane);
        if !block.is_usable() || block.users.contains(&lane.id) {
            return;
        }
        if self.machine.order(block.device, home.stream, lane.stream) {
            granted(self.surface().record_buffer(id, lane.stream), "a buffer can be recorded");
            self.model.buffers[at].block.users.push(lane.id);
            self.work(&block, lane, true);
        }
    }

    pub(super) fn destroy_buffer(&mut self, buffer: u8) {
        let Some(at) = pick(&self.model.buffers, buffer) else { return };
        let buffer = self.model.buffers.remove(at);
        self.check_mark(&buffer.block);
        granted(self.surface().destroy_buffer(buffer.id), "a buffer can be destroyed");
    }
}
