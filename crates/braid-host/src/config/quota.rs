//! Quotas of an uplink, or of a hub's client, for a day or a month: `"50 GB/month"`.

use std::fmt;
use std::str::FromStr;

use braid_core::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::as_text;

/// A volume per day or month by the machine's clock in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Quota {
    /// Bytes, both directions together, never zero.
    pub volume: Bytes,
    /// Period of the quota.
    pub period: Period,
}

/// Period after which a quota starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// At midnight.
    Day,
    /// On the first of the month.
    Month,
}

impl Quota {
    /// Fix for an invalid quota.
    pub const FIX: &'static str = "write it as \"50 GB/month\" or \"2 GB/day\"";
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = match self.period {
            Period::Day => "day",
            Period::Month => "month",
        };
        write!(f, "{}/{period}", self.volume)
    }
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (volume, period) = text.rsplit_once('/').ok_or("no period: /day or /month")?;
        let period = match period.trim() {
            "day" => Period::Day,
            "month" => Period::Month,
            other => return Err(format!("there is no period {other:?}, only day and month")),
        };
        let volume: Bytes = volume.trim().parse().map_err(|error| format!("{error}"))?;
        match volume.get() {
            0 => Err("a volume of nothing".to_owned()),
            _ => Ok(Quota { volume, period }),
        }
    }
}

as_text!(Quota);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        for text in ["50 GB/month", "2 GB/day", "1500 MB/day"] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!(quota.to_string().parse(), Ok(quota), "{text}");
        }
        let quota: Quota = "2 GB/day".parse().unwrap();
        assert_eq!(
            (quota.volume.get(), quota.period),
            (2_000_000_000, Period::Day)
        );
        for bad in [
            "",
            "50 GB",
            "50/month",
            "50 GB/year",
            "0 GB/month",
            "GB/day",
            "5 Gbit/day",
        ] {
            assert!(bad.parse::<Quota>().is_err(), "{bad}");
        }
    }
}
