//! A new flow's choice of its slot, as `bpf/select/slots.h` makes it.

use std::net::IpAddr;

use crate::LbMethod;
use crate::maps::layout::from_ip;

impl LbMethod {
    /// Returns the slot, below `slots`, from which on a flow from `inner` to `remote` looks for its
    /// uplink; `None`: the next slot in turn.
    #[must_use]
    pub fn slot(self, inner: IpAddr, remote: IpAddr, slots: usize) -> Option<usize> {
        let hash = match self {
            Self::RoundRobin | Self::Race | Self::Fastest => return None,
            Self::HashSource => hash_address(0, inner),
            Self::HashPair => hash_address(hash_address(0, inner), remote),
        };
        usize::try_from(hash).ok()?.checked_rem(slots)
    }
}

/// murmur3's finaliser over the words.
fn hash_address(hash: u32, address: IpAddr) -> u32 {
    let octets = from_ip(address);
    octets.chunks_exact(4).fold(hash, |hash, word| {
        let word = u32::from_ne_bytes(word.try_into().expect("four bytes"));
        let mut hash = hash ^ word;
        hash = hash.wrapping_mul(0x85eb_ca6b);
        hash ^= hash >> 13;
        hash = hash.wrapping_mul(0xc2b2_ae35);
        hash ^ hash >> 16
    })
}
