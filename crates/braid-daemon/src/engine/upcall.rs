//! Notices of the datapath: answers of name servers, fragments that came too early, and packets
//! that are not sent and of which their senders are to hear.
//!
//! What bounds it: the ring's size in the kernel, [`MAX_UPCALL_BATCH`] notices before others have their turn,
//! [`braid_balance::Fragments`]' own bounds, and those of [`crate::dns_snoop`]. A flood of either fills
//! its own room and nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use braid_balance::{Fragments, KernelTime, Upcall, Upcalls};
use braid_uplink::Snapshot;

use super::Engine;
use crate::dns_snoop;
use crate::plumbing::{INNER_V4, INNER_V6};
use crate::user_error::UserError;

/// Notices that are taken before others have their turn.
const MAX_UPCALL_BATCH: usize = 256;
/// How soon to look again whether the first piece of a held fragment has come.
const FRAGMENT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What is needed for it.
pub(super) struct UpcallHandler {
    notices: Upcalls,
    fragments: Fragments,
    /// When to look again whether first fragments have come; `None`: nothing is held.
    look_at: Option<Instant>,
}

impl UpcallHandler {
    pub fn new(notices: Upcalls) -> UpcallHandler {
        UpcallHandler {
            notices,
            fragments: Fragments::new(),
            look_at: None,
        }
    }

    /// A descriptor of its own that is readable while there are notices.
    pub fn readiness(&self) -> io::Result<OwnedFd> {
        self.notices.as_fd().try_clone_to_owned()
    }
}

impl Engine {
    /// When [`Engine::forward_fragments`] is due; `None`: nothing is held.
    #[must_use]
    pub fn next_fragments(&self) -> Option<Instant> {
        self.upcalls.look_at
    }

    /// Takes what the datapath hands over. `true`: there may be more.
    ///
    /// # Errors
    /// The tables cannot be written.
    pub fn handle_upcalls(&mut self) -> Result<bool, UserError> {
        let now = KernelTime::now();
        for _ in 0..MAX_UPCALL_BATCH {
            match self.upcalls.notices.next() {
                None => return self.forward_fragments().map(|()| false),
                Some(Upcall::Fragment(fragment)) => {
                    // One for which there is no room is lost, as it would be without us.
                    self.upcalls.fragments.hold(fragment, now);
                }
                Some(Upcall::DnsAnswer { from, to, payload }) => {
                    match self.names.handle_answer(now, from, to, &payload) {
                        Ok(learnt) => {
                            self.datapath.learn_names(&learnt.learn)?;
                            self.datapath.forget_names(&learnt.forget)?;
                        }
                        Err(reject) => tracing::debug!(?reject, "an answer is not believed"),
                    }
                }
                Some(Upcall::Refused(refused)) => {
                    // One that cannot be reached does not keep the others from being heard.
                    if let Err(error) = self.datapath.send_icmp_error(&refused) {
                        tracing::debug!(%error, "the sender of a refused packet is not told");
                    }
                }
                Some(_) => {}
            }
        }
        self.forward_fragments().map(|()| true)
    }

    /// Sends on the held fragments whose first one has come by now.
    ///
    /// # Errors
    /// They cannot be sent.
    pub fn forward_fragments(&mut self) -> Result<(), UserError> {
        let UpcallHandler {
            fragments, look_at, ..
        } = &mut self.upcalls;
        *look_at = None;
        if fragments.is_empty() {
            return Ok(());
        }
        self.datapath.reinject(fragments, KernelTime::now())?;
        if !fragments.is_empty() {
            *look_at = Some(Instant::now() + FRAGMENT_POLL_INTERVAL);
        }
        Ok(())
    }

    /// Has names mean what the settings say now.
    pub(crate) fn follow_names(&mut self) -> Result<(), UserError> {
        let known = self.names.set_rules(&self.settings);
        self.note_name_servers();
        self.datapath.keep_names(self.names.rules_hash())?;
        self.datapath.learn_names(&known)?;
        self.datapath.snoop_dns(self.names.is_active())?;
        Ok(())
    }

    /// Takes note of the machine's own addresses, which no name elsewhere has.
    pub(super) fn note_own_addresses(&mut self, snapshot: &Snapshot) {
        let own = snapshot.addresses.iter().map(|address| address.address);
        let inner = [INNER_V4.into(), INNER_V6.into()];
        self.names.set_own(own.chain(inner));
    }

    /// Looks again which name servers the machine asks: its providers may have told it others.
    pub(crate) fn note_name_servers(&mut self) {
        if self.names.is_active() {
            self.names.set_system(dns_snoop::system_servers());
        }
    }

    pub(super) fn forget_names(&mut self) -> Result<(), UserError> {
        let ended = self.names.expire(KernelTime::now());
        self.datapath.forget_names(&ended)?;
        Ok(())
    }
}
