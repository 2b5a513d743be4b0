//! Messages of exported blocks: whatever is accepted says the same again when it is written; whatever is imported is
//! mapped or refused, and nothing is left of it afterwards.

use std::sync::Arc;

use arbitrary::Arbitrary;
use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, Error, SharedHandle};
use ascend_sim::{BackingMode, Sim, SimConfig};

/// A message as somebody might send it.
#[derive(Arbitrary, Clone, Debug)]
pub enum Message {
    /// Any bytes.
    Raw(Vec<u8>),
    /// The right form and check sum around any content.
    Made {
        /// How chunks are named, modulo 5; 3 and 4 are unknown forms.
        form: u8,
        /// The pages, modulo 3; 2 are unknown ones.
        pages: u8,
        /// The exporter's device.
        device: u8,
        /// The size of a chunk: two to this power, modulo 44, plus `odd`.
        chunk: u8,
        /// Makes the chunk no power of two.
        odd: bool,
        /// Where the block begins.
        offset: u32,
        /// Its bytes.
        bytes: u64,
        /// The exporter: process, start, place.
        exporter: (u32, u64, u64),
        /// The chunks' names.
        names: Vec<u64>,
        /// How many names are said to be there beyond those that are.
        more: i8,
    },
}

impl Message {
    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let Self::Made { form, pages, device, chunk, odd, offset, bytes, exporter, names, more } = self
        else {
            let Self::Raw(bytes) = self else { unreachable!("there are two kinds") };
            return bytes.clone();
        };
        let mut message = b"AscS".to_vec();
        message.extend(1u16.to_le_bytes());
        message.extend([form % 5 + 1, pages % 3]);
        message.extend(u32::from(*device).to_le_bytes());
        let count = (names.len() as u32).wrapping_add_signed(i32::from(*more));
        message.extend(count.to_le_bytes());
        let chunk = (1u64 << (chunk % 44)) + u64::from(*odd);
        for number in [chunk, u64::from(*offset), *bytes, u64::from(exporter.0), exporter.1, exporter.2] {
            message.extend(number.to_le_bytes());
        }
        for name in names {
            message.extend(name.to_ne_bytes());
            if form % 5 == 2 {
                message.extend([0; 120]);
            }
        }
        let sum = message
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        message.extend(sum.to_le_bytes());
        message
    }
}

/// Reads a message, and imports what it says into an empty device.
///
/// # Panics
///
/// Something that must hold does not.
pub fn run(message: &Message) {
    let bytes = message.bytes();
    let handle = match SharedHandle::from_bytes(&bytes) {
        Ok(handle) => handle,
        Err(Error::Argument { name, expected, .. }) => {
            return assert!(name == "shared handle" && !expected.is_empty());
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(handle.to_bytes(), bytes, "it says the same again");
    assert!(0 < handle.bytes() && handle.bytes() <= handle.mapped_bytes());
    let sim = Sim::new(SimConfig {
        capacity: 64 << 20,
        backing: BackingMode::MetadataOnly,
        ..SimConfig::default()
    });
    let config = Config::parse("check_level:3").expect("a configuration");
    let allocator = DeviceAllocator::new(config, Arc::new(SimDriver::new(sim.clone())));
    let allocator = Arc::new(allocator.expect("an allocator"));
    match allocator.import(0, &handle, Stream(0)) {
        Ok(block) => {
            assert_eq!(block.bytes(), handle.bytes());
            assert!(sim.is_backed(block.ptr().address(), block.bytes()));
            let _known = block.exporter();
            drop(block);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    allocator.empty_cache(None).expect("all calls work");
    allocator.check().expect("the books are right");
    assert_eq!(allocator.imported_bytes(0).expect("the device exists"), 0);
    drop(allocator);
    let findings = sim.findings();
    assert!(findings.is_empty(), "{findings:#?}");
    assert_eq!((sim.mapping_count(), sim.reserved_bytes()), (0, 0), "nothing is left");
}
