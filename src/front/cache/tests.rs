//! Room below the peaks, and who gets it.

use super::*;
use crate::core::tally::{Columns, Flow, Split};
use crate::front::counts::amounts;
use crate::front::map::Head;

/// Room for that many blocks of 512 bytes, all of them small.
fn room(blocks: i64) -> Columns {
    [1, 512, 512].map(|each| [each * blocks, each * blocks, 0])
}

fn front() -> Front {
    Front::new(true, &Front::lists(&Arc::default(), 0))
}

fn charge(front: &Front, place: u16) -> bool {
    front.shard(place).counts(true).charge(512, 512)
}

fn refund(front: &Front, place: u16) {
    front.shard(place).counts(true).refund(512, 512);
}

#[test]
fn who_asked_in_vain_gets_room_before_the_rest_is_shared() {
    let front = front();
    (0..8).for_each(|place| front.shard(place).set_used());
    front.deal(room(2));
    assert!((0..8).all(|place| !charge(&front, place)), "equal shares are too small for anybody");
    for place in [3, 5] {
        front.gather();
        front.shard(place).counts(true).grant(amounts(512, 512));
        assert!(charge(&front, place), "what is granted can be taken beyond what was dealt");
        refund(&front, place);
    }
    front.gather();
    let core = front.deal(room(2));
    assert_eq!(core, Split::default(), "all of it was wished");
    assert!(charge(&front, 3) && charge(&front, 5), "both have what they asked for");
    assert!(!charge(&front, 3) && !charge(&front, 4), "and nobody has more than there is");
}

#[test]
fn a_wish_is_forgotten_after_some_deals() {
    let front = front();
    (0..2).for_each(|place| front.shard(place).set_used());
    front.gather();
    front.shard(1).counts(true).grant(amounts(512, 512));
    let served = (0..100).take_while(|_| {
        front.gather();
        front.deal(room(2));
        charge(&front, 1)
    });
    let served = served.count();
    assert!((8..100).contains(&served), "{served} deals");
    front.gather();
    assert_eq!(front.deal(room(6))[0][0], 1, "then all have equal shares");
}

/// A second stream, and its column.
fn second(front: &Front) -> (Stream, usize) {
    let stream = Stream(0x77);
    let place = front.admit(stream, 1, 1).expect("there is a place");
    (stream, front.attach(place, 1, 1, 0).expect("there is a column"))
}

/// Frees a block of the stream of a place, `number` places behind the first, that was used on another stream.
fn put_used(front: &Front, number: u64, (place, len): (u16, u64), user: Stream) -> Freed {
    let address = (1 << 30) + number * 512;
    let entry = Entry::default();
    entry.set_body(len, number as u32);
    entry.set_head(Head::new(512, (place, true), address));
    assert!(front.record(&entry, address, user));
    front.put::<false>(&entry, address)
}

/// Blocks of one length that nobody asks for again do not keep those of another from waiting here: three lengths with one
/// place had each pair of the third go to the core, which took everything out of the front for it.
#[test]
fn as_many_lengths_wait_as_there_are_lanes() {
    let (front, map) = (front(), AddressMap::new());
    let (second, column) = second(&front);
    front.shard(0).set_used();
    front.gather();
    front.deal(room(1 << 20));
    front.set_most_waiting(1 << 30);
    let waits = |blocks: u64| put_used(&front, 64 * blocks, (0, 512 * blocks), second) == Freed::Done;
    let lanes = super::super::ring::LANES as u64;
    assert!((1..=lanes).all(waits), "wherever their places are");
    assert!(!waits(lanes + 1), "there is no lane left");
    front.complete(column, 1);
    let take = |blocks: u64| front.take::<false>(&map, Stream(0), 512 * blocks, 512, true);
    let waited: Vec<u64> = (1..=lanes).filter(|&blocks| take(blocks).is_some()).collect();
    assert_eq!(waited, (1..=lanes).collect::<Vec<_>>());
    assert!((1..=lanes).all(|blocks| take(blocks).is_none()), "each once");
    assert!((lanes..2 * lanes).all(waits), "lanes without blocks are for any length");
}

/// Four threads with as many bytes each as one alone took what they waited for from each other, over and over.
#[test]
fn shards_share_what_may_wait() {
    let (front, map) = (front(), AddressMap::new());
    let ((second, column), third) = (second(&front), Stream(0x78));
    let other = front.admit(third, 2, 1).expect("there is a place");
    assert!(!core::ptr::eq(front.shard(0), front.shard(other)));
    [0, other].into_iter().for_each(|place| front.shard(place).set_used());
    front.gather();
    front.deal(room(16));
    front.set_most_waiting(4096);
    let put = |number, place| put_used(&front, number, (place, 512), second) == Freed::Done;
    assert!(put(0, 0) && put(1, 0) && put(2, other));
    front.set_most_waiting(4096);
    let take = || front.take::<false>(&map, Stream(0), 512, 512, true);
    assert!(take().is_none(), "the second stream has not passed");
    assert!(put(3, 0) && put(4, 0) && !put(5, 0), "the other shard may have as many bytes");
    front.complete(column, 1);
    assert!((0..4).all(|_| take().is_some()) && take().is_none());
    assert!(front.take::<false>(&map, third, 512, 512, true).is_some());
    front.set_most_waiting(4096);
    assert!((6..14).all(|number| put(number, 0)), "a shard without any takes no share");
}

/// With four threads, each took a small share of the room that its own blocks had given up, and asked again, which
/// looked through all shards, for every few allocations.
#[test]
fn a_deal_leaves_their_room_to_blocks_that_were_passed_unseen() {
    const BLOCKS: u64 = 8;
    let (front, map) = (front(), AddressMap::new());
    let (second, column) = second(&front);
    front.shard(0).set_used();
    front.set_most_waiting(512 * BLOCKS);
    front.gather();
    front.deal(room(4 * BLOCKS as i64));
    for block in 0..BLOCKS {
        assert!(charge(&front, 0));
        assert_eq!(put_used(&front, block, (0, 512), second), Freed::Done);
    }
    let take = || front.take::<false>(&map, Stream(0), 512, 512, true);
    assert!(take().is_none(), "the second stream has not passed");
    front.complete(column, 1);
    front.gather();
    front.deal(room(0));
    assert!((0..BLOCKS).all(|_| take().is_some()), "no room is needed for what counts as waiting");
    assert!(take().is_none());
    let flow = front.gather();
    assert_eq!(flow.waiting, Flow::default().waiting);
}
