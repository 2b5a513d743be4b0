//! Each call, made.

use core::ffi::c_int;
use core::ptr::null_mut;

use proof::machine::Machine;

use super::{Any, Call, Known, Rig, bytes, call, start, text};

impl Rig {
    pub(super) fn make(&self, call: &Call, known: &mut Known) -> c_int {
        let status = match call {
            Call::Malloc { size, device, stream } => {
                let block =
                    call!(self.malloc(bytes(*size), c_int::from(*device), self.stream(*stream, *device)));
                self.answered(block, &mut known.blocks)
            }
            Call::Allocate { size, align, pool, flags, device, stream, told, out } => {
                let mut request = proof::surface::structs::Request::zero();
                request.size = bytes(*size);
                request.alignment = *align as usize;
                request.stream = self.stream(*stream, *device);
                request.pool = known.number(*pool);
                request.device = c_int::from(*device);
                request.flags = u32::from(*flags % 4);
                let mut request = Any::told(request, *told);
                let mut block = null_mut();
                let place = if *out { &raw mut block } else { null_mut() };
                let status = call!(self.allocate(request.place(true), place));
                if !block.is_null() {
                    known.blocks.push(block.expose_provenance() as u64);
                }
                status
            }
            Call::PoolMalloc { pool, size, stream } => {
                let block =
                    call!(self.pool_malloc(known.number(*pool), bytes(*size), self.stream(*stream, 0)));
                self.answered(block, &mut known.blocks)
            }
            Call::Tagged { size, device, stream } => {
                let (device, stream) = (c_int::from(*device), self.stream(*stream, *device));
                let block = call!(self.tagged_malloc(bytes(*size), device, stream));
                self.answered(block, &mut known.blocks)
            }
            Call::Release { block } => call!(self.release(known.block(*block))),
            Call::Free { block, size, device, tagged } => {
                let (block, device) = (known.block(*block), c_int::from(*device));
                if *tagged {
                    call!(self.tagged_free(block, *size as usize, device, null_mut()));
                } else {
                    call!(self.free(block, *size as usize, device, null_mut()));
                }
                call!(self.last_status())
            }
            Call::Grow { block, size, out } => {
                let mut grown = 0;
                let place = if *out { &raw mut grown } else { null_mut() };
                call!(self.grow_in_place(known.block(*block), bytes(*size), place))
            }
            Call::Shrink { block, size } => call!(self.shrink_in_place(known.block(*block), bytes(*size))),
            Call::Record { block, stream, erase } => {
                let (block, stream) = (known.block(*block), self.stream(*stream, 0));
                if *erase {
                    call!(self.erase_stream(block, stream))
                } else {
                    call!(self.record_stream(block, stream))
                }
            }
            Call::StreamEnds { stream, device } => {
                // The streams live on: the library takes those of the same handles for others.
                call!(self.stream_destroyed(c_int::from(*device), self.stream(*stream, *device)))
            }
            Call::Register { stream, device, end } => {
                let (device, stream) = (c_int::from(*device), self.stream(*stream, *device));
                if *end {
                    call!(self.unregister_acl_allocator(device, stream))
                } else {
                    call!(self.register_acl_allocator(device, stream))
                }
            }
            call => self.make_for_objects(call, known),
        };
        self.said();
        status
    }

    fn make_for_objects(&self, call: &Call, known: &mut Known) -> c_int {
        let mut number = 0u64;
        let place = |out: bool, number: &mut u64| if out { &raw mut *number } else { null_mut() };
        let status = match call {
            Call::BufferCreate { max, least, size, pool, device, stream, told, out } => {
                let mut options = proof::surface::structs::BufferOptions::zero();
                options.max_size = bytes(*max);
                options.least_max_size = *least as usize;
                options.size = bytes(*size);
                options.pool = known.number(*pool);
                let mut options = Any::told(options, *told);
                let (device, stream) = (c_int::from(*device), self.stream(*stream, *device));
                call!(self.buffer_create(device, stream, options.place(true), place(*out, &mut number)))
            }
            Call::BufferResize { buffer, size } => {
                call!(self.buffer_resize(known.number(*buffer), bytes(*size)))
            }
            Call::BufferRecord { buffer, stream } => {
                call!(self.buffer_record_stream(known.number(*buffer), self.stream(*stream, 0)))
            }
            Call::BufferInfo { buffer, told, out } => {
                let mut info = Any::told(proof::surface::structs::BufferEntry::zero(), *told);
                call!(self.buffer_info(known.number(*buffer), info.place(*out)))
            }
            Call::BufferDestroy { buffer } => call!(self.buffer_destroy(known.number(*buffer))),
            Call::Checkpoint { pool, out } => {
                call!(self.checkpoint(known.number(*pool), place(*out, &mut number)))
            }
            Call::Restore { checkpoint, room } => {
                let room = usize::from(*room % 8);
                let (mut freed, mut made) = ([null_mut(); 8], [null_mut(); 8]);
                let (mut freed_count, mut count) = (0, 0);
                let status = call!(self.checkpoint_restore(
                    known.number(*checkpoint),
                    freed.as_mut_ptr(),
                    room,
                    &raw mut freed_count,
                    made.as_mut_ptr(),
                    room,
                    &raw mut count,
                ));
                known.blocks.extend(made[..count.min(room)].iter().map(|ptr| ptr.expose_provenance() as u64));
                status
            }
            Call::CheckpointRelease { checkpoint } => {
                call!(self.checkpoint_release(known.number(*checkpoint)))
            }
            Call::PoolCreate { tag, soft, split, device, told, out } => {
                let tag = text(tag);
                let mut options = proof::surface::structs::PoolOptions::zero();
                options.tag = start(tag.as_ref());
                options.soft_limit = *soft as usize;
                options.no_split = c_int::from(split & 1);
                options.use_on_oom = c_int::from(split & 2);
                let mut options = Any::told(options, *told);
                call!(self.pool_create(c_int::from(*device), options.place(true), place(*out, &mut number)))
            }
            Call::PoolRelease { pool } => call!(self.pool_release(known.number(*pool))),
            Call::PoolDefault { device } => {
                number = call!(self.pool_default(c_int::from(*device)));
                call!(self.last_status())
            }
            Call::PoolEmpty { pool } => call!(self.pool_empty_cache(known.number(*pool), null_mut())),
            Call::PoolStats { pool, told, out } => {
                let mut stats = Any::told(proof::surface::structs::PoolStats::zero(), *told);
                call!(self.pool_stats(known.number(*pool), stats.place(*out)))
            }
            Call::Begin { pool, filter, stream, capture } => {
                let (pool, filter) = (known.number(*pool), c_int::from(*filter));
                let stream = self.stream(*stream, 0);
                let status = if *capture {
                    call!(self.capture_begin(pool, filter, stream))
                } else {
                    call!(self.pool_begin(pool, filter, stream))
                };
                known.routes.extend((status == 0).then_some(pool));
                status
            }
            Call::End { pool } => {
                let pool = known.number(*pool);
                let status = call!(self.pool_end(pool));
                if status == 0 {
                    let at = known.routes.iter().rposition(|&route| route == pool);
                    known.routes.remove(at.expect("a route that ends has begun"));
                }
                status
            }
            Call::GraphRelease { pool } => call!(self.graph_release(known.number(*pool))),
            call => self.make_for_sharing(call, known),
        };
        known.learn(number);
        status
    }

    fn make_for_sharing(&self, call: &Call, known: &mut Known) -> c_int {
        let mut number = 0u64;
        let status = match call {
            Call::ProcessId { device, out } => {
                let mut id = 0;
                let place = if *out { &raw mut id } else { null_mut() };
                call!(self.process_id(c_int::from(*device), place))
            }
            Call::Export { block, form, only, told, out } => {
                let mut options = proof::surface::structs::ExportOptions::zero();
                options.form = c_int::from(*form);
                if let Some(list) = only {
                    options.only_processes = 1;
                    (options.processes, options.process_count) = (list.as_ptr(), list.len());
                }
                let mut options = Any::told(options, *told);
                let place = if *out { &raw mut number } else { null_mut() };
                call!(self.export(known.block(*block), options.place(true), place))
            }
            Call::ExportMessage { export, room, out } => {
                let export = known.number(*export);
                let (mut message, mut length) = (vec![0u8; usize::from(*room % 2048)], 0);
                let place = if *out { &raw mut length } else { null_mut() };
                let buffer = message.as_mut_ptr().cast();
                let status = call!(self.export_message(export, buffer, message.len(), place));
                if status == 0 && length > 0 && length <= message.len() {
                    message.truncate(length);
                    known.messages.push((export, message));
                }
                status
            }
            Call::ExportAllow { export, processes } => {
                call!(self.export_allow(known.number(*export), processes.as_ptr(), processes.len()))
            }
            Call::ExportRelease { export } => call!(self.export_release(known.number(*export))),
            Call::Import { export, flip, cut, device, stream } => {
                let export = known.number(*export);
                let found = known.messages.iter().find(|(of, _)| *of == export);
                let mut message = found.map_or(Vec::new(), |(_, message)| message.clone());
                if let Some(at) = flip.map(usize::from).and_then(|at| at.checked_rem(message.len())) {
                    message[at] ^= 1 << (flip.unwrap_or(0) % 8);
                }
                message.truncate(message.len().saturating_sub(usize::from(*cut % 16)));
                self.import(&message, *device, *stream, known)
            }
            Call::ImportRaw { message, device } => self.import(message, *device, 0, known),
            Call::ImportRecord { import, stream } => {
                call!(self.import_record_stream(known.number(*import), self.stream(*stream, 0)))
            }
            Call::ImportRelease { import } => call!(self.import_release(known.number(*import))),
            Call::Peers { device, peers } => {
                let peers: Vec<i32> = peers.iter().map(|&peer| i32::from(peer)).collect();
                call!(self.set_peers(c_int::from(*device), peers.as_ptr(), peers.len()))
            }
            Call::Sleep { tags, mode, device, told, out } => {
                let texts: Vec<_> = tags.iter().map(text).collect();
                let tags: Vec<_> = texts.iter().map(|text| start(text.as_ref())).collect();
                let mut report = Any::told(proof::surface::structs::SleepReport::zero(), *told);
                let (device, mode) = (c_int::from(*device), c_int::from(*mode));
                call!(self.sleep(device, tags.as_ptr(), tags.len(), mode, report.place(*out)))
            }
            Call::Wake { tags, device, told, out } => {
                let texts: Vec<_> = tags.iter().map(text).collect();
                let tags: Vec<_> = texts.iter().map(|text| start(text.as_ref())).collect();
                let mut report = Any::told(proof::surface::structs::SleepReport::zero(), *told);
                call!(self.wake(c_int::from(*device), tags.as_ptr(), tags.len(), report.place(*out)))
            }
            Call::IsAsleep { pool, out } => {
                let mut asleep = 0;
                let place = if *out { &raw mut asleep } else { null_mut() };
                call!(self.is_asleep(known.number(*pool), place))
            }
            call => self.make_questions(call, known),
        };
        known.learn(number);
        status
    }

    fn import(&self, message: &[u8], device: i8, stream: u8, known: &mut Known) -> c_int {
        let (mut ptr, mut size, mut number) = (null_mut(), 0, 0);
        let status = call!(self.import(
            message.as_ptr().cast(),
            message.len(),
            c_int::from(device),
            self.stream(stream, device),
            &raw mut ptr,
            &raw mut size,
            &raw mut number,
        ));
        known.learn(number);
        status
    }

    fn make_questions(&self, call: &Call, known: &mut Known) -> c_int {
        match call {
            Call::Empty { device } => call!(self.empty_cache(c_int::from(*device))),
            Call::Trim { device, keep, out } => {
                let mut freed = 0;
                let place = if *out { &raw mut freed } else { null_mut() };
                call!(self.trim(c_int::from(*device), *keep as usize, place))
            }
            Call::Stats { device, told, out } => {
                let mut stats = Any::told(proof::surface::structs::Stats::zero(), *told);
                call!(self.stats(c_int::from(*device), stats.place(*out)))
            }
            Call::Reset { device, sums } => {
                let device = c_int::from(*device);
                if *sums {
                    call!(self.reset_accumulated_stats(device))
                } else {
                    call!(self.reset_peak_stats(device))
                }
            }
            Call::Fraction { bits, device } => {
                call!(self.set_memory_fraction(f64::from_bits(*bits), c_int::from(*device)))
            }
            Call::BlockInfo { block, told, out } => {
                let mut info = Any::told(proof::surface::structs::BlockEntryInfo::zero(), *told);
                call!(self.block_info(known.block(*block), info.place(*out)))
            }
            Call::Base { block, out } => {
                let (mut base, mut size) = (null_mut(), 0);
                let place = if *out { &raw mut base } else { null_mut() };
                call!(self.base(known.block(*block), place, &raw mut size))
            }
            Call::Json { device, room, out } => {
                let (mut buffer, mut length) = (vec![0u8; usize::from(*room)], 0);
                let place = if *out { &raw mut length } else { null_mut() };
                let room = buffer.len();
                call!(self.snapshot_json(c_int::from(*device), buffer.as_mut_ptr().cast(), room, place))
            }
            Call::SetTag { tag } => call!(self.set_tag(start(text(tag).as_ref()))),
            Call::GetTag { room, out } => {
                let (mut buffer, mut length) = (vec![0u8; usize::from(*room)], 0);
                let place = if *out { &raw mut length } else { null_mut() };
                let room = buffer.len();
                call!(self.get_tag(buffer.as_mut_ptr().cast(), room, place))
            }
            Call::HostCopy { tag, on } => {
                call!(self.set_host_copy(start(text(tag).as_ref()), c_int::from(*on)))
            }
            Call::Pause { tag, copy } => call!(self.pause(start(text(tag).as_ref()), c_int::from(*copy))),
            Call::Resume { tag } => call!(self.resume(start(text(tag).as_ref()))),
            Call::HostMalloc { size, device } => {
                let block = call!(self.host_malloc(bytes(*size), c_int::from(*device)));
                self.answered(block, &mut known.host)
            }
            Call::HostFree { block } => call!(self.host_free(known.block(*block))),
            Call::HostRecord { block, stream, device } => {
                let (device, stream) = (c_int::from(*device), self.stream(*stream, *device));
                call!(self.host_record_stream(known.block(*block), device, stream))
            }
            Call::HostEmpty => call!(self.host_empty_cache()),
            Call::HostStats { device, told, out } => {
                let mut stats = Any::told(proof::surface::structs::HostStats::zero(), *told);
                call!(self.host_get_stats(c_int::from(*device), stats.place(*out)))
            }
            Call::Pass { ticks } => {
                self.machine.pass(u64::from(*ticks));
                0
            }
            other => unreachable!("{other:?} is made elsewhere"),
        }
    }
}
