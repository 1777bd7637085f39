//! Errors of this crate.

use crate::Rejected;

/// Errors of discovery.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel's routing socket cannot be opened.
    #[error("cannot open a netlink socket: {0}")]
    Socket(#[from] std::io::Error),
    /// A request over the routing socket was refused.
    #[error("cannot read {what} over netlink: {source}")]
    Netlink {
        /// The kind of object: `links`, `addresses`, `routes`.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Two configured uplinks have the same name.
    #[error("two uplinks are named {0:?}")]
    DuplicateName(String),
    /// Two configured uplinks share a device.
    #[error(
        "uplinks {first:?} and {second:?} are both on {device}: an uplink needs a device of its own"
    )]
    SharedDevice {
        /// The uplink that came first.
        first: String,
        /// The uplink that came second.
        second: String,
        /// Their device.
        device: String,
    },
    /// A configured uplink is on one of Braid's own devices.
    #[error("uplink {name:?} is on {device}, which is braid's own device")]
    OwnDevice {
        /// The uplink's name.
        name: String,
        /// `braid0` or `braid1`.
        device: String,
    },
    /// There is no uplink to use.
    #[error("no uplink found{}", list(rejected))]
    NoUplink {
        /// All rejected candidates.
        rejected: Vec<Rejected>,
    },
}

fn list(rejected: &[Rejected]) -> String {
    if rejected.is_empty() {
        return ": the main routing table has no default route".to_owned();
    }
    rejected.iter().map(|r| format!("\n  {r}")).collect()
}
