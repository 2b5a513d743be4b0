//! The device simulator as an in-process driver.

/// A simulated device.
#[derive(Debug)]
pub struct SimDriver;
