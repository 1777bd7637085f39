//! The LAN devices of a gateway, as the programs know them.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::net::if_::if_indextoname;

use crate::Error;
use crate::maps::layout::LanDevice;
use crate::maps::tables::{Tables, refused};

/// Returns the devices that can have the fast path: Ethernet ones. A device that cannot be queried has vanished, and is
/// left out.
pub(crate) fn lans(ifindexes: &[u32]) -> BTreeMap<u32, LanDevice> {
    let mut lans = BTreeMap::new();
    for &ifindex in ifindexes {
        match ethernet_mtu(ifindex) {
            Ok(Some(mtu)) => drop(lans.insert(ifindex, LanDevice { mtu })),
            Ok(None) => {}
            Err(error) => tracing::warn!(ifindex, %error, "lan device without the short way"),
        }
    }
    lans
}

/// Tells the LAN's program which device has the outbound program.
pub(crate) fn set_steer(tables: &mut Tables, ifindex: u32) -> Result<(), Error> {
    let failed = |error| refused("map settings", &error);
    let mut settings = tables.settings.get(&0, 0).map_err(failed)?;
    if settings.steer == ifindex {
        return Ok(());
    }
    settings.steer = ifindex;
    tables.settings.set(0, settings, 0).map_err(failed)
}

/// Replaces the map of LAN devices.
pub(crate) fn set_lans(
    tables: &mut Tables,
    wanted: &BTreeMap<u32, LanDevice>,
) -> Result<(), Error> {
    let map = &mut tables.lan_devices;
    let failed = |error| refused("map lan_devices", &error);
    for known in map.keys().collect::<Result<Vec<_>, _>>().map_err(failed)? {
        if !wanted.contains_key(&known) {
            map.remove(&known).map_err(failed)?;
        }
    }
    for (ifindex, device) in wanted {
        map.insert(ifindex, device, 0).map_err(failed)?;
    }
    Ok(())
}

/// The MTU of an Ethernet device, `None` for other kinds. Asked by ioctl and not in sysfs, which
/// shows the namespace that it was mounted in.
fn ethernet_mtu(ifindex: u32) -> io::Result<Option<u32>> {
    let name = if_indextoname(ifindex)?;
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
    // SAFETY: all zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    let mut ask = |what: libc::c_ulong| {
        // SAFETY: both requests read and write one ifreq.
        match unsafe { libc::ioctl(socket.as_raw_fd(), what as libc::Ioctl, &raw mut request) } {
            0 => Ok(request.ifr_ifru),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let address = ask(libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR fills this member.
    if unsafe { address.ifru_hwaddr.sa_family } != libc::ARPHRD_ETHER {
        return Ok(None);
    }
    let mtu = ask(libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU fills this member.
    let mtu = unsafe { mtu.ifru_mtu };
    Ok(u32::try_from(mtu).ok())
}
