//! Record of a client.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_bond::proto::handshake::terms::MAX_NAME_LENGTH;
use braid_bond::proto::handshake::{KeyBytes, Psk, PublicKey};
use braid_bond::token::InvitationId;
use braid_core::Rate;
use braid_host::quota::Used;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

/// Seconds since 1970.
pub type Seconds = u64;

/// A client's name: 1 to 32 letters, digits, `-`, `_` and `.`, beginning with a letter or a digit, so
/// that it is one word in a table, a command line and a metric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Error of a text that is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for a client: write 1 to {MAX_NAME_LENGTH} letters, digits, \"-\", \"_\" and \".\", \
     the first a letter or a digit"
)]
pub struct InvalidName(String);

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let first = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match first && text.len() <= MAX_NAME_LENGTH && text.chars().all(rest) {
            true => Ok(Name(text.to_owned())),
            false => Err(InvalidName(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// State of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No machine has used its token.
    Invited {
        /// The token is refused from this time on.
        until: Seconds,
    },
    /// A machine has used its token.
    Joined {
        /// That machine's key.
        #[serde(with = "key_text")]
        key: PublicKey,
        /// Time of joining.
        since: Seconds,
    },
    /// It is no longer served. The record is kept, so that the client can be told.
    Revoked {
        /// The key of the machine that had used its token, if one had.
        #[serde(with = "optional_key_text")]
        key: Option<PublicKey>,
        /// Time of the revocation.
        since: Seconds,
    },
}

/// A client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    /// Its number: never reused, and higher for later invitations.
    pub id: u64,
    /// Its name, unique among invited and joined clients.
    pub name: Name,
    /// Id of its invitation.
    #[serde(with = "invitation_text")]
    pub invitation: InvitationId,
    /// The pre-shared key of its handshakes.
    #[serde(with = "psk_text")]
    pub psk: Psk,
    /// Its inner addresses, at most one per IP version.
    pub addresses: Vec<IpAddr>,
    /// Most that the hub forwards for it in each direction; no limit if none.
    pub cap: Option<Rate>,
    /// Time of its invitation.
    pub created: Seconds,
    /// Its state.
    pub state: State,
    /// Time of its last packet.
    pub seen: Option<Seconds>,
    /// Bytes of inner packets from it since its invitation.
    pub received: u64,
    /// Bytes of inner packets to it since its invitation.
    pub sent: u64,
    /// Used part of its quota, both directions; zero while it has none.
    #[serde(default)]
    pub used: Used,
    /// The hub's key that it is known to have: that of its token, or a later one by which it came.
    /// None in a record from before the first replacement of the key.
    #[serde(default, with = "optional_key_text")]
    pub hub_key: Option<PublicKey>,
}

impl Client {
    /// The key of the machine that is served as this client.
    #[must_use]
    pub fn served_key(&self) -> Option<PublicKey> {
        match self.state {
            State::Joined { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Returns true if it owns its name and addresses at `now`.
    #[must_use]
    pub fn is_current(&self, now: Seconds) -> bool {
        self.ended(now).is_none()
    }

    /// Time of its revocation or of its token's expiry; none while it is served or may still join.
    #[must_use]
    pub fn ended(&self, now: Seconds) -> Option<Seconds> {
        match self.state {
            State::Invited { until } => (until <= now).then_some(until),
            State::Joined { .. } => None,
            State::Revoked { since, .. } => Some(since),
        }
    }

    /// Returns true if it is revoked.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        matches!(self.state, State::Revoked { .. })
    }

    /// The client, revoked at `now`; `key` is that of the machine that had used its token.
    #[must_use]
    pub fn revoked(&self, key: Option<PublicKey>, now: Seconds) -> Client {
        Client {
            state: State::Revoked { key, since: now },
            ..self.clone()
        }
    }

    /// Its state at `now`, as a word.
    #[must_use]
    pub fn state_name(&self, now: Seconds) -> &'static str {
        match self.state {
            State::Invited { until } if now < until => "invited",
            State::Invited { .. } => "expired",
            State::Joined { .. } => "joined",
            State::Revoked { .. } => "revoked",
        }
    }
}

fn bytes<'de, const N: usize, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; N], D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = STANDARD.decode(text).map_err(de::Error::custom)?;
    let wrong =
        |bytes: Vec<u8>| de::Error::invalid_length(bytes.len(), &"as many as there should be");
    bytes.try_into().map_err(wrong)
}

macro_rules! as_base64 {
    ($module:ident, $type:ty, $wrap:expr) => {
        mod $module {
            use super::*;

            pub fn serialize<S: Serializer>(
                value: &$type,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&STANDARD.encode(value.0))
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$type, D::Error> {
                bytes(deserializer).map($wrap)
            }
        }
    };
}

as_base64!(key_text, PublicKey, PublicKey);
as_base64!(invitation_text, InvitationId, InvitationId);

/// A pre-shared key as base64, of which no copy is left in memory.
mod psk_text {
    use super::*;

    pub fn serialize<S: Serializer>(psk: &Psk, serializer: S) -> Result<S::Ok, S::Error> {
        let text = Zeroizing::new(STANDARD.encode(*psk.0));
        serializer.serialize_str(&text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Psk, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let key = KeyBytes::from_text(&text);
        key.map(Psk::new).map_err(de::Error::custom)
    }
}

pub(crate) mod optional_key_text {
    use super::*;

    pub fn serialize<S: Serializer>(
        key: &Option<PublicKey>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        key.map(|key| key.to_string()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PublicKey>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let key = text.map(|text| text.parse().map_err(de::Error::custom));
        key.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_word() {
        for good in ["a", "attic", "lap-top_2.home", "7", &"n".repeat(32)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "-a", ".", "a b", "ä", "a/b", "a\n", &"n".repeat(33)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
