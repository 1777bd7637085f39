//! QUIC servers without connection migration (RFC 9000 §9): they answered none of a client's packets from
//! another address. Their flows are closed the next time instead of being moved.
//!
//! Limits: [`MAX_SERVERS`] servers, each forgotten after [`FORGET_AFTER`]; the oldest one is replaced.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most servers remembered.
pub const MAX_SERVERS: usize = 1024;
/// Time after which a server is forgotten: servers are upgraded, and load balancers in front of them are
/// reconfigured.
pub const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The known servers.
#[derive(Clone, Debug, Default)]
pub struct NoMigration {
    learned: HashMap<IpAddr, Instant>,
}

impl NoMigration {
    /// Remembers a server at `now`; returns true if it was not known.
    pub fn learn(&mut self, server: IpAddr, now: Instant) -> bool {
        self.learned
            .retain(|_, learned| now.saturating_duration_since(*learned) < FORGET_AFTER);
        let fresh = self.learned.insert(server, now).is_none();
        if self.learned.len() > MAX_SERVERS {
            let first = self.learned.iter().min_by_key(|(_, learned)| **learned);
            if let Some((&first, _)) = first {
                self.learned.remove(&first);
            }
        }
        fresh
    }

    /// Returns true if a server's flows may be moved at `now`.
    #[must_use]
    pub fn survives(&self, server: IpAddr, now: Instant) -> bool {
        self.learned
            .get(&server)
            .is_none_or(|learned| now.saturating_duration_since(*learned) >= FORGET_AFTER)
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
    fn the_first_learned_gives_way() {
        let mut no_migration = NoMigration::default();
        let start = Instant::now();
        for n in 0..=u32::try_from(MAX_SERVERS).unwrap() {
            no_migration.learn(server(n), start + Duration::from_millis(n.into()));
        }
        assert!(no_migration.survives(server(0), start));
        assert!(!no_migration.survives(server(1), start));
        assert_eq!(no_migration.learned.len(), MAX_SERVERS);
    }
}
