//! Sequence numbers of TCP, which go round (RFC 9293 §3.4).

/// Returns true for a number of a sequence that is above another.
pub(crate) fn is_above(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() > 0
}
