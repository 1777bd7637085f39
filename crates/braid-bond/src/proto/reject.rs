//! Reasons for refusing datagrams, counted.

/// Reason for refusing a datagram, or a frame of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reject {
    /// Not of this protocol, or too short for its type.
    Malformed,
    /// For a session that this tunnel does not have (any more). A packet of this end that comes
    /// back counts here.
    Session,
    /// On a link that this tunnel does not have.
    Link,
    /// Its number was seen: replayed, or duplicated by the network.
    Seen,
    /// Its number is older than the replay window.
    Old,
    /// Sealed by other keys, or changed in transit.
    Forged,
    /// Authentic, but with a frame that cannot be parsed.
    Frame,
    /// Its inner packet refers to an unknown header context, or cannot be decompressed.
    Header,
    /// A handshake message that does not answer this end's.
    Handshake,
    /// A reset that is not from the responder.
    Reset,
    /// A cleartext packet that is not allowed: not agreed on, or not from the validated address, or
    /// with a frame that must be sealed, or with a number far beyond all sealed ones.
    Cleartext,
}

impl Reject {
    /// Every reason, in the order of their counters.
    pub const ALL: [Reject; 11] = [
        Reject::Malformed,
        Reject::Session,
        Reject::Link,
        Reject::Seen,
        Reject::Old,
        Reject::Forged,
        Reject::Frame,
        Reject::Header,
        Reject::Handshake,
        Reject::Reset,
        Reject::Cleartext,
    ];

    /// Its name in metrics and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reject::Malformed => "malformed",
            Reject::Session => "session",
            Reject::Link => "link",
            Reject::Seen => "seen",
            Reject::Old => "old",
            Reject::Forged => "forged",
            Reject::Frame => "frame",
            Reject::Header => "header",
            Reject::Handshake => "handshake",
            Reject::Reset => "reset",
            Reject::Cleartext => "cleartext",
        }
    }
}

/// Counters by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejects([u64; Reject::ALL.len()]);

impl Rejects {
    /// Counts one.
    pub fn count(&mut self, reason: Reject) {
        self.0[reason as usize] += 1;
    }

    /// Count of one reason.
    #[must_use]
    pub fn of(&self, reason: Reject) -> u64 {
        self.0[reason as usize]
    }

    /// Sum over all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let mut rejects = Rejects::default();
        for (times, reason) in Reject::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| rejects.count(reason));
        }
        for (times, reason) in Reject::ALL.into_iter().enumerate() {
            assert_eq!(rejects.of(reason), times as u64 + 1, "{}", reason.name());
        }
        assert_eq!(rejects.total(), 66);
        let names: std::collections::BTreeSet<_> = Reject::ALL.map(Reject::name).into();
        assert_eq!(names.len(), Reject::ALL.len());
    }
}
