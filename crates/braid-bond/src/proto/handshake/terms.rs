//! Options of a bond's handshakes: the invitation, the client's terms, the refusal.
//!
//! | type | from | value |
//! |---|---|---|
//! | 1 | initiator | invitation 128 |
//! | 2 | responder | an inner address of the initiator: address 32 or 128 · prefix length of its network 8 |
//! | 3 | responder | an inner address of the responder: 32 or 128 |
//! | 4 | responder | name of the initiator, UTF-8 |
//! | 5 | responder | most that it forwards in each direction, kbit/s 32 |
//! | 6 | responder | refusal 8: there is no session; a time 64 follows code 4 |
//! | 7 | both | capabilities beyond the first frames 8: [`Capabilities`] |
//! | 8 | responder | its current public key 256, if the initiator uses an earlier one |
//!
//! Invalid values are skipped, as unknown types are.

use std::fmt;
use std::net::IpAddr;

use super::{Options, PublicKey};
use crate::token::InvitationId;
use braid_core::units::Rate;

const INVITATION: u8 = 1;
const ADDRESS: u8 = 2;
const HUB: u8 = 3;
const NAME: u8 = 4;
const CAP: u8 = 5;
const REFUSAL: u8 = 6;
const CAPABILITIES: u8 = 7;
const CURRENT_KEY: u8 = 8;

/// Code of [`Refusal::Clock`].
const CLOCK: u8 = 4;

/// Longest name that a responder gives, bytes.
pub const MAX_NAME_LENGTH: usize = 32;

/// Options of an invited initiator. It sends them in every handshake, since it does not know which
/// one arrives first.
#[must_use]
pub fn enrol(invitation: InvitationId) -> Options {
    let mut options = Options::new();
    let fits = options.push(INVITATION, &invitation.0);
    debug_assert!(fits, "nothing else is in it");
    options
}

/// The invitation that an initiator names.
#[must_use]
pub fn invitation(options: &Options) -> Option<InvitationId> {
    first(options, INVITATION).and_then(|value| value.try_into().ok().map(InvitationId))
}

/// Adds the responder's current public key, for an initiator that uses an earlier one.
pub fn push_current_key(options: &mut Options, key: PublicKey) {
    let fits = options.push(CURRENT_KEY, &key.0);
    debug_assert!(fits, "the fullest terms leave room for it");
}

/// The responder's current public key, if it is not the one that the initiator has used.
#[must_use]
pub fn current_key(options: &Options) -> Option<PublicKey> {
    first(options, CURRENT_KEY).and_then(|value| value.try_into().ok().map(PublicKey))
}

fn first(options: &Options, wanted: u8) -> Option<&[u8]> {
    options
        .iter()
        .find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Features beyond the frames of the first version: an end is only sent what it supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Supports POLICY, as a hub.
    pub policy: bool,
    /// Supports HEADER, and packets that refer to one.
    pub headers: bool,
    /// Supports cleartext data, as GRE, and wants it by its configuration.
    pub gre: bool,
}

impl Capabilities {
    /// Features of this code; GRE depends on the configuration.
    pub const OURS: Capabilities = Capabilities {
        policy: true,
        headers: true,
        gre: false,
    };

    const POLICY: u8 = 1;
    const HEADERS: u8 = 2;
    const GRE: u8 = 4;

    /// Adds the capabilities to the options of a handshake. Without room they are left out, and not
    /// used.
    pub fn append(self, options: &mut Options) {
        let policy = if self.policy { Self::POLICY } else { 0 };
        let headers = if self.headers { Self::HEADERS } else { 0 };
        let gre = if self.gre { Self::GRE } else { 0 };
        let _ = options.push(CAPABILITIES, &[policy | headers | gre]);
    }

    /// The capabilities of the other end; none if the option is absent.
    #[must_use]
    pub fn read(options: &Options) -> Self {
        let bits = first(options, CAPABILITIES).and_then(<[u8]>::first);
        let has = |bit: u8| bits.is_some_and(|bits| bits & bit != 0);
        Capabilities {
            policy: has(Self::POLICY),
            headers: has(Self::HEADERS),
            gre: has(Self::GRE),
        }
    }
}

/// Terms of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Its inner addresses, each with the prefix length of its network.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The hub's own inner addresses.
    pub hub: Vec<IpAddr>,
    /// Its name at the hub; at most [`MAX_NAME_LENGTH`] bytes.
    pub name: Option<String>,
    /// Most that the hub forwards for it in each direction, rounded to a kbit/s; no limit if none.
    pub cap: Option<Rate>,
}

impl Terms {
    /// The terms as options. If there is no room, the name is left out first.
    #[must_use]
    pub fn to_options(&self) -> Options {
        let mut options = Options::new();
        let mut fits = true;
        for (address, prefix) in &self.addresses {
            let mut value = octets(*address);
            value.push(*prefix);
            fits &= options.push(ADDRESS, &value);
        }
        for address in &self.hub {
            fits &= options.push(HUB, &octets(*address));
        }
        if let Some(cap) = self.cap {
            let kbits = cap.bits_per_sec().div_ceil(1000);
            let kbits = u32::try_from(kbits).unwrap_or(u32::MAX);
            fits &= options.push(CAP, &kbits.to_be_bytes());
        }
        debug_assert!(fits, "two addresses of each end take half of the room");
        if let Some(name) = &self.name {
            // The name is for people; everything works without it.
            let _ = options.push(NAME, name.as_bytes());
        }
        options
    }

    /// Reads the terms from options.
    #[must_use]
    pub fn read(options: &Options) -> Self {
        let mut terms = Terms::default();
        for (kind, value) in options.iter() {
            match kind {
                ADDRESS => terms.addresses.extend(network(value)),
                HUB => terms.hub.extend(address(value)),
                NAME => {
                    let name = std::str::from_utf8(value).ok();
                    let name = name.filter(|name| {
                        name.len() <= MAX_NAME_LENGTH && !name.contains(char::is_control)
                    });
                    terms.name = name.map(str::to_owned);
                }
                CAP => {
                    let kbits = value.try_into().ok().map(u32::from_be_bytes);
                    terms.cap = kbits.map(|k| Rate::from_bits_per_sec(u64::from(k) * 1000));
                }
                _ => {}
            }
        }
        terms
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

fn network(value: &[u8]) -> Option<(IpAddr, u8)> {
    let (prefix, value) = value.split_last()?;
    let address = address(value)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    (*prefix <= most).then_some((address, *prefix))
}

/// Reason for having no session. It comes in an authentic message 2, so only the responder can send
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another machine has used the invitation.
    Used,
    /// The invitation has expired.
    Expired,
    /// The hub's operator has revoked this client.
    Revoked,
    /// The initiation's time was not after an earlier one's, or far ahead of the responder's clock:
    /// the next one must have a time just beyond this, µs since 1970.
    Clock(u64),
    /// A reason of a later version.
    Other(u8),
}

impl Refusal {
    /// Its code on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Refusal::Used => 1,
            Refusal::Expired => 2,
            Refusal::Revoked => 3,
            Refusal::Clock(_) => CLOCK,
            Refusal::Other(code) => code,
        }
    }

    /// The refusal as the only option.
    #[must_use]
    pub fn to_options(self) -> Options {
        let mut options = Options::new();
        let mut value = vec![self.code()];
        if let Refusal::Clock(micros) = self {
            value.extend_from_slice(&micros.to_be_bytes());
        }
        let fits = options.push(REFUSAL, &value);
        debug_assert!(fits, "nothing else is in it");
        options
    }

    /// The refusal that options contain, if any.
    #[must_use]
    pub fn read(options: &Options) -> Option<Self> {
        first(options, REFUSAL).map(|value| match value {
            [1] => Refusal::Used,
            [2] => Refusal::Expired,
            [3] => Refusal::Revoked,
            [CLOCK, micros @ ..] if micros.len() == 8 => {
                let byte = |micros, byte: &u8| micros << 8 | u64::from(*byte);
                Refusal::Clock(micros.iter().fold(0, byte))
            }
            [code, ..] => Refusal::Other(*code),
            [] => Refusal::Other(0),
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Used => f.write_str(
                "this token was used by another machine, and one token lets one machine in",
            ),
            Refusal::Expired => f.write_str("this token was not used in time"),
            Refusal::Revoked => f.write_str("the hub does not serve this client any more"),
            Refusal::Clock(_) => f.write_str("the hub's clock and this machine's differ"),
            Refusal::Other(code) => write!(f, "the hub refuses, reason {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn terms() -> Terms {
        Terms {
            addresses: vec![
                ("10.73.0.2".parse().unwrap(), 16),
                ("fd00:1:2:3::2".parse().unwrap(), 64),
            ],
            hub: vec![
                "10.73.0.1".parse().unwrap(),
                "fd00:1:2:3::1".parse().unwrap(),
            ],
            name: Some("n".repeat(MAX_NAME_LENGTH)),
            cap: Some("50 Mbit/s".parse().unwrap()),
        }
    }

    #[test]
    fn the_fullest_terms_fit_and_read_back() {
        assert_eq!(Terms::read(&terms().to_options()), terms());
        assert_eq!(Terms::read(&Options::new()), Terms::default());
        assert_eq!(Refusal::read(&terms().to_options()), None);
    }

    #[test]
    fn the_fullest_terms_leave_room_for_capabilities_and_a_key() {
        let mut options = terms().to_options();
        Capabilities::OURS.append(&mut options);
        assert_eq!(current_key(&options), None);
        let key = PublicKey([9; 32]);
        push_current_key(&mut options, key);
        assert_eq!(current_key(&options), Some(key));
        assert_eq!(Capabilities::read(&options), Capabilities::OURS);
        assert_eq!(Terms::read(&options), terms());
    }

    #[test]
    fn refusals_and_invitations_read_back() {
        for refusal in [
            Refusal::Used,
            Refusal::Expired,
            Refusal::Revoked,
            Refusal::Clock(1_700_000_000_000_000),
            Refusal::Other(4),
            Refusal::Other(9),
        ] {
            assert_eq!(Refusal::read(&refusal.to_options()), Some(refusal));
        }
        let id = InvitationId([4; 16]);
        assert_eq!(invitation(&enrol(id)), Some(id));
        assert_eq!(invitation(&Options::new()), None);
    }

    proptest! {
        #[test]
        fn any_options_of_a_hub_are_read_safely(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            if let Some(options) = Options::parse(&bytes) {
                let terms = Terms::read(&options);
                for (address, prefix) in &terms.addresses {
                    let most = if address.is_ipv4() { 32 } else { 128 };
                    prop_assert!(*prefix <= most);
                }
                let _ = (Refusal::read(&options), invitation(&options));
            }
        }
    }
}
