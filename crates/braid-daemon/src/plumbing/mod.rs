//! Braid's share of the kernel's state: the veth pair, addresses, routes, rules and sysctls.
//!
//! The caller gives the desired state ([`Desired`]). [`Plumbing::plan`] compares it with the present state and
//! returns the missing steps as data ([`Plan`]); [`Plumbing::apply`] applies them. An empty plan means that
//! nothing is missing. The order of the steps never interrupts traffic: diverting rules come last on the way up
//! and go first on the way down.
//!
//! The life of a daemon:
//! 1. `plan(Desired { divert: AsFound, .. })`, store [`Plan::saved`], `apply`;
//! 2. attach the datapath to [`Plumbing::steer_ifindex`] and the uplinks;
//! 3. `plan(Desired { divert: On, .. })`, store, `apply`; again whenever the uplinks change;
//! 4. at the end [`Plumbing::undivert`], remove the datapath, [`Plumbing::remove`]. `remove` alone
//!    also does, at the price of packets that find no datapath for a moment.
//!
//! ```text
//! pref 32256+ lookup main                           what `use = "none"` keeps away from us, and
//!             or goto 32763                         what a rule before it wants to have balanced
//! pref 32763  to 224.0.0.0/4, 255.255.255.255,      groups, broadcasts, and addresses of one link:
//!             169.254.0.0/16                        for no uplink of ours to choose
//!             lookup main
//! pref 32763  lookup main suppress_prefixlength 0   specific routes win: LANs, containers, VPNs
//! pref 32764  from <address of uplink i>            answers of local servers leave where the
//!             lookup 45521+i                        question came in
//! pref 32765  lookup 45520                          default via braid0: the rest is balanced
//! pref 32766  lookup main                           (the kernel's own)
//! ```
//! Braid's rules sit just above the kernel's, so that rules which a VPN adds later come first.
//!
//! Braid's objects are identified by their marks alone (protocol 98 in its tables and preferences, the veth's
//! group and alias), so removal needs no stored state, except for sysctls ([`Saved`]).

mod bypass;
mod desired;
mod kernel;
mod netlink_messages;
pub(crate) mod own_route;
mod plan;
mod selector;
mod state;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_balance::MAX_RULES;
use braid_core::UplinkId;
use braid_host::sysctl::{self, Saved, hint};
use braid_host::user_error::UserError;

pub use bypass::Bypass;
pub use desired::{Desired, Divert};
pub use plan::Plan;
pub use selector::Selector;
pub use state::{Family, ForeignRule, Route, Rule, RuleOutcome, Step};

/// The device that outbound traffic is routed into; the steering program sits on its egress.
pub const STEER_DEVICE: &str = "braid0";
/// The other end of the veth pair. Nothing is ever sent through it.
pub const PEER_DEVICE: &str = "braid1";
/// The host's own IPv4 address behind translation: the dummy address of RFC 7600 §4.8, which is
/// never routed and which no network uses.
pub const INNER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// The host's own IPv6 address behind translation, from the local-use translation prefix of
/// RFC 8215. Not a unique local address (`fd00::/8`): RFC 6724 and glibc rank IPv4 above those, and
/// the host would then never use IPv6.
pub const INNER_V6: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 1, 0x6272, 0, 0, 0, 8);
/// Next hop of the IPv4 default route into `braid0`. No host has the address and no packet is ever sent to it.
/// Without a next hop every destination would take an entry of the kernel's neighbour table, and past 1024 of
/// them (`gc_thresh3`) the kernel drops packets.
pub const NEXT_HOP_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 9);
/// Next hop of the IPv6 default route into `braid0`, see [`NEXT_HOP_V4`].
pub const NEXT_HOP_V6: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 1, 0x6272, 0, 0, 0, 9);
/// The routing table with the default routes into `braid0`.
pub const BALANCE_TABLE: u32 = 45520;
/// Preference of the diverting rules; the two other kinds come right before.
pub const DIVERT_PREFERENCE: u32 = 32765;
/// Preference of the rule by which specific routes of the main table win.
const SPECIFIC_PREFERENCE: u32 = DIVERT_PREFERENCE - 2;
/// Preference of the rules for traffic from LANs to the uplinks' own networks.
const SEGMENT_PREFERENCE: u32 = SPECIFIC_PREFERENCE - 1;
/// Preferences of the rules that exempt traffic, one for each of the configuration's.
const BYPASS_PREFERENCES: std::ops::Range<u32> = 32_256..32_256 + MAX_RULES as u32;
/// Alias of Braid's devices.
const MARK: &str = "braid";
/// Device group of Braid's devices. Unlike the alias it is set at their creation, so that even after a crash
/// they are identified.
const GROUP: u32 = BALANCE_TABLE;

/// The routing table with the default routes out of one uplink.
#[must_use]
pub fn uplink_table(id: UplinkId) -> u32 {
    BALANCE_TABLE + 1 + u32::from(id.0)
}

/// Errors of reading or changing the kernel's state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The routing socket cannot be opened.
    #[error("cannot open a netlink socket: {0}")]
    Socket(#[source] io::Error),
    /// The kernel's state cannot be read.
    #[error("cannot read {what}: {source}")]
    Read {
        /// The kind of object: `links`, `rules`.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A sysctl cannot be read.
    #[error(transparent)]
    Sysctl(#[from] sysctl::Error),
    /// A foreign device has the name of one of Braid's.
    #[error(
        "a device named {device} exists and is not braid's: rename or remove it (ip link del {device})"
    )]
    ForeignDevice {
        /// `braid0` or `braid1`.
        device: &'static str,
    },
    /// The kernel refused a step.
    #[error("`{step}`: {source}{}", hint(source))]
    Refused {
        /// The step, as a command.
        step: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl From<Error> for UserError {
    fn from(error: Error) -> UserError {
        UserError::new("plumbing", error.to_string())
    }
}

/// A handle on the kernel's network state in the namespace of the thread that opened it; sysctls are those of
/// the calling thread's.
pub struct Plumbing {
    kernel: kernel::Kernel,
}

impl Plumbing {
    /// Opens the routing socket. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Plumbing, Error> {
        let kernel = kernel::Kernel::open().map_err(Error::Socket)?;
        Ok(Plumbing { kernel })
    }

    /// Compares the present with the desired state. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::ForeignDevice`].
    pub async fn plan(&self, desired: &Desired, saved: &Saved) -> Result<Plan, Error> {
        let mut keys = sysctl::keys(&desired.sysctls())?;
        keys.extend(plan::OWN_SYSCTLS.map(str::to_owned));
        let found = self.kernel.read(keys, saved).await?;
        plan::plan(desired, &found, saved)
    }

    /// Applies the steps of a plan. Store [`Plan::saved`] first.
    ///
    /// # Errors
    /// [`Error::Refused`] with the step that the kernel refused. Earlier steps stay applied; a new plan
    /// continues from there. A device that vanished since the plan was made also ends here: plan again with the
    /// uplinks that remain.
    pub async fn apply(&self, plan: &Plan) -> Result<(), Error> {
        for step in &plan.steps {
            let outcome = self.kernel.take(step).await;
            outcome.map_err(|source| Error::Refused {
                step: step.to_string(),
                source,
            })?;
            tracing::debug!(%step, "changed the kernel's state");
        }
        Ok(())
    }

    /// Gives another device of Braid's these global addresses and removes all others. Only reads if they are
    /// set already.
    ///
    /// # Errors
    /// [`Error::Read`], or [`Error::Refused`].
    pub async fn give_addresses(&self, device: &str, wanted: &[IpAddr]) -> Result<(), Error> {
        self.kernel.give_addresses(device, wanted).await
    }

    /// Returns the kernel's index of `braid0`, once it exists and is Braid's.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub async fn steer_ifindex(&self) -> Result<Option<u32>, Error> {
        let found = self.kernel.read(Vec::new(), &Saved::default()).await?;
        Ok(found.steer.filter(|d| d.ours).map(|d| d.index))
    }

    /// Returns foreign rules that come before or among Braid's: traffic that they match is not balanced. Rules
    /// that only find specific routes (a VPN's `suppress_prefixlength 0`) are left out.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub async fn earlier_rules(&self) -> Result<Vec<ForeignRule>, Error> {
        self.kernel.foreign_rules().await
    }

    /// Removes Braid's rules and nothing else: from now on new packets leave as they would without Braid.
    /// Idempotent. Returns the steps taken.
    ///
    /// # Errors
    /// As [`Plumbing::plan_removal`] and [`Plumbing::apply`].
    pub async fn undivert(&self) -> Result<Plan, Error> {
        let found = self.kernel.read(Vec::new(), &Saved::default()).await?;
        let plan = plan::undiversion(&found);
        self.apply(&plan).await?;
        Ok(plan)
    }

    /// Plans [`Plumbing::remove`]. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub async fn plan_removal(&self, saved: &Saved) -> Result<Plan, Error> {
        let found = self.kernel.read(Vec::new(), saved).await?;
        Ok(plan::removal(&found, saved))
    }

    /// Restores the machine, from the kernel's state and, for sysctls, from the saved values. Idempotent; also
    /// after a crash. Returns the steps taken.
    ///
    /// # Errors
    /// As [`Plumbing::plan_removal`] and [`Plumbing::apply`].
    pub async fn remove(&self, saved: &Saved) -> Result<Plan, Error> {
        let plan = self.plan_removal(saved).await?;
        self.apply(&plan).await?;
        Ok(plan)
    }
}
