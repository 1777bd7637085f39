//! The bond's driver thread, and a thread that renews its lease.
//!
//! The datapath sends flows into the bond only while its [`Lease`] is valid. The lease is renewed only after
//! the driver has answered, so a driver that hangs loses its flows like one that has ended, within
//! [`LEASE_TIME`].

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use braid_balance::{KernelTime, Lease};
use braid_bond::io::{
    ClientConfig, ClientHandle, ClientStatus, FlowInfo, FlowLinks, LinkSpec, Policy, client,
};
use braid_bond::proto::handshake::PublicKey;
use braid_host::user_error::UserError;

/// Interval at which the driver is queried.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for the links of flows.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// Validity of the lease: a few intervals, so that a busy machine does not send flows away.
const LEASE_TIME: Duration = Duration::from_millis(500);

/// The running driver. Dropping this ends it.
#[derive(Debug)]
pub struct DriverThread {
    handle: Option<Arc<ClientHandle>>,
    renewal: Option<JoinHandle<()>>,
    /// Dropped to end the renewal of the lease.
    end: Option<Sender<()>>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    lease: Lease,
    /// True if the bond takes flows.
    takes: bool,
    /// The latest status of the driver, and when it was taken.
    latest: Option<(Instant, ClientStatus)>,
}

impl DriverThread {
    /// Starts the driver, without flows yet.
    ///
    /// # Errors
    /// An error of the driver, or no thread can be created.
    pub fn start(config: ClientConfig, lease: Lease) -> Result<DriverThread, UserError> {
        let handle = client::start(config).map_err(|error| stopped(&error))?;
        let handle = Arc::new(handle);
        let shared = Arc::new(Mutex::new(Shared {
            lease,
            takes: false,
            latest: None,
        }));
        let (end, ended) = mpsc::channel::<()>();
        let (asked, told) = (Arc::clone(&handle), Arc::clone(&shared));
        let renew = move || {
            while ended.recv_timeout(STATUS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // A stopped driver's lease is not renewed; it reports its end by an event.
                let Ok(status) = asked.status() else { return };
                let mut shared = lock(&told);
                shared.latest = Some((Instant::now(), status));
                if shared.takes {
                    shared.renew();
                }
            }
        };
        let named = thread::Builder::new().name("bond-lease".into());
        let renewal = named.spawn(renew);
        let renewal = renewal.map_err(|error| UserError::io("start a thread", &error))?;
        Ok(DriverThread {
            handle: Some(handle),
            renewal: Some(renewal),
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

    /// Uses this key of the hub from now on. It is on disk.
    pub fn set_hub(&self, key: PublicKey) {
        if let Some(handle) = &self.handle {
            handle.set_hub(key);
        }
    }

    /// Replaces the policy.
    pub fn set_policy(&self, policy: Policy) {
        if let Some(handle) = &self.handle {
            handle.set_policy(policy);
        }
    }

    /// Returns the links of each flow; none from a driver that does not answer.
    pub fn flow_links(&self, flows: Vec<[FlowInfo; 2]>) -> Option<Vec<FlowLinks>> {
        self.handle.as_ref()?.flow_links(flows, ANSWER_TIMEOUT)
    }

    /// Lets the bond take flows, or none.
    pub fn take_flows(&self, takes: bool) {
        let mut shared = lock(&self.shared);
        shared.takes = takes;
        shared.renew();
    }

    /// Returns the latest status of the driver, and when it was taken.
    #[must_use]
    pub fn latest(&self) -> Option<(Instant, ClientStatus)> {
        lock(&self.shared).latest.clone()
    }
}

impl Shared {
    /// Renews the lease.
    fn renew(&mut self) {
        let now = KernelTime::now();
        let until = match self.takes {
            true => now.after(LEASE_TIME),
            false => now,
        };
        if let Err(error) = self.lease.set(until) {
            tracing::warn!(%error, "cannot renew the lease of the bond: new flows leave it");
        }
    }
}

impl Drop for DriverThread {
    fn drop(&mut self) {
        self.take_flows(false);
        drop(self.end.take());
        if let Some(renewal) = self.renewal.take() {
            // It has panicked, so there is nothing to wait for.
            let _ = renewal.join();
        }
        drop(self.handle.take());
    }
}

/// A panic elsewhere leaves no inconsistent state here.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts an error of the driver.
pub(super) fn stopped(error: &braid_bond::io::BondError) -> UserError {
    UserError::new("bond", format!("bond: {error}")).fix("braid doctor shows what is missing")
}
