//! Opens data packets: each passes four checks before its contents count. The session is known, the
//! link is allowed, the number is new, and the seal is valid. The checks run in this order, the
//! cheapest first. Only a packet that passes all of them changes state.

use braid_core::Time;
use braid_multipath::{LinkId, MAX_LINKS, PacketNumber};

use super::packet::{Header, SessionIndex, expand_number};
use super::reject::Reject;
use super::replay_window::{REPLAY_WINDOW, ReplayError, ReplayWindow};
use super::session::{KeyStatus, Keyring};

/// Keys and replay windows of one tunnel.
#[derive(Debug, Default)]
pub struct ReplayGuard {
    /// The keys.
    pub keys: Keyring,
    /// Links whose packets are accepted, one bit each.
    allowed: u32,
    /// Replay window per link. It is allocated with the first authentic packet of the link, because a
    /// hub has many tunnels, most with few links.
    windows: [Option<ReplayWindow>; MAX_LINKS],
    /// One more than the highest sealed number, per link.
    sealed: [u64; MAX_LINKS],
}

/// A packet that passed all checks.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The link it came on.
    pub link: LinkId,
    /// Its number on the link.
    pub number: PacketNumber,
    /// True if its number is the highest so far: only then its source address counts.
    pub newest: bool,
    /// The keys that opened it.
    pub key_status: KeyStatus,
    /// Stamp and frames.
    pub plain: &'a [u8],
}

impl From<ReplayError> for Reject {
    fn from(refused: ReplayError) -> Self {
        match refused {
            ReplayError::Seen => Reject::Seen,
            ReplayError::Old => Reject::Old,
            ReplayError::Unnameable => Reject::Malformed,
        }
    }
}

impl ReplayGuard {
    /// Accepts packets of a link from now on. The link keeps the window that it had, so that packets
    /// seen before stay refused if it is refused and allowed again under the same keys.
    pub fn allow_link(&mut self, link: LinkId) {
        self.allowed |= 1 << link.0;
    }

    /// Refuses packets of a link from now on; its window stays.
    pub fn refuse_link(&mut self, link: LinkId) {
        self.allowed &= !(1 << link.0);
    }

    /// Forgets all keys, windows and numbers, for a session that does not continue. The allowed links
    /// stay.
    pub fn forget_keys(&mut self) {
        self.keys.clear();
        self.windows = [const { None }; MAX_LINKS];
        self.sealed = [0; MAX_LINKS];
    }

    /// Checks a data packet and decrypts it in place.
    ///
    /// # Errors
    /// The reason for refusal; nothing but the packet's own bytes has changed then.
    pub fn open<'a>(
        &mut self,
        now: Time,
        header: Header,
        packet: &'a mut [u8],
    ) -> Result<Opened<'a>, Reject> {
        let index: SessionIndex = header.receiver;
        let session = self.keys.receiving(now, index).ok_or(Reject::Session)?;
        let link = header.link;
        if self.allowed & 1 << link.0 == 0 {
            return Err(Reject::Link);
        }
        let window = &mut self.windows[link.index()];
        let next = window.as_ref().map_or(0, ReplayWindow::next);
        let number = expand_number(header.number, next);
        window.as_ref().map_or(Ok(()), |seen| seen.check(number))?;
        let plain = session
            .open(link, number, packet)
            .map_err(|_| Reject::Forged)?;
        window.get_or_insert_default().take(number)?;
        let sealed = &mut self.sealed[link.index()];
        *sealed = (*sealed).max(number.0 + 1);
        let key_status = self.keys.handle_authentic(now, index);
        Ok(Opened {
            link,
            number,
            newest: number.0 >= next,
            key_status,
            plain,
        })
    }

    /// Admits a cleartext packet by its number, once. A sealed packet must have come on its link, and
    /// the number must be less than a window beyond the highest sealed one: so a forged number never
    /// makes the next sealed packet too old. A cleartext packet confirms no keys.
    ///
    /// # Errors
    /// The reason for refusal; nothing has changed then.
    pub fn admit_cleartext(&mut self, now: Time, header: Header) -> Result<PacketNumber, Reject> {
        let session = self.keys.receiving(now, header.receiver);
        session.ok_or(Reject::Session)?;
        let link = header.link;
        let window = self.windows[link.index()].as_mut();
        let window = window.filter(|_| self.allowed & 1 << link.0 != 0);
        let window = window.ok_or(Reject::Link)?;
        let number = expand_number(header.number, window.next());
        if number.0 >= self.sealed[link.index()] + REPLAY_WINDOW {
            return Err(Reject::Cleartext);
        }
        window.take(number)?;
        Ok(number)
    }
}
