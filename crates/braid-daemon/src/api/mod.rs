//! The API: HTTP and JSON on a Unix socket, and in part behind the page for browsers.
//!
//! Handlers own no state: they send jobs to the loop that owns the engine and wait for the
//! answer, so that no lock is needed and every answer is consistent.

mod alarms;
mod bond;
mod events;
mod explain;
mod flows;
mod followed_listener;
mod history;
mod measurements;
pub(crate) mod metrics_listener;
mod pauses;
mod runs;
pub(crate) mod stream;
pub(crate) mod table;
mod web;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use braid_host::api_socket::{self, ApiError};
use braid_host::api_table::{Audience, router};
use braid_host::peer::PeerAuth;
use braid_host::user_error::UserError;
use braid_host::web::WebAccess;
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

use self::stream::LiveFeed;
use crate::datapath::Acceptance;
use crate::doctor::preflight::kernel_release;
use crate::engine::Engine;
use crate::metrics::Scrape;
use crate::report::{DatapathReport, DownReport, RulesReport, UplinksReport, VersionReport};

/// A job for the loop that owns the engine.
pub enum Job {
    /// A query, which sends its own answer.
    Ask(Box<dyn FnOnce(&Engine) + Send>),
    /// A small change, which sends its own answer.
    Change(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Read the configuration again.
    Reload(oneshot::Sender<Result<UplinksReport, UserError>>),
    /// Follow the rules that are not switched off.
    FollowRules(oneshot::Sender<Result<RulesReport, UserError>>),
    /// Have a bridge learn of the packets of running programs.
    TellSenders(oneshot::Sender<Result<Option<Acceptance>, UserError>>),
    /// Undo all changes and stop.
    Down(oneshot::Sender<Result<DownReport, UserError>>),
}

/// State of the handlers: the channel to the loop, and what they share.
#[derive(Clone)]
pub(crate) struct ApiState {
    pub jobs: mpsc::Sender<Job>,
    pub feed: LiveFeed,
    pub web: WebAccess,
    pub commit: Option<&'static str>,
}

type Answer<T> = Result<Json<T>, ApiError>;

impl ApiState {
    async fn ask<T, F>(&self, question: F) -> Answer<T>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(&Engine) -> Result<T, UserError> + Send + 'static,
    {
        put(&self.jobs, question).await.map(Json).map_err(ApiError)
    }

    async fn change<T, F>(&self, change: F) -> Answer<T>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(&mut Engine) -> Result<T, UserError> + Send + 'static,
    {
        self::change(&self.jobs, change)
            .await
            .map(Json)
            .map_err(ApiError)
    }

    async fn pass<T>(
        &self,
        job: Job,
        answered: oneshot::Receiver<Result<T, UserError>>,
    ) -> Answer<T> {
        let answer = pass(&self.jobs, job, answered).await;
        answer.map(Json).map_err(ApiError)
    }
}

/// Sends a query to the loop and waits for the answer.
///
/// # Errors
/// The answer is an error, or the daemon is stopping.
pub(crate) async fn put<T, F>(jobs: &mpsc::Sender<Job>, question: F) -> Result<T, UserError>
where
    T: Send + 'static,
    F: FnOnce(&Engine) -> Result<T, UserError> + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    let job = Job::Ask(Box::new(move |engine| {
        // The client may have hung up.
        let _ = answer.send(question(engine));
    }));
    pass(jobs, job, answered).await
}

/// As [`put`], for a small change.
///
/// # Errors
/// As [`put`].
pub(crate) async fn change<T, F>(jobs: &mpsc::Sender<Job>, change: F) -> Result<T, UserError>
where
    T: Send + 'static,
    F: FnOnce(&mut Engine) -> Result<T, UserError> + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    let job = Job::Change(Box::new(move |engine| {
        // The client may have hung up.
        let _ = answer.send(change(engine));
    }));
    pass(jobs, job, answered).await
}

async fn pass<T>(
    jobs: &mpsc::Sender<Job>,
    job: Job,
    answered: oneshot::Receiver<Result<T, UserError>>,
) -> Result<T, UserError> {
    let ending = || UserError::new("ending", "the daemon is ending");
    jobs.send(job).await.map_err(|_| ending())?;
    answered.await.map_err(|_| ending())?
}

/// Returns the parsed query string, or a usage error.
fn parsed_query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|Query(words)| words).map_err(|rejection| {
        let fix = "docs/api.schema.json lists what may be asked";
        ApiError(UserError::new("usage", rejection.body_text()).fix(fix))
    })
}

/// Returns the parsed body, or a usage error.
fn parsed_body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, ApiError> {
    braid_host::api_socket::parsed_body(body).map_err(malformed)
}

/// Returns the error about a request that does not say what the schema wants.
fn malformed(failure: UserError) -> ApiError {
    ApiError(failure.fix("docs/api.schema.json describes what is wanted"))
}

/// Returns the current metrics as text; see [`metrics`].
pub(crate) async fn scrape(jobs: &mpsc::Sender<Job>) -> Response {
    let figures = put(jobs, |engine| {
        Ok(Scrape {
            status: engine.status()?,
            events: *engine.latest_event().borrow(),
        })
    });
    match figures.await {
        Ok(figures) => {
            let kind = [(CONTENT_TYPE, braid_host::metrics::CONTENT_TYPE)];
            (kind, figures.into_text()).into_response()
        }
        Err(failure) => ApiError(failure).into_response(),
    }
}

/// Serves the page for browsers as the configuration says, while the loop runs.
pub(crate) async fn serve_page(api: ApiState) {
    let jobs = api.jobs.clone();
    followed_listener::follow(web::WebService(api), jobs).await;
}

/// Serves the API until `end` completes and the last answer is sent.
pub(crate) async fn serve(
    listener: UnixListener,
    auth: PeerAuth,
    api: ApiState,
    end: impl Future<Output = ()> + Send,
) {
    let router = router(table::INFO, table::requests, Audience::Socket)
        .fallback(|| async {
            let failure = UserError::new("not-found", "unknown path");
            ApiError(failure.fix("docs/openapi.json lists the paths"))
        })
        .method_not_allowed_fallback(|| async {
            ApiError(UserError::new("method", "method not allowed").fix("GET shows, POST changes"))
        })
        .with_state(api);
    api_socket::serve(listener, auth, router, end).await;
}

async fn version(State(api): State<ApiState>) -> Json<VersionReport> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Json(VersionReport {
        version: version.clone(),
        commit: api.commit.map(str::to_owned),
        kernel: kernel_release(),
        datapath: Some(DatapathReport {
            version,
            pid: std::process::id(),
        }),
    })
}

async fn reload(State(api): State<ApiState>) -> Answer<UplinksReport> {
    let (answer, answered) = oneshot::channel();
    api.pass(Job::Reload(answer), answered).await
}

async fn failback(State(api): State<ApiState>) -> Answer<UplinksReport> {
    api.change(|engine| {
        engine.allow_failback()?;
        engine.uplinks()
    })
    .await
}

async fn down(State(api): State<ApiState>) -> Answer<DownReport> {
    let (answer, answered) = oneshot::channel();
    api.pass(Job::Down(answer), answered).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_host::api_socket::bind;
    use braid_host::run_dir::RunDir;
    use braid_host::state_dir::StateDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    /// Sends one request and returns the whole response.
    async fn exchange(run_dir: &RunDir, request: &str) -> String {
        let mut stream = UnixStream::connect(run_dir.socket()).await.unwrap();
        let text = format!("{request} HTTP/1.1\r\nhost: braid\r\nconnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn answers_and_refusals_are_json() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let auth = PeerAuth::new(&braid_host::config::ApiConfig::default()).unwrap();
        let listener = bind(&run_dir, &auth).unwrap();
        let (jobs, mut questions) = mpsc::channel(1);
        let (end, ended) = oneshot::channel::<()>();
        let api = ApiState {
            jobs,
            feed: LiveFeed::new(),
            web: WebAccess::open(
                StateDir::new(folder.path().join("state")),
                "web",
                "braid web token",
            )
            .unwrap(),
            commit: Some("c0ffee"),
        };
        let service = tokio::spawn(serve(listener, auth, api, async {
            let _ = ended.await;
        }));

        let missing = exchange(&run_dir, "GET /v2/status").await;
        assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
        assert!(
            missing.contains(r#"{"error":{"code":"not-found","#),
            "{missing}"
        );
        let wrong = exchange(&run_dir, "GET /v1/down").await;
        assert!(wrong.starts_with("HTTP/1.1 405"), "{wrong}");
        let version = exchange(&run_dir, "GET /v1/version").await;
        assert!(version.contains(r#""commit":"c0ffee""#), "{version}");

        let (response, ()) = tokio::join!(exchange(&run_dir, "POST /v1/down"), async {
            let Some(Job::Down(answer)) = questions.recv().await else {
                panic!("no request to end")
            };
            let undone = vec!["ip link del braid0".to_owned()];
            answer.send(Ok(DownReport { undone })).unwrap();
        });
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(
            response.ends_with(r#"{"undone":["ip link del braid0"]}"#),
            "{response}"
        );

        // The loop has ended and answers no more.
        drop(questions);
        let late = exchange(&run_dir, "GET /v1/status").await;
        assert!(late.starts_with("HTTP/1.1 503"), "{late}");
        drop(end);
        service.await.unwrap();
    }
}
