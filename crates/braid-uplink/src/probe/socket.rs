//! Sockets that are bound to an uplink.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use super::{Failure, Way};

/// A socket of this kind on the uplink's device and address, connected to `dest`; for TCP,
/// connecting.
pub(super) fn open(
    way: &Way,
    dest: SocketAddr,
    kind: Type,
    protocol: Option<Protocol>,
) -> Result<Socket, Failure> {
    let bound = || -> io::Result<Socket> {
        let domain = Domain::for_address(dest);
        let socket = Socket::new(domain, kind.nonblocking().cloexec(), protocol)?;
        socket.bind_device(Some(way.device.as_bytes()))?;
        socket.bind(&SocketAddr::new(way.source, 0).into())?;
        match socket.connect(&dest.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            outcome => outcome?,
        }
        Ok(socket)
    };
    bound().map_err(Failure::NotSent)
}

/// Sends one datagram and receives others until one is an answer. A raw socket does as well: what
/// the runtime does with one of UDP is wait, send and receive.
pub(super) async fn converse<T>(
    socket: Socket,
    question: &[u8],
    answer: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, Failure> {
    let socket = UdpSocket::from_std(socket.into()).map_err(Failure::NotSent)?;
    socket.send(question).await.map_err(Failure::NotSent)?;
    // As much as an answer has; the rest of a longer datagram is cut off.
    let mut buffer = [0; 1500];
    loop {
        // An error is a router's word about the question, or the kernel's that no neighbour is
        // there to take it.
        let length = socket.recv(&mut buffer).await.map_err(Failure::heard)?;
        if let Some(answer) = answer(&buffer[..length]) {
            return Ok(answer);
        }
    }
}
