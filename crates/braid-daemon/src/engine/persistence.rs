//! Persistence of the state that the next daemon, and `braid down`, need.
//!
//! Rules, and why:
//! - A start on a clean machine is refused if the state cannot be written: nothing is lost by that.
//! - Once traffic depends on the daemon, a disk that refuses stops nothing: an uplink that is back takes flows
//!   whether or not that can be written. The unwritten state is kept in memory, shown as a health problem, and
//!   written by the first sweep that succeeds. This daemon's `braid down` uses its memory; only a daemon that
//!   is killed meanwhile loses the state.

use braid_host::state::State;

use super::Engine;
use crate::uplinks::registry::Change;

impl Engine {
    /// Records what the next daemon must know of these changes.
    pub(super) fn remember(&mut self, changes: &[Change]) {
        let renamed = changes.iter().filter_map(|change| match change {
            Change::Renamed(old, new) => Some((old.as_str(), new.as_str())),
            _ => None,
        });
        let saved = self.state.saved.renamed(&renamed.collect::<Vec<_>>());
        if self.state.uplinks == self.registry.numbers() && self.state.saved == saved {
            return;
        }
        self.state.uplinks = self.registry.numbers().to_vec();
        self.state.saved = saved;
        self.store_state();
    }

    /// Stores the state.
    pub(super) fn store_state(&mut self) {
        let outcome = self.state.store(&self.run_dir);
        let unwritten = &mut self.incidents.persist_error;
        match (&outcome, &unwritten) {
            (Err(failure), None) => tracing::warn!(%failure, "the state is in memory alone"),
            (Ok(()), Some(_)) => tracing::info!("the state is on disk again"),
            _ => {}
        }
        *unwritten = outcome.err();
    }

    /// Retries after a failed write.
    pub(super) fn retry_store(&mut self) {
        if self.incidents.persist_error.is_some() {
            self.store_state();
        }
    }

    /// Returns the changes that were made, for undoing them.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
}
