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

use proof::machine::{AclMachine, Machine};
use proof::surface::{Functions, Surface};
use proof::world::Place;

mod calls;
mod make;

pub use calls::{Bytes, Call, Number, Pointer, Text};

/// Longer programs find nothing that shorter ones do not, more slowly.
const MOST_CALLS: usize = 60;
/// Room for any struct.
const ROOM: usize = 256;

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
use call;

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
