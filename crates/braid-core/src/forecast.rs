//! Forecast of a transfer's time over one uplink, by which the policy `fastest` chooses.
//!
//! For each uplink the datapath predicts the times of a short and of a long transfer to one
//! destination; a new flow takes the uplink with the smallest product of the two. This module
//! repeats the datapath's arithmetic in whole numbers and to the last digit, for explanations and
//! for tests that compare the two.
//!
//! The model and its reasons:
//! - Nobody knows the size of a flow that begins. A page's connections carry some 100 kB and spend most
//!   of their time on round trips; a download's time is a matter of rate alone. The
//!   product of both times grows by as much if either takes a tenth longer, so neither is spoiled
//!   for the other. By the long time alone, the forty connections of a page spread by the lines'
//!   capacities: of 20 and 30 Mbit/s the second, of twice the round trip, took 24 of them and ended
//!   last; the page took 1.2 times as long as round robin. By the short time alone, ten downloads
//!   crowd the nearer line.
//! - Short transfers are made of round trips. [`STARTUP_ROUND_TRIPS`] are counted for the handshake
//!   and slow start; Cardwell, Savage and Anderson (*Modeling TCP latency*, INFOCOM 2000) count
//!   slow start's rounds for transfers that end before the first loss. A flow that starts with ten
//!   segments and doubles has sent 1 MB after six.
//! - Long transfers go at a rate. Loss bounds it at MSS·C / (RTT·√p) with C = √(3/2), after Mathis,
//!   Semke, Mahdavi and Ott (*The macroscopic behavior of the TCP congestion avoidance algorithm*,
//!   CCR 27(3), 1997).
//! - Where flows move data and leave little, a queue stands. It lengthens round trips by as much as
//!   they are long if the buffer is a bandwidth-delay product, the usual advice; they count twice.
//!   By the times without it, short transfers would not mind a full line.
//! - No flow gets more than the uplink's spare rate or its fair share, whichever is more. Flows
//!   opened since the load was measured count as if they took such a share: otherwise all new flows
//!   of one moment would choose the same uplink by the same figures.
//! - If no path to a destination is known, uplinks are compared at a reference round trip
//!   ([`UplinkLoad::reference_time`]), so that a full or lossy one does not win a race by a lucky
//!   SYN.
//! - Few packets say little about loss. Each path starts with the uplink's own loss as if
//!   [`PRIOR_PACKETS`] packets had shown it; its own packets outweigh that in time.
//! - A path's losses count as far as they exceed what the uplink's load costs all its packets
//!   ([`UplinkLosses::load_share`]). Senders find a line's limit by losing packets there; most of them are of the paths
//!   that are used most, and say nothing of the next flow, which finds the load of its own time.

mod losses;

use std::time::Duration;

pub use losses::{JUDGED_AFTER, PacketCounts, UplinkLosses};

use crate::{Bytes, Rate};

/// Size of the long transfer: about the larger parts of a web page.
pub const REFERENCE_BYTES: Bytes = Bytes::new(1_000_000);
/// Size of the short transfer: that of a page's usual connection, of two or three objects.
pub const SHORT_BYTES: Bytes = Bytes::new(REFERENCE_BYTES.get() / SHORT_DIVISOR);
/// Long transfers' size, divided by that of short ones.
const SHORT_DIVISOR: u64 = 10;
/// Round trips of a transfer before it goes at its rate.
pub const STARTUP_ROUND_TRIPS: u64 = 6;
/// Weight of the uplink's loss, in packets of the path.
pub const PRIOR_PACKETS: u64 = 500;
/// Least loss assumed, in millionths: no path is known to lose less.
pub const MIN_LOSS_PPM: u64 = 10;
/// An uplink is full if flows move data and less than its capacity divided by this is spare.
pub const FULL_DIVISOR: u32 = 4;
/// Scores that exceed the best one by less than this part of it are equal to it: each of the two times differs by 3 % or
/// so, less than any of the figures is known to.
const EQUAL_DIVISOR: u128 = 16;
/// Capacity of an uplink for which none is known, in kilobytes a second: 8 Mbit/s, a slow line
/// today. The lower it is, the more evenly do simultaneous flows spread over lines of which nothing
/// but the round trips is known.
pub const DEFAULT_CAPACITY_KB_S: u32 = 1_000;
/// Highest rate, in kilobytes a second: 17 Tbit/s.
pub const MAX_RATE_KB_S: u32 = u32::MAX / 2;

/// Round trip at which uplinks are compared.
pub const REFERENCE_RTT: Duration = Duration::from_millis(50);
/// An uplink whose reference time exceeds the best one's by more than this factor takes no part in
/// a race.
pub const MAX_RACE_TIME_RATIO: u32 = 2;

/// (MSS·√(3/2))² for an MSS of 1460 bytes, in the units of [`Prediction`]'s fields, rounded.
const MATHIS_CONSTANT: u64 = 3_200_000_000_000_000_000;
/// Bounds in microseconds to which round trips are clamped.
const RTT_BOUNDS_US: (u64, u64) = (100, 2_000_000);
/// One, in millionths.
const PPM: u64 = 1_000_000;

/// Load of an uplink; by default nothing is known of its capacity, and nothing uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkLoad {
    /// Capacity in kilobytes (1000 bytes) a second; see [`kilobytes_per_sec`]. 0 if not known: then
    /// [`DEFAULT_CAPACITY_KB_S`] is assumed, all of it spare.
    pub capacity: u32,
    /// Unused part of the capacity, in kilobytes a second.
    pub spare: u32,
    /// Flows that move much data.
    pub busy: u32,
    /// Flows opened since the others were counted.
    pub opened: u32,
    /// Loss over all paths while it carries little, in millionths; see [`ppm`].
    pub loss_ppm: u32,
    /// Loss over all paths that its own load causes, in millionths.
    pub load_loss_ppm: u32,
    /// Time at which the last flow was opened, in any unit: it only orders uplinks, see [`in_turn`].
    pub last_opened: u64,
}

/// Statistics of the path to a destination over one uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStats {
    /// Round-trip time.
    pub rtt: Duration,
    /// Data packets observed.
    pub packets: u32,
    /// Number of those packets that were lost.
    pub lost: u32,
}

/// Prediction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Expected loss, in millionths.
    pub loss_ppm: u32,
    /// Rate that the uplink has for one more flow, in kilobytes a second, at least 1.
    pub headroom: u32,
    /// Rate bound by loss and round trip, in kilobytes a second.
    pub mathis: u32,
    /// Time of a transfer of [`SHORT_BYTES`].
    pub short_time: Duration,
    /// Time of a transfer of [`REFERENCE_BYTES`].
    pub time: Duration,
}

impl Prediction {
    /// Returns the product of both times, by which paths are compared, in square microseconds.
    #[must_use]
    pub fn score(&self) -> u128 {
        self.short_time.as_micros() * self.time.as_micros()
    }
}

impl UplinkLoad {
    /// Predicts a transfer over this uplink and path.
    #[must_use]
    pub fn predict(&self, path: &PathStats) -> Prediction {
        let rtt = u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX);
        let within = |rtt: u64| rtt.clamp(RTT_BOUNDS_US.0, RTT_BOUNDS_US.1);
        let rtt = match self.is_full() {
            true => within(2 * within(rtt)),
            false => within(rtt),
        };
        let loss = self.loss(path);
        let headroom = self.headroom();
        // At most 4·10¹⁸.
        let mathis = (MATHIS_CONSTANT / (rtt * rtt * loss)).isqrt();
        let rate = mathis.clamp(1, u64::from(headroom));
        let rounds = STARTUP_ROUND_TRIPS * rtt;
        let transmission = REFERENCE_BYTES.get() * 1_000 / rate;
        Prediction {
            loss_ppm: narrow(loss),
            headroom,
            mathis: narrow(mathis),
            short_time: Duration::from_micros(rounds + transmission / SHORT_DIVISOR),
            time: Duration::from_micros(rounds + transmission),
        }
    }

    /// Returns the transfer time at the reference round trip, for a destination without a known
    /// path.
    #[must_use]
    pub fn reference_time(&self) -> Duration {
        let usual = PathStats {
            rtt: REFERENCE_RTT,
            packets: 0,
            lost: 0,
        };
        self.predict(&usual).time
    }

    /// Returns true if a queue is likely: busy flows leave little of the capacity.
    fn is_full(&self) -> bool {
        self.busy > 0 && self.spare < self.capacity / FULL_DIVISOR
    }

    /// Returns the loss of a path, in millionths.
    fn loss(&self, path: &PathStats) -> u64 {
        let usual = u64::from(path.packets) * u64::from(self.load_loss_ppm);
        let seen = (u64::from(path.lost) * PPM).saturating_sub(usual);
        let prior = u64::from(self.loss_ppm) * PRIOR_PACKETS;
        let loss = (seen + prior) / (u64::from(path.packets) + PRIOR_PACKETS);
        loss.clamp(MIN_LOSS_PPM, PPM)
    }

    /// Returns the rate left for one more flow, in kilobytes a second, at least 1.
    #[must_use]
    pub fn headroom(&self) -> u32 {
        let (capacity, spare) = match self.capacity {
            0 => (DEFAULT_CAPACITY_KB_S, DEFAULT_CAPACITY_KB_S),
            capacity => (capacity, self.spare),
        };
        let spare = spare / self.opened.saturating_add(1);
        let sharers = self.busy.saturating_add(self.opened).saturating_add(1);
        spare.max(capacity / sharers).max(1)
    }
}

/// Returns the place of the candidate that a new flow takes, from the candidates' scores and the times at which they were
/// last given a flow: of those whose score is the smallest or nearly so, the one that has waited longest.
///
/// The figures of two equal uplinks differ by chance. By the figures alone flows that end soon, one after the other,
/// would all take the same uplink.
#[must_use]
pub fn in_turn(candidates: &[(u128, u64)]) -> Option<usize> {
    let best = candidates.iter().map(|(score, _)| *score).min()?;
    let equal = |place: &usize| candidates[*place].0 <= best + best / EQUAL_DIVISOR;
    (0..candidates.len())
        .filter(equal)
        .min_by_key(|place| candidates[*place].1)
}

/// Converts a rate to the unit of [`UplinkLoad`]: whole kilobytes a second, at most
/// [`MAX_RATE_KB_S`].
#[must_use]
pub fn kilobytes_per_sec(rate: Rate) -> u32 {
    let kilobytes_per_sec = rate.bits_per_sec() / 8_000;
    u32::try_from(kilobytes_per_sec).map_or(MAX_RATE_KB_S, |kilobytes_per_sec| {
        kilobytes_per_sec.min(MAX_RATE_KB_S)
    })
}

/// Converts a fraction to millionths, rounded; a value outside 0 to 1 is clamped.
#[must_use]
pub fn ppm(fraction: f64) -> u32 {
    // In range: NaN becomes zero.
    (fraction.clamp(0.0, 1.0) * 1e6).round() as u32
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
