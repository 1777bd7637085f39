//! Whatever the lookout is told, in whatever order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_core::UplinkId;
use braid_uplink::liveness::{
    HealthMonitor, MonitoredUplink, ProbeId, ProbeOutcome, ProbeRequest, ProbeResult, Rules,
    Sample, Target, Verdict,
};
use proptest::prelude::*;

/// One thing that the lookout is told.
#[derive(Clone, Debug)]
enum Told {
    /// Time passes, in milliseconds; the clock may be wrong.
    Time(u32),
    Back(u16),
    /// One uplink's counters grow, or begin anew.
    Traffic {
        uplink: u8,
        sent: u8,
        received: u8,
        syns: u8,
        anew: bool,
    },
    /// The so manieth probe under way fared so.
    Probe {
        which: u8,
        how: u8,
        ms: u16,
    },
    /// An answer to a question that was never asked.
    Stray(u64),
    /// The uplinks change.
    Uplinks(Vec<(bool, bool, bool, bool, u8)>),
}

fn told() -> impl Strategy<Value = Told> {
    prop_oneof![
        8 => (0_u32..400).prop_map(Told::Time),
        1 => (0_u32..10_000_000).prop_map(Told::Time),
        1 => any::<u16>().prop_map(Told::Back),
        6 => (0_u8..4, 0_u8..20, 0_u8..20, 0_u8..5, prop::bool::weighted(0.05)).prop_map(
            |(uplink, sent, received, syns, anew)| Told::Traffic { uplink, sent, received, syns, anew }
        ),
        8 => (any::<u8>(), any::<u8>(), any::<u16>())
            .prop_map(|(which, how, ms)| Told::Probe { which, how, ms }),
        1 => any::<u64>().prop_map(Told::Stray),
        1 => prop::collection::vec(any::<(bool, bool, bool, bool, u8)>(), 0..4).prop_map(Told::Uplinks),
    ]
}

fn rules(kind: u8) -> Rules {
    let http = || Arc::new("http://portal.example/".parse::<Target>().unwrap());
    let mut rules = Rules {
        metered: kind & 1 == 1,
        quorum: usize::from(kind >> 1 & 3),
        rise: u32::from(kind >> 3 & 3),
        ..Rules::default()
    };
    match kind >> 5 & 3 {
        0 => {}
        1 => rules.targets.clear(),
        2 => rules.targets.push(http()),
        _ => rules.targets = vec![http()],
    }
    rules
}

struct World {
    now: Instant,
    monitor: HealthMonitor,
    uplinks: BTreeMap<UplinkId, MonitoredUplink>,
    verdicts: BTreeMap<UplinkId, Verdict>,
    samples: BTreeMap<UplinkId, Sample>,
    orders: Vec<ProbeRequest>,
}

impl World {
    fn tell(&mut self, told: Told) {
        match told {
            Told::Time(ms) => {
                self.now += Duration::from_millis(ms.into());
                self.monitor.handle_timeout(self.now);
            }
            Told::Back(ms) => {
                let before = self.now.checked_sub(Duration::from_millis(ms.into()));
                self.monitor.handle_timeout(before.unwrap_or(self.now));
            }
            Told::Traffic {
                uplink,
                sent,
                received,
                syns,
                anew,
            } => {
                let sample = self.samples.entry(UplinkId(uplink)).or_default();
                if anew {
                    *sample = Sample::default();
                }
                sample.sent += u64::from(sent);
                sample.received += u64::from(received);
                sample.syns += u64::from(syns);
                sample.rtt_samples += u64::from(received);
                sample.rtt_us_sum += u64::from(received) * 20_000;
                let samples = [(UplinkId(uplink), *sample)];
                self.monitor.handle_traffic(self.now, &samples);
            }
            Told::Probe { which, how, ms } => {
                if self.orders.is_empty() {
                    return;
                }
                let order = self
                    .orders
                    .swap_remove(usize::from(which) % self.orders.len());
                let rtt = Duration::from_millis(ms.into());
                let outcome = match how % 8 {
                    0..4 => ProbeOutcome::Answered { rtt },
                    4 => ProbeOutcome::Wrong {
                        rtt,
                        what: "odd".to_owned(),
                    },
                    5 => ProbeOutcome::NotSent {
                        why: "no route".to_owned(),
                    },
                    _ => ProbeOutcome::Silent,
                };
                let answer = ProbeResult {
                    uplink: order.uplink,
                    id: order.id,
                    outcome,
                };
                self.monitor.handle_probe(self.now, answer);
            }
            Told::Stray(id) => {
                let outcome = ProbeOutcome::Answered {
                    rtt: Duration::ZERO,
                };
                let (uplink, id) = (UplinkId(0), ProbeId(id | 1 << 63));
                self.monitor.handle_probe(
                    self.now,
                    ProbeResult {
                        uplink,
                        id,
                        outcome,
                    },
                );
            }
            Told::Uplinks(all) => {
                let watched = |(v4, v6, usable, self_reported, kind)| MonitoredUplink {
                    v4,
                    v6,
                    usable,
                    self_reported,
                    rules: rules(kind),
                };
                let ids = (0..).map(UplinkId);
                self.uplinks = ids.zip(all.into_iter().map(watched)).collect();
                let uplinks: Vec<_> = self.uplinks.clone().into_iter().collect();
                self.monitor.set_uplinks(self.now, &uplinks);
                self.verdicts.retain(|id, _| self.uplinks.contains_key(id));
            }
        }
    }

    /// Everything the lookout wants is to be had, makes sense, and comes to an end.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            while let Some(order) = self.monitor.poll_transmit(self.now) {
                let watched = &self.uplinks[&order.uplink];
                assert!(watched.usable && watched.rules.targets.contains(&order.target));
                let family = order.target.address().map(|a| a.is_ipv6());
                assert!(family.is_none_or(|v6| if v6 { watched.v6 } else { watched.v4 }));
                assert!(order.timeout > Duration::ZERO);
                self.orders.push(order);
                let drop = self.orders.len().saturating_sub(200);
                self.orders.drain(..drop);
            }
            while let Some(change) = self.monitor.poll_event() {
                let before = self.verdicts.insert(change.uplink, change.to);
                assert_eq!(before.unwrap_or(Verdict::Up), change.from, "{change:?}");
                assert!(!change.evidence.to_string().is_empty());
            }
            match self.monitor.poll_timeout() {
                Some(at) if at <= self.now => self.monitor.handle_timeout(self.now),
                _ => return,
            }
        }
        panic!("it never wants to sleep");
    }

    fn check(&self) {
        for (id, watched) in &self.uplinks {
            let look = self.monitor.snapshot(*id).unwrap();
            let told = self.verdicts.get(id).copied().unwrap_or(Verdict::Up);
            assert_eq!(look.verdict, told);
            assert!(look.since <= self.now);
            assert!((watched.v4 || !look.families.v4) && (watched.v6 || !look.families.v6));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_confuses_it(story in prop::collection::vec(told(), 1..200)) {
        let now = Instant::now() + Duration::from_secs(1000);
        let mut world = World {
            now,
            monitor: HealthMonitor::new(now),
            uplinks: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            samples: BTreeMap::new(),
            orders: Vec::new(),
        };
        world.tell(Told::Uplinks(vec![(true, true, true, false, 0), (true, false, true, true, 64)]));
        for told in story {
            world.drain();
            world.tell(told);
            world.drain();
            world.check();
        }
    }
}
