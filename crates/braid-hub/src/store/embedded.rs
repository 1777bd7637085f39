//! A store in a file (redb), with a table of clients and a table of other values.
//!
//! If the hub seals its secrets ([`SealKey`]), every record but the schema version is sealed, under the names of its table
//! and key. A store that was not sealed before is sealed when it is opened, as a whole.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use braid_bond::proto::handshake::{EpochKey, EpochKeys, KeyBytes};
use braid_host::seal::{SealError, SealKey};
use braid_host::secret_json;
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, Table, TableDefinition};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::record::key_bytes;
use super::{Store, StoreError, StoredIdentity};
use crate::client::Client;

/// Client's number → its record, JSON.
const CLIENTS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("clients");
/// Key → value, JSON.
const HUB: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("hub");

const IDENTITY: &str = "founding";
const SCHEMA_VERSION: &str = "form";
const EPOCHS: &str = "epochs";
/// Words for both in errors.
const IDENTITY_TEXT: &str = "the hub's key";
const EPOCHS_TEXT: &str = "the keys of its epochs";

/// Schema version of records as they are, and of sealed ones.
const PLAIN_SCHEMA: u32 = 1;
const SEALED_SCHEMA: u32 = 2;

/// A store in a file. One process has it open at a time.
#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    /// None after an error of the engine, until the next use opens it again.
    database: Option<Database>,
    /// Key of the records; none if they are not sealed.
    seal: Option<SealKey>,
}

/// Key of an epoch.
#[derive(Serialize, Deserialize)]
struct StoredKey(#[serde(with = "key_bytes")] KeyBytes);

/// Name under which a record of [`HUB`] is sealed.
fn hub_name(key: &str) -> String {
    format!("hub/{key}")
}

/// Name under which a client is sealed.
fn client_name(id: u64) -> String {
    format!("clients/{id}")
}

impl Embedded {
    /// Opens a file, and makes it if it is missing. Only root can read it, since it contains keys. Records are sealed if
    /// there is a key.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path, seal: Option<SealKey>) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(folder).map_err(|e| io(path, e))?;
        }
        let mut store = Embedded {
            path: path.to_owned(),
            database: Some(open_database(path, true)?),
            seal,
        };
        store.adopt()?;
        Ok(store)
    }

    /// Uses the database. It is closed after an error of the engine, which refuses everything after its first I/O error
    /// (redb's `PreviousIo`), and the next use opens it again.
    fn with_database<T>(
        &mut self,
        act: impl FnOnce(&Self, &Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            // A file that has gone is not made anew: it would lack all earlier records.
            None => open_database(&self.path, false)?,
        };
        let done = act(self, &database);
        if !matches!(done, Err(StoreError::Engine { .. })) {
            self.database = Some(database);
        }
        done
    }

    /// Records the schema version of a new file, refuses an unknown one, and seals records that are not.
    fn adopt(&mut self) -> Result<(), StoreError> {
        let sealed = self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            let found = table.get(SCHEMA_VERSION).map_err(|e| store.engine(e))?;
            let found = found.map(|value| value.value().to_vec());
            let found = match found {
                None => PLAIN_SCHEMA,
                Some(bytes) => store.parse::<u32>("its form", &bytes)?,
            };
            // The table must exist for readers.
            let mut clients = transaction
                .open_table(CLIENTS)
                .map_err(|e| store.engine(e))?;
            let schema = match (found, &store.seal) {
                (SEALED_SCHEMA, None) => return Err(store.unsealed(SealError::Missing)),
                (PLAIN_SCHEMA, Some(_)) => {
                    store.seal_all(&mut table, &mut clients)?;
                    SEALED_SCHEMA
                }
                (PLAIN_SCHEMA | SEALED_SCHEMA, _) => found,
                (form, _) => {
                    return Err(StoreError::Later {
                        path: store.path.clone(),
                        form,
                    });
                }
            };
            let form = schema.to_string();
            let kept = table.insert(SCHEMA_VERSION, form.as_bytes());
            kept.map(drop).map_err(|e| store.engine(e))?;
            Ok(schema != found)
        })?;
        if sealed {
            tracing::info!(store = %self.path.display(), "the store is sealed from now on");
        }
        Ok(())
    }

    /// Seals all records, none of which is sealed.
    fn seal_all(
        &self,
        table: &mut Table<'_, &'static str, &'static [u8]>,
        clients: &mut Table<'_, u64, &'static [u8]>,
    ) -> Result<(), StoreError> {
        for key in [IDENTITY, EPOCHS] {
            let found = table.get(key).map_err(|e| self.engine(e))?;
            let Some(plain) = found.map(|value| Zeroizing::new(value.value().to_vec())) else {
                continue;
            };
            let sealed = self.encode(&hub_name(key), &plain)?;
            let kept = table.insert(key, sealed.as_slice());
            kept.map(drop).map_err(|e| self.engine(e))?;
        }
        let rows = clients.iter().map_err(|e| self.engine(e))?;
        let rows: Result<Vec<_>, _> = rows
            .map(|row| {
                let (id, record) = row.map_err(|e| self.engine(e))?;
                Ok((id.value(), Zeroizing::new(record.value().to_vec())))
            })
            .collect();
        for (id, plain) in rows? {
            let sealed = self.encode(&client_name(id), &plain)?;
            let kept = clients.insert(id, sealed.as_slice());
            kept.map(drop).map_err(|e| self.engine(e))?;
        }
        Ok(())
    }

    /// Returns a record as it is stored.
    fn encode(&self, name: &str, record: &[u8]) -> Result<Zeroizing<Vec<u8>>, StoreError> {
        let stored = match &self.seal {
            Some(seal) => seal.seal(name, record).map_err(|e| self.unsealed(e))?,
            None => record.to_vec(),
        };
        Ok(Zeroizing::new(stored))
    }

    /// Returns a stored record as it was.
    fn decode(&self, name: &str, stored: &[u8]) -> Result<Zeroizing<Vec<u8>>, StoreError> {
        match &self.seal {
            Some(seal) => seal.open(name, stored).map_err(|e| self.unsealed(e)),
            None => Ok(Zeroizing::new(stored.to_vec())),
        }
    }

    fn unsealed(&self, source: SealError) -> StoreError {
        StoreError::Seal {
            path: self.path.clone(),
            source,
        }
    }

    /// Makes one change, durably, or none.
    fn change<T>(
        &mut self,
        make: impl FnOnce(&Self, &redb::WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with_database(|store, database| {
            let transaction = database.begin_write().map_err(|e| store.engine(e))?;
            let made = make(store, &transaction)?;
            transaction.commit().map_err(|e| store.engine(e))?;
            Ok(made)
        })
    }

    /// The value of a key in [`HUB`], if there is one.
    fn value(
        &self,
        table: &impl ReadableTable<&'static str, &'static [u8]>,
        key: &'static str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        let found = table.get(key).map_err(|e| self.engine(e))?;
        let opened = found.map(|stored| self.decode(&hub_name(key), stored.value()));
        opened.transpose()
    }

    /// Replaces the value of a key in [`HUB`].
    fn insert_value(
        &self,
        table: &mut Table<'_, &'static str, &'static [u8]>,
        key: &'static str,
        what: &str,
        value: &impl Serialize,
    ) -> Result<(), StoreError> {
        let json = secret_json::to_vec(value).map_err(|e| self.record(what, e.to_string()))?;
        let stored = self.encode(&hub_name(key), &json)?;
        let kept = table.insert(key, stored.as_slice());
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

/// Opens the file of a store, and makes it if `create`.
fn open_database(path: &Path, create: bool) -> Result<Database, StoreError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(create).mode(0o600);
    let file = options.open(path).map_err(|e| io(path, e))?;
    let mode = file
        .metadata()
        .map_err(|e| io(path, e))?
        .permissions()
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        return Err(StoreError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let database =
        FileBackend::new(file).and_then(|file| redb::Builder::new().create_with_backend(file));
    database.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path.to_owned()),
        error => engine(path, error),
    })
}

fn io(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::Io {
        path: path.to_owned(),
        source,
    }
}

fn engine(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    StoreError::Engine {
        path: path.to_owned(),
        why: error.into().to_string(),
    }
}

impl Store for Embedded {
    fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    fn load_or_create(&mut self, new: StoredIdentity) -> Result<StoredIdentity, StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            if let Some(bytes) = store.value(&table, IDENTITY)? {
                return store.parse(IDENTITY_TEXT, &bytes);
            }
            store.insert_value(&mut table, IDENTITY, IDENTITY_TEXT, &new)?;
            Ok(new)
        })
    }

    fn put_identity(&mut self, identity: &StoredIdentity) -> Result<(), StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            store.insert_value(&mut table, IDENTITY, IDENTITY_TEXT, identity)
        })
    }

    fn epochs(&mut self) -> Result<Vec<EpochKey>, StoreError> {
        self.with_database(|store, database| {
            let transaction = database.begin_read().map_err(|e| store.engine(e))?;
            let table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            let Some(bytes) = store.value(&table, EPOCHS)? else {
                return Ok(Vec::new());
            };
            let keys: Vec<StoredKey> = store.parse(EPOCHS_TEXT, &bytes)?;
            Ok(keys.into_iter().map(|key| EpochKey::new(key.0)).collect())
        })
    }

    fn put_epochs(&mut self, epochs: &EpochKeys) -> Result<(), StoreError> {
        let keys = epochs.iter().map(|key| StoredKey(key.bytes().clone()));
        let keys: Vec<StoredKey> = keys.collect();
        self.change(|store, transaction| {
            let mut table = transaction.open_table(HUB).map_err(|e| store.engine(e))?;
            store.insert_value(&mut table, EPOCHS, EPOCHS_TEXT, &keys)
        })
    }

    fn load(&mut self) -> Result<Vec<Client>, StoreError> {
        self.with_database(|store, database| {
            let transaction = database.begin_read().map_err(|e| store.engine(e))?;
            let table = transaction
                .open_table(CLIENTS)
                .map_err(|e| store.engine(e))?;
            let rows = table.iter().map_err(|e| store.engine(e))?;
            let read =
                |row: Result<(redb::AccessGuard<'_, u64>, redb::AccessGuard<'_, &[u8]>), _>| {
                    let (id, record) = row.map_err(|e: redb::StorageError| store.engine(e))?;
                    let record = store.decode(&client_name(id.value()), record.value())?;
                    store.parse(&format!("client {}", id.value()), &record)
                };
            rows.map(read).collect()
        })
    }

    fn put(&mut self, clients: &[&Client], removed: &[u64]) -> Result<(), StoreError> {
        self.change(|store, transaction| {
            let mut table = transaction
                .open_table(CLIENTS)
                .map_err(|e| store.engine(e))?;
            for client in clients {
                let json = secret_json::to_vec(client)
                    .map_err(|e| store.record("a client", e.to_string()))?;
                let stored = store.encode(&client_name(client.id), &json)?;
                table
                    .insert(client.id, stored.as_slice())
                    .map_err(|e| store.engine(e))?;
            }
            for id in removed {
                let record = table.remove(id);
                record.map(drop).map_err(|e| store.engine(e))?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::client::State;
    use braid_bond::token::Secret;
    use braid_host::quota::Used;
    use braid_host::seal::CREDENTIAL;

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
        let mut store = Embedded::open(&path, None).unwrap();
        assert_eq!(store.load_or_create(founding(1)).unwrap(), founding(1));
        let (one, two) = (client(1), client(2));
        store.put(&[&one, &two], &[]).unwrap();
        assert!(matches!(
            Embedded::open(&path, None),
            Err(StoreError::InUse(_))
        ));
        drop(store);
        let mut store = Embedded::open(&path, None).unwrap();
        assert_eq!(
            store.load_or_create(founding(2)).unwrap(),
            founding(1),
            "made once"
        );
        let shown = |clients: &[Client]| serde_json::to_string(clients).unwrap();
        assert_eq!(shown(&store.load().unwrap()), shown(&[one, two]));
        // One takes the place of another.
        store.put(&[&client(3)], &[1, 7]).unwrap();
        drop(store);
        let mut store = Embedded::open(&path, None).unwrap();
        let left = [client(2), client(3)];
        assert_eq!(shown(&store.load().unwrap()), shown(&left));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "there are keys in it");
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        drop(Embedded::open(&path, None).unwrap());
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(&path, mode.clone()).unwrap();
        let refused = Embedded::open(&path, None).unwrap_err();
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
        let mut store = Embedded::open(&path, None).unwrap();
        store.load_or_create(founding(1)).unwrap();
        let rotated = founding(1).rotated([2; 32], 10, 20);
        store.put_identity(&rotated).unwrap();
        drop(store);
        let mut store = Embedded::open(&path, None).unwrap();
        assert_eq!(store.load_or_create(founding(3)).unwrap(), rotated);
        store.put_identity(&rotated.retired()).unwrap();
        assert_eq!(
            store.load_or_create(founding(3)).unwrap(),
            rotated.retired()
        );
    }

    /// The file of a store on a disk that is full when `full` is set, and was not before.
    #[derive(Debug)]
    struct Disk {
        file: fs::File,
        full: Arc<AtomicBool>,
        refused: Arc<AtomicUsize>,
    }

    impl redb::StorageBackend for Disk {
        fn len(&self) -> std::io::Result<u64> {
            Ok(self.file.metadata()?.len())
        }

        fn read(&self, offset: u64, read: &mut [u8]) -> std::io::Result<()> {
            self.file.read_exact_at(read, offset)
        }

        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.file.set_len(len)
        }

        fn sync_data(&self) -> std::io::Result<()> {
            self.file.sync_data()
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
            if self.full.swap(false, Ordering::Relaxed) {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.file.write_all_at(bytes, offset)
        }
    }

    /// The engine takes nothing more after one failed write, so every later change was refused until the hub's restart.
    #[test]
    fn a_write_that_fails_once_does_not_end_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let mut store = Embedded::open(&path, None).unwrap();
        store.load_or_create(founding(1)).unwrap();
        store.put(&[&client(1)], &[]).unwrap();
        drop(store.database.take());
        let (full, refused) = (Arc::default(), Arc::default());
        let disk = Disk {
            file: fs::File::options()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap(),
            full: Arc::clone(&full),
            refused: Arc::clone(&refused),
        };
        store.database = Some(redb::Builder::new().create_with_backend(disk).unwrap());
        store.put(&[&client(2)], &[]).unwrap();
        full.store(true, Ordering::Relaxed);
        let failed = store.put(&[&client(3)], &[]).unwrap_err();
        assert!(matches!(failed, StoreError::Engine { .. }), "{failed}");
        assert_eq!(refused.load(Ordering::Relaxed), 1);
        // There is room again.
        store.put(&[&client(4)], &[]).unwrap();
        let ids = |clients: Vec<Client>| clients.iter().map(|c| c.id).collect::<Vec<_>>();
        assert_eq!(ids(store.load().unwrap()), [1, 2, 4]);
        drop(store);
        let mut store = Embedded::open(&path, None).unwrap();
        assert_eq!(ids(store.load().unwrap()), [1, 2, 4]);
        assert_eq!(store.load_or_create(founding(3)).unwrap(), founding(1));
    }

    #[test]
    fn a_store_whose_file_has_gone_is_not_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let mut store = Embedded::open(&path, None).unwrap();
        drop(store.database.take());
        fs::remove_file(&path).unwrap();
        let failed = store.put(&[&client(1)], &[]).unwrap_err();
        assert!(matches!(failed, StoreError::Io { .. }), "{failed}");
        assert!(!path.exists());
    }

    fn seal(byte: u8) -> Option<SealKey> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CREDENTIAL), [byte; 32]).unwrap();
        SealKey::from_directory(folder.path()).unwrap()
    }

    /// Returns true if the file shows these bytes anywhere.
    fn shows(path: &Path, part: &str) -> bool {
        let file = fs::read(path).unwrap();
        file.windows(part.len())
            .any(|window| window == part.as_bytes())
    }

    #[test]
    fn a_sealed_store_shows_a_thief_nothing_and_opens_by_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let private = serde_json::to_string(&[7u8; 32]).unwrap();
        let mut store = Embedded::open(&path, seal(1)).unwrap();
        store.load_or_create(founding(7)).unwrap();
        store.put_epochs(&epochs()).unwrap();
        store.put(&[&client(1)], &[]).unwrap();
        let rotated = founding(7).rotated([8; 32], 10, 20);
        store.put_identity(&rotated).unwrap();
        drop(store);
        let epoch = serde_json::to_string(&[9u8; 32]).unwrap();
        for part in [&private, &epoch, "private", "client-1", "psk", "10.0.0.2"] {
            assert!(!shows(&path, part), "{part}");
        }
        for (key, told) in [
            (None, "sealed, and there is no credential braid.seal"),
            (seal(2), "by another credential braid.seal"),
        ] {
            let opened = Embedded::open(&path, key);
            let refused = opened.and_then(|mut store| store.load_or_create(founding(3)));
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(told), "{text}");
        }
        let mut store = Embedded::open(&path, seal(1)).unwrap();
        assert_eq!(store.load_or_create(founding(3)).unwrap(), rotated);
        assert_eq!(store.epochs().unwrap(), all(&epochs()));
        assert_eq!(store.load().unwrap().len(), 1);
    }

    #[test]
    fn a_store_that_was_not_sealed_is_sealed_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let mut store = Embedded::open(&path, None).unwrap();
        store.load_or_create(founding(1)).unwrap();
        store.put_epochs(&epochs()).unwrap();
        store.put(&[&client(1), &client(2)], &[]).unwrap();
        drop(store);
        let mut store = Embedded::open(&path, seal(1)).unwrap();
        assert_eq!(store.load_or_create(founding(3)).unwrap(), founding(1));
        assert_eq!(store.epochs().unwrap(), all(&epochs()));
        assert_eq!(store.load().unwrap().len(), 2);
        drop(store);
        let unsealed = Embedded::open(&path, None);
        assert!(matches!(unsealed, Err(StoreError::Seal { .. })));
    }

    fn epochs() -> EpochKeys {
        EpochKeys::new(EpochKey::new([9; 32]), [EpochKey::new([8; 32])])
    }

    fn all(epochs: &EpochKeys) -> Vec<EpochKey> {
        epochs.iter().cloned().collect()
    }

    #[test]
    fn a_later_run_has_the_keys_of_epochs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let mut store = Embedded::open(&path, None).unwrap();
        assert_eq!(store.epochs().unwrap(), []);
        store.put_epochs(&epochs()).unwrap();
        drop(store);
        let mut store = Embedded::open(&path, None).unwrap();
        let stored = store.epochs().unwrap();
        assert_eq!(stored, all(&epochs()));
        let next = EpochKeys::new(EpochKey::new([10; 32]), stored);
        store.put_epochs(&next).unwrap();
        assert_eq!(store.epochs().unwrap(), all(&next));
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
        let error = Embedded::open(&path, None).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_later_form_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.redb");
        let mut store = Embedded::open(&path, None).unwrap();
        store
            .change(|_, transaction| {
                let mut table = transaction.open_table(HUB).unwrap();
                table.insert(SCHEMA_VERSION, b"3".as_slice()).unwrap();
                Ok(())
            })
            .unwrap();
        drop(store);
        let refused = Embedded::open(&path, None);
        assert!(matches!(refused, Err(StoreError::Later { form: 3, .. })));
    }
}
