//! Health of uplinks: does an uplink that is present also work? Pure, driven by passed-in time.
//!
//! Inputs are the datapath's counters ([`Sample`]), the results of probes ([`ProbeResult`]) and the list of
//! uplinks ([`MonitoredUplink`]). Outputs are probes to send ([`ProbeRequest`]) and changes of verdict with
//! their evidence ([`VerdictChange`]). No socket, no clock, no randomness. The caller of [`HealthMonitor`]
//! calls a `handle_*`, then empties [`HealthMonitor::poll_transmit`] and [`HealthMonitor::poll_event`], and
//! returns at [`HealthMonitor::poll_timeout`].
//!
//! `docs/liveness.md` has the rules and their reasons. In short: traffic is checked first, because it costs
//! nothing and shows a failure within a round trip. Silence alone proves nothing, so a burst of probes follows.
//! An uplink is dead only if these stay unanswered too. Flows leave a failed uplink fast; an uplink that
//! returns has to prove itself, longer each time.

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
pub use rules::{DEFAULT_TARGETS, MonitoredUplink, Rules};
pub use target::{Expect, Target, TargetError};
pub use types::{
    HealthSnapshot, ProbeId, ProbeOutcome, ProbeRequest, ProbeResult, Sample, Verdict,
    VerdictChange, WorkingFamilies,
};
