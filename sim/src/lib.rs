//! A model of Ascend devices.
