//! The clock that the programs stamp flows with.

use std::time::Duration;

/// An instant of the kernel's monotonic clock (`bpf_ktime_get_ns`, `CLOCK_MONOTONIC`), which
/// stands still while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelTime(Duration);

impl KernelTime {
    /// The instant `nanoseconds` after boot.
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(Duration::from_nanos(nanoseconds))
    }

    /// Nanoseconds after boot, as the programs count them.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Reads the clock.
    pub fn now() -> Self {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
            .expect("CLOCK_MONOTONIC exists on every Linux");
        Self(now.into())
    }

    /// Time from `earlier` to this instant; zero if `earlier` is later, as it can be for a stamp
    /// that a program wrote after this instant was read.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The instant `duration` later.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}
