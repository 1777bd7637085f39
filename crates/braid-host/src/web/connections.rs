//! Connections to the page: how many there may be, and how long one may take.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::guard::Arrival;
use super::login_attempts::network;
use super::tls::TlsIdentity;
use crate::http_connection::http_connection;
use crate::seats::{Seat, Seats};

/// Most connections at once; further ones wait.
const MAX_CONNECTIONS: usize = 128;
/// Most of these from one network, an IPv4 address or an IPv6 /64, since a host makes up addresses of its own. A browser
/// opens six, so five browsers behind one address fit, and no single host keeps all others out.
const MAX_CONNECTIONS_OF_ONE: usize = 32;
/// Time for a TLS handshake, and for a request's headers; also the time for which a connection may be idle.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause after a failure to accept, which is for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves a guarded router; over TLS if there is an identity. Never returns; if it is dropped, so are all connections.
pub async fn serve(listener: TcpListener, identity: Option<TlsIdentity>, router: Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let seats = Arc::new(Seats::default());
    let acceptor = identity.map(|identity| TlsAcceptor::from(identity.config));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let place = places.clone().acquire_owned().await;
        let place = place.expect("nobody closes it");
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(seat) = seat(&seats, from) else {
            continue;
        };
        let connection = connection(stream, from, acceptor.clone(), router.clone());
        connections.spawn(async move {
            connection.await;
            drop((seat, place));
        });
    }
}

fn seat(seats: &Arc<Seats<IpAddr>>, from: SocketAddr) -> Option<Seat<IpAddr>> {
    seats.take(network(from.ip()), MAX_CONNECTIONS_OF_ONE, MAX_CONNECTIONS)
}

async fn connection(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    router: Router,
) {
    let Ok(local) = stream.local_addr() else {
        return;
    };
    // A snapshot is one small write, for which nobody should wait.
    let _ = stream.set_nodelay(true);
    let arrival = Arrival {
        from: from.ip().to_canonical(),
        local: SocketAddr::new(local.ip().to_canonical(), local.port()),
        tls: acceptor.is_some(),
    };
    match acceptor {
        None => exchange(stream, arrival, router).await,
        Some(acceptor) => match timeout(PATIENCE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => exchange(stream, arrival, router).await,
            Ok(Err(error)) => tracing::trace!(%error, "no TLS"),
            Err(_) => tracing::trace!("no TLS in time"),
        },
    }
}

async fn exchange<S>(stream: S, arrival: Arrival, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = http_connection(stream, arrival, router, PATIENCE).await;
    if let Err(error) = served {
        tracing::trace!(%error, "a connection to the page ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn served() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(serve(listener, None, router));
        address
    }

    async fn asked(stream: &mut TcpStream) -> String {
        let mut answer = String::new();
        let request = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
        if stream.write_all(request).await.is_ok() {
            let _ = stream.read_to_string(&mut answer).await;
        }
        answer
    }

    #[tokio::test]
    async fn one_host_cannot_take_all_places() {
        let address = served().await;
        let mut open = Vec::new();
        for _ in 0..MAX_CONNECTIONS_OF_ONE {
            open.push(TcpStream::connect(address).await.unwrap());
        }
        let mut further = TcpStream::connect(address).await.unwrap();
        assert_eq!(asked(&mut further).await, "", "it is closed at once");
        let mut last = open.pop().unwrap();
        assert!(asked(&mut last).await.ends_with("here"));
    }

    /// An IPv6 host has 2^64 addresses, and so had all places.
    #[test]
    fn one_host_cannot_take_all_places_by_many_addresses() {
        let seats = Arc::new(Seats::default());
        let from = |network: u8, host: usize| {
            let address = format!("[2001:db8:0:{network:x}::{host:x}]:443");
            seat(&seats, address.parse().unwrap())
        };
        let taken: Vec<_> = (1..=MAX_CONNECTIONS)
            .filter_map(|host| from(1, host))
            .collect();
        assert_eq!(taken.len(), MAX_CONNECTIONS_OF_ONE);
        assert!(from(2, 1).is_some(), "another network's");
        drop(taken);
        assert!(from(1, 1).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_closed() {
        let address = served().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HT").await.unwrap();
        sleep(2 * PATIENCE).await;
        // Another test's child holds a copy of every descriptor until it runs its own program, so the end of the
        // connection may be seen only then, by the real clock.
        tokio::time::resume();
        let mut answer = Vec::new();
        let read = timeout(PATIENCE / 2, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "it is still open");
    }
}
