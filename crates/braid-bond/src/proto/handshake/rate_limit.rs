//! Rate limits, in total and per source.

use std::net::IpAddr;

use super::mac::MacKey;
use crate::proto::entropy::Entropy;
use braid_core::Time;

/// Buckets onto which addresses are hashed; the hash is keyed, so that an attacker cannot aim.
const SOURCE_BUCKETS: usize = 1024;

const NANOS: u64 = 1_000_000_000;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// ns of waiting that one token costs.
    cost: u64,
    /// Most ns of waiting that are saved up.
    most: u64,
    /// The time at which the bucket was empty: the time since then is saved up.
    empty: u64,
}

impl TokenBucket {
    pub const fn new(per_second: u64, burst: u64) -> Self {
        let cost = NANOS / per_second;
        TokenBucket {
            cost,
            most: cost * burst,
            empty: 0,
        }
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Time) -> bool {
        // The origin of time is a burst ago, so that the bucket begins full.
        let now = now.as_nanos().saturating_add(self.most);
        self.empty = self.empty.max(now - self.most);
        let enough = now >= self.empty + self.cost;
        if enough {
            self.empty += self.cost;
        }
        enough
    }
}

/// Size of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceScope {
    /// A machine: an IPv4 address, or an IPv6 /64.
    Host,
    /// A provider's customer: an IPv4 /24, or an IPv6 /48, which has 65,536 networks.
    Site,
}

impl SourceScope {
    /// Length of the prefix in an address's IPv6 form, bytes.
    fn bytes(self, v6: bool) -> usize {
        match (self, v6) {
            (SourceScope::Host, false) => 16,
            (SourceScope::Site, false) => 15,
            (SourceScope::Host, true) => 8,
            (SourceScope::Site, true) => 6,
        }
    }
}

/// A bucket for each hash of a host or site.
#[derive(Debug)]
pub(super) struct SourceLimiter {
    secret: MacKey,
    each: SourceScope,
    buckets: Box<[TokenBucket]>,
}

impl SourceLimiter {
    /// `bucket` is the limit of each source.
    pub fn new(each: SourceScope, bucket: TokenBucket, entropy: &mut Entropy) -> Self {
        SourceLimiter {
            secret: MacKey::secret(&entropy.bytes::<32>()),
            each,
            buckets: vec![bucket; SOURCE_BUCKETS].into_boxed_slice(),
        }
    }

    /// Takes a token of this address's source.
    pub fn take(&mut self, now: Time, from: IpAddr) -> bool {
        let mut octets = match from {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        octets[self.each.bytes(from.is_ipv6())..].fill(0);
        let [a, b, ..] = self.secret.sign(&[&octets]);
        let bucket = usize::from(u16::from_be_bytes([a, b])) % SOURCE_BUCKETS;
        self.buckets[bucket].take(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_gives_a_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::new(10, 4);
        let given = |bucket: &mut TokenBucket, now| (0..100).filter(|_| bucket.take(now)).count();
        assert_eq!(given(&mut bucket, Time::ZERO), 4);
        let second = Time::ZERO + Duration::from_secs(1);
        assert_eq!(given(&mut bucket, second), 4, "no more than a burst");
        let later = second + Duration::from_millis(250);
        assert_eq!(given(&mut bucket, later), 2);
        assert_eq!(
            given(&mut bucket, second),
            0,
            "time that goes back gives nothing"
        );
    }

    #[test]
    fn one_address_cannot_use_up_what_another_has() {
        let mut entropy = Entropy::new(&[1; 32]);
        let mut sources =
            SourceLimiter::new(SourceScope::Host, TokenBucket::new(10, 40), &mut entropy);
        let greedy = IpAddr::from([192, 0, 2, 1]);
        let asked = (0..100).filter(|_| sources.take(Time::ZERO, greedy));
        assert_eq!(asked.count(), 40);
        assert!(sources.take(Time::ZERO, IpAddr::from([192, 0, 2, 2])));
        let net = |low| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, low]);
        let asked = (0..100).filter(|low| sources.take(Time::ZERO, net(*low)));
        assert_eq!(asked.count(), 40, "a /64 is one");
        let mut sites =
            SourceLimiter::new(SourceScope::Site, TokenBucket::new(10, 40), &mut entropy);
        let net = |low| IpAddr::from([0x2001, 0xdb8, 0, low, 0, 0, 0, 1]);
        let asked = (0..100).filter(|low| sites.take(Time::ZERO, net(*low)));
        assert_eq!(asked.count(), 40, "a /48 is one");
        let asked = (0..100).filter(|low| sites.take(Time::ZERO, [192, 0, 2, *low].into()));
        assert_eq!(asked.count(), 40, "a /24 is one");
    }
}
