//! The in-kernel flow datapath: BPF programs, their loader and the flow table's upkeep.
//!
//! In: the devices to attach to ([`Attachments`]), the uplinks ([`UplinkEntry`]), the slot tables
//! of each class ([`ClassEntry`]), rules ([`RuleEntry`]) and forecasts ([`UplinkForecast`]). Out:
//! [`Flow`]s and [`Counters`]. Packets never come here: four small programs
//! (`bpf/hooks/outbound.h`, `inbound.h`, `lan.h`, `shape.h`) move them inside the kernel,
//! also while no process of ours is alive, because programs, maps and attachments are pinned under
//! [`Options::pin_dir`].
//!
//! The daemon decides which uplinks a class may use, and in which shares. The programs choose among
//! these for each flow: by slots or, under [`LbMethod::Race`] and [`LbMethod::Fastest`], by races,
//! cached RTTs and predictions (`bpf/path_cache/`). This crate must never judge an uplink's health,
//! change routes, addresses or sysctls (that is the daemon's plumbing), or touch another party's
//! program.

mod bpf;
mod datapath;
mod error;
mod flows;
mod generated;
mod maps;
mod packets;
mod pins;
mod programs;
mod select;
mod time;
mod types;

pub use datapath::{Datapath, dry_run, remove};
pub use error::Error;
pub use flows::evacuate::{Evacuated, Release, Released};
pub use flows::idle_times::{
    DNS_IDLE, ICMP_IDLE, PORTLESS_IDLE, TCP_CLOSED_IDLE, TCP_CLOSED_IDLE_UNDER_PRESSURE,
    TCP_EMBRYO_IDLE, TCP_ESTABLISHED_IDLE, TCP_TRANSITORY_IDLE, UDP_EMBRYO_IDLE, UDP_IDLE,
};
pub use flows::races::RaceSettings;
pub use generated::{REASONS, Reason, ReasonKind};
pub use maps::lease::Lease;
pub use maps::shaping::{ShapeCounters, ShapeEntry};
pub use packets::fragments::{
    FRAGMENT_HOLD_TIME, FRAGMENT_POLL_INTERVAL, Fragments, HeldFragment, MAX_HELD_FRAGMENTS,
    MAX_HELD_FRAGMENTS_PER_SOURCE,
};
pub use packets::upcalls::{RefusedPacket, Upcall, Upcalls};
pub use select::classes::{ClassEntry, MAX_CLASSES};
pub use select::connlimit::MAX_LIMITED_CLIENTS;
pub use select::dns_names::Name;
pub use select::path_cache::{
    CachedPath, FlowActivity, MAX_CACHED_PREFIXES, PathCacheEntry, UplinkForecast, prefix_of,
};
pub use select::rules::{CGROUP_LEVELS, FlowFacts, MAX_RULES, NameBit, RuleEntry};
pub use select::sticky::{FTP_CONTROL, FTP_DATA_FROM, FTP_KEPT, Site, Sticky};
pub use time::KernelTime;
pub use types::{
    Attachments, Choice, ClassId, Counters, Family, Flow, FlowState, HookKind, Layer, LbMethod,
    MapMemory, NextHop, Opened, Options, Protocol, Removed, SweepReport, Traffic, Translation,
    UplinkCounters, UplinkEntry,
};
