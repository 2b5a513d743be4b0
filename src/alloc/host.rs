//! What page-locked host memory, managed by an allocator of its own, needs of one: see the module `host`.

use std::sync::Arc;

use super::DeviceAllocator;
use super::device::{Caller, Device};
use crate::config::Config;
use crate::core::plan::Request;
use crate::driver::{DeviceId, Driver};
use crate::error::Result;

impl DeviceAllocator {
    /// An allocator whose driver gives host memory in pages of `page` bytes, that holds at most `limit` bytes of it.
    pub(crate) fn for_host(
        config: Config,
        limit: Option<u64>,
        driver: Arc<dyn Driver>,
        page: u64,
    ) -> Result<Self> {
        let mut allocator = Self::silent(config, driver)?;
        allocator.config.memory_limit = limit;
        allocator.host_page = Some(page);
        Ok(allocator)
    }

    /// Looks which streams have passed what, and waits for nothing: closes all open epochs by events, then
    /// asks for all events.
    pub(crate) fn look_at_streams(&self, device: DeviceId) -> Result<()> {
        match self.used(device)? {
            Some(state) => state.look_at_streams(&self.caller(state)),
            None => Ok(()),
        }
    }

    /// Closes the epochs of streams that freed blocks wait for, by events, so that they are over when somebody asks.
    pub(crate) fn close_used_streams(&self, device: DeviceId) -> Result<()> {
        match self.used(device)? {
            Some(state) => state.close_used_streams(&self.caller(state)),
            None => Ok(()),
        }
    }

    /// Bytes of blocks that were freed and wait for streams.
    pub(crate) fn waiting_bytes(&self, device: DeviceId) -> Result<u64> {
        let Some(state) = self.used(device)? else { return Ok(0) };
        let core = state.core.lock();
        Ok(core.waits.keys().map(|&id| core.blocks[id].len).sum())
    }

    /// Bytes held of the driver.
    pub(crate) fn held_bytes(&self, device: DeviceId) -> Result<u64> {
        Ok(self.used(device)?.map_or(0, |state| state.core.lock().held()))
    }
}

impl Device {
    fn close_used_streams(&self, caller: &Caller<'_>) -> Result<()> {
        let mut chore = Request::chore();
        let mut core = self.core.lock();
        let ids: Vec<_> = (1..core.streams.len() as u32).filter(|&id| core.is_closable(id)).collect();
        if !ids.is_empty() {
            let step = core.close(&ids);
            core = caller.perform(core, step, &mut chore);
        }
        caller.tell(core);
        chore.failure.take().map_or(Ok(()), Err)
    }

    fn look_at_streams(&self, caller: &Caller<'_>) -> Result<()> {
        let mut chore = Request::chore();
        let mut core = self.core.lock();
        if let Some(step) = core.close_all() {
            core = caller.perform(core, step, &mut chore);
        }
        if let Some(step) = core.query() {
            // A query whose failure nobody's memory depends on is no error for a request; here it is the answer.
            chore.retried = true;
            core = caller.perform(core, step, &mut chore);
        }
        caller.tell(core);
        chore.failure.take().map_or(Ok(()), Err)
    }
}
