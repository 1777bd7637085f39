//! The hub's static keys as they are stored: the current one, the one before it while clients may
//! still use it, and the public part of the last one that was erased.

use braid_bond::proto::handshake::{HubKeys, Identity, KeyBytes, PublicKey};
use serde::{Deserialize, Serialize};

use super::record::key_bytes;
use crate::client::{Seconds, optional_key_text};

/// Identity of a hub, made once and kept for its life.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredIdentity {
    /// Its private key.
    #[serde(with = "key_bytes")]
    pub private: KeyBytes,
    /// Global ID of its inner IPv6 network, if none is configured (RFC 4193 §3.2.2).
    pub global: [u8; 5],
    /// The key before that, until it is erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousKey>,
    /// The last key that was erased.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "optional_key_text"
    )]
    pub retired: Option<PublicKey>,
}

/// A key that was replaced, and by which clients may still come.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousKey {
    /// The private key.
    #[serde(with = "key_bytes")]
    private: KeyBytes,
    /// Time of its replacement.
    pub since: Seconds,
    /// End of the overlap: it is not valid any more then.
    pub until: Seconds,
}

impl std::fmt::Debug for StoredIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredIdentity(…)")
    }
}

impl std::fmt::Debug for PreviousKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PreviousKey(until {})", self.until)
    }
}

impl PreviousKey {
    /// The public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        Identity::new(self.private.clone()).public()
    }
}

impl StoredIdentity {
    /// The identity of a new hub.
    #[must_use]
    pub fn new(private: impl Into<KeyBytes>, global: [u8; 5]) -> Self {
        StoredIdentity {
            private: private.into(),
            global,
            previous: None,
            retired: None,
        }
    }

    /// This identity with another key from now on. The present one stays valid until `until`.
    #[must_use]
    pub fn rotated(&self, private: impl Into<KeyBytes>, now: Seconds, until: Seconds) -> Self {
        StoredIdentity {
            private: private.into(),
            global: self.global,
            previous: Some(PreviousKey {
                private: self.private.clone(),
                since: now,
                until,
            }),
            retired: self.retired,
        }
    }

    /// Returns true if the overlap is over.
    #[must_use]
    pub fn is_overlap_over(&self, now: Seconds) -> bool {
        let previous = self.previous.as_ref();
        previous.is_some_and(|previous| now >= previous.until)
    }

    /// This identity without the previous private key.
    #[must_use]
    pub fn retired(&self) -> Self {
        let mut retired = self.clone();
        if let Some(previous) = retired.previous.take() {
            retired.retired = Some(previous.public());
        }
        retired
    }

    /// The keys for the packet thread at `now`: without the previous one once the overlap is over, also if it is not
    /// erased yet.
    #[must_use]
    pub fn keys_at(&self, now: Seconds) -> HubKeys {
        match self.is_overlap_over(now) {
            true => self.retired().keys(),
            false => self.keys(),
        }
    }

    /// All keys that are not erased.
    #[must_use]
    pub fn keys(&self) -> HubKeys {
        let previous = self.previous.as_ref();
        HubKeys {
            current: Identity::new(self.private.clone()),
            previous: previous.map(|previous| Identity::new(previous.private.clone())),
            retired: self.retired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Seconds = 1_000_000;

    #[test]
    fn the_previous_key_is_valid_until_the_overlap_ends() {
        let founding = StoredIdentity::new([1; 32], [2; 5]);
        assert!(!founding.is_overlap_over(u64::MAX), "there is none");
        let first = founding.keys().current.public();
        let rotated = founding.rotated([3; 32], NOW, NOW + 100);
        let keys = rotated.keys();
        assert_ne!(keys.current.public(), first);
        assert_eq!(keys.previous.map(|key| key.public()), Some(first));
        assert_eq!(keys.retired, None);
        assert_eq!(rotated.global, [2; 5], "the inner network stays");
        assert!(!rotated.is_overlap_over(NOW + 99) && rotated.is_overlap_over(NOW + 100));
        // Also if the clock goes back.
        for (now, is_valid) in [(NOW + 100, false), (NOW + 99, true)] {
            let keys = rotated.keys_at(now);
            let old = Some(first);
            let has = (keys.previous.map(|key| key.public()), keys.retired);
            assert_eq!(has, if is_valid { (old, None) } else { (None, old) });
        }

        let retired = rotated.retired();
        let keys = retired.keys();
        assert!(keys.previous.is_none());
        assert_eq!(keys.retired, Some(first));
        assert_eq!(*retired.private, [3; 32]);
        let text = serde_json::to_string(&retired).unwrap();
        let erased = serde_json::to_string(&[1u8; 32]).unwrap();
        assert!(!text.contains(&erased), "{text}");
        let read: StoredIdentity = serde_json::from_str(&text).unwrap();
        assert_eq!(read, retired);
        // During the next overlap the one before the last is still told apart.
        let again = retired.rotated([4; 32], NOW + 200, NOW + 300);
        assert_eq!(again.keys().retired, Some(first));
    }

    #[test]
    fn a_record_from_before_keys_were_replaced_is_read() {
        let founding = StoredIdentity::new([1; 32], [2; 5]);
        let text = serde_json::to_string(&founding).unwrap();
        assert!(
            !text.contains("previous") && !text.contains("retired"),
            "{text}"
        );
        let read: StoredIdentity = serde_json::from_str(&text).unwrap();
        assert_eq!(read, founding);
    }
}
