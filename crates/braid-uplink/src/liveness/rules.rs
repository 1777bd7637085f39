//! Parameters of the monitoring of an uplink.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use braid_core::Share;

use super::Target;

/// Targets without configuration: three public resolvers of different operators, in both families. They answer
/// echo requests from anywhere, and none decides alone.
pub const DEFAULT_TARGETS: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)),
    IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
    IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)),
    IpAddr::V6(Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888)),
    IpAddr::V6(Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe)),
];

/// Parameters of the monitoring of one uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Probe targets. Those of a family that the uplink lacks are left out. Empty: traffic alone decides.
    pub targets: Vec<Arc<Target>>,
    /// Number of different targets that have to answer, at least 1. Targets that never answered anywhere do not
    /// count, so that a mistyped one kills nothing.
    pub quorum: usize,
    /// Interval between regular probes.
    pub interval: Duration,
    /// The same where probes cost money and no packet has passed for two seconds.
    pub metered_interval: Duration,
    /// True if probes cost money: fewer are sent.
    pub metered: bool,
    /// Good probes in a row that bring a dead uplink back, at least 1.
    pub rise: u32,
    /// Loss from which on an uplink is degraded; below two fifths of it, it is no longer.
    pub degraded_loss: Share,
    /// Smoothed round trip from which on an uplink is degraded; below seven tenths of it, it is no longer.
    pub degraded_rtt: Duration,
}

impl Default for Rules {
    /// Six public resolvers of which one has to answer, every second, 5 answers to come back; degraded from 25
    /// % loss or 1 s on.
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

/// An uplink to be monitored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredUplink {
    /// True if it has an IPv4 next hop.
    pub v4: bool,
    /// True if it has an IPv6 next hop.
    pub v6: bool,
    /// True if the device is present, on, and has carrier and an address. Otherwise nothing is sent and no
    /// verdict changes; on its return the uplink has to prove itself.
    pub usable: bool,
    /// True if the owner of the device reports through `usable` whether its packets arrive. Such an uplink has
    /// nothing to prove on its return, and its absence is no failure of a device.
    pub self_reported: bool,
    /// Parameters of its monitoring.
    pub rules: Rules,
}
