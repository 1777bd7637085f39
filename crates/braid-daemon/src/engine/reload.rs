//! Reload of the configuration while running: all of it or nothing.

use std::mem;

use braid_host::peer::{Groups, PeerAuth};
use braid_host::user_error::UserError;
use braid_uplink::Snapshot;

use super::Engine;
use crate::config::Settings;
use crate::events::EventKind;
use crate::rules::check_table_capacity;
use crate::user_errors;

impl Engine {
    /// Reads the configuration again and applies it. Flows keep their uplinks; shares of new flows
    /// change. After an error everything stays as before, and `braid status` says so until a reload
    /// succeeds. `auth` takes over the new groups.
    ///
    /// # Errors
    /// The configuration's errors, or the kernel's.
    pub async fn reload(&mut self, auth: &PeerAuth) -> Result<(), UserError> {
        let outcome = self.try_reload(auth).await;
        match &outcome {
            Ok(()) => {
                tracing::info!("configuration reloaded");
                let text = "the configuration was read again and is at work";
                self.events.note(EventKind::Reloaded, None, text, None);
            }
            Err(failure) => {
                tracing::warn!(%failure, "configuration not reloaded");
                let text = "the configuration was read again and refused: the one before it stays";
                let why = Some(failure.to_string());
                self.events.note(EventKind::ReloadRefused, None, text, why);
            }
        }
        self.incidents.reload_error = outcome.as_ref().err().cloned();
        self.reloads += 1;
        outcome
    }

    /// Returns the number of reloads, refused ones too.
    #[must_use]
    pub fn reloads(&self) -> u64 {
        self.reloads
    }

    async fn try_reload(&mut self, auth: &PeerAuth) -> Result<(), UserError> {
        let mut settings = self.settings_source.read()?;
        settings.run_rules = self.runs.rules();
        settings.bonded = self.bond.is_accepted();
        check_fixed(&self.settings, &settings)?;
        check_table_capacity(&settings)?;
        settings.paused_rules = self.pauses.rules().keys().cloned().collect();
        let groups = Groups::find(&settings.config.api)?;
        let selection = settings.selection()?;
        let snapshot = braid_uplink::netlink::read()
            .await
            .map_err(user_errors::of_uplinks)?;
        let found = braid_uplink::choose(&snapshot, &selection);
        found.require_any().map_err(user_errors::of_uplinks)?;
        self.settings_source.check_found(&settings, &found)?;

        let before = mem::replace(&mut self.settings, settings);
        let selected = mem::replace(&mut self.selection, selection);
        let registry = self.registry.clone();
        let outcome = match self.work_by_settings(&snapshot).await {
            // A reload also ends the wait of `failback = "never"`.
            Ok(()) => self
                .allow_failback()
                .and_then(|()| auth.set_groups(groups, &self.run_dir.socket())),
            refused => refused,
        };
        if outcome.is_err() {
            self.settings = before;
            self.selection = selected;
            // An uplink that only the refused file names would stay, and with it what was refused.
            self.registry = registry;
            if let Err(failure) = self.work_by_settings(&snapshot).await {
                tracing::warn!(%failure, "cannot go back to the old configuration");
            }
        }
        outcome
    }

    pub(super) async fn work_by_settings(&mut self, snapshot: &Snapshot) -> Result<(), UserError> {
        self.look_up_system();
        self.follow_names()?;
        self.reconcile(snapshot).await
    }
}

/// Refuses changes of settings that are fixed at start: sizes and hooks of the datapath.
fn check_fixed(now: &Settings, wanted: &Settings) -> Result<(), UserError> {
    if now.config.datapath == wanted.config.datapath {
        return Ok(());
    }
    let text = "[datapath] has changed, which a running daemon cannot follow";
    let fix = "braid down, then braid up; running flows are lost";
    Err(UserError::new("fixed", text).fix(fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    fn settings(text: &str) -> Settings {
        let config = Config::parse("test", text).unwrap();
        Settings::new(config, &Overrides::default()).unwrap()
    }

    #[test]
    fn policy_and_weights_may_change_and_the_datapath_may_not() {
        let now = settings("");
        check_fixed(&now, &settings("policy = 'hash-pair'")).unwrap();
        check_fixed(&now, &settings("[[uplink]]\ndevice='a'\nweight=2\n")).unwrap();
        let refused = check_fixed(&now, &settings("[datapath]\nmax_flows = 2048")).unwrap_err();
        assert_eq!(
            refused.text,
            "[datapath] has changed, which a running daemon cannot follow"
        );
        check_fixed(&now, &settings("[api]\ngroup = 'adm'")).unwrap();
    }
}
