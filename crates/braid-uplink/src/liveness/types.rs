//! Inputs and outputs of the health monitor.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_core::{Share, UplinkId};
use serde::{Deserialize, Serialize};

use super::{Evidence, Target};

/// The verdict on an uplink that is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It works.
    Up,
    /// It works badly: high loss or a long round trip. It takes fewer new flows.
    Degraded,
    /// A captive portal answers in place of other hosts. No new flows.
    Portal,
    /// No answer comes back, or it has not yet proven itself again. No new flows.
    Dead,
}

impl Verdict {
    /// Returns true if new flows may take the uplink.
    #[must_use]
    pub fn takes_new_flows(self) -> bool {
        matches!(self, Verdict::Up | Verdict::Degraded)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Up => "up",
            Verdict::Degraded => "degraded",
            Verdict::Portal => "portal",
            Verdict::Dead => "dead",
        })
    }
}

/// The datapath's counters of one uplink since some start. They only grow; one that shrinks means a restart of
/// the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Packets of flows sent.
    pub sent: u64,
    /// Packets of flows received.
    pub received: u64,
    /// TCP connections opened (first SYNs).
    pub syns: u64,
    /// Answers to those, whether SYN/ACK or RST.
    pub syn_answers: u64,
    /// SYNs retransmitted.
    pub syn_repeats: u64,
    /// Other TCP segments retransmitted.
    pub repeats: u64,
    /// Sum of the round trips seen in handshakes, in microseconds.
    pub rtt_us_sum: u64,
    /// Number of round trips in that sum.
    pub rtt_samples: u64,
    /// Packets that never left this machine, because it did not read them from the device fast enough. A dead
    /// line fills a device's queue too, so this is reported only where reading the queue does not depend on the
    /// line.
    #[serde(default)]
    pub local_drops: u64,
}

/// Identifies one probe in the lifetime of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// A probe to send now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// The uplink that it must leave through.
    pub uplink: UplinkId,
    /// Repeated in the result.
    pub id: ProbeId,
    /// The target.
    pub target: Arc<Target>,
    /// Time to wait for an answer. The monitor decides about silence by its own clock, mostly earlier; a late
    /// answer still gives the round trip.
    pub timeout: Duration,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// The uplink of the request.
    pub uplink: UplinkId,
    /// The id of the request.
    pub id: ProbeId,
    /// The outcome.
    pub outcome: ProbeOutcome,
}

/// The outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The target gave the expected answer.
    Answered {
        /// Time from sending to the answer.
        rtt: Duration,
    },
    /// An answer came that the target would not give.
    Wrong {
        /// Time from sending to the answer.
        rtt: Duration,
        /// The difference: `status 302 instead of 204`.
        what: String,
    },
    /// No answer came in time, or a router reported that the target is unreachable.
    Silent,
    /// It could not be sent, which says nothing about the path beyond the uplink.
    NotSent {
        /// The reason: `network is unreachable`.
        why: String,
    },
}

/// The address families that work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingFamilies {
    /// True if IPv4 works, as far as known.
    pub v4: bool,
    /// True if IPv6 works, as far as known.
    pub v6: bool,
}

/// A change of an uplink's verdict or of its families.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictChange {
    /// The uplink.
    pub uplink: UplinkId,
    /// Time of the change.
    pub at: Instant,
    /// The previous verdict.
    pub from: Verdict,
    /// The new verdict; the same as `from` if only a family failed or returned.
    pub to: Verdict,
    /// The families that work now (`false` too for those that the uplink does not have).
    pub families: WorkingFamilies,
    /// The evidence.
    pub evidence: Evidence,
}

/// The health of an uplink at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthSnapshot {
    /// The verdict.
    pub verdict: Verdict,
    /// Time of the last change of the verdict.
    pub since: Instant,
    /// The evidence of the verdict.
    pub evidence: Evidence,
    /// The families that work.
    pub families: WorkingFamilies,
    /// Smoothed round trip of probes, or of handshakes where no probe is answered.
    pub rtt: Option<Duration>,
    /// Mean difference of the round trip of one probe to that of the next, over the last 16; `None` before the second.
    pub jitter: Option<Duration>,
    /// Time of the last answer that counted for [`HealthSnapshot::rtt`]; `None` if that is not known from probes.
    pub answered: Option<Instant>,
    /// Loss among the last 20 probes; `None` before the first result.
    pub loss: Option<Share>,
    /// Time of the last result that counted for it.
    pub probed: Option<Instant>,
    /// The error of the last probe, if it could not be sent.
    pub send_error: Option<String>,
}
