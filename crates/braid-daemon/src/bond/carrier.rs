//! What carries the bond's packets: the driver's thread, and one that vouches for it.
//!
//! The datapath puts flows into the bond only while somebody vouches that their packets are carried
//! ([`Lease`]). Whoever vouches asks the driver first: one that hangs loses its flows as one that is gone
//! does, within [`LEASE_TIME`].

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use braid_balance::{KernelTime, Lease};
use braid_bond::io::{ClientConfig, ClientHandle, ClientStatus, LinkSpec, Policy, client};

use crate::user_error::UserError;

/// How often the driver is asked.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// For how long it is vouched for: a few askings, so that a busy machine does not send flows away.
const LEASE_TIME: Duration = Duration::from_millis(500);

/// The driver while it runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Carrier {
    handle: Option<Arc<ClientHandle>>,
    voucher: Option<JoinHandle<()>>,
    /// Dropped to end the voucher.
    end: Option<Sender<()>>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    lease: Lease,
    /// The bond is to take flows.
    takes: bool,
    latest: Option<ClientStatus>,
}

impl Carrier {
    /// Starts the driver, which takes no flows yet.
    ///
    /// # Errors
    /// The driver's own, or there are no threads to be had.
    pub fn start(config: ClientConfig, lease: Lease) -> Result<Carrier, UserError> {
        let handle = client::start(config).map_err(|error| stopped(&error))?;
        let handle = Arc::new(handle);
        let shared = Arc::new(Mutex::new(Shared {
            lease,
            takes: false,
            latest: None,
        }));
        let (end, ended) = mpsc::channel::<()>();
        let (asked, told) = (Arc::clone(&handle), Arc::clone(&shared));
        let vouch = move || {
            while ended.recv_timeout(STATUS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // Who has stopped is vouched for no more, and says so by an event.
                let Ok(status) = asked.status() else { return };
                let mut shared = lock(&told);
                shared.latest = Some(status);
                if shared.takes {
                    shared.renew();
                }
            }
        };
        let named = thread::Builder::new().name("bond-voucher".into());
        let voucher = named.spawn(vouch);
        let voucher = voucher.map_err(|error| UserError::io("start a thread", &error))?;
        Ok(Carrier {
            handle: Some(handle),
            voucher: Some(voucher),
            end: Some(end),
            shared,
        })
    }

    /// Replaces the links.
    pub fn set_links(&self, links: Vec<LinkSpec>) {
        if let Some(handle) = &self.handle {
            handle.set_links(links);
        }
    }

    /// Replaces the policy.
    pub fn set_policy(&self, policy: Policy) {
        if let Some(handle) = &self.handle {
            handle.set_policy(policy);
        }
    }

    /// From now on it takes flows, or none.
    pub fn take_flows(&self, takes: bool) {
        let mut shared = lock(&self.shared);
        shared.takes = takes;
        shared.renew();
    }

    /// How it was doing a moment ago.
    #[must_use]
    pub fn latest(&self) -> Option<ClientStatus> {
        lock(&self.shared).latest.clone()
    }
}

impl Shared {
    /// Says until when flows may come.
    fn renew(&mut self) {
        let now = KernelTime::now();
        let until = match self.takes {
            true => now.after(LEASE_TIME),
            false => now,
        };
        if let Err(error) = self.lease.set(until) {
            tracing::warn!(%error, "cannot vouch for the bond: new flows leave it");
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.take_flows(false);
        drop(self.end.take());
        if let Some(voucher) = self.voucher.take() {
            // It has panicked: then there is nobody to wait for.
            let _ = voucher.join();
        }
        drop(self.handle.take());
    }
}

/// A panic elsewhere leaves nothing here half done.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver's words.
pub(super) fn stopped(error: &braid_bond::io::BondError) -> UserError {
    UserError::new("bond", format!("bond: {error}")).fix("braid doctor says what lacks")
}
