//! A key-value cache for many requests, kept in four ways: bytes copied, peak memory, driver calls.
//!
//! `cargo bench --bench growable`. Nothing is timed: the figures come from a fixed sequence of requests and are the
//! same on every machine. Requests arrive with a prompt, gain a token a step, and end; as many as the server
//! serves at once are always under way.
//!
//! | way | how a request's cache grows |
//! |---|---|
//! | growing buffers | [`GrowableBuffer`]: address space for the longest request, memory as it is needed |
//! | doubling | a block of twice the size, everything copied, the old one freed in stream order |
//! | doubling, fixed blocks | the same with `expandable_segments:False`, as on devices without virtual memory |
//! | the longest at once | a block for the longest request from the beginning |

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::stats::DriverCalls;
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, GrowableBuffer, GrowableOptions, Result};
use ascend_sim::{BackingMode, Sim, SimConfig};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const STREAM: Stream = Stream(0);
/// The longest a request can become, in tokens.
const CONTEXT: u64 = 4096;
/// Requests in all, and at once.
const REQUESTS: usize = 2_000;
const AT_ONCE: usize = 48;
/// Fewer tokens are not worth a block of their own when doubling.
const LEAST: u64 = 16;

/// What one token's keys and values take.
const MODELS: [(&str, u64); 2] =
    [("Llama-2-7B, 512 KiB a token", 512 << 10), ("Llama-3-8B, 128 KiB a token", 128 << 10)];

/// A way to keep caches.
#[derive(Clone, Copy)]
enum Way {
    Growing,
    Doubling,
    Longest,
}

/// One request's cache.
enum Cache {
    Growing(GrowableBuffer),
    Block { ptr: DevicePtr, tokens: u64 },
}

/// A request under way.
struct Request {
    cache: Cache,
    tokens: u64,
    last: u64,
}

/// What a run took, bytes but for the calls.
#[derive(Default)]
struct Cost {
    needed: u64,
    peak: u64,
    copied: u64,
    calls: DriverCalls,
}

fn main() -> Result<()> {
    // `cargo test --benches` passes no `--bench`: it only wants to see everything run once.
    let requests = if std::env::args().any(|argument| argument == "--bench") { REQUESTS } else { AT_ONCE };
    let fixed = Config::parse("expandable_segments:False")?;
    let ways = [
        ("growing buffers", Way::Growing, Config::default()),
        ("doubling", Way::Doubling, Config::default()),
        ("doubling, fixed blocks", Way::Doubling, fixed),
        ("the longest at once", Way::Longest, Config::default()),
    ];
    for (model, token) in MODELS {
        println!("{model}: {requests} requests, {AT_ONCE} at once, up to {CONTEXT} tokens each");
        println!(
            "  {:<24} {:>10} {:>9} {:>11} {:>8} {:>8} {:>9} {:>7}",
            "", "peak, MiB", "of needed", "copied, GiB", "map", "unmap", "reserve", "malloc"
        );
        for (name, way, config) in &ways {
            let cost = serve(*way, config.clone(), token, requests)?;
            println!(
                "  {name:<24} {:>10} {:>9.3} {:>11.1} {:>8} {:>8} {:>9} {:>7}",
                cost.peak / MIB,
                cost.peak as f64 / cost.needed as f64,
                cost.copied as f64 / GIB as f64,
                cost.calls.map,
                cost.calls.unmap,
                cost.calls.reserve,
                cost.calls.malloc,
            );
        }
    }
    Ok(())
}

/// Serves all requests with caches kept in one way.
fn serve(way: Way, config: Config, token: u64, requests: usize) -> Result<Cost> {
    let sim = Sim::new(SimConfig {
        capacity: 256 * GIB,
        backing: BackingMode::MetadataOnly,
        checker: false,
        ..SimConfig::default()
    });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = Arc::new(DeviceAllocator::new(config, driver)?);
    let mut random = fastrand::Rng::with_seed(11);
    let mut active: Vec<Request> = Vec::new();
    let (mut arrived, mut cost) = (0, Cost::default());
    while arrived < requests || !active.is_empty() {
        while arrived < requests && active.len() < AT_ONCE {
            arrived += 1;
            // Log-uniform: many short ones, some long.
            let prompt = 2f64.powf(random.f64() * 7.0 + 4.0) as u64;
            let last = (prompt + 2f64.powf(random.f64() * 7.0 + 4.0) as u64).min(CONTEXT);
            let cache = begin(&allocator, way, token, prompt)?;
            active.push(Request { cache, tokens: prompt, last });
        }
        for request in &mut active {
            request.tokens += 1;
            cost.copied += extend(&allocator, request, token)?;
        }
        let tokens: u64 = active.iter().map(|request| request.tokens).sum();
        cost.needed = cost.needed.max(tokens * token);
        let (over, rest) = active.into_iter().partition(|request| request.tokens >= request.last);
        active = rest;
        for Request { cache, .. } in over {
            end(&allocator, cache)?;
        }
    }
    cost.peak = sim.physical_peak(0);
    cost.calls = allocator.stats(0)?.calls;
    Ok(cost)
}

fn begin(allocator: &Arc<DeviceAllocator>, way: Way, token: u64, prompt: u64) -> Result<Cache> {
    let block = |tokens: u64| {
        let ptr = allocator.allocate(0, tokens * token, 0, STREAM)?;
        Ok(Cache::Block { ptr, tokens })
    };
    match way {
        Way::Growing => {
            let options = GrowableOptions::up_to(CONTEXT * token).beginning_with(prompt * token);
            GrowableBuffer::new(allocator.clone(), 0, STREAM, options).map(Cache::Growing)
        }
        Way::Doubling => block(prompt.next_power_of_two().max(LEAST)),
        Way::Longest => block(CONTEXT),
    }
}

/// Makes room for the request's tokens; the bytes copied.
fn extend(allocator: &DeviceAllocator, request: &mut Request, token: u64) -> Result<u64> {
    match &mut request.cache {
        Cache::Growing(buffer) => buffer.resize(request.tokens * token).map(|()| 0),
        Cache::Block { tokens, .. } if *tokens >= request.tokens => Ok(0),
        Cache::Block { ptr, tokens } => {
            let larger = allocator.allocate(0, 2 * *tokens * token, 0, STREAM)?;
            let copied = *tokens * token;
            allocator.deallocate(std::mem::replace(ptr, larger))?;
            *tokens *= 2;
            Ok(copied)
        }
    }
}

fn end(allocator: &DeviceAllocator, cache: Cache) -> Result<()> {
    match cache {
        Cache::Growing(buffer) => {
            drop(buffer);
            Ok(())
        }
        Cache::Block { ptr, .. } => allocator.deallocate(ptr),
    }
}
