//! The estimates and decisions of balancing, fed by generated and emulated traffic.

mod app_limited;
mod aqm;
mod capacity;
mod dispersion;
mod forecast;
mod packet_size;
mod page_loads;
mod shaping;
mod slots;
mod stall;
mod support;
mod traces;
mod transfer;
mod transfer_lines;
mod units;
