//! Pauses of uplinks and rules, as somebody asked for them.
//!
//! Pure but for `Pauses::open` and `Pauses::store`. Rules, and why:
//! - A pause is stored before it takes effect, and the next daemon reads it again: an uplink that is being repaired must
//!   not take flows because the daemon restarted.
//! - It goes by the name, and stays if that is gone from the configuration: it may come back.
//! - Its end is a time by the machine's clock, so that a reboot does not prolong it.
//! - A file that cannot be read pauses nothing. The daemon starts, since paused uplinks that work do less harm than a
//!   machine without its daemon; `braid status` says so.

use std::collections::BTreeMap;

use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use serde::{Deserialize, Serialize};

use crate::report::Pause;

/// The pauses of an instance.
#[derive(Clone, Debug)]
pub(crate) struct Pauses {
    now: PausedNames,
    state_dir: StateDir,
    /// Error of reading an earlier daemon's file, or of the last write.
    pub error: Option<UserError>,
}

/// Pauses by the names of uplinks and of rules; the file in the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PausedNames {
    #[serde(default)]
    uplinks: BTreeMap<String, Pause>,
    #[serde(default)]
    rules: BTreeMap<String, Pause>,
}

/// The kind of thing that is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseSubject {
    Uplink,
    Rule,
}

impl PausedNames {
    fn of(&mut self, subject: PauseSubject) -> &mut BTreeMap<String, Pause> {
        match subject {
            PauseSubject::Uplink => &mut self.uplinks,
            PauseSubject::Rule => &mut self.rules,
        }
    }
}

impl Pauses {
    /// Continues with the pauses that an earlier daemon stored.
    #[must_use]
    pub fn open(state_dir: StateDir) -> Pauses {
        let fix = "remove it, and pause again what is to be paused";
        let (now, error) = match state_dir.read(&state_dir.pauses(), fix) {
            Ok(stored) => (stored.unwrap_or_default(), None),
            Err(failure) => {
                tracing::warn!(%failure, "what was paused is not known");
                (PausedNames::default(), Some(failure))
            }
        };
        Pauses {
            now,
            state_dir,
            error,
        }
    }

    /// Returns the paused uplinks by name.
    #[must_use]
    pub fn uplinks(&self) -> &BTreeMap<String, Pause> {
        &self.now.uplinks
    }

    /// Returns the paused rules by name.
    #[must_use]
    pub fn rules(&self) -> &BTreeMap<String, Pause> {
        &self.now.rules
    }

    /// Adds a pause, or replaces that of the same subject.
    ///
    /// # Errors
    /// It cannot be stored; then nothing has changed.
    pub fn add(
        &mut self,
        subject: PauseSubject,
        name: &str,
        pause: Pause,
    ) -> Result<(), UserError> {
        let mut next = self.now.clone();
        next.of(subject).insert(name.to_owned(), pause);
        self.state_dir.write(&self.state_dir.pauses(), &next)?;
        self.error = None;
        self.now = next;
        Ok(())
    }

    /// Ends a pause. Returns false if there is none.
    pub fn end(&mut self, subject: PauseSubject, name: &str) -> bool {
        let ended = self.now.of(subject).remove(name).is_some();
        if ended {
            self.store();
        }
        ended
    }

    /// Ends the pauses whose time is over, and returns them. If the clock was set back to before a pause, that begins now.
    pub fn end_overdue(&mut self, now_unix_ms: u64) -> Vec<(PauseSubject, String)> {
        let mut ended = Vec::new();
        for subject in [PauseSubject::Uplink, PauseSubject::Rule] {
            let all = self.now.of(subject).values_mut();
            for pause in all.filter(|pause| now_unix_ms < pause.since_unix_ms) {
                let length = |until: u64| until.saturating_sub(pause.since_unix_ms);
                pause.until_unix_ms = pause.until_unix_ms.map(|until| now_unix_ms + length(until));
                pause.since_unix_ms = now_unix_ms;
            }
        }
        for subject in [PauseSubject::Uplink, PauseSubject::Rule] {
            let all = self.now.of(subject);
            let is_over = |pause: &Pause| pause.until_unix_ms.is_some_and(|end| end <= now_unix_ms);
            let over = all.iter().filter(|(_, pause)| is_over(pause));
            ended.extend(over.map(|(name, _)| (subject, name.clone())));
            all.retain(|_, pause| !is_over(pause));
        }
        if !ended.is_empty() {
            self.store();
        }
        ended
    }

    /// Follows an uplink without configuration to the new name of its device.
    pub fn rename_uplink(&mut self, old: &str, new: &str) {
        if let Some(pause) = self.now.uplinks.remove(old) {
            self.now.uplinks.insert(new.to_owned(), pause);
            self.store();
        }
    }

    /// Stores them. A pause that has ended and stays on disk comes back with the next daemon at worst, which
    /// `braid status` says.
    fn store(&mut self) {
        self.error = self
            .state_dir
            .write(&self.state_dir.pauses(), &self.now)
            .err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::PauseOrigin;

    fn pause(until_unix_ms: Option<u64>) -> Pause {
        Pause {
            by: PauseOrigin::Page,
            since_unix_ms: 1000,
            until_unix_ms,
            forced: false,
        }
    }

    #[test]
    fn pauses_outlive_the_daemon_until_they_are_over() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = StateDir::new(folder.path().join("state"));
        let mut pauses = Pauses::open(state_dir.clone());
        for (subject, name, until) in [
            (PauseSubject::Uplink, "dsl", None),
            (PauseSubject::Uplink, "lte", Some(5000)),
            (PauseSubject::Rule, "lte", Some(5000)),
            (PauseSubject::Rule, "bank", Some(9000)),
        ] {
            pauses.add(subject, name, pause(until)).unwrap();
        }
        let mut next = Pauses::open(state_dir.clone());
        assert_eq!((next.now == pauses.now, &next.error), (true, &None));
        assert_eq!(next.end_overdue(4999), []);
        let over = [PauseSubject::Uplink, PauseSubject::Rule].map(|of| (of, "lte".to_owned()));
        assert_eq!(next.end_overdue(5000), over);
        assert!(next.end(PauseSubject::Uplink, "dsl"));
        assert!(!next.end(PauseSubject::Uplink, "dsl"), "it has ended");
        let last = Pauses::open(state_dir);
        assert!(last.uplinks().is_empty());
        assert_eq!(last.rules().keys().collect::<Vec<_>>(), ["bank"]);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_prolong_a_pause() {
        let folder = tempfile::tempdir().unwrap();
        let mut pauses = Pauses::open(StateDir::new(folder.path().join("state")));
        let (uplink, until) = (PauseSubject::Uplink, Some(5000));
        pauses.add(uplink, "lte", pause(until)).unwrap();
        assert_eq!(pauses.end_overdue(100), []);
        assert_eq!(pauses.uplinks()["lte"].until_unix_ms, Some(4100));
        assert_eq!(pauses.end_overdue(4100), [(uplink, "lte".to_owned())]);
    }

    #[test]
    fn a_pause_that_cannot_be_stored_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, "no directory").unwrap();
        let mut pauses = Pauses::open(StateDir::new(&path));
        pauses
            .add(PauseSubject::Uplink, "dsl", pause(None))
            .unwrap_err();
        assert!(pauses.uplinks().is_empty());
    }

    #[test]
    fn a_device_takes_its_pause_to_its_new_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut pauses = Pauses::open(StateDir::new(folder.path()));
        pauses
            .add(PauseSubject::Uplink, "wwan0", pause(None))
            .unwrap();
        pauses.rename_uplink("eth0", "lan0");
        pauses.rename_uplink("wwan0", "lte");
        assert_eq!(pauses.uplinks().keys().collect::<Vec<_>>(), ["lte"]);
    }

    #[test]
    fn a_broken_file_pauses_nothing_and_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = StateDir::new(folder.path());
        std::fs::write(state_dir.pauses(), "{").unwrap();
        let pauses = Pauses::open(state_dir);
        assert!(pauses.uplinks().is_empty());
        assert!(pauses.error.unwrap().text.contains("pauses.json"));
    }
}
