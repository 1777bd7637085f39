//! Notice of a responder that no longer has the key to which an initiation is addressed.
//!
//! ```text
//! 0      5
//! 1      link
//! 2..17  MAC
//! ```
//! The MAC is HMAC-SHA256 with key SHA256("braid retired" ‖ the retired public key) over the
//! initiation's `mac1`. The responder has erased the private key, so it can neither read the
//! initiation nor prove anything: whoever knows the retired public key and sees the initiation can
//! make the notice. It therefore changes nothing; the initiator tells its user why nobody may be
//! answering, and goes on.

use braid_multipath::LinkId;

use super::PublicKey;
use super::cookie::CookieReply;
use super::mac::{MAC, MacKey};
use crate::proto::packet::kind;

const SIZE: usize = 2 + MAC;

const _: () = assert!(SIZE <= super::MIN_INITIATION_LENGTH);

/// A key that the responder no longer has.
#[derive(Clone, Debug)]
pub(super) struct RetiredKey {
    /// Recognises initiations that are addressed to it.
    pub to_it: MacKey,
    notices: MacKey,
}

impl RetiredKey {
    pub fn of(key: PublicKey) -> Self {
        RetiredKey {
            to_it: MacKey::of(key),
            notices: MacKey::of_retired(key),
        }
    }

    /// The notice for the initiation with `mac1`.
    pub fn notice(&self, link: LinkId, mac1: &[u8; MAC]) -> Vec<u8> {
        let mut datagram = vec![kind::RETIRED, link.0];
        datagram.extend_from_slice(&self.notices.sign(&[mac1]));
        datagram
    }
}

/// The link of a notice about `key`; `mac1` returns that of the initiation on a link. None if it is
/// no notice, or answers another initiation.
pub(super) fn read(
    datagram: &[u8],
    key: PublicKey,
    mac1: impl FnOnce(LinkId) -> [u8; MAC],
) -> Option<LinkId> {
    let datagram: &[u8; SIZE] = datagram.try_into().ok()?;
    let link = CookieReply::link_of(datagram).filter(|_| datagram[0] == kind::RETIRED)?;
    let mac = datagram.last_chunk()?;
    let keyed = MacKey::of_retired(key);
    keyed.verify(&[&mac1(link)], mac).then_some(link)
}
