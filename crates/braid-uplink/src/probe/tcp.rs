//! Connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Protocol, Type};
use tokio::net::TcpStream;

use super::{Egress, ProbeError, socket};

/// A refusal comes from the target itself, or else from a firewall that a connection would have
/// met as well: packets get there and back.
pub(super) async fn ask(egress: &Egress, dest: SocketAddr) -> Result<(), ProbeError> {
    match connect(egress, dest).await? {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(_) => Err(ProbeError::Silent),
    }
}

/// Connects; what the network has to say about it is the inner outcome.
pub(super) async fn connect(
    egress: &Egress,
    dest: SocketAddr,
) -> Result<io::Result<TcpStream>, ProbeError> {
    let connecting = socket::open(egress, dest, Type::STREAM, Some(Protocol::TCP))?;
    // Closed by a reset: a probe a second is not to leave a row of half-closed connections behind.
    let reset = connecting.set_linger(Some(Duration::ZERO));
    reset.map_err(ProbeError::NotSent)?;
    let stream = TcpStream::from_std(connecting.into()).map_err(ProbeError::NotSent)?;
    stream.writable().await.map_err(ProbeError::heard)?;
    Ok(match stream.take_error() {
        Ok(None) => Ok(stream),
        Ok(Some(error)) | Err(error) => Err(error),
    })
}
