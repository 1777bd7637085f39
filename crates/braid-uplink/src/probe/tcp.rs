//! TCP connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use braid_device::limit_window;
use socket2::{Protocol, Socket, Type};
use tokio::net::TcpStream;

use super::{Egress, ProbeError, socket};

/// Probes by connecting. A refusal counts as an answer: it comes from the target, or from a firewall that a
/// connection would meet as well, so packets get there and back.
pub(super) async fn ask(egress: &Egress, dest: SocketAddr) -> Result<(), ProbeError> {
    match connect(egress, dest, None).await? {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(_) => Err(ProbeError::Silent),
    }
}

/// Connects, and receives no more bytes at once than `window` says. The inner result is the outcome on the network, the
/// outer one that on this machine.
pub(super) async fn connect(
    egress: &Egress,
    dest: SocketAddr,
    window: Option<u32>,
) -> Result<io::Result<TcpStream>, ProbeError> {
    let limit = |socket: &Socket| window.map_or(Ok(()), |window| limit_window(socket, window));
    let connecting = socket::open_prepared(egress, dest, Type::STREAM, Some(Protocol::TCP), limit)?;
    // Close with a reset: one probe a second must not leave a row of half-closed connections behind.
    let reset = connecting.set_linger(Some(Duration::ZERO));
    reset.map_err(ProbeError::NotSent)?;
    let stream = TcpStream::from_std(connecting.into()).map_err(ProbeError::NotSent)?;
    stream.writable().await.map_err(ProbeError::heard)?;
    Ok(match stream.take_error() {
        Ok(None) => Ok(stream),
        Ok(Some(error)) | Err(error) => Err(error),
    })
}
