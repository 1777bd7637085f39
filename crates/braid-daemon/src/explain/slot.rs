//! Where in a table a hash leads: the twin of `bpf/slots.h`.

use std::net::IpAddr;

use braid_balance::Walk;

/// The slot of a flow, where its addresses alone decide.
pub(super) fn position(walk: Walk, client: IpAddr, dest: IpAddr, slots: usize) -> Option<usize> {
    let hash = match walk {
        Walk::RoundRobin => return None,
        Walk::HashSource => hash(0, client),
        Walk::HashPair => hash(hash(0, client), dest),
    };
    (hash as usize).checked_rem(slots)
}

/// murmur3's finaliser over the address' words as they are on the wire, IPv4 mapped into IPv6.
fn hash(seed: u32, address: IpAddr) -> u32 {
    let octets = match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    let (words, _) = octets.as_chunks::<4>();
    words.iter().fold(seed, |hash, word| {
        let mut hash = (hash ^ u32::from_ne_bytes(*word)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    })
}
