//! Memory pools in the order of streams: `aclrtMemPool*`.

use super::handles::Handle;
use crate::call::Call;
use crate::codes::{self, location};
use crate::exec::{HostOp, Task};
use crate::memory::HUGE;
use crate::pools::{PoolProps, Spare};
use crate::refusal::{Answer, Refusal, refuse};
use crate::sim::{Inner, Sim};

impl Sim {
    /// `aclrtMemPoolCreate`.
    ///
    /// # Errors
    /// The ACL code: 100000 unless the properties ask for pinned memory of a device and all reserved
    /// bytes are 0, 107001 for a device that is not visible, 107000 for more than the device has.
    pub fn pool_create(&self, props: &PoolProps) -> Result<u64, i32> {
        self.call(Call::MemPoolCreate, format_args!("{props:?}"), || {
            let &PoolProps { allocation_type, handle_type, location: place, max_size, reserved_zero } = props;
            if allocation_type != 0 || handle_type != 0 || place.kind != location::DEVICE || !reserved_zero {
                return refuse(
                    codes::INVALID_PARAM,
                    "not pinned memory of a device, or reserved bytes are set",
                );
            }
            let device = self.inner.devices.lock().driver_id(place.id)?;
            let total = self.inner.memory.lock().info(device, codes::attr::HBM)?.1;
            let max = max_size.checked_next_multiple_of(HUGE).filter(|&max| max <= total);
            let Some(max) = max else {
                return refuse(codes::RT_PARAM_INVALID, "more than the device has");
            };
            Ok(self.inner.pools.lock().create(device, max))
        })
    }

    /// `aclrtMemPoolDestroy`. Blocks that are used stay until they come back.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown pool.
    pub fn pool_destroy(&self, pool: u64) -> Result<(), i32> {
        self.call(Call::MemPoolDestroy, format_args!("{pool:#x}"), || {
            not_null(pool)?;
            let spare = self.inner.pools.lock().destroy(pool);
            self.give_to_device(spare.ok_or(UNKNOWN)?);
            Ok(())
        })
    }

    /// `aclrtMemPoolMallocAsync`: an address, 0 for size 0. Work queued to the stream from now on may
    /// use it, and other work that is ordered behind.
    ///
    /// # Errors
    /// The ACL code: 100000 for a null pool or stream, 107000 for an unknown pool, 107017 for a stale
    /// stream, 207001 when pool or device are full.
    pub fn pool_malloc_async(&self, size: u64, pool: u64, stream: u64) -> Result<u64, i32> {
        let arguments = format_args!("size={size}, {pool:#x}, stream={stream:#x}");
        self.call(Call::MemPoolMallocAsync, arguments, || {
            not_null(pool)?;
            not_null(stream)?;
            if size == 0 {
                return Ok(0);
            }
            let executor = &self.inner.executor;
            let context = self.context_for(&[Handle::Stream(stream)])?;
            Inner::executed(executor.mark(context, stream))?;
            let full = Refusal::new(codes::RT_MEMORY_ALLOCATION, "pool or device are full");
            let len = size.checked_next_multiple_of(HUGE).ok_or(full)?;
            let mut pools = self.inner.pools.lock();
            let home = pools.get(pool).ok_or(UNKNOWN)?;
            let (home_device, room) = (home.device, home.has_room(len));
            if let Some((start, _)) = pools.take_spare(pool, len, stream, |mark| executor.knows_mark(mark)) {
                return Ok(start);
            }
            if !room {
                return Err(full);
            }
            let start = self.inner.memory.lock().malloc_pooled(home_device, len)?;
            pools.add(pool, start, len);
            Ok(start)
        })
    }

    /// `aclrtMemPoolFreeAsync`: the block goes back when what is queued to the stream is done; the
    /// stream itself may have it again at once.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 if no used block of a pool starts there, 107017 for a
    /// stale stream.
    pub fn pool_free_async(&self, start: u64, stream: u64) -> Result<(), i32> {
        self.call(Call::MemPoolFreeAsync, format_args!("{start:#x}, stream={stream:#x}"), || {
            let context = self.context_for(&[Handle::Other(start), Handle::Stream(stream)])?;
            let executor = &self.inner.executor;
            let mut pools = self.inner.pools.lock();
            let Some(len) = pools.len_of(start) else {
                return refuse(codes::RT_PARAM_INVALID, "no used block of a pool starts there");
            };
            // To the use checker giving back is a last use of the block by the stream.
            let task = Task::new(Call::MemPoolFreeAsync.name()).writes(start, len, 0);
            Inner::executed(executor.submit(context, stream, task))?;
            let mark = Inner::executed(executor.mark(context, stream))?;
            pools.give_back(start, stream, mark);
            Ok(())
        })
    }

    /// `aclrtMemPoolTrimTo`: gives spare memory back to the device until the pool reserves no more
    /// than `keep` bytes, as far as the work before has ended.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown pool.
    pub fn pool_trim_to(&self, pool: u64, keep: u64) -> Result<(), i32> {
        self.call(Call::MemPoolTrimTo, format_args!("{pool:#x}, keep={keep}"), || {
            not_null(pool)?;
            let mut pools = self.inner.pools.lock();
            pools.get(pool).ok_or(UNKNOWN)?;
            let keep = |handle, _: &_| (handle == pool).then_some(keep);
            let gone = pools.release(None, keep, |mark| self.inner.executor.query_mark(mark));
            drop(pools);
            self.give_to_device(gone);
            Ok(())
        })
    }

    /// `aclrtMemPoolSetAttr`: how memory is reused (1 to 3, kept and not looked at), the release
    /// threshold in bytes (4), and 0 for the peaks (6 and 8).
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown pool and what cannot be set.
    pub fn pool_set_attr(&self, pool: u64, attribute: u32, value: u64) -> Result<(), i32> {
        self.call(Call::MemPoolSetAttr, format_args!("{pool:#x}, attr={attribute}, {value}"), || {
            not_null(pool)?;
            if self.inner.pools.lock().get(pool).ok_or(UNKNOWN)?.set_attribute(attribute, value) {
                return Ok(());
            }
            refuse(codes::RT_PARAM_INVALID, "an attribute that cannot be set to that")
        })
    }

    /// `aclrtMemPoolGetAttr`: those of [`pool_set_attr`](Self::pool_set_attr), bytes reserved now (5)
    /// and at most (6), bytes used now (7) and at most (8).
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown pool or attribute.
    pub fn pool_attr(&self, pool: u64, attribute: u32) -> Result<u64, i32> {
        self.call(Call::MemPoolGetAttr, format_args!("{pool:#x}, attr={attribute}"), || {
            not_null(pool)?;
            let value = self.inner.pools.lock().get(pool).ok_or(UNKNOWN)?.attribute(attribute);
            value.ok_or(Refusal::new(codes::RT_PARAM_INVALID, "no such attribute of a pool"))
        })
    }

    /// The host has waited for something: spare memory above the thresholds goes back.
    pub(super) fn pools_after_wait(&self) {
        let mut pools = self.inner.pools.lock();
        if pools.is_empty() {
            return;
        }
        let gone =
            pools.release(None, |_, pool| Some(pool.threshold), |mark| self.inner.executor.knows_mark(mark));
        drop(pools);
        self.give_to_device(gone);
    }

    /// A device is full: all spare memory of its pools goes back, as far as its work is done. Whether
    /// any did.
    pub(super) fn trim_pools(&self, device: u32) -> bool {
        let mut pools = self.inner.pools.lock();
        let gone = pools.release(Some(device), |_, _| Some(0), |mark| self.inner.executor.query_mark(mark));
        drop(pools);
        let any = !gone.is_empty();
        self.give_to_device(gone);
        any
    }

    fn give_to_device(&self, gone: Vec<Spare>) {
        for Spare { start, len, mark, .. } in gone {
            // A destroyed pool may hold blocks whose work runs: the host waits for it.
            self.inner.executor.wait_mark(&mark);
            self.inner.executor.host_touch(HostOp::Free, start, len);
            self.inner.wait_unused(start, len).free_pooled(start);
        }
    }
}

/// Why a pool is not taken.
const UNKNOWN: Refusal = Refusal::new(codes::RT_PARAM_INVALID, "no such pool");

fn not_null(handle: u64) -> Answer<()> {
    if handle == 0 { refuse(codes::INVALID_PARAM, "null pool, stream or address") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Location;
    use crate::pools::pool_attr::{RELEASE_THRESHOLD, RESERVED_CURRENT, RESERVED_HIGH, USED_CURRENT};
    use crate::{LAG_NEVER, SimConfig};

    fn props(max_size: u64) -> PoolProps {
        let location = Location::device(0);
        PoolProps { allocation_type: 0, handle_type: 0, location, max_size, reserved_zero: true }
    }

    fn machine() -> Sim {
        let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        sim
    }

    #[test]
    fn arguments_are_checked() {
        let sim = machine();
        let bad = |change: fn(&mut PoolProps)| {
            let mut props = props(0);
            change(&mut props);
            sim.pool_create(&props)
        };
        assert_eq!(bad(|props| props.allocation_type = 1), Err(codes::INVALID_PARAM));
        assert_eq!(bad(|props| props.location.kind = 0), Err(codes::INVALID_PARAM));
        assert_eq!(bad(|props| props.reserved_zero = false), Err(codes::INVALID_PARAM));
        assert_eq!(bad(|props| props.location.id = 3), Err(codes::RT_INVALID_DEVICEID));
        assert_eq!(bad(|props| props.max_size = 2 << 30), Err(codes::RT_PARAM_INVALID));
        let (pool, stream) = (sim.pool_create(&props(0)).unwrap(), sim.create_stream().unwrap());
        assert_eq!(sim.pool_malloc_async(5, 0, stream), Err(codes::INVALID_PARAM));
        assert_eq!(sim.pool_malloc_async(5, pool, 0), Err(codes::INVALID_PARAM));
        assert_eq!(sim.pool_malloc_async(0, pool, stream), Ok(0));
        assert_eq!(sim.pool_malloc_async(5, pool + 1, stream), Err(codes::RT_PARAM_INVALID));
        assert_eq!(sim.pool_malloc_async(5, pool, stream + 1), Err(codes::RT_INVALID_HANDLE));
        let block = sim.pool_malloc_async(5, pool, stream).unwrap();
        assert_eq!(sim.free(block), Err(codes::RT_PARAM_INVALID), "aclrtFree takes no blocks of pools");
        assert_eq!(sim.pool_free_async(block + 1, stream), Err(codes::RT_PARAM_INVALID));
        assert_eq!(sim.pool_set_attr(pool, USED_CURRENT, 0), Err(codes::RT_PARAM_INVALID));
        assert_eq!(sim.pool_attr(pool, 9), Err(codes::RT_PARAM_INVALID));
        sim.pool_destroy(pool).unwrap();
        assert_eq!(sim.pool_destroy(pool), Err(codes::RT_PARAM_INVALID));
        sim.pool_free_async(block, stream).unwrap();
        sim.synchronize_stream(stream).unwrap();
        assert_eq!((sim.physical_bytes(0), sim.findings()), (0, Vec::new()));
    }

    #[test]
    fn a_stream_has_its_block_again_at_once_and_others_after_a_wait() {
        let sim = machine();
        let pool = sim.pool_create(&props(4 * HUGE)).unwrap();
        sim.pool_set_attr(pool, RELEASE_THRESHOLD, 2 * HUGE).unwrap();
        let (one, two) = (sim.create_stream().unwrap(), sim.create_stream().unwrap());
        let block = sim.pool_malloc_async(HUGE, pool, one).unwrap();
        sim.submit(one, Task::new("kernel").writes(block, HUGE, 0)).unwrap();
        sim.pool_free_async(block, one).unwrap();
        assert_eq!(sim.pool_malloc_async(100, pool, one), Ok(block));
        sim.submit(one, Task::new("kernel").writes(block, HUGE, 0)).unwrap();
        sim.pool_free_async(block, one).unwrap();
        let other = sim.pool_malloc_async(100, pool, two).unwrap();
        assert_ne!(other, block);
        assert_eq!(
            (sim.pool_attr(pool, RESERVED_CURRENT), sim.pool_attr(pool, USED_CURRENT)),
            (Ok(2 * HUGE), Ok(HUGE))
        );
        assert_eq!(sim.pool_malloc_async(3 * HUGE, pool, two), Err(codes::RT_MEMORY_ALLOCATION));
        sim.synchronize_stream(one).unwrap();
        assert_eq!(sim.pool_malloc_async(100, pool, two), Ok(block));
        sim.submit(two, Task::new("kernel").writes(block, HUGE, 0)).unwrap();
        for start in [block, other] {
            sim.pool_free_async(start, two).unwrap();
        }
        sim.synchronize_device().unwrap();
        assert_eq!(sim.pool_attr(pool, RESERVED_CURRENT), Ok(2 * HUGE), "the threshold keeps it");
        sim.pool_trim_to(pool, HUGE).unwrap();
        assert_eq!((sim.pool_attr(pool, RESERVED_CURRENT), sim.physical_bytes(0)), (Ok(HUGE), HUGE));
        assert_eq!(sim.pool_attr(pool, RESERVED_HIGH), Ok(2 * HUGE));
        sim.pool_set_attr(pool, RELEASE_THRESHOLD, 0).unwrap();
        sim.synchronize_device().unwrap();
        assert_eq!(sim.physical_bytes(0), 0);
        assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    }

    #[test]
    fn a_full_device_takes_what_pools_do_not_use() {
        let sim = machine();
        let (pool, stream) = (sim.pool_create(&props(0)).unwrap(), sim.create_stream().unwrap());
        sim.pool_set_attr(pool, RELEASE_THRESHOLD, 1 << 30).unwrap();
        let block = sim.pool_malloc_async(700 << 20, pool, stream).unwrap();
        sim.pool_free_async(block, stream).unwrap();
        assert_eq!(
            sim.malloc(600 << 20, 0),
            Err(codes::RT_MEMORY_ALLOCATION),
            "its stream has not come so far"
        );
        sim.synchronize_stream(stream).unwrap();
        assert!(sim.malloc(600 << 20, 0).is_ok());
    }
}
