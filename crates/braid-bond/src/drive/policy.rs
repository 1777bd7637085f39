//! What is chosen for a tunnel: scheduler, classes, order.

use std::fmt;
use std::sync::Arc;

use crate::proto::flow;
use crate::proto::tunnel::{Classify, Settings};
use braid_core::bond::ReceiverSettings;
use braid_core::schedule::{Adaptive, Overflow, Scheduler, Weighted};

/// Who chooses links.
#[derive(Clone, Debug, Default)]
pub enum Scheduling {
    /// Earliest arrival over measured links.
    #[default]
    Adaptive,
    /// \[l3b\] §3.
    Overflow(Overflow),
    /// Static weights.
    Weighted(Weighted),
}

impl Scheduling {
    fn scheduler(&self) -> Box<dyn Scheduler> {
        match self {
            Scheduling::Adaptive => Box::<Adaptive>::default(),
            Scheduling::Overflow(overflow) => Box::new(overflow.clone()),
            Scheduling::Weighted(weighted) => Box::new(weighted.clone()),
        }
    }
}

/// What is chosen for a tunnel.
#[derive(Clone)]
pub struct Policy {
    /// Who chooses links.
    pub scheduling: Scheduling,
    /// How inner packets are treated.
    pub class: Classify,
    /// How packets are put in order.
    pub receiver: ReceiverSettings,
}

impl Default for Policy {
    /// Earliest arrival; classes as [`flow::class`] says; order with repair.
    fn default() -> Self {
        Policy {
            scheduling: Scheduling::default(),
            class: Arc::new(flow::class),
            receiver: ReceiverSettings::default(),
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("scheduling", &self.scheduling)
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}

impl Policy {
    pub(super) fn settings(&self) -> Settings {
        let scheduling = self.scheduling.clone();
        Settings {
            scheduler: Arc::new(move || scheduling.scheduler()),
            receiver: self.receiver,
            class: Arc::clone(&self.class),
        }
    }
}
