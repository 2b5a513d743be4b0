#![cfg(test)]
//! Events on credit: on a prompt device nothing is left behind on other streams for want of earned events.

use std::sync::OnceLock;

use super::in_turn::on_64_gib;
use crate::driver::Stream;

const M: u64 = 1 << 20;

#[test]
fn a_prompt_device_is_asked_although_all_events_are_spent() {
    let (sim, alloc) = on_64_gib();
    let streams: Vec<Stream> = (0..40).map(|_| Stream(sim.create_stream().unwrap())).collect();
    alloc.allocate(0, 4 << 30, 0, Stream(0)).unwrap();
    let state = alloc.devices.first().and_then(OnceLock::get).expect("it is used");
    let mut random = fastrand::Rng::with_seed(5);
    let mut live = Vec::new();
    for _ in 0..1000 {
        state.core.lock().tokens = -20;
        let bytes = random.u64(4 * M..40 * M);
        live.push(alloc.allocate(0, bytes, 0, streams[random.usize(0..40)]).unwrap());
        if live.len() > 30 {
            alloc.deallocate(live.swap_remove(random.usize(0..30))).unwrap();
        }
    }
    let stats = alloc.stats(0).unwrap();
    let (peak, reserved) = (stats.allocated_bytes.all.peak, stats.reserved_bytes.all.peak);
    assert!(reserved < peak + peak / 20, "{} MiB for {}", reserved / M as i64, peak / M as i64);
    assert_eq!((stats.calls.wait_event, stats.calls.wait_stream, stats.calls.wait_device), (0, 0, 0));
}
