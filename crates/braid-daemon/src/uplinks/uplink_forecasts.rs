//! Forecasts of the uplinks, for policy `fastest`.
//!
//! Pure: takes counters, rates and the datapath's counts of opened and active flows, returns the datapath's
//! inputs for its predictions.
//!
//! Rules, and why:
//! - An uplink's loss is that of all its TCP flows while it carries little ([`UplinkLosses`]). A path without history
//!   starts from it, see [`braid_core::forecast`].
//! - The datapath counts all losses of each path. It leaves out as much as all packets of the uplink lost by its load, which
//!   is no quality of the path either: by a page's own losses on the nearer line, 2.5 % under `race`, the next page's
//!   document took the farther one. The path cache outlives the daemon, so the losses in it count from the start.
//! - What long-lived flows want that their programs limit, a video or a call, is no part of the capacity: it is left to
//!   them ([`braid_core::app_limited`]), as far as it is no more than [`MAX_RESERVED_FRACTION`] of it. Twenty connections
//!   of a page otherwise had twenty times the share of a video that was on the line before.
//! - A capacity that is neither configured nor seen in traffic is taken to be [`DEFAULT_CAPACITY_KB_S`] for all uplinks
//!   alike, as the datapath does by default. Any rate will do that spreads many flows opened at once. With
//!   unlimited ones, all connections of a page used the line with the shortest round trip, and the page took
//!   1.5 times as long as round robin.

use std::collections::BTreeMap;
use std::time::Instant;

use braid_balance::{FlowActivity, PathCacheEntry, UplinkCounters, UplinkForecast};
#[cfg(doc)]
use braid_core::forecast::DEFAULT_CAPACITY_KB_S;
use braid_core::forecast::{PacketCounts, UplinkLoad, UplinkLosses, kilobytes_per_sec, ppm};
use braid_core::{Rate, UplinkId};

use crate::classes::Headroom;

/// Part of a capacity that is left to long-lived flows at most.
const MAX_RESERVED_FRACTION: f64 = 0.75;

/// The current forecasts, and their inputs.
#[derive(Debug, Default)]
pub(crate) struct UplinkForecasts {
    noted: Option<Instant>,
    losses: BTreeMap<UplinkId, Losses>,
    forecasts: Vec<UplinkForecast>,
    reservations: Vec<(UplinkId, Reservation)>,
}

/// Part of an uplink's capacity that is left to app-limited flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Rate that they want.
    pub wanted: Rate,
    /// Rate that is left to them.
    pub reserved: Rate,
    /// Capacity of the uplink, this part included.
    pub capacity: Rate,
}

/// Losses of one uplink.
#[derive(Debug, Default)]
struct Losses {
    /// The counters at the last update, if there was one.
    counted: Option<PacketCounts>,
    losses: UplinkLosses,
}

impl UplinkForecasts {
    /// Takes the path cache as it was left by an earlier daemon: its losses are among those of all packets.
    pub fn note_paths(&mut self, entries: &[PathCacheEntry]) {
        let paths = entries.iter().flat_map(|entry| &entry.paths);
        for path in paths.filter(|path| path.valid) {
            let losses = self.losses.entry(path.uplink).or_default();
            losses.losses.note_earlier(PacketCounts {
                packets: path.packets.into(),
                lost: path.lost.into(),
            });
        }
    }

    /// Takes the datapath's counters. `load` returns the fraction of its capacity that an uplink carried since
    /// the last call; where none is known, 1 if it had a queue, and 0 if not.
    pub fn note(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
        load: impl Fn(UplinkId) -> f64,
    ) {
        let passed = self.noted.map(|noted| now.saturating_duration_since(noted));
        self.noted = Some(now);
        self.losses
            .retain(|id, _| counters.iter().any(|(other, _)| other == id));
        for (id, counters) in counters {
            let counted = PacketCounts {
                packets: counters.data_packets,
                lost: counters.lost,
            };
            let losses = self.losses.entry(*id).or_default();
            let before = losses.counted.replace(counted).unwrap_or(counted);
            let counts = PacketCounts {
                packets: counted.packets.saturating_sub(before.packets),
                lost: counted.lost.saturating_sub(before.lost),
            };
            let passed = passed.unwrap_or_default();
            losses.losses.note(passed, counts, load(*id));
        }
    }

    /// Returns true if an uplink loses so many packets that the first ones of a flow are worth a copy.
    pub fn is_lossy(&self, id: UplinkId) -> bool {
        let losses = self.losses.get(&id);
        losses.is_some_and(|losses| losses.losses.is_lossy())
    }

    /// Returns the new forecasts. `flow_activity` covers the time since the last call; `wanted` is the rate that an
    /// uplink's long-lived flows want.
    pub fn compute(
        &mut self,
        flow_activity: &[FlowActivity],
        headroom: impl Fn(UplinkId) -> Option<Headroom>,
        wanted: impl Fn(UplinkId) -> Rate,
    ) -> &[UplinkForecast] {
        let unknown = Headroom {
            capacity: Rate::from_bits_per_sec(0),
            spare: Rate::from_bits_per_sec(0),
        };
        self.reservations.clear();
        let reservations = &mut self.reservations;
        let outlook = |(id, losses): (&UplinkId, &Losses)| {
            let headroom = headroom(*id).unwrap_or(unknown);
            let capacity = headroom.capacity.bits_per_sec();
            let most = (capacity as f64 * MAX_RESERVED_FRACTION) as u64;
            let wanted = wanted(*id);
            let reserved = wanted.bits_per_sec().min(most);
            if reserved > 0 {
                let reservation = Reservation {
                    wanted,
                    reserved: Rate::from_bits_per_sec(reserved),
                    capacity: headroom.capacity,
                };
                reservations.push((*id, reservation));
            }
            let left = Rate::from_bits_per_sec(capacity - reserved);
            UplinkForecast {
                uplink: *id,
                capacity: left,
                spare: headroom.spare.min(left),
                busy: of(flow_activity, *id).map_or(0, |flow_activity| flow_activity.active),
                loss: losses.losses.share(),
                load_loss: losses.losses.load_share(),
            }
        };
        self.forecasts = self.losses.iter().map(outlook).collect();
        &self.forecasts
    }

    /// Returns the load from which the datapath predicts at this moment: the last forecast of the uplink, and
    /// the flows opened since. `None` without a forecast.
    pub fn load(&self, id: UplinkId, flow_activity: &[FlowActivity]) -> Option<UplinkLoad> {
        let forecasts = self.forecasts.iter().find(|outlook| outlook.uplink == id)?;
        Some(UplinkLoad {
            capacity: kilobytes_per_sec(forecasts.capacity),
            spare: kilobytes_per_sec(forecasts.spare),
            busy: of(flow_activity, id).map_or(forecasts.busy, |flow_activity| flow_activity.busy),
            opened: of(flow_activity, id).map_or(0, |flow_activity| flow_activity.opened),
            loss_ppm: ppm(forecasts.loss),
            load_loss_ppm: ppm(forecasts.load_loss),
            last_opened: of(flow_activity, id).map_or(0, |flow_activity| flow_activity.last_opened),
        })
    }

    /// Returns the part of an uplink's capacity that the last forecast left to app-limited flows; `None` without such
    /// flows, and if the capacity is unknown.
    pub fn reservation(&self, id: UplinkId) -> Option<Reservation> {
        let mut reservations = self.reservations.iter();
        let (_, reservation) = reservations.find(|(uplink, _)| *uplink == id)?;
        Some(*reservation)
    }

    /// Drops the forecasts: no class uses them.
    pub fn forget(&mut self) {
        self.forecasts.clear();
        self.reservations.clear();
    }
}

fn of(flow_activity: &[FlowActivity], id: UplinkId) -> Option<&FlowActivity> {
    flow_activity
        .iter()
        .find(|flow_activity| flow_activity.uplink == id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use braid_balance::CachedPath;
    use braid_core::forecast::{DEFAULT_CAPACITY_KB_S, JUDGED_AFTER};

    const ID: UplinkId = UplinkId(3);

    fn nothing(_: UplinkId) -> Rate {
        Rate::from_bits_per_sec(0)
    }

    fn counted(data_packets: u64, lost: u64) -> [(UplinkId, UplinkCounters); 1] {
        let counters = UplinkCounters {
            data_packets,
            lost,
            ..UplinkCounters::default()
        };
        [(ID, counters)]
    }

    fn loss(forecasts: &mut UplinkForecasts) -> f64 {
        forecasts.compute(&[], |_| None, nothing)[0].loss
    }

    fn load_loss(forecasts: &mut UplinkForecasts) -> f64 {
        forecasts.compute(&[], |_| None, nothing)[0].load_loss
    }

    /// Notes the counters under a load, and lets as much time pass as it takes to judge them.
    fn note(forecasts: &mut UplinkForecasts, (packets, lost): (u64, u64), load: f64) {
        forecasts.note(Instant::now(), &counted(packets, lost), |_| load);
        for _ in 0..JUDGED_AFTER {
            forecasts.note(Instant::now(), &counted(packets, lost), |_| 0.0);
        }
    }

    #[test]
    fn what_an_earlier_daemon_counted_is_old_news() {
        let mut forecasts = UplinkForecasts::default();
        note(&mut forecasts, (1_000_000, 500_000), 0.0);
        assert_eq!(loss(&mut forecasts), 0.0);
        assert_eq!(load_loss(&mut forecasts), 0.0);
    }

    #[test]
    fn losses_are_those_since_the_last_update() {
        let mut forecasts = UplinkForecasts::default();
        note(&mut forecasts, (1_000_000, 500_000), 0.0);
        note(&mut forecasts, (1_002_000, 500_200), 0.9);
        assert_eq!(loss(&mut forecasts), 0.0);
        assert_eq!(load_loss(&mut forecasts), 0.1);
        note(&mut forecasts, (1_004_000, 500_240), 0.1);
        assert!((loss(&mut forecasts) - 0.016).abs() < 0.001);
    }

    #[test]
    fn what_paths_have_lost_before_is_of_their_uplinks_load() {
        let mut forecasts = UplinkForecasts::default();
        let path = |packets, lost, valid| CachedPath {
            uplink: ID,
            rtt: None,
            tried: false,
            age: Duration::ZERO,
            packets,
            lost,
            valid,
        };
        let entry = |paths| PathCacheEntry {
            prefix: [192, 0, 2, 0].into(),
            bits: 24,
            paths,
        };
        let valid = entry(vec![path(9_000, 270, true)]);
        let other = entry(vec![path(1_000, 0, true), path(100, 100, false)]);
        forecasts.note_paths(&[valid, other]);
        forecasts.note(Instant::now(), &counted(0, 0), |_| 0.0);
        assert_eq!(loss(&mut forecasts), 0.0);
        assert_eq!(load_loss(&mut forecasts), 0.027);
    }

    #[test]
    fn a_line_has_what_was_told_and_what_was_opened_since() {
        let mut forecasts = UplinkForecasts::default();
        forecasts.note(Instant::now(), &counted(0, 0), |_| 0.0);
        assert_eq!(forecasts.load(ID, &[]), None);
        let flow_activity = |opened, active, busy| FlowActivity {
            uplink: ID,
            opened,
            active,
            busy,
            last_opened: 7,
        };
        let headroom = Headroom {
            capacity: Rate::from_bits_per_sec(20_000_000),
            spare: Rate::from_bits_per_sec(4_000_000),
        };
        let known = |id| (id == ID).then_some(headroom);
        forecasts.compute(&[flow_activity(9, 2, 0)], known, nothing);
        let line = forecasts.load(ID, &[flow_activity(5, 1, 1)]).unwrap();
        let expected = UplinkLoad {
            capacity: 2500,
            spare: 500,
            busy: 1,
            opened: 5,
            loss_ppm: 0,
            load_loss_ppm: 0,
            last_opened: 7,
        };
        assert_eq!(line, expected);
        // Of 20 Mbit/s, a video wants 5; then more than the line can leave to it.
        for (wanted, left, spare) in [(5, 1875, 500), (17, 625, 500), (40, 625, 500)] {
            let wanted = Rate::from_bits_per_sec(wanted * 1_000_000);
            forecasts.compute(&[], known, |_| wanted);
            let line = forecasts.load(ID, &[]).unwrap();
            assert_eq!((line.capacity, line.spare), (left, spare));
            let reservation = forecasts.reservation(ID).unwrap();
            assert_eq!(
                (reservation.wanted, reservation.capacity),
                (wanted, headroom.capacity)
            );
            let all = u64::from(left) * 8000 + reservation.reserved.bits_per_sec();
            assert_eq!(all, 20_000_000);
        }
        forecasts.forget();
        assert_eq!(forecasts.reservation(ID), None);
        forecasts.compute(&[], |_| None, |_| Rate::from_bits_per_sec(1_000_000));
        assert_eq!(
            forecasts.reservation(ID),
            None,
            "of an unknown capacity nothing is reserved"
        );
        forecasts.compute(&[], |_| None, nothing);
        let line = forecasts.load(ID, &[]).unwrap();
        assert_eq!((line.capacity, line.headroom()), (0, DEFAULT_CAPACITY_KB_S));
        forecasts.forget();
        assert_eq!(forecasts.load(ID, &[]), None);
    }
}
