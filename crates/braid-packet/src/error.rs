//! What can be wrong with a header.

/// A header that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Neither IPv4 nor IPv6.
    #[error("ip version {0}: neither 4 nor 6")]
    Version(u8),
    /// The bytes end before the header does.
    #[error("{header}: {have} bytes, at least {need} needed")]
    Truncated {
        /// Which header.
        header: &'static str,
        /// Bytes that it needs.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// A length in the header contradicts its own least size or the bytes that are there.
    #[error("{header}: length field says {says}, which cannot be")]
    Length {
        /// Which header.
        header: &'static str,
        /// What the field says, in bytes.
        says: usize,
    },
}

/// The first `need` bytes and the rest.
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
