//! Options of TCP headers.

/// Option kinds that end the options, and that fill space (RFC 9293 §3.2).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;

/// Kinds of options.
pub mod option_kind {
    /// Maximum segment size (RFC 9293 §3.7.1).
    pub const MSS: u8 = 2;
    /// Window scale (RFC 7323 §2).
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK is permitted (RFC 2018 §2).
    pub const SACK_PERMITTED: u8 = 4;
    /// Timestamps (RFC 7323 §3).
    pub const TIMESTAMPS: u8 = 8;
    /// MD5 signature (RFC 2385 §3.0).
    pub const MD5: u8 = 19;
    /// TCP-AO (RFC 5925 §2.2).
    pub const AUTHENTICATION: u8 = 29;
    /// Multipath TCP (RFC 8684 §3).
    pub const MPTCP: u8 = 30;
}

/// Returns the kind of each option in a TCP header with its options, the offset of its value in the header, and the value. They end at
/// one that does not fit.
pub fn tcp_options(header: &[u8]) -> impl Iterator<Item = (u8, usize, &[u8])> {
    let mut at = 20;
    std::iter::from_fn(move || {
        while header.get(at) == Some(&NO_OPERATION) {
            at += 1;
        }
        let kind = *header.get(at).filter(|kind| **kind != END)?;
        let length = usize::from(*header.get(at + 1)?);
        let begin = at + 2;
        let value = header.get(begin..at + length)?;
        at += length;
        Some((kind, begin, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(bytes: &[u8]) -> Vec<(u8, usize, Vec<u8>)> {
        let header = [&[0; 20], bytes].concat();
        let each = tcp_options(&header).map(|(kind, at, value)| (kind, at, value.to_vec()));
        each.collect()
    }

    #[test]
    fn options_come_in_order() {
        let seen = options(&[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 0, 9]);
        let expected = [
            (option_kind::MSS, 22, vec![5, 0xb4]),
            (option_kind::WINDOW_SCALE, 27, vec![7]),
            (option_kind::SACK_PERMITTED, 30, vec![]),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn they_end_at_one_that_does_not_fit() {
        for rest in [&[8, 10, 1, 2][..], &[8, 1, 1], &[8, 0], &[8]] {
            assert_eq!(options(&[&[3, 3, 7], rest].concat()).len(), 1, "{rest:?}");
        }
        assert!(tcp_options(&[1; 8]).next().is_none());
    }
}
