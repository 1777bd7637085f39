//! How long a transfer would take by one uplink: what policy `fastest` chooses by.
//!
//! The datapath predicts for each uplink how long a transfer of [`REFERENCE_BYTES`] to one destination
//! would take by it, and a new flow takes the uplink with the shortest time. What is here is the
//! datapath's arithmetic (`outlook.h`) over again, in whole numbers and to the last digit, for
//! explanations and for tests that hold the two against each other.
//!
//! The model, and why:
//! - Short transfers are made of round trips: [`STARTUP_ROUND_TRIPS`] of them are counted for the handshake and
//!   for slow start, whose rounds Cardwell, Savage and Anderson (*Modeling TCP latency*, INFOCOM
//!   2000) count for transfers that end before the first loss. A flow that starts with ten segments
//!   and doubles has sent 1 MB after six.
//! - Long transfers go at a rate. Loss bounds it at MSS·C / (RTT·√p) with C = √(3/2), after Mathis,
//!   Semke, Mahdavi and Ott (*The macroscopic behavior of the TCP congestion avoidance algorithm*,
//!   CCR 27(3), 1997).
//! - No flow gets more than the uplink has left, or than its fair part of it, whichever is more. Flows
//!   that were opened since the load was measured count as if they took such a part: otherwise all
//!   new flows of one moment would follow the same figures to the same uplink.
//! - Where nothing is known of the ways to a destination, lines are compared by what they promise at a
//!   usual round trip ([`UplinkLoad::prospect`]), so that a full or lossy one does not win a race because its
//!   SYN was lucky.
//! - Few packets say little about loss. Each path starts with the uplink's own loss as if
//!   [`PRIOR_PACKETS`] packets had shown it, and its own packets outweigh that in time.

use std::time::Duration;

use crate::{Bytes, Rate};

/// The transfer whose time is predicted: about a page's larger parts.
pub const REFERENCE_BYTES: Bytes = Bytes::new(1_000_000);
/// Round trips that a transfer takes before it goes at its rate.
pub const STARTUP_ROUND_TRIPS: u64 = 6;
/// How many packets of a path weigh as much as what is known of its uplink.
pub const PRIOR_PACKETS: u64 = 500;
/// The least loss that is assumed, in millionths: nothing is known to be less.
pub const MIN_LOSS_PPM: u64 = 10;
/// The rate of an uplink of which nobody knows what it can carry, in kilobytes a second: 20 Mbit/s, a
/// slow line of today's. Any customary one will do that has flows opened at once take turns.
pub const DEFAULT_CAPACITY_KB_S: u32 = 2_500;
/// The highest rate there is, in kilobytes a second: 17 Tbit/s.
pub const MAX_RATE_KB_S: u32 = u32::MAX / 2;

/// The round trip at which lines are compared with each other.
pub const REFERENCE_RTT: Duration = Duration::from_millis(50);
/// A line whose transfer takes more than so many times that of the best one is left out of a race.
pub const MAX_RACE_TIME_RATIO: u32 = 2;

/// (MSS·√(3/2))² for an MSS of 1460 bytes, in the units of [`Prediction`]'s fields, rounded.
const MATHIS_CONSTANT: u64 = 3_200_000_000_000_000_000;
/// Round trips outside of these are taken for the nearest of them, in microseconds.
const RTT_BOUNDS_US: (u64, u64) = (100, 2_000_000);
/// All of it, in millionths.
const PPM: u64 = 1_000_000;

/// What is known of an uplink as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkLoad {
    /// What it can carry, in kilobytes (of 1000 bytes) a second; see [`kilobytes`]. 0: not known, so it
    /// is taken for [`DEFAULT_CAPACITY_KB_S`], all of it free.
    pub capacity: u32,
    /// What it has left of that.
    pub spare: u32,
    /// Flows that are moving much on it.
    pub busy: u32,
    /// Flows that were opened on it since the others were measured.
    pub opened: u32,
    /// Its loss on all paths, in millionths; see [`ppm`].
    pub loss_ppm: u32,
}

/// What is known of the way to a destination by one uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStats {
    /// Its round-trip time.
    pub rtt: Duration,
    /// Packets with data that were watched.
    pub packets: u32,
    /// Of those, how many were lost on the way.
    pub lost: u32,
}

/// How a transfer would fare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Loss that is expected, in millionths.
    pub loss_ppm: u32,
    /// What the uplink has for one flow more, in kilobytes a second, at least 1.
    pub headroom: u32,
    /// What loss and round trips leave of any rate, in kilobytes a second.
    pub mathis: u32,
    /// How long a transfer of [`REFERENCE_BYTES`] takes.
    pub time: Duration,
}

impl UplinkLoad {
    /// How a transfer by this line and path would fare.
    #[must_use]
    pub fn predict(&self, path: &PathStats) -> Prediction {
        let rtt = u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX);
        let rtt = rtt.clamp(RTT_BOUNDS_US.0, RTT_BOUNDS_US.1);
        let loss = self.loss(path);
        let headroom = self.headroom();
        // At most 4·10¹⁸.
        let mathis = (MATHIS_CONSTANT / (rtt * rtt * loss)).isqrt();
        let rate = mathis.clamp(1, u64::from(headroom));
        let time = STARTUP_ROUND_TRIPS * rtt + REFERENCE_BYTES.get() * 1_000 / rate;
        Prediction {
            loss_ppm: narrow(loss),
            headroom,
            mathis: narrow(mathis),
            time: Duration::from_micros(time),
        }
    }

    /// How long a transfer takes where nothing is known of the way.
    #[must_use]
    pub fn reference_time(&self) -> Duration {
        let usual = PathStats {
            rtt: REFERENCE_RTT,
            packets: 0,
            lost: 0,
        };
        self.predict(&usual).time
    }

    /// The loss of a path, in millionths.
    fn loss(&self, path: &PathStats) -> u64 {
        let seen = u64::from(path.lost) * PPM;
        let prior = u64::from(self.loss_ppm) * PRIOR_PACKETS;
        let loss = (seen + prior) / (u64::from(path.packets) + PRIOR_PACKETS);
        loss.clamp(MIN_LOSS_PPM, PPM)
    }

    /// What it has for one flow more, in kilobytes a second, at least 1.
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

/// A rate as [`UplinkLoad`] has it: whole kilobytes a second, at most [`MAX_RATE_KB_S`].
#[must_use]
pub fn kilobytes_per_sec(rate: Rate) -> u32 {
    let kilobytes_per_sec = rate.bits_per_sec() / 8_000;
    u32::try_from(kilobytes_per_sec).map_or(MAX_RATE_KB_S, |kilobytes_per_sec| {
        kilobytes_per_sec.min(MAX_RATE_KB_S)
    })
}

/// A fraction in millionths, rounded; what is no fraction counts as the nearest one.
#[must_use]
pub fn ppm(fraction: f64) -> u32 {
    // In range: NaN becomes zero.
    (fraction.clamp(0.0, 1.0) * 1e6).round() as u32
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
