//! QUIC servers that did not survive a move: they were sent a client's packets from another address
//! and answered none of them. Their flows are told the next time instead of being moved.
//!
//! What bounds it: [`MAX_SERVERS`] servers, each forgotten after [`FORGET_AFTER`]; the one learnt first gives way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most servers remembered.
pub const MAX_SERVERS: usize = 1024;
/// How long a server is remembered: servers are upgraded, and load balancers in front of them are
/// set up anew.
pub const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The servers.
#[derive(Clone, Debug, Default)]
pub struct NoMigration {
    learnt: HashMap<IpAddr, Instant>,
}

impl NoMigration {
    /// Remembers a server at `now`; `true` if it was not known.
    pub fn learn(&mut self, server: IpAddr, now: Instant) -> bool {
        self.learnt
            .retain(|_, learnt| now.saturating_duration_since(*learnt) < FORGET_AFTER);
        let fresh = self.learnt.insert(server, now).is_none();
        if self.learnt.len() > MAX_SERVERS {
            let first = self.learnt.iter().min_by_key(|(_, learnt)| **learnt);
            if let Some((&first, _)) = first {
                self.learnt.remove(&first);
            }
        }
        fresh
    }

    /// Whether a server's flows may be moved at `now`.
    #[must_use]
    pub fn survives(&self, server: IpAddr, now: Instant) -> bool {
        self.learnt
            .get(&server)
            .is_none_or(|learnt| now.saturating_duration_since(*learnt) >= FORGET_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn a_server_is_remembered_for_a_day() {
        let mut no_migration = NoMigration::default();
        let now = Instant::now();
        assert!(no_migration.learn(server(1), now));
        assert!(!no_migration.learn(server(1), now));
        assert!(!no_migration.survives(server(1), now));
        assert!(no_migration.survives(server(2), now));
        assert!(no_migration.survives(server(1), now + FORGET_AFTER));
    }

    #[test]
    fn the_first_learnt_gives_way() {
        let mut no_migration = NoMigration::default();
        let start = Instant::now();
        for n in 0..=u32::try_from(MAX_SERVERS).unwrap() {
            no_migration.learn(server(n), start + Duration::from_millis(n.into()));
        }
        assert!(no_migration.survives(server(0), start));
        assert!(!no_migration.survives(server(1), start));
        assert_eq!(no_migration.learnt.len(), MAX_SERVERS);
    }
}
