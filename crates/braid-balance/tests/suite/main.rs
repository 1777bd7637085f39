//! The programs on real packets, and their twins in Rust.

mod blind;
mod evacuation;
mod faults;
mod flows;
mod forecast;
mod lifecycle;
mod packets;
mod quic;
mod race;
mod random_packets;
mod rules;
mod rules_by_sender;
mod second_copies;
mod shaping;
#[path = "../support/mod.rs"]
mod support;
mod timestamps;
mod upcalls;
mod uplink_choice;
mod uplink_failure;
