//! What options say: who was invited, what a client gets, why it gets nothing.
//!
//! | type | from | value |
//! |---|---|---|
//! | 1 | initiator | invitation 128 |
//! | 2 | responder | an inner address of the initiator: address 32 or 128 · length of its network's prefix 8 |
//! | 3 | responder | an inner address of the responder: 32 or 128 |
//! | 4 | responder | what it calls the initiator, UTF-8 |
//! | 5 | responder | most that it passes on in each direction, kbit/s 32 |
//! | 6 | responder | refusal 8: there is no session; 4 has a time 64 behind it |
//! | 7 | both | what it understands beyond the first frames 8: [`Capabilities`] |
//!
//! Values that cannot be read are skipped, as unknown types are.

use std::fmt;
use std::net::IpAddr;

use super::Options;
use crate::token::InvitationId;
use braid_core::units::Rate;

const INVITATION: u8 = 1;
const ADDRESS: u8 = 2;
const HUB: u8 = 3;
const NAME: u8 = 4;
const CAP: u8 = 5;
const REFUSAL: u8 = 6;
const CAPABILITIES: u8 = 7;

/// Code of [`Refusal::Clock`].
const CLOCK: u8 = 4;

/// Longest name that the responder gives, bytes.
pub const NAME_MAX: usize = 32;

/// What an initiator says that was invited. Said in every handshake: it does not know which one was
/// heard first.
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

fn first(options: &Options, wanted: u8) -> Option<&[u8]> {
    options
        .iter()
        .find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// What an end understands beyond the frames of the first version: nothing else of it is sent to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// POLICY, as a hub.
    pub policy: bool,
    /// HEADER, and packets that refer to one.
    pub headers: bool,
    /// Data in the clear, as GRE, and wants it: this end's configuration says so.
    pub gre: bool,
}

impl Capabilities {
    /// What this code understands; GRE is for whoever configures it.
    pub const OURS: Capabilities = Capabilities {
        policy: true,
        headers: true,
        gre: false,
    };

    const POLICY: u8 = 1;
    const HEADERS: u8 = 2;
    const GRE: u8 = 4;

    /// Adds it to what is said in a handshake. Where there is no room it is not said, and not made use
    /// of.
    pub fn append(self, options: &mut Options) {
        let policy = if self.policy { Self::POLICY } else { 0 };
        let headers = if self.headers { Self::HEADERS } else { 0 };
        let gre = if self.gre { Self::GRE } else { 0 };
        let _ = options.push(CAPABILITIES, &[policy | headers | gre]);
    }

    /// What the other end has said; nothing is nothing.
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

/// What a client gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Its inner addresses, each with the length of the prefix of the network that it is in.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The hub's own inner addresses.
    pub hub: Vec<IpAddr>,
    /// What the hub calls it; at most [`NAME_MAX`] bytes.
    pub name: Option<String>,
    /// Most that the hub passes on for it, in each direction; to a kbit/s. None: no limit.
    pub cap: Option<Rate>,
}

impl Terms {
    /// As options. What has no room is left out, the name first.
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
            // It is there for people; without it everything works.
            let _ = options.push(NAME, name.as_bytes());
        }
        options
    }

    /// What options say.
    #[must_use]
    pub fn read(options: &Options) -> Self {
        let mut terms = Terms::default();
        for (kind, value) in options.iter() {
            match kind {
                ADDRESS => terms.addresses.extend(network(value)),
                HUB => terms.hub.extend(address(value)),
                NAME => {
                    let name = std::str::from_utf8(value).ok();
                    let name = name
                        .filter(|name| name.len() <= NAME_MAX && !name.contains(char::is_control));
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

/// Why there is no session. Only the responder can say so: it comes in an authentic message 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The invitation was taken up by another machine.
    Used,
    /// The invitation was not taken up in time.
    Expired,
    /// Whoever runs the hub does not want this client any more.
    Revoked,
    /// The initiation's time was not after an earlier one's, or is far ahead of the responder's clock: the
    /// next one is to have a time just beyond this, µs since 1970.
    Clock(u64),
    /// For a reason of a later version.
    Other(u8),
}

impl Refusal {
    /// On the wire.
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

    /// As the only option.
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

    /// Whether options refuse, and why.
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
            name: Some("n".repeat(NAME_MAX)),
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
