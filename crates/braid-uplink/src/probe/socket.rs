//! Sockets that are bound to an uplink.

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{MsgFlags, recv, setsockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::os::fd::AsRawFd;
use tokio::net::UdpSocket;

use super::{Egress, ProbeError};

/// A socket of this kind on the uplink's device and address, connected to `dest`; for TCP,
/// connecting.
pub(super) fn open(
    egress: &Egress,
    dest: SocketAddr,
    kind: Type,
    protocol: Option<Protocol>,
) -> Result<Socket, ProbeError> {
    let bound = || -> io::Result<Socket> {
        let domain = Domain::for_address(dest);
        let socket = Socket::new(domain, kind.nonblocking().cloexec(), protocol)?;
        socket.bind_device(Some(egress.device.as_bytes()))?;
        socket.bind(&SocketAddr::new(egress.source, 0).into())?;
        match socket.connect(&dest.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            outcome => outcome?,
        }
        Ok(socket)
    };
    bound().map_err(ProbeError::NotSent)
}

/// As many ICMP errors as an error queue can hold are read before the answer is looked for again.
const MAX_QUEUED_ERRORS: usize = 64;

/// Has the kernel keep what ICMP errors quote. A raw socket has no port: the kernel takes any error that
/// quotes our address and the target's for one about this socket, whatever the quoted message is.
pub(super) fn queue_errors(raw: &Socket, v6: bool) -> io::Result<()> {
    match v6 {
        true => setsockopt(raw, Ipv6RecvErr, &true)?,
        false => setsockopt(raw, Ipv4RecvErr, &true)?,
    }
    Ok(())
}

/// Sends one message over a raw socket and receives others until one is an answer, or an ICMP error comes
/// that quotes the message by `is_quoted`. What the runtime does with a UDP socket is wait, send
/// and receive: that is right for a raw one, too.
pub(super) async fn converse_raw<T>(
    socket: Socket,
    question: &[u8],
    answer: impl Fn(&[u8]) -> Option<T>,
    is_quoted: impl Fn(&[u8]) -> bool,
) -> Result<T, ProbeError> {
    let socket = UdpSocket::from_std(socket.into()).map_err(ProbeError::NotSent)?;
    let mut sent = socket.send(question).await;
    if sent.is_err() && has_errors(&socket, |_| true) {
        // The error was somebody's ICMP message that came before the question left.
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

/// Takes ICMP errors from the socket's queue; says whether one of them is wanted.
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

/// Sends one datagram over a connected UDP socket and receives others until one is an answer. The kernel
/// takes only errors that quote both addresses and both ports for errors of this socket, and the
/// own port is another for each probe.
pub(super) async fn converse<T>(
    socket: Socket,
    question: &[u8],
    answer: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, ProbeError> {
    let socket = UdpSocket::from_std(socket.into()).map_err(ProbeError::NotSent)?;
    socket.send(question).await.map_err(ProbeError::NotSent)?;
    // As much as an answer has; the rest of a longer datagram is cut off.
    let mut buffer = [0; 1500];
    loop {
        // An error is a router's word about the question, or the kernel's that no neighbour is
        // there to take it.
        let length = socket.recv(&mut buffer).await.map_err(ProbeError::heard)?;
        if let Some(answer) = answer(&buffer[..length]) {
            return Ok(answer);
        }
    }
}
