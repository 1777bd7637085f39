//! Answers that are not believed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use braid_balance::KernelTime;

/// Why an answer of a name server is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lie {
    /// It is no well-formed DNS answer.
    Malformed,
    /// It holds addresses of names that nobody asked for, and none of the one that was.
    NotAsked,
    /// Its aliases lead in a circle, or through too many names.
    Circle,
    /// It gives a name an address that no server elsewhere can have.
    NotElsewhere,
    /// A client has asked a server that nobody but the client has chosen.
    NotTrusted,
}

impl Lie {
    /// All of them.
    pub const ALL: [Lie; 5] = [
        Lie::Malformed,
        Lie::NotAsked,
        Lie::Circle,
        Lie::NotElsewhere,
        Lie::NotTrusted,
    ];

    /// A stable word for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Lie::Malformed => "malformed",
            Lie::NotAsked => "not_asked",
            Lie::Circle => "circle",
            Lie::NotElsewhere => "not_elsewhere",
            Lie::NotTrusted => "not_trusted",
        }
    }
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lie::Malformed => "not a well-formed answer",
            Lie::NotAsked => "answers something else than was asked",
            Lie::Circle => "its aliases lead in a circle",
            Lie::NotElsewhere => "gives a private or local address to a name elsewhere",
            Lie::NotTrusted => "a client asked it, and it is not among name_servers",
        })
    }
}

impl std::error::Error for Lie {}

/// How often each was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lies {
    counts: BTreeMap<Lie, u64>,
    last: Option<(Lie, SocketAddr, KernelTime)>,
}

impl Lies {
    pub(super) fn count(&mut self, lie: Lie, server: SocketAddr, now: KernelTime) {
        *self.counts.entry(lie).or_default() += 1;
        self.last = Some((lie, server, now));
    }

    /// How often one was met.
    #[must_use]
    pub fn of(&self, lie: Lie) -> u64 {
        self.counts.get(&lie).copied().unwrap_or(0)
    }

    /// The last one, the server that it came from, and when.
    #[must_use]
    pub fn last(&self) -> Option<(Lie, SocketAddr, KernelTime)> {
        self.last
    }
}
