//! Variable-length integers as in RFC 9000 §16, with one encoding per number.
//!
//! The two highest bits of the first byte give the length (1, 2, 4 or 8 bytes); the remaining bits
//! are the number, big endian. An overlong encoding is refused, so that every frame has exactly one
//! encoding and `parse` and `append` are inverses.

use super::frame::FrameError;
use super::reader::Reader;

/// The largest number that can be written: 2⁶² − 1.
pub const MAX: u64 = (1 << 62) - 1;

/// Reads a number.
///
/// # Errors
/// [`FrameError::Truncated`] if the bytes end first, [`FrameError::Overlong`] if a shorter
/// encoding exists.
pub fn parse(reader: &mut Reader<'_>) -> Result<u64, FrameError> {
    let first = *reader.rest().first().ok_or(FrameError::Truncated)?;
    let size = 1 << (first >> 6);
    let bytes = reader.take(size)?;
    let start = u64::from(first & 0x3f);
    let value = bytes[1..]
        .iter()
        .fold(start, |value, byte| value << 8 | u64::from(*byte));
    if size_of(value) == size {
        Ok(value)
    } else {
        Err(FrameError::Overlong)
    }
}

/// Reads a number that must fit `u32`.
///
/// # Errors
/// As [`parse`], and [`FrameError::Range`] beyond `u32::MAX`.
pub fn parse_u32(reader: &mut Reader<'_>) -> Result<u32, FrameError> {
    u32::try_from(parse(reader)?).map_err(|_| FrameError::Range)
}

/// Writes a number.
///
/// # Panics
/// Beyond [`MAX`]: no counter of this protocol reaches it within the life of a key.
pub fn append(value: u64, out: &mut Vec<u8>) {
    assert!(value <= MAX, "{value} has no encoding");
    let bytes = value.to_be_bytes();
    let size = size_of(value);
    let at = out.len();
    out.extend_from_slice(&bytes[8 - size..]);
    out[at] |= (size.trailing_zeros() as u8) << 6;
}

/// Length of a number's encoding, bytes.
#[must_use]
pub const fn size_of(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Folds a signed number so that small magnitudes stay short: 0, −1, 1, −2 … become 0, 1, 2, 3 …
#[must_use]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[must_use]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc_9000_appendix_a_1_examples() {
        // "the eight-byte sequence 0xc2197c5eff14e88c decodes to the decimal value
        // 151,288,809,941,952,652; the four-byte sequence 0x9d7f3e7d decodes to 494,878,333; the
        // two-byte sequence 0x7bbd decodes to 15,293; and the single byte 0x25 decodes to 37".
        let examples: [(&[u8], u64); 4] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ];
        for (bytes, value) in examples {
            assert_eq!(parse(&mut Reader::new(bytes)), Ok(value));
            let mut out = Vec::new();
            append(value, &mut out);
            assert_eq!(out, bytes);
        }
        // "(as does the two-byte sequence 0x4025)": deviation, here it is refused.
        assert_eq!(
            parse(&mut Reader::new(&[0x40, 0x25])),
            Err(FrameError::Overlong)
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in (0u32..62).prop_flat_map(|bits| 0..=MAX >> bits)) {
            let mut out = Vec::new();
            append(value, &mut out);
            prop_assert_eq!(out.len(), size_of(value));
            let mut reader = Reader::new(&out);
            prop_assert_eq!(parse(&mut reader), Ok(value));
            prop_assert!(reader.is_empty());
            for cut in 0..out.len() {
                prop_assert_eq!(parse(&mut Reader::new(&out[..cut])), Err(FrameError::Truncated));
            }
        }

        #[test]
        fn zigzag_has_an_inverse(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }
    }
}
