//! Sleep and wake: pools give their physical memory back to the device and keep their addresses.
//!
//! | state of the pool | allocate | free a block | grow a block | sleep | wake |
//! |---|---|---|---|---|---|
//! | awake | yes | yes | yes | falls asleep | nothing to do |
//! | falling asleep or waking | `State` | yes | `State` | `State` | `State` |
//! | asleep | `State` | yes; its content is dropped | `State` | gives back what a failure left | wakes |
//!
//! A pool whose last block is freed while it sleeps wakes by itself, without memory, if no graph has its addresses or with
//! the last of these. Sleeping or waking several
//! pools of a device is one step: it is done for all or for none.
//!
//! A pool that sleeps has memory behind it only where the driver has failed twice: a wake could not wait for its copies,
//! or a sleep could not put back what it had taken. Putting it to sleep again gives that back, and leaves its content
//! where it is kept.

mod wake;

use super::device::{Caller, Device};
use super::pressure::is_in_plan;
use super::{DeviceAllocator, PoolId};
use crate::core::Core;
use crate::core::plan::{Request, Spare, Step, granules_of};
use crate::core::pool::PoolIndex;
use crate::core::sleep::{Depth, Kept, Unwanted};
use crate::driver::DeviceId;
use crate::error::{Error, Result};
use crate::history::Action;
use crate::hook::MemoryEvent;
use crate::stats::DriverCalls;

/// What becomes of the content of live blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepMode {
    /// It is lost: after waking, blocks hold anything.
    Discard,
    /// It is kept in page-locked host memory (of the [`ContentStore`](super::ContentStore), if there is one) and copied
    /// back.
    Offload,
}

/// What putting pools to sleep brought; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slept {
    /// Pools that fell asleep, or gave back what an earlier call that failed had left behind them.
    pub pools: u32,
    /// Physical memory given back to the driver.
    pub returned_bytes: u64,
    /// By how much the free memory grew that the device itself reports. Less than `returned_bytes` where
    /// others took memory meanwhile, or the device keeps memory while addresses are reserved.
    pub device_bytes: u64,
    /// Page-locked host memory that keeps content.
    pub host_bytes: u64,
}

/// What waking pools took; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// Pools that woke.
    pub pools: u32,
    /// Physical memory put behind them.
    pub mapped_bytes: u64,
    /// Content copied back.
    pub copied_bytes: u64,
}

/// Of each pool, where its content is kept.
type Contents = Vec<Vec<Kept>>;

/// Pools on their way.
struct Begun {
    pools: Vec<PoolIndex>,
    /// Those of them that sleep already, with memory behind them that is to go back.
    sunk: Vec<PoolIndex>,
    /// How often the device had been reset.
    generation: u64,
    /// The content that is to be copied back, or stays. After a reset, nobody else knows of it.
    content: Vec<Kept>,
}

impl DeviceAllocator {
    /// Puts all pools with one of the tags to sleep (without tags: all pools but the default ones, those with a source of their
    /// own, and what holds blocks of a time [without caching](Self::set_caching)), on one device or on all: their memory goes
    /// back to the device, their addresses and live blocks stay. Waits for the streams that used them, and while a captured graph
    /// lives on the device, into whatever pool it was captured, for all of its streams, because a graph may run on any stream and
    /// use any block. Until they wake, nobody may queue work
    /// on their blocks or run their graphs; other memory is used as always. What a graph has freed in its capture is kept and
    /// comes back as its live blocks do. Pools that sleep already, in either mode, are left as they are; but
    /// memory that a call which failed left behind them goes back.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] when no pool has a tag that is named, or for an unknown device. [`Error::State`] when a pool cannot
    /// sleep (the default pool, memory from a source or in fixed blocks, live blocks that are exported or lent to the default pool), when another thread is putting
    /// it to sleep or waking it, or while a graph is captured on the device.
    /// [`Error::Driver`] when the driver refuses. The pools of that device are awake then; those of devices before it sleep.
    pub fn sleep(&self, device: Option<DeviceId>, tags: &[&str], mode: SleepMode) -> Result<Slept> {
        let mut sum = Slept::default();
        for (state, pools) in self.tagged(device, tags)? {
            let slept = self.caller(state).sleep(&pools, mode)?;
            sum.pools += slept.pools;
            sum.returned_bytes += slept.returned_bytes;
            sum.device_bytes += slept.device_bytes;
            sum.host_bytes += slept.host_bytes;
        }
        Ok(sum)
    }

    /// Wakes all pools with one of the tags (without tags: all), on one device or on all: memory is put behind their blocks at the same addresses,
    /// and kept content is copied back; it is there when the call returns. Pools that are awake are left as they are.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] when the device has too little memory, also after the ladder of a request was climbed (what is
    /// idle elsewhere was taken, callbacks were called, streams were waited for);
    /// [`Error::State`] while a graph is captured on the device and content is to be copied;
    /// [`Error::Argument`], [`Error::State`] and [`Error::Driver`] as [`sleep`](Self::sleep). The pools of that device sleep then as
    /// before, with their content; those of devices before it are awake.
    pub fn wake(&self, device: Option<DeviceId>, tags: &[&str]) -> Result<Woken> {
        let mut sum = Woken::default();
        for (state, pools) in self.tagged(device, tags)? {
            let woken = self.caller(state).wake(&pools)?;
            sum.pools += woken.pools;
            sum.mapped_bytes += woken.mapped_bytes;
            sum.copied_bytes += woken.copied_bytes;
        }
        Ok(sum)
    }

    /// Whether a pool sleeps.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a pool that does not exist.
    pub fn is_asleep(&self, pool: PoolId) -> Result<bool> {
        let state = self.device(pool.device)?;
        let core = state.core.lock();
        Ok(core.is_asleep(super::pools::known(&core, pool)?))
    }

    /// The devices with pools of these tags, and the public names of those pools: indices are used again.
    fn tagged(&self, device: Option<DeviceId>, tags: &[&str]) -> Result<Vec<(&Device, Vec<u64>)>> {
        let mut found = Vec::new();
        let mut missing = tags.to_vec();
        for id in self.chosen(device)? {
            let Some(state) = self.used(id)? else { continue };
            let core = state.core.lock();
            let mut pools: Vec<_> = match tags {
                [] => core.pools.indices().filter(|&pool| core.is_meant_by_all(pool)).collect(),
                tags => tags.iter().flat_map(|tag| core.pools.tagged(tag)).collect(),
            };
            pools.sort_unstable();
            pools.dedup();
            missing.retain(|tag| core.pools.tagged(tag).next().is_none());
            if !pools.is_empty() {
                found.push((state, pools.into_iter().map(|pool| core.pools.get(pool).serial).collect()));
            }
        }
        if let Some(tag) = missing.first() {
            return Err(Error::Argument {
                name: "tag",
                value: (*tag).to_owned(),
                expected: "the tag of a pool made by create_pool",
            });
        }
        Ok(found)
    }
}

impl Caller<'_> {
    /// Ends what is to be done for a block freed in a pool that sleeps.
    pub(super) fn free_asleep(&self, mut core: super::requests::Guard<'_>, pool: PoolIndex) -> Result<()> {
        let unwanted = core.rouse_if_empty(pool);
        let log = self.put_away(core, unwanted);
        self.hook.tell(&log);
        Ok(())
    }

    /// Leaves the lock, and gives content back that nobody wants any more. What the hook is to be told comes last,
    /// because it may panic: nothing may be left to be done after it.
    fn put_away(&self, mut core: super::requests::Guard<'_>, unwanted: Unwanted) -> Vec<MemoryEvent> {
        self.watch(&mut core, 2);
        let log = core.take_log();
        drop(core);
        self.drop_content(unwanted);
        log
    }

    fn sleep(&self, pools: &[u64], mode: SleepMode) -> Result<Slept> {
        let before = self.driver.memory_info(self.device.limits.device);
        let begun = self.begin(pools, Depth::Falling)?;
        if begun.pools.is_empty() {
            return Ok(Slept::default());
        }
        let (kept, answer) = self.fall_asleep(&begun, mode);
        let Begun { pools, sunk, generation, content } = begun;
        let mut core = self.device.core.lock();
        if core.generation != generation {
            // A reset ended the sleep. Another thread may have begun one of its own since, which is not this one's to end.
            pools.iter().for_each(|&pool| core.let_go(pool));
            drop(core);
            self.free_kept(kept.into_iter().flatten().collect());
            self.device.limbo.lock().extend(content);
            return Err(was_reset("putting a pool to sleep"));
        }
        let mut unwanted = Unwanted::default();
        let answer = match answer {
            Ok(returned_bytes) => {
                core.keep_pools(Action::Sleep, &pools, returned_bytes);
                let host_bytes = kept.iter().flatten().map(|kept| kept.bytes).sum();
                for (&pool, kept) in pools.iter().zip(kept) {
                    if let Some(sleep) = &mut core.pools.get_mut(pool).sleep {
                        sleep.depth = Depth::Asleep;
                        // What is kept already stays.
                        sleep.kept.extend(kept);
                    }
                    unwanted.append(core.rouse_if_empty(pool));
                    core.let_go(pool);
                }
                Ok(Slept { pools: pools.len() as u32, returned_bytes, device_bytes: 0, host_bytes })
            }
            Err(error) => {
                for (&pool, kept) in pools.iter().zip(kept) {
                    unwanted.append(end_in_vain(&mut core, pool, sunk.contains(&pool), kept));
                    core.let_go(pool);
                }
                Err(error)
            }
        };
        let log = self.put_away(core, unwanted);
        let answer = answer.map(|slept| {
            let after = self.driver.memory_info(self.device.limits.device);
            let device_bytes = match (before, after) {
                (Ok(before), Ok(after)) => after.free.saturating_sub(before.free),
                _ => 0,
            };
            Slept { device_bytes, ..slept }
        });
        self.hook.tell(&log);
        answer
    }

    /// Marks the pools that are not in the wanted state yet as on their way, so that nothing is placed in them, and
    /// holds them until [`let_go`](Core::let_go). Those that are gone by now are left out.
    fn begin(&self, serials: &[u64], depth: Depth) -> Result<Begun> {
        let falling = depth == Depth::Falling;
        let operation = if falling { "putting a pool to sleep" } else { "waking a pool" };
        let mut core = self.device.core.lock();
        let mut chosen = Vec::new();
        for pool in serials.iter().filter_map(|&serial| core.pools.find(serial)) {
            let refused = match &core.pools.get(pool).sleep {
                None if falling => core.insomnia(pool),
                None => continue,
                Some(sleep) if sleep.depth != Depth::Asleep => {
                    Some("another thread is putting it to sleep or waking it; try again")
                }
                Some(_) if falling && !core.has_memory(pool) => continue,
                Some(_) if falling && core.capturing > 0 => {
                    Some("a graph is being captured on this device; end that first")
                }
                Some(_) if falling => None,
                // It would be copied, and the copies waited for.
                Some(sleep) if core.capturing > 0 && !sleep.kept.is_empty() => Some(
                    "a graph is being captured on this device, and its content is kept; end the capture first",
                ),
                Some(_) => None,
            };
            if let Some(reason) = refused {
                return Err(Error::State { operation, reason });
            }
            chosen.push(pool);
        }
        let (mut content, mut sunk) = (Vec::new(), Vec::new());
        for &pool in &chosen {
            core.pools.get_mut(pool).holders += 1;
            if let Some(sleep) = &mut core.pools.get_mut(pool).sleep {
                // Queued work cannot touch what sleeps.
                sleep.depth = if falling { Depth::Emptying } else { Depth::Waking };
                content.extend_from_slice(&sleep.kept);
                sunk.push(pool);
            } else {
                core.lull(pool);
            }
        }
        Ok(Begun { pools: chosen, sunk, generation: core.generation, content })
    }

    /// Takes the memory away: of each pool where its content is, also after a failure; and the bytes given back.
    fn fall_asleep(&self, begun: &Begun, mode: SleepMode) -> (Contents, Result<u64>) {
        let &Begun { ref pools, ref sunk, generation, .. } = begun;
        let mut kept: Contents = vec![Vec::new(); pools.len()];
        let awake: Vec<PoolIndex> = pools.iter().copied().filter(|pool| !sunk.contains(pool)).collect();
        if let Err(error) = self.wait_for_users(&awake, generation) {
            return (kept, Err(error));
        }
        if !sunk.is_empty() {
            // Copies of the content may still run there.
            if let Err(error) = self.wait_for_copies() {
                return (kept, Err(error.into()));
            }
            let mut core = self.device.core.lock();
            if core.generation == generation {
                sunk.iter().for_each(|&pool| core.set_copying(pool, false));
            }
        }
        let captured = || {
            let reason = "a graph is captured on this device since; end that first";
            let error = Error::State { operation: "putting a pool to sleep", reason };
            (self.device.core.lock().capturing > 0).then_some(error)
        };
        if let Some(error) = captured() {
            return (kept, Err(error));
        }
        if mode == SleepMode::Offload {
            for (&pool, kept_of) in pools.iter().zip(&mut kept).filter(|(pool, _)| !sunk.contains(pool)) {
                match self.offload(pool, generation) {
                    Ok(pieces) => *kept_of = pieces,
                    Err(error) => return (kept, Err(error)),
                }
            }
        }
        let taken = captured().map_or_else(|| self.take_away(pools), Err);
        (kept, taken)
    }

    /// Waits until no queued work can touch memory of the pools, and notes that.
    fn wait_for_users(&self, pools: &[PoolIndex], generation: u64) -> Result<()> {
        let refused = |reason| Err(Error::State { operation: "putting a pool to sleep", reason });
        let mut core = self.device.core.lock();
        // Another thread's driver calls for these pools end soon, and no new ones begin.
        while pools.iter().any(|&pool| core.is_moving(pool)) {
            if is_in_plan() {
                return refused(
                    "memory of it is being moved, perhaps by the call for which a source was called",
                );
            }
            drop(core);
            crate::sync::thread::yield_now();
            core = self.device.core.lock();
        }
        let mut chore = Request::chore();
        let mut users: Vec<u32> = pools.iter().flat_map(|&pool| core.users_of(pool)).collect();
        users.sort_unstable();
        users.dedup();
        let able = |&id: &u32| core.streams[id as usize].takes_events(core.frees);
        let open: Vec<u32> = users.iter().copied().filter(able).collect();
        if !open.is_empty() {
            let step = core.close(&open);
            core = self.perform(core, step, &mut chore);
        }
        for &id in &users {
            // Where no event could be recorded, the epoch counts as open: the stream is waited for, or the device.
            let newest = core.streams[id as usize].closing.back().copied();
            if let Some((event, epoch)) = newest {
                core = self.perform(core, Step::WaitEvent(id, event, epoch), &mut chore);
            }
        }
        for &id in &users {
            let state = &core.streams[id as usize];
            if state.takes_waits() && (state.broken || state.has_open_work()) {
                let step = core.wait_alone(id);
                core = self.perform(core, step, &mut chore);
            }
        }
        users.retain(|&id| !core.streams[id as usize].takes_waits());
        let stuck: Vec<(u32, u32)> = users.iter().map(|&id| (id, core.close_epoch(id))).collect();
        // A graph runs on streams that nobody told, and uses blocks of any pool.
        let graphs = !pools.is_empty() && core.pools.any_fixed();
        if graphs || !stuck.is_empty() {
            core = self.perform(core, Step::WaitDevice(stuck), &mut chore);
        }
        let waiting = pools.iter().any(|&pool| core.is_waiting(pool));
        match chore.failure.take() {
            Some(error) => Err(error),
            None if core.generation != generation => Err(was_reset("putting a pool to sleep")),
            None if chore.captured || !chore.spared.is_empty() => refused(
                "a graph is being captured, and streams that may use it cannot be waited for; end that first",
            ),
            None if waiting => refused("other streams were told to use its blocks meanwhile; try again"),
            None => {
                pools.iter().for_each(|&pool| core.set_emptying(pool));
                Ok(())
            }
        }
    }

    /// Unmaps and frees all chunks of the pools; the bytes given back. When one cannot be unmapped, those unmapped
    /// before are put back. A reset meanwhile is an error, after which the books stay as it left them.
    pub(super) fn take_away(&self, pools: &[PoolIndex]) -> Result<u64> {
        let Device { limits, .. } = self.device;
        let (generation, chunks): (u64, Vec<(u64, Spare)>) = {
            let core = self.device.core.lock();
            (core.generation, pools.iter().flat_map(|&pool| core.chunks_of(pool)).collect())
        };
        let mut calls = DriverCalls::default();
        let mut failure = None;
        let mut unmapped = 0;
        for &(address, _) in &chunks {
            calls.unmap += 1;
            if let Err(error) = self.driver.unmap(limits.device, address) {
                failure = Some(error);
                break;
            }
            unmapped += 1;
        }
        let mut left = Vec::new();
        let mut core = self.device.core.lock();
        core.tally.count_calls(&core::mem::take(&mut calls));
        if core.generation != generation {
            return Err(was_reset("putting a pool to sleep"));
        }
        if let Some(error) = failure {
            drop(core);
            self.put_back(&chunks[..unmapped], generation);
            return Err(error.into());
        }
        let names = core.take_names(chunks.iter().map(|(_, spare)| spare.handle));
        drop(core);
        for &(_, spare) in &chunks {
            calls.free_physical += 1;
            if self.driver.free_physical(limits.device, spare.handle).is_err() {
                // It serves whoever needs a chunk next.
                left.push(spare);
            }
        }
        let all: usize = chunks.iter().map(|(_, spare)| spare.span as usize).sum();
        let freed = (all - granules_of(&left)) as u64 * limits.granule;
        let mut core = self.device.core.lock();
        core.tally.count_calls(&calls);
        if core.generation != generation {
            return Err(was_reset("putting a pool to sleep"));
        }
        core.give_names_back(names, |handle| left.iter().any(|spare| spare.handle == handle));
        core.strip(&chunks);
        core.forget_chunks(freed, left);
        Ok(freed)
    }

    /// Maps chunks where they were. Content survives that. Chunks for which it is refused serve whoever needs
    /// one next, and the pool stays asleep. Nothing is noted when the device was reset since `generation`.
    fn put_back(&self, chunks: &[(u64, Spare)], generation: u64) {
        let limits = &self.device.limits;
        let mut calls = DriverCalls::default();
        let mut lost = Vec::new();
        let mut mapped = Vec::new();
        for &(address, spare) in chunks {
            calls.map += 1;
            let bytes = u64::from(spare.span) * limits.granule;
            if self.driver.map(limits.device, address, bytes, spare.handle).is_err() {
                lost.push((address, spare));
            } else {
                mapped.push((address, spare.handle));
            }
        }
        let mut core = self.device.core.lock();
        core.tally.count_calls(&calls);
        if core.generation != generation {
            return;
        }
        core.strip(&lost);
        core.forget_chunks(0, lost.into_iter().map(|(_, spare)| spare).collect());
        if !core.peers.is_empty() {
            // The grants went with the old mappings.
            core.ungranted.extend(mapped);
            drop(self.grant_later(core, &mut Request::chore()));
        }
    }

    fn wake(&self, pools: &[u64]) -> Result<Woken> {
        let Begun { pools, generation, content, .. } = self.begin(pools, Depth::Waking)?;
        if pools.is_empty() {
            return Ok(Woken::default());
        }
        let answer = self.provide(&pools).and_then(|mapped_bytes| {
            let copied_bytes = self.bring_back(&pools, generation)?;
            Ok(Woken { pools: pools.len() as u32, mapped_bytes, copied_bytes })
        });
        let mut core = self.device.core.lock();
        if core.generation != generation {
            // A reset ended the sleep; copies that were queued may be known to be over only after another wait.
            self.device.limbo.lock().extend(content);
            pools.iter().for_each(|&pool| core.let_go(pool));
            return Err(was_reset("waking a pool"));
        }
        if let Ok(woken) = &answer {
            core.keep_pools(Action::Wake, &pools, woken.mapped_bytes);
        }
        let mut unwanted = Unwanted::default();
        for &pool in &pools {
            if answer.is_ok() {
                unwanted.append(core.rouse(pool));
            } else {
                if let Some(sleep) = &mut core.pools.get_mut(pool).sleep {
                    sleep.depth = Depth::Asleep;
                }
                unwanted.append(core.rouse_if_empty(pool));
            }
            core.let_go(pool);
        }
        if answer.is_err()
            && let Some(step) = core.spare()
        {
            core = self.perform(core, step, &mut Request::chore());
        }
        let log = self.put_away(core, unwanted);
        self.hook.tell(&log);
        answer
    }
}

/// Ends a sleep that failed, of a pool whose content is in `kept`; `sunk` says whether it slept before. What is unwanted.
fn end_in_vain(core: &mut Core, pool: PoolIndex, sunk: bool, kept: Vec<Kept>) -> Unwanted {
    if sunk {
        // It sleeps as before.
        if let Some(sleep) = &mut core.pools.get_mut(pool).sleep {
            sleep.depth = Depth::Asleep;
        }
        return core.rouse_if_empty(pool);
    }
    if core.is_whole(pool) {
        core.stay_awake(pool);
    } else if core.bare_granules(pool).is_empty() {
        // What the driver did not put back was free memory, which nobody used any more.
        core.rouse(pool);
    } else if let Some(sleep) = &mut core.pools.get_mut(pool).sleep {
        // The driver refused to put back what it had taken: waking tries again.
        sleep.depth = Depth::Asleep;
        sleep.kept = kept;
        return Unwanted::default();
    }
    Unwanted { free: kept, ..Unwanted::default() }
}

fn was_reset(operation: &'static str) -> Error {
    Error::State { operation, reason: "the device was reset meanwhile" }
}
