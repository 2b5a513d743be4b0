//! The examples, run: their claims are assertions.

#[path = "../examples/01_allocate.rs"]
mod allocate;
#[path = "../examples/03_give_back.rs"]
mod give_back;
#[path = "../examples/05_growing_buffer.rs"]
mod growing_buffer;
#[path = "../examples/04_out_of_memory.rs"]
mod out_of_memory;
#[path = "../examples/08_page_locked.rs"]
mod page_locked;
#[path = "../examples/06_share.rs"]
mod share;
#[path = "../examples/07_sleep.rs"]
mod sleep;
#[path = "../examples/09_snapshot.rs"]
mod snapshot;
#[path = "../examples/02_streams.rs"]
mod streams;

use ascend_alloc::Result;

#[test]
fn e01_allocate() -> Result<()> {
    allocate::main()
}

#[test]
fn e02_streams() -> Result<()> {
    streams::main()
}

#[test]
fn e03_give_back() -> Result<()> {
    give_back::main()
}

#[test]
fn e04_out_of_memory() -> Result<()> {
    out_of_memory::main()
}

#[test]
fn e05_growing_buffer() -> Result<()> {
    growing_buffer::main()
}

#[test]
fn e06_share() -> Result<()> {
    share::main()
}

#[test]
fn e07_sleep() -> Result<()> {
    sleep::main()
}

#[test]
fn e08_page_locked() -> Result<()> {
    page_locked::main()
}

#[test]
fn e09_snapshot() -> Result<()> {
    snapshot::main()
}
