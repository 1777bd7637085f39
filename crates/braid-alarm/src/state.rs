//! States of alarms: pure, without a clock.
//!
//! - An alarm is *raised* once its condition has held for its hold time, and *cleared* once the condition has not held for
//!   as long, but no longer than [`MAX_CLEAR_TIME`] and no less than [`MIN_CLEAR_TIME`].
//! - An alarm that has been raised [`MAX_RAISES`] times within [`UNSTABLE_SPAN`] is *unstable*. That is told once;
//!   the next message follows when it has not changed for [`REST_TIME`], and says how it is then.
//! - One alarm may watch several subjects, such as all uplinks. Each has its own state.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use braid_core::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Least time for which a condition must be over before its alarm is cleared.
pub const MIN_CLEAR_TIME: Duration = Duration::from_secs(10);
/// The same at most.
pub const MAX_CLEAR_TIME: Duration = Duration::from_secs(60);
/// Raises within [`UNSTABLE_SPAN`] that make an alarm unstable.
pub const MAX_RAISES: usize = 4;
/// Span in which raises count.
pub const UNSTABLE_SPAN: Duration = Duration::from_secs(3600);
/// Time without a change after which an unstable alarm has come to rest.
pub const REST_TIME: Duration = Duration::from_secs(600);

/// The daemon's view of one subject of an alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Name of the alarm.
    pub alarm: String,
    /// Name of what it is about: an uplink, the bond, a health problem.
    pub subject: String,
    /// Time for which the condition must hold.
    pub hold: Duration,
    /// Evidence if the condition holds; none if it does not.
    pub holds: Option<String>,
}

/// State of an alarm for one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AlarmState {
    /// The condition has held for long enough.
    Raised,
    /// The condition is over.
    Cleared,
    /// It was raised and cleared too often to be told each time.
    Unstable,
}

impl AlarmState {
    /// Returns its name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AlarmState::Raised => "raised",
            AlarmState::Cleared => "cleared",
            AlarmState::Unstable => "unstable",
        }
    }
}

/// A change of which people are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmChange {
    /// Name of the alarm.
    pub alarm: String,
    /// Name of what it is about.
    pub subject: String,
    /// The new state.
    pub state: AlarmState,
    /// Evidence, or for how long the alarm was raised.
    pub text: String,
}

/// An alarm that is raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaisedAlarm {
    /// Name of the alarm.
    pub alarm: String,
    /// Name of what it is about.
    pub subject: String,
    /// Time since it was raised.
    pub age: Duration,
    /// Evidence.
    pub text: String,
}

type Key = (String, String);

/// All alarms that are not at rest.
#[derive(Clone, Debug, Default)]
pub struct Alarms {
    subjects: BTreeMap<Key, Subject>,
}

#[derive(Clone, Debug)]
struct Subject {
    raised: bool,
    /// When it was raised or cleared last.
    since: Time,
    /// Since when the condition has been other than the state says.
    differs: Option<Time>,
    hold: Duration,
    text: String,
    raises: VecDeque<Time>,
    unstable: bool,
}

impl Subject {
    fn new(now: Time, hold: Duration) -> Subject {
        Subject {
            raised: false,
            since: now,
            differs: None,
            hold,
            text: String::new(),
            raises: VecDeque::new(),
            unstable: false,
        }
    }

    /// Returns true if forgetting it would change nothing.
    fn is_at_rest(&self, now: Time) -> bool {
        let forgotten = |raise: &Time| now.since(*raise) >= UNSTABLE_SPAN;
        !self.raised
            && self.differs.is_none()
            && !self.unstable
            && self.raises.iter().all(forgotten)
    }

    fn handle(&mut self, now: Time, holds: Option<&str>) -> Option<(AlarmState, String)> {
        if let Some(text) = holds {
            text.clone_into(&mut self.text);
        }
        if holds.is_some() == self.raised {
            self.differs = None;
            let rests = self.unstable && now.since(self.since) >= REST_TIME;
            return rests.then(|| self.rest(now));
        }
        let differs = *self.differs.get_or_insert(now);
        let needed = match self.raised {
            false => self.hold,
            true => self.hold.clamp(MIN_CLEAR_TIME, MAX_CLEAR_TIME),
        };
        if now.since(differs) < needed {
            return None;
        }
        self.differs = None;
        let lasted = differs.since(self.since);
        (self.raised, self.since) = (holds.is_some(), now);
        if self.raised {
            self.raises.push_back(now);
        }
        while self
            .raises
            .front()
            .is_some_and(|raise| now.since(*raise) >= UNSTABLE_SPAN)
        {
            self.raises.pop_front();
        }
        match self.unstable {
            true => None,
            false if self.raises.len() >= MAX_RAISES => {
                self.unstable = true;
                let text = format!(
                    "raised {} times within an hour: {}",
                    self.raises.len(),
                    self.text
                );
                Some((AlarmState::Unstable, text))
            }
            false if self.raised => Some((AlarmState::Raised, self.text.clone())),
            false => Some((AlarmState::Cleared, format!("after {}", display(lasted)))),
        }
    }

    fn rest(&mut self, now: Time) -> (AlarmState, String) {
        self.unstable = false;
        let rests = display(now.since(self.since));
        match self.raised {
            true => (
                AlarmState::Raised,
                format!("for {rests} now: {}", self.text),
            ),
            false => (AlarmState::Cleared, format!("at rest for {rests}")),
        }
    }
}

impl Alarms {
    /// Continues with the alarms that were raised when an earlier process ended, so that they are not told again, and
    /// their end is.
    #[must_use]
    pub fn resumed(now: Time, raised: Vec<RaisedAlarm>) -> Alarms {
        let subjects = raised.into_iter().map(|alarm| {
            let subject = Subject {
                raised: true,
                since: now.before(alarm.age),
                text: alarm.text,
                ..Subject::new(now, Duration::ZERO)
            };
            ((alarm.alarm, alarm.subject), subject)
        });
        Alarms {
            subjects: subjects.collect(),
        }
    }

    /// Takes what is seen now of all alarms and all of their subjects. The condition of one that is not seen any more
    /// does not hold.
    pub fn update(&mut self, now: Time, seen: &[Observation]) -> Vec<AlarmChange> {
        let mut changes = Vec::new();
        let mut handle = |key: &Key, subject: &mut Subject, holds: Option<&str>| {
            if let Some((state, text)) = subject.handle(now, holds) {
                let (alarm, subject) = key.clone();
                changes.push(AlarmChange {
                    alarm,
                    subject,
                    state,
                    text,
                });
            }
        };
        for (key, subject) in &mut self.subjects {
            let gone = |one: &Observation| one.alarm == key.0 && one.subject == key.1;
            if !seen.iter().any(gone) {
                handle(key, subject, None);
            }
        }
        for one in seen {
            let key = (one.alarm.clone(), one.subject.clone());
            let new = || Subject::new(now, one.hold);
            let subject = self.subjects.entry(key.clone()).or_insert_with(new);
            subject.hold = one.hold;
            handle(&key, subject, one.holds.as_deref());
        }
        self.subjects.retain(|_, subject| !subject.is_at_rest(now));
        changes
    }

    /// Returns the alarms that are raised, by name.
    #[must_use]
    pub fn raised(&self, now: Time) -> Vec<RaisedAlarm> {
        let raised = self.subjects.iter().filter(|(_, subject)| subject.raised);
        let raised = raised.map(|((alarm, subject), state)| RaisedAlarm {
            alarm: alarm.clone(),
            subject: subject.clone(),
            age: now.since(state.since),
            text: state.text.clone(),
        });
        raised.collect()
    }

    /// Returns true if an alarm is unstable for this subject.
    #[must_use]
    pub fn is_unstable(&self, alarm: &str, subject: &str) -> bool {
        let key = (alarm.to_owned(), subject.to_owned());
        self.subjects
            .get(&key)
            .is_some_and(|subject| subject.unstable)
    }
}

fn display(span: Duration) -> String {
    match span.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(100_000 + seconds)
    }

    fn see(subject: &str, holds: bool) -> Observation {
        Observation {
            alarm: "line".into(),
            subject: subject.into(),
            hold: HOLD,
            holds: holds.then(|| "3 of 3 targets silent".to_owned()),
        }
    }

    /// Runs one subject second by second and returns the changes.
    fn run(
        alarms: &mut Alarms,
        from: u64,
        holds: impl IntoIterator<Item = bool>,
    ) -> Vec<(u64, AlarmState)> {
        let mut told = Vec::new();
        for (second, holds) in (from..).zip(holds) {
            for change in alarms.update(at(second), &[see("lte", holds)]) {
                told.push((second, change.state));
            }
        }
        told
    }

    #[test]
    fn raised_after_its_hold_time_and_cleared_after_as_long() {
        let mut alarms = Alarms::default();
        let holds = (0..200).map(|second| (20..100).contains(&second));
        let told = run(&mut alarms, 0, holds);
        assert_eq!(told, [(50, AlarmState::Raised), (130, AlarmState::Cleared)]);
    }

    #[test]
    fn a_short_outage_and_a_short_return_tell_nothing() {
        let mut alarms = Alarms::default();
        assert!(run(&mut alarms, 0, (0..100).map(|second| second < 29)).is_empty());
        let holds = (0..100).map(|second| !(50..70).contains(&second));
        assert_eq!(run(&mut alarms, 1000, holds), [(1030, AlarmState::Raised)]);
    }

    #[test]
    fn one_that_keeps_changing_is_told_once_and_again_when_it_rests() {
        let mut alarms = Alarms::default();
        // 40 s on, 40 s off: raised and cleared once in each 80 s.
        let holds = (0..1600).map(|second| second % 80 < 40);
        let told = run(&mut alarms, 0, holds);
        let states: Vec<AlarmState> = told.iter().map(|(_, state)| *state).collect();
        use AlarmState::{Cleared, Raised, Unstable};
        assert_eq!(
            states,
            [Raised, Cleared, Raised, Cleared, Raised, Cleared, Unstable]
        );
        assert!(alarms.is_unstable("line", "lte"));
        let rests = run(&mut alarms, 1600, std::iter::repeat_n(false, 700));
        assert_eq!(
            rests.iter().map(|(_, state)| *state).collect::<Vec<_>>(),
            [Cleared]
        );
        assert!(rests[0].0 >= 1600 + REST_TIME.as_secs() - 40, "{rests:?}");
    }

    #[test]
    fn a_subject_that_is_gone_is_cleared() {
        let mut alarms = Alarms::default();
        alarms.update(at(0), &[see("lte", true), see("dsl", true)]);
        let raised = alarms.update(at(30), &[see("lte", true), see("dsl", true)]);
        assert_eq!(raised.len(), 2);
        alarms.update(at(31), &[see("dsl", true)]);
        let gone = alarms.update(at(61), &[see("dsl", true)]);
        assert_eq!(gone.len(), 1);
        assert_eq!(
            (gone[0].subject.as_str(), gone[0].state),
            ("lte", AlarmState::Cleared)
        );
        assert_eq!(gone[0].text, "after 1 s");
        assert_eq!(alarms.raised(at(61)).len(), 1);
    }

    #[test]
    fn raised_alarms_outlive_a_restart() {
        let mut before = Alarms::default();
        before.update(at(0), &[see("lte", true)]);
        before.update(at(30), &[see("lte", true)]);
        let mut after = Alarms::resumed(at(50), before.raised(at(40)));
        assert!(after.update(at(51), &[see("lte", true)]).is_empty());
        after.update(at(60), &[see("lte", false)]);
        let cleared = after.update(at(90), &[see("lte", false)]);
        assert_eq!(cleared[0].state, AlarmState::Cleared);
        assert_eq!(cleared[0].text, "after 20 s");
    }

    proptest::proptest! {
        /// People are told alternately that it is raised and over, whatever happens.
        #[test]
        fn told_states_alternate(holds in proptest::collection::vec((1u64..90, proptest::bool::ANY), 1..60)) {
            let mut alarms = Alarms::default();
            let mut second = 0;
            let mut last = AlarmState::Cleared;
            for (lasts, holds) in holds {
                for (_, state) in run(&mut alarms, second, std::iter::repeat_n(holds, lasts as usize)) {
                    // After "unstable" either may follow.
                    proptest::prop_assert!(state != last || last == AlarmState::Unstable);
                    last = state;
                }
                second += lasts;
            }
        }
    }
}
