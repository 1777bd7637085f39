//! The event log: what changed, when and why, for `braid events`.
//!
//! Limits: [`MAX_EVENTS`] events in memory, of which the oldest are dropped, each with at most
//! `MAX_TEXT_CHARS` characters of text and of evidence; on disk two files of at most [`MAX_FILE_BYTES`]
//! bytes. If the disk is full, events are kept in memory only, and writing resumes with the first
//! event that fits.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Maximum number of events in memory: weeks of an ordinary household, an hour of a line that flaps
/// every few seconds.
pub const MAX_EVENTS: usize = 1024;
/// Size at which `events.jsonl` is rotated to `events.jsonl.old`.
pub const MAX_FILE_BYTES: u64 = 256 << 10;
/// Length to which an event's text and its evidence are cut.
const MAX_TEXT_CHARS: usize = 500;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A daemon has started, on a clean machine or taking over from another.
    Started,
    /// The daemon has stopped; traffic continues.
    Ended,
    /// An uplink was added.
    UplinkTaken,
    /// The device of an uplink is usable again.
    UplinkBack,
    /// The device of an uplink is no longer usable.
    UplinkGone,
    /// The device of an uplink was renamed.
    UplinkRenamed,
    /// An uplink has another address, gateway, MTU or device index.
    UplinkChanged,
    /// An uplink was found but no id is left for it.
    NoRoom,
    /// The verdict on an uplink changed: up, degraded, portal or dead.
    Verdict,
    /// Flows of a dead uplink were reset or moved.
    Evacuated,
    /// Flows went back to an uplink that returned.
    Failback,
    /// A QUIC server does not support connection migration.
    ServerNoMigration,
    /// An inside host has more than its share of a nearly full flow table.
    ClientLimited,
    /// An inside host may open flows again.
    ClientFree,
    /// The configuration was reloaded.
    Reloaded,
    /// A reload was refused.
    ReloadRefused,
    /// A program runs on one uplink (`braid run`).
    RunBegan,
    /// A program of `braid run` has ended.
    RunEnded,
    /// This machine has joined a hub, or left it.
    BondJoined,
    /// The bond started or stopped taking flows.
    Bond,
    /// The state of a link of the bond changed.
    BondLink,
    /// An uplink was set aside for maintenance.
    UplinkPaused,
    /// An uplink that was set aside is used again.
    UplinkResumed,
    /// A rule was switched off.
    RulePaused,
    /// A rule that was switched off is in force again.
    RuleResumed,
    /// An alarm was raised or cleared.
    Alarm,
    /// Braid had a problem with the machine or its files.
    Problem,
}

impl EventKind {
    fn changes_uplink_state(self) -> bool {
        matches!(
            self,
            EventKind::UplinkTaken
                | EventKind::UplinkBack
                | EventKind::UplinkGone
                | EventKind::Verdict
                | EventKind::UplinkPaused
                | EventKind::UplinkResumed
        )
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Sequence number: one more than that of the previous event, also across restarts of the daemon as
    /// long as the run directory exists.
    pub number: u64,
    /// Time in milliseconds since 1970 by the machine's clock, which may jump; the numbers give the
    /// order.
    pub unix_ms: u64,
    /// Kind.
    pub kind: EventKind,
    /// Name of the uplink, if the event concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
    /// Text, as a sentence without its subject: `dead: new flows take the other uplinks`.
    pub text: String,
    /// Evidence, if it is not obvious: `3 of 3 targets silent for 214 ms`.
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
    /// Continues the log that an earlier daemon wrote to `path` and to its rotated file. Lines that are no
    /// events (cut short by a crash or a full disk) are skipped.
    #[must_use]
    pub fn open(path: PathBuf) -> Events {
        let mut file = Journal::new(path);
        let mut ring: VecDeque<Event> = VecDeque::new();
        for event in file.read() {
            // A foreign line must not use up the sequence numbers.
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

    /// Adds an event with the current time.
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

    /// Returns the events with a number above `after`, oldest first; 0 for all in memory.
    #[must_use]
    pub fn after(&self, after: u64) -> Vec<Event> {
        let known = self.ring.partition_point(|event| event.number <= after);
        self.ring.range(known..).cloned().collect()
    }

    /// Returns the time of the last change of an uplink's state that is still in memory, in milliseconds since 1970.
    #[must_use]
    pub fn last_change(&self, uplink: &str) -> Option<u64> {
        let changes = |event: &&Event| {
            event.uplink.as_deref() == Some(uplink) && event.kind.changes_uplink_state()
        };
        self.ring
            .iter()
            .rev()
            .find(changes)
            .map(|event| event.unix_ms)
    }

    /// Returns a watch on the number of the latest event, so that a client can wait for the next one
    /// without polling.
    #[must_use]
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Returns the error of the last write, if it failed.
    #[must_use]
    pub fn file_error(&self) -> Option<&str> {
        self.file.trouble.as_deref()
    }
}

/// The event file and its rotated predecessor.
#[derive(Debug)]
struct Journal {
    path: PathBuf,
    /// True if the file ends in the middle of a line.
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

    /// Reads older events first. Unreadable lines are ignored: events are for people, and nothing depends
    /// on them.
    fn read(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for path in [self.old(), self.path.clone()] {
            let mut bytes = Vec::new();
            // A foreign file in its place is not read to its end.
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
        // Opened for each event, which is rare, so that a removed file is created again.
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
        // It reveals users' movements: readable by root only, and through the API.
        options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)
    }
}

/// Cuts a text to one line of bounded length, because it may contain foreign input.
fn cut(text: String) -> String {
    let text = text.replace(char::is_control, " ");
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// Returns the time in milliseconds; 0 for a clock before 1970.
pub(crate) fn unix_ms(now: SystemTime) -> u64 {
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
        events.note(EventKind::Failback, Some("dsl"), "flows are back", None);
        assert_eq!(events.last_change("dsl"), Some(events.after(1)[0].unix_ms));
        assert_eq!(events.last_change("lte"), None);

        // A line cut short by a crash, and foreign text.
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
