//! Where a hub keeps what it must not forget: its own key, and its clients.
//!
//! One trait, so that a fleet of hubs can keep the same records in a replicated engine; [`Embedded`] is
//! the one for a hub of its own. What [`Store::put`] has returned from survives a loss of power.

mod embedded;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::client::Client;

pub use embedded::Embedded;

/// Why the store did not do it.
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
        /// What the system said.
        source: std::io::Error,
    },
    /// The engine's own words.
    #[error("store {}: {why}", path.display())]
    Engine {
        /// The file.
        path: PathBuf,
        /// What it said.
        why: String,
    },
    /// A record that cannot be read.
    #[error("store {}: {what} cannot be read: {why}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Which record.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// Written by a later version.
    #[error("store {}: written by a later version of Braid (form {form})", path.display())]
    Later {
        /// The file.
        path: PathBuf,
        /// The form of its records.
        form: u32,
    },
}

/// What a hub is made with once, and keeps for as long as it lives.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredIdentity {
    /// Its private key.
    pub private: [u8; 32],
    /// The global part of its inner IPv6 network, where none is configured (RFC 4193 §3.2.2).
    pub global: [u8; 5],
}

impl std::fmt::Debug for StoredIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredIdentity(…)")
    }
}

/// Keeps records.
pub trait Store: Send {
    /// What the hub was made with; `new` is kept, durably, if it was not made yet.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn load_or_create(&mut self, new: StoredIdentity) -> Result<StoredIdentity, StoreError>;

    /// Counts a start, durably: how often the hub was started before.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn count_start(&mut self) -> Result<u64, StoreError>;

    /// All clients, by number.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn load(&self) -> Result<Vec<Client>, StoreError>;

    /// Keeps these, in place of what was kept under their numbers: all of them or, after an error,
    /// none.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn put(&mut self, clients: &[&Client]) -> Result<(), StoreError>;
}
