//! History of the uplinks: a day of rates, capacities, round trips, loss and states, which outlives the daemon.
//!
//! Rules, and why:
//! - One file for each uplink, of fixed length, in which a record's place follows from its time ([`ring`]): it never
//!   grows, is never rewritten, and needs no recovery. An embedded database would write several pages and wait for the
//!   disk at each commit; a router's flash wears out by that, and its binary grows.
//! - What a minute has gathered is written at its end, without waiting for the disk: a daemon that is killed loses a
//!   minute at most. A power cut may cost what the kernel had not written; each record has a checksum.
//! - Files are written by a thread of their own: the daemon's loop waits for no disk.
//! - A file that cannot be read is set aside under another name and reported; a disk that refuses is reported. Neither
//!   stops anything: the history is then in memory alone.
//! - Files of uplinks without records of the last day are removed.

mod record;
mod ring;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use braid_core::capacity::CapacityEstimate;
use braid_host::report::HealthProblem;
use braid_host::user_error::UserError;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use self::record::{HistoryRecord, RecordedCapacity};
use self::ring::Ring;
use self::writer::Writer;
use crate::engine::Engine;
use crate::events::unix_ms;
use crate::report::{HistoryCapacity, HistoryPoint, HistoryQuestion, HistoryReport};
use crate::status::{basis_name, quality_basis_name};
use crate::uplinks::registry::UplinkRecord;

/// Default and longest time that is asked for, in seconds.
const DAY: u32 = 24 * 3600;
/// Time between two records.
const STEP: Duration = Duration::from_secs(1);
/// Ending of the files.
const ENDING: &str = ".history";
/// Ending of a file that was set aside.
const ASIDE: &str = ".broken";
/// Most uplinks with a history, those that are gone included.
const MAX_UPLINKS: usize = 32;

/// History of all uplinks, by name.
#[derive(Debug)]
pub(crate) struct History {
    rings: BTreeMap<String, Ring>,
    writer: Writer,
    /// Uplinks whose file was set aside, with the reason and its new place.
    set_aside: Vec<(String, String, PathBuf)>,
}

impl History {
    /// Reads what an earlier daemon has left in this directory.
    pub fn open(folder: PathBuf) -> History {
        let mut history = History {
            rings: BTreeMap::new(),
            set_aside: Vec::new(),
            writer: Writer::start(folder.clone()),
        };
        let files = match fs::read_dir(&folder) {
            Ok(files) => files,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, "cannot read the history");
                }
                return history;
            }
        };
        let now = unix_s(SystemTime::now());
        for path in files.flatten().map(|entry| entry.path()) {
            history.load(&path, now);
        }
        history
    }

    fn load(&mut self, path: &Path, now: u32) {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.strip_suffix(ENDING)) else {
            return;
        };
        let read = fs::read(path).map_err(|error| error.to_string());
        let name = decoded(name);
        match read.and_then(Ring::parse) {
            Ok(ring) if ring.latest(now).is_some() => {
                self.rings.insert(name, ring);
            }
            Ok(_) => {
                if let Err(error) = fs::remove_file(path) {
                    tracing::debug!(%error, "cannot remove an old history");
                }
            }
            Err(why) => {
                let mut aside = path.as_os_str().to_owned();
                aside.push(ASIDE);
                let aside = PathBuf::from(aside);
                tracing::warn!(
                    uplink = name,
                    why,
                    "the history is unreadable and set aside"
                );
                if let Err(error) = fs::rename(path, &aside) {
                    tracing::warn!(%error, "cannot set it aside");
                }
                self.set_aside.push((name, why, aside));
            }
        }
    }

    /// Takes the record of a second, and writes what has gathered at the end of a minute.
    fn note(&mut self, uplink: &str, record: &HistoryRecord) {
        if !self.rings.contains_key(uplink) {
            self.begin(uplink, record.unix_s);
        }
        let Some(ring) = self.rings.get_mut(uplink) else {
            return;
        };
        if ring.note(record) {
            self.writer.write(&file_name(uplink), ring);
        }
    }

    fn begin(&mut self, uplink: &str, now: u32) {
        if self.rings.len() >= MAX_UPLINKS {
            let oldest = self
                .rings
                .iter()
                .map(|(name, ring)| (ring.latest(now).map(|record| record.unix_s), name.clone()));
            if let Some((_, oldest)) = oldest.min() {
                self.rings.remove(&oldest);
                self.writer.remove(&file_name(&oldest));
            }
        }
        self.rings.insert(uplink.to_owned(), Ring::new());
    }

    /// Writes all that is not written yet, and waits for it for a moment.
    pub fn finish(&mut self) {
        for (uplink, ring) in &mut self.rings {
            ring.finish();
            self.writer.write(&file_name(uplink), ring);
        }
        self.writer.finish();
    }

    /// Returns a problem if the disk refuses, and one for each file that was set aside and is still there.
    pub fn problems(&self) -> Vec<HealthProblem> {
        let aside = self.set_aside.iter().filter(|(_, _, place)| place.exists());
        let aside = aside.map(|(uplink, why, place)| HealthProblem {
            code: "history-set-aside".into(),
            text: format!(
                "the history of {uplink} was unreadable ({why}), and a new one has begun"
            ),
            fix: format!("rm {}, unless somebody wants to see it", place.display()),
        });
        let refused = self.writer.error().map(|why| HealthProblem {
            code: "history-not-saved".into(),
            text: format!("the uplinks' history is only kept in memory: {why}"),
            fix: "free some room in the state directory's file system".into(),
        });
        aside.chain(refused).collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.rings.keys().map(String::as_str)
    }
}

impl Engine {
    /// Records the last second of all uplinks.
    pub(crate) fn note_history(&mut self) {
        let now = unix_s(SystemTime::now());
        let records: Vec<(String, HistoryRecord)> = self
            .registry
            .records()
            .iter()
            .map(|record| (record.uplink.name.clone(), self.history_record(record, now)))
            .collect();
        for (name, record) in records {
            self.history.note(&name, &record);
        }
    }

    fn history_record(&self, record: &UplinkRecord, unix_s: u32) -> HistoryRecord {
        let load = self.load_of(record.id);
        let look = self
            .health_snapshot(record.id)
            .filter(|_| record.down.is_none());
        let quality = look
            .as_ref()
            .map(|look| self.link_quality(record.id, look))
            .unwrap_or_default();
        let now = Instant::now();
        let known = |found: CapacityEstimate| RecordedCapacity {
            rate: found.rate,
            basis: found.basis,
            measured: found.age <= STEP,
        };
        HistoryRecord {
            unix_s,
            tx: load.map(|load| load.tx).unwrap_or_default(),
            rx: load.map(|load| load.rx).unwrap_or_default(),
            tx_capacity: self.capacities().tx_last_second(now, record.id).map(known),
            rx_capacity: self.capacities().rx_last_second(now, record.id).map(known),
            rtt: quality.rtt.map(|known| (known.value, known.basis)),
            jitter: quality.jitter.map(|known| known.value),
            loss: quality
                .loss
                .map(|known| (known.value.fraction(), known.basis)),
            state: self.uplink_state(record).0,
            stalled: self.capacities().is_stalled(record.id),
        }
    }

    /// Returns the history of an uplink, also of one that is gone.
    ///
    /// # Errors
    /// There is no uplink of that name, and no history of one.
    pub fn history(&self, question: &HistoryQuestion) -> Result<HistoryReport, UserError> {
        let ring = self.history.rings.get(&question.uplink);
        let records = self.registry.records().iter();
        let mut known: BTreeSet<&str> = self.history.names().collect();
        known.extend(records.map(|record| record.uplink.name.as_str()));
        if !known.contains(question.uplink.as_str()) {
            return Err(UserError::unknown_uplink(&question.uplink, known));
        }
        let last = question.last_s.unwrap_or(DAY).clamp(1, DAY);
        let step = question.step_s.unwrap_or(1).clamp(1, last);
        let now = unix_s(SystemTime::now());
        let records = ring.map(|ring| ring.records(now, last, step));
        let records = records.unwrap_or_default();
        let point = |record: &HistoryRecord| HistoryPoint {
            unix_ms: u64::from(record.unix_s) * 1000,
            tx_bit_s: record.tx.bits_per_sec(),
            rx_bit_s: record.rx.bits_per_sec(),
            tx_capacity: record.tx_capacity.map(capacity),
            rx_capacity: record.rx_capacity.map(capacity),
            rtt_ms: record.rtt.map(|(rtt, _)| rtt.as_secs_f64() * 1e3),
            rtt_basis: record.rtt.map(|(_, basis)| quality_basis_name(basis)),
            jitter_ms: record.jitter.map(|jitter| jitter.as_secs_f64() * 1e3),
            loss: record.loss.map(|(loss, _)| loss),
            loss_basis: record.loss.map(|(_, basis)| quality_basis_name(basis)),
            state: record.state,
            stalled: record.stalled,
        };
        Ok(HistoryReport {
            uplink: question.uplink.clone(),
            step_s: Ring::step_of(last, step),
            points: records.iter().map(point).collect(),
        })
    }
}

fn capacity(known: RecordedCapacity) -> HistoryCapacity {
    HistoryCapacity {
        rate_bit_s: known.rate.bits_per_sec(),
        basis: basis_name(known.basis),
        measured: known.measured,
    }
}

fn unix_s(now: SystemTime) -> u32 {
    u32::try_from(Duration::from_millis(unix_ms(now)).as_secs()).unwrap_or(u32::MAX)
}

/// Bytes that stand for themselves in a file's name.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// Returns the name of an uplink's file: names of devices may have any byte but a slash.
fn file_name(uplink: &str) -> String {
    utf8_percent_encode(uplink, PLAIN).to_string() + ENDING
}

fn decoded(name: &str) -> String {
    percent_decode_str(name).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::record::tests::record;
    use super::*;

    #[test]
    fn names_of_files_are_safe_and_read_back() {
        for name in ["dsl", "eth0.7", "..", "a b%2fc", "größe", "-x_Y"] {
            let file = file_name(name);
            assert!(!file.starts_with('.') && !file.contains('/'), "{file}");
            assert_eq!(decoded(file.strip_suffix(ENDING).unwrap()), name);
        }
    }

    #[test]
    fn another_daemon_goes_on_and_a_broken_file_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("history");
        let now = unix_s(SystemTime::now());
        let mut history = History::open(place.clone());
        for second in 0..130 {
            history.note("dsl", &record(now - 200 + second, 3));
            history.note("lte", &record(now - 200 + second, 4));
        }
        history.finish();
        assert_eq!(history.problems(), []);
        drop(history);
        let file = place.join("dsl.history");
        assert_eq!(fs::metadata(&file).unwrap().len(), ring::FILE_BYTES as u64);
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );

        fs::write(place.join("lte.history"), "rubbish").unwrap();
        fs::write(place.join("notes.txt"), "of somebody else").unwrap();
        let again = History::open(place.clone());
        assert_eq!(again.rings["dsl"].records(now, 3600, 1).len(), 130);
        assert!(!again.rings.contains_key("lte"));
        let codes: Vec<String> = again
            .problems()
            .into_iter()
            .map(|found| found.code)
            .collect();
        assert_eq!(codes, ["history-set-aside"]);
        assert_eq!(
            fs::read(place.join("lte.history.broken")).unwrap(),
            b"rubbish"
        );
        fs::remove_file(place.join("lte.history.broken")).unwrap();
        assert_eq!(again.problems(), []);
    }

    #[test]
    fn a_disk_that_refuses_is_named_and_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("history");
        fs::write(&place, "a file in the directory's place").unwrap();
        let now = unix_s(SystemTime::now());
        let mut history = History::open(place);
        for second in 0..130 {
            history.note("dsl", &record(now - 200 + second, 3));
        }
        history.finish();
        let problems = history.problems();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].code, "history-not-saved");
        assert_eq!(history.rings["dsl"].records(now, 3600, 1).len(), 130);
    }

    #[test]
    fn old_histories_go() {
        let folder = tempfile::tempdir().unwrap();
        let now = unix_s(SystemTime::now());
        let mut history = History::open(folder.path().to_owned());
        history.note("gone", &record(now - 3 * DAY, 3));
        for number in 0..MAX_UPLINKS {
            history.note(
                &format!("usb{number}"),
                &record(now - 100 + number as u32, 1),
            );
        }
        assert!(
            !history.rings.contains_key("gone"),
            "the oldest of too many"
        );
        history.note("usb0", &record(now - 2 * DAY, 3));
        history.rings.retain(|name, _| name == "usb0");
        history.rings.insert("old".into(), Ring::new());
        history.note("old", &record(now - 2 * DAY, 3));
        history.finish();
        assert!(folder.path().join("old.history").exists());
        let again = History::open(folder.path().to_owned());
        assert_eq!(again.names().collect::<Vec<_>>(), ["usb0"]);
        assert!(!folder.path().join("old.history").exists());
    }
}
