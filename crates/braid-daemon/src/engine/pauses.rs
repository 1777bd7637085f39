//! Pauses of uplinks and rules: somebody sets an uplink aside for maintenance, or switches a rule off.
//!
//! Rules, and why:
//! - A paused uplink takes no new flows and is no link of the bond. Open TCP connections stay until they end, other flows
//!   move with their next packet, as the datapath does with any uplink that takes none. If the line dies meanwhile, its flows
//!   are closed or moved as always.
//! - It goes on being probed, but whatever the probes find is no health problem and raises no alarm.
//! - Nobody loses the internet by accident: the only uplink that works is paused only by force, and if the others die
//!   later, a paused one that works stands in for them. A forced pause is obeyed whatever happens.
//! - A paused rule is as good as not written. Flows that it has placed keep their uplink, as after a reload.

use std::time::SystemTime;

use braid_balance::{Choice, Flow, Release};
use braid_core::UplinkId;
use braid_host::user_error::UserError;

use super::Engine;
use super::failover::{TCP, plural};
use crate::events::{EventKind, unix_ms};
use crate::pauses::PauseSubject;
use crate::report::{
    Pause, PauseOrigin, RulePauseRequest, RuleReport, RulesReport, UplinkPauseRequest,
    UplinksReport,
};
use crate::uplinks::registry::FAMILIES;
use crate::user_errors;

/// Longest pause that ends by itself, in seconds: a year.
const MAX_PAUSE_SECONDS: u64 = 366 * 24 * 3600;

impl Engine {
    /// Sets an uplink aside.
    ///
    /// # Errors
    /// The uplink does not exist or is the only one that works, the pause cannot be stored, or the kernel refused.
    pub fn pause_uplink(
        &mut self,
        name: &str,
        request: &UplinkPauseRequest,
        by: PauseOrigin,
    ) -> Result<UplinksReport, UserError> {
        let record = self.record_named(name)?;
        let works = FAMILIES.into_iter().any(|family| record.works(family));
        if works && !request.force && !self.registry.has_other_line(record) {
            let text =
                format!("{name} is the only uplink that works: nothing would carry new flows");
            let failure = UserError::new("last-uplink", text);
            return Err(failure.fix(
                "wait until another one works; --force pauses it all the same, and there is no internet until it is \
                 resumed",
            ));
        }
        let (id, has_other) = (record.id, self.registry.has_other_line(record));
        let pause = Pause {
            forced: request.force,
            ..new_pause(by, request.for_s)?
        };
        let text = format!("paused {}", told(&pause));
        self.pauses.add(PauseSubject::Uplink, name, pause)?;
        self.follow_uplink_pauses()?;
        // Servers of flows that have moved may not follow.
        self.failover.watch_moved_flows(std::time::Instant::now());
        let closed = match request.now && has_other {
            true => self.close_connections(id)?,
            false => Closed::default(),
        };
        let mut evidence = match has_other {
            false => "no other uplink works".to_owned(),
            true => "new flows take the other uplinks".to_owned(),
        };
        if closed.told > 0 {
            evidence += &format!("; {} told", plural(closed.told, "connection"));
        }
        if closed.moved > 0 {
            evidence += &format!(
                "; {} being opened moved",
                plural(closed.moved, "connection")
            );
        }
        tracing::info!(uplink = name, text, "pause");
        let kind = EventKind::UplinkPaused;
        self.events.note(kind, Some(name), text, Some(evidence));
        self.uplinks()
    }

    /// Ends the pause of an uplink.
    ///
    /// # Errors
    /// The uplink does not exist, is not paused, or the kernel refused.
    pub fn resume_uplink(
        &mut self,
        name: &str,
        by: PauseOrigin,
    ) -> Result<UplinksReport, UserError> {
        if !self.pauses.end(PauseSubject::Uplink, name) {
            self.record_named(name)?;
            return Err(UserError::new(
                "not-paused",
                format!("{name} is not paused"),
            ));
        }
        self.note_resumed(PauseSubject::Uplink, name, by.in_words());
        self.follow_uplink_pauses()?;
        self.uplinks()
    }

    /// Switches a rule off. [`Engine::follow_rules`] completes it.
    ///
    /// # Errors
    /// The rule does not exist or has no name of its own, or the pause cannot be stored.
    pub fn pause_rule(
        &mut self,
        name: &str,
        request: &RulePauseRequest,
        by: PauseOrigin,
    ) -> Result<(), UserError> {
        let rules = self.rules_report().rules;
        let Some(rule) = rules.iter().find(|rule| rule.name == name) else {
            return Err(unknown_rule(name, &rules));
        };
        if !rule.named {
            let text =
                format!("{name} is only the rule's place, which changes with the configuration");
            let failure = UserError::new("unnamed", text);
            return Err(failure.fix("give the rule a name: name = \"…\", then braid reload"));
        }
        let pause = new_pause(by, request.for_s)?;
        let text = format!("rule {name} paused {}", told(&pause));
        self.pauses.add(PauseSubject::Rule, name, pause)?;
        tracing::info!(rule = name, text, "pause");
        self.events.note(EventKind::RulePaused, None, text, None);
        Ok(())
    }

    /// Ends the pause of a rule. [`Engine::follow_rules`] completes it.
    ///
    /// # Errors
    /// The rule does not exist, or is not paused.
    pub fn resume_rule(&mut self, name: &str, by: PauseOrigin) -> Result<(), UserError> {
        if self.pauses.end(PauseSubject::Rule, name) {
            self.note_resumed(PauseSubject::Rule, name, by.in_words());
            return Ok(());
        }
        let rules = self.rules_report().rules;
        match rules.iter().any(|rule| rule.name == name) {
            true => Err(UserError::new(
                "not-paused",
                format!("rule {name} is not paused"),
            )),
            false => Err(unknown_rule(name, &rules)),
        }
    }

    /// Brings routes, tables and names in line with the rules that are not paused.
    ///
    /// # Errors
    /// The kernel refused a change.
    pub async fn follow_rules(&mut self) -> Result<(), UserError> {
        self.settings.paused_rules = self.pauses.rules().keys().cloned().collect();
        let snapshot = braid_uplink::netlink::read()
            .await
            .map_err(user_errors::of_uplinks)?;
        self.work_by_settings(&snapshot).await
    }

    /// Ends the pauses whose time is over. Returns true if [`Engine::follow_rules`] has work.
    ///
    /// # Errors
    /// The kernel refused a change.
    pub fn end_overdue_pauses(&mut self) -> Result<bool, UserError> {
        let ended = self.pauses.end_overdue(unix_ms(SystemTime::now()));
        for (subject, name) in &ended {
            self.note_resumed(*subject, name, "since its time is over");
        }
        if ended
            .iter()
            .any(|(subject, _)| *subject == PauseSubject::Uplink)
        {
            self.follow_uplink_pauses()?;
        }
        // Also after a client that hung up between a pause and its effect.
        let wanted = self.pauses.rules().keys();
        Ok(!self.settings.paused_rules.iter().eq(wanted))
    }

    /// Returns every rule of the configuration.
    #[must_use]
    pub fn rules_report(&self) -> RulesReport {
        let rules = (1..).zip(&self.settings.config.rules);
        let rules = rules.map(|(number, rule)| RuleReport {
            name: rule.name.clone(),
            named: rule.name != format!("rule-{number}"),
            action: rule.action.clone(),
            paused: self.pauses.rules().get(&rule.name).cloned(),
        });
        RulesReport {
            rules: rules.collect(),
        }
    }

    /// Gives the registry's records their pauses.
    pub(super) fn note_pauses(&mut self) {
        self.registry.set_pauses(self.pauses.uplinks());
    }

    fn follow_uplink_pauses(&mut self) -> Result<(), UserError> {
        self.note_pauses();
        self.follow_verdicts()
    }

    fn note_resumed(&mut self, subject: PauseSubject, name: &str, why: &str) {
        tracing::info!(name, why, "end of a pause");
        match subject {
            PauseSubject::Uplink => {
                // Somebody wants it used: it does not wait for a failback.
                if let Ok(id) = self.record_named(name).map(|record| record.id) {
                    self.classes.allow_failback_to(id);
                }
                let text = format!("resumed {why}");
                let kind = EventKind::UplinkResumed;
                self.events.note(kind, Some(name), text, None);
            }
            PauseSubject::Rule => {
                let text = format!("rule {name} resumed {why}");
                self.events.note(EventKind::RuleResumed, None, text, None);
            }
        }
    }

    /// Resets the TCP connections of an uplink, and opens by another one those that are being opened.
    fn close_connections(&mut self, id: UplinkId) -> Result<Closed, UserError> {
        let closes = |flow: &Flow| {
            flow.uplink == id && flow.protocol == TCP && flow.choice != Choice::OnLink
        };
        // A SYN that is answered in between is an open connection when they are reset. The line works, so datagrams that need
        // no answer have arrived.
        let replayed = self
            .datapath
            .replay_unanswered(id, |protocol| protocol == TCP)?;
        let released = self.datapath.release(|flow| match closes(flow) {
            true => Release::Reset,
            false => Release::Keep,
        })?;
        Ok(Closed {
            told: released.reset,
            moved: replayed.tcp_moved,
        })
    }
}

/// Connections of an uplink that is paused at once.
#[derive(Clone, Copy, Default)]
struct Closed {
    /// Their inside was sent a reset.
    told: usize,
    /// Their SYN was sent again, by another uplink.
    moved: usize,
}

fn new_pause(by: PauseOrigin, for_s: Option<u64>) -> Result<Pause, UserError> {
    let since_unix_ms = unix_ms(SystemTime::now());
    let until = |seconds: u64| match (1..=MAX_PAUSE_SECONDS).contains(&seconds) {
        true => Ok(since_unix_ms + 1000 * seconds),
        false => Err(UserError::new(
            "usage",
            "a pause lasts from a second to a year",
        )),
    };
    Ok(Pause {
        by,
        since_unix_ms,
        until_unix_ms: for_s.map(until).transpose()?,
        forced: false,
    })
}

/// Returns the words of a pause that begins, for an event.
fn told(pause: &Pause) -> String {
    let force = if pause.forced { " by force" } else { "" };
    let end = match pause.until_unix_ms {
        None => "until it is resumed".to_owned(),
        Some(until) => {
            let seconds = (until - pause.since_unix_ms) / 1000;
            let span =
                braid_core::units::duration::display(std::time::Duration::from_secs(seconds));
            format!("for {span}")
        }
    };
    format!("{}{force}, {end}", pause.by.in_words())
}

fn unknown_rule(name: &str, rules: &[RuleReport]) -> UserError {
    let known: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let failure = UserError::new("usage", format!("there is no rule {name:?}"));
    failure.fix(match known.is_empty() {
        true => "the configuration has no rules".to_owned(),
        false => format!("there are {}", known.join(", ")),
    })
}
