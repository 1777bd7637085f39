//! The Unix socket of a local API, for the daemon and the hub: access control and error responses.

mod connections;

use std::fs;
use std::io;
use std::os::unix::fs::chown;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::net::UnixListener;

use crate::peer::{Access, Peer, PeerAuth};
use crate::report::ErrorReport;
use crate::run_dir::RunDir;
use crate::user_error::UserError;

pub use connections::serve;

/// Opens the socket. The caller holds the run directory's lock, so an existing socket is stale and is
/// replaced.
///
/// # Errors
/// The system's error.
pub fn bind(run_dir: &RunDir, auth: &PeerAuth) -> Result<UnixListener, UserError> {
    let path = run_dir.socket();
    let bind = || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (group, mode) = auth.socket();
        let listener = braid_device::bind_with_mode(&path, mode)?;
        chown(&path, None, Some(group.as_raw()))?;
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    };
    bind().map_err(|error| UserError::io(format!("socket {}", path.display()), &error))
}

/// An error that becomes a response. Its code decides the HTTP status.
pub struct ApiError(pub UserError);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.0.code.as_str() {
            "no-session" => StatusCode::UNAUTHORIZED,
            "forbidden" => StatusCode::FORBIDDEN,
            "not-found" => StatusCode::NOT_FOUND,
            "method" => StatusCode::METHOD_NOT_ALLOWED,
            "usage" => StatusCode::BAD_REQUEST,
            "last-uplink" | "not-paused" | "unnamed" => StatusCode::CONFLICT,
            "ending" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(ErrorReport { error: self.0 })).into_response()
    }
}

/// Returns the parsed body of a request.
///
/// # Errors
/// The body is not what the request wants, by the code of a usage error.
pub fn parsed_body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, UserError> {
    body.map(|Json(request)| request)
        .map_err(|rejection| UserError::new("usage", rejection.body_text()))
}

/// Middleware that refuses requests of peers without access.
async fn admit(
    State(auth): State<PeerAuth>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let access = match *request.method() {
        Method::GET | Method::HEAD => Access::Read,
        _ => Access::Change,
    };
    match auth.admit(peer, access) {
        Ok(()) => next.run(request).await,
        Err(failure) => ApiError(failure).into_response(),
    }
}
