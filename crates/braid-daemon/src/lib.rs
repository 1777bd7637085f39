//! Braid's daemon: configuration, wiring, kernel plumbing and the local API.

pub mod plumbing;
