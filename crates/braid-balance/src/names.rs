//! What is known of remote addresses by name: which domain rules they satisfy, which site they
//! belong to.

use crate::KernelTime;

/// What a remote address' names say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The domain rules that one of its names satisfies: the sum of their
    /// [`NameBit::mask`](crate::NameBit::mask)s.
    pub rules: u64,
    /// Number of the site, the same for all addresses that a client should reach by one uplink;
    /// 0: not known, the address' network stands for it.
    pub site: u32,
    /// From this moment on nothing is known.
    pub expires: KernelTime,
}
