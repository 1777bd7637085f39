//! Periodic work every few seconds: removes ended flows, limits hosts with too many flows, and expires learned
//! state.

use std::time::Instant;

use braid_balance::{KernelTime, SweepReport};
use braid_host::user_error::UserError;

use super::Engine;
use crate::connlimit::OverLimit;
use crate::events::EventKind;
use crate::report::FlowCounts;

impl Engine {
    /// Removes flows that ended or fell silent, limits hosts that hold too many, and checks the counters for
    /// problems.
    ///
    /// # Errors
    /// The tables cannot be read or written.
    pub fn sweep(&mut self) -> Result<SweepReport, UserError> {
        let report = self.datapath.sweep(KernelTime::now())?;
        self.swept_flows = Some(FlowCounts {
            established: report.established as u64,
            embryonic: report.embryos as u64,
        });
        self.incidents.note(&self.datapath.counters()?);
        self.limit_clients(report.established)?;
        self.check_moved_flows()?;
        self.forget_names()?;
        self.note_name_servers();
        self.end_stale_runs()?;
        self.retry_store();
        self.cached_flows.expire(Instant::now());
        Ok(report)
    }

    /// Counts flows per host only while the table fills up: reading all of it takes a while.
    fn limit_clients(&mut self, held: usize) -> Result<(), UserError> {
        let capacity = usize::try_from(self.datapath.capacity()?).unwrap_or(usize::MAX);
        if !self.limits.applies(held, capacity) {
            return Ok(());
        }
        let flows = self.datapath.flows()?;
        let kept = flows.iter().filter(|flow| flow.assured);
        let changes = self
            .limits
            .update(kept.map(|flow| flow.inner.ip()), capacity);
        if changes == Default::default() {
            return Ok(());
        }
        self.datapath.limit_clients(&self.limits.limited())?;
        changes.limited.iter().for_each(|over| self.log_limit(over));
        for client in changes.freed {
            let text = format!("{client} may open flows again");
            self.events.note(EventKind::ClientFree, None, text, None);
        }
        Ok(())
    }

    fn log_limit(&mut self, over: &OverLimit) {
        let OverLimit {
            client,
            flows,
            share,
        } = over;
        tracing::warn!(flows, share, "an inside host holds more than its share");
        let text = format!("{client} opens no more flows while the table is more than half full");
        let evidence = format!("it holds {flows} flows, its share is {share}");
        self.events
            .note(EventKind::ClientLimited, None, text, Some(evidence));
    }
}
