//! Header of a data packet, and numbers of which only the lowest bits are sent.
//!
//! ```text
//! 0      010 lllll      data, link l
//! 1..3   receiver's session index
//! 4..7   link packet number, lowest 32 bits
//! 8..    sealed: stamp 24 (4 µs) · frames
//! last   16 bytes tag
//! ```
//! All multi-byte numbers are big endian. The first eight bytes are the seal's associated data.

use braid_multipath::{LinkId, MAX_LINKS, PacketNumber, Stamp};

use super::gre;

/// Bytes before the sealed part.
pub const HEADER: usize = 8;
/// Bytes of the seal's tag.
pub const TAG: usize = 16;
/// Bytes of the stamp, the first in the sealed part.
pub const STAMP: usize = 3;
/// Bytes of a data packet that are not frames.
pub const OVERHEAD: usize = HEADER + STAMP + TAG;

/// µs per unit of a stamp on the wire. 24 bits then span 67 s, long enough to derive a stamp's
/// upper bits from its arrival time, and 4 µs are finer than any delay that matters.
const STAMP_UNIT: u64 = 4;
/// The bits of a stamp that are sent.
pub const STAMP_BITS: u32 = 0x00ff_ffff;

/// The first byte of each kind of packet.
pub(crate) mod kind {
    pub const INITIATION: u8 = 0x01;
    pub const RESPONSE: u8 = 0x02;
    pub const COOKIE: u8 = 0x03;
    pub const RESET: u8 = 0x04;
    pub const RETIRED: u8 = 0x05;
    /// In the upper three bits; the lower five are the link.
    pub const DATA: u8 = 0x40;
    pub const DATA_MASK: u8 = 0xe0;
}

/// Index by which a receiver knows a session: 24 bits, chosen by the receiver at random, never
/// zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionIndex(u32);

impl SessionIndex {
    /// The index of these three bytes; none for zero, which means "no session".
    #[must_use]
    pub fn new(bytes: [u8; 3]) -> Option<Self> {
        let value = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        (value != 0).then_some(SessionIndex(value))
    }

    /// As it is on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// As a number below 2²⁴.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Type of a datagram, by its first byte and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// First message of a handshake.
    Initiation,
    /// Second message of a handshake.
    Response,
    /// Cookie reply: the responder demands a proof of the address.
    Cookie,
    /// Reset: the responder does not know the session.
    Reset,
    /// Notice that the responder's key was replaced.
    Retired,
    /// Frames.
    Data(Header),
    /// Frames in cleartext, as GRE.
    Cleartext(Header),
}

/// Header of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The link it was sent on.
    pub link: LinkId,
    /// The receiver's session.
    pub receiver: SessionIndex,
    /// The lowest 32 bits of the packet number.
    pub number: u32,
}

impl Header {
    /// As it is on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER] {
        let [a, b, c] = self.receiver.to_bytes();
        let [d, e, f, g] = self.number.to_be_bytes();
        [kind::DATA | self.link.0, a, b, c, d, e, f, g]
    }

    pub(super) fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let [first, a, b, c, d, e, f, g] = *bytes;
        if first & kind::DATA_MASK != kind::DATA {
            return None;
        }
        Some(Header {
            link: LinkId(first & !kind::DATA_MASK),
            receiver: SessionIndex::new([a, b, c])?,
            number: u32::from_be_bytes([d, e, f, g]),
        })
    }
}

const _: () = assert!(MAX_LINKS == !kind::DATA_MASK as usize + 1);

impl Kind {
    /// Classifies a datagram without authenticating it; none if it does not belong to this
    /// protocol, or is too short for its type.
    #[must_use]
    pub fn of(datagram: &[u8]) -> Option<Kind> {
        match *datagram.first()? {
            kind::INITIATION => Some(Kind::Initiation),
            kind::RESPONSE => Some(Kind::Response),
            kind::COOKIE => Some(Kind::Cookie),
            kind::RESET => Some(Kind::Reset),
            kind::RETIRED => Some(Kind::Retired),
            first if first & kind::DATA_MASK == kind::DATA && datagram.len() >= OVERHEAD => {
                Header::parse(datagram.first_chunk()?).map(Kind::Data)
            }
            _ => gre::parse(datagram).map(|(header, ..)| Kind::Cleartext(header)),
        }
    }
}

/// The number whose lowest `bits` are `low` and that is nearest to `near` (RFC 9000 §A.3). `low`
/// has no higher bits set; `bits` is at most 32.
#[must_use]
pub fn expand(low: u32, bits: u32, near: u64) -> u64 {
    let window = 1 << bits;
    let candidate = near & !(window - 1) | u64::from(low);
    if candidate + window / 2 <= near && candidate.checked_add(window).is_some() {
        candidate + window
    } else if candidate > near + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// Expands the lowest 32 bits of a packet number; `next` is the number after the highest.
#[must_use]
pub fn expand_number(low: u32, next: u64) -> PacketNumber {
    PacketNumber(expand(low, 32, next))
}

/// The wire form of a stamp: its lowest 24 bits, in units of 4 µs.
#[must_use]
pub fn stamp_bits(stamp: Stamp) -> u32 {
    (stamp.0 / STAMP_UNIT) as u32 & STAMP_BITS
}

/// Expands the 24 bits of a stamp that is expected near `near`.
#[must_use]
pub fn expand_stamp(bits: u32, near: Stamp) -> Stamp {
    Stamp(expand(bits, 24, near.0 / STAMP_UNIT) * STAMP_UNIT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc_9000_appendix_a_3_example() {
        // "if the highest successfully authenticated packet had a packet number of 0xa82f30ea,
        // then a packet containing a 16-bit value of 0x9b32 will be decoded as 0xa82f9b32."
        assert_eq!(expand(0x9b32, 16, 0xa82f_30ea + 1), 0xa82f_9b32);
    }

    proptest! {
        #[test]
        fn near_numbers_survive(near in 0..u64::MAX >> 2, off in -0x7fff_ffffi64..0x7fff_ffff) {
            let number = near.saturating_add_signed(off);
            prop_assert_eq!(expand_number(number as u32, near), PacketNumber(number));
        }

        #[test]
        fn near_stamps_survive(near in 0..u64::MAX >> 4, off in -33_000_000i64..33_000_000) {
            let stamp = Stamp(near.saturating_add_signed(off));
            let back = expand_stamp(stamp_bits(stamp), Stamp(near));
            prop_assert!(back <= stamp && stamp.0 - back.0 < STAMP_UNIT, "{back:?} {stamp:?}");
        }

        #[test]
        fn headers_come_back(link in 0u8..32, index in 1u32..1 << 24, number: u32) {
            let [_, a, b, c] = index.to_be_bytes();
            let receiver = SessionIndex::new([a, b, c]).expect("not zero");
            let header = Header { link: LinkId(link), receiver, number };
            let mut bytes = header.to_bytes().to_vec();
            prop_assert_eq!(Kind::of(&bytes), None, "too short");
            bytes.resize(OVERHEAD, 0);
            prop_assert_eq!(Kind::of(&bytes), Some(Kind::Data(header)));
        }

        #[test]
        fn any_number_expands_to_its_bits(low: u32, bits in 1u32..=32, near: u64) {
            let low = low & (u64::MAX >> (64 - bits)) as u32;
            let number = expand(low, bits, near >> 1);
            prop_assert_eq!(number & ((1 << bits) - 1), u64::from(low));
        }
    }
}
