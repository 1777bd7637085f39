//! The evidence of a verdict, in numbers and in words.

use std::fmt;
use std::time::Duration;

use braid_core::Share;
use serde::{Deserialize, Serialize};

/// The rule that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No evidence against it yet.
    New,
    /// Traffic went unanswered, and probes too.
    Silence,
    /// Probes went unanswered; there was no traffic to judge by.
    NoAnswer,
    /// Connections went unanswered, and no target answers that could be probed.
    Traffic,
    /// A captive portal answers in place of the target.
    Portal,
    /// Many probes get no answer.
    Loss,
    /// The round trip is long.
    Delay,
    /// Loss and round trip are back to normal.
    Recovered,
    /// Enough good probes in a row.
    Answers,
    /// It was declared dead, and then answers to earlier probes came.
    Late,
    /// It was dead by traffic alone and is tried again.
    Trial,
    /// Its device was gone or without carrier, and is back.
    Returned,
    /// One family's targets are silent while the other's answer.
    FamilySilent,
    /// The silent family answers again.
    FamilyBack,
}

/// The evidence of a verdict. Displayed as one line of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The rule that decided.
    pub cause: Cause,
    /// Interval that the following figures are about.
    pub window: Duration,
    /// Packets of flows sent in that interval.
    pub sent: u64,
    /// Packets of flows received in that interval.
    pub received: u64,
    /// Connections opened in that interval.
    pub syns: u64,
    /// Probes sent in that interval.
    pub probes: u32,
    /// Probes answered in that interval.
    pub answers: u32,
    /// Smoothed round trip.
    pub rtt: Option<Duration>,
    /// Share of the last 20 probes that got no answer.
    pub loss: Option<Share>,
    /// Further detail: the answer of a portal, the silent family, or the awaited condition.
    pub detail: Option<String>,
}

impl Evidence {
    /// Returns the evidence of a new uplink.
    #[must_use]
    pub fn none() -> Evidence {
        Evidence {
            cause: Cause::New,
            window: Duration::ZERO,
            sent: 0,
            received: 0,
            syns: 0,
            probes: 0,
            answers: 0,
            rtt: None,
            loss: None,
            detail: None,
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = self.window.as_millis();
        let Evidence {
            probes, answers, ..
        } = self;
        match self.cause {
            Cause::New => f.write_str("nothing against it")?,
            Cause::Silence => write!(
                f,
                "{} packets out, {} back in {window} ms; {answers} of {probes} probes answered",
                self.sent, self.received
            )?,
            Cause::NoAnswer => write!(f, "{answers} of {probes} probes answered in {window} ms")?,
            Cause::Traffic => write!(
                f,
                "{} connections asked for, {} packets out, {} back in {window} ms; no target to ask",
                self.syns, self.sent, self.received
            )?,
            Cause::Portal => f.write_str("a captive portal answers")?,
            Cause::Loss => write!(f, "{:.0} % of probes lost", self.loss_percent())?,
            Cause::Delay => write!(f, "round trip {} ms", self.rtt_ms())?,
            Cause::Recovered => write!(
                f,
                "{:.0} % of probes lost, round trip {} ms",
                self.loss_percent(),
                self.rtt_ms()
            )?,
            Cause::Answers => write!(f, "{answers} probes answered in a row, {window} ms")?,
            Cause::Late => f.write_str("not dead: the answers were only late")?,
            Cause::Trial => f.write_str("tried again: no target to ask")?,
            Cause::Returned => f.write_str("its device is back")?,
            Cause::FamilySilent => f.write_str("one family is silent")?,
            Cause::FamilyBack => f.write_str("both families answer")?,
        }
        match &self.detail {
            Some(detail) => write!(f, "; {detail}"),
            None => Ok(()),
        }
    }
}

impl Evidence {
    fn loss_percent(&self) -> f64 {
        self.loss.map_or(0.0, Share::fraction) * 100.0
    }

    fn rtt_ms(&self) -> u128 {
        self.rtt.unwrap_or_default().as_millis()
    }
}
