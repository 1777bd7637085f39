//! The parts of a bond one by one; `simulation` runs them together.

mod demand;
mod estimate;
mod fec;
mod liveness;
mod overflow_grid;
mod resequence;
mod retransmit;
mod schedule;
mod stalls;
mod streams;
