//! What changed, when and why: for `braid events`, and for whoever asks the day after.
//!
//! What bounds it: [`MAX_EVENTS`] events in memory, the oldest giving way, each with at most
//! `MAX_TEXT_CHARS` characters of text and of evidence; on disk two files of at most [`MAX_FILE_BYTES`]
//! bytes. A disk that is full costs the file and nothing else: events go on in memory, and writing
//! begins again with the first event that finds room.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Events kept in memory: weeks of an ordinary household, an hour of a line that flaps every few
/// seconds.
pub const MAX_EVENTS: usize = 1024;
/// Bytes that `events.jsonl` may have before it is put aside as `events.jsonl.old`.
pub const MAX_FILE_BYTES: u64 = 256 << 10;
/// Characters of an event's text and of its evidence; what is longer is cut.
const MAX_TEXT_CHARS: usize = 500;

/// What kind of change an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A daemon is at work: on a clean machine, or taking over from another.
    Started,
    /// The daemon ends; traffic goes on.
    Ended,
    /// An uplink is to be used from now on.
    UplinkTaken,
    /// An uplink's device is usable again.
    UplinkBack,
    /// An uplink's device cannot be used any more.
    UplinkGone,
    /// An uplink's device has another name.
    UplinkRenamed,
    /// An uplink has another address, gateway, MTU or device index.
    UplinkChanged,
    /// There is an uplink and no number left for it.
    NoRoom,
    /// The judgement over an uplink changed: up, degraded, portal or dead.
    Verdict,
    /// Flows of an uplink that died were told or moved.
    Evacuated,
    /// Flows went back to an uplink that returned.
    Failback,
    /// A QUIC server turned out not to survive a move.
    ServerNoMigration,
    /// An inside host holds more than its share of a table that fills up.
    ClientLimited,
    /// An inside host may open flows again.
    ClientFree,
    /// The configuration was read again and is at work.
    Reloaded,
    /// The configuration was read again and refused.
    ReloadRefused,
    /// A program runs on one uplink (`braid run`).
    RunBegan,
    /// Such a program has ended.
    RunEnded,
    /// This machine has joined a hub, or left it.
    BondJoined,
    /// The bond takes flows, or takes none any more.
    Bond,
    /// An uplink's part in the bond.
    BondLink,
    /// Something of the machine or the files of Braid was not as it should be.
    Problem,
}

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number: each is one more than the one before, also over restarts of the daemon as long
    /// as the run directory is there.
    pub number: u64,
    /// When, in milliseconds since 1970 by the machine's clock, which may jump; the numbers tell
    /// the order.
    pub unix_ms: u64,
    /// What kind of change.
    pub kind: EventKind,
    /// Name of the uplink concerned, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
    /// What changed, as a sentence without its subject: `dead: new flows take the other uplinks`.
    pub text: String,
    /// What it was concluded from, where that is not plain: `3 of 3 targets silent for 214 ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

/// The events of an instance.
#[derive(Debug)]
pub struct Events {
    ring: VecDeque<Event>,
    latest: watch::Sender<u64>,
    file: Journal,
}

impl Events {
    /// Goes on from what an earlier daemon wrote to `path` and to the file that it put aside; lines
    /// that are no events (cut short by a crash or a full disk) are passed over.
    #[must_use]
    pub fn open(path: PathBuf) -> Events {
        let mut file = Journal::new(path);
        let mut ring: VecDeque<Event> = VecDeque::new();
        for event in file.read() {
            // A foreign line must not take the numbers away from those that follow.
            let next = ring.back().is_none_or(|last| last.number < event.number);
            if next && event.number < u64::MAX / 2 {
                if ring.len() == MAX_EVENTS {
                    ring.pop_front();
                }
                ring.push_back(event);
            }
        }
        let latest = ring.back().map_or(0, |event| event.number);
        Events {
            ring,
            latest: watch::Sender::new(latest),
            file,
        }
    }

    /// Adds an event of now.
    pub fn note(
        &mut self,
        kind: EventKind,
        uplink: Option<&str>,
        text: impl Into<String>,
        evidence: Option<String>,
    ) {
        let event = Event {
            number: *self.latest.borrow() + 1,
            unix_ms: unix_ms(SystemTime::now()),
            kind,
            uplink: uplink.map(str::to_owned),
            text: cut(text.into()),
            evidence: evidence.map(cut),
        };
        self.file.append(&event);
        if self.ring.len() == MAX_EVENTS {
            self.ring.pop_front();
        }
        let number = event.number;
        self.ring.push_back(event);
        self.latest.send_replace(number);
    }

    /// Events with a number above `after`, oldest first. 0 asks for all that are remembered.
    #[must_use]
    pub fn after(&self, after: u64) -> Vec<Event> {
        let known = self.ring.partition_point(|event| event.number <= after);
        self.ring.range(known..).cloned().collect()
    }

    /// Tells the number of the latest event, and when it changes: so somebody who has them all can
    /// wait for the next without asking over and over.
    #[must_use]
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Why the file could not be written when it was last tried.
    #[must_use]
    pub fn file_error(&self) -> Option<&str> {
        self.file.trouble.as_deref()
    }
}

/// The two files.
#[derive(Debug)]
struct Journal {
    path: PathBuf,
    /// The file ends in the middle of a line.
    cut_short: bool,
    trouble: Option<String>,
}

impl Journal {
    fn new(path: PathBuf) -> Journal {
        Journal {
            path,
            cut_short: false,
            trouble: None,
        }
    }

    fn old(&self) -> PathBuf {
        self.path.with_extension("jsonl.old")
    }

    /// Older events first. What cannot be read is as if it were not there: events are for people,
    /// nothing depends on them.
    fn read(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for path in [self.old(), self.path.clone()] {
            let mut bytes = Vec::new();
            // Whatever somebody put there in its place is not read to its end.
            let _ = File::open(path)
                .and_then(|file| file.take(2 * MAX_FILE_BYTES).read_to_end(&mut bytes));
            self.cut_short = bytes.last().is_some_and(|byte| *byte != b'\n');
            let lines = bytes.split(|byte| *byte == b'\n');
            events.extend(lines.filter_map(|line| serde_json::from_slice::<Event>(line).ok()));
        }
        events
    }

    fn append(&mut self, event: &Event) {
        let outcome = self.try_append(event);
        let trouble = outcome.err().map(|error| error.to_string());
        if let (Some(error), None) = (&trouble, &self.trouble) {
            tracing::warn!(path = %self.path.display(), error, "cannot write events");
        }
        self.trouble = trouble;
    }

    fn try_append(&mut self, event: &Event) -> io::Result<()> {
        // Opened for each event, which is rare: whoever removes the file gets a fresh one.
        let mut file = self.open()?;
        if file.metadata()?.len() >= MAX_FILE_BYTES {
            fs::rename(&self.path, self.old())?;
            file = self.open()?;
        }
        let mut line = match self.cut_short {
            true => vec![b'\n'],
            false => Vec::new(),
        };
        serde_json::to_writer(&mut line, event)?;
        line.push(b'\n');
        let outcome = file.write_all(&line);
        self.cut_short = outcome.is_err();
        outcome
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // It tells when somebody was where: for root, and by the API for whom that lets in.
        options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)
    }
}

/// One line of bounded length: commands and addresses are other people's words.
fn cut(text: String) -> String {
    let text = text.replace(char::is_control, " ");
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// A clock set before 1970 tells 1970.
fn unix_ms(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn note(events: &mut Events, text: &str) {
        events.note(EventKind::Verdict, Some("dsl"), text, None);
    }

    fn open(folder: &Path) -> Events {
        Events::open(folder.join("events.jsonl"))
    }

    #[test]
    fn events_are_numbered_on_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = open(folder.path());
        note(&mut events, "dead");
        note(&mut events, "up");
        assert_eq!(events.after(0).len(), 2);
        assert_eq!(events.after(1)[0].text, "up");
        assert_eq!(*events.latest().borrow(), 2);

        // The crash of a daemon in the middle of a line, and somebody else's words.
        let mut file = OpenOptions::new()
            .append(true)
            .open(folder.path().join("events.jsonl"))
            .unwrap();
        file.write_all(b"hello\n{\"number\": 3, \"unix\xff\n\0\0")
            .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "not for everybody");
        let mut next = open(folder.path());
        assert_eq!(next.after(0), events.after(0));
        note(&mut next, "dead again");
        assert_eq!(next.after(2)[0].number, 3);
    }

    #[test]
    fn memory_and_files_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = open(folder.path());
        let long = "x".repeat(10 * MAX_TEXT_CHARS);
        for _ in 0..3 * MAX_EVENTS {
            note(&mut events, &long);
        }
        assert_eq!(events.after(0).len(), MAX_EVENTS);
        assert_eq!(events.after(0)[0].number, 2 * MAX_EVENTS as u64 + 1);
        let size = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(size("events.jsonl") <= MAX_FILE_BYTES + 1024);
        assert!(size("events.jsonl.old") <= MAX_FILE_BYTES + 1024);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let latest = open(folder.path());
        assert_eq!(
            latest.after(3 * MAX_EVENTS as u64 - 1),
            events.after(3 * MAX_EVENTS as u64 - 1)
        );
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_the_file_alone() {
        // Writing to /dev/full fails as on a full disk; the ring does not notice.
        let mut events = Events::open("/dev/full".into());
        note(&mut events, "dead");
        assert_eq!(events.after(0).len(), 1);
        assert!(events.file_error().unwrap().contains("No space left"));
    }

    #[test]
    fn other_peoples_words_stay_on_their_line() {
        let mut events = Events::open("/dev/full".into());
        note(&mut events, "sh -c 'a\nb\u{1b}[31m' runs on it alone");
        assert_eq!(events.after(0)[0].text, "sh -c 'a b [31m' runs on it alone");
    }

    #[tokio::test]
    async fn whoever_has_them_all_may_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = open(folder.path());
        let mut latest = events.latest();
        latest.borrow_and_update();
        note(&mut events, "dead");
        latest.changed().await.unwrap();
        assert_eq!(*latest.borrow(), 1);
    }
}
