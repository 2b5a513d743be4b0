//! Which kind of segments new memory comes from, changed while the program runs.

use std::sync::OnceLock;

use super::DeviceAllocator;
use super::device::Device;

impl DeviceAllocator {
    /// Whether memory taken from now on comes in segments that grow and shrink by chunks (`true`), or in fixed blocks.
    /// The setting `expandable_segments` says how that begins. Answers what it was before, for whoever sets it back.
    ///
    /// It counts for all devices and all pools but those over functions of the program and those made with a
    /// [kind of their own](crate::PoolOptions::expandable). Segments that are there keep
    /// their kind until they go back to the device; what is idle in one kind serves requests before memory of the other
    /// is taken. Requests that run meanwhile in other threads may still get the kind of before. `max_split_size_mb`,
    /// which is refused beside `expandable_segments:True`, counts whenever fixed blocks are asked for.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ascend_alloc::driver::{SimDriver, Stream};
    /// use ascend_alloc::{Config, DeviceAllocator};
    ///
    /// # fn main() -> ascend_alloc::Result<()> {
    /// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
    /// let allocator = DeviceAllocator::new(Config::default(), driver)?;
    /// let before = allocator.set_expandable_segments(false);
    /// let fixed = allocator.allocate(0, 30 << 20, 0, Stream(0))?;
    /// allocator.set_expandable_segments(before);
    /// assert_eq!(allocator.stats(0)?.calls.malloc, 1, "one fixed block");
    /// # allocator.deallocate(fixed)
    /// # }
    /// ```
    pub fn set_expandable_segments(&self, on: bool) -> bool {
        let mut growable = self.growable.lock();
        let before = core::mem::replace(&mut *growable, on);
        for state in self.devices.iter().filter_map(OnceLock::get) {
            state.core.lock().config.expandable_segments = on;
        }
        before
    }

    /// Whether memory taken from now on comes in segments that grow and shrink by chunks.
    #[must_use]
    pub fn expandable_segments(&self) -> bool {
        *self.growable.lock()
    }

    /// Puts a device that was just set up where it is found, unless another thread was first; the device that is there.
    pub(super) fn put_in_place<'a>(&self, place: &'a OnceLock<Device>, state: Device) -> &'a Device {
        // Whoever changes the kind after this finds the device there.
        let growable = self.growable.lock();
        state.core.lock().config.expandable_segments = *growable;
        place.get_or_init(|| state)
    }
}
