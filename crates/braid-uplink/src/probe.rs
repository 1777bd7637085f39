//! Sends probes, each bound to its uplink, and reports what came of them.

use tokio::sync::mpsc::UnboundedSender;

use crate::Uplink;
use crate::liveness::{Outcome, ProbeAnswer, ProbeOrder};

/// Sends probes and listens for their answers.
#[derive(Debug)]
pub struct Prober {
    answers: UnboundedSender<ProbeAnswer>,
}

impl Prober {
    /// Reports to this channel, in the network namespace of the calling thread. Needs a tokio
    /// runtime with I/O and time.
    #[must_use]
    pub fn new(answers: UnboundedSender<ProbeAnswer>) -> Prober {
        Prober { answers }
    }

    /// Sends one probe out of this uplink. Never waits; exactly one answer comes for each order,
    /// at the latest when the order's time is over.
    pub fn send(&mut self, order: ProbeOrder, _uplink: &Uplink) {
        let outcome = Outcome::NotSent {
            why: "no driver for this kind of target".to_owned(),
        };
        // Whoever hung up needs no answer.
        let _ = self.answers.send(ProbeAnswer {
            uplink: order.uplink,
            id: order.id,
            outcome,
        });
    }
}
