//! Why datagrams are refused, counted.

/// Why a datagram, or a part of it, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reject {
    /// Not of this protocol, or too short for what it says it is.
    Malformed,
    /// For a session that this tunnel does not have (any more). What we sent ourselves, and came
    /// back, is among these.
    Session,
    /// On a link that this tunnel does not have.
    Link,
    /// Its number was seen: replayed, or duplicated on the way.
    Seen,
    /// Its number is older than the replay window.
    Old,
    /// Sealed by other keys, or changed on the way.
    Forged,
    /// Authentic, but a frame in it cannot be read.
    Frame,
    /// Its inner packet refers to a header that is not known, or makes no sense.
    Header,
    /// A handshake message that is not an answer to ours.
    Handshake,
    /// A reset by somebody who is not the responder.
    Reset,
    /// Came in the clear, and must not: it was not agreed, or not from there, or says what only a
    /// sealed packet may say, or its number is far beyond all sealed ones.
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

    /// Its name in metrics and explanations.
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

/// How often each reason occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejects([u64; Reject::ALL.len()]);

impl Rejects {
    /// Counts one.
    pub fn count(&mut self, reason: Reject) {
        self.0[reason as usize] += 1;
    }

    /// How often.
    #[must_use]
    pub fn of(&self, reason: Reject) -> u64 {
        self.0[reason as usize]
    }

    /// How often any of them.
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
