//! What it costs more to keep a history: an allocation and its free with the history off, on, and with a context.
//!
//! `cargo bench --bench history` prints a table within a few seconds. A pair is two events: a third column is
//! what an event costs more than nothing. The kinds take turns, so that a machine that changes its speed
//! changes all of them.

use std::hint::black_box;
use std::time::Instant;

use ascend_alloc::Config;
use ascend_alloc::driver::Stream;
use ascend_alloc::history::{HistoryOptions, intern, set_context};

mod common;

use common::{Bed, core_only};

/// Pairs in a batch.
const BATCH: u32 = 2_000;
/// Batches of each kind.
const TURNS: usize = 400;

/// What is kept while a batch runs.
#[derive(Clone, Copy)]
enum Kept {
    Nothing,
    Events,
    Contexts,
    ContextsSetEachTime,
}

const KINDS: [(&str, Kept); 4] = [
    ("history off", Kept::Nothing),
    ("on", Kept::Events),
    ("on, with a context", Kept::Contexts),
    ("on, the context set before each pair", Kept::ContextsSetEachTime),
];

fn main() {
    println!("median of {TURNS} batches; the newest 100 000 events are kept, and there are as many");
    println!("a pair is two events, three where it is used on a second stream and waits");
    let front = Beds::new(&Config::default());
    front.table("64 KiB, front cache", 2.0, &|bed, count| bed.pairs(black_box(64 << 10), Stream(0), count));
    front.table("20 MiB, front cache", 2.0, &|bed, count| bed.pairs(black_box(20 << 20), Stream(0), count));
    front.table("64 KiB, used on a second stream", 3.0, &|bed, count| {
        bed.recorded_pairs(black_box(64 << 10), count);
    });
    drop(front);
    let core = Beds::new(&core_only());
    core.table("64 KiB, without the front cache", 2.0, &|bed, count| {
        bed.pairs(black_box(64 << 10), Stream(0), count);
    });
}

/// An allocator that keeps nothing, and one that keeps events.
struct Beds {
    off: Bed,
    on: Bed,
}

impl Beds {
    fn new(config: &Config) -> Self {
        let beds = Self { off: Bed::simulated(config.clone()), on: Bed::simulated(config.clone()) };
        let options = HistoryOptions::default();
        beds.on.allocator.start_history(&options);
        beds.on.pairs(64 << 10, Stream(0), options.entries as u32);
        beds
    }

    /// Prints what pairs cost for each kind, and what an event costs more than none.
    fn table(&self, name: &str, events: f64, pairs: &dyn Fn(&Bed, u32)) {
        let contexts = [intern("layer 1"), intern("layer 2")];
        let mut nanos: [Vec<f64>; KINDS.len()] = core::array::from_fn(|_| Vec::new());
        for _ in 0..TURNS {
            for (kind, (_, kept)) in KINDS.into_iter().enumerate() {
                let bed = if matches!(kept, Kept::Nothing) { &self.off } else { &self.on };
                set_context(matches!(kept, Kept::Contexts).then_some(contexts[0]));
                pairs(bed, BATCH / 4);
                let start = Instant::now();
                if matches!(kept, Kept::ContextsSetEachTime) {
                    for at in 0..BATCH as usize {
                        set_context(Some(contexts[at % 2]));
                        pairs(bed, 1);
                    }
                } else {
                    pairs(bed, BATCH);
                }
                nanos[kind].push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
                set_context(None);
            }
        }
        let medians = nanos.map(|mut batches| {
            batches.sort_by(f64::total_cmp);
            batches[batches.len() / 2]
        });
        println!("{name}");
        for ((kind, _), pair) in KINDS.into_iter().zip(medians) {
            let more = (pair - medians[0]) / events;
            println!("  {kind:<38} {pair:>7.1} ns a pair, {more:>6.1} ns more an event");
        }
    }
}
