//! Long-lived flows whose programs want no more than they get: videos, calls, backups with a limit.
//!
//! In: the bytes that each flow older than [`MIN_AGE`] has carried so far, about once a second. Out: the rate that such
//! flows want on an uplink, which other flows should leave to them.
//!
//! Rules and their reasons:
//! - A flow that shares a line with twenty others of a page gets a twentieth of it, although it may have been there
//!   first. A video then falls to its lowest quality. New flows do better on another line as well.
//! - A download takes what is there. Nothing is left to it: who comes later has the same right to the line.
//! - A rate is what a program wants if more was to be had: if the line had room, or if the flow pauses next.
//!   Players fetch segments at full rate and pause between them (RFC 9317, section 6.2), also on a line that
//!   one segment fills.
//! - While others crowd the line, such a flow neither pauses nor finds room. What it wanted before holds for a while then;
//!   it counts for less the more of the last half minute was like that. So does the rate of a download that
//!   leaves a gap now and then.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Bytes, MAX_UPLINKS, Rate, Time, UplinkId};

/// Age from which a flow counts. Pages are loaded by then.
pub const MIN_AGE: Duration = Duration::from_secs(10);
/// Shortest time between two counts.
const MIN_SPAN: Duration = Duration::from_millis(500);
/// Longest time between two counts; after a longer one, counting begins anew.
const MAX_SPAN: Duration = Duration::from_secs(10);
/// Time over which rates are averaged: a few segments of a video.
const AVERAGING_TIME: Duration = Duration::from_secs(10);
/// A pause shows what a flow wanted since its last one, or since the line had room, at most this long ago.
const MAX_UNCONFIRMED_S: f64 = 6.0;
/// A flow pauses below this fraction of what it wants, or below [`MIN_PAUSE_RATE`].
const PAUSE_FRACTION: f64 = 1.0 / 8.0;
/// In bits per second.
const MIN_PAUSE_RATE: f64 = 16_000.0;
/// Time over which the share of confirmed seconds is averaged.
const CONFIDENCE_TIME: Duration = Duration::from_secs(30);
/// Time that must have been averaged over, in seconds, before a rate counts.
const MIN_AVERAGED_S: f64 = 3.0;

/// Capacity that an uplink had left for its flows since the last count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineState {
    /// More than they took.
    Room,
    /// No more.
    Full,
    /// Next to nothing: that they carried little shows nothing.
    Stalled,
}

/// Total of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTotal {
    /// The uplink that carries it.
    pub uplink: UplinkId,
    /// Bytes carried so far in its busier direction.
    pub bytes: Bytes,
}

/// The flows that are limited by their programs, by a key that no two flows have.
#[derive(Clone, Debug)]
pub struct AppLimitedFlows<K> {
    counted: Option<Time>,
    flows: BTreeMap<K, Demand>,
    /// Sum for each uplink, in bits per second.
    demands: [f64; MAX_UPLINKS],
}

/// Rate that one flow wants, and the counts that show it.
#[derive(Clone, Copy, Debug)]
struct Demand {
    total: FlowTotal,
    /// Confirmed bits and seconds; old ones count less.
    bits: f64,
    seconds: f64,
    /// Bits and seconds since then.
    unconfirmed: (f64, f64),
    /// Seconds that were confirmed, and all, of late.
    confirmed: (f64, f64),
    /// True if it carried next to nothing since the last count. It pauses, unless its line proves to stall: that is found a
    /// little later.
    pauses: bool,
}

impl Demand {
    fn new(total: FlowTotal) -> Demand {
        Demand {
            total,
            bits: 0.0,
            seconds: 0.0,
            unconfirmed: (0.0, 0.0),
            confirmed: (0.0, 0.0),
            pauses: false,
        }
    }

    /// Returns bits per second.
    fn rate(&self) -> f64 {
        match self.seconds >= MIN_AVERAGED_S {
            true => self.bits / self.seconds * self.confirmed.0 / self.confirmed.1,
            false => 0.0,
        }
    }

    fn note(&mut self, total: FlowTotal, span: Duration, line: LineState) {
        let seconds = span.as_secs_f64();
        let bits = total.bytes.get().saturating_sub(self.total.bytes.get()) as f64 * 8.0;
        self.total = total;
        let pauses = std::mem::take(&mut self.pauses);
        if line == LineState::Stalled {
            self.unconfirmed = (0.0, 0.0);
            return;
        }
        if pauses {
            self.confirm();
        }
        self.unconfirmed.0 += bits;
        self.unconfirmed.1 += seconds;
        let little = (self.rate() * PAUSE_FRACTION).max(MIN_PAUSE_RATE);
        if line == LineState::Room {
            self.confirm();
        } else if bits / seconds < little {
            self.pauses = true;
        } else if self.unconfirmed.1 > MAX_UNCONFIRMED_S {
            let (_, seconds) = std::mem::take(&mut self.unconfirmed);
            self.count(seconds, false);
        }
    }

    fn confirm(&mut self) {
        let (bits, seconds) = std::mem::take(&mut self.unconfirmed);
        let kept = kept(seconds, AVERAGING_TIME);
        self.bits = self.bits * kept + bits;
        self.seconds = self.seconds * kept + seconds;
        self.count(seconds, true);
    }

    fn count(&mut self, seconds: f64, confirmed: bool) {
        let kept = kept(seconds, CONFIDENCE_TIME);
        let (yes, all) = self.confirmed;
        let more = if confirmed { seconds } else { 0.0 };
        self.confirmed = (yes * kept + more, all * kept + seconds);
    }
}

/// Returns the part of an average that is left after some seconds.
fn kept(seconds: f64, averaging: Duration) -> f64 {
    (-seconds / averaging.as_secs_f64()).exp()
}

impl<K> Default for AppLimitedFlows<K> {
    fn default() -> Self {
        AppLimitedFlows {
            counted: None,
            flows: BTreeMap::new(),
            demands: [0.0; MAX_UPLINKS],
        }
    }
}

impl<K: Ord> AppLimitedFlows<K> {
    /// Takes the totals at `now` of all flows older than [`MIN_AGE`] that are not idle; each has its key once. `line` tells
    /// of an uplink.
    pub fn note(
        &mut self,
        now: Time,
        totals: impl IntoIterator<Item = (K, FlowTotal)>,
        line: impl Fn(UplinkId) -> LineState,
    ) {
        let span = self.counted.map(|counted| now.since(counted));
        if span.is_some_and(|span| span < MIN_SPAN) {
            return;
        }
        self.counted = Some(now);
        let span = span.filter(|span| *span <= MAX_SPAN);
        let mut before = std::mem::take(&mut self.flows);
        self.demands = [0.0; MAX_UPLINKS];
        for (key, total) in totals {
            let known = before.remove(&key);
            let known = known.filter(|demand| demand.total.uplink == total.uplink);
            let mut demand = known.unwrap_or(Demand::new(total));
            match span {
                Some(span) if known.is_some() => demand.note(total, span, line(total.uplink)),
                _ => demand.total = total,
            }
            self.demands[total.uplink.index()] += demand.rate();
            self.flows.insert(key, demand);
        }
    }

    /// Returns the rate that an uplink's flows of this kind want.
    #[must_use]
    pub fn demand(&self, uplink: UplinkId) -> Rate {
        Rate::from_bits_per_sec(self.demands[uplink.index()] as u64)
    }

    /// Forgets all flows.
    pub fn clear(&mut self) {
        *self = AppLimitedFlows::default();
    }
}
