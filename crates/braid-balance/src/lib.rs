//! The in-kernel flow datapath: BPF programs, their loader and the flow table's upkeep.
//!
//! In: which devices to sit on ([`Attachments`]), through which uplinks traffic may leave
//! ([`UplinkEntry`]) and the slot table that new flows walk. Out: [`Flow`]s and [`Counters`].
//! The packets themselves never come here: three small programs (`bpf/hooks/outbound.h`,
//! `bpf/hooks/inbound.h`, `bpf/hooks/lan.h`) move them inside the kernel, and go on doing so while no process
//! of ours is alive, because programs, maps and attachments are pinned under [`Options::pin_dir`].
//!
//! This crate must never decide *which* uplink is better (that is the slot table's author), change
//! routes, addresses or sysctls (that is the daemon's plumbing), or touch another party's program.

mod batch;
mod classes;
mod connlimit;
mod counters;
mod datapath;
mod devices;
mod dns_names;
mod error;
mod evacuate;
mod filters;
mod fragments;
mod hooks;
mod inject;
mod layout;
mod lb_method;
mod lease;
mod loading;
mod netlink;
mod path_cache;
mod pins;
mod races;
mod rules;
mod shared;
mod sticky;
mod tables;
mod time;
mod types;
mod upcalls;
mod upkeep;
mod uplinks;

pub use classes::{ClassEntry, MAX_CLASSES};
pub use connlimit::MAX_LIMITED_CLIENTS;
pub use datapath::{Datapath, dry_run, remove};
pub use dns_names::Name;
pub use error::Error;
pub use evacuate::{Evacuated, Release, Released};
pub use fragments::{
    FRAGMENT_HOLD_TIME, FRAGMENT_POLL_INTERVAL, Fragments, HeldFragment, MAX_HELD_FRAGMENTS,
    MAX_HELD_FRAGMENTS_PER_SOURCE,
};
pub use lease::Lease;
pub use path_cache::{
    CachedPath, FlowActivity, MAX_CACHED_PREFIXES, PathCacheEntry, UplinkForecast, prefix_of,
};
pub use races::RaceSettings;
pub use rules::{CGROUP_LEVELS, FlowFacts, MAX_RULES, NameBit, RuleEntry};
pub use shared::{REASONS, Reason, ReasonKind};
pub use sticky::{FTP_CONTROL, FTP_DATA_FROM, FTP_KEPT, Site, Sticky};
pub use time::KernelTime;
pub use types::{
    Attachments, Choice, ClassId, Counters, Family, Flow, FlowState, HookKind, Layer, LbMethod,
    MapMemory, NextHop, Opened, Options, Protocol, Removed, SweepReport, Traffic, Translation,
    UplinkCounters, UplinkEntry,
};
pub use upcalls::{RefusedPacket, Upcall, Upcalls};
pub use upkeep::{
    DNS_IDLE, ICMP_IDLE, PORTLESS_IDLE, TCP_CLOSED_IDLE, TCP_CLOSED_IDLE_UNDER_PRESSURE,
    TCP_EMBRYO_IDLE, TCP_ESTABLISHED_IDLE, TCP_TRANSITORY_IDLE, UDP_EMBRYO_IDLE, UDP_IDLE,
};
