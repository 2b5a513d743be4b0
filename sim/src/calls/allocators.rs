//! The calls by which a program registers an allocator of its own for a stream.

use crate::allocators::{AllocatorEntry, AllocatorField};
use crate::call::Call;
use crate::codes;
use crate::refusal::refuse;
use crate::sim::Sim;

impl Sim {
    /// `aclrtAllocatorCreateDesc`: a descriptor with nothing set; 0 if the call was planned to fail.
    #[must_use]
    pub fn allocator_create_desc(&self) -> u64 {
        let made = self
            .call(Call::AllocatorCreateDesc, format_args!(""), || Ok(self.inner.allocators.lock().create()));
        made.unwrap_or(0)
    }

    /// `aclrtAllocatorDestroyDesc`. What was registered with it stays registered.
    ///
    /// # Errors
    /// The ACL code: 100000 for null and for an unknown descriptor.
    pub fn allocator_destroy_desc(&self, desc: u64) -> Result<(), i32> {
        self.call(Call::AllocatorDestroyDesc, format_args!("{desc:#x}"), || {
            known(self.inner.allocators.lock().destroy(desc))
        })
    }

    /// `aclrtAllocatorSet...ToDesc`.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, on either side, and for an unknown descriptor.
    pub fn allocator_set(&self, desc: u64, field: AllocatorField, value: u64) -> Result<(), i32> {
        let call = match field {
            AllocatorField::Object => Call::AllocatorSetObj,
            AllocatorField::Alloc => Call::AllocatorSetAlloc,
            AllocatorField::Free => Call::AllocatorSetFree,
            AllocatorField::Advise => Call::AllocatorSetAdvise,
            AllocatorField::GetAddress => Call::AllocatorSetGetAddr,
        };
        self.call(call, format_args!("{desc:#x}, {value:#x}"), || {
            known(value != 0 && self.inner.allocators.lock().set(desc, field, value))
        })
    }

    /// `aclrtAllocatorRegister`: the descriptor's content counts for the stream from now on; the last
    /// registration wins. The simulator never calls it.
    ///
    /// # Errors
    /// The ACL code: 100000 for a null stream or descriptor, and unless object, both functions for
    /// blocks and the one for addresses are set.
    pub fn allocator_register(&self, stream: u64, desc: u64) -> Result<(), i32> {
        self.call(Call::AllocatorRegister, format_args!("stream={stream:#x}, {desc:#x}"), || {
            known(stream != 0 && self.inner.allocators.lock().register(stream, desc))
        })
    }

    /// `aclrtAllocatorUnregister`; a stream without an allocator is no error.
    ///
    /// # Errors
    /// The ACL code: 100000 for a null stream.
    pub fn allocator_unregister(&self, stream: u64) -> Result<(), i32> {
        self.call(Call::AllocatorUnregister, format_args!("stream={stream:#x}"), || {
            known(stream != 0)?;
            self.inner.allocators.lock().unregister(stream);
            Ok(())
        })
    }

    /// `aclrtAllocatorGetByStream`.
    ///
    /// # Errors
    /// The ACL code: 100000 for a null stream and one without an allocator.
    pub fn allocator_by_stream(&self, stream: u64) -> Result<AllocatorEntry, i32> {
        self.call(Call::AllocatorGetByStream, format_args!("stream={stream:#x}"), || {
            let found = self.inner.allocators.lock().of(stream);
            known(found.is_some()).map(|()| found.unwrap_or_default())
        })
    }
}

fn known(yes: bool) -> crate::refusal::Answer<()> {
    if yes { Ok(()) } else { refuse(codes::INVALID_PARAM, "null, unknown or not complete") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimConfig;

    #[test]
    fn a_registration_is_a_copy_and_the_last_wins() {
        let sim = Sim::new(SimConfig::default());
        let desc = sim.allocator_create_desc();
        assert_eq!(sim.allocator_set(desc, AllocatorField::Alloc, 0), Err(codes::INVALID_PARAM));
        assert_eq!(sim.allocator_set(desc + 1, AllocatorField::Alloc, 1), Err(codes::INVALID_PARAM));
        for (field, value) in [
            (AllocatorField::Object, 10),
            (AllocatorField::Alloc, 11),
            (AllocatorField::Free, 12),
            (AllocatorField::Advise, 13),
        ] {
            sim.allocator_set(desc, field, value).unwrap();
        }
        assert_eq!(sim.allocator_register(5, desc), Err(codes::INVALID_PARAM), "no way to an address");
        sim.allocator_set(desc, AllocatorField::GetAddress, 14).unwrap();
        assert_eq!(sim.allocator_register(0, desc), Err(codes::INVALID_PARAM));
        sim.allocator_register(5, desc).unwrap();
        sim.allocator_set(desc, AllocatorField::Object, 20).unwrap();
        sim.allocator_destroy_desc(desc).unwrap();
        assert_eq!(sim.allocator_destroy_desc(desc), Err(codes::INVALID_PARAM));
        let expected = AllocatorEntry { desc, object: 10, alloc: 11, free: 12, advise: 13, get_address: 14 };
        assert_eq!(sim.allocator_by_stream(5), Ok(expected));
        sim.allocator_unregister(5).unwrap();
        sim.allocator_unregister(5).unwrap();
        assert_eq!(sim.allocator_by_stream(5), Err(codes::INVALID_PARAM));
    }
}
