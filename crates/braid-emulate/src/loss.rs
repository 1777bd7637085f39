//! Random and bursty loss.

use std::fmt;
use std::str::FromStr;

use braid_core::Share;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::rng::Rng;

/// Bursty loss by Gilbert's model with Elliott's extension: a link is good or bad, and loses a
/// packet with the probability of its state. Written `p,r` or `p,r,bad,good`.
///
/// Mean loss is `(p·bad + r·good) / (p + r)`; a bad period lasts `1/r` packets on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Probability, per packet, of turning bad.
    pub p: Share,
    /// Probability, per packet, of turning good again.
    pub r: Share,
    /// Loss probability while bad; 1 by default.
    pub bad: Share,
    /// Loss probability while good; 0 by default.
    pub good: Share,
}

/// A text that is not bursty loss.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not bursty loss: write \"p,r\", the probabilities of turning bad and of turning \
     good again, such as \"1 %, 20 %\"; then, if wanted, the loss while bad and while good"
)]
pub struct BurstError(String);

impl FromStr for Burst {
    type Err = BurstError;

    fn from_str(text: &str) -> Result<Burst, BurstError> {
        let refuse = |_| BurstError(text.to_owned());
        let parts: Vec<Share> = text
            .split(',')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(refuse)?;
        let burst = match parts[..] {
            [p, r] => Burst {
                p,
                r,
                bad: Share::ALL,
                good: Share::NONE,
            },
            [p, r, bad, good] => Burst { p, r, bad, good },
            _ => return Err(BurstError(text.to_owned())),
        };
        Ok(burst)
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}, {}", self.p, self.r, self.bad, self.good)
    }
}

impl Serialize for Burst {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Burst {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Burst, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Outcome for a packet on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossOutcome {
    Arrives,
    LostRandom,
    LostBurst,
}

/// Loss process: decides for one packet after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Loss {
    bad: bool,
}

impl Loss {
    pub fn next(&mut self, rng: &mut Rng, random: Share, burst: Option<Burst>) -> LossOutcome {
        if let Some(burst) = burst {
            let (turn, loss) = match self.bad {
                true => (burst.r, burst.bad),
                false => (burst.p, burst.good),
            };
            self.bad ^= rng.happens(turn);
            if rng.happens(loss) {
                return LossOutcome::LostBurst;
            }
        }
        if rng.happens(random) {
            LossOutcome::LostRandom
        } else {
            LossOutcome::Arrives
        }
    }
}
