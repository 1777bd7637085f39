//! Network prefixes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Returns the network of an address; none if the address has fewer bits than `length`. Bits
    /// after the prefix are cleared.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        (length <= bits(address)).then(|| Prefix {
            address: masked(address, length),
            length,
        })
    }

    /// Returns its first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the prefix length, 0 to 32 or 128.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns true if the address is in the network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = self.address.is_ipv4() == address.is_ipv4();
        same && masked(address, self.length) == self.address
    }

    /// Returns true if all of `other` is in the network.
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

/// Clears all bits of the address after the first `length`.
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
