//! Three uplinks that race, and the copies of what they send.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use braid_balance::{
    ClassEntry, Layer, LbMethod, NextHop, RaceSettings, UplinkEntry, UplinkForecast,
};
use braid_core::{Rate, UplinkId};

use super::choose::{class, set_classes};
use super::net::PATIENCE;
use super::probe::{ETHERNET, Outcome, Probe};
use super::world::OUTSIDE;

/// Outer addresses of the third uplink.
const THIRD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 3, 2)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 2)),
];

/// Number of candidates in a race.
pub const RACING_UPLINKS: usize = 3;

/// Always raced, as often as is asked for.
pub const ALWAYS: RaceSettings = RaceSettings {
    cache_ttl: Duration::from_secs(60),
    explore_one_in: 1,
    per_prefix: u32::MAX,
    total: u32::MAX,
};

/// Never raced where everything is remembered.
pub const ONCE: RaceSettings = RaceSettings {
    explore_one_in: 0,
    ..ALWAYS
};

/// A probe whose first class races, and what hears its copies.
pub struct Track {
    pub probe: Probe,
    third: u32,
    copies: OwnedFd,
}

impl Track {
    pub fn new(method: LbMethod, race: RaceSettings) -> Self {
        let probe = Probe::new();
        let host = &probe.world.host;
        host.ip("link add wan2 type veth peer name far2");
        host.ip("link set wan2 up");
        let third = host.ifindex("wan2");
        let copies = host.enter(|| listen(host.ifindex("braid1")));
        let track = Self {
            probe,
            third,
            copies,
        };
        track.set_up(|_| {});
        set_classes(&track.probe, &[racing(method)]);
        let mut datapath = track.probe.datapath.borrow_mut();
        datapath.set_race(race).expect("settings");
        drop(datapath);
        track.set_forecasts(&[0, 1, 2].map(|id| forecast(id, 100, 100, 0)));
        track
    }

    pub fn set_forecasts(&self, forecasts: &[UplinkForecast]) {
        let mut datapath = self.probe.datapath.borrow_mut();
        datapath.set_forecasts(forecasts).expect("forecasts");
    }

    /// Writes the uplinks as they are but for what `change` makes of them.
    pub fn set_up(&self, change: impl Fn(&mut [UplinkEntry])) {
        let mut uplinks = self.probe.world.uplinks();
        uplinks.push(UplinkEntry {
            id: UplinkId(2),
            ifindex: self.third,
            layer: Layer::L2,
            mtu: 1500,
            v4: Some(NextHop {
                address: v4(THIRD[0]),
                gateway: Some(Ipv4Addr::new(192, 0, 3, 1)),
                on_link: None,
            }),
            v6: Some(NextHop {
                address: v6(THIRD[1]),
                gateway: Some(Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 1)),
                on_link: None,
            }),
            ports: 16384..=32767,
            accepts_new: true,
            resets_tcp: false,
            epoch: 0,
            leased: false,
            waits: false,
            sends_twice: false,
        });
        change(&mut uplinks);
        let mut datapath = self.probe.datapath.borrow_mut();
        datapath.set_uplinks(&uplinks).expect("uplinks");
    }

    /// In by an uplink.
    pub fn back(&self, uplink: usize, packet: &[u8]) -> Outcome {
        match uplink {
            2 => self.probe.back_by(self.third, packet),
            _ => self.probe.back(uplink, packet),
        }
    }

    /// Lets go of copies that nobody has asked for, as a test that fails does.
    pub fn drain(&self) {
        while receive(&self.copies).is_some() {}
    }

    /// The copies that were sent besides a packet, `count` many and no more.
    pub fn copies(&self, count: usize) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut copies = Vec::new();
        while copies.len() < count {
            assert!(
                Instant::now() < deadline,
                "{} of {count} copies",
                copies.len()
            );
            copies.extend(receive(&self.copies));
        }
        copies.extend(receive(&self.copies));
        assert_eq!(copies.len(), count, "copies");
        copies
    }
}

/// A class in which all three race.
pub fn racing(method: LbMethod) -> ClassEntry {
    ClassEntry {
        lb_method: method,
        prefers: None,
        candidates: (0..3).map(UplinkId).collect(),
        ..class(0, &[0, 1, 2])
    }
}

/// Builds an uplink's forecast: rates in Mbit/s, loss in parts per million.
pub fn forecast(id: u8, capacity: u64, spare: u64, loss: u32) -> UplinkForecast {
    UplinkForecast {
        uplink: UplinkId(id),
        capacity: Rate::from_bits_per_sec(capacity * 1_000_000),
        spare: Rate::from_bits_per_sec(spare * 1_000_000),
        busy: 0,
        loss: f64::from(loss) / 1e6,
        load_loss: 0.0,
    }
}

/// The uplink whose outer address this is.
pub fn uplink_at(address: IpAddr) -> usize {
    let first = OUTSIDE.iter().position(|ends| ends.contains(&address));
    let third = THIRD.contains(&address).then_some(2);
    first.or(third).expect("an outer address")
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!(),
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(address) => address,
        IpAddr::V4(_) => unreachable!(),
    }
}

/// A socket that hears every IP frame of a device, and never blocks.
fn listen(ifindex: u32) -> OwnedFd {
    let all = u16::try_from(libc::ETH_P_ALL).expect("16 bits").to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, all.into()) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a descriptor that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut here: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    here.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
    here.sll_protocol = all;
    here.sll_ifindex = ifindex.cast_signed();
    let size = u32::try_from(size_of_val(&here)).expect("a small structure");
    // SAFETY: the address lives longer than the call, with this length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const here).cast(), size) };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    socket
}

/// The TCP segment or datagram that was heard next. The kernel has things of its own to say on a new device.
fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    loop {
        let packet = hear(socket)?;
        let protocol = match packet[0] >> 4 {
            4 => packet[9],
            _ => packet[6],
        };
        if [libc::IPPROTO_TCP, libc::IPPROTO_UDP].contains(&i32::from(protocol)) {
            return Some(packet);
        }
    }
}

/// Receives the next packet, without its Ethernet header.
fn hear(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut frame = vec![0; 2048];
    // SAFETY: the buffer lives longer than the call, with this length.
    let length = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            frame.as_mut_ptr().cast(),
            frame.len(),
            0,
        )
    };
    let length = usize::try_from(length).ok()?;
    Some(frame[ETHERNET..length].to_vec())
}
