//! The hub that this machine has joined, and its identity there.
//!
//! The file is written before the first handshake. Whatever becomes of that, the next attempt with the same
//! token uses the same key, by which the hub recognises the machine.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use braid_bond::proto::handshake::terms::Terms;
use braid_bond::proto::handshake::{Identity, KeyBytes, PublicKey};
use braid_bond::token::Token;
use braid_host::file::remove;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Contents of the file.
#[derive(Serialize, Deserialize)]
struct Written {
    #[serde(with = "secret_text")]
    token: Zeroizing<String>,
    #[serde(with = "secret_text")]
    private: Zeroizing<String>,
    accepted: bool,
    name: Option<String>,
    addresses: Vec<(IpAddr, u8)>,
    hub_inner: Vec<IpAddr>,
    /// The hub's addresses as of the last lookup.
    hub: Vec<SocketAddr>,
    /// The hub's key, if it has replaced the one in the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hub_key: Option<String>,
}

/// A text of which no copy is left in memory.
mod secret_text {
    use serde::{Deserialize, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub fn serialize<S: Serializer>(
        text: &Zeroizing<String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(deserializer).map(Zeroizing::new)
    }
}

/// A joined hub.
#[derive(Clone)]
pub struct Membership {
    /// The token.
    pub token: Token,
    /// The key of this machine.
    pub identity: Identity,
    /// True once the hub has accepted it.
    pub accepted: bool,
    /// The latest terms of the hub.
    pub terms: Terms,
    /// The hub's addresses as of the last lookup.
    pub hub: Vec<SocketAddr>,
    /// The hub's current key: at first that of the token.
    pub hub_key: PublicKey,
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("hub", &self.hub_key)
            .field("accepted", &self.accepted)
            .finish_non_exhaustive()
    }
}

impl Membership {
    /// Creates a membership with a new key.
    ///
    /// # Errors
    /// The system returns no random numbers.
    pub fn new(token: Token) -> Result<Membership, UserError> {
        let private = KeyBytes::try_fill(|key| SystemRandom::new().fill(key));
        let private =
            private.map_err(|_| UserError::new("random", "the system gives no random numbers"))?;
        Ok(Membership {
            hub_key: token.hub,
            token,
            identity: Identity::new(private),
            accepted: false,
            terms: Terms::default(),
            hub: Vec::new(),
        })
    }

    /// Loads the stored membership; `None` if this machine has joined no hub.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub fn load(state_dir: &StateDir) -> Result<Option<Membership>, UserError> {
        let path = state_dir.bond();
        let fix = "braid leave removes it; then join again with a new token";
        let Some(written) = state_dir.read_secret::<Written>(&path, fix)? else {
            return Ok(None);
        };
        let broken = |what: &str| {
            let text = format!("{}: no {what} that can be read", path.display());
            UserError::new("state", text).fix(fix)
        };
        let token: Token = written.token.parse().map_err(|_| broken("token"))?;
        let hub_key = written.hub_key.map(|key| key.parse()).transpose();
        Ok(Some(Membership {
            hub_key: hub_key
                .map_err(|_| broken("key of the hub"))?
                .unwrap_or(token.hub),
            token,
            identity: Identity::from_text(&written.private).map_err(|_| broken("key"))?,
            accepted: written.accepted,
            terms: Terms {
                addresses: written.addresses,
                hub: written.hub_inner,
                name: written.name,
                cap: None,
            },
            hub: written.hub,
        }))
    }

    /// Stores the membership.
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn store(&self, state_dir: &StateDir) -> Result<(), UserError> {
        let written = Written {
            token: self.token.text(),
            private: self.identity.private_text(),
            accepted: self.accepted,
            name: self.terms.name.clone(),
            addresses: self.terms.addresses.clone(),
            hub_inner: self.terms.hub.clone(),
            hub: self.hub.clone(),
            hub_key: (self.hub_key != self.token.hub).then(|| self.hub_key.to_string()),
        };
        state_dir.write_secret(&state_dir.bond(), &written)
    }

    /// Removes the stored membership; returns false if there was none.
    ///
    /// # Errors
    /// The system refused to remove it.
    pub fn forget(state_dir: &StateDir) -> Result<bool, UserError> {
        let path = state_dir.bond();
        let existed = path.exists();
        let removed = remove(&path);
        removed.map_err(|error| UserError::io(format!("remove {}", path.display()), &error))?;
        Ok(existed)
    }

    /// Joins with a token while no daemon runs; the next one continues from there. Repeating a token changes
    /// nothing.
    ///
    /// # Errors
    /// Another hub was joined, or the disk refuses.
    pub fn begin(state_dir: &StateDir, token: Token) -> Result<Membership, UserError> {
        match Membership::load(state_dir)? {
            Some(joined) if joined.token == token => Ok(joined),
            Some(joined) => Err(joined.taken()),
            None => {
                let joined = Membership::new(token)?;
                joined.store(state_dir)?;
                Ok(joined)
            }
        }
    }

    fn taken(&self) -> UserError {
        let addresses: Vec<String> = self
            .token
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let text = format!(
            "this machine has joined the hub at {} already",
            addresses.join(", ")
        );
        UserError::new("joined", text).fix("braid leave, then join again")
    }
}

/// Parses a token.
///
/// # Errors
/// It is invalid; the error says why.
pub fn parse_token(text: &str) -> Result<Token, UserError> {
    let parsed = text.trim().parse::<Token>();
    parsed.map_err(|error| UserError::new("token", error.to_string()))
}

#[cfg(test)]
mod tests {
    use braid_bond::token::Secret;

    use super::*;

    fn token(secret: u8) -> Token {
        Token {
            hub: PublicKey([7; 32]),
            secret: Secret::new([secret; 32]),
            addresses: vec!["hub.example.org".parse().unwrap()],
        }
    }

    #[test]
    fn one_token_is_tried_with_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path());
        assert!(Membership::load(&state).unwrap().is_none());
        let first = Membership::begin(&state, token(1)).unwrap();
        let again = Membership::begin(&state, token(1)).unwrap();
        assert_eq!(first.identity.private(), again.identity.private());
        let refused = Membership::begin(&state, token(2)).unwrap_err();
        assert_eq!(
            refused.text,
            "this machine has joined the hub at hub.example.org:27243 already"
        );
        assert!(Membership::forget(&state).unwrap());
        assert!(!Membership::forget(&state).unwrap());
        let other = Membership::begin(&state, token(2)).unwrap();
        assert_ne!(first.identity.private(), other.identity.private());
    }

    #[test]
    fn what_the_hub_gave_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path());
        let mut joined = Membership::begin(&state, token(1)).unwrap();
        joined.accepted = true;
        joined.terms.addresses = vec![("10.73.0.2".parse().unwrap(), 16)];
        joined.terms.name = Some("home".into());
        joined.hub = vec!["192.0.2.1:27243".parse().unwrap()];
        joined.store(&state).unwrap();
        let read = Membership::load(&state).unwrap().unwrap();
        assert_eq!(
            (read.accepted, read.terms, read.hub, read.token),
            (true, joined.terms, joined.hub, joined.token)
        );
    }

    #[test]
    fn a_later_key_of_the_hub_is_kept_beside_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path());
        let mut joined = Membership::begin(&state, token(1)).unwrap();
        assert_eq!(joined.hub_key, token(1).hub);
        let read = || Membership::load(&state).unwrap().unwrap();
        assert_eq!(read().hub_key, token(1).hub);
        joined.hub_key = PublicKey([8; 32]);
        joined.store(&state).unwrap();
        assert_eq!((read().hub_key, read().token), (joined.hub_key, token(1)));
        let again = Membership::begin(&state, token(1)).unwrap();
        assert_eq!(
            again.hub_key, joined.hub_key,
            "joining again changes nothing"
        );
    }

    #[test]
    fn a_mistyped_token_is_told_from_none() {
        let whole = token(1).to_string();
        assert!(parse_token(&format!(" {whole}\n")).is_ok());
        for (bad, why) in [
            ("", "begins with braid1_"),
            ("home", "begins with braid1_"),
            (&whole[..whole.len() - 3], "not complete"),
        ] {
            let failure = parse_token(bad).unwrap_err();
            assert!(failure.text.contains(why), "{failure}");
        }
    }
}
