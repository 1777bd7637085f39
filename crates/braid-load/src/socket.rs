//! Sockets for the loads: bounded waits, abortive close, large buffers.

use crate::error::Error;
use clap::ValueEnum;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// Longest wait for one connection or one reply. A lost SYN is repeated after 1 s and 3 s; after
/// that the connection has failed.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Receive buffer of datagram sockets, in bytes: a tenth of a second at a million small packets per
/// second.
const DATAGRAM_BUFFER: usize = 64 << 20;

/// Way of closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Close {
    /// Four-way FIN exchange; the client's side stays in TIME_WAIT
    Fin,
    /// RST at once (SO_LINGER 0); the port is free again
    Rst,
}

/// Opens a TCP connection with blocking calls that wait [`SOCKET_TIMEOUT`] at most.
pub(crate) fn open(target: SocketAddr, close: Close) -> std::io::Result<TcpStream> {
    let family = if target.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let patience = TimeVal::new(SOCKET_TIMEOUT.as_secs().cast_signed(), 0);
    setsockopt(&fd, sockopt::SendTimeout, &patience)?;
    if close == Close::Rst {
        let at_once = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&fd, sockopt::Linger, &at_once)?;
    }
    connect(fd.as_raw_fd(), &SockaddrStorage::from(target))?;
    Ok(TcpStream::from(fd))
}

/// Returns a UDP socket connected to `target`, from a port of the kernel's choice.
pub(crate) fn datagram_to(target: SocketAddr) -> Result<UdpSocket, Error> {
    let any: SocketAddr = if target.is_ipv4() {
        (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    UdpSocket::bind(any)
        .and_then(|socket| socket.connect(target).map(|()| socket))
        .map_err(|e| Error::new(format!("open a datagram socket to {target}"), e))
}

/// Enlarges the receive buffer to [`DATAGRAM_BUFFER`], beyond the system's limit (needs
/// `CAP_NET_ADMIN`).
pub(crate) fn enlarge_receive_buffer(socket: &impl AsFd) -> Result<(), Error> {
    setsockopt(socket, sockopt::RcvBufForce, &DATAGRAM_BUFFER)
        .map_err(|e| Error::new("enlarge the receive buffer", e.into()))
}

/// Returns how many datagrams `socket` has dropped at a full receive buffer since it was opened
/// (wraps after 2³²).
pub(crate) fn dropped_datagrams(socket: &impl AsRawFd) -> Result<u32, Error> {
    // linux/sock_diag.h: SO_MEMINFO fills an array of nine words, the last of which counts drops.
    const SO_MEMINFO: libc::c_int = 55;
    let mut words = [0_u32; 9];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `words`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if failed != 0 {
        Err(Error::last_os("read a socket's drops"))
    } else {
        Ok(words[8])
    }
}

/// Returns a raw IPv4 socket whose writer supplies the IP header (needs `CAP_NET_RAW`).
pub(crate) fn raw_to(target: SocketAddr) -> Result<OwnedFd, Error> {
    // nix has no name for IPPROTO_RAW on AF_INET that takes the header from the caller.
    // SAFETY: plain system call without pointers; the result is checked before it is owned.
    let fd = unsafe {
        libc::socket(
            libc::AF_INET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::IPPROTO_RAW,
        )
    };
    if fd < 0 {
        return Err(Error::last_os("open a raw socket"));
    }
    // SAFETY: `fd` was just returned by the kernel and belongs to nobody else.
    let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    connect(fd.as_raw_fd(), &SockaddrStorage::from(target))
        .map_err(|e| Error::new(format!("point a raw socket at {target}"), e.into()))?;
    Ok(fd)
}

/// Allows this process `files` open files. Beyond the hard limit this needs `CAP_SYS_RESOURCE`,
/// which even root lacks in some containers; several processes must then share the work.
pub(crate) fn allow_files(files: u64) -> Result<(), Error> {
    let explain = |e: nix::Error| Error::new(format!("allow {files} open files"), e.into());
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(explain)?;
    if soft >= files {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, files, hard.max(files)).map_err(explain)
}
