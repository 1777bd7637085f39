//! What goes into the lookout and what comes out.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_core::{Share, UplinkId};
use serde::{Deserialize, Serialize};

use super::{Evidence, Target};

/// How an uplink that is there is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It works.
    Up,
    /// It works badly: much loss or a long round trip. It takes fewer new flows.
    Degraded,
    /// Something on the way answers in the place of others (a captive portal). No new flows.
    Portal,
    /// Nothing comes back, or it has not yet proven itself again. No new flows.
    Dead,
}

impl Verdict {
    /// Whether new flows may take the uplink.
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

/// What the datapath has counted on one uplink since some beginning. Every figure only grows; one
/// that shrinks means a new beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Packets of flows sent.
    pub sent: u64,
    /// Packets of flows received.
    pub received: u64,
    /// Connections that TCP asked for (first SYNs).
    pub syns: u64,
    /// Answers to those, whether SYN/ACK or RST.
    pub syn_answers: u64,
    /// SYNs sent again.
    pub syn_repeats: u64,
    /// Other TCP segments sent again.
    pub repeats: u64,
    /// Sum of the round trips seen in handshakes, in microseconds.
    pub rtt_us_sum: u64,
    /// How many round trips that sum has.
    pub rtt_samples: u64,
    /// Packets that never left this machine, since its own work of taking them from the device does not keep up.
    /// A line that is dead keeps a device's queue full, too: only where its being emptied has nothing to do with
    /// the line may they be told.
    #[serde(default)]
    pub local_drops: u64,
}

/// Names one probe among all of a lookout's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// A probe to send now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// The uplink that it must leave by.
    pub uplink: UplinkId,
    /// To be repeated in the answer.
    pub id: ProbeId,
    /// Whom to ask, and how.
    pub target: Arc<Target>,
    /// How long to listen for an answer. The lookout judges silence by its own clock, mostly
    /// earlier: a late answer still tells how long the way is.
    pub timeout: Duration,
}

/// How a probe fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// The uplink of the order.
    pub uplink: UplinkId,
    /// The id of the order.
    pub id: ProbeId,
    /// What came of it.
    pub outcome: ProbeOutcome,
}

/// What came of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The target answered as it should.
    Answered {
        /// From sending to the answer.
        rtt: Duration,
    },
    /// Somebody answered, but not as the target would.
    Wrong {
        /// From sending to the answer.
        rtt: Duration,
        /// What was wrong, in a few words: `status 302 instead of 204`.
        what: String,
    },
    /// Nothing came within the time, or a router said that it cannot be delivered.
    Silent,
    /// It could not be sent. Says nothing about what lies beyond the uplink.
    NotSent {
        /// Why not: `network is unreachable`.
        why: String,
    },
}

/// Which address families get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingFamilies {
    /// IPv4 works, as far as known.
    pub v4: bool,
    /// IPv6 works, as far as known.
    pub v6: bool,
}

/// A change of how an uplink is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictChange {
    /// The uplink.
    pub uplink: UplinkId,
    /// When.
    pub at: Instant,
    /// The verdict until now.
    pub from: Verdict,
    /// The verdict from now on; the same as `from` when only a family failed or returned.
    pub to: Verdict,
    /// The families that work from now on (`false` too for those that the uplink does not have).
    pub families: WorkingFamilies,
    /// What it rests on.
    pub evidence: Evidence,
}

/// How an uplink stands at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthSnapshot {
    /// The verdict.
    pub verdict: Verdict,
    /// Since when.
    pub since: Instant,
    /// What it rests on.
    pub evidence: Evidence,
    /// The families that work.
    pub families: WorkingFamilies,
    /// Smoothed round trip of probes, or of handshakes where no probe is answered.
    pub rtt: Option<Duration>,
    /// Share of the last 20 probes that got no answer; `None` before the first was judged.
    pub loss: Option<Share>,
    /// Why probes could not be sent, if the last one could not.
    pub send_error: Option<String>,
}
