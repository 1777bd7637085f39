//! The registry's store, and the outcome of the last write to it.

use braid_bond::proto::handshake::EpochKeys;

use crate::client::Client;
use crate::store::{Store, StoreError, StoredIdentity};

/// A store that remembers whether it can be written.
pub(super) struct Storage {
    store: Box<dyn Store>,
    /// Error of the last write, if it failed.
    error: Option<String>,
}

impl Storage {
    pub fn new(store: Box<dyn Store>) -> Storage {
        Storage { store, error: None }
    }

    /// Error of the last write. It stands until a write succeeds.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    pub fn is_sealed(&self) -> bool {
        self.store.is_sealed()
    }

    pub fn load(&mut self) -> Result<Vec<Client>, StoreError> {
        self.store.load()
    }

    /// See [`Store::put`]; with no clients it finds out whether the store can be written.
    pub fn put(&mut self, clients: &[&Client], removed: &[u64]) -> Result<(), StoreError> {
        let outcome = self.store.put(clients, removed);
        self.noted(outcome)
    }

    pub fn put_identity(&mut self, identity: &StoredIdentity) -> Result<(), StoreError> {
        let outcome = self.store.put_identity(identity);
        self.noted(outcome)
    }

    pub fn put_epochs(&mut self, epochs: &EpochKeys) -> Result<(), StoreError> {
        let outcome = self.store.put_epochs(epochs);
        self.noted(outcome)
    }

    fn noted<T>(&mut self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        let error = outcome.as_ref().err().map(ToString::to_string);
        if let Some(error) = error.as_ref().filter(|_| error != self.error) {
            tracing::warn!(%error, "cannot save the client registry");
        }
        self.error = error;
        outcome
    }
}
