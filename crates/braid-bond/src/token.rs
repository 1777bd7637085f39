//! The token that a hub issues once for each invitation: one word to copy, by which a machine
//! joins.
//!
//! ```text
//! braid1_ ‖ base64url of
//!   hub's public key 32 · secret 32 · addresses 8 · addresses × (kind 8 · host · port 16) · check 32
//!   kind 4: IPv4 address 32; kind 6: IPv6 address 128; kind 1: length 8 · name
//! ```
//! The check is the first four bytes of the SHA-256 of everything before it; it distinguishes a
//! damaged token from a refused one. Two values are derived from the secret: the invitation's id,
//! by which the hub knows it, and the pre-shared key of all handshakes. The client generates its
//! own key, which the token does not contain, so a token that is read after its use opens nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{digest, hmac};
use zeroize::Zeroizing;

use crate::proto::frame::FrameError;
use crate::proto::handshake::{KeyBytes, Psk, PublicKey};
use crate::proto::reader::Reader;

/// Prefix of every token of this version.
pub const PREFIX: &str = "braid1_";

/// Default UDP port of a hub: BRAID on a telephone's keys.
pub const PORT: u16 = 27_243;

/// Most addresses in a token.
pub const MAX_ADDRESSES: usize = 8;

/// Most bytes of an address: a kind, a name of 253 bytes with its length, and a port.
const MAX_ADDRESS_BYTES: usize = 1 + 1 + 253 + 2;

const CHECKSUM_BYTES: usize = 4;

/// Most bytes of a token, before they are text.
const MAX_BYTES: usize = 32 + 32 + 1 + MAX_ADDRESSES * MAX_ADDRESS_BYTES + CHECKSUM_BYTES;

/// Id of an invitation at the hub. It reveals nothing of the secret that it is derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvitationId(pub [u8; 16]);

/// Secret that only the inviting hub and the invited client know.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(KeyBytes);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Makes a secret of any 32 unpredictable bytes.
    #[must_use]
    pub fn new(bytes: impl Into<KeyBytes>) -> Self {
        Secret(bytes.into())
    }

    /// The bytes that it was made of.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Id of the invitation that has this secret.
    #[must_use]
    pub fn id(&self) -> InvitationId {
        let mut id = [0; 16];
        id.copy_from_slice(&self.derive(b"braid invitation")[..16]);
        InvitationId(id)
    }

    /// The pre-shared key of every handshake of the client that was invited.
    #[must_use]
    pub fn psk(&self) -> Psk {
        Psk::new(self.derive(b"braid psk"))
    }

    fn derive(&self, label: &[u8]) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice());
        let tag = hmac::sign(&key, label);
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

/// Host part of a hub's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A name that the client looks up: at most 253 bytes of letters, digits, `-` and `.`.
    Name(String),
}

/// A host and its UDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubAddress {
    /// Address or name.
    pub host: Host,
    /// UDP port, not zero.
    pub port: u16,
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            Host::Address(IpAddr::V4(address)) => write!(f, "{address}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Error of a text that is not a hub's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The part behind the colon is not a port.
    #[error("{0:?} is no port: write a number from 1 to 65535")]
    Port(String),
    /// The part before the colon is neither an address nor a name.
    #[error(
        "{0:?} is neither an address nor a name: write 198.51.100.7, [2001:db8::7] or \
         hub.example.org, with :PORT behind it or without"
    )]
    Host(String),
}

impl FromStr for HubAddress {
    type Err = AddressError;

    /// Same as [`HubAddress::read`], with [`PORT`] as the default port.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        HubAddress::read(text, PORT)
    }
}

impl HubAddress {
    /// Reads an address or a name, with or without `:PORT`; `otherwise` is the default port.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn read(text: &str, otherwise: u16) -> Result<Self, AddressError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            let (host, port) = (Host::Address(address), otherwise);
            return Ok(HubAddress { host, port });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => {
                let number = port.parse().ok().filter(|port| *port != 0);
                (
                    host,
                    number.ok_or_else(|| AddressError::Port(port.to_owned()))?,
                )
            }
            _ => (text, otherwise),
        };
        let wrong = || AddressError::Host(host.to_owned());
        let host = match host.strip_prefix('[') {
            Some(inner) => {
                let address: Option<Ipv6Addr> =
                    inner.strip_suffix(']').and_then(|inner| inner.parse().ok());
                Host::Address(address.ok_or_else(wrong)?.into())
            }
            None => match host.parse::<Ipv4Addr>() {
                Ok(address) => Host::Address(address.into()),
                Err(_) if is_name(host) => Host::Name(host.to_owned()),
                Err(_) => return Err(wrong()),
            },
        };
        Ok(HubAddress { host, port })
    }
}

/// Returns true if `text` can be a host name (RFC 1123 §2.1). A last label of digits alone would be
/// a mistyped address.
fn is_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= 253
        && text.split('.').all(label)
        && last.bytes().any(|byte| !byte.is_ascii_digit())
}

/// Invitation token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The hub's public key.
    pub hub: PublicKey,
    /// Secret shared by the two ends.
    pub secret: Secret,
    /// The hub's addresses: one to [`MAX_ADDRESSES`].
    pub addresses: Vec<HubAddress>,
}

/// Error of a text that is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It lacks the prefix.
    #[error("this is no token: one begins with {PREFIX}; `braid hub invite NAME` prints it")]
    Prefix,
    /// It has the prefix of a later version.
    #[error("this token is of a later version of Braid: install that one here too")]
    Version,
    /// Bytes are missing, changed or added.
    #[error(
        "this token is not complete or was changed on its way: copy all of the word that `braid hub \
         invite` printed"
    )]
    Damaged,
}

impl fmt::Display for Token {
    /// Same as [`Token::text`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Token {
    /// The word that is copied.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        // A buffer that grows leaves copies.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES));
        bytes.extend_from_slice(&self.hub.0);
        bytes.extend_from_slice(self.secret.0.as_slice());
        bytes.push(self.addresses.len() as u8);
        for address in &self.addresses {
            match &address.host {
                Host::Address(IpAddr::V4(address)) => {
                    bytes.push(4);
                    bytes.extend_from_slice(&address.octets());
                }
                Host::Address(IpAddr::V6(address)) => {
                    bytes.push(6);
                    bytes.extend_from_slice(&address.octets());
                }
                Host::Name(name) => {
                    bytes.extend_from_slice(&[1, name.len() as u8]);
                    bytes.extend_from_slice(name.as_bytes());
                }
            }
            bytes.extend_from_slice(&address.port.to_be_bytes());
        }
        let check = check(&bytes);
        bytes.extend_from_slice(&check);
        let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(&*bytes));
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + encoded.len()));
        text.push_str(PREFIX);
        text.push_str(&encoded);
        text
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Reads a token. White space in it, which mail programs add, is ignored.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let mut word = Zeroizing::new(String::with_capacity(text.len()));
        word.extend(text.split_whitespace());
        let text = word;
        let Some(body) = text.strip_prefix(PREFIX) else {
            let version = text
                .strip_prefix("braid")
                .and_then(|rest| rest.split_once('_'));
            let later = version.is_some_and(|(number, _)| number.parse::<u32>().is_ok());
            return Err(if later {
                TokenError::Version
            } else {
                TokenError::Prefix
            });
        };
        let bytes = URL_SAFE_NO_PAD.decode(body).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| TokenError::Damaged)?;
        read(&bytes).ok_or(TokenError::Damaged)
    }
}

fn check(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = digest::digest(&digest::SHA256, bytes);
    *hash.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

fn read(bytes: &[u8]) -> Option<Token> {
    let (body, said) = bytes.split_last_chunk()?;
    if *said != check(body) {
        return None;
    }
    let mut reader = Reader::new(body);
    let hub = PublicKey(reader.array().ok()?);
    let secret = KeyBytes::try_fill(|key| {
        let bytes = reader.take(key.len())?;
        key.copy_from_slice(bytes);
        Ok::<_, FrameError>(())
    });
    let secret = Secret(secret.ok()?);
    let count = usize::from(reader.u8().ok()?);
    if !(1..=MAX_ADDRESSES).contains(&count) {
        return None;
    }
    let addresses = (0..count).map(|_| read_address(&mut reader));
    let addresses = addresses.collect::<Option<Vec<_>>>()?;
    let token = Token {
        hub,
        secret,
        addresses,
    };
    reader.is_empty().then_some(token)
}

fn read_address(reader: &mut Reader<'_>) -> Option<HubAddress> {
    let host = match reader.u8().ok()? {
        4 => Host::Address(reader.array::<4>().ok()?.into()),
        6 => Host::Address(reader.array::<16>().ok()?.into()),
        1 => {
            let length = usize::from(reader.u8().ok()?);
            let name = std::str::from_utf8(reader.take(length).ok()?).ok()?;
            Host::Name(Some(name).filter(|name| is_name(name))?.to_owned())
        }
        _ => return None,
    };
    let port = reader.u16().ok().filter(|port| *port != 0)?;
    Some(HubAddress { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token() -> Token {
        Token {
            hub: PublicKey([7; 32]),
            secret: Secret::new([9; 32]),
            addresses: ["198.51.100.7", "[2001:db8::7]:500", "hub.example.org:51"]
                .map(|text| text.parse().unwrap())
                .into(),
        }
    }

    #[test]
    fn a_token_is_one_word_that_reads_back() {
        let text = token().to_string();
        assert!(text.starts_with("braid1_"), "{text}");
        assert!(!text.contains(char::is_whitespace), "{text}");
        assert_eq!(text.parse(), Ok(token()));
        let folded = format!("  {}\r\n {}\n", &text[..70], &text[70..]);
        assert_eq!(folded.parse(), Ok(token()), "as a mail program folds it");
    }

    #[test]
    fn token_errors_are_distinguished() {
        let text = token().to_string();
        assert_eq!("".parse::<Token>(), Err(TokenError::Prefix));
        assert_eq!("hello".parse::<Token>(), Err(TokenError::Prefix));
        assert_eq!("braid2_abc".parse::<Token>(), Err(TokenError::Version));
        for cut in PREFIX.len()..text.len() {
            assert_eq!(text[..cut].parse::<Token>(), Err(TokenError::Damaged));
        }
        assert_eq!(
            format!("{text}A").parse::<Token>(),
            Err(TokenError::Damaged)
        );
        let lower = text.to_lowercase();
        assert_eq!(lower.parse::<Token>(), Err(TokenError::Damaged));
    }

    #[test]
    fn a_name_can_never_be_taken_for_a_mistyped_address() {
        for bad in [
            "",
            "a..b",
            "-a",
            "198.51.100",
            "198.51.100.256",
            "a_b",
            "ho st",
            "[2001:db8::7",
            "[198.51.100.7]",
            "2001:db8::g",
        ] {
            let outcome = bad.parse::<HubAddress>();
            assert!(outcome.is_err(), "{bad}: {outcome:?}");
        }
        for bad in ["hub:0", "hub:65536", "hub:", "198.51.100.7:x"] {
            let outcome = bad.parse::<HubAddress>();
            assert!(matches!(outcome, Err(AddressError::Port(_))), "{bad}");
        }
        for (text, shown) in [
            ("2001:db8::7", "[2001:db8::7]:27243"),
            ("[2001:db8::7]", "[2001:db8::7]:27243"),
            ("hub.example.org", "hub.example.org:27243"),
            ("192.0.2.1:9", "192.0.2.1:9"),
        ] {
            let address: HubAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
        }
    }

    #[test]
    fn values_derived_from_a_secret_do_not_reveal_it() {
        let secret = Secret::new([1; 32]);
        assert_ne!(secret.id().0, secret.psk().0[..16]);
        assert_ne!(*secret.psk().0, *secret.bytes());
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    proptest! {
        #[test]
        fn a_parsed_token_prints_the_same_text(bytes in proptest::collection::vec(any::<u8>(), 60..200)) {
            let mut bytes = bytes;
            let check = check(&bytes);
            bytes.extend_from_slice(&check);
            let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(&bytes));
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.to_string(), text);
            }
        }
    }
}
