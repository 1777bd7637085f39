//! Braid's share of the kernel's state: the veth pair, addresses, routes, rules and sysctls.
//!
//! The caller says what it wants ([`Desired`]); [`Plumbing::plan`] compares that with what is there
//! and yields the steps that are missing, as data ([`Plan`]); [`Plumbing::apply`] takes them. An
//! empty plan means that all is well. The order of the steps never cuts traffic: rules that divert
//! come last on the way up and go first on the way down.
//!
//! The life of a daemon:
//! 1. `plan(Desired { divert: AsFound, .. })`, store [`Plan::saved`], `apply`;
//! 2. attach the datapath to [`Plumbing::steer_ifindex`] and the uplinks;
//! 3. `plan(Desired { divert: On, .. })`, store, `apply`; again whenever the uplinks change;
//! 4. at the end `plan(Desired { divert: Off, .. })`, `apply`, remove the datapath, [`Plumbing::remove`].
//!    `remove` alone also does, at the price of packets that find no datapath for a moment.

mod desired;
mod sysctl;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use desired::{Desired, Divert};
pub use sysctl::{Saved, SavedSysctl};

/// The device that outbound traffic is routed into; the steering program sits on its egress.
pub const STEER_DEVICE: &str = "braid0";
/// The veth's other end. Nothing is ever sent through it.
pub const PEER_DEVICE: &str = "braid1";
/// The host's own IPv4 address behind translation: the dummy address of RFC 7600 §4.8, which is
/// never routed and which no network uses.
pub const INNER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// The host's own IPv6 address behind translation, from the local-use translation prefix of
/// RFC 8215. Not a unique local address (`fd00::/8`): RFC 6724 and glibc rank IPv4 above those, and
/// the host would then never use IPv6.
pub const INNER_V6: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 1, 0x6272, 0, 0, 0, 8);

/// A handle on the kernel's network state in the namespace of the calling thread.
pub struct Plumbing {}

/// The steps from what is there to what should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Sysctls as they were before Braid, including those that this plan is about to change.
    pub saved: Saved,
    // + steps: Vec<Step>, each `Display` as an `ip …` line
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {}

impl Plumbing {
    /// Opens the routing socket. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// When netlink is not to be had.
    pub fn open() -> Result<Plumbing, Error> {
        todo!()
    }

    /// Compares what is there with what is desired. Changes nothing.
    ///
    /// # Errors
    /// When the kernel cannot be read, or a device that is not ours is named `braid0` or `braid1`.
    pub async fn plan(&self, _desired: &Desired, _saved: &Saved) -> Result<Plan, Error> {
        todo!()
    }

    /// Takes the steps of a plan. Store [`Plan::saved`] first.
    ///
    /// # Errors
    /// The step that the kernel refused, and its answer. Earlier steps stay taken; planning anew
    /// continues from there.
    pub async fn apply(&self, _plan: &Plan) -> Result<(), Error> {
        todo!()
    }

    /// Index of `braid0`, once it exists.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub async fn steer_ifindex(&self) -> Result<Option<u32>, Error> {
        todo!()
    }

    /// Puts the machine back as it was found, from the kernel's state and, for sysctls, from what
    /// was saved. Idempotent; also after a crash. Returns the steps taken.
    ///
    /// # Errors
    /// As [`Plumbing::apply`].
    pub async fn remove(&self, _saved: &Saved) -> Result<Plan, Error> {
        todo!()
    }
}
