//! The end of a program: everything goes back, and nothing is left.

use super::{Inner, lock};
use crate::model::granted;
use crate::surface::Books;

impl Inner {
    /// I6. Routes have ended before.
    pub(super) fn close(&mut self) {
        let surface = self.surface();
        self.machine.heal();
        self.armed = false;
        self.codes.clear();
        for device in 0..self.machine.devices() {
            self.machine.set_foreign(device, 0);
            granted(surface.set_fraction(device, 1.0), "the limit can go");
            if let Some(answer) = surface.set_limits(device, None, None) {
                granted(answer, "the limits can go");
            }
        }
        granted(surface.set_hook(None), "the hook can go");
        if let Some(callback) = self.callback.take() {
            granted(surface.remove_callback(callback), "the callback can go");
        }
        while !self.model.captured.is_empty() {
            self.end_capture(false);
        }
        self.free_all();
        self.rough = true;
        self.verify("all is freed");
        for device in 0..self.machine.devices() {
            assert!(self.machine.synchronize_device(device), "device {device} can be waited for");
        }
        granted(surface.host_empty(true), "the cache of host memory can be emptied");
        granted(surface.empty(-1), "the cache can be emptied");
        self.verify("the cache is empty");
        for device in 0..self.machine.devices() {
            let books = granted(surface.books(device), "statistics can be had");
            let left = Books { allocated_peak: 0, ..books };
            assert_eq!(left, Books::default(), "I6: device {device}");
        }
        let host = granted(surface.host_books(), "statistics of host memory can be had");
        assert_eq!((host.active_requests, host.active, host.held), (0, 0, 0), "I6: host memory");
        self.end_streams();
        drop(surface);
        self.surface = None;
        if self.owned {
            self.nothing_is_left();
        }
    }

    fn free_all(&mut self) {
        let surface = self.surface();
        lock(&self.spares).clear();
        self.model.live.append(&mut self.model.spares);
        while let Some(checkpoint) = self.model.checkpoints.pop() {
            granted(surface.release_checkpoint(checkpoint.id), "a checkpoint can be released");
        }
        while let Some(import) = self.model.imports.pop() {
            granted(surface.release_import(import.id), "an import can be given up");
        }
        while let Some(buffer) = self.model.buffers.pop() {
            self.check_mark(&buffer.block);
            granted(surface.destroy_buffer(buffer.id), "a buffer can be destroyed");
        }
        while !self.model.live.is_empty() {
            self.free(0, true);
        }
        while !self.model.exports.is_empty() {
            self.release_export(0);
        }
        while let Some((address, _)) = self.model.host.pop() {
            granted(surface.host_free(address), "a live host block can be freed");
        }
        self.free_stale(|_| true);
        while let Some(pool) = self.model.pools.pop() {
            for _ in 0..pool.graphs {
                granted(surface.release_graph(pool.id), "a graph is held");
            }
            granted(surface.release_pool(pool.id), "a pool can be released");
        }
    }

    /// The streams of a program that ran where others will run.
    fn end_streams(&mut self) {
        if self.owned && self.machine.mappings().is_some() {
            return;
        }
        let surface = self.surface();
        for lane in self.model.lanes.drain(..).filter(|lane| lane.stream != 0) {
            granted(surface.stream_destroyed(lane.device, lane.stream), "told of a stream's end");
            assert!(self.machine.destroy_stream(lane.device, lane.stream), "the machine keeps {lane:x?}");
        }
    }

    /// The allocator is gone, and the machine has everything back.
    fn nothing_is_left(&self) {
        let findings = self.machine.findings();
        assert!(findings.is_empty(), "I6: {findings:#?}");
        for device in 0..self.machine.devices() {
            let physical = self.machine.physical_bytes(device).unwrap_or(0);
            assert_eq!(physical, 0, "I6: physical memory of device {device}");
        }
        assert_eq!(self.machine.mappings().unwrap_or(0), 0, "I6: mappings");
        let lost = self.model.lost_space;
        assert_eq!(self.machine.reserved_bytes().unwrap_or(lost), lost, "I6: address space");
        if let (Some((made, gone)), false) = (self.machine.events(), self.was_armed || self.was_reset) {
            assert_eq!(made, gone, "I6: events made and destroyed");
        }
        assert_eq!(self.machine.current_device(), self.current_device, "I6: the current device");
    }

    /// After a panic: gives back what can be given back, whatever it answers, so that others can use the allocator.
    pub(super) fn abandon(&mut self) {
        let surface = self.surface();
        self.machine.heal();
        let mut refused = 0;
        let mut count = |answer: crate::surface::Answer<()>| refused += usize::from(answer.is_err());
        for device in 0..self.machine.devices() {
            self.machine.set_foreign(device, 0);
            count(surface.set_fraction(device, 1.0));
        }
        count(surface.set_hook(None));
        if let Some(callback) = self.callback.take() {
            count(surface.remove_callback(callback));
        }
        for route in self.model.routes.drain(..).rev() {
            count(surface.end_route(route.pool));
        }
        self.model.buffers.drain(..).for_each(|buffer| count(surface.destroy_buffer(buffer.id)));
        self.model.imports.drain(..).for_each(|import| count(surface.release_import(import.id)));
        self.model.exports.drain(..).for_each(|export| count(surface.release_export(export.id)));
        let blocks = self.model.live.drain(..).chain(self.model.spares.drain(..));
        blocks.for_each(|block| count(surface.free(block.address)));
        self.model.host.drain(..).for_each(|(address, _)| count(surface.host_free(address)));
        for pool in self.model.pools.drain(..) {
            (0..pool.graphs).for_each(|_| count(surface.release_graph(pool.id)));
            count(surface.release_pool(pool.id));
        }
        (0..self.machine.devices()).for_each(|device| _ = self.machine.synchronize_device(device));
        count(surface.host_empty(true));
        count(surface.empty(-1));
        for lane in self.model.lanes.drain(..).filter(|lane| lane.stream != 0) {
            count(surface.stream_destroyed(lane.device, lane.stream));
            self.machine.destroy_stream(lane.device, lane.stream);
        }
        self.surface = None;
        if refused > 0 {
            eprintln!("{refused} calls were refused while a failed program was cleared away");
        }
    }
}
