//! How much more page-locked memory is held than was asked for.

mod host_bed;

use ascend_alloc::host::PinnedOptions;
use ascend_sim::SimConfig;
use host_bed::{Bed, config};

#[test]
fn single_requests_waste_an_eighth_at_most() {
    for text in ["", "pinned_max_round_threshold_mb:1024"] {
        let bed = Bed::new(config(text));
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..500 {
            let bytes = (random.f64() * (600.0_f64 * 1048576.0 / 4096.0).ln()).exp() * 4096.0;
            let bytes = bytes as u64;
            let ptr = bed.pinned.allocate(bytes, 0).unwrap();
            let got = bed.pinned.block_bytes(ptr).unwrap();
            assert!(got >= bytes && (got - bytes) * 8 <= bytes, "{bytes}: {got}");
            assert_eq!(ptr.address() % 64, 0);
            bed.pinned.deallocate(ptr).unwrap();
        }
        bed.end();
    }
}

/// How much more than was asked for is held at the peak, as a share.
fn waste(sizes: &[u64]) -> f64 {
    let config = SimConfig { host_capacity: 4 << 40, checker: false, ..SimConfig::default() };
    let bed = Bed::on(config, PinnedOptions::default());
    let blocks: Vec<_> = sizes.iter().map(|&bytes| bed.pinned.allocate(bytes, 0).unwrap()).collect();
    let asked: u64 = sizes.iter().sum();
    let peak = bed.pinned.stats().allocated_bytes.peak as u64;
    assert!(peak >= asked);
    let waste = (peak - asked) as f64 / asked as f64;
    println!("{} sizes, {asked} bytes asked for, {peak} held: {:.3} % more", sizes.len(), waste * 100.0);
    blocks.into_iter().for_each(|ptr| bed.pinned.deallocate(ptr).unwrap());
    bed.end();
    waste
}

/// The shapes of a decoder's weights: hidden size, feed-forward size, size of keys and values, layers, vocabulary.
fn weights(hidden: u64, forward: u64, keys: u64, layers: u64, vocabulary: u64) -> Vec<u64> {
    let mut elements = vec![vocabulary * hidden, vocabulary * hidden, hidden];
    for _ in 0..layers {
        elements.extend([hidden * hidden, keys * hidden, keys * hidden, hidden * hidden]);
        elements.extend([forward * hidden, forward * hidden, hidden * forward, hidden, hidden]);
    }
    elements.into_iter().map(|count| count * 2).collect()
}

#[test]
fn the_weights_of_two_models_waste_little() {
    let mut sizes = weights(4096, 11_008, 4096, 32, 32_000);
    sizes.extend(weights(4096, 14_336, 1024, 32, 128_256));
    assert!(waste(&sizes) <= 0.05);
}

#[test]
fn ten_thousand_sizes_waste_little() {
    let seed = 20_261_129;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (least, most) = ((64.0 * 1024.0_f64).ln(), (512.0 * 1024.0 * 1024.0_f64).ln());
    let sizes: Vec<u64> = (0..10_000).map(|_| (least + random.f64() * (most - least)).exp() as u64).collect();
    assert!(waste(&sizes) <= 0.05);
}
