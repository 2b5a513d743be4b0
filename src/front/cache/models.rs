//! What the front's memory orders must give, under loom: `RUSTFLAGS="--cfg ascend_alloc_loom" cargo test -p
//! ascend-alloc --lib models`. A model goes through all interleavings with few preemptions, and through every value
//! that each load may see.

use std::sync::Arc;

use loom::thread::spawn;

use super::*;
use crate::front::map::Head;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::explore;

const LEN: u64 = 512;
/// The default stream's place, in the first shard.
const HOME: u16 = 0;
const DEFAULT: Stream = Stream(0);

/// A front, a map, blocks of the default stream that are live, and work that the host has queued.
struct Bed {
    front: Front,
    map: AddressMap,
    blocks: [(u64, Entry); 2],
    /// In no order with anything but itself, as a device's queue may be.
    queued: AtomicU32,
    /// Stands for what threads know that is no atomic.
    plain: AtomicU32,
    sign: AtomicU32,
}

fn bed() -> Arc<Bed> {
    let front = Front::new(true, &Front::lists(&Arc::default(), 0));
    front.shard(HOME).set_used();
    front.deal([1, LEN as i64, LEN as i64].map(|each| [each * 8, each * 8, 0]));
    front.set_most_waiting(8 * LEN);
    let block = |number: u32| {
        let address = (1 << 22) + u64::from(number) * LEN;
        let entry = Entry::default();
        entry.set_body(LEN, number);
        entry.set_head(Head::new(LEN, (HOME, true), address));
        (address, entry)
    };
    let (plain, sign) = (AtomicU32::new(0), AtomicU32::new(0));
    Arc::new(Bed {
        front,
        map: AddressMap::new(),
        blocks: [block(0), block(1)],
        queued: AtomicU32::new(0),
        plain,
        sign,
    })
}

impl Bed {
    fn take(&self) -> Option<u64> {
        self.front.take::<false>(&self.map, DEFAULT, LEN, LEN, true)
    }

    fn put(&self, block: usize) -> bool {
        let (address, entry) = &self.blocks[block];
        self.front.put::<false>(entry, *address) == Freed::Done
    }

    /// A stream whose place is in the other shard, with a column.
    fn other(&self) -> (Stream, u16) {
        let streams = (1..64).map(Stream).find_map(|stream| {
            let place = self.front.admit(stream, 7, 1)?;
            (place % 2 == 1).then_some((stream, place))
        });
        let (stream, place) = streams.expect("one of them is there");
        assert_eq!(self.front.attach(place, 7, 1, 0), Some(0));
        (stream, place)
    }

    /// The epochs that a resting block waits for, or that it was freed in.
    fn stamps(&self, small: bool) -> Vec<u32> {
        let shard = self.front.shard(HOME);
        let slots = shard.slots.iter().filter(|slot| slot.key.load(Relaxed) != 0);
        let mut stamps: Vec<u32> = slots.map(|slot| slot.epoch.load(Relaxed)).collect();
        for (slot, _) in shard.ring.all(small) {
            let uses = slot.uses().into_iter().filter_map(|one| self.front.streams.resolve(one));
            stamps.push(uses.map(|(_, epoch)| epoch).max().unwrap_or(0));
        }
        stamps
    }
}

/// Two threads free, three ask: each block goes to one.
#[test]
fn a_resting_block_is_handed_out_once() {
    explore(|| {
        let bed = bed();
        assert!(bed.put(0));
        let giver = {
            let bed = Arc::clone(&bed);
            spawn(move || bed.put(1))
        };
        let taker = {
            let bed = Arc::clone(&bed);
            spawn(move || bed.take())
        };
        let mine = bed.take();
        let given = giver.join().expect("no panic");
        let theirs = taker.join().expect("no panic");
        assert!(mine.is_none() || mine != theirs, "{mine:x?} twice");
        let taken = [mine, theirs].into_iter().flatten();
        for address in taken.clone() {
            assert!(bed.blocks.iter().any(|block| block.0 == address), "{address:#x} is no block");
        }
        assert_eq!(taken.count() + bed.front.resting().len(), 1 + usize::from(given));
    });
}

/// A free that is stamped with an old epoch comes before the event that closes it.
#[test]
fn the_event_of_an_epoch_covers_the_frees_in_it() {
    explore(|| {
        let bed = bed();
        let freer = {
            let bed = Arc::clone(&bed);
            spawn(move || {
                bed.queued.fetch_add(1, Relaxed);
                bed.put(0)
            })
        };
        bed.front.set_epochs([(HOME, 2)].into_iter());
        let event = bed.queued.fetch_add(0, Relaxed);
        freer.join().expect("no panic");
        for epoch in bed.stamps(true) {
            assert!(epoch == 2 || event == 1, "freed in an epoch that was closed without its work");
        }
    });
}

/// The same for a block that was recorded on a stream of another shard.
#[test]
fn the_event_of_a_column_covers_the_frees_of_all_shards() {
    explore(|| {
        let bed = bed();
        let (stream, place) = bed.other();
        let freer = {
            let bed = Arc::clone(&bed);
            spawn(move || {
                let (address, entry) = &bed.blocks[0];
                bed.queued.fetch_add(1, Relaxed);
                assert!(bed.front.record(entry, *address, stream));
                bed.put(0)
            })
        };
        bed.front.set_epochs([(place, 2)].into_iter());
        let event = bed.queued.fetch_add(0, Relaxed);
        let waits = freer.join().expect("no panic");
        let stamps = bed.stamps(true);
        assert_eq!(stamps.len(), usize::from(waits));
        for epoch in stamps {
            assert!(epoch == 2 || event == 1, "waits for an epoch that was closed without its work");
        }
    });
}

/// Who is handed a block that waited comes after what said that the wait is over.
#[test]
fn a_wait_that_is_over_was_over_before() {
    explore(|| {
        let bed = bed();
        let (stream, _) = bed.other();
        let (address, entry) = &bed.blocks[0];
        assert!(bed.front.record(entry, *address, stream) && bed.put(0));
        let taker = {
            let bed = Arc::clone(&bed);
            spawn(move || bed.take().map(|_| bed.plain.load(Relaxed)))
        };
        bed.plain.store(1, Relaxed);
        bed.front.complete(0, 1);
        assert_ne!(taker.join().expect("no panic"), Some(0), "handed out before the wait was over");
    });
}

/// A use that the program noted before the free, in whatever thread, is waited for.
#[test]
fn a_free_sees_the_uses_before_it() {
    explore(|| {
        let bed = bed();
        let (stream, _) = bed.other();
        let user = {
            let bed = Arc::clone(&bed);
            spawn(move || {
                let (address, entry) = &bed.blocks[0];
                assert!(bed.front.record(entry, *address, stream));
                bed.sign.store(1, Release);
            })
        };
        let used = bed.sign.load(Acquire) == 1;
        if used && bed.put(0) {
            assert_eq!(bed.take(), None, "handed out while another stream uses it");
            assert_eq!(bed.stamps(true), [1]);
        }
        user.join().expect("no panic");
    });
}

/// A use that is noted while the block's uses are taken is taken, or found the next time.
#[test]
fn no_use_is_lost_between_two_looks() {
    explore(|| {
        let bed = bed();
        let user = {
            let bed = Arc::clone(&bed);
            spawn(move || bed.blocks[0].1.mark(2))
        };
        let entry = &bed.blocks[0].1;
        let first = entry.take_uses();
        user.join().expect("no panic");
        assert!(first & 4 != 0 || entry.is_used() && entry.take_uses() & 4 != 0, "the use is lost");
    });
}

/// Whoever finds a stream finds what is known of it.
#[test]
fn a_stream_is_known_whole() {
    explore(|| {
        let bed = bed();
        let stream = Stream(5);
        let finder = {
            let bed = Arc::clone(&bed);
            spawn(move || {
                let Some((place, id)) = bed.front.core_id(stream) else { return };
                assert_eq!(id, 9);
                if let Some(column) = bed.front.column(place) {
                    assert_eq!(bed.front.streams.stream(column), 9);
                    assert!(bed.front.streams.uses(1 << column).is_some(), "its open epoch is known");
                }
            })
        };
        let place = bed.front.admit(stream, 9, 3).expect("there is room");
        assert!(bed.front.attach(place, 9, 3, 2).is_some());
        finder.join().expect("no panic");
    });
}

/// After a stream was dismissed and its shard drained nothing rests under its name, whoever frees meanwhile.
#[test]
fn nothing_rests_for_a_dismissed_stream() {
    explore(|| {
        let bed = bed();
        let freer = {
            let bed = Arc::clone(&bed);
            spawn(move || bed.put(0))
        };
        bed.front.dismiss(HOME);
        bed.front.drain(&bed.map, |_| ());
        freer.join().expect("no panic");
        assert_eq!(bed.front.resting().len(), 0);
    });
}

/// The same where the front is switched off.
#[test]
fn nothing_rests_once_the_front_is_off() {
    explore(|| {
        let bed = bed();
        let (stream, place) = bed.other();
        let freer = {
            let bed = Arc::clone(&bed);
            spawn(move || {
                let (address, entry) = &bed.blocks[0];
                if bed.front.record(entry, *address, stream) {
                    bed.put(0);
                }
                bed.put(1)
            })
        };
        bed.front.enable(false);
        bed.front.set_epochs([(HOME, 2), (place, 2)].into_iter());
        bed.front.drain(&bed.map, |_| ());
        freer.join().expect("no panic");
        assert_eq!(bed.front.resting().len(), 0);
    });
}

/// A block that one thread publishes is found by another that was told of it, with its length.
#[test]
fn a_published_block_is_found_whole() {
    explore(|| {
        let bed = bed();
        const BASE: u64 = 1 << 22;
        let finder = {
            let bed = Arc::clone(&bed);
            spawn(move || {
                let told = bed.sign.load(Acquire) == 1;
                match bed.map.find(BASE) {
                    Some((owner, entry)) => {
                        assert_eq!((owner.device(), owner.is_small()), (3, false));
                        assert!(!told || entry.body() == (3 << 20, 5) && entry.head().requested() == 7);
                    }
                    None => assert!(!told, "a live block is found"),
                }
            })
        };
        assert!(bed.map.cover(3, BASE, 1 << 22, false));
        bed.map.publish(BASE, 3 << 20, 5, Head::new(7, (HOME, false), BASE));
        bed.sign.store(1, Release);
        finder.join().expect("no panic");
    });
}
