//! What the programs and this crate have in common, generated from `bpf/constants.h` and
//! `bpf/reasons.h`.
#![allow(missing_docs, dead_code)]

use serde::Serialize;

/// A named exit of a program, or an event on the way to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The counter's label.
    pub name: &'static str,
    /// What became of the packet.
    pub kind: ReasonKind,
    /// One line for people.
    pub text: &'static str,
}

/// What a reason says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasonKind {
    /// Left through an uplink, or straight to a LAN device.
    Sent,
    /// Handed to the next program or the stack.
    Passed,
    /// Dropped.
    Dropped,
    /// Not an exit: something that happened to a packet or flow on the way.
    Event,
}

include!(concat!(env!("OUT_DIR"), "/shared.rs"));
