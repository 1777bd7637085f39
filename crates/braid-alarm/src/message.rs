//! Messages to people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::state::{AlarmChange, AlarmState};

/// A message: all changes of a moment that one destination is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Name of the machine.
    pub host: String,
    /// Time in milliseconds since 1970 by the machine's clock.
    pub unix_ms: u64,
    /// True if somebody tries the destination and nothing has happened.
    pub test: bool,
    /// The changes.
    pub changes: Vec<MessageLine>,
    /// The same as text for people, a line for each change.
    pub text: String,
}

/// One change of an alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessageLine {
    /// Name of the alarm.
    pub alarm: String,
    /// Name of what it is about: an uplink, the bond, a health problem.
    pub subject: String,
    /// The new state.
    pub state: AlarmState,
    /// Evidence.
    pub text: String,
}

impl Message {
    /// Returns the message about some changes.
    #[must_use]
    pub fn new(host: &str, unix_ms: u64, changes: &[AlarmChange]) -> Message {
        let lines = changes.iter().map(|change| MessageLine {
            alarm: change.alarm.clone(),
            subject: change.subject.clone(),
            state: change.state,
            text: change.text.clone(),
        });
        let changes: Vec<MessageLine> = lines.collect();
        let text: Vec<String> = changes.iter().map(MessageLine::sentence).collect();
        Message {
            host: host.to_owned(),
            unix_ms,
            test: false,
            text: text.join("\n"),
            changes,
        }
    }

    /// Returns the message by which a destination is tried.
    #[must_use]
    pub fn test(host: &str, unix_ms: u64) -> Message {
        Message {
            host: host.to_owned(),
            unix_ms,
            test: true,
            changes: Vec::new(),
            text: format!("Test of an alarm on {host}: nothing has happened."),
        }
    }

    /// Returns a heading of one line.
    #[must_use]
    pub fn subject(&self) -> String {
        let first = match self.changes.as_slice() {
            [] => "test of an alarm".to_owned(),
            [only] => only.sentence(),
            [first, rest @ ..] => format!("{} (and {} more)", first.sentence(), rest.len()),
        };
        let line: String = first
            .chars()
            .filter(|c| !c.is_control())
            .take(150)
            .collect();
        format!("[braid] {}: {line}", self.host)
    }
}

impl MessageLine {
    fn sentence(&self) -> String {
        let state = match self.state {
            AlarmState::Raised => "ALARM",
            AlarmState::Cleared => "over",
            AlarmState::Unstable => "UNSTABLE",
        };
        let MessageLine {
            alarm,
            subject,
            text,
            ..
        } = self;
        match subject == alarm {
            true => format!("{state}: {alarm}: {text}"),
            false => format!("{state}: {alarm}, {subject}: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(subject: &str, state: AlarmState) -> AlarmChange {
        AlarmChange {
            alarm: "line".into(),
            subject: subject.into(),
            state,
            text: "3 of 3 targets silent".into(),
        }
    }

    #[test]
    fn a_line_for_each_change_and_one_subject() {
        let changes = [
            change("lte", AlarmState::Raised),
            change("dsl", AlarmState::Cleared),
        ];
        let message = Message::new("gate", 1, &changes);
        assert_eq!(
            message.text,
            "ALARM: line, lte: 3 of 3 targets silent\nover: line, dsl: 3 of 3 targets silent"
        );
        assert_eq!(
            message.subject(),
            "[braid] gate: ALARM: line, lte: 3 of 3 targets silent (and 1 more)"
        );
    }

    #[test]
    fn a_subject_has_one_line() {
        let message = Message::new(
            "gate",
            1,
            &[change("a\r\nBcc: x@example.org", AlarmState::Raised)],
        );
        assert!(!message.subject().contains(['\r', '\n']));
    }
}
