//! Growing buffers in random programs and in several threads: whoever gets a chunk comes behind all that used it before.

mod common;

use ascend_alloc::driver::Stream;
use ascend_alloc::{Error, GrowableBuffer};
use ascend_sim::{LAG_NEVER, SimConfig, Task};
use common::M;
use common::growing::Rig;

const STREAM: Stream = Stream(0);

/// A buffer of the random programs: what its chunks hold, by tag, and the streams it was recorded on.
struct Random {
    buffer: GrowableBuffer,
    stream: Stream,
    tags: Vec<u64>,
}

/// One random program: buffers and blocks on three streams, whose work never ends by itself. Whoever gets a chunk must
/// come behind all work that used it before, or the use checker finds it.
fn random_program(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let lag = [LAG_NEVER, 0, 30][random.usize(..3)];
    let rig = Rig::on(SimConfig { capacity: 48 * M, lag, ..Rig::machine() }, "check_level:3");
    let streams = [STREAM, rig.stream(), rig.stream()];
    let (mut buffers, mut blocks): (Vec<Random>, Vec<(u64, Stream)>) = (Vec::new(), Vec::new());
    let mut tag = 0;
    for _ in 0..80 {
        let stream = streams[random.usize(..3)];
        match random.u8(..12) {
            0 | 1 => {
                if let Ok(buffer) = rig.buffer(random.u64(8..40) * M, 0, stream) {
                    buffers.push(Random { buffer, stream, tags: Vec::new() });
                }
            }
            2..7 if !buffers.is_empty() => {
                let at = random.usize(..buffers.len());
                let Random { buffer, stream, tags } = &mut buffers[at];
                let wish = random.u64(0..16 * M).min(buffer.max_bytes());
                match buffer.resize(wish) {
                    Ok(()) => assert_eq!(buffer.mapped_bytes(), wish.next_multiple_of(2 * M)),
                    Err(Error::OutOfMemory(_)) => continue,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                tags.resize_with((buffer.mapped_bytes() / (2 * M)) as usize, || {
                    tag += 1;
                    tag
                });
                work_on(&rig, *stream, buffer, tags);
            }
            7 | 8 if !buffers.is_empty() => {
                let Random { buffer, stream: home, tags } = &buffers[random.usize(..buffers.len())];
                if buffer.bytes() > 0 && *home != stream {
                    let event = rig.sim.create_event_ex(1).unwrap();
                    rig.sim.record_event(event, home.0).unwrap();
                    rig.sim.stream_wait_event(stream.0, event).unwrap();
                    rig.sim.destroy_event(event).unwrap();
                    work_on(&rig, stream, buffer, tags);
                    buffer.record_stream(stream).unwrap();
                }
            }
            9 if !buffers.is_empty() => drop(buffers.swap_remove(random.usize(..buffers.len()))),
            10 => {
                if let Ok(block) = rig.alloc.allocate(0, random.u64(M..12 * M), 0, stream) {
                    tag += 1;
                    rig.work(stream, block.0, M, tag);
                    blocks.push((block.0, stream));
                }
            }
            _ if !blocks.is_empty() => {
                let (block, _) = blocks.swap_remove(random.usize(..blocks.len()));
                rig.alloc.deallocate(ascend_alloc::DevicePtr(block)).unwrap();
            }
            _ => {}
        }
        assert_eq!(rig.sim.findings(), Vec::<String>::new(), "seed {seed}");
    }
    drop(buffers);
    for (block, _) in blocks {
        rig.alloc.deallocate(ascend_alloc::DevicePtr(block)).unwrap();
    }
    rig.close();
}

/// Queues a task that writes every chunk of a buffer.
fn work_on(rig: &Rig, stream: Stream, buffer: &GrowableBuffer, tags: &[u64]) {
    let mut task = Task::new("work");
    for (at, &tag) in tags.iter().enumerate() {
        task = task.writes(buffer.ptr().0 + at as u64 * 2 * M, 2 * M, tag);
    }
    rig.sim.submit(stream.0, task).unwrap();
}

#[test]
fn random_programs_are_ordered() {
    let more = std::env::var("ASCEND_ALLOC_PROGRAMS").map_or(1, |text| text.parse().expect("a number"));
    let seeds = match std::env::var("ASCEND_ALLOC_SEED") {
        Ok(seed) => seed.parse().map(|seed: u64| seed..seed + 1).expect("a number"),
        Err(_) => 0..60 * more,
    };
    seeds.for_each(random_program);
}

/// Threads whose buffers take chunks from one another's cut-off ends all the time.
#[test]
fn threads_grow_and_shrink_in_little_memory() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<GrowableBuffer>();
    let rig = Rig::on(SimConfig { capacity: 40 * M, ..Rig::machine() }, "");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let rig = &rig;
            scope.spawn(move || {
                rig.sim.set_device(0).unwrap();
                let stream = rig.stream();
                let mut random = fastrand::Rng::with_seed(thread);
                let mut buffer = rig.buffer(32 * M, 2 * M, stream).unwrap();
                for step in 1..400 {
                    let (before, wish) = (buffer.bytes(), random.u64(0..12 * M));
                    match buffer.resize(wish) {
                        Ok(()) => assert_eq!(buffer.bytes(), wish),
                        // Memory another thread is moving at this moment serves nobody.
                        Err(Error::OutOfMemory(_)) => assert_eq!(buffer.bytes(), before),
                        Err(error) => panic!("{error}"),
                    }
                    if buffer.bytes() > 0 {
                        rig.work(stream, buffer.ptr().0, buffer.bytes(), thread * 1000 + step);
                    }
                }
            });
        }
    });
    rig.close();
}
