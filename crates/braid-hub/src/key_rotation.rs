//! Replacement of the hub's key.
//!
//! - Both keys are valid for a while, the overlap. A client that comes by the previous one learns
//!   the current one in its handshake, keeps it, and comes by it from then on. Every connected
//!   client does so within the interval of its handshakes.
//! - A new key is on disk before the packet thread learns of it.
//! - The end of a key is in force at once, also if it cannot be saved: it is saved as soon as that is possible.
//! - At the end of the overlap the previous private key is erased. Its public part is kept, so that
//!   a client that was away all that time can be told why nobody answers.
//! - A clock may be wrong for a while, above all after the machine has started: the key is not valid once the clock says
//!   that the overlap is over, but it is erased only after [`ERASURE_DELAY`] in which the clock has said nothing else.

use std::time::{Duration, Instant};

use braid_host::quota::STORE_INTERVAL;
use braid_host::report::HealthProblem;
use braid_host::user_error::UserError;

use crate::client::{Client, Seconds};
use crate::hub::{Hub, millis, now, random_key, span};
use crate::report::{KeyReport, PreviousKeyReport, RotateKeyRequest};
use crate::store::StoreError;

/// Part of the overlap, from its end, in which clients without the current key are a health problem.
const URGENT_PART: Seconds = 4;

/// Time for which the hub must have run, with a clock that said throughout that the overlap is over, before it erases the
/// previous key. A machine without a clock of its own has the time from the network within minutes.
const ERASURE_DELAY: Duration = Duration::from_secs(15 * 60);

/// The end of an overlap, by a clock that may be wrong.
#[derive(Debug, Default)]
pub(crate) struct OverlapEnd {
    /// Instant since which the clock has said that the overlap is over.
    since: Option<Instant>,
}

impl OverlapEnd {
    /// Records if the overlap is over by the clock.
    fn record(&mut self, is_over: bool, at: Instant) {
        self.since = is_over.then(|| self.since.unwrap_or(at));
    }

    /// Time until the previous key is erased; none while the overlap is not over.
    fn left(&self, at: Instant) -> Option<Duration> {
        let since = self.since?;
        Some(ERASURE_DELAY.saturating_sub(at.duration_since(since)))
    }
}

impl Hub {
    /// Replaces the key; the present one stays valid for the overlap.
    ///
    /// # Errors
    /// The reason for refusal; nothing has changed then.
    pub fn rotate_key(&mut self, request: &RotateKeyRequest) -> Result<KeyReport, UserError> {
        let overlap = request.check()?;
        let at = now();
        if let Some(previous) = &self.identity.previous {
            let text = match self.erasure_left() {
                None => format!(
                    "the key was replaced already, and the one before it is valid for {} more",
                    span(previous.until.saturating_sub(at))
                ),
                Some(left) => format!(
                    "the key was replaced already, and the one before it is kept for {} more, lest the clock be wrong",
                    span(left.as_secs())
                ),
            };
            let fix = "wait until then, or end that by `braid hub rotate-key --end-overlap`";
            return Err(UserError::new("key-overlap", text).fix(fix));
        }
        let private = random_key()?;
        let until = at + overlap;
        let rotated = self.identity.rotated(private, at, until);
        self.registry.rotate_key(self.key(), &rotated)?;
        self.set_identity(rotated);
        tracing::info!(key = %self.key(), overlap = %span(overlap), "the key is replaced");
        let warnings = self.registry.without_hub_key(self.key(), at);
        let warnings = warnings.filter_map(|client| match client.state {
            crate::client::State::Invited { until: token } if token > until => Some(format!(
                "{}: its token, if nobody uses it, outlives the previous key, which is in it",
                client.name
            )),
            _ => None,
        });
        let warnings = warnings.collect();
        Ok(self.key_report(warnings))
    }

    /// Ends the overlap before its time.
    ///
    /// # Errors
    /// There is none.
    pub fn end_overlap(&mut self) -> Result<KeyReport, UserError> {
        if self.identity.previous.is_none() {
            let failure = UserError::new("no-overlap", "this hub has one key only");
            return Err(failure.fix("braid hub rotate-key replaces it"));
        }
        let unsaved = self.retire_key().err().map(|error| {
            format!(
                "the previous key is not valid any more, but not yet erased from the disk ({error}), and a restart of \
                 the hub before it is would make it valid again; the hub tries again every {STORE_INTERVAL:?}"
            )
        });
        let missed = self.missed().map(|client| {
            format!(
                "{0}: it knows the erased key alone: braid hub revoke {0}, and invite it again",
                client.name
            )
        });
        let warnings = unsaved.into_iter().chain(missed).collect();
        Ok(self.key_report(warnings))
    }

    /// Ends the previous key if its time is over, and has it back if the clock was wrong.
    pub(crate) fn review_key(&mut self, at: Seconds) {
        let is_over = self.identity.is_overlap_over(at);
        self.overlap_end.record(is_over, Instant::now());
        if self.erasure_left() == Some(Duration::ZERO) {
            // The registry notes an error, and tries again.
            let _ = self.retire_key();
        } else if self.identity.previous.is_some() && is_over == self.keys.previous.is_some() {
            self.set_keys(at);
            match is_over {
                true => tracing::info!(kept = ?ERASURE_DELAY, "the overlap is over by the clock"),
                false => tracing::warn!("the clock went back, and the previous key is valid again"),
            }
        }
    }

    /// Time until the previous key, which is not valid any more, is erased.
    fn erasure_left(&self) -> Option<Duration> {
        self.overlap_end.left(Instant::now())
    }

    fn retire_key(&mut self) -> Result<(), StoreError> {
        let retired = self.identity.retired();
        self.set_identity(retired.clone());
        self.overlap_end = OverlapEnd::default();
        tracing::info!("the previous key is erased");
        self.registry.retire_key(retired)
    }

    fn key_report(&self, warnings: Vec<String>) -> KeyReport {
        KeyReport {
            key: self.key().to_string(),
            previous_key: self.previous_key(),
            warnings,
        }
    }

    /// The previous key, and who still needs it.
    pub(crate) fn previous_key(&self) -> Option<PreviousKeyReport> {
        let previous = self.identity.previous.as_ref()?;
        Some(PreviousKeyReport {
            key: self.keys.previous.as_ref()?.public().to_string(),
            until_unix_ms: millis(previous.until),
            clients: self
                .registry
                .without_hub_key(self.key(), now())
                .map(|client| client.name.to_string())
                .collect(),
        })
    }

    /// Clients that know no valid key of this hub.
    fn missed(&self) -> impl Iterator<Item = &Client> {
        let previous = self.keys.previous.as_ref().map(|key| key.public());
        let never_replaced = self.keys.retired.is_none();
        let without = self.registry.without_hub_key(self.key(), now());
        // Before the first replacement no client's key is recorded.
        without.filter(move |client| !never_replaced && client.hub_key != previous)
    }

    /// Problems of clients that have not followed a replacement.
    pub(crate) fn key_problems(&self) -> Vec<HealthProblem> {
        let mut problems = Vec::new();
        let at = now();
        let previous = self.identity.previous.as_ref();
        let kept = previous.and_then(|previous| Some((previous.public(), self.erasure_left()?)));
        for client in self.missed() {
            let name = &client.name;
            let fix = format!("braid hub revoke {name}, and invite it again");
            let kept = kept.filter(|(key, _)| client.hub_key == Some(*key));
            problems.push(HealthProblem {
                code: "key-missed".to_owned(),
                text: format!(
                    "{name}: it was away while the hub's previous key was valid, and knows no later \
                     one: it cannot connect"
                ),
                fix: match kept {
                    None => fix,
                    Some((_, left)) => format!(
                        "if this machine's clock is wrong, set it within {}: then that key is erased; if it is right, {fix}",
                        span(left.as_secs())
                    ),
                },
            });
        }
        let behind = self.previous_key();
        let behind = behind.filter(|previous| !previous.clients.is_empty());
        if let Some((previous, report)) = self.identity.previous.as_ref().zip(behind) {
            let left = previous.until.saturating_sub(at);
            if left < (previous.until - previous.since) / URGENT_PART {
                problems.push(HealthProblem {
                    code: "key-overlap".to_owned(),
                    text: format!(
                        "the previous key is valid for {} more, and these have not come since it was replaced: {}",
                        span(left),
                        report.clients.join(", ")
                    ),
                    fix: "have them connect before that, or invite them again".to_owned(),
                });
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_erased_after_a_quarter_of_an_hour_of_a_clock_that_did_not_go_back() {
        let start = Instant::now();
        let mut end = OverlapEnd::default();
        let mut left_at = |minutes: u64, is_over| {
            let at = start + Duration::from_secs(60 * minutes);
            end.record(is_over, at);
            end.left(at).map(|left| left.as_secs() / 60)
        };
        assert_eq!(left_at(0, false), None);
        // As at a start with a clock that is ahead: it is set right in time.
        assert_eq!(left_at(10, true), Some(15));
        assert_eq!(left_at(24, true), Some(1));
        assert_eq!(left_at(25, false), None);
        for minutes in 26..=40 {
            assert_eq!(left_at(minutes, true), Some(41 - minutes));
        }
        assert_eq!(left_at(41, true), Some(0));
    }
}
