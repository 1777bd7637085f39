//! Replacement of the hub's key.
//!
//! - Both keys are valid for a while, the overlap. A client that comes by the previous one learns
//!   the current one in its handshake, keeps it, and comes by it from then on. Every connected
//!   client does so within the interval of its handshakes.
//! - A new key is on disk before the packet thread learns of it.
//! - The end of a key is in force at once, also if it cannot be saved: it is saved as soon as that is possible.
//! - At the end of the overlap the previous private key is erased. Its public part is kept, so that
//!   a client that was away all that time can be told why nobody answers.

use braid_host::quota::STORE_INTERVAL;
use braid_host::report::HealthProblem;
use braid_host::user_error::UserError;

use crate::client::{Client, Seconds};
use crate::hub::{Hub, millis, now, random, span};
use crate::report::{KeyReport, PreviousKeyReport, RotateKeyRequest};
use crate::store::StoreError;

/// Part of the overlap, from its end, in which clients without the current key are a health problem.
const URGENT_PART: Seconds = 4;

impl Hub {
    /// Replaces the key; the present one stays valid for the overlap.
    ///
    /// # Errors
    /// The reason for refusal; nothing has changed then.
    pub fn rotate_key(&mut self, request: &RotateKeyRequest) -> Result<KeyReport, UserError> {
        let overlap = request.check()?;
        let at = now();
        if let Some(previous) = &self.identity.previous {
            let left = span(previous.until.saturating_sub(at));
            let text = format!(
                "the key was replaced already, and the one before it is valid for {left} more"
            );
            let fix = "wait until then, or end that by `braid hub rotate-key --end-overlap`";
            return Err(UserError::new("key-overlap", text).fix(fix));
        }
        let private = random()?;
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

    /// Ends the previous key if its time is over.
    pub(crate) fn review_key(&mut self, at: Seconds) {
        if self.identity.is_overlap_over(at) {
            // The registry notes an error, and tries again.
            let _ = self.retire_key();
        }
    }

    fn retire_key(&mut self) -> Result<(), StoreError> {
        let retired = self.identity.retired();
        self.set_identity(retired.clone());
        tracing::info!("the previous key is not valid any more");
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

    /// Clients that know neither key of this hub.
    fn missed(&self) -> impl Iterator<Item = &Client> {
        let previous = self.keys.previous.as_ref().map(|key| key.public());
        let never_replaced = self.identity.retired.is_none();
        let without = self.registry.without_hub_key(self.key(), now());
        // Before the first replacement no client's key is recorded.
        without.filter(move |client| !never_replaced && client.hub_key != previous)
    }

    /// Problems of clients that have not followed a replacement.
    pub(crate) fn key_problems(&self) -> Vec<HealthProblem> {
        let mut problems = Vec::new();
        let at = now();
        for client in self.missed() {
            let name = &client.name;
            problems.push(HealthProblem {
                code: "key-missed".to_owned(),
                text: format!(
                    "{name}: it was away while the hub's previous key was valid, and knows no later \
                     one: it cannot connect"
                ),
                fix: format!("braid hub revoke {name}, and invite it again"),
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
                        "the previous key is erased in {}, and these have not come since it was replaced: {}",
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
