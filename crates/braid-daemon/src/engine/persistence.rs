//! What the next daemon, and `braid down`, must know: kept on disk as well as the disk allows.
//!
//! Rules, and why:
//! - A start on a clean machine is refused where nothing can be written: nothing is lost by that.
//! - Once traffic depends on the daemon, a disk that refuses stops nothing: an uplink that is back
//!   takes flows whether or not that can be written down. What could not be written is kept in
//!   memory, is said in a health line, and is written with the first sweep that finds room. This
//!   daemon's `braid down` goes by its memory; only a daemon that is killed meanwhile loses it.

use super::Engine;
use crate::state::State;
use crate::uplink_registry::Change;

impl Engine {
    /// Notes what the next daemon must know of these changes.
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

    /// Puts on disk what is in memory.
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

    /// Tries again where the disk refused.
    pub(super) fn retry_store(&mut self) {
        if self.incidents.persist_error.is_some() {
            self.store_state();
        }
    }

    /// What was changed, for whoever undoes it.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
}
