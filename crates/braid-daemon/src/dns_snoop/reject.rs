//! Rejected DNS answers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use braid_balance::KernelTime;

/// The reason that an answer is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DnsReject {
    /// It is not a well-formed DNS answer.
    Malformed,
    /// It has addresses of names that were not queried, and none of the queried one.
    NotAsked,
    /// Its aliases form a loop, or a chain that is too long.
    AliasLoop,
    /// It gives a name an address that no public server can have.
    NotPublic,
    /// A client queried a server that is not trusted.
    NotTrusted,
}

impl DnsReject {
    /// All reasons.
    pub const ALL: [DnsReject; 5] = [
        DnsReject::Malformed,
        DnsReject::NotAsked,
        DnsReject::AliasLoop,
        DnsReject::NotPublic,
        DnsReject::NotTrusted,
    ];

    /// Returns a stable identifier for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DnsReject::Malformed => "malformed",
            DnsReject::NotAsked => "not_asked",
            DnsReject::AliasLoop => "alias_loop",
            DnsReject::NotPublic => "not_public",
            DnsReject::NotTrusted => "not_trusted",
        }
    }
}

impl fmt::Display for DnsReject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DnsReject::Malformed => "not a well-formed answer",
            DnsReject::NotAsked => "answers something else than was asked",
            DnsReject::AliasLoop => "its aliases lead in a circle",
            DnsReject::NotPublic => "gives a private or local address to a name elsewhere",
            DnsReject::NotTrusted => "a client asked it, and it is not among name_servers",
        })
    }
}

impl std::error::Error for DnsReject {}

/// Number of rejected answers by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectCounts {
    counts: BTreeMap<DnsReject, u64>,
    last: Option<(DnsReject, SocketAddr, KernelTime)>,
}

impl RejectCounts {
    pub(super) fn count(&mut self, reject: DnsReject, server: SocketAddr, now: KernelTime) {
        *self.counts.entry(reject).or_default() += 1;
        self.last = Some((reject, server, now));
    }

    /// Returns the count of one reason.
    #[must_use]
    pub fn of(&self, reject: DnsReject) -> u64 {
        self.counts.get(&reject).copied().unwrap_or(0)
    }

    /// Returns the last reason, the server of the answer, and the time.
    #[must_use]
    pub fn last(&self) -> Option<(DnsReject, SocketAddr, KernelTime)> {
        self.last
    }
}
