//! The C functions with arguments of any kind that their contracts allow: pointers that are no blocks, numbers that
//! name nothing, sizes of structs that do not exist, devices and kinds out of range. After every call:
//!
//! - its status is one of the header's and never `internal`; the text of the failure is there exactly if it failed;
//! - the simulator, where there is one, found nothing.
//!
//! At the end everything that can be given back is, and the library then holds no memory: whatever was refused has
//! changed nothing that this would not undo.
//!
//! Streams are null or alive, places for answers are null or valid, and texts end: nobody can check those.
#![allow(unsafe_code)] // The C functions are the thing to be tested.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;

use arbitrary::Arbitrary;
use proof::machine::{AclMachine, Machine};
use proof::surface::{Functions, Surface};
use proof::world::Place;

/// Longer programs find nothing that shorter ones do not, more slowly.
const MOST_CALLS: usize = 60;
/// Room for any struct.
const ROOM: usize = 256;

/// A pointer to what may be a block.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Pointer {
    /// None.
    Null,
    /// A block that was handed out; it may have been freed since.
    Block(u8),
    /// An address in one.
    Inside(u8, u16),
    /// Any address.
    Any(u64),
}

/// A number that may name something.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Number {
    /// One that some function has answered.
    Known(u8),
    /// Any.
    Any(u64),
}

/// A size.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Bytes {
    /// As programs ask for.
    Usual(proof::operation::Size),
    /// Any.
    Any(u64),
}

/// A text.
#[derive(Arbitrary, Clone, Debug)]
pub enum Text {
    /// None.
    Null,
    /// One that pools may have.
    Tag(bool),
    /// Any bytes, without those behind a zero.
    Any(Vec<u8>),
}

/// One call.
#[derive(Arbitrary, Clone, Debug)]
#[allow(missing_docs)]
pub enum Call {
    Malloc {
        size: Bytes,
        device: i8,
        stream: u8,
    },
    Allocate {
        size: Bytes,
        align: u64,
        pool: Number,
        flags: u8,
        device: i8,
        stream: u8,
        told: u16,
        out: bool,
    },
    PoolMalloc {
        pool: Number,
        size: Bytes,
        stream: u8,
    },
    Tagged {
        size: Bytes,
        device: i8,
        stream: u8,
    },
    Release {
        block: Pointer,
    },
    Free {
        block: Pointer,
        size: u64,
        device: i8,
        tagged: bool,
    },
    Grow {
        block: Pointer,
        size: Bytes,
        out: bool,
    },
    Shrink {
        block: Pointer,
        size: Bytes,
    },
    Record {
        block: Pointer,
        stream: u8,
        erase: bool,
    },
    StreamEnds {
        stream: u8,
        device: i8,
    },
    Register {
        stream: u8,
        device: i8,
        end: bool,
    },
    Empty {
        device: i8,
    },
    Trim {
        device: i8,
        keep: u64,
        out: bool,
    },
    BufferCreate {
        max: Bytes,
        least: u64,
        size: Bytes,
        pool: Number,
        device: i8,
        stream: u8,
        told: u16,
        out: bool,
    },
    BufferResize {
        buffer: Number,
        size: Bytes,
    },
    BufferRecord {
        buffer: Number,
        stream: u8,
    },
    BufferInfo {
        buffer: Number,
        told: u16,
        out: bool,
    },
    BufferDestroy {
        buffer: Number,
    },
    Checkpoint {
        pool: Number,
        out: bool,
    },
    Restore {
        checkpoint: Number,
        room: u8,
    },
    CheckpointRelease {
        checkpoint: Number,
    },
    PoolCreate {
        tag: Text,
        soft: u64,
        split: u8,
        device: i8,
        told: u16,
        out: bool,
    },
    PoolRelease {
        pool: Number,
    },
    PoolDefault {
        device: i8,
    },
    PoolEmpty {
        pool: Number,
    },
    PoolStats {
        pool: Number,
        told: u16,
        out: bool,
    },
    Begin {
        pool: Number,
        filter: i8,
        stream: u8,
        capture: bool,
    },
    End {
        pool: Number,
    },
    GraphRelease {
        pool: Number,
    },
    ProcessId {
        device: i8,
        out: bool,
    },
    Export {
        block: Pointer,
        form: i8,
        only: Option<Vec<i32>>,
        told: u16,
        out: bool,
    },
    ExportMessage {
        export: Number,
        room: u16,
        out: bool,
    },
    ExportAllow {
        export: Number,
        processes: Vec<i32>,
    },
    ExportRelease {
        export: Number,
    },
    Import {
        export: Number,
        flip: Option<u16>,
        cut: u8,
        device: i8,
        stream: u8,
    },
    ImportRaw {
        message: Vec<u8>,
        device: i8,
    },
    ImportRecord {
        import: Number,
        stream: u8,
    },
    ImportRelease {
        import: Number,
    },
    Peers {
        device: i8,
        peers: Vec<i8>,
    },
    Sleep {
        tags: Vec<Text>,
        mode: i8,
        device: i8,
        told: u16,
        out: bool,
    },
    Wake {
        tags: Vec<Text>,
        device: i8,
        told: u16,
        out: bool,
    },
    IsAsleep {
        pool: Number,
        out: bool,
    },
    Stats {
        device: i8,
        told: u16,
        out: bool,
    },
    Reset {
        device: i8,
        sums: bool,
    },
    Fraction {
        bits: u64,
        device: i8,
    },
    BlockInfo {
        block: Pointer,
        told: u16,
        out: bool,
    },
    Base {
        block: Pointer,
        out: bool,
    },
    Json {
        device: i8,
        room: u16,
        out: bool,
    },
    SetTag {
        tag: Text,
    },
    GetTag {
        room: u8,
        out: bool,
    },
    HostCopy {
        tag: Text,
        on: i8,
    },
    Pause {
        tag: Text,
        copy: i8,
    },
    Resume {
        tag: Text,
    },
    HostMalloc {
        size: Bytes,
        device: i8,
    },
    HostFree {
        block: Pointer,
    },
    HostRecord {
        block: Pointer,
        stream: u8,
        device: i8,
    },
    HostEmpty,
    HostStats {
        device: i8,
        told: u16,
        out: bool,
    },
    Pass {
        ticks: u8,
    },
}

/// The library, its machine, and streams that live as long as the process.
pub struct Rig {
    c: Functions,
    machine: Arc<AclMachine>,
    surface: Arc<dyn Surface>,
    streams: [u64; 3],
}

/// What the calls of one input have answered.
#[derive(Default)]
struct Known {
    blocks: Vec<u64>,
    host: Vec<u64>,
    numbers: Vec<u64>,
    messages: Vec<(u64, Vec<u8>)>,
    routes: Vec<u64>,
}

/// A struct with room behind it, whose told size may be wrong.
struct Any([u64; ROOM]);

impl Any {
    fn told<T>(value: T, told: u16) -> Self {
        assert!(size_of::<T>() <= size_of::<[u64; ROOM]>());
        let mut room = [0u64; ROOM];
        // SAFETY: there is room for the struct, and any of it can be overwritten by numbers.
        unsafe { room.as_mut_ptr().cast::<T>().write(value) };
        // Mostly what the library knows; never more than there is.
        room[0] = match told {
            0..49152 => size_of::<T>() as u64,
            _ => u64::from(told) % size_of_val(&room) as u64,
        };
        Self(room)
    }

    fn place<T>(&mut self, there: bool) -> *mut T {
        if there { self.0.as_mut_ptr().cast() } else { null_mut() }
    }
}

fn pointer(number: u64) -> *mut c_void {
    with_exposed_provenance_mut(number as usize)
}

fn text(text: &Text) -> Option<CString> {
    match text {
        Text::Null => None,
        Text::Tag(first) => Some(CString::from(if *first { c"weights" } else { c"cache" })),
        Text::Any(bytes) => {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            CString::new(&bytes[..end]).ok()
        }
    }
}

fn start(text: Option<&CString>) -> *const c_char {
    text.map_or(null(), |text| text.as_ptr())
}

fn bytes(size: Bytes) -> usize {
    match size {
        Bytes::Usual(size) => size.bytes() as usize,
        Bytes::Any(size) => size as usize,
    }
}

impl Known {
    fn block(&self, which: Pointer) -> *mut c_void {
        let known = |index: u8| {
            let all = self.blocks.len() + self.host.len();
            let index = usize::from(index).checked_rem(all).unwrap_or(0);
            self.blocks.iter().chain(&self.host).copied().nth(index).unwrap_or(0)
        };
        pointer(match which {
            Pointer::Null => 0,
            Pointer::Block(index) => known(index),
            Pointer::Inside(index, offset) => known(index).wrapping_add(u64::from(offset)),
            Pointer::Any(address) => address,
        })
    }

    fn number(&self, which: Number) -> u64 {
        match which {
            Number::Known(index) => {
                let index = usize::from(index).checked_rem(self.numbers.len()).unwrap_or(0);
                self.numbers.get(index).copied().unwrap_or(0)
            }
            Number::Any(number) => number,
        }
    }

    fn learn(&mut self, number: u64) {
        if number != 0 && !self.numbers.contains(&number) {
            self.numbers.push(number);
        }
    }
}

/// Calls a function; everything passed is what the module's documentation promises.
macro_rules! call {
    ($rig:ident.$name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: streams live, places are null or have room, texts end, lists have the length that is said.
        unsafe { ($rig.c.$name)($($argument),*) }
    };
}

impl Rig {
    /// Sets the allocator of this process up on the library of the environment, or the first of these files.
    ///
    /// # Panics
    ///
    /// There is no library, or it lacks what an allocator needs.
    ///
    /// # Safety
    ///
    /// As [`proof::ground::c`].
    pub unsafe fn new(functions: Functions, files: &[PathBuf]) -> Self {
        // SAFETY: the caller's promise.
        let ground = unsafe { proof::ground::c(functions, files) };
        let Place::Process(machine, surface) = ground.place else { unreachable!("it is the process's") };
        let stream = || machine.create_stream(0).expect("there are streams");
        let streams = [0, stream(), stream()];
        Self { c: functions, machine, surface, streams }
    }

    /// Makes the calls, and gives everything back.
    ///
    /// # Panics
    ///
    /// Something that must hold does not.
    pub fn run(&self, calls: &[Call]) {
        let mut known = Known::default();
        for call in calls.iter().take(MOST_CALLS) {
            let status = self.make(call, &mut known);
            assert!((0..=9).contains(&status) && status != 7, "{call:?} answers {status}: {}", self.said());
            let findings = self.machine.findings();
            assert!(findings.is_empty(), "{call:?}: {findings:?}");
        }
        self.give_everything_back(&known);
    }

    /// The text of the last failure; it is there exactly if the last call failed.
    fn said(&self) -> String {
        // SAFETY: no arguments; the text is copied at once.
        let (status, text) = unsafe { ((self.c.last_status)(), (self.c.last_error)()) };
        assert_eq!(text.is_null(), status == 0, "a failure has a text");
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not null, so a text that ends.
        unsafe { core::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn stream(&self, index: u8, device: i8) -> *mut c_void {
        // Those made at the start belong to device 0.
        if device == 0 { pointer(self.streams[usize::from(index) % self.streams.len()]) } else { null_mut() }
    }

    /// The status of a call that answers a block.
    fn answered(&self, block: *mut c_void, blocks: &mut Vec<u64>) -> c_int {
        // SAFETY: no arguments.
        let status = unsafe { (self.c.last_status)() };
        assert!(block.is_null() || status == 0, "a block and the status {status}");
        if !block.is_null() {
            blocks.push(block.expose_provenance() as u64);
        }
        status
    }

    fn make(&self, call: &Call, known: &mut Known) -> c_int {
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

    /// Gives back whatever a number or an address may stand for; then nothing may be left.
    fn give_everything_back(&self, known: &Known) {
        for &route in known.routes.iter().rev() {
            assert_eq!(call!(self.pool_end(route)), 0, "the newest route can be ended: {}", self.said());
        }
        call!(self.resume(null()));
        call!(self.set_tag(null()));
        for &number in &known.numbers {
            call!(self.checkpoint_release(number));
            call!(self.buffer_destroy(number));
            call!(self.import_release(number));
        }
        for device in 0..self.machine.devices() {
            for stretch in self.surface.snapshot(device).expect("a snapshot can be had") {
                for piece in stretch.pieces.iter().filter(|piece| piece.live) {
                    // What an export keeps is not live for its owner any more.
                    call!(self.release(pointer(piece.address)));
                }
            }
        }
        // Blocks that are one handle are in no snapshot.
        known.blocks.iter().for_each(|&block| _ = call!(self.release(pointer(block))));
        known.host.iter().for_each(|&block| _ = call!(self.host_free(pointer(block))));
        for &number in &known.numbers {
            call!(self.export_release(number));
            while call!(self.graph_release(number)) == 0 {}
            call!(self.pool_release(number));
        }
        for device in 0..self.machine.devices() {
            call!(self.set_peers(device as c_int, null(), 0));
            assert_eq!(call!(self.set_memory_fraction(1.0, device as c_int)), 0, "{}", self.said());
            assert!(self.machine.synchronize_device(device));
        }
        for &stream in &self.streams[1..] {
            call!(self.unregister_acl_allocator(0, pointer(stream)));
        }
        assert_eq!(call!(self.host_empty_cache()), 0, "{}", self.said());
        assert_eq!(call!(self.empty_cache(-1)), 0, "{}", self.said());
        for device in 0..self.machine.devices() {
            let books = self.surface.books(device).expect("statistics can be had");
            let left =
                [books.allocations, books.active, books.reserved, books.cached_handles, books.sleeping];
            assert_eq!(left, [0; 5], "device {device}: {books:?}");
            let physical = self.machine.physical_bytes(device).unwrap_or(0);
            assert_eq!(physical, 0, "physical memory of device {device}");
        }
    }
}
