//! Upcalls from the datapath: answers of name servers, fragments that arrived before their first fragment, and
//! packets that are not sent and whose senders get an error.
//!
//! Limits: the size of the ring buffer in the kernel, [`MAX_UPCALL_BATCH`] upcalls per turn, the limits of
//! [`braid_balance::Fragments`], and those of [`crate::dns_snoop`]. A flood of either fills its own space and
//! nothing else.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use braid_balance::{Fragments, KernelTime, Upcall};
use braid_host::user_error::UserError;
use braid_uplink::Snapshot;

use super::Engine;
use crate::datapath::UpcallSource;
use crate::dns_snoop;
use crate::plumbing::{INNER_V4, INNER_V6};

/// Most upcalls handled before other events have their turn.
const MAX_UPCALL_BATCH: usize = 256;
/// Interval between checks for the first fragment of held ones.
const FRAGMENT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// State of the handling of upcalls.
pub(super) struct UpcallHandler {
    notices: UpcallSource,
    fragments: Fragments,
    /// Time of the next check for first fragments; `None` if none is held.
    look_at: Option<Instant>,
}

impl UpcallHandler {
    pub fn new(notices: UpcallSource) -> UpcallHandler {
        UpcallHandler {
            notices,
            fragments: Fragments::new(),
            look_at: None,
        }
    }

    /// Returns a descriptor of its own that is readable while there are upcalls.
    pub fn readiness(&self) -> io::Result<OwnedFd> {
        self.notices.readiness()
    }
}

impl Engine {
    /// Returns the time of the next [`Engine::forward_fragments`]; `None` if no fragment is held.
    #[must_use]
    pub fn next_fragments(&self) -> Option<Instant> {
        self.upcalls.look_at
    }

    /// Handles waiting upcalls. Returns true if there may be more.
    ///
    /// # Errors
    /// The tables cannot be written.
    pub fn handle_upcalls(&mut self) -> Result<bool, UserError> {
        let now = KernelTime::now();
        for _ in 0..MAX_UPCALL_BATCH {
            match self.upcalls.notices.next() {
                None => return self.forward_fragments().map(|()| false),
                Some(Upcall::Fragment(fragment)) => {
                    // A fragment without room is lost, as it would be without Braid.
                    self.upcalls.fragments.hold(fragment, now);
                }
                Some(Upcall::DnsAnswer { from, to, payload }) => {
                    match self.names.handle_answer(now, from, to, &payload) {
                        Ok(learned) => {
                            self.datapath.learn_names(&learned.learn)?;
                            self.datapath.forget_names(&learned.forget)?;
                        }
                        Err(reject) => tracing::debug!(?reject, "DNS answer rejected"),
                    }
                }
                Some(Upcall::Refused(refused)) => {
                    // A sender that cannot be reached does not delay the others.
                    if let Err(error) = self.datapath.send_icmp_error(&refused) {
                        tracing::debug!(%error, "the sender of a refused packet is not told");
                    }
                }
                Some(_) => {}
            }
        }
        self.forward_fragments().map(|()| true)
    }

    /// Forwards the held fragments whose first fragment has arrived.
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

    /// Applies the settings to the name cache and the datapath.
    pub(crate) fn follow_names(&mut self) -> Result<(), UserError> {
        let known = self.names.set_rules(&self.settings);
        self.note_name_servers();
        self.datapath.keep_names(self.names.rules_hash())?;
        self.datapath.learn_names(&known)?;
        self.datapath.snoop_dns(self.names.is_active())?;
        Ok(())
    }

    /// Records the machine's own addresses: a public name cannot have one of these.
    pub(super) fn note_own_addresses(&mut self, snapshot: &Snapshot) {
        let own = snapshot.addresses.iter().map(|address| address.address);
        let inner = [INNER_V4.into(), INNER_V6.into()];
        self.names.set_own(own.chain(inner));
    }

    /// Looks up the machine's name servers, which its providers may have changed.
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
