//! Answers that are not believed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use braid_balance::KernelTime;

/// Why an answer of a name server is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DnsReject {
    /// It is no well-formed DNS answer.
    Malformed,
    /// It holds addresses of names that nobody asked for, and none of the one that was.
    NotAsked,
    /// Its aliases lead in a circle, or through too many names.
    AliasLoop,
    /// It gives a name an address that no server elsewhere can have.
    NotPublic,
    /// A client has asked a server that nobody but the client has chosen.
    NotTrusted,
}

impl DnsReject {
    /// All of them.
    pub const ALL: [DnsReject; 5] = [
        DnsReject::Malformed,
        DnsReject::NotAsked,
        DnsReject::AliasLoop,
        DnsReject::NotPublic,
        DnsReject::NotTrusted,
    ];

    /// A stable word for programs.
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

/// How often each was met.
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

    /// How often one was met.
    #[must_use]
    pub fn of(&self, reject: DnsReject) -> u64 {
        self.counts.get(&reject).copied().unwrap_or(0)
    }

    /// The last one, the server that it came from, and when.
    #[must_use]
    pub fn last(&self) -> Option<(DnsReject, SocketAddr, KernelTime)> {
        self.last
    }
}
