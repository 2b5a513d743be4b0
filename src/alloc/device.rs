//! One device: its core behind the lock, its front beside it, and the ways between them.

use crate::config::{Config, SetAccess};
use crate::core::block::{BlockId, State};
use crate::core::pool::DEFAULT;
use crate::core::segment::{ALIGNED_FROM, Class, SMALL_LIMIT};
use crate::core::sleep::Kept;
use crate::core::source::Departed;
use crate::core::tally::{self, REQUESTED};
use crate::core::{Core, Limits, UNIT, wide::Wide};
use crate::driver::{DeviceId, Driver, DriverError, PageKind, Stream};
use crate::error::{Error, PointerKind, Result};
use crate::front::map::{Head, NO_PLACE};
use crate::front::{AddressMap, Entry, Freed, Front, HoldUp, MOST_REQUESTED, Mask, Missed, Rested};
use crate::history::log::{History, Noter};
use crate::hook::HookSlot;
use crate::sync::{Condvar, Mutex};

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use super::BlockInfo;
use super::offload::ContentStore;
use super::oom_report::OomReports;
use super::outside::Outside;
use super::routes::Routes;

/// One device of an allocator.
#[derive(Debug)]
pub(super) struct Device {
    /// What is fixed.
    pub(super) limits: Limits,
    /// Sizes of blocks, without the lock.
    pub(super) sizes: Sizes,
    /// Everything else.
    pub(super) core: Mutex<Core>,
    /// Told when a plan that holds memory is over while somebody waits for it; goes with the core's lock.
    pub(super) settled: Condvar,
    /// Blocks at rest.
    pub(super) front: Front,
    /// Page-locked host memory that copies may still touch, because waiting for them failed.
    pub(super) limbo: Mutex<Vec<Kept>>,
    /// Whoever sets peers.
    pub(super) peering: Mutex<()>,
    /// Where requests that name no pool go.
    pub(super) routes: Routes,
    /// Sources of pools that are gone.
    pub(super) departed: Arc<Departed>,
    /// Frees for which the caller said another size than it had asked for.
    pub(super) size_mismatches: AtomicU64,
}

/// How requests become block lengths, copied out of the core so that it needs no lock. Lines of the cache of its own: every
/// request reads it, and beside it lies the lock.
#[derive(Clone, Debug)]
#[repr(align(128))]
pub(super) struct Sizes {
    pad: u64,
    /// Requests of this size and more go to the core: it alone rounds to divisions of powers of two and
    /// aligns large blocks, and the address map keeps no larger size.
    pub(super) most: u64,
}

/// Everything a slow call needs.
pub(super) struct Caller<'a> {
    pub(super) driver: &'a dyn Driver,
    pub(super) map: &'a AddressMap,
    pub(super) outside: &'a Outside,
    pub(super) hook: &'a HookSlot,
    /// Reports about requests that fail, where they are wanted.
    pub(super) oom: Option<&'a OomReports>,
    /// Where the content of sleeping pools is kept, if not in memory of the driver.
    pub(super) store: Option<&'a dyn ContentStore>,
    /// All devices of the allocator: they share one address space.
    pub(super) all: &'a [OnceLock<Device>],
    /// See [`DeviceAllocator`](super::DeviceAllocator). Taken before any device's core.
    pub(super) sourcing: &'a Mutex<()>,
    pub(super) device: &'a Device,
}

/// Each slow call ends here, after it has left the lock.
impl Drop for Caller<'_> {
    #[inline]
    fn drop(&mut self) {
        self.device.departed.part();
    }
}

impl Device {
    /// Asks the driver what the device is like.
    pub(super) fn new(
        id: DeviceId,
        config: &Config,
        driver: &dyn Driver,
        hooked: bool,
        host_page: Option<u64>,
        history: &Arc<History>,
    ) -> Result<Self> {
        // Without virtual memory there are no chunks; the granule then has no meaning, and classic
        // segments are used once the driver refuses to reserve.
        let granule = match driver.granularity(id, PageKind::Huge) {
            Err(error) if error.is_unsupported() => 2 << 20,
            answer => answer?,
        };
        let total = driver.memory_info(id)?.total;
        let pad = driver.tail_pad(id)?;
        if !granule.is_power_of_two() || granule < crate::core::UNIT {
            return Err(Error::Driver(DriverError {
                call: "aclrtMemGetAllocationGranularity",
                arguments: format!("device {id}"),
                code: 0,
                name: "answered a granule that is no power of two",
                message: Some(granule.to_string()),
                missing_symbol: None,
            }));
        }
        let limits = Limits {
            device: id,
            granule,
            shift: granule.trailing_zeros(),
            pages: PageKind::Huge,
            pad,
            total,
            host_page,
            // Host memory has pages of its own.
            wide: if host_page.is_none() { wide_chunks(id, config, driver, granule)? } else { None },
        };
        let access = match config.set_access {
            SetAccess::On => true,
            SetAccess::Off => false,
            SetAccess::Auto => driver.owner_access_is_addressable(id),
        };
        let lists = Front::lists(history, id);
        let noter = Noter::new(&lists, lists.of_core());
        let mut core = Core::new(limits.clone(), config.clone(), access, noter);
        core.logging = hooked;
        core.streams[0].slot = Some(0);
        let most = if config.roundup_power2_divisions.iter().any(|&divisions| divisions > 1) {
            0
        } else if config.base_addr_aligned > UNIT {
            ALIGNED_FROM
        } else {
            MOST_REQUESTED
        };
        let front = Front::new(front_allowed(config) && !hooked, &lists);
        let state = Self {
            sizes: Sizes { pad, most },
            limits,
            departed: core.pools.departed.clone(),
            size_mismatches: AtomicU64::new(0),
            core: Mutex::new(core),
            settled: Condvar::new(),
            front,
            limbo: Mutex::default(),
            peering: Mutex::default(),
            routes: Routes::default(),
        };
        if !config.caching && host_page.is_none() {
            state.keep_nothing(&mut state.core.lock());
        }
        Ok(state)
    }

    /// A block that rests in the front and fits exactly. `LOG`: whether to note that where anybody keeps events.
    #[inline]
    pub(super) fn take_resting<const LOG: bool>(
        &self,
        map: &AddressMap,
        bytes: u64,
        stream: Stream,
    ) -> Option<u64> {
        if bytes == 0 || bytes >= self.sizes.most {
            return None;
        }
        // As the core rounds; the two additions cannot overflow below `MOST_REQUESTED`.
        let len = (((bytes + 31) & !31) + self.sizes.pad + (UNIT - 1)) & !(UNIT - 1);
        self.front.take::<LOG>(map, stream, len, bytes, Class::of(bytes).is_small())
    }

    /// Why a request of this size, which the front did not serve, found only blocks there that other streams
    /// may still use. Under the core's lock.
    pub(super) fn hold_up(&self, bytes: u64, len: u64, align: u64, stream: Stream) -> Option<HoldUp> {
        if bytes >= self.sizes.most || align > UNIT {
            return None;
        }
        self.front.hold_up(stream, len, Class::of(bytes).is_small())
    }

    /// Lets a freed block rest in the front; false when the core has to take it back. `LOG` as above.
    #[inline]
    pub(super) fn rest<const LOG: bool>(&self, entry: &Entry, address: u64) -> bool {
        self.front.put::<LOG>(entry, address) == Freed::Done
    }

    /// The live block that begins at `address`. Under the core's lock.
    pub(super) fn live(&self, core: &Core, map: &AddressMap, address: u64) -> Result<BlockId> {
        if let Some((_, entry)) = map.find(address) {
            let _guard = self.front.guard(entry.head().place());
            if self.front.rests(entry, address) {
                return Err(Error::Pointer { address, kind: PointerKind::NotLive });
            }
            return Ok(entry.body().1);
        }
        let known = core.starts.get(&address).copied();
        known.ok_or_else(|| Error::Pointer { address, kind: core.kind_of(address) })
    }

    /// Takes a live block out of the address map, so that nobody can free it any more. Gives what it was
    /// last asked for with, if the map knows better than the core. Blocks of its shard's queue, which
    /// were freed before, come back first.
    pub(super) fn unpublish(
        &self,
        core: &mut Core,
        map: &AddressMap,
        address: u64,
    ) -> Result<(BlockId, Option<u64>)> {
        if let Some((owner, entry)) = map.find(address) {
            let head = entry.head();
            let taken = |rested: Rested| bring_back(core, rested);
            let _guard = if owner.is_small() {
                self.front.guard(head.place())
            } else {
                self.front.note_taken(entry);
                self.front.guard_drained(head.place(), map, taken)
            };
            let head = entry.head();
            if head == Head::NOTHING || self.front.rests(entry, address) {
                return Err(Error::Pointer { address, kind: PointerKind::NotLive });
            }
            entry.set_head(Head::NOTHING);
            let id = entry.body().1;
            self.take_uses(core, entry, id);
            return Ok((id, Some(head.requested())));
        }
        match core.starts.get(&address).copied() {
            Some(id) if core.class_of(id).is_growing() && !core.blocks[id].claimed => Err(Error::State {
                operation: "freeing or resizing a block by its address",
                reason: "it is that of a growing buffer; resize or drop the buffer",
            }),
            Some(id) => {
                core.starts.remove(&address);
                Ok((id, None))
            }
            None => Err(Error::Pointer { address, kind: core.kind_of(address) }),
        }
    }

    /// Makes a live block known to frees.
    pub(super) fn publish(&self, core: &mut Core, map: &AddressMap, id: BlockId) {
        let block = &core.blocks[id];
        let (address, len, requested, home) = (block.addr, block.len, block.requested, block.home);
        // The front knows blocks by stream and size only: those of other pools stay with the core, and so do
        // blocks that an export holds, which must not be handed out again when they are freed, claimed ones, and large ones
        // among the small.
        let restful = block.uses == 0
            && requested < MOST_REQUESTED
            && block.class.pool() == DEFAULT
            && (!block.class.is_small() || Class::of(requested).is_small())
            && !block.claimed
            && !core.is_exported(id);
        // The map has room for so many starts of large blocks as fit; a shorter piece may have been claimed, or lie there
        // because memory was short.
        // And where the core alone serves blocks, room for each place where one could begin is worth more than it saves.
        let fits = match block.class.is_small() {
            true => block.class.pool() == DEFAULT,
            false => len > SMALL_LIMIT,
        };
        if fits && core.segments[block.segment as usize].covered {
            let place = core.streams[home as usize].slot.filter(|_| restful).unwrap_or(NO_PLACE);
            let requested = requested.min(MOST_REQUESTED - 1);
            let head = Head::new(requested, (place, block.class.is_small()), address);
            map.publish(address, len, id, head);
        } else {
            core.starts.insert(address, id);
        }
    }

    /// Brings all resting blocks back to the core; how many. Under the core's lock.
    pub(super) fn drain(&self, core: &mut Core, map: &AddressMap) -> usize {
        let mut blocks = 0;
        self.front.drain(map, |rested| {
            blocks += 1;
            bring_back(core, rested);
        });
        blocks
    }

    /// The same for one shard of the front, another one with each turn.
    pub(super) fn drain_in_turn(&self, core: &mut Core, map: &AddressMap, turn: usize) {
        self.front.drain_in_turn(turn, map, |rested| bring_back(core, rested));
    }

    /// The same for what waits, or has waited, for requests that do not come any more. How many came back.
    pub(super) fn drain_idle(&self, core: &mut Core, map: &AddressMap) -> usize {
        let mut blocks = 0;
        self.front.drain_idle(map, |rested| {
            blocks += 1;
            bring_back(core, rested);
        });
        blocks
    }

    /// Brings the large blocks back that rest in the shard of a stream's place. Under the core's lock.
    #[inline]
    pub(super) fn drain_queue(&self, core: &mut Core, map: &AddressMap, place: u16) {
        self.front.drain_queue(place, map, |rested| bring_back(core, rested));
    }

    /// The core's number of the stream of a request that the front could not serve; `missed`: what it might have had.
    /// Streams are made known to both on their first request.
    #[inline]
    pub(super) fn enter(
        &self,
        core: &mut Core,
        map: &AddressMap,
        stream: Stream,
        bytes: u64,
        missed: Option<Missed>,
    ) -> u32 {
        let (place, id) = match self.front.core_id(stream) {
            Some((place, id)) => (Some(place), id),
            None => self.admit(core, stream),
        };
        if let Some(place) = place
            && !Class::of(bytes).is_small()
        {
            if let Some(missed) = missed {
                self.front.note_asked(place, missed);
            }
            self.drain_queue(core, map, place);
        }
        id
    }

    /// Notes how much is live and how much was freed, all counts together. The blocks freed so far, and the highest live bytes
    /// there will be if a request for so many more is served.
    pub(super) fn note_flow(&self, core: &mut Core, more: u64) -> (u64, u64) {
        let mut flow = self.front.flow();
        flow.add(&core.tally.flow);
        let live: i64 = flow.balance()[REQUESTED].iter().sum();
        let live = live.max(0) as u64;
        core.high_water = core.high_water.max(live);
        let high_water = core.high_water.max(live + more);
        let allocated = flow.up[tally::BYTES].iter().sum::<i64>().max(0) as u64;
        let moved = core.tally.moved * core.limits.granule;
        core.churn.note(more, allocated, moved, high_water);
        let frees = flow.down[tally::COUNT].iter().sum::<i64>() as u64;
        core.earn_for_all(frees);
        if core.config.decays() {
            core.beside = core.beside.max(frees.saturating_sub(core.frees));
            core.unseen = self.front.unseen();
        }
        (frees, high_water)
    }

    /// Makes a stream known to the core and to the front.
    fn admit(&self, core: &mut Core, stream: Stream) -> (Option<u16>, u32) {
        let id = core.stream_id(stream);
        for place in core.vacated.drain(..) {
            self.front.vacate(place);
        }
        let epoch = core.streams[id as usize].open;
        core.streams[id as usize].slot = self.front.admit(stream, id, epoch);
        (core.streams[id as usize].slot, id)
    }

    /// Notes that work on `stream` uses the live block that begins at `address`.
    pub(super) fn record_stream(&self, map: &AddressMap, address: u64, stream: Stream) -> Result<()> {
        let mut core = self.core.lock();
        let core = &mut *core;
        let id = self.live(core, map, address)?;
        core.keep_use(id, stream);
        let (place, user) = self.admit(core, stream);
        if core.blocks[id].home == user {
            return Ok(());
        }
        if let Some((_, entry)) = map.find(address)
            && entry.head().place() != NO_PLACE
            && let Some(column) = place.and_then(|place| self.column(core, map, place, user))
        {
            entry.mark(column);
            return Ok(());
        }
        self.withhold(core, map, id, address)?;
        core.record(id, user);
        Ok(())
    }

    /// Sees to it that from now on the core alone frees a live block.
    pub(super) fn withhold(
        &self,
        core: &mut Core,
        map: &AddressMap,
        id: BlockId,
        address: u64,
    ) -> Result<()> {
        if let Some((_, entry)) = map.find(address) {
            let _guard = self.front.guard(entry.head().place());
            if self.front.rests(entry, address) {
                return Err(Error::Pointer { address, kind: PointerKind::NotLive });
            }
            entry.set_head(entry.head().without_place());
        }
        self.adopt(core, map, id, address);
        Ok(())
    }

    /// The column in which the front notes what is recorded on a stream; made if there is one left.
    fn column(&self, core: &mut Core, map: &AddressMap, place: u16, user: u32) -> Option<usize> {
        if let Some(column) = self.front.column(place) {
            return Some(column);
        }
        let (open, completed) = (core.streams[user as usize].open, core.streams[user as usize].completed);
        let mut column = self.front.attach(place, user, open, completed);
        if column.is_none() && core.is_worth_a_walk() && self.give_up_columns(core, map) {
            column = self.front.attach(place, user, open, completed);
        }
        core.streams[user as usize].in_front |= column.is_some();
        column
    }

    /// Takes the columns of destroyed streams away; the core remembers which live blocks were recorded on
    /// them. False when there are none.
    pub(super) fn give_up_columns(&self, core: &mut Core, map: &AddressMap) -> bool {
        let gone = self.front.attached().filter(|&(_, id)| !core.streams[id as usize].alive);
        let gone: Vec<(usize, u32)> = gone.collect();
        if gone.is_empty() {
            return false;
        }
        let live = core.blocks.iter().filter(|(_, block)| block.state == State::Live);
        let live: Vec<(BlockId, u64)> = live.map(|(id, block)| (id, block.addr)).collect();
        for (id, address) in live {
            let Some((_, entry)) = map.find(address).filter(|(_, entry)| entry.is_used()) else {
                continue;
            };
            let Some(guard) = self.front.guard(entry.head().place()) else { continue };
            if self.front.rests(entry, address) {
                // Nothing that waits here has to do with a stream that is gone.
                continue;
            }
            self.take_uses(core, entry, id);
            if core.blocks[id].uses > 0 {
                entry.set_head(entry.head().without_place());
                drop(guard);
                self.adopt(core, map, id, address);
            }
        }
        for (column, id) in gone {
            self.front.detach(column);
            core.streams[id as usize].in_front = false;
        }
        true
    }

    /// Lets large blocks rest in the front, unless chunks were moved lately.
    #[inline]
    pub(super) fn follow_moves(&self, core: &Core) {
        self.front.open_queues(core.frees >= core.settled_at);
    }

    /// Tells the front which epochs are over.
    pub(super) fn tell_completed(&self, core: &Core) {
        for (column, id) in self.front.attached() {
            self.front.complete(column, core.streams[id as usize].completed);
        }
    }

    /// Lets the core know on which streams the front noted the block as used.
    fn take_uses(&self, core: &mut Core, entry: &Entry, id: BlockId) {
        let mask: Mask = entry.take_uses();
        for (column, user) in self.front.attached() {
            if mask >> column & 1 != 0 && core.blocks[id].home != user {
                core.record(id, user);
            }
        }
    }

    /// Copies what the front changed of a live block back into the core.
    pub(super) fn adopt(&self, core: &mut Core, map: &AddressMap, id: BlockId, address: u64) {
        if let Some((_, entry)) = map.find(address)
            && core.blocks[id].requested < MOST_REQUESTED
        {
            core.blocks[id].requested = entry.head().requested();
        }
    }

    pub(super) fn block_info(&self, map: &AddressMap, address: u64) -> Result<BlockInfo> {
        let mut core = self.core.lock();
        let id = self.live(&core, map, address)?;
        self.adopt(&mut core, map, id, address);
        let block = &core.blocks[id];
        let segment = &core.segments[block.segment as usize];
        Ok(BlockInfo {
            device: self.limits.device,
            address,
            bytes: block.len,
            requested: block.requested,
            stream: core.streams[block.home as usize].handle,
            segment: segment.base,
            segment_bytes: segment.len,
            pool: super::PoolId {
                device: self.limits.device,
                serial: core.pools.get(segment.class.pool()).serial,
            },
        })
    }

    /// Follows the event hook being set or removed.
    pub(super) fn follow_hook(&self, map: &AddressMap, config: &Config, hooked: bool) {
        let mut core = self.core.lock();
        core.logging = hooked;
        self.front.enable(front_allowed(config) && !hooked);
        let mut epochs = Vec::new();
        for state in &core.streams {
            if let Some(place) = state.slot {
                epochs.push((place, state.open));
            }
        }
        self.front.set_epochs(epochs.into_iter());
        self.drain(&mut core, map);
    }

    pub(super) fn stream_destroyed(&self, map: &AddressMap, stream: Stream) {
        let mut core = self.core.lock();
        let Some(id) = core.stream_ids.remove(&stream) else { return };
        if let Some(place) = core.streams[id as usize].slot {
            self.front.dismiss(place);
        }
        self.drain(&mut core, map);
        core.streams[id as usize].alive = false;
        core.dead.push(id);
        core.bequeath(id);
    }

    pub(super) fn check(&self, map: &AddressMap, faults: &mut Vec<String>) {
        self.check_core(&self.core.lock(), map, faults);
    }

    /// The heap checker, with the address map and the front. Under the core's lock.
    pub(super) fn check_core(&self, core: &Core, map: &AddressMap, faults: &mut Vec<String>) {
        let (resting, mut flow) = self.front.account();
        flow.add(&core.tally.flow);
        core.check(&resting, &flow, faults);
        // Every live block is found by its address, and says the same of itself there.
        for (id, block) in core.blocks.iter().filter(|(_, block)| block.state == State::Live) {
            let found = match map.find(block.addr) {
                Some((_, entry)) => entry.body() == (block.len, id),
                None => core.starts.get(&block.addr) == Some(&id),
            };
            let unfound = core.shunned.get(&block.addr) == Some(&id)
                || core.outlives_its_owner(id)
                || core.extended.contains(&id);
            let found = found || unfound;
            if !found {
                faults.push(format!("I9: live block at {:#x} is not in the address map", block.addr));
            }
        }
    }
}

/// Gives a block that leaves the front to the core.
fn bring_back(core: &mut Core, rested: Rested) {
    let Rested { block, epoch, requested, users } = rested;
    if users == [None; 2] {
        core.take_back(block, Some(epoch));
        // The free was counted when it happened, or will be as one of the front.
        core.beside = core.beside.saturating_sub(1);
    } else {
        core.take_waiting(block, epoch, requested, users.into_iter().flatten());
    }
}

/// What wide chunks of a device are like, where the settings ask for some and the device has them.
fn wide_chunks(
    id: DeviceId,
    config: &Config,
    driver: &dyn Driver,
    granule: u64,
) -> Result<Option<Wide>, DriverError> {
    let (bytes, align, pages) = if config.page_size == PageKind::Huge1G {
        match driver.granularity(id, PageKind::Huge1G) {
            Ok(page) => (page, page, PageKind::Huge1G),
            // The part has no such pages.
            Err(error) if error.is_unsupported() => return Ok(None),
            Err(error) => return Err(error),
        }
    } else if config.sets_chunk_size() {
        (config.large_segment_size, granule, PageKind::Huge)
    } else {
        return Ok(None);
    };
    let span = u32::try_from(bytes / granule).unwrap_or(0);
    Ok((span > 1).then_some(Wide { span, align, pages }))
}

fn front_allowed(config: &Config) -> bool {
    config.front_cache && config.stream_order
}
