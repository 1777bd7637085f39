//! Persistent storage of a hub: its own key, and its clients.
//!
//! It is a trait, so that a fleet of hubs can keep the same records in a replicated engine;
//! [`Embedded`] is the store of a single hub. Records survive a loss of power once [`Store::put`]
//! has returned.

mod embedded;
mod identity;
mod record;

use std::path::PathBuf;

use braid_bond::proto::handshake::{EpochKey, EpochKeys};
use braid_host::seal::SealError;

use crate::client::Client;

pub use embedded::Embedded;
pub use identity::{PreviousKey, StoredIdentity};

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("store {}: another process has it open", .0.display())]
    InUse(PathBuf),
    /// The file or its directory cannot be used.
    #[error("store {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Others than its owner may read or write it.
    #[error("store {}: others may use it (mode {mode:o}), and it contains keys", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The engine reported an error.
    #[error("store {}: {why}", path.display())]
    Engine {
        /// The file.
        path: PathBuf,
        /// Its message.
        why: String,
    },
    /// A record that cannot be read.
    #[error("store {}: {what} cannot be read: {why}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The record.
        what: String,
        /// The problem.
        why: String,
    },
    /// Its records cannot be sealed or opened.
    #[error("store {}: {source}", path.display())]
    Seal {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: SealError,
    },
    /// A later version has written it.
    #[error("store {}: written by a later version of Braid (form {form})", path.display())]
    Later {
        /// The file.
        path: PathBuf,
        /// Schema version of its records.
        form: u32,
    },
}

/// Storage of records. An error says nothing about the next call: a disk that was full may have room again.
pub trait Store: Send {
    /// Returns true if a thief of the disk cannot read the records.
    fn is_sealed(&self) -> bool;

    /// Returns the stored identity; stores `new`, durably, if there is none.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn load_or_create(&mut self, new: StoredIdentity) -> Result<StoredIdentity, StoreError>;

    /// Replaces the stored identity, durably.
    ///
    /// # Errors
    /// See [`StoreError`]; the earlier one stays then.
    fn put_identity(&mut self, identity: &StoredIdentity) -> Result<(), StoreError>;

    /// Keys of the epochs of earlier runs, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn epochs(&mut self) -> Result<Vec<EpochKey>, StoreError>;

    /// Replaces the keys of epochs, durably.
    ///
    /// # Errors
    /// See [`StoreError`]; the earlier ones stay then.
    fn put_epochs(&mut self, epochs: &EpochKeys) -> Result<(), StoreError>;

    /// All clients, by number.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn load(&mut self) -> Result<Vec<Client>, StoreError>;

    /// Stores these clients in place of their earlier records, and removes the records of other clients, by number: does
    /// all of that or, after an error, nothing.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn put(&mut self, clients: &[&Client], removed: &[u64]) -> Result<(), StoreError>;
}
