//! Networks, and which of them an address is in.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The network of an address; none if it has fewer bits than `length`. Bits after those are
    /// cleared.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        (length <= bits(address)).then(|| Prefix {
            address: masked(address, length),
            length,
        })
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits of it are given, 0 to 32 or 128.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = self.address.is_ipv4() == address.is_ipv4();
        same && masked(address, self.length) == self.address
    }

    /// Whether all of another is in it.
    #[must_use]
    pub fn covers(&self, other: &Prefix) -> bool {
        self.length <= other.length && self.contains(other.address)
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        let length = bits(address);
        Prefix { address, length }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length == bits(self.address) {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.length),
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with all bits after the first `length` cleared.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Ipv4Addr::from_bits(a.to_bits() & mask).into()
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Ipv6Addr::from_bits(a.to_bits() & mask).into()
        }
    }
}
