//! Metrics on a TCP port, for a remote Prometheus.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Media type of the metrics.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of connections. The port is not authenticated: connections to it must not use up the
/// descriptors that probes and the datapath need.
const CONNECTIONS: usize = 16;

/// Serves `GET /metrics` by `answer`, and nothing else, to a few clients at a time.
pub async fn offer<A, F>(listener: TcpListener, answer: A)
where
    A: Fn() -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let router = Router::new()
        .route("/metrics", get(answer))
        .fallback(nothing);
    if let Err(error) = axum::serve(Few::new(listener), router).await {
        tracing::warn!(%error, "metrics are not served any more");
    }
}

async fn nothing() -> Response {
    (
        StatusCode::NOT_FOUND,
        "unknown path: only /metrics is served\n",
    )
        .into_response()
}

/// A listener with at most [`CONNECTIONS`] open connections; further ones wait.
struct Few {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Few {
    fn new(listener: TcpListener) -> Few {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        Few { listener, room }
    }
}

impl Listener for Few {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        let place = self.room.clone().acquire_owned().await;
        let place = place.expect("nobody closes it");
        let (stream, from) = Listener::accept(&mut self.listener).await;
        (
            Guest {
                stream,
                _place: place,
            },
            from,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection, with its permit.
struct Guest {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_too_many_waits_for_a_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut few = Few::new(listener);
        let mut inside = Vec::new();
        let mut outside = Vec::new();
        for _ in 0..=CONNECTIONS {
            outside.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in 0..CONNECTIONS {
            inside.push(few.accept().await.0);
        }
        assert_eq!(few.room.available_permits(), 0);
        inside.pop();
        few.accept().await;
    }
}
