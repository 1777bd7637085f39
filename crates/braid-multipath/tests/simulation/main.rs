//! A bond in virtual time: two ends over emulated links, with inner flows. The cases are those of
//! the trial cited by the design, and the failures that it must survive.

mod alone;
mod changes;
mod classes;
mod failures;
mod far;
mod jitter;
mod radio;
mod ramp;
mod shares;
mod short;
mod tcp;
mod world;
