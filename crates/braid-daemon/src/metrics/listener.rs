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
use axum::serve::Listener as Accepts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::api::{Job, put, scrape};

/// Maximum number of connections. The port is not authenticated: connections to it must not use up the
/// descriptors that probes and the datapath need.
const CONNECTIONS: usize = 16;

/// Serves `GET /metrics`, and nothing else, on the configured address while the loop runs. There is no
/// access control, since the port only reads. A reload may change the address. If it cannot be opened,
/// that is a health problem, and the next attempt follows with the next event.
pub async fn export(jobs: mpsc::Sender<Job>) {
    let mut listener = Listener::default();
    while let Ok((wanted, mut latest)) = put(&jobs, |engine| {
        let mut latest = engine.latest_event();
        latest.mark_unchanged();
        Ok((engine.settings.config.metrics.listen, latest))
    })
    .await
    {
        let trouble = listener.follow(wanted, &jobs).await;
        let tell = Job::Change(Box::new(|engine| engine.incidents.metrics_error = trouble));
        if jobs.send(tell).await.is_err() || latest.changed().await.is_err() {
            break;
        }
    }
}

/// The current listener.
#[derive(Debug, Default)]
struct Listener {
    at: Option<SocketAddr>,
    service: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on the wanted address only. Returns the error if it cannot.
    async fn follow(
        &mut self,
        wanted: Option<SocketAddr>,
        jobs: &mpsc::Sender<Job>,
    ) -> Option<String> {
        if wanted == self.at {
            return None;
        }
        self.stop();
        let address = wanted?;
        match TcpListener::bind(address).await {
            Ok(listener) => {
                tracing::info!(%address, "metrics");
                self.at = wanted;
                self.service = Some(tokio::spawn(serve(listener, jobs.clone())));
                None
            }
            Err(error) => Some(format!("[metrics] listen = \"{address}\": {error}")),
        }
    }

    fn stop(&mut self) {
        self.at = None;
        if let Some(service) = self.service.take() {
            service.abort();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(listener: TcpListener, jobs: mpsc::Sender<Job>) {
    offer(listener, move || {
        let jobs = jobs.clone();
        async move { scrape(&jobs).await }
    })
    .await;
}

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
    (StatusCode::NOT_FOUND, "there is /metrics alone\n").into_response()
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

impl Accepts for Few {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        let place = self.room.clone().acquire_owned().await;
        let place = place.expect("nobody closes it");
        let (stream, from) = Accepts::accept(&mut self.listener).await;
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
