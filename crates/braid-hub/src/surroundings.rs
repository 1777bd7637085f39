//! What the hub needs of the kernel around it: addresses on the inner device, forwarding, and the
//! filter; and how all of it goes away again.
//!
//! Sysctls are written down before they are changed, in the run directory, so that the next hub
//! restores them also after this one was killed. The device goes with the process, the filter is ours by
//! name.

use std::net::IpAddr;

use braid_daemon::config::Prefix;
use braid_daemon::failure::Failure;
use braid_daemon::plumbing::{Forwarding, Saved};
use braid_daemon::run_dir::RunDir;
use braid_daemon::state::{Earlier, State};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::config::{Forward, HubConfig};
use crate::nat::{self, Filter};
use crate::pool::Pool;

/// The surroundings while a hub runs.
pub struct Surroundings {
    run_dir: RunDir,
    state: State,
    forward: Forward,
}

impl Surroundings {
    /// Checks that nothing is in the way of the inner networks. Changes nothing.
    ///
    /// # Errors
    /// A network of the machine overlaps one of the pool's.
    pub fn check(pool: &Pool, device: &str) -> Result<(), Failure> {
        for (other, network) in networks_of_others(device)? {
            let overlaps = |own: &&Prefix| own.covers(&network) || network.covers(own);
            if let Some(own) = pool.networks().iter().find(overlaps) {
                let text = format!("the inner network {own} overlaps {network} of {other}");
                let fix = "name other networks in pool = [\"…\"] of the configuration";
                return Err(Failure::new("overlap", text).fix(fix));
            }
        }
        Ok(())
    }

    /// Has packets for elsewhere passed on. What an earlier hub left is gone on with.
    ///
    /// # Errors
    /// The system refused.
    pub async fn set_up(
        config: &HubConfig,
        pool: &Pool,
        run_dir: &RunDir,
    ) -> Result<Surroundings, Failure> {
        let mut state = match State::load(run_dir)? {
            Earlier::State(mut state) => {
                state.check_network()?;
                if config.forward == Forward::Off {
                    // The one that was killed may have been told otherwise.
                    nat::remove().await?;
                    state.saved = restore(&state)?;
                }
                state
            }
            Earlier::Nothing | Earlier::Broken(_) => State::fresh()?,
        };
        if config.forward == Forward::Off {
            state.store(run_dir)?;
            return Ok(Surroundings {
                run_dir: run_dir.clone(),
                state,
                forward: config.forward,
            });
        }
        let plan = Forwarding::plan(&state.saved)?;
        state.saved = plan.saved.clone();
        state.store(run_dir)?;
        let surroundings = Surroundings {
            run_dir: run_dir.clone(),
            state,
            forward: config.forward,
        };
        let filter = Filter {
            device: config.device.clone(),
            networks: pool.networks().to_vec(),
            forward: config.forward,
            between_clients: config.between_clients,
            reach: config.reach.clone(),
        };
        // The filter first: clients must not be forwarded with inner addresses, not even for a moment.
        let done = match filter.install().await {
            Ok(()) => plan.apply().map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        match done {
            Ok(()) => Ok(surroundings),
            Err(failure) => {
                surroundings.undo().await?;
                Err(failure)
            }
        }
    }

    /// Leaves the machine as it was found.
    ///
    /// # Errors
    /// The system refused; what could not be undone is still written down.
    pub async fn undo(self) -> Result<(), Failure> {
        if self.forward != Forward::Off {
            nat::remove().await?;
        }
        restore(&self.state)?;
        self.run_dir.clear()
    }
}

/// Puts sysctls back to what was found; returns what is still to be remembered.
fn restore(state: &State) -> Result<Saved, Failure> {
    let removal = Forwarding::removal(&state.saved)?;
    removal.apply()?;
    Ok(removal.saved)
}

/// Gives the inner device the hub's addresses.
///
/// # Errors
/// The system refused.
pub async fn give_addresses(index: u32, pool: &Pool) -> Result<(), Failure> {
    let (connection, handle, _) = rtnetlink::new_connection()
        .map_err(|error| Failure::io("open a netlink socket", &error))?;
    let driver = tokio::spawn(connection);
    let mut outcome = Ok(());
    for (address, length) in pool.hub() {
        if !has_family(address) {
            continue;
        }
        let added = handle.address().add(index, address, length).execute().await;
        outcome = added.map_err(|error| {
            let text = format!("cannot give {address}/{length} to the inner device: {error}");
            Failure::new("address", text)
        });
        if outcome.is_err() {
            break;
        }
    }
    driver.abort();
    outcome
}

/// Whether the kernel speaks an address's IP version.
#[must_use]
pub fn has_family(address: IpAddr) -> bool {
    address.is_ipv4() || std::path::Path::new("/proc/net/if_inet6").exists()
}

/// Where clients may find this machine: addresses of devices that are up, those of the internet alone
/// if there are any.
///
/// # Errors
/// The system does not tell.
pub fn own_addresses(device: &str) -> Result<Vec<IpAddr>, Failure> {
    let addresses = interfaces(device)?
        .into_iter()
        .map(|(_, address, _)| address);
    let mut usable: Vec<IpAddr> = addresses.filter(is_usable).collect();
    usable.sort_unstable();
    usable.dedup();
    let public: Vec<IpAddr> = usable.iter().copied().filter(is_public).collect();
    Ok(if public.is_empty() { usable } else { public })
}

fn is_usable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_unspecified(),
    }
}

/// Whether an address may be reached from the internet.
#[must_use]
pub fn is_public(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            // RFC 6598: behind a carrier's translation.
            let shared = a == 100 && b & 0xc0 == 64;
            !address.is_private() && !shared
        }
        IpAddr::V6(address) => !address.is_unique_local(),
    }
}

fn networks_of_others(device: &str) -> Result<Vec<(String, Prefix)>, Failure> {
    let networks = interfaces(device)?.into_iter();
    let networks = networks.filter_map(|(name, address, length)| {
        let network = format!("{address}/{length}");
        Some((name, network.parse::<Network>().ok()?.0))
    });
    Ok(networks.collect())
}

/// A network by one of its addresses.
struct Network(Prefix);

impl std::str::FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = text.split_once('/').ok_or("no length")?;
        let address: IpAddr = address.parse().map_err(|_| "no address")?;
        let length: u8 = length.parse().map_err(|_| "no length")?;
        let network = braid_bond::drive::Prefix::new(address, length).ok_or("too long")?;
        format!("{}/{length}", network.address())
            .parse()
            .map(Network)
    }
}

/// Name, address and prefix length of everything that is up, but for loopback and the inner device.
fn interfaces(device: &str) -> Result<Vec<(String, IpAddr, u8)>, Failure> {
    let all =
        getifaddrs().map_err(|errno| Failure::io("list the machine's addresses", &errno.into()))?;
    let up = InterfaceFlags::IFF_UP;
    let kept = all.filter(|one| {
        one.flags.contains(up)
            && !one.flags.contains(InterfaceFlags::IFF_LOOPBACK)
            && one.interface_name != device
    });
    let read = kept.filter_map(|one| {
        let ip = |storage: nix::sys::socket::SockaddrStorage| -> Option<IpAddr> {
            let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
        };
        let address = ip(one.address?)?;
        let length = match ip(one.netmask?)? {
            IpAddr::V4(mask) => mask.to_bits().count_ones(),
            IpAddr::V6(mask) => mask.to_bits().count_ones(),
        };
        Some((one.interface_name, address, length as u8))
    });
    Ok(read.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_internet_reaches_is_told_from_the_rest() {
        for (text, public) in [
            ("198.51.100.7", true),
            ("10.0.0.1", false),
            ("192.168.1.1", false),
            ("172.20.0.1", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("2001:db8::1", true),
            ("fd00::1", false),
        ] {
            assert_eq!(is_public(&text.parse().unwrap()), public, "{text}");
        }
    }

    #[test]
    fn a_network_is_known_by_any_of_its_addresses() {
        let network: Network = "10.73.4.9/24".parse().unwrap();
        assert_eq!(network.0.to_string(), "10.73.4.0/24");
        assert!("10.73.4.9/33".parse::<Network>().is_err());
    }
}
