//! The static keys of a responder: which of them an initiation is addressed to.

use super::initiation::Initiation;
use super::mac::MacKey;
use super::retired::RetiredKey;
use super::{HubKeys, Identity, PublicKey};

#[derive(Debug)]
pub(super) struct OwnKeys {
    current: OwnKey,
    /// The key before that, while peers may still use it.
    previous: Option<OwnKey>,
    retired: Option<RetiredKey>,
}

#[derive(Debug)]
struct OwnKey {
    identity: Identity,
    to_us: MacKey,
}

impl From<Identity> for OwnKey {
    fn from(identity: Identity) -> Self {
        OwnKey {
            to_us: MacKey::of(identity.public()),
            identity,
        }
    }
}

/// Addressee of an initiation, by its `mac1`.
pub(super) enum Addressee {
    /// A key that this responder has.
    Own(Identity),
    /// A key that it has no longer, with the notice that says so.
    Retired(Vec<u8>),
    /// Another key, or none.
    Nobody,
}

impl From<HubKeys> for OwnKeys {
    fn from(keys: HubKeys) -> Self {
        OwnKeys {
            current: keys.current.into(),
            previous: keys.previous.map(OwnKey::from),
            retired: keys.retired.map(RetiredKey::of),
        }
    }
}

impl OwnKeys {
    /// The current public key.
    pub fn public(&self) -> PublicKey {
        self.current.identity.public()
    }

    /// The addressee of an initiation: one hash for each key.
    pub fn addressee(&self, initiation: &Initiation<'_>) -> Addressee {
        let is_to = |key: &MacKey| key.verify(&[initiation.before_mac1], initiation.mac1);
        let own = [Some(&self.current), self.previous.as_ref()];
        if let Some(own) = own.into_iter().flatten().find(|own| is_to(&own.to_us)) {
            return Addressee::Own(own.identity.clone());
        }
        match self.retired.as_ref().filter(|key| is_to(&key.to_it)) {
            Some(key) => Addressee::Retired(key.notice(initiation.link, initiation.mac1)),
            None => Addressee::Nobody,
        }
    }
}
