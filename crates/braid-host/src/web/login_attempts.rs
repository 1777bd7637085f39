//! Limit of wrong tokens from one network.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Wrong tokens in a row that cost no wait.
const FREE_FAILURES: u32 = 5;
/// Time after which one more is free again.
const FAILURE_INTERVAL: Duration = Duration::from_secs(10);
/// Networks whose failures are remembered.
const MAX_NETWORKS: usize = 1024;

/// Wrong tokens by the network that they came from: an IPv4 address or an IPv6 /64, since a host makes up
/// addresses of its own.
#[derive(Debug, Default)]
pub(super) struct LoginAttempts {
    /// Per network, the time at which all its failures are forgiven.
    forgiven: HashMap<IpAddr, Instant>,
}

impl LoginAttempts {
    /// Returns the time until the next token from there is looked at, if that is not now.
    pub fn check(&self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let Some(forgiven) = self.forgiven.get(&network(from)) else {
            return Ok(());
        };
        let owed = forgiven.saturating_duration_since(now);
        let free = FAILURE_INTERVAL * (FREE_FAILURES - 1);
        match owed.checked_sub(free) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => Ok(()),
        }
    }

    pub fn note_failure(&mut self, from: IpAddr, now: Instant) {
        self.forgiven.retain(|_, forgiven| *forgiven > now);
        let network = network(from);
        if self.forgiven.len() >= MAX_NETWORKS && !self.forgiven.contains_key(&network) {
            let first = self.forgiven.iter().min_by_key(|(_, forgiven)| **forgiven);
            if let Some(first) = first.map(|(network, _)| *network) {
                self.forgiven.remove(&first);
            }
        }
        let forgiven = self.forgiven.entry(network).or_insert(now);
        *forgiven += FAILURE_INTERVAL;
    }

    pub fn forget(&mut self, from: IpAddr) {
        self.forgiven.remove(&network(from));
    }
}

/// Returns what stands for a host's network.
pub(super) fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_guesses_six_times_a_minute_at_most() {
        let start = Instant::now();
        let mut attempts = LoginAttempts::default();
        let mut tried = 0;
        for second in 0..600 {
            // It changes its address within its network.
            let from = format!("2001:db8::{second:x}").parse().unwrap();
            let now = start + Duration::from_secs(second);
            if attempts.check(from, now).is_ok() {
                attempts.note_failure(from, now);
                tried += 1;
            }
        }
        assert!((60..=FREE_FAILURES + 60).contains(&tried), "{tried}");
        assert_eq!(
            attempts.check("192.0.2.1".parse().unwrap(), start),
            Ok(()),
            "others do not wait"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut attempts = LoginAttempts::default();
        for i in 0..5000_u32 {
            attempts.note_failure(std::net::Ipv4Addr::from_bits(i).into(), now);
        }
        assert_eq!(attempts.forgiven.len(), MAX_NETWORKS);
    }
}
