//! The ACL calls as methods of [`Sim`](crate::Sim), by subject. They check the current device,
//! translate device numbers, tell the use checker what the host does, and leave the rest to the
//! model.

mod captures;
mod copies;
mod device;
mod heap;
mod streams;
mod vmm;
