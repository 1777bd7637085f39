//! The local API, HTTP and JSON on a Unix socket like the daemon's, and the page for browsers, which shows and changes through it.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use braid_host::api_socket::{self, ApiError, parsed_body};
use braid_host::api_table::{ApiInfo, ApiRequest, Audience, router};
use braid_host::metrics::CONTENT_TYPE as OPEN_METRICS;
use braid_host::peer::PeerAuth;
use braid_host::user_error::UserError;
use braid_host::web::{HTML, JS, PageFile, TokenReport, TokenRequest, WebAccess, page_files};
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

use crate::hub::Hub;
use crate::metrics::Scrape;
use crate::report::{
    ClientsReport, InviteReport, InviteRequest, KeyReport, RevokeReport, RotateKeyRequest,
    StatusReport,
};

/// A request to the loop that owns the hub.
pub enum Job {
    /// It shows the state of the hub and its packet thread.
    Read(Action),
    /// It may change something.
    Change(Action),
}

/// The work of a request. It sends its own reply.
pub type Action = Box<dyn FnOnce(&mut Hub) + Send>;

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
async fn run_job<T, F>(jobs: &Jobs, job: fn(Action) -> Job, question: F) -> Result<T, UserError>
where
    T: Send + 'static,
    F: FnOnce(&mut Hub) -> Result<T, UserError> + Send + 'static,
{
    let ending = || UserError::new("ending", "the hub is ending");
    let (answer, answered) = oneshot::channel();
    let action: Action = Box::new(move |hub| {
        // The client may have hung up.
        let _ = answer.send(question(hub));
    });
    jobs.send(job(action)).await.map_err(|_| ending())?;
    answered.await.map_err(|_| ending())?
}

async fn ask<T, F>(jobs: Jobs, job: fn(Action) -> Job, question: F) -> Answer<T>
where
    T: Serialize + Send + 'static,
    F: FnOnce(&mut Hub) -> Result<T, UserError> + Send + 'static,
{
    let answer = run_job(&jobs, job, question).await;
    answer.map(Json).map_err(ApiError)
}

/// Current metrics, as text.
pub async fn scrape(jobs: Jobs) -> Response {
    let figures = run_job(&jobs, Job::Read, |hub| {
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
    ask(jobs, Job::Change, |hub| hub.invite(request)).await
}

async fn revoke(State(jobs): State<Jobs>, Path(name): Path<String>) -> Answer<RevokeReport> {
    ask(jobs, Job::Change, move |hub| hub.revoke(&name)).await
}

async fn rotate_key(
    State(jobs): State<Jobs>,
    request: Result<Json<RotateKeyRequest>, JsonRejection>,
) -> Answer<KeyReport> {
    let request = parsed_body(request).map_err(ApiError)?;
    ask(jobs, Job::Change, move |hub| hub.rotate_key(&request)).await
}

async fn end_overlap(State(jobs): State<Jobs>) -> Answer<KeyReport> {
    ask(jobs, Job::Change, |hub| hub.end_overlap()).await
}

async fn web_token(
    State(jobs): State<Jobs>,
    Extension(web): Extension<WebAccess>,
    request: Result<Json<TokenRequest>, JsonRejection>,
) -> Answer<TokenReport> {
    let request = parsed_body(request).map_err(ApiError)?;
    ask(jobs, Job::Change, move |hub| {
        web.report(request, &hub.config.web)
    })
    .await
}

const INFO: ApiInfo = ApiInfo {
    title: "The API of Braid's hub",
    description: "HTTP and JSON on the Unix socket of the hub's run directory, for root and the groups of [api]. \
        Requests with x-page are also behind the hub's page for browsers, for sessions of that role; those that \
        change something need the session's X-CSRF-Token there.",
};

type Request = ApiRequest<Jobs>;

/// Returns all requests. Keys and metrics are for the socket.
fn requests() -> Vec<Request> {
    vec![
        Request::get(
            "/v1/status",
            "Shows the hub's keys, addresses, counts and health problems",
            |State(jobs): State<Jobs>| ask(jobs, Job::Read, |hub| hub.status()),
        )
        .answers::<StatusReport>()
        .on_page(),
        Request::get(
            "/v1/clients",
            "Shows every client",
            |State(jobs): State<Jobs>| ask(jobs, Job::Read, |hub| hub.clients()),
        )
        .answers::<ClientsReport>()
        .on_page(),
        Request::delete("/v1/clients/{name}", "Revokes a client", revoke)
            .answers::<RevokeReport>()
            .on_page(),
        Request::post("/v1/invitations", "Invites a client", invite)
            .takes::<InviteRequest>()
            .answers::<InviteReport>()
            .on_page(),
        Request::post("/v1/key", "Replaces the hub's key", rotate_key)
            .takes::<RotateKeyRequest>()
            .answers::<KeyReport>(),
        Request::delete(
            "/v1/key/previous",
            "Ends the validity of the previous key",
            end_overlap,
        )
        .answers::<KeyReport>(),
        Request::post(
            "/v1/web/token",
            "Shows or replaces a login token of the page",
            web_token,
        )
        .takes::<TokenRequest>()
        .answers::<TokenReport>(),
        Request::get(
            "/v1/metrics",
            "Shows metrics for Prometheus",
            |State(jobs): State<Jobs>| scrape(jobs),
        )
        .answers_as(OPEN_METRICS),
    ]
}

/// Everything that a session may see and do.
pub fn page(jobs: Jobs) -> Router {
    page_files(&FILES).merge(router(INFO, requests, Audience::Page).with_state(jobs))
}

/// Serves the API until `end` completes and the last reply is sent.
pub async fn serve(
    listener: UnixListener,
    auth: PeerAuth,
    jobs: Jobs,
    web: WebAccess,
    end: impl Future<Output = ()> + Send,
) {
    let router = router(INFO, requests, Audience::Socket)
        .fallback(|| async {
            let failure = UserError::new("not-found", "unknown path");
            ApiError(failure.fix("docs/hub-openapi.json lists the paths"))
        })
        .method_not_allowed_fallback(|| async {
            ApiError(
                UserError::new("method", "method not allowed")
                    .fix("docs/hub-openapi.json lists them"),
            )
        })
        .layer(Extension(web))
        .with_state(jobs);
    api_socket::serve(listener, auth, router, end).await;
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// `BLESS=1 cargo test -p braid-hub` writes it anew; read the difference before you commit it.
    #[test]
    fn the_documented_api_is_the_real_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hub-openapi.json");
        let document = braid_host::api_table::document(INFO, &requests());
        let document = serde_json::to_string_pretty(&document).unwrap() + "\n";
        if std::env::var_os("BLESS").is_some() {
            fs::write(&path, &document).unwrap();
        }
        let documented = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            documented == document,
            "docs/hub-openapi.json differs from the API"
        );
    }
}
