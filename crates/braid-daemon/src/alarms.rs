//! Alarms: conditions that the engine observes once a second, and messages about them.
//!
//! The task [`watch`] asks the engine and hands the messages to their destinations. Alarms that are raised and messages
//! that wait outlive the daemon in the run directory: another daemon tells the end of what this one has told.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use braid_alarm::delivery::{Deliveries, deliver};
use braid_alarm::{
    AlarmChange, Alarms, Destination, MailServer, Message, Observation, RaisedAlarm,
};
use braid_core::Time;
use braid_host::file;
use braid_host::report::HealthProblem;
use braid_host::user_error::UserError;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::api::{Job, change};
use crate::config::{AlarmCondition, AlarmConfig, AlarmLimit};
use crate::engine::Engine;
use crate::events::{EventKind, unix_ms};
use crate::health_problems::health_problems;
use crate::report::{
    AlarmReport, AlarmTarget, AlarmTestReport, AlarmTestResult, AlarmsReport, BondState,
    FailingDestination, UplinkReport, UplinkState,
};

/// Interval at which conditions are observed.
const INTERVAL: Duration = Duration::from_secs(1);
/// Health problem of a destination that takes no messages. No alarm watches it, since it could not be told.
const UNDELIVERED: &str = "alarm-undelivered";

/// Alarms of a running instance.
#[derive(Debug)]
pub struct AlarmMonitor {
    states: Alarms,
    started: Instant,
    host: String,
    path: PathBuf,
    /// Messages of an earlier daemon that were not delivered.
    left: Vec<(Destination, Message)>,
    failing: Vec<(Destination, String)>,
}

/// The file in the run directory.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SavedAlarms {
    raised: Vec<RaisedAlarm>,
    waiting: Vec<(Destination, Message)>,
}

/// Work of the task: messages to be sent, and the destinations that are configured.
#[derive(Debug, Default)]
struct AlarmUpdate {
    messages: Vec<(Destination, Message)>,
    destinations: BTreeSet<Destination>,
    server: Option<MailServer>,
}

impl AlarmMonitor {
    /// Continues the alarms of an earlier daemon. A file that cannot be read is as good as none: what is still wrong is
    /// told again.
    #[must_use]
    pub fn open(path: PathBuf) -> AlarmMonitor {
        let text = fs::read(&path).unwrap_or_default();
        let saved: SavedAlarms = serde_json::from_slice(&text).unwrap_or_default();
        let started = Instant::now();
        AlarmMonitor {
            states: Alarms::resumed(time(started), saved.raised),
            started,
            host: host_name(),
            path,
            left: saved.waiting,
            failing: Vec::new(),
        }
    }

    fn now(&self) -> Time {
        time(self.started)
    }

    fn save(&self, waiting: Vec<(Destination, Message)>) {
        let raised = self.states.raised(self.now());
        let saved = SavedAlarms { raised, waiting };
        let written = match saved.raised.is_empty() && saved.waiting.is_empty() {
            true => file::remove(&self.path),
            false => serde_json::to_vec(&saved)
                .map_err(Into::into)
                // Commands and URLs may hold secrets.
                .and_then(|json| file::replace(&self.path, &json, 0o600)),
        };
        if let Err(error) = written {
            tracing::warn!(%error, "cannot save the alarms: a daemon after this one tells them again");
        }
    }

    /// Returns a problem for each destination whose last message was not taken.
    pub fn problems(&self) -> impl Iterator<Item = HealthProblem> {
        self.failing
            .iter()
            .map(|(destination, error)| HealthProblem {
                code: UNDELIVERED.into(),
                text: format!("alarms do not reach {}: {error}", destination.display()),
                fix: "braid alarm test tries it at once".into(),
            })
    }
}

/// Time since long before the daemon's start, so that alarms can be older than it.
fn time(started: Instant) -> Time {
    Time::ZERO + Duration::from_secs(366 * 24 * 3600) + started.elapsed()
}

fn host_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "braid".into())
}

impl Engine {
    /// Observes all conditions and returns the messages that are due.
    fn update_alarms(&mut self) -> AlarmUpdate {
        let configured = &self.settings.config.alarms;
        let seen = match configured.is_empty() {
            true => Vec::new(),
            false => self.observe(configured),
        };
        let now = self.alarms.now();
        let changes = self.alarms.states.update(now, &seen);
        let mut messages = std::mem::take(&mut self.alarms.left);
        messages.extend(self.messages(&changes));
        for change in &changes {
            let AlarmChange { alarm, subject, .. } = change;
            let mut records = self.registry.records().iter();
            let is_uplink = records.any(|record| record.uplink.name == *subject);
            let text = format!("alarm {alarm} {} for {subject}", change.state.as_str());
            let uplink = is_uplink.then_some(subject.as_str());
            let evidence = Some(change.text.clone());
            self.events.note(EventKind::Alarm, uplink, text, evidence);
        }
        let config = &self.settings.config;
        AlarmUpdate {
            messages,
            destinations: config
                .alarms
                .iter()
                .flat_map(AlarmConfig::destinations)
                .collect(),
            server: config.mail.clone(),
        }
    }

    /// Returns one message for each destination: all changes that it is told.
    fn messages(&self, changes: &[AlarmChange]) -> Vec<(Destination, Message)> {
        let mut told: BTreeMap<Destination, Vec<AlarmChange>> = BTreeMap::new();
        for change in changes {
            let alarm = self
                .settings
                .config
                .alarms
                .iter()
                .find(|alarm| alarm.name == change.alarm);
            for destination in alarm.iter().flat_map(|alarm| alarm.destinations()) {
                told.entry(destination).or_default().push(change.clone());
            }
        }
        let message = |changes: &Vec<AlarmChange>| {
            Message::new(&self.alarms.host, unix_ms(SystemTime::now()), changes)
        };
        told.iter()
            .map(|(destination, changes)| (destination.clone(), message(changes)))
            .collect()
    }

    fn observe(&self, alarms: &[AlarmConfig]) -> Vec<Observation> {
        let uplinks = match self.uplinks() {
            Ok(report) => report.uplinks,
            Err(failure) => {
                tracing::warn!(%failure, "alarms cannot be judged");
                return Vec::new();
            }
        };
        alarms
            .iter()
            .flat_map(|alarm| self.observe_one(alarm, &uplinks))
            .collect()
    }

    fn observe_one(&self, alarm: &AlarmConfig, uplinks: &[UplinkReport]) -> Vec<Observation> {
        let observation = |subject: &str, holds: Option<String>| Observation {
            alarm: alarm.name.clone(),
            subject: subject.to_owned(),
            hold: alarm.hold,
            holds,
        };
        match alarm.when {
            AlarmCondition::NoUplink => {
                let works = uplinks.iter().any(UplinkReport::takes_new_flows);
                let text = || "no uplink takes flows".to_owned();
                vec![observation("all uplinks", (!works).then(text))]
            }
            AlarmCondition::BondDown => {
                let bond = self
                    .bond_report()
                    .ok()
                    .filter(|bond| bond.state != BondState::None);
                let down = bond.filter(|bond| bond.state != BondState::Up);
                vec![observation("bond", down.map(|bond| bond.why))]
            }
            AlarmCondition::Problem => {
                let mut problems: BTreeMap<String, String> = BTreeMap::new();
                for problem in health_problems(self) {
                    if problem.code != UNDELIVERED {
                        problems.entry(problem.code).or_insert(problem.text);
                    }
                }
                problems
                    .into_iter()
                    .map(|(code, text)| observation(&code, Some(text)))
                    .collect()
            }
            _ => {
                let watched = |uplink: &&UplinkReport| {
                    alarm
                        .uplink
                        .as_ref()
                        .is_none_or(|name| *name == uplink.name)
                };
                let seen = uplinks.iter().filter(watched);
                seen.map(|uplink| observation(&uplink.name, holds(alarm, uplink)))
                    .collect()
            }
        }
    }

    /// Returns every alarm with its state.
    #[must_use]
    pub fn alarms_report(&self) -> AlarmsReport {
        let raised = self.alarms.states.raised(self.alarms.now());
        let alarms = self.settings.config.alarms.iter().map(|alarm| AlarmReport {
            config: alarm.clone(),
            raised: raised
                .iter()
                .filter(|raised| raised.alarm == alarm.name)
                .map(|raised| AlarmTarget {
                    subject: raised.subject.clone(),
                    age_ms: u64::try_from(raised.age.as_millis()).unwrap_or(u64::MAX),
                    unstable: self
                        .alarms
                        .states
                        .is_unstable(&raised.alarm, &raised.subject),
                    text: raised.text.clone(),
                })
                .collect(),
        });
        let failing = self
            .alarms
            .failing
            .iter()
            .map(|(destination, error)| FailingDestination {
                destination: destination.display(),
                error: error.clone(),
            });
        AlarmsReport {
            alarms: alarms.collect(),
            failing: failing.collect(),
        }
    }

    /// Returns the destinations of one alarm, or of all, with what a trial of them needs.
    ///
    /// # Errors
    /// There is no such alarm, or none at all.
    pub(crate) fn alarm_trial(&self, name: Option<&str>) -> Result<AlarmTrial, UserError> {
        let alarms = &self.settings.config.alarms;
        let mut chosen = alarms
            .iter()
            .filter(|alarm| name.is_none_or(|name| alarm.name == name))
            .peekable();
        if chosen.peek().is_none() {
            let fix = "braid alarm list shows them; [[alarm]] in the configuration makes one";
            let (code, text) = match name {
                Some(name) => ("usage", format!("no alarm is called {name:?}")),
                None => ("not-found", "no alarm is configured".to_owned()),
            };
            return Err(UserError::new(code, text).fix(fix));
        }
        Ok(AlarmTrial {
            destinations: chosen.flat_map(AlarmConfig::destinations).collect(),
            server: self.settings.config.mail.clone(),
            message: Message::test(&self.alarms.host, unix_ms(SystemTime::now())),
        })
    }
}

/// Returns the evidence if an alarm's condition holds for an uplink.
fn holds(alarm: &AlarmConfig, uplink: &UplinkReport) -> Option<String> {
    let UplinkReport { why, .. } = uplink;
    let reached = |share: f64| match alarm.at {
        Some(AlarmLimit::Share(limit)) => share >= limit.fraction(),
        _ => false,
    };
    // Whatever happens to a line that was set aside is no surprise; its quota is still used.
    if uplink.pause.is_some() && alarm.when != AlarmCondition::Quota {
        return None;
    }
    match alarm.when {
        AlarmCondition::UplinkDead => {
            let states = [UplinkState::Dead, UplinkState::Down, UplinkState::Portal];
            let dead = states.contains(&uplink.state);
            dead.then(|| format!("{}: {why}", uplink.state.as_str()))
        }
        AlarmCondition::UplinkDegraded => {
            (uplink.state == UplinkState::Degraded).then(|| why.clone())
        }
        AlarmCondition::Quota => {
            let (used, whole) = (uplink.quota_used_bytes?, uplink.quota_bytes?);
            let share = used as f64 / (whole as f64).max(1.0);
            reached(share).then(|| format!("{:.0} % of the quota is used", share * 100.0))
        }
        AlarmCondition::Loss => {
            let loss = uplink.probe_loss?;
            reached(loss).then(|| format!("{:.1} % of the probes are lost", loss * 100.0))
        }
        AlarmCondition::Rtt => {
            let (rtt, Some(AlarmLimit::Time(limit))) = (uplink.probe_rtt_ms?, alarm.at) else {
                return None;
            };
            (rtt >= limit.as_secs_f64() * 1e3).then(|| format!("a round trip takes {rtt:.0} ms"))
        }
        AlarmCondition::NoUplink | AlarmCondition::BondDown | AlarmCondition::Problem => None,
    }
}

/// Destinations to be tried.
#[derive(Debug)]
pub(crate) struct AlarmTrial {
    destinations: BTreeSet<Destination>,
    server: Option<MailServer>,
    message: Message,
}

impl AlarmTrial {
    /// Sends a message to each destination, once.
    pub async fn run(self) -> AlarmTestReport {
        let trials = self.destinations.iter().map(async |destination| {
            let sent = deliver(destination, self.server.as_ref(), &self.message);
            AlarmTestResult {
                error: sent.await.err(),
                destination: destination.display(),
            }
        });
        let results = join_all(trials).await;
        AlarmTestReport { results }
    }
}

/// Observes the conditions and delivers messages while the loop runs.
pub async fn watch(jobs: mpsc::Sender<Job>) {
    let mut deliveries = Deliveries::default();
    let mut known = None;
    while let Ok((update, mut latest)) = change(&jobs, |engine| {
        let update = engine.update_alarms();
        // After it, since it notes events of its own.
        Ok((update, engine.latest_event()))
    })
    .await
    {
        deliveries.retain(|destination| update.destinations.contains(destination));
        for (destination, message) in &update.messages {
            deliveries.send(destination, update.server.as_ref(), message.clone());
        }
        let state = (deliveries.failing(), deliveries.waiting());
        // New messages come with alarms that are raised or over, which are saved as well.
        if !update.messages.is_empty() || known.as_ref() != Some(&state) {
            known = Some(state.clone());
            let tell = change(&jobs, |engine| {
                let (failing, waiting) = state;
                engine.alarms.failing = failing;
                engine.alarms.save(waiting);
                Ok(())
            });
            if tell.await.is_err() {
                break;
            }
        }
        match update.destinations.is_empty() {
            // A reload is an event.
            true => drop(latest.changed().await),
            false => sleep(INTERVAL).await,
        }
    }
}
