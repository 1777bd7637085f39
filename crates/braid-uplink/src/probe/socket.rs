//! Sockets bound to an uplink.

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{MsgFlags, recv, setsockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::os::fd::AsRawFd;
use tokio::net::UdpSocket;

use super::{Egress, ProbeError};

/// Opens a socket of this kind on the uplink's device and address, connected to `dest` (connecting, for TCP).
pub(super) fn open(
    egress: &Egress,
    dest: SocketAddr,
    kind: Type,
    protocol: Option<Protocol>,
) -> Result<Socket, ProbeError> {
    open_prepared(egress, dest, kind, protocol, |_| Ok(()))
}

/// Opens one as [`open`] does, with options that it has to have before it connects.
pub(super) fn open_prepared(
    egress: &Egress,
    dest: SocketAddr,
    kind: Type,
    protocol: Option<Protocol>,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> Result<Socket, ProbeError> {
    let bound = || -> io::Result<Socket> {
        let domain = Domain::for_address(dest);
        let socket = Socket::new(domain, kind.nonblocking().cloexec(), protocol)?;
        socket.bind_device(Some(egress.device.as_bytes()))?;
        socket.bind(&SocketAddr::new(egress.source, 0).into())?;
        prepare(&socket)?;
        match socket.connect(&dest.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            outcome => outcome?,
        }
        Ok(socket)
    };
    bound().map_err(ProbeError::NotSent)
}

/// Most ICMP errors read from the error queue before the socket is read for an answer again.
const MAX_QUEUED_ERRORS: usize = 64;

/// Makes the kernel queue the quoted part of ICMP errors. A raw socket has no port, so the kernel assigns it
/// every error that quotes our address and the target's, whichever ICMP message is quoted.
pub(super) fn queue_errors(raw: &Socket, v6: bool) -> io::Result<()> {
    match v6 {
        true => setsockopt(raw, Ipv6RecvErr, &true)?,
        false => setsockopt(raw, Ipv4RecvErr, &true)?,
    }
    Ok(())
}

/// Sends one message over a raw socket and receives until an answer comes, or an ICMP error that `is_quoted`
/// accepts. The runtime's UDP socket type only waits, sends and receives, which suits a raw socket too.
pub(super) async fn converse_raw<T>(
    socket: Socket,
    question: &[u8],
    answer: impl Fn(&[u8]) -> Option<T>,
    is_quoted: impl Fn(&[u8]) -> bool,
) -> Result<T, ProbeError> {
    let socket = UdpSocket::from_std(socket.into()).map_err(ProbeError::NotSent)?;
    let mut sent = socket.send(question).await;
    if sent.is_err() && has_errors(&socket, |_| true) {
        // The error was an ICMP message that arrived before the request was sent.
        sent = socket.send(question).await;
    }
    sent.map_err(ProbeError::NotSent)?;
    let mut buffer = [0; 1500];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(length) => {
                if let Some(answer) = answer(&buffer[..length]) {
                    return Ok(answer);
                }
            }
            Err(error) => {
                if has_errors(&socket, &is_quoted) {
                    return Err(ProbeError::heard(error));
                }
            }
        }
    }
}

/// Empties the socket's error queue; returns true if one of the errors is wanted.
fn has_errors(socket: &UdpSocket, is_wanted: impl Fn(&[u8]) -> bool) -> bool {
    let mut buffer = [0; 512];
    for _ in 0..MAX_QUEUED_ERRORS {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_ERRQUEUE) {
            Ok(length) if is_wanted(&buffer[..length]) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Sends one datagram over a connected UDP socket and receives until an answer comes. The kernel assigns the
/// socket only errors that quote both addresses and both ports, and each probe has another source port.
pub(super) async fn converse<T>(
    socket: Socket,
    question: &[u8],
    answer: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, ProbeError> {
    let socket = UdpSocket::from_std(socket.into()).map_err(ProbeError::NotSent)?;
    socket.send(question).await.map_err(ProbeError::NotSent)?;
    // Longer datagrams are truncated; no answer is this long.
    let mut buffer = [0; 1500];
    loop {
        // The error comes from a router, or from the kernel because no neighbour answers.
        let length = socket.recv(&mut buffer).await.map_err(ProbeError::heard)?;
        if let Some(answer) = answer(&buffer[..length]) {
            return Ok(answer);
        }
    }
}
