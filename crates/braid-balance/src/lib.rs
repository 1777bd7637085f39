//! The in-kernel flow datapath: BPF programs, their loader and the flow table's upkeep.
//!
//! In: which devices to sit on ([`Attachments`]), through which uplinks traffic may leave
//! ([`UplinkEntry`]) and the slot table that new flows walk. Out: [`Flow`]s and [`Counters`].
//! The packets themselves never come here: three small programs (`bpf/outbound.h`,
//! `bpf/inbound.h`, `bpf/lan.h`) move them inside the kernel, and go on doing so while no process
//! of ours is alive, because programs, maps and attachments are pinned under [`Options::pin_dir`].
//!
//! This crate must never decide *which* uplink is better (that is the slot table's author), change
//! routes, addresses or sysctls (that is the daemon's plumbing), or touch another party's program.

mod batch;
mod classes;
mod clients;
mod counters;
mod datapath;
mod devices;
mod error;
mod evacuate;
mod filters;
mod fragments;
mod hooks;
mod inject;
mod layout;
mod lease;
mod loading;
mod names;
mod netlink;
mod notices;
mod paths;
mod pins;
mod races;
mod rules;
mod shared;
mod sticky;
mod tables;
mod time;
mod types;
mod upkeep;
mod uplinks;
mod walk;

pub use classes::{ClassEntry, MAX_CLASSES};
pub use clients::MAX_LIMITED;
pub use datapath::{Datapath, rehearse, remove};
pub use error::Error;
pub use evacuate::{Evacuated, Release, Released};
pub use fragments::{Fragments, HOLD, HeldFragment, LOOK_AGAIN, MAX_HELD, MAX_HELD_PER_SOURCE};
pub use lease::Lease;
pub use names::Name;
pub use notices::{Notice, Notices, RefusedPacket};
pub use paths::{Bustle, MAX_PATHS, Outlook, PathMemory, Way, prefix_of};
pub use races::RaceSettings;
pub use rules::{CGROUP_LEVELS, FlowFacts, MAX_RULES, NameBit, RuleEntry};
pub use shared::{REASONS, Reason, ReasonKind};
pub use sticky::{FTP_CONTROL, FTP_DATA_FROM, FTP_KEPT, Site, Sticky};
pub use time::KernelTime;
pub use types::{
    Attachments, Choice, ClassId, Counters, Exit, Family, Flow, FlowState, HookKind, Layer,
    MapMemory, Opened, Options, Protocol, Removed, SweepReport, Traffic, Translation,
    UplinkCounters, UplinkEntry, Walk,
};
pub use upkeep::{
    DNS_IDLE, ICMP_IDLE, PORTLESS_IDLE, TCP_CLOSED_IDLE, TCP_CLOSED_IDLE_UNDER_PRESSURE,
    TCP_EMBRYO_IDLE, TCP_ESTABLISHED_IDLE, TCP_TRANSITORY_IDLE, UDP_EMBRYO_IDLE, UDP_IDLE,
};
