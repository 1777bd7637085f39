//! HTTP/1 on one connection, for the local API and the page.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1::{Builder, Connection};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service as _;

/// Serves a router on a connection, whose `origin` is an extension of every request. A request's
/// headers may take `head_timeout`, which is also how long the connection may be idle.
pub(crate) fn http_connection<S, O>(
    stream: S,
    origin: O,
    router: Router,
    head_timeout: Duration,
) -> Connection<
    TokioIo<S>,
    impl Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>,
>
where
    S: AsyncRead + AsyncWrite + Unpin,
    O: Clone + Send + Sync + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(origin.clone());
        router.clone().call(request)
    });
    let mut server = Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout);
    server.serve_connection(TokioIo::new(stream), service)
}
