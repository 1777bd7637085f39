//! Round trip, jitter and loss of the uplinks: from their traffic, and from probes where there is none.
//!
//! Pure: takes the datapath's counters and the time once a second, and returns what the last ten seconds show.
//!
//! - The round trip is the mean of all that were measured: handshakes, and timestamps in flows that move data.
//! - Jitter is the mean difference of one round trip to the next in the same flow: RFC 3550 §6.4.1 takes the same
//!   difference of one-way delays, and smooths it instead. Of probes it is the same over the last sixteen.
//! - Loss is the part of TCP segments with data that show one. Reordering counts as loss.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use braid_balance::UplinkCounters;
use braid_core::{Share, UplinkId};
use braid_uplink::liveness::HealthSnapshot;

/// Time over which the traffic is averaged, and for which it is preferred to later probes.
const WINDOW: Duration = Duration::from_secs(10);
/// Time between two looks at the counters, at least.
const STEP: Duration = Duration::from_secs(1);
/// Fewest segments with data that tell a loss, to the percent.
const MIN_DATA_PACKETS: u64 = 100;
/// Fewest differences of round trips that tell jitter.
const MIN_JITTER_SAMPLES: u64 = 4;

/// The evidence for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QualityBasis {
    /// Probes.
    Probes,
    /// The uplink's own flows.
    Traffic,
}

/// A value with its evidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Known<T> {
    pub value: T,
    pub basis: QualityBasis,
    /// Time of the last sample.
    pub at: Instant,
}

/// Round trip, jitter and loss of an uplink, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LinkQuality {
    pub rtt: Option<Known<Duration>>,
    pub jitter: Option<Known<Duration>>,
    pub loss: Option<Known<Share>>,
}

/// The delays and losses that the traffic of all uplinks shows.
#[derive(Debug, Default)]
pub(crate) struct LinkQualities {
    noted: Option<Instant>,
    uplinks: BTreeMap<UplinkId, Traffic>,
}

/// Counters of one uplink over the window, and what they have shown last.
#[derive(Debug, Default)]
struct Traffic {
    window: VecDeque<(Instant, UplinkCounters)>,
    shown: LinkQuality,
}

impl LinkQualities {
    /// Takes the counters of all uplinks, once a second; `line` has the round trips inside flows.
    pub fn note(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
        line: &[(UplinkId, UplinkCounters)],
    ) {
        let is_early = |noted| now.saturating_duration_since(noted) < STEP;
        if self.noted.is_some_and(is_early) {
            return;
        }
        self.noted = Some(now);
        self.uplinks
            .retain(|id, _| counters.iter().any(|(other, _)| other == id));
        for (id, counters) in counters {
            let line = line.iter().find(|(other, _)| other == id);
            let line = line.map_or(counters, |(_, line)| line);
            let counters = UplinkCounters {
                queueing_samples: line.queueing_samples,
                flow_rtt_us_sum: line.flow_rtt_us_sum,
                jitter_us_sum: line.jitter_us_sum,
                jitter_samples: line.jitter_samples,
                ..*counters
            };
            self.uplinks.entry(*id).or_default().note(now, counters);
        }
    }

    /// Returns the quality of an uplink: from its traffic if that is of the last ten seconds or later than the probes,
    /// else from these.
    pub fn of(&self, now: Instant, id: UplinkId, probes: &HealthSnapshot) -> LinkQuality {
        let traffic = self.uplinks.get(&id).map(|traffic| traffic.shown);
        let traffic = traffic.unwrap_or_default();
        LinkQuality {
            rtt: better(now, traffic.rtt, probed(probes.rtt, probes.answered)),
            jitter: better(now, traffic.jitter, probed(probes.jitter, probes.answered)),
            loss: better(now, traffic.loss, probed(probes.loss, probes.probed)),
        }
    }
}

fn probed<T>(value: Option<T>, at: Option<Instant>) -> Option<Known<T>> {
    Some(Known {
        value: value?,
        basis: QualityBasis::Probes,
        at: at?,
    })
}

fn better<T>(
    now: Instant,
    traffic: Option<Known<T>>,
    probes: Option<Known<T>>,
) -> Option<Known<T>> {
    match (traffic, probes) {
        (Some(traffic), Some(probes))
            if now.saturating_duration_since(traffic.at) > WINDOW && probes.at > traffic.at =>
        {
            Some(probes)
        }
        (traffic, probes) => traffic.or(probes),
    }
}

impl Traffic {
    fn note(&mut self, now: Instant, counters: UplinkCounters) {
        let Some((_, last)) = self.window.back().copied() else {
            self.window.push_back((now, counters));
            return;
        };
        if is_anew(&last, &counters) {
            self.window.clear();
        }
        self.window.push_back((now, counters));
        // One older than the window is where it begins.
        while self
            .window
            .get(1)
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW)
        {
            self.window.pop_front();
        }
        let first = self.window[0].1;
        let known = |of: fn(&UplinkCounters) -> u64, fewest: u64| {
            let more = of(&counters).saturating_sub(of(&last)) > 0;
            let number = of(&counters) - of(&first);
            (more && number >= fewest).then_some(number)
        };
        let sum = |of: fn(&UplinkCounters) -> u64| of(&counters).saturating_sub(of(&first));
        let mean = |us: u64, number: u64| Known {
            value: Duration::from_micros(us / number),
            basis: QualityBasis::Traffic,
            at: now,
        };
        if let Some(number) = known(|of| of.rtt_samples + of.queueing_samples, 1) {
            let us = sum(|of| of.rtt_us_sum + of.flow_rtt_us_sum);
            self.shown.rtt = Some(mean(us, number));
        }
        if let Some(number) = known(|of| of.jitter_samples, MIN_JITTER_SAMPLES) {
            self.shown.jitter = Some(mean(sum(|of| of.jitter_us_sum), number));
        }
        if let Some(number) = known(|of| of.data_packets, MIN_DATA_PACKETS) {
            let part = |packets: u64| u32::try_from(packets).unwrap_or(u32::MAX);
            let lost = sum(|of| of.lost).min(number);
            self.shown.loss = Some(Known {
                value: Share::of(part(lost), part(number)),
                basis: QualityBasis::Traffic,
                at: now,
            });
        }
    }
}

/// Returns true if the counters restarted: the datapath was loaded again, or it is another uplink.
fn is_anew(old: &UplinkCounters, new: &UplinkCounters) -> bool {
    let of = |counters: &UplinkCounters| {
        [
            counters.rtt_samples,
            counters.queueing_samples,
            counters.jitter_samples,
            counters.data_packets,
        ]
    };
    of(old).iter().zip(of(new)).any(|(old, new)| new < *old)
}

#[cfg(test)]
mod tests {
    use braid_uplink::liveness::{Evidence, Verdict, WorkingFamilies};

    use super::*;

    const ID: UplinkId = UplinkId(2);
    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn silent_probes(now: Instant) -> HealthSnapshot {
        HealthSnapshot {
            verdict: Verdict::Up,
            since: now,
            evidence: Evidence::none(),
            families: WorkingFamilies { v4: true, v6: true },
            // Of handshakes, since no probe was answered.
            rtt: Some(77 * MS),
            jitter: None,
            answered: None,
            loss: None,
            probed: None,
            send_error: None,
        }
    }

    fn answered_probes(at: Instant) -> HealthSnapshot {
        HealthSnapshot {
            rtt: Some(20 * MS),
            jitter: Some(2 * MS),
            answered: Some(at),
            loss: Some(Share::of(1, 20)),
            probed: Some(at),
            ..silent_probes(at)
        }
    }

    /// Adds a second of a download: 30 round trips of 50 ms inside flows, each 4 ms from the one before, and two handshakes of
    /// 30 ms; 200 segments, of which some are lost.
    fn download(counters: &mut UplinkCounters, lost: u64) {
        counters.rtt_samples += 2;
        counters.rtt_us_sum += 60_000;
        counters.queueing_samples += 30;
        counters.flow_rtt_us_sum += 1_500_000;
        counters.jitter_samples += 30;
        counters.jitter_us_sum += 120_000;
        counters.data_packets += 200;
        counters.lost += lost;
    }

    fn note(qualities: &mut LinkQualities, now: Instant, counters: UplinkCounters) {
        qualities.note(now, &[(ID, counters)], &[(ID, counters)]);
    }

    fn values(found: LinkQuality) -> (Option<Duration>, Option<Duration>, Option<Share>) {
        let LinkQuality { rtt, jitter, loss } = found;
        (
            rtt.map(|known| known.value),
            jitter.map(|known| known.value),
            loss.map(|known| known.value),
        )
    }

    #[test]
    fn traffic_shows_the_mean_of_all_round_trips_their_changes_and_the_loss() {
        let (start, mut qualities) = (Instant::now(), LinkQualities::default());
        let mut counters = UplinkCounters {
            lost: 1000,
            data_packets: 2000,
            ..UplinkCounters::default()
        };
        let probes = answered_probes(start);
        note(&mut qualities, start, counters);
        assert_eq!(
            values(qualities.of(start, ID, &probes)),
            (Some(20 * MS), Some(2 * MS), Some(Share::of(1, 20))),
            "nothing has moved yet"
        );
        for second in 1..=20 {
            download(&mut counters, if second <= 10 { 0 } else { 4 });
            note(&mut qualities, start + SECOND * second, counters);
        }
        let now = start + 20 * SECOND;
        let found = qualities.of(now, ID, &probes);
        let mean = Duration::from_micros((2 * 30_000 + 30 * 50_000) / 32);
        let shown = (Some(mean), Some(4 * MS), Some(Share::of(2, 100)));
        assert_eq!(values(found), shown);
        assert_eq!(found.rtt.unwrap().basis, QualityBasis::Traffic);
        assert_eq!(found.loss.unwrap().at, now);
        // It ends: the last values are shown until the probes are later and they are old.
        for (after, probed) in [(3, 3), (10, 10), (60, 0)] {
            let now = now + SECOND * after;
            note(&mut qualities, now, counters);
            let probes = answered_probes(start + SECOND * (10 + probed));
            assert_eq!(values(qualities.of(now, ID, &probes)), shown, "{after}");
            assert_eq!(values(qualities.of(now, ID, &silent_probes(now))), shown);
        }
        let now = now + 61 * SECOND;
        let found = qualities.of(now, ID, &answered_probes(now));
        assert_eq!(found.rtt.unwrap().basis, QualityBasis::Probes);
        assert_eq!(
            values(found),
            (Some(20 * MS), Some(2 * MS), Some(Share::of(1, 20)))
        );
    }

    #[test]
    fn little_traffic_tells_a_round_trip_and_neither_loss_nor_jitter() {
        let (start, mut qualities) = (Instant::now(), LinkQualities::default());
        note(&mut qualities, start, UplinkCounters::default());
        let counters = UplinkCounters {
            rtt_samples: 1,
            rtt_us_sum: 30_000,
            jitter_samples: MIN_JITTER_SAMPLES - 1,
            jitter_us_sum: 900_000,
            data_packets: MIN_DATA_PACKETS - 1,
            lost: 9,
            ..UplinkCounters::default()
        };
        note(&mut qualities, start + SECOND, counters);
        let now = start + 2 * SECOND;
        let found = qualities.of(now, ID, &silent_probes(now));
        assert_eq!(values(found), (Some(30 * MS), None, None));
        let found = qualities.of(now, ID, &answered_probes(now));
        let probed = (Some(30 * MS), Some(2 * MS), Some(Share::of(1, 20)));
        assert_eq!(values(found), probed);
    }

    #[test]
    fn counters_that_restart_tell_nothing_of_what_was_before() {
        let (start, mut qualities) = (Instant::now(), LinkQualities::default());
        let mut counters = UplinkCounters::default();
        note(&mut qualities, start, counters);
        for second in 1..5 {
            download(&mut counters, 50);
            note(&mut qualities, start + SECOND * second, counters);
        }
        let mut anew = UplinkCounters::default();
        for second in 5..8 {
            download(&mut anew, 2);
            note(&mut qualities, start + SECOND * second, anew);
        }
        let now = start + 7 * SECOND;
        let found = qualities.of(now, ID, &silent_probes(now));
        assert_eq!(found.loss.unwrap().value, Share::of(1, 100));
        // An uplink that has gone leaves nothing to the next of its number.
        qualities.note(now + SECOND, &[], &[]);
        let found = qualities.of(now, ID, &silent_probes(now));
        assert_eq!(found, LinkQuality::default());
    }
}
