//! Kernel set-up of a hub: addresses of the inner device, forwarding, and the filter; and its
//! removal.
//!
//! The set-up outlives the hub, stopped or killed, so that connections continue when it is back.
//! Without the filter the kernel would take a server's next packet for its own and reset the
//! connection; without the device it would reply that the destination is unreachable. So packets
//! are routed to the device, which drops them until a hub is attached. [`undo`], that is `braid hub
//! down`, removes everything.
//!
//! Sysctls and the device's name are saved in the run directory before they are changed. The filter
//! has a name of its own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use braid_bond::io::{BondError, Tun};
use braid_host::config::Prefix;
use braid_host::run_dir::RunDir;
use braid_host::state::{PreviousState, State};
use braid_host::sysctl::Saved;
use braid_host::user_error::UserError;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use crate::client::Seconds;
use crate::client_registry::ClientRegistry;
use crate::config::{Forward, HubConfig};
use crate::forwarding;
use crate::nftables::{self, Filter};
use crate::pool::AddressPool;

/// Checks that no network of the machine conflicts with the inner networks. Changes nothing.
///
/// # Errors
/// A network of the machine overlaps one of the pool's.
pub fn check(pool: &AddressPool, device: &str) -> Result<(), UserError> {
    for (other, network) in networks_of_others(device)? {
        let overlaps = |own: &&Prefix| own.covers(&network) || network.covers(own);
        if let Some(own) = pool.networks().iter().find(overlaps) {
            let text = format!("the inner network {own} overlaps {network} of {other}");
            let fix = "name other networks in pool = [\"…\"] of the configuration";
            return Err(UserError::new("overlap", text).fix(fix));
        }
    }
    Ok(())
}

/// Returns the filter for the kernel; none if the hub does not filter.
#[must_use]
pub fn filter(config: &HubConfig, registry: &ClientRegistry, now: Seconds) -> Option<Filter> {
    (config.forward != Forward::Off).then(|| Filter {
        device: config.device.clone(),
        networks: registry.pool().networks().to_vec(),
        forward: config.forward,
        between_clients: config.between_clients,
        reach: config.reach.clone(),
        client_reach: registry.reach(now),
    })
}

/// Sets up forwarding. It adopts the set-up that an earlier hub has left.
///
/// # Errors
/// The system refused.
pub async fn set_up(
    config: &HubConfig,
    filter: Option<&Filter>,
    run_dir: &RunDir,
) -> Result<(), UserError> {
    let mut state = match State::load(run_dir)? {
        PreviousState::State(mut state) => {
            state.check_network()?;
            if config.forward == Forward::Off {
                // The earlier hub may have had another configuration.
                nftables::remove().await?;
                state.saved = restore(&state)?;
            }
            state
        }
        PreviousState::Nothing | PreviousState::Broken(_) => State::fresh()?,
    };
    let is_first = state.devices.is_empty();
    if !state.devices.contains(&config.device) {
        if device_exists(&config.device) {
            let device = config.device.clone();
            return Err(bond_failure(BondError::Taken { device }));
        }
        state.devices.push(config.device.clone());
    }
    let Some(filter) = filter else {
        return state.store(run_dir);
    };
    let plan = forwarding::plan(&state.saved)?;
    state.saved = plan.saved.clone();
    state.store(run_dir)?;
    if is_first && let Err(failure) = boot(config).await {
        tracing::warn!(%failure, "if the machine was restarted, connections of clients may end");
    }
    // The filter comes first: packets with inner addresses must not be forwarded, not even for a
    // moment.
    filter.install().await?;
    Ok(forwarding::apply(&plan)?)
}

/// Has the kernel drop packets of servers to clients silently for three minutes after the machine
/// was started.
///
/// # Errors
/// There is no `nft`, or it refused.
pub async fn boot(config: &HubConfig) -> Result<(), UserError> {
    match config.forward {
        Forward::Nat => nftables::install_boot_rules().await,
        Forward::Routed | Forward::Off => Ok(()),
    }
}

/// Converts an error of the packet thread.
pub(crate) fn bond_failure(error: BondError) -> UserError {
    UserError::new("tunnel", error.to_string())
}

/// Removes devices that an earlier hub had under other names.
///
/// # Errors
/// The system refused.
pub fn remove_other_devices(run_dir: &RunDir, device: &str) -> Result<(), UserError> {
    let PreviousState::State(mut state) = State::load(run_dir)? else {
        return Ok(());
    };
    state.check_network()?;
    let others: Vec<String> = state
        .devices
        .extract_if(.., |other| other != device)
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    for other in &others {
        Tun::remove(other).map_err(bond_failure)?;
    }
    state.store(run_dir)
}

fn device_exists(device: &str) -> bool {
    nix::net::if_::if_nametoindex(device).is_ok()
}

/// Restores the state of the machine before the first hub; no hub may be running. Returns a line
/// for each thing undone.
///
/// # Errors
/// The system refused; the remaining changes are still recorded.
pub async fn undo(run_dir: &RunDir) -> Result<Vec<String>, UserError> {
    let mut undone = Vec::new();
    let PreviousState::State(mut state) = State::load(run_dir)? else {
        return Ok(undone);
    };
    state.check_network()?;
    if nftables::remove().await? {
        undone.push("filter and address translation: removed".to_owned());
    }
    for device in std::mem::take(&mut state.devices) {
        if Tun::remove(&device).map_err(bond_failure)? {
            undone.push(format!("device {device}: removed"));
        }
    }
    let settings = state.saved.sysctls.len();
    restore(&state)?;
    if settings > 0 {
        undone.push(format!("{settings} settings of forwarding: as they were"));
    }
    run_dir.clear()?;
    Ok(undone)
}

/// Restores sysctls; returns what still has to be remembered.
fn restore(state: &State) -> Result<Saved, UserError> {
    let removal = forwarding::removal(&state.saved)?;
    forwarding::apply(&removal)?;
    Ok(removal.saved)
}

/// Opens the inner device with the hub's addresses. It adopts one that an earlier hub has left, if
/// the addresses are the same.
///
/// # Errors
/// The system refused.
pub async fn open_device(config: &HubConfig, pool: &AddressPool) -> Result<Tun, UserError> {
    let wanted = pool.hub().into_iter();
    let wanted = wanted.filter(|(address, _)| has_family(*address));
    let wanted: BTreeSet<(IpAddr, u8)> = wanted.collect();
    let there = addresses_of(&config.device)?;
    if !there.is_empty() && there != wanted {
        Tun::remove(&config.device).map_err(bond_failure)?;
    }
    let tun = Tun::open_persistent(&config.device, config.mtu).map_err(bond_failure)?;
    if there != wanted {
        assign_addresses(tun.index(), &wanted).await?;
    }
    Ok(tun)
}

async fn assign_addresses(index: u32, wanted: &BTreeSet<(IpAddr, u8)>) -> Result<(), UserError> {
    let (connection, handle, _) = rtnetlink::new_connection()
        .map_err(|error| UserError::io("open a netlink socket", &error))?;
    let driver = tokio::spawn(connection);
    let mut outcome = Ok(());
    for &(address, length) in wanted {
        let added = handle.address().add(index, address, length).execute().await;
        outcome = added.map_err(|error| {
            let text = format!("cannot give {address}/{length} to the inner device: {error}");
            UserError::new("address", text)
        });
        if outcome.is_err() {
            break;
        }
    }
    driver.abort();
    outcome
}

/// Returns true if the kernel supports an address's IP version.
#[must_use]
pub fn has_family(address: IpAddr) -> bool {
    address.is_ipv4() || std::path::Path::new("/proc/net/if_inet6").exists()
}

/// Addresses by which clients may reach this machine: those of devices that are up; only public
/// ones if there are any.
///
/// # Errors
/// The system does not list them.
pub fn own_addresses(device: &str) -> Result<Vec<IpAddr>, UserError> {
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

/// Returns true if an address can be reached from the internet.
#[must_use]
pub fn is_public(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            // RFC 6598: behind carrier-grade NAT.
            let shared = a == 100 && b & 0xc0 == 64;
            !address.is_private() && !shared
        }
        IpAddr::V6(address) => !address.is_unique_local(),
    }
}

fn networks_of_others(device: &str) -> Result<Vec<(String, Prefix)>, UserError> {
    let networks = interfaces(device)?.into_iter();
    let networks = networks.filter_map(|(name, address, length)| {
        let network = format!("{address}/{length}");
        Some((name, network.parse::<Network>().ok()?.0))
    });
    Ok(networks.collect())
}

/// A network, parsed from one of its addresses.
struct Network(Prefix);

impl std::str::FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = text.split_once('/').ok_or("no length")?;
        let address: IpAddr = address.parse().map_err(|_| "no address")?;
        let length: u8 = length.parse().map_err(|_| "no length")?;
        let network = braid_bond::io::Prefix::new(address, length).ok_or("too long")?;
        format!("{}/{length}", network.address())
            .parse()
            .map(Network)
    }
}

/// Addresses and prefix lengths of a device, without link-local ones; empty if it does not exist.
fn addresses_of(device: &str) -> Result<BTreeSet<(IpAddr, u8)>, UserError> {
    let made = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let addresses = addressed(|one| one.interface_name == device)?.into_iter();
    let addresses = addresses.map(|(_, address, length)| (address, length));
    Ok(addresses.filter(|(address, _)| !made(address)).collect())
}

/// Name, address and prefix length of everything that is up, except for loopback and the inner
/// device.
fn interfaces(device: &str) -> Result<Vec<(String, IpAddr, u8)>, UserError> {
    addressed(|one| {
        one.flags.contains(InterfaceFlags::IFF_UP)
            && !one.flags.contains(InterfaceFlags::IFF_LOOPBACK)
            && one.interface_name != device
    })
}

fn addressed(
    wanted: impl Fn(&InterfaceAddress) -> bool,
) -> Result<Vec<(String, IpAddr, u8)>, UserError> {
    let all = getifaddrs()
        .map_err(|errno| UserError::io("list the machine's addresses", &errno.into()))?;
    let read = all.filter(|one| wanted(one)).filter_map(|one| {
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
    fn public_addresses_are_recognised() {
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
