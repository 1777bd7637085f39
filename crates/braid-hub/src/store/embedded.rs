//! A store in a file (redb), with a table of clients and a table of other values.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, ReadableTable, Table, TableDefinition};
use zeroize::Zeroizing;

use super::{Store, StoreError, StoredIdentity};
use crate::client::Client;

/// Client's number → its record, JSON.
const CLIENTS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("clients");
/// Key → value, JSON.
const HUB: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("hub");

const IDENTITY: &str = "founding";
const SCHEMA_VERSION: &str = "form";
const STARTS: &str = "starts";

/// Schema version of the records.
const CURRENT_SCHEMA: u32 = 1;

/// A store in a file. One process has it open at a time.
#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    database: Database,
}

impl Embedded {
    /// Opens a file, and makes it if it is missing. Only root can read it, since it contains keys.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let io = |source| StoreError::Io {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(folder).map_err(io)?;
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).mode(0o600);
        let file = options.open(path).map_err(io)?;
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(StoreError::Exposed {
                path: path.to_owned(),
                mode,
            });
        }
        let database = redb::Builder::new().create_file(file);
        let database = database.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path.to_owned()),
            error => engine(path, error),
        })?;
        let store = Embedded {
            path: path.to_owned(),
            database,
        };
        store.check_schema()?;
        Ok(store)
    }

    /// Records the schema version of a new file, and refuses an unknown one.
    fn check_schema(&self) -> Result<(), StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            let found = table.get(SCHEMA_VERSION).map_err(|e| store.engine(e))?;
            let found = found.map(|value| value.value().to_vec());
            match found {
                None => {
                    let form = CURRENT_SCHEMA.to_string();
                    let kept = table.insert(SCHEMA_VERSION, form.as_bytes());
                    kept.map(drop).map_err(|e| store.engine(e))
                }
                Some(bytes) => match store.parse::<u32>("its form", &bytes)? {
                    CURRENT_SCHEMA => Ok(()),
                    form => Err(StoreError::Later {
                        path: store.path.clone(),
                        form,
                    }),
                },
            }?;
            // The table must exist for readers.
            let clients = transaction.open_table(CLIENTS);
            clients.map(drop).map_err(|e| store.engine(e))
        })
    }

    /// Makes one change, durably, or none.
    fn change<T>(
        &self,
        make: impl FnOnce(&Self, &redb::WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let transaction = self.database.begin_write().map_err(|e| self.engine(e))?;
        let made = make(self, &transaction)?;
        transaction.commit().map_err(|e| self.engine(e))?;
        Ok(made)
    }

    fn insert_identity(
        &self,
        table: &mut Table<'_, &'static str, &'static [u8]>,
        identity: &StoredIdentity,
    ) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(identity);
        let bytes = bytes.map_err(|e| self.record("the hub's key", e.to_string()))?;
        let bytes = Zeroizing::new(bytes);
        let kept = table.insert(IDENTITY, bytes.as_slice());
        kept.map(drop).map_err(|e| self.engine(e))
    }

    fn engine(&self, error: impl Into<redb::Error>) -> StoreError {
        engine(&self.path, error)
    }

    fn parse<'a, T: serde::Deserialize<'a>>(
        &self,
        what: &str,
        bytes: &'a [u8],
    ) -> Result<T, StoreError> {
        serde_json::from_slice(bytes).map_err(|error| self.record(what, error.to_string()))
    }

    fn record(&self, what: &str, why: String) -> StoreError {
        StoreError::Record {
            path: self.path.clone(),
            what: what.to_owned(),
            why,
        }
    }
}

fn engine(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    StoreError::Engine {
        path: path.to_owned(),
        why: error.into().to_string(),
    }
}

impl Store for Embedded {
    fn load_or_create(&mut self, new: StoredIdentity) -> Result<StoredIdentity, StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            let found = table.get(IDENTITY).map_err(|e| store.engine(e))?;
            let found = found.map(|value| value.value().to_vec());
            if let Some(bytes) = found {
                return store.parse("the hub's key", &bytes);
            }
            store.insert_identity(&mut table, &new)?;
            Ok(new)
        })
    }

    fn put_identity(&mut self, identity: &StoredIdentity) -> Result<(), StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            store.insert_identity(&mut table, identity)
        })
    }

    fn count_start(&mut self) -> Result<u64, StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            let found = table.get(STARTS).map_err(|e| store.engine(e))?;
            let found = found.map(|value| value.value().to_vec());
            let before = match found {
                Some(bytes) => store.parse::<u64>("the number of its starts", &bytes)?,
                None => 0,
            };
            let after = (before + 1).to_string();
            let kept = table.insert(STARTS, after.as_bytes());
            kept.map(drop).map_err(|e| store.engine(e))?;
            Ok(before)
        })
    }

    fn load(&self) -> Result<Vec<Client>, StoreError> {
        let transaction = self.database.begin_read().map_err(|e| self.engine(e))?;
        let table = transaction
            .open_table(CLIENTS)
            .map_err(|e| self.engine(e))?;
        let rows = table.iter().map_err(|e| self.engine(e))?;
        let read = |row: Result<(redb::AccessGuard<'_, u64>, redb::AccessGuard<'_, &[u8]>), _>| {
            let (id, record) = row.map_err(|e: redb::StorageError| self.engine(e))?;
            self.parse(&format!("client {}", id.value()), record.value())
        };
        rows.map(read).collect()
    }

    fn put(&mut self, clients: &[&Client]) -> Result<(), StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction
                .open_table(CLIENTS)
                .map_err(|e| store.engine(e))?;
            for client in clients {
                let bytes = serde_json::to_vec(client);
                let bytes = bytes.map_err(|e| store.record("a client", e.to_string()))?;
                table
                    .insert(client.id, bytes.as_slice())
                    .map_err(|e| store.engine(e))?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::State;
    use braid_bond::token::Secret;
    use braid_host::quota::Used;

    fn founding(byte: u8) -> StoredIdentity {
        StoredIdentity::new([byte; 32], [byte; 5])
    }

    fn client(id: u64) -> Client {
        let secret = Secret::new([id as u8; 32]);
        Client {
            id,
            name: format!("client-{id}").parse().unwrap(),
            invitation: secret.id(),
            psk: secret.psk(),
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            cap: Some("5 Mbit/s".parse().unwrap()),
            created: 1,
            state: State::Revoked {
                key: Some(braid_bond::proto::handshake::PublicKey([3; 32])),
                since: 2,
            },
            seen: Some(3),
            received: 4,
            sent: 5,
            used: Used::default(),
            hub_key: None,
        }
    }

    #[test]
    fn records_survive_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/hub.redb");
        let mut store = Embedded::open(&path).unwrap();
        assert_eq!(store.load_or_create(founding(1)).unwrap(), founding(1));
        let (one, two) = (client(1), client(2));
        store.put(&[&one, &two]).unwrap();
        assert!(matches!(Embedded::open(&path), Err(StoreError::InUse(_))));
        drop(store);
        let mut store = Embedded::open(&path).unwrap();
        assert_eq!(
            store.load_or_create(founding(2)).unwrap(),
            founding(1),
            "made once"
        );
        let shown = |clients: &[Client]| serde_json::to_string(clients).unwrap();
        assert_eq!(shown(&store.load().unwrap()), shown(&[one, two]));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "there are keys in it");
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        drop(Embedded::open(&path).unwrap());
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(&path, mode.clone()).unwrap();
        let refused = Embedded::open(&path).unwrap_err();
        assert!(matches!(refused, StoreError::Exposed { mode: 0o640, .. }));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
    }

    #[test]
    fn another_key_replaces_the_stored_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let mut store = Embedded::open(&path).unwrap();
        store.load_or_create(founding(1)).unwrap();
        let rotated = founding(1).rotated([2; 32], 10, 20, 1);
        store.put_identity(&rotated).unwrap();
        drop(store);
        let mut store = Embedded::open(&path).unwrap();
        assert_eq!(store.load_or_create(founding(3)).unwrap(), rotated);
        store.put_identity(&rotated.retired()).unwrap();
        assert_eq!(
            store.load_or_create(founding(3)).unwrap(),
            rotated.retired()
        );
    }

    #[test]
    fn starts_are_counted_over_starts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        for before in 0..4 {
            let mut store = Embedded::open(&path).unwrap();
            assert_eq!(store.count_start().unwrap(), before);
        }
    }

    #[test]
    fn a_record_from_before_there_were_quotas_is_read() {
        let text = serde_json::to_string(&client(1)).unwrap();
        let used = r#","used":{"began":0,"bytes":0}"#;
        assert!(text.contains(used), "{text}");
        let read: Client = serde_json::from_str(&text.replace(used, "")).unwrap();
        assert_eq!(read.used, Used::default());
    }

    #[test]
    fn a_file_that_is_not_a_store_stays_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let text = "this is somebody's letter".repeat(500);
        fs::write(&path, &text).unwrap();
        let error = Embedded::open(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_later_form_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let store = Embedded::open(&path).unwrap();
        store
            .change(|_, transaction| {
                let mut table = transaction.open_table(HUB).unwrap();
                table.insert(SCHEMA_VERSION, b"2".as_slice()).unwrap();
                Ok(())
            })
            .unwrap();
        drop(store);
        let refused = Embedded::open(&path);
        assert!(matches!(refused, Err(StoreError::Later { form: 2, .. })));
    }
}
