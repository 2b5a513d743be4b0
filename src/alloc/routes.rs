//! Routes: which requests go to another pool than the default one without naming it.
//!
//! A route sends the requests of a thread, of a stream, of a capture, or those a function accepts to a pool.
//! The newest route that accepts a request wins, so that routes nest. While a device has no route, a
//! request pays one relaxed load for all this.

use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::thread::ThreadId;
use core::hash::Hash;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use super::DeviceAllocator;
use super::device::Device;
use crate::core::steps;
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::sync::Mutex;

/// Which requests a route takes.
#[derive(Clone)]
#[non_exhaustive]
pub enum RouteFilter {
    /// All of the device.
    All,
    /// Those of the thread that begins the route.
    ThisThread,
    /// Those of one thread.
    Thread(ThreadId),
    /// Those for one stream.
    Stream(Stream),
    /// Those for one stream and for all streams that are captured into the same graph as it.
    CapturedWith(Stream),
    /// Those for streams that the function accepts. It is called without any lock, by the thread that
    /// allocates, and must not allocate from this device itself.
    Accepts(Arc<dyn Fn(Stream) -> bool + Send + Sync>),
}

impl core::fmt::Debug for RouteFilter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::ThisThread => f.write_str("ThisThread"),
            Self::Thread(thread) => f.debug_tuple("Thread").field(thread).finish(),
            Self::Stream(stream) => f.debug_tuple("Stream").field(stream).finish(),
            Self::CapturedWith(stream) => f.debug_tuple("CapturedWith").field(stream).finish(),
            Self::Accepts(_) => f.write_str("Accepts"),
        }
    }
}

impl RouteFilter {
    fn accepts(&self, stream: Stream, captured_with: &dyn Fn(Stream) -> bool) -> bool {
        steps::step();
        match self {
            Self::All => true,
            Self::ThisThread => false,
            Self::Thread(thread) => crate::sync::thread::current().id() == *thread,
            Self::Stream(of) => stream == *of,
            Self::CapturedWith(of) => stream == *of || captured_with(*of),
            Self::Accepts(function) => function(stream),
        }
    }
}

/// One route.
#[derive(Debug)]
struct Route {
    number: u64,
    pool: u64,
    filter: RouteFilter,
    /// The thread that began it.
    by: ThreadId,
    /// If a graph is captured through it: how often the device had been reset when that began.
    capture: Option<u64>,
}

/// The routes of a device, oldest first.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Routes {
    /// How many there are; read by every request, so it shares no cache line with what changes.
    count: AtomicUsize,
    list: Mutex<Table>,
}

/// Routes of a thread or of a stream are looked up by that, so that those of others take no time.
#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// All of them, by number: newer ones have higher numbers.
    all: BTreeMap<u64, Arc<Route>>,
    of_thread: HashMap<ThreadId, BTreeSet<u64>>,
    of_stream: HashMap<Stream, BTreeSet<u64>>,
    /// Those that have to be asked, oldest first. Shared, so that filters run without the lock.
    asked: Arc<[Arc<Route>]>,
    /// Those through which graphs are captured, oldest first.
    captures: Arc<[Arc<Route>]>,
    /// By the pool they lead to; and by that and the thread that began them.
    to: HashMap<u64, BTreeSet<u64>>,
    to_by: HashMap<(u64, ThreadId), BTreeSet<u64>>,
}

impl Table {
    /// Adds a route, or takes it out.
    fn change(&mut self, route: &Arc<Route>, add: bool) {
        let number = route.number;
        match add {
            true => _ = self.all.insert(number, Arc::clone(route)),
            false => _ = self.all.remove(&number),
        }
        change_set(&mut self.to, route.pool, number, add);
        change_set(&mut self.to_by, (route.pool, route.by), number, add);
        match route.filter {
            RouteFilter::Thread(thread) => change_set(&mut self.of_thread, thread, number, add),
            RouteFilter::Stream(stream) => change_set(&mut self.of_stream, stream, number, add),
            _ => change_list(&mut self.asked, route, add),
        }
        if route.capture.is_some() {
            change_list(&mut self.captures, route, add);
        }
    }
}

/// Adds a number to one of the sets, or takes it out.
fn change_set<K: Eq + Hash>(sets: &mut HashMap<K, BTreeSet<u64>>, key: K, number: u64, add: bool) {
    if add {
        sets.entry(key).or_default().insert(number);
    } else if let Entry::Occupied(mut set) = sets.entry(key) {
        set.get_mut().remove(&number);
        if set.get().is_empty() {
            set.remove();
        }
    }
}

/// Adds a route to a list at its end, or takes it out.
fn change_list(list: &mut Arc<[Arc<Route>]>, route: &Arc<Route>, add: bool) {
    let others = list.iter().filter(|other| other.number != route.number).inspect(|_| steps::step());
    *list = others.chain(add.then_some(route)).cloned().collect();
}

impl Routes {
    /// Whether there is any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Adds a route to the pool of that serial; its number.
    pub(super) fn begin(&self, pool: u64, filter: RouteFilter, capture: Option<u64>) -> u64 {
        let by = crate::sync::thread::current().id();
        let filter = match filter {
            RouteFilter::ThisThread => RouteFilter::Thread(by),
            other => other,
        };
        let mut table = self.list.lock();
        let number = table.next;
        table.next += 1;
        table.change(&Arc::new(Route { number, pool, filter, by, capture }), true);
        self.count.store(table.all.len(), Relaxed);
        number
    }

    /// Removes a route; the pool it led to, and the capture's number of resets if it was one's; or nothing when there
    /// is no such route.
    pub(super) fn end(&self, number: u64) -> Option<(u64, Option<u64>)> {
        let mut table = self.list.lock();
        let route = table.all.get(&number).cloned()?;
        table.change(&route, false);
        self.count.store(table.all.len(), Relaxed);
        // What a filter owns may call the allocator when it is dropped.
        drop(table);
        Some((route.pool, route.capture))
    }

    /// The newest route to a pool that this thread began, or if it began none the newest of all, if it may end now:
    /// routes of a thread end in the order opposite to the one they began in.
    pub(super) fn newest_to(&self, pool: u64) -> Option<u64> {
        let table = self.list.lock();
        let this = crate::sync::thread::current().id();
        let newest = |set: &BTreeSet<u64>| set.last().copied();
        let mine = table.to_by.get(&(pool, this)).and_then(newest);
        let number = mine.or_else(|| table.to.get(&pool).and_then(newest))?;
        let innermost = match table.all.get(&number)?.filter {
            RouteFilter::Thread(of) => table.of_thread.get(&of).and_then(newest),
            _ => None,
        };
        innermost.is_none_or(|innermost| innermost == number).then_some(number)
    }

    /// Where a request for a stream is sent, if anywhere. `captured_with` says whether the stream is captured
    /// into the same graph as another; it is asked without the lock.
    pub(super) fn find(&self, stream: Stream, captured_with: &dyn Fn(Stream) -> bool) -> Option<Found> {
        let this = crate::sync::thread::current().id();
        let table = self.list.lock();
        let of_this = [table.of_thread.get(&this), table.of_stream.get(&stream)];
        let known = of_this.into_iter().flatten().filter_map(BTreeSet::last).max();
        let known = known.and_then(|number| table.all.get(number)).cloned();
        let (asked, captures) = (Arc::clone(&table.asked), Arc::clone(&table.captures));
        drop(table);
        let accepts = |route: &&Arc<Route>| route.filter.accepts(stream, captured_with);
        let newer = |route: &&Arc<Route>| known.as_ref().is_none_or(|known| route.number > known.number);
        let asked = asked.iter().rev().take_while(newer).find(accepts).cloned();
        let found = asked.or(known)?;
        let older = |route: &&Arc<Route>| route.number < found.number && route.pool != found.pool;
        let captures = captures.iter().rev().filter(older).filter(accepts);
        Some(Found {
            pool: found.pool,
            captures: captures.filter_map(|route| Some((route.pool, route.capture?))).collect(),
        })
    }
}

/// Where a request is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The pool's serial.
    pub(super) pool: u64,
    /// Captures into other pools that the route lies inside of and that take the request too: their pools, and how often the
    /// device had been reset when they began. Their graphs get the address.
    pub(super) captures: SmallVec<[(u64, u64); 1]>,
}

impl DeviceAllocator {
    /// Makes a request in the pool that the routes of a device send it to, or the default one (0). A pool that went
    /// after it was looked up, because its route had ended, is not the caller's doing: then it is looked up again.
    pub(super) fn routed<T>(
        &self,
        state: &Device,
        stream: Stream,
        mut request: impl FnMut(u64) -> Result<T>,
    ) -> Result<T> {
        if !state.routes.any() {
            return request(0);
        }
        let mut found = self.find_route(state, stream);
        loop {
            let answer = request(found.pool);
            // Until the capture ends nothing is unmapped: only now is it known that the pool has given it an address.
            if answer.is_ok() && !found.captures.is_empty() {
                state.bake_in(found.pool, &found.captures);
            }
            if !matches!(answer, Err(Error::Argument { name: "pool", .. })) {
                return answer;
            }
            let before = core::mem::replace(&mut found, self.find_route(state, stream));
            if found == before {
                return answer;
            }
        }
    }

    fn find_route(&self, state: &Device, stream: Stream) -> Found {
        // A stream of which that cannot be told is not captured, as far as routes are concerned.
        let graph_of = |stream| self.driver.capture_of(state.limits.device, stream).ok().flatten();
        let same_graph = |other| graph_of(stream).is_some_and(|it| graph_of(other) == Some(it));
        state.routes.find(stream, &same_graph).unwrap_or_default()
    }
}

impl Device {
    /// Sees to it that a pool's addresses stay for the graphs of captures' pools: a request of these captures has got one of
    /// them, through a route inside of them.
    #[cold]
    fn bake_in(&self, pool: u64, captures: &[(u64, u64)]) {
        let mut core = self.core.lock();
        for &(capture, generation) in captures {
            if core.generation == generation
                && let (Some(pool), Some(into)) = (core.pools.find(pool), core.pools.find(capture))
            {
                core.bake_in(pool, into);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_route_that_accepts_wins() {
        let routes = Routes::default();
        assert!(!routes.any());
        let outer = routes.begin(1, RouteFilter::ThisThread, None);
        let inner = routes.begin(2, RouteFilter::Stream(Stream(7)), None);
        let last = routes.begin(3, RouteFilter::Accepts(Arc::new(|stream| stream.0 > 100)), Some(5));
        assert!(routes.any());
        let pool_for = |stream| routes.find(Stream(stream), &|_| false).map(|found| found.pool);
        assert_eq!([7, 8, 101].map(pool_for), [Some(2), Some(1), Some(3)]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| [7, 8].map(pool_for));
            assert_eq!(other.join().unwrap(), [Some(2), None]);
        });
        assert_eq!((routes.newest_to(2), routes.newest_to(9)), (Some(inner), None));
        assert_eq!((routes.end(inner), routes.end(inner)), (Some((2, None)), None));
        assert_eq!(pool_for(7), Some(1));
        assert_eq!((routes.end(last), routes.end(outer)), (Some((3, Some(5))), Some((1, None))));
        assert!(!routes.any());
    }

    #[test]
    fn routes_of_a_thread_end_from_the_inside() {
        let routes = Routes::default();
        let outer = routes.begin(1, RouteFilter::ThisThread, None);
        let inner = routes.begin(2, RouteFilter::ThisThread, None);
        let other = routes.begin(3, RouteFilter::All, None);
        assert_eq!([1, 2, 3].map(|pool| routes.newest_to(pool)), [None, Some(inner), Some(other)]);
        routes.end(inner);
        assert_eq!(routes.newest_to(1), Some(outer));
    }
}
