//! Whether an uplink that is there also works: pure, driven by passed-in time.
//!
//! In go what the datapath counted ([`Sample`]), how probes fared ([`ProbeResult`]) and which
//! uplinks there are ([`MonitoredUplink`]); out come probes to send ([`ProbeRequest`]) and changes of verdict
//! with what they rest on ([`VerdictChange`]). No socket, no clock, no randomness: whoever drives
//! the [`HealthMonitor`] calls a `handle_*`, then empties [`HealthMonitor::poll_transmit`] and
//! [`HealthMonitor::poll_event`], and comes back at [`HealthMonitor::poll_timeout`].
//!
//! The rules and their reasons are in `docs/liveness.md`. In short: traffic is asked first, since
//! it costs nothing and tells within a round trip; silence alone proves nothing, so a burst of
//! probes follows; only when they stay unanswered too is an uplink dead. An uplink that fails is
//! left fast, and one that returns has to prove itself, longer each time.

mod constants;
mod damping;
mod evidence;
mod families;
mod health_monitor;
mod loss;
mod probe_schedule;
mod recovery;
mod rtt;
mod rules;
mod state_machine;
mod suspicion;
mod target;
mod target_set;
mod traffic;
mod types;
mod uplink_monitor;

pub use evidence::{Cause, Evidence};
pub use health_monitor::HealthMonitor;
pub use rules::{MonitoredUplink, Rules};
pub use target::{Expect, Target, TargetError};
pub use types::{
    HealthSnapshot, ProbeId, ProbeOutcome, ProbeRequest, ProbeResult, Sample, Verdict,
    VerdictChange, WorkingFamilies,
};
