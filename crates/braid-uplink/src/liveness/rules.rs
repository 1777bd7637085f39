//! What an uplink is watched by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use braid_core::Share;

use super::Target;

/// Whom to ask without configuration: three public resolvers of different operators, in both
/// families. They answer echo requests from anywhere, and none is alone in deciding.
const DEFAULT_TARGETS: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)),
    IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
    IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)),
    IpAddr::V6(Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888)),
    IpAddr::V6(Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe)),
];

/// How one uplink is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whom to ask. Those of a family that the uplink lacks are left out. Empty: traffic alone
    /// decides.
    pub targets: Vec<Arc<Target>>,
    /// How many different targets have to answer, at least 1. Targets that never answered anywhere
    /// do not count, so that a mistyped one kills nothing.
    pub quorum: usize,
    /// From one probe to the next in quiet times.
    pub interval: Duration,
    /// The same, where probes cost money and nothing has moved for two seconds.
    pub metered_interval: Duration,
    /// Probes cost money: fewer are sent.
    pub metered: bool,
    /// How many good probes in a row bring a dead uplink back, at least 1.
    pub rise: u32,
    /// From this loss on, an uplink is degraded; below two fifths of it, no longer.
    pub degraded_loss: Share,
    /// From this smoothed round trip on, an uplink is degraded; below seven tenths, no longer.
    pub degraded_rtt: Duration,
}

impl Default for Rules {
    /// 6 public resolvers of which one has to answer, every second, 5 answers to come back;
    /// degraded from 25 % or 1 s on.
    fn default() -> Self {
        let echo = |address| Arc::new(Target::Icmp(address));
        Rules {
            targets: DEFAULT_TARGETS.into_iter().map(echo).collect(),
            quorum: 1,
            interval: Duration::from_secs(1),
            metered_interval: Duration::from_secs(10),
            metered: false,
            rise: 5,
            degraded_loss: Share::of(1, 4),
            degraded_rtt: Duration::from_secs(1),
        }
    }
}

/// An uplink to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredUplink {
    /// It has a way out for IPv4.
    pub v4: bool,
    /// It has a way out for IPv6.
    pub v6: bool,
    /// The device is there, on, with carrier and an address. Otherwise nothing is sent and nothing
    /// is judged; on its return it has to prove itself.
    pub usable: bool,
    /// Whoever carries its packets says by `usable` whether they arrive: on its return there is nothing to
    /// prove, and it was not the device that failed.
    pub self_reported: bool,
    /// How to watch it.
    pub rules: Rules,
}
