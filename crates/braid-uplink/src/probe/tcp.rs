//! Connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Protocol, Type};
use tokio::net::TcpStream;

use super::{Failure, Way, socket};

/// A refusal comes from the target itself, or else from a firewall that a connection would have
/// met as well: packets get there and back.
pub(super) async fn ask(way: &Way, dest: SocketAddr) -> Result<(), Failure> {
    match connect(way, dest).await? {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(_) => Err(Failure::Silent),
    }
}

/// Connects; what the network has to say about it is the inner outcome.
pub(super) async fn connect(way: &Way, dest: SocketAddr) -> Result<io::Result<TcpStream>, Failure> {
    let connecting = socket::open(way, dest, Type::STREAM, Some(Protocol::TCP))?;
    // Closed by a reset: a probe a second is not to leave a row of half-closed connections behind.
    let reset = connecting.set_linger(Some(Duration::ZERO));
    reset.map_err(Failure::NotSent)?;
    let stream = TcpStream::from_std(connecting.into()).map_err(Failure::NotSent)?;
    stream.writable().await.map_err(Failure::heard)?;
    Ok(match stream.take_error() {
        Ok(None) => Ok(stream),
        Ok(Some(error)) | Err(error) => Err(error),
    })
}
