//! Errors in headers.

/// A header that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0} is neither 4 nor 6")]
    Version(u8),
    /// The bytes end before the header does.
    #[error("{header} truncated: {have} of at least {need} bytes")]
    Truncated {
        /// Name of the header.
        header: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// A length in the header is below its minimum or exceeds the bytes present.
    #[error("{header}: length field {says} is too small or exceeds the packet")]
    Length {
        /// Name of the header.
        header: &'static str,
        /// Value of the field, in bytes.
        says: usize,
    },
}

/// Splits off the first `need` bytes.
pub(crate) fn split<'a>(
    header: &'static str,
    bytes: &'a [u8],
    need: usize,
) -> Result<(&'a [u8], &'a [u8]), Error> {
    let have = bytes.len();
    bytes
        .split_at_checked(need)
        .ok_or(Error::Truncated { header, need, have })
}
