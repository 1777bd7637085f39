//! The guard in front of every request: names, sessions, CSRF tokens, and the headers of every answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, LOCATION, ORIGIN,
    REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::auth::{LoginError, Role, Session, WebAuth};
use crate::api_socket::ApiError;
use crate::config::HostName;
use crate::user_error::UserError;

/// Header with the session's CSRF token, on requests that change something.
const CSRF_HEADER: HeaderName = HeaderName::from_static("x-csrf-token");
/// Longest body of a login.
const MAX_LOGIN_BYTES: usize = 1024;
/// Time for that body to arrive.
const LOGIN_BODY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Sources of the page's parts: files of this server alone, no script or style within the document, and no frame around it.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const LOGIN_PAGE: &str = include_str!("../../web/login.html");
/// Places in it: of a message, and of the command that prints a token.
const MESSAGE: &str = "<!-- message -->";
const COMMAND: &str = "<!-- command -->";

/// The way in which a connection reached this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The browser's address.
    pub from: IpAddr,
    /// The address that it connected to.
    pub local: SocketAddr,
    /// True within TLS.
    pub tls: bool,
}

/// Settings of the guard.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Decides who may see the page.
    pub auth: Arc<WebAuth>,
    /// Names of this machine, besides its address and `localhost`.
    pub names: Vec<HostName>,
    /// The command that prints a token.
    pub command: &'static str,
}

/// Answer to `GET /session`: the browser's own session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionReport {
    /// Rights of the session.
    pub role: Role,
    /// Value of the header `X-CSRF-Token` in requests that change something.
    pub csrf_token: String,
    /// Time at which the session ends, in milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// The session of a request whose answer goes on for long.
#[derive(Clone)]
pub struct LiveSession {
    auth: Arc<WebAuth>,
    cookie: String,
}

impl LiveSession {
    /// Returns true until the session ends.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.auth.session(&self.cookie, SystemTime::now()).is_some()
    }
}

/// Returns the routes behind the guard, with those of sessions.
pub fn guarded(routes: Router, guard: Guard) -> Router {
    let sessions = Router::new()
        .route("/session", get(session))
        .route("/logout", post(log_out))
        .with_state(guard.auth.clone());
    routes
        .merge(sessions)
        .layer(from_fn_with_state(guard, admit))
}

async fn admit(
    State(guard): State<Guard>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
    next: Next,
) -> Response {
    match decide(&guard, arrival, request, next).await {
        Reply::ToSession(answer) => with_headers(answer),
        Reply::ToStranger(mut answer) => {
            // A stranger's connection is not kept: it has no use for another request, and others want its place.
            let headers = answer.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
            with_headers(answer)
        }
    }
}

/// An answer, by whose request it is to.
enum Reply {
    ToSession(Response),
    ToStranger(Response),
}

/// Answers a request.
async fn decide(guard: &Guard, arrival: Arrival, mut request: Request, next: Next) -> Reply {
    let headers = request.headers();
    let Some(host) = text(headers, &HOST).filter(|host| guard.is_name(host, arrival)) else {
        let text =
            "this machine is not called that: use its address, or add the name to [web] names";
        return Reply::ToStranger(
            (StatusCode::MISDIRECTED_REQUEST, format!("{text}\n")).into_response(),
        );
    };
    let scheme = if arrival.tls { "https" } else { "http" };
    let own = format!("{scheme}://{host}");
    let shows = matches!(*request.method(), Method::GET | Method::HEAD);
    // Browsers send it with every request that changes something.
    let foreign = text(headers, &ORIGIN).is_some_and(|origin| !origin.eq_ignore_ascii_case(&own));
    if !shows && foreign {
        return Reply::ToStranger(refused("another site's page has sent this"));
    }
    if request.uri().path() == "/login" && request.method() == Method::POST {
        return Reply::ToStranger(log_in(guard, arrival, request).await);
    }
    let clock = SystemTime::now();
    let found = cookies(headers, &cookie_name(arrival))
        .find_map(|cookie| Some((guard.auth.session(cookie, clock)?, cookie.to_owned())));
    let Some((session, cookie)) = found else {
        return Reply::ToStranger(guard.without_session(&request));
    };
    if !shows {
        let presented = text(headers, &CSRF_HEADER).unwrap_or_default();
        if !guard.auth.is_csrf_token(&session, presented) {
            return Reply::ToSession(refused("the request lacks the session's X-CSRF-Token"));
        }
        if session.role != Role::Operator && request.uri().path() != "/logout" {
            return Reply::ToSession(refused("a viewer changes nothing"));
        }
    }
    request.extensions_mut().insert(session);
    request.extensions_mut().insert(LiveSession {
        auth: guard.auth.clone(),
        cookie,
    });
    Reply::ToSession(next.run(request).await)
}

impl Guard {
    /// Returns true if a `Host` header names this machine. The port is no part of it: it changes where connections
    /// are forwarded, and a foreign site cannot choose it.
    fn is_name(&self, host: &str, arrival: Arrival) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next(),
            None => host.split(':').next(),
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return false;
        };
        if let Ok(address) = name.parse::<IpAddr>() {
            return address.to_canonical() == arrival.local.ip();
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        let own = self.names.iter().map(HostName::as_str);
        own.chain(["localhost"])
            .any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Answers a request without a session: a browser's navigation gets the form, a program an error.
    fn without_session(&self, request: &Request) -> Response {
        if request.uri().path().starts_with("/v1/") || request.uri().path() == "/session" {
            let fix = format!("{}, then POST /login", self.command);
            return ApiError(UserError::new("no-session", "log in first").fix(fix)).into_response();
        }
        self.login_form(StatusCode::UNAUTHORIZED, "")
    }

    fn login_form(&self, status: StatusCode, message: &str) -> Response {
        let page = LOGIN_PAGE.replace(MESSAGE, message);
        let page = page.replace(COMMAND, self.command);
        let mut answer = (status, Html(page)).into_response();
        answer
            .headers_mut()
            .insert(CONTENT_SECURITY_POLICY, login_policy());
        answer
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the name of the session's cookie. Browsers share cookies between the ports of a machine, so it has the
/// port's number; within TLS they keep its prefix from being set by others.
fn cookie_name(arrival: Arrival) -> String {
    let prefix = if arrival.tls { "__Host-" } else { "" };
    format!("{prefix}braid-{}", arrival.local.port())
}

fn cookies<'h>(headers: &'h HeaderMap, name: &'h str) -> impl Iterator<Item = &'h str> {
    let lines = headers
        .get_all(COOKIE)
        .into_iter()
        .filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';'));
    pairs.filter_map(move |pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then_some(value)
    })
}

fn refused(why: &str) -> Response {
    ApiError(UserError::new("forbidden", why)).into_response()
}

/// Returns the login form's policy: it is complete in itself, so that nothing else is served without a session. Its
/// style is allowed by its hash.
fn login_policy() -> HeaderValue {
    let style = LOGIN_PAGE.split_once("<style>").map(|(_, rest)| rest);
    let style = style.and_then(|rest| rest.split_once("</style>"));
    let style = style.map_or("", |(style, _)| style);
    let hash = BASE64_STANDARD.encode(digest::digest(&digest::SHA256, style.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("base64 is text")
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
}

async fn log_in(guard: &Guard, arrival: Arrival, request: Request) -> Response {
    let body = to_bytes(request.into_body(), MAX_LOGIN_BYTES);
    let form = match timeout(LOGIN_BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => serde_urlencoded::from_bytes::<LoginForm>(&body).ok(),
        _ => None,
    };
    let Some(LoginForm { token }) = form else {
        return guard.login_form(StatusCode::BAD_REQUEST, "The form was incomplete.");
    };
    let (now, clock) = (Instant::now(), SystemTime::now());
    match guard.auth.log_in(arrival.from, &token, (now, clock)) {
        Ok((session, cookie)) => {
            tracing::info!(from = %arrival.from, role = session.role.as_str(), "login to the page");
            let seconds = session.remaining(clock).as_secs();
            let name = cookie_name(arrival);
            let secure = if arrival.tls { "; Secure" } else { "" };
            let cookie = format!(
                "{name}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
            );
            let headers = [(SET_COOKIE, cookie), (LOCATION, "/".to_owned())];
            (StatusCode::SEE_OTHER, headers).into_response()
        }
        Err(LoginError::Wrong) => {
            tracing::warn!(from = %arrival.from, "wrong token for the page");
            guard.login_form(StatusCode::UNAUTHORIZED, "That is not a valid token.")
        }
        Err(LoginError::TooMany(wait)) => {
            let seconds = wait.as_secs() + 1;
            let message = format!("Too many wrong tokens. Try again in {seconds} s.");
            let mut answer = guard.login_form(StatusCode::TOO_MANY_REQUESTS, &message);
            answer
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
            answer
        }
        Err(LoginError::NoRandom) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn session(
    State(auth): State<Arc<WebAuth>>,
    Extension(session): Extension<Session>,
) -> Response {
    let Some(csrf_token) = auth.csrf_token(&session) else {
        return refused("the session has ended");
    };
    Json(SessionReport {
        role: session.role,
        csrf_token,
        expires_unix_ms: session.expires * 1000,
    })
    .into_response()
}

async fn log_out(
    State(auth): State<Arc<WebAuth>>,
    Extension(session): Extension<Session>,
    Extension(arrival): Extension<Arrival>,
) -> Response {
    auth.end(&session, SystemTime::now());
    let secure = if arrival.tls { "; Secure" } else { "" };
    let name = cookie_name(arrival);
    let gone = format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}");
    (StatusCode::NO_CONTENT, [(SET_COOKIE, gone)], Body::empty()).into_response()
}

/// Adds the headers that every answer has.
fn with_headers(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    if !headers.contains_key(CONTENT_SECURITY_POLICY) {
        let policy = HeaderValue::from_static(PAGE_POLICY);
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        // With "no-referrer" browsers would hide the origin of our own forms too.
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
