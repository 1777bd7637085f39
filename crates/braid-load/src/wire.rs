//! The datagrams between the generator's two ends.
//!
//! 18 bytes of payload make the smallest Ethernet frame (64 bytes with its checksum), which "small
//! packet" means in every figure of this crate.
//!
//! ```text
//! 0      2      3      4            8                        16   18
//! | magic | kind | zero | run, u32   | number, u64            | 0 0 |    all big endian
//! ```

/// Length of every datagram, in bytes.
pub(crate) const LENGTH: usize = 18;

/// First two bytes, which tell the generator's datagrams from stray ones.
const MAGIC: u16 = 0xb41d;

/// Action of the server on a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Send it back unchanged; `number` is the sender's own.
    Echo,
    /// Count it under its run, without a reply.
    Count,
    /// Reply with the same kind, and in `number` the datagrams counted of this run.
    Query,
}

/// One datagram, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub kind: Kind,
    /// The sending process; separates runs that share a server.
    pub run: u32,
    pub number: u64,
}

impl Datagram {
    /// Inverse of [`Datagram::parse`].
    pub(crate) fn bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[2] = match self.kind {
            Kind::Echo => 1,
            Kind::Count => 2,
            Kind::Query => 3,
        };
        bytes[4..8].copy_from_slice(&self.run.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Returns `None` if `bytes` is not one of the generator's datagrams.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Datagram> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        if bytes[0..2] != MAGIC.to_be_bytes() {
            return None;
        }
        let kind = match bytes[2] {
            1 => Kind::Echo,
            2 => Kind::Count,
            3 => Kind::Query,
            _ => return None,
        };
        let run = u32::from_be_bytes(bytes[4..8].try_into().ok()?);
        let number = u64::from_be_bytes(bytes[8..16].try_into().ok()?);
        Some(Datagram { kind, run, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parse_undoes_bytes(kind in 0..3u8, run: u32, number: u64) {
            let kind = [Kind::Echo, Kind::Count, Kind::Query][usize::from(kind)];
            let datagram = Datagram { kind, run, number };
            prop_assert_eq!(Datagram::parse(&datagram.bytes()), Some(datagram));
        }

        #[test]
        fn parse_survives_anything(bytes: Vec<u8>) {
            if let Some(datagram) = Datagram::parse(&bytes) {
                prop_assert_eq!(bytes.len(), LENGTH);
                prop_assert_eq!(Datagram::parse(&datagram.bytes()), Some(datagram));
            }
        }
    }

    #[test]
    fn a_frame_is_the_smallest_there_is() {
        let ethernet = 14;
        let (ip, udp, checksum) = (20, 8, 4);
        assert_eq!(ethernet + ip + udp + LENGTH + checksum, 64);
    }
}
