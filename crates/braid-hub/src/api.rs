//! The local API, HTTP and JSON on a Unix socket like the daemon's, and the page for browsers, which shows and changes through it.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use braid_host::api_socket::{ApiError, admit, parsed_body};
use braid_host::metrics::CONTENT_TYPE as OPEN_METRICS;
use braid_host::peer::{Peer, PeerAuth};
use braid_host::user_error::UserError;
use braid_host::web::{HTML, JS, PageFile, TokenReport, TokenRequest, WebAccess, page_files};
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

use crate::hub::Hub;
use crate::metrics::Scrape;
use crate::report::{InviteReport, InviteRequest, KeyReport, RevokeReport, RotateKeyRequest};

/// A request to the loop that owns the hub. It sends its own reply.
pub type Job = Box<dyn FnOnce(&mut Hub) + Send>;

type Jobs = mpsc::Sender<Job>;

/// Files of the page, besides those that every page has.
const FILES: [PageFile; 4] = [
    ("/", HTML, include_str!("../web/index.html")),
    ("/main.js", JS, include_str!("../web/main.js")),
    ("/clients.js", JS, include_str!("../web/clients.js")),
    ("/texts.js", JS, include_str!("../web/texts.js")),
];

type Answer<T> = Result<Json<T>, ApiError>;

/// Sends a request to the loop and waits for the reply.
async fn run_job<T, F>(jobs: &Jobs, question: F) -> Result<T, UserError>
where
    T: Send + 'static,
    F: FnOnce(&mut Hub) -> Result<T, UserError> + Send + 'static,
{
    let ending = || UserError::new("ending", "the hub is ending");
    let (answer, answered) = oneshot::channel();
    let job: Job = Box::new(move |hub| {
        // The client may have hung up.
        let _ = answer.send(question(hub));
    });
    jobs.send(job).await.map_err(|_| ending())?;
    answered.await.map_err(|_| ending())?
}

async fn ask<T, F>(jobs: Jobs, question: F) -> Answer<T>
where
    T: Serialize + Send + 'static,
    F: FnOnce(&mut Hub) -> Result<T, UserError> + Send + 'static,
{
    run_job(&jobs, question).await.map(Json).map_err(ApiError)
}

/// Current metrics, as text.
pub async fn scrape(jobs: Jobs) -> Response {
    let figures = run_job(&jobs, |hub| {
        Ok(Scrape {
            status: hub.status()?,
            clients: hub.clients()?.clients,
        })
    });
    match figures.await {
        Ok(figures) => ([(CONTENT_TYPE, OPEN_METRICS)], figures.into_text()).into_response(),
        Err(failure) => ApiError(failure).into_response(),
    }
}

async fn invite(
    State(jobs): State<Jobs>,
    request: Result<Json<InviteRequest>, JsonRejection>,
) -> Answer<InviteReport> {
    let request = parsed_body(request).map_err(ApiError)?;
    ask(jobs, |hub| hub.invite(request)).await
}

async fn revoke(State(jobs): State<Jobs>, Path(name): Path<String>) -> Answer<RevokeReport> {
    ask(jobs, move |hub| hub.revoke(&name)).await
}

async fn rotate_key(
    State(jobs): State<Jobs>,
    request: Result<Json<RotateKeyRequest>, JsonRejection>,
) -> Answer<KeyReport> {
    let request = parsed_body(request).map_err(ApiError)?;
    ask(jobs, move |hub| hub.rotate_key(&request)).await
}

async fn end_overlap(State(jobs): State<Jobs>) -> Answer<KeyReport> {
    ask(jobs, |hub| hub.end_overlap()).await
}

async fn web_token(
    State(jobs): State<Jobs>,
    Extension(web): Extension<WebAccess>,
    request: Result<Json<TokenRequest>, JsonRejection>,
) -> Answer<TokenReport> {
    let request = parsed_body(request).map_err(ApiError)?;
    ask(jobs, move |hub| web.report(request, &hub.config.web)).await
}

/// Requests that a browser may make too.
fn shared() -> Router<Jobs> {
    Router::new()
        .route(
            "/v1/status",
            get(|State(jobs): State<Jobs>| ask(jobs, |hub| hub.status())),
        )
        .route(
            "/v1/clients",
            get(|State(jobs): State<Jobs>| ask(jobs, |hub| hub.clients())),
        )
        .route("/v1/clients/{name}", delete(revoke))
        .route("/v1/invitations", post(invite))
}

/// Everything that a session may see and do. Keys and metrics are for the socket.
pub fn page(jobs: Jobs) -> Router {
    page_files(&FILES).merge(shared().with_state(jobs))
}

/// Serves the API until `end` completes and the last reply is sent.
///
/// # Errors
/// The system's error.
pub async fn serve(
    listener: UnixListener,
    auth: PeerAuth,
    jobs: Jobs,
    web: WebAccess,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = shared()
        .route("/v1/key", post(rotate_key))
        .route("/v1/key/previous", delete(end_overlap))
        .route("/v1/web/token", post(web_token))
        .route("/v1/metrics", get(|State(jobs): State<Jobs>| scrape(jobs)))
        .fallback(|| async {
            let failure = UserError::new("not-found", "unknown path");
            ApiError(failure.fix("docs/hub.md lists the paths"))
        })
        .method_not_allowed_fallback(|| async {
            ApiError(UserError::new("method", "method not allowed").fix("docs/hub.md lists them"))
        })
        .layer(Extension(web))
        .layer(from_fn_with_state(auth, admit))
        .with_state(jobs)
        .into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, router)
        .with_graceful_shutdown(end)
        .await
}
