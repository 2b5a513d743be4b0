//! A call that succeeds costs no heap allocation: it may be on the path of every allocation.

mod stand_ins;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ascend_alloc::driver::{Driver, PageKind, Stream};
use stand_ins::{FULL, StandIn};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system allocator does the work; counting touches no memory of the heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted(run: impl FnOnce()) -> usize {
    let before = COUNT.with(Cell::get);
    run();
    COUNT.with(Cell::get) - before
}

#[test]
fn success_costs_no_heap_allocation() {
    let stand_in = StandIn::new(FULL, "allocation");
    stand_in.acl().set_device(0).expect("the device is there");
    let driver = stand_in.driver();
    let stream = Stream(driver.acl().create_default_stream().expect("a stream").addr() as u64);
    let round = |device| {
        let range = driver.reserve(device, 4 << 20).expect("a range");
        let chunk = driver.malloc_physical(device, 2 << 20, PageKind::Huge).expect("a chunk");
        driver.map(device, range, 2 << 20, chunk).expect("mapped");
        driver.set_access(device, range, 2 << 20, device).expect("granted");
        let event = driver.create_event(device).expect("an event");
        let on = if device == 0 { stream } else { Stream(0) };
        driver.record_event(device, event, on).expect("recorded");
        driver.query_event(device, event).expect("asked");
        driver.is_capturing(device, on).expect("asked");
        driver.destroy_event(device, event).expect("destroyed");
        driver.unmap(device, range).expect("unmapped");
        driver.free_physical(device, chunk).expect("freed");
        driver.release(device, range).expect("released");
        driver.memory_info(device).expect("asked");
    };
    assert_eq!(counted(|| round(0)), 0, "on the thread's own device");
    round(1);
    assert_eq!(counted(|| round(1)), 0, "on another device, once it is open");
    let failing = counted(|| drop(driver.create_event(7).expect_err("there is no such device")));
    assert!(failing > 0, "the counter counts");
}
