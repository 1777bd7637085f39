//! What a data packet must pass before anything in it is believed: its session must be ours, its
//! link known, its number new, its seal right. In this order, cheapest first; only a packet that
//! passes all changes anything.

use super::packet::{Header, SessionIndex, expand_number};
use super::reject::Reject;
use super::replay_window::{REPLAY_WINDOW, ReplayError, ReplayWindow};
use super::session::{KeyStatus, Keyring};
use braid_core::{LinkId, MAX_LINKS, PacketNumber, Time};

/// Keys and replay windows of one tunnel.
#[derive(Debug, Default)]
pub struct ReplayGuard {
    /// The keys.
    pub keys: Keyring,
    /// Links whose packets pass, one bit each.
    allowed: u32,
    /// Made when something authentic comes on a link: a hub has many tunnels, most with few links.
    windows: [Option<ReplayWindow>; MAX_LINKS],
    /// One more than the highest number that came sealed, per link.
    sealed: [u64; MAX_LINKS],
}

/// A packet that passed.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The link it came on.
    pub link: LinkId,
    /// Its number on the link.
    pub number: PacketNumber,
    /// Whether its number is the highest so far: what it says about addresses counts.
    pub newest: bool,
    /// Whether it confirmed keys.
    pub key_status: KeyStatus,
    /// Stamp and frames.
    pub plain: &'a [u8],
}

impl From<ReplayError> for Reject {
    fn from(refused: ReplayError) -> Self {
        match refused {
            ReplayError::Seen => Reject::Seen,
            ReplayError::Old => Reject::Old,
        }
    }
}

impl ReplayGuard {
    /// Lets packets of a link pass from now on. A link that is known already keeps its window: one
    /// that goes and comes back under the same keys must not accept anew what it has seen.
    pub fn insert(&mut self, link: LinkId) {
        self.allowed |= 1 << link.0;
    }

    /// Lets packets of a link pass no more; its window stays.
    pub fn remove(&mut self, link: LinkId) {
        self.allowed &= !(1 << link.0);
    }

    /// Forgets all keys and all that was seen: a session that does not go on begins at zero.
    pub fn restart(&mut self) {
        self.keys.clear();
        self.windows = [const { None }; MAX_LINKS];
        self.sealed = [0; MAX_LINKS];
    }

    /// Opens a data packet in place.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then, but the packet's own bytes.
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

    /// Takes the number of a packet that came in the clear. It must be of a link on which something
    /// sealed came, and less than a window beyond that: so whatever a stranger makes up, the next sealed
    /// packet is not too old. It confirms no keys.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then.
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
