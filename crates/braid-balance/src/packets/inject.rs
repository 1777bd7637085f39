//! Injection of single packets into the kernel: out of braid0, or to the inside.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::net::if_::if_indextoname;

use crate::Error;
use crate::programs::netlink::{self, Link};

/// `ETH_P_IP` and `ETH_P_IPV6` of linux/if_ether.h.
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// Sockets for it, in the network namespace of the thread that opened them.
pub(crate) struct Injector {
    steer: u32,
    link: Link,
    frames: OwnedFd,
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Injector {
    /// For the veth pair whose steering end (`braid0`) has index `steer`.
    pub(crate) fn open(steer: u32) -> Result<Self, Error> {
        let failed = |source| Error::Device {
            ifindex: steer,
            source,
        };
        let link = netlink::link(steer).map_err(failed)?;
        let open = |family| {
            let protocol = if family == libc::AF_PACKET {
                0 // nothing is received
            } else {
                libc::IPPROTO_RAW // packets bring their own header
            };
            socket(family, protocol).map_err(|source| Error::system("opening a raw socket", source))
        };
        Ok(Self {
            steer,
            link,
            frames: open(libc::AF_PACKET)?,
            v4: open(libc::AF_INET)?,
            v6: open(libc::AF_INET6)?,
        })
    }

    /// Sends a packet out of braid0, to the outbound program, as if the host had sent it. `false`:
    /// it was dropped.
    pub(crate) fn outwards(&self, packet: &[u8]) -> Result<bool, Error> {
        self.frame(self.steer, packet)
    }

    /// Delivers a packet to the inside: to the host itself as if it came in by braid0, or to a
    /// client behind a LAN device. For the latter it leaves as the host's own: its flow has gone
    /// the short way, so connection tracking would call a forwarded answer invalid. `false`: it
    /// was dropped.
    pub(crate) fn inwards(&self, device: u32, to: IpAddr, packet: &[u8]) -> Result<bool, Error> {
        if device == 0 {
            return self.frame(self.link.peer, packet);
        }
        match self.behind(device, to, packet) {
            Ok(()) => Ok(true),
            // The device is gone, or the client is.
            Err(error) => {
                tracing::debug!(device, %error, "client not reached");
                Ok(false)
            }
        }
    }

    fn frame(&self, device: u32, packet: &[u8]) -> Result<bool, Error> {
        let kind = match packet.first().map(|byte| byte >> 4) {
            Some(4) => ETH_P_IP,
            _ => ETH_P_IPV6,
        };
        // For braid0, whichever end it is sent from.
        let mut frame = [self.link.address; 2].concat();
        frame.extend(kind.to_be_bytes());
        frame.extend(packet);
        // SAFETY: all zero is a valid sockaddr_ll.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
        to.sll_protocol = kind.to_be();
        to.sll_ifindex = device.cast_signed();
        match send_to(&self.frames, &frame, &to) {
            Ok(()) => Ok(true),
            // The kernel answers so if a program on the device has dropped the packet, or if a
            // fragment of a wider uplink does not fit the pair. The others can still be sent.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EMSGSIZE)) => {
                Ok(false)
            }
            Err(error) => Err(Error::system("injecting a packet", error)),
        }
    }

    fn behind(&self, device: u32, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        match to {
            IpAddr::V4(to) => {
                bind(&self.v4, device)?;
                // SAFETY: all zero is a valid sockaddr_in.
                let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                address.sin_family = u16::try_from(libc::AF_INET).expect("a small number");
                address.sin_addr.s_addr = u32::from(to).to_be();
                send_to(&self.v4, packet, &address)
            }
            IpAddr::V6(to) => {
                bind(&self.v6, device)?;
                // SAFETY: all zero is a valid sockaddr_in6.
                let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
                address.sin6_family = u16::try_from(libc::AF_INET6).expect("a small number");
                address.sin6_addr.s6_addr = to.octets();
                send_to(&self.v6, packet, &address)
            }
        }
    }
}

fn socket(family: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just given us and nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds the socket to a device.
fn bind(socket: &OwnedFd, device: u32) -> io::Result<()> {
    let name = if_indextoname(device)?;
    let name = name.to_bytes_with_nul();
    // SAFETY: the kernel reads `name.len()` bytes of `name`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            u32::try_from(name.len()).expect("a short name"),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn send_to<A>(socket: &OwnedFd, bytes: &[u8], to: &A) -> io::Result<()> {
    // SAFETY: both buffers live longer than the call, with these lengths.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            std::ptr::from_ref(to).cast(),
            u32::try_from(size_of::<A>()).expect("a small structure"),
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
