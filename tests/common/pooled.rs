//! Pools in random programs: made, routed to, captured into, put to sleep, woken, released.

use super::program::Program;
use super::*;
use ascend_alloc::{PoolId, PoolOptions, RouteFilter, SleepMode};

const TAGS: [&str; 2] = ["weights", "cache"];

/// A pool of the program.
#[derive(Clone, Debug)]
pub struct Pool {
    id: PoolId,
    tag: &'static str,
    /// How it was put to sleep, while it sleeps or may.
    slept: Option<SleepMode>,
    /// Graphs captured into it.
    graphs: u32,
    /// Whether the program let it go: it lives as long as its blocks.
    released: bool,
}

/// What a program has going on with its pools.
#[derive(Debug, Default)]
pub struct Pooled {
    pools: Vec<Pool>,
    /// Open routes, oldest first: pool and whether a graph is captured through it.
    routes: Vec<(PoolId, bool)>,
}

impl Pooled {
    /// Whether memory of the device may be held where a request cannot have it.
    pub fn restrain(&self, device: DeviceId) -> bool {
        let graphs = self.pools.iter().any(|pool| pool.id.device == device && pool.graphs > 0);
        graphs || self.captures(device)
    }

    /// Whether a graph is being captured on the device.
    fn captures(&self, device: DeviceId) -> bool {
        self.routes.iter().any(|(pool, capture)| *capture && pool.device == device)
    }

    /// Whether a block of that pool may be used now.
    pub fn is_awake(&self, pool: Option<PoolId>) -> bool {
        pool.is_none_or(|id| self.pools.iter().all(|pool| pool.id != id || pool.slept.is_none()))
    }
}

impl Program {
    /// One operation on pools.
    pub fn pool_step(&mut self) {
        match self.rng.u8(..16) {
            0..2 => self.make_pool(),
            2..7 => self.allocate_in_pool(),
            7..9 => self.begin_route(),
            9..11 => self.end_route(),
            11..13 => self.sleep(),
            13..15 => self.wake(),
            _ => self.release(),
        }
    }

    /// Ends all routes and captures.
    pub fn end_routes(&mut self) {
        while !self.pooled.routes.is_empty() {
            self.end_route();
        }
    }

    /// Lets all pools go, whose blocks were freed; some may have slept until then.
    pub fn end_pools(&mut self) {
        while let Some(pool) = self.pooled.pools.pop() {
            if pool.released {
                continue;
            }
            for _ in 0..pool.graphs {
                self.world.alloc.release_graph(pool.id).expect("a graph");
            }
            self.world.alloc.release_pool(pool.id).expect("released");
        }
    }

    /// The pool a request of this thread for a stream goes to.
    pub fn routed(&self, device: DeviceId) -> Option<PoolId> {
        self.pooled.routes.iter().rev().map(|(pool, _)| *pool).find(|pool| pool.device == device)
    }

    fn make_pool(&mut self) {
        if self.pooled.pools.iter().filter(|pool| !pool.released).count() == 4 {
            return;
        }
        let device = self.lane().device;
        let tag = TAGS[self.rng.usize(..TAGS.len())];
        let mut options = PoolOptions::tagged(tag);
        options.no_split = self.rng.u8(..6) == 0;
        options.use_on_oom = self.rng.u8(..4) == 0;
        options.soft_limit = (self.rng.u8(..4) == 0).then_some(8 * M);
        options.expandable = [None, None, Some(true), Some(false)][self.rng.usize(..4)];
        self.log.push(format!("pool on {device}: {options:?}"));
        match self.world.alloc.create_pool(device, options) {
            Ok(id) => self.pooled.pools.push(Pool { id, tag, slept: None, graphs: 0, released: false }),
            // A device is set up when it is first used.
            Err(error) => assert!(self.armed, "{error}"),
        }
    }

    fn some_pool(&mut self) -> Option<usize> {
        let pools = self.pooled.pools.iter().enumerate();
        let held: Vec<usize> = pools.filter(|(_, pool)| !pool.released).map(|(at, _)| at).collect();
        (!held.is_empty()).then(|| held[self.rng.usize(..held.len())])
    }

    fn allocate_in_pool(&mut self) {
        let Some(at) = self.some_pool() else { return };
        let id = self.pooled.pools[at].id;
        let lanes: Vec<_> = self.lanes.iter().copied().filter(|lane| lane.device == id.device).collect();
        let lane = lanes[self.rng.usize(..lanes.len())];
        let bytes = self.size();
        self.log.push(format!("allocate {bytes} in {id:?} on {lane:?}"));
        let answer = self.world.alloc.allocate_in(id, bytes, 0, lane.stream);
        self.log.push(format!("  {answer:x?}"));
        self.take_in(answer, id, lane.stream, bytes);
    }

    /// Takes the answer of a request that goes to a pool.
    pub fn take_in(&mut self, answer: Result<DevicePtr>, id: PoolId, stream: Stream, bytes: u64) {
        match answer {
            Ok(ptr) => {
                assert!(self.pooled.is_awake(Some(id)), "a block of a sleeping pool");
                self.world.note_new(id.device, ptr, bytes, 0, stream);
                self.world.live.get_mut(&ptr.0).expect("live").pool = Some(id);
                self.requests[id.device as usize] += 1;
                self.use_on(stream, "first", ptr);
            }
            Err(Error::State { .. }) => assert!(!self.pooled.is_awake(Some(id))),
            Err(Error::OutOfMemory(_)) => {}
            Err(Error::Driver(error)) => assert!(self.armed, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }

    fn begin_route(&mut self) {
        let Some(at) = self.some_pool() else { return };
        let id = self.pooled.pools[at].id;
        let awake = self.pooled.pools[at].slept.is_none();
        let capture = self.rng.u8(..3) == 0;
        if self.pooled.routes.len() == 3 {
            return;
        }
        self.log.push(format!("route to {id:?}, capture: {capture}"));
        if !capture {
            self.world.alloc.begin_route(id, RouteFilter::ThisThread).expect("a pool");
        } else {
            match self.world.alloc.begin_capture(id, RouteFilter::ThisThread) {
                Ok(_) => self.pooled.pools[at].graphs += 1,
                Err(Error::State { .. }) => return assert!(!awake),
                Err(error) => panic!("{error}"),
            }
            assert!(awake, "captured into a sleeping pool");
        }
        self.pooled.routes.push((id, capture));
    }

    fn end_route(&mut self) {
        let Some((id, capture)) = self.pooled.routes.pop() else { return };
        self.log.push(format!("end of the route to {id:?}"));
        self.world.alloc.end_route(id).expect("the innermost route");
        let succeeds = self.rng.bool();
        if capture && !succeeds {
            self.world.alloc.release_graph(id).expect("a graph");
            let pool = self.pooled.pools.iter_mut().find(|pool| pool.id == id).expect("a pool");
            pool.graphs -= 1;
        }
    }

    fn sleep(&mut self) {
        let device = self.lane().device;
        let tag = TAGS[self.rng.usize(..TAGS.len())];
        let mode = [SleepMode::Discard, SleepMode::Offload][self.rng.usize(..2)];
        self.log.push(format!("sleep {device} {tag} {mode:?}"));
        let answer = self.world.alloc.sleep(Some(device), &[tag], mode);
        self.log.push(format!("  {answer:?}"));
        match &answer {
            Ok(_) | Err(Error::Argument { .. } | Error::State { .. }) => {}
            Err(Error::Driver(error)) => assert!(self.armed, "{error}"),
            Err(error) => panic!("{error}"),
        }
        let alloc = self.world.alloc.clone();
        for pool in self.pooled.pools.iter_mut().filter(|pool| pool.id.device == device && pool.tag == tag) {
            let asleep = alloc.is_asleep(pool.id).unwrap_or(false);
            let blocks = self.world.live.values().any(|block| block.pool == Some(pool.id));
            assert!(asleep || answer.is_err() || !blocks || pool.slept.is_some(), "{pool:?} is awake");
            if asleep && pool.slept.is_none() {
                // What was kept of blocks whose sleep failed is not looked at.
                pool.slept = Some(if answer.is_ok() { mode } else { SleepMode::Discard });
            }
        }
        self.follow_sleep();
    }

    fn wake(&mut self) {
        let device = self.lane().device;
        let tags = [&TAGS[..1], &TAGS[1..], &TAGS[..]][self.rng.usize(..3)];
        self.wake_tags(device, tags);
    }

    fn wake_tags(&mut self, device: DeviceId, tags: &[&'static str]) {
        for tag in tags {
            self.log.push(format!("wake {device} {tag}"));
            let answer = self.world.alloc.wake(Some(device), &[tag]);
            self.log.push(format!("  {answer:?}"));
            match answer {
                Ok(_) | Err(Error::Argument { .. } | Error::OutOfMemory(_)) => {}
                Err(Error::Driver(error)) => assert!(self.armed, "{error}"),
                // Kept content does not come back during a capture.
                Err(Error::State { .. }) => assert!(self.pooled.captures(device), "{answer:?}"),
                Err(error) => panic!("{error}"),
            }
        }
        self.follow_sleep();
    }

    /// Looks which pools have woken: kept content must be there, the rest is written anew.
    pub fn follow_sleep(&mut self) {
        for at in 0..self.pooled.pools.len() {
            let pool = self.pooled.pools[at].clone();
            let asleep = self.world.alloc.is_asleep(pool.id);
            assert!(asleep.is_ok() || pool.released, "{pool:?} is gone");
            if asleep.unwrap_or(false) || pool.slept.is_none() {
                continue;
            }
            self.pooled.pools[at].slept = None;
            for (&address, block) in self.world.live.iter().filter(|(_, block)| block.pool == Some(pool.id)) {
                if pool.slept == Some(SleepMode::Discard) {
                    self.world.write_marks(address, block);
                } else {
                    self.world.check_marks(address, block);
                }
            }
        }
        let asleep = |block: &Live| !self.pooled.is_awake(block.pool);
        self.world.asleep =
            self.world.live.iter().filter(|(_, block)| asleep(block)).map(|(&address, _)| address).collect();
    }

    fn release(&mut self) {
        let Some(at) = self.some_pool() else { return };
        let pool = self.pooled.pools[at].clone();
        let routed = self.pooled.routes.iter().any(|(id, _)| *id == pool.id);
        if routed || pool.slept.is_some() {
            return;
        }
        self.log.push(format!("release {pool:?}"));
        for _ in 0..pool.graphs {
            self.world.alloc.release_graph(pool.id).expect("a graph");
        }
        self.world.alloc.release_pool(pool.id).expect("released");
        self.pooled.pools[at].released = true;
        self.pooled.pools[at].graphs = 0;
    }
}
