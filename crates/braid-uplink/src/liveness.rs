//! Whether an uplink that is there also works: pure, driven by passed-in time.
//!
//! In go what the datapath counted ([`Sample`]), how probes fared ([`ProbeAnswer`]) and which
//! uplinks there are ([`Watched`]); out come probes to send ([`ProbeOrder`]) and changes of verdict
//! with what they rest on ([`VerdictChange`]). No socket, no clock, no randomness: whoever drives
//! the [`Lookout`] calls a `handle_*`, then empties [`Lookout::poll_transmit`] and
//! [`Lookout::poll_event`], and comes back at [`Lookout::poll_timeout`].
//!
//! The rules and their reasons are in `docs/liveness.md`. In short: traffic is asked first, since
//! it costs nothing and tells within a round trip; silence alone proves nothing, so a burst of
//! probes follows; only when they stay unanswered too is an uplink dead. An uplink that fails is
//! left fast, and one that returns has to prove itself, longer each time.

mod constants;
mod damping;
mod evidence;
mod families;
mod guard;
mod judge;
mod lookout;
mod loss;
mod pace;
mod panel;
mod recovery;
mod rtt;
mod rules;
mod suspicion;
mod target;
mod traffic;
mod types;

pub use evidence::{Cause, Evidence};
pub use lookout::Lookout;
pub use rules::{Rules, Watched};
pub use target::{Expect, Target, TargetError};
pub use types::{
    Look, Outcome, ProbeAnswer, ProbeId, ProbeOrder, Sample, Verdict, VerdictChange, Ways,
};
