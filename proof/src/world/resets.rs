//! Devices that are reset, and streams that are captured by the runtime.

use super::{Inner, lock};
use crate::model::granted;
use crate::surface::Kind;

impl Inner {
    /// A device is reset. What was on it is forgotten: a block that was live can be freed once, and nothing comes
    /// of it; pools stay, empty; graphs and sleep have ended.
    pub(super) fn reset(&mut self, device: bool) {
        let device = self.device(device);
        if !self.owned || !self.machine.reset(device) {
            return;
        }
        self.was_reset = true;
        self.rough = true;
        let surface = self.surface();
        granted(surface.device_was_reset(device), "told of a reset");
        granted(surface.device_was_reset(device), "a second time changes nothing");
        self.model.captured.retain(|lane| lane.device != device);
        let gone: Vec<_> = self.model.lanes.iter().filter(|lane| lane.device == device).copied().collect();
        gone.iter().filter(|lane| lane.stream != 0).for_each(|lane| self.model.end_lane(lane.id, false));
        self.forget_others(device);
        let mut stale: Vec<u64> = Vec::new();
        let spares = &self.model.spares;
        lock(&self.spares).retain(|address| {
            !spares.iter().any(|spare| spare.address == *address && spare.device == device)
        });
        for list in [&mut self.model.live, &mut self.model.spares] {
            list.retain(|block| {
                stale.extend((block.device == device).then_some(block.address));
                block.device != device
            });
        }
        self.model.held.retain(|block| block.device != device);
        self.model.stale.extend(stale.into_iter().map(|address| (device, address)));
        // Their graphs have ended, and each is to be released all the same.
        for pool in self.model.pools.iter().filter(|pool| pool.device == device) {
            assert!(!granted(surface.is_asleep(pool.id), "the pool lives"), "a pool sleeps after a reset");
        }
        // Every other one is freed at once.
        let mut at_once = false;
        self.free_stale(|_| {
            at_once = !at_once;
            at_once
        });
        // Imports that were on their way out are gone too; the allocator asks nothing for them.
        let emptied = surface.empty(device as i32);
        self.may_be_refused(emptied, &[Kind::State]);
        let known: i64 = (0..self.machine.devices())
            .map(|device| granted(surface.books(device), "statistics can be had").address_space)
            .sum();
        if let Some(reserved) = self.machine.reserved_bytes() {
            self.model.lost_space = reserved - known as u64;
        }
    }

    /// Buffers, exports, imports and checkpoints of a device that was reset: they can be given up.
    fn forget_others(&mut self, device: u32) {
        let surface = self.surface();
        let (gone, stay): (Vec<_>, Vec<_>) =
            self.model.buffers.drain(..).partition(|buffer| buffer.home.device == device);
        self.model.buffers = stay;
        for buffer in gone {
            assert!(surface.resize_buffer(buffer.id, buffer.max).is_err(), "a buffer grows after a reset");
            granted(surface.destroy_buffer(buffer.id), "a buffer can be destroyed");
        }
        let (gone, stay): (Vec<_>, Vec<_>) =
            self.model.checkpoints.drain(..).partition(|checkpoint| checkpoint.device == device);
        self.model.checkpoints = stay;
        for checkpoint in gone {
            if !checkpoint.blocks.is_empty() {
                let refused = surface.restore(checkpoint.id).expect_err("its memory is gone");
                assert_eq!(refused.kind, Kind::State, "{refused}");
            }
            granted(surface.release_checkpoint(checkpoint.id), "a checkpoint can be released");
        }
        let of_device = |address: u64| {
            let mut blocks = self.model.live.iter().chain(&self.model.held);
            blocks.any(|block| block.address == address && block.device == device)
        };
        let (gone, stay): (Vec<_>, Vec<_>) =
            self.model.exports.iter().copied().partition(|export| of_device(export.address));
        self.model.exports = stay;
        for export in gone {
            granted(surface.release_export(export.id), "an export can be ended");
        }
        let (gone, stay): (Vec<_>, Vec<_>) =
            self.model.imports.drain(..).partition(|import| import.lane.device == device);
        self.model.imports = stay;
        for import in gone {
            granted(surface.release_import(import.id), "an import can be given up");
        }
    }

    /// Frees blocks of before a reset: once that is accepted.
    pub(super) fn free_stale(&mut self, mut which: impl FnMut(u64) -> bool) {
        let surface = self.surface();
        self.model.stale.retain(|&(_, address)| {
            let goes = which(address);
            if goes {
                granted(surface.free(address), "a block of before a reset can be freed once");
                let again = surface.free(address).expect_err("it was freed before");
                assert_eq!(again.kind, Kind::Argument, "{again}");
            }
            !goes
        });
    }

    /// A stream is captured by the runtime. What other streams used it for is over before.
    pub(super) fn capture_stream(&mut self, lane: u8) {
        let lane = self.model.lane(lane);
        let known = self.model.captured.iter().any(|other| other.id == lane.id);
        if lane.stream == 0 || known || self.model.captured.len() >= 2 {
            return;
        }
        if self.machine.begin_capture(lane.device, lane.stream) {
            self.model.captured.push(lane);
        }
    }

    /// The capture that began first ends. Nothing that the allocator did has spoilt it.
    pub(super) fn end_capture(&mut self, spoil: bool) {
        if self.model.captured.is_empty() {
            return;
        }
        let lane = self.model.captured.remove(0);
        let graph = self.machine.end_capture(lane.device, lane.stream, spoil);
        assert_eq!(graph, !spoil, "the capture of {lane:x?}");
    }
}
