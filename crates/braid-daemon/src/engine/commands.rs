//! Commands of the API that change the running instance: `braid run`, `braid failback` and `braid measure`.

use std::time::Instant;

use braid_core::Rate;
use braid_core::capacity::{ActiveEstimate, CapacityBasis};
use braid_host::user_error::UserError;

use super::Engine;
use crate::config::Settings;
use crate::datapath::Acceptance;
use crate::events::EventKind;
use crate::report::{MeasurementMethod, MeasurementRequest, RunRequest, UplinkReport};
use crate::rules::{SystemIds, check_table_capacity};

impl Engine {
    /// Lets uplinks take flows again that `failback = "never"` holds back.
    ///
    /// # Errors
    /// The kernel refused the change.
    pub fn allow_failback(&mut self) -> Result<(), UserError> {
        self.classes.allow_failback();
        self.follow_verdicts()
    }

    /// Takes the result of a measurement as the capacity of an uplink. A configured one stays a ceiling.
    ///
    /// # Errors
    /// The uplink does not exist, the result makes no sense or is by a method for comparison, or the tables cannot be read.
    pub fn note_measurement(
        &mut self,
        measured: &MeasurementRequest,
    ) -> Result<UplinkReport, UserError> {
        let records = self.registry.records();
        let known = || records.iter().map(|record| record.uplink.name.as_str());
        let unknown = || UserError::unknown_uplink(&measured.uplink, known());
        let place = records
            .iter()
            .position(|record| record.uplink.name == measured.uplink)
            .ok_or_else(unknown)?;
        if measured.rate_bit_s == 0 || !(0.0..=1.0).contains(&measured.error) {
            let text = "a measurement has a rate above 0 and an error from 0 to 1";
            return Err(UserError::new("usage", text));
        }
        let basis = match measured.method {
            MeasurementMethod::Transfer => CapacityBasis::Transfer,
            MeasurementMethod::Dispersion => CapacityBasis::Dispersion,
            MeasurementMethod::VariablePacketSize => {
                let text = "the method variable-packet-size is for comparison";
                return Err(
                    UserError::new("usage", text).fix("measure by dispersion, or a transfer")
                );
            }
        };
        let found = ActiveEstimate {
            rate: Rate::from_bits_per_sec(measured.rate_bit_s),
            error: measured.error,
            saturated: measured.saturated,
        };
        let (id, direction, now) = (records[place].id, measured.direction, Instant::now());
        let capacities = &mut self.health_checks.capacities;
        if !capacities.note_active(now, id, direction, basis, &found) {
            let text = format!("{}: its traffic is not counted yet", measured.uplink);
            return Err(UserError::new("too-early", text).fix("try again in a second"));
        }
        // The report has them in the registry's order.
        Ok(self.uplinks()?.uplinks.swap_remove(place))
    }

    /// Directs new flows of a control group to one uplink, ahead of all configured rules.
    ///
    /// # Errors
    /// The uplink or group does not exist, there is no room for its rule, or the kernel refused; then nothing
    /// has changed.
    pub fn begin_run(&mut self, run: RunRequest) -> Result<RunRequest, UserError> {
        let records = self.registry.records();
        if records
            .iter()
            .all(|record| record.uplink.name != run.uplink)
        {
            let known = records.iter().map(|record| record.uplink.name.as_str());
            return Err(UserError::unknown_uplink(&run.uplink, known));
        }
        check_table_capacity(&Settings {
            run_rules: self.runs.rules_with(&run),
            ..self.settings.clone()
        })?;
        self.runs.begin(run.clone())?;
        if let Err(failure) = self.follow_runs() {
            self.runs.end(run.id);
            self.follow_runs()?;
            return Err(failure);
        }
        let text = format!("{} runs on it alone", run.command);
        self.events
            .note(EventKind::RunBegan, Some(&run.uplink), text, None);
        Ok(run)
    }

    /// Completes the beginning of runs: a bridge learns of their packets. Returns a wait until it obeys; `None`: it
    /// does.
    ///
    /// # Errors
    /// The kernel refused the change.
    pub async fn tell_senders(&mut self) -> Result<Option<Acceptance>, UserError> {
        self.datapath.tell_senders().await?;
        Ok(self.datapath.acceptance())
    }

    /// Ends a run.
    ///
    /// # Errors
    /// The run does not exist, or the kernel refused.
    pub fn end_run(&mut self, id: u64) -> Result<RunRequest, UserError> {
        let run = self.runs.end(id);
        let run = run.ok_or_else(|| UserError::new("not-found", format!("no run {id}")))?;
        self.follow_runs()?;
        self.log_run_end(&run, None);
        Ok(run)
    }

    /// Ends the runs whose control group and command are gone without notice.
    ///
    /// # Errors
    /// The kernel refused the change.
    pub(super) fn end_stale_runs(&mut self) -> Result<(), UserError> {
        let over = self.runs.prune();
        if over.is_empty() {
            return Ok(());
        }
        for run in &over {
            let evidence = "its control group is empty or gone, and so is the command that made it";
            self.log_run_end(run, Some(evidence.to_owned()));
        }
        self.follow_runs()
    }

    fn log_run_end(&mut self, run: &RunRequest, evidence: Option<String>) {
        let text = format!("{} has ended", run.command);
        self.events
            .note(EventKind::RunEnded, Some(&run.uplink), text, evidence);
    }

    fn follow_runs(&mut self) -> Result<(), UserError> {
        self.settings.run_rules = self.runs.rules();
        self.system = SystemIds::look_up(&self.settings);
        self.follow_verdicts()
    }
}
