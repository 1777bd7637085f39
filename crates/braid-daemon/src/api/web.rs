//! The page for browsers: its files, its listener, and its login tokens.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::{Json, Router};
use braid_host::config::{HostName, WebConfig};
use braid_host::privileges::{self, Files};
use braid_host::user_error::UserError;
use braid_host::web::{
    Guard, LoginToken, LoginTokens, SelfMade, TlsIdentity, WebAuth, guarded, serve,
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::followed_listener::FollowedService;
use super::{Answer, ApiError, ApiState, changing, parsed_body, showing};
use crate::engine::Engine;
use crate::engine::incidents::Incidents;
use crate::report::{TokenReport, TokenRequest};
use crate::state_dir::StateDir;

/// Files of the page: path, type, contents.
const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, include_str!("../../web/index.html")),
    ("/page.css", CSS, include_str!("../../web/page.css")),
    ("/icon.svg", SVG, include_str!("../../web/icon.svg")),
    ("/main.js", JS, include_str!("../../web/main.js")),
    ("/texts.js", JS, include_str!("../../web/texts.js")),
    ("/dom.js", JS, include_str!("../../web/dom.js")),
    ("/uplinks.js", JS, include_str!("../../web/uplinks.js")),
    ("/chart.js", JS, include_str!("../../web/chart.js")),
    ("/history.js", JS, include_str!("../../web/history.js")),
    ("/flows.js", JS, include_str!("../../web/flows.js")),
    ("/bond.js", JS, include_str!("../../web/bond.js")),
];
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Login tokens of the page, and what its listener shows.
#[derive(Clone)]
pub(crate) struct WebAccess {
    auth: Arc<WebAuth>,
    state_dir: StateDir,
    /// Fingerprint of the certificate that is served.
    fingerprint: Arc<Mutex<Option<String>>>,
}

impl WebAccess {
    /// Reads the tokens that were given out.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn open(state_dir: StateDir) -> Result<WebAccess, UserError> {
        let fix = "braid web token --new makes another one";
        let tokens = state_dir.read::<LoginTokens>(&state_dir.web_tokens(), fix);
        let tokens = tokens.unwrap_or_else(|failure| {
            tracing::warn!(%failure, "nobody can log in to the page with an earlier token");
            None
        });
        Ok(WebAccess {
            auth: Arc::new(WebAuth::new(tokens.unwrap_or_default())?),
            state_dir,
            fingerprint: Arc::default(),
        })
    }

    /// Returns the token of a role; makes one if there is none, or another one if wanted.
    fn token(&self, request: TokenRequest) -> Result<LoginToken, UserError> {
        let tokens = self.auth.tokens();
        if let Some(token) = tokens.get(request.role).filter(|_| !request.new) {
            return Ok(token.clone());
        }
        let token = LoginToken::generate()?;
        let tokens = tokens.with(request.role, token.clone());
        self.state_dir
            .write(&self.state_dir.web_tokens(), &tokens)?;
        self.auth.set_tokens(tokens);
        Ok(token)
    }

    /// Returns the certificate to serve; none where HTTP is enough.
    fn identity(
        &self,
        config: &WebConfig,
        listen: SocketAddr,
    ) -> Result<Option<TlsIdentity>, UserError> {
        if let (Some(certificate), Some(key)) = (&config.certificate, &config.key) {
            return TlsIdentity::load(certificate, key).map(Some);
        }
        if listen.ip().to_canonical().is_loopback() {
            return Ok(None);
        }
        let clock = SystemTime::now();
        let names = SelfMade::names_of(listen.ip(), config.names.iter().map(HostName::as_str));
        let path = self.state_dir.web_certificate();
        let kept = self.state_dir.read::<SelfMade>(&path, "remove it");
        if let Ok(Some(kept)) = kept
            && kept.serves(&names, clock)
        {
            return kept.identity().map(Some);
        }
        let made = SelfMade::make(names, clock)?;
        self.state_dir.write(&path, &made)?;
        made.identity().map(Some)
    }

    fn set_fingerprint(&self, fingerprint: Option<String>) {
        let mut shown = self
            .fingerprint
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *shown = fingerprint;
    }

    fn fingerprint(&self) -> Option<String> {
        let shown = self.fingerprint.lock();
        shown.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// `POST /v1/web/token`, on the Unix socket alone.
pub(super) async fn token(
    State(api): State<ApiState>,
    body: Result<Json<TokenRequest>, JsonRejection>,
) -> Answer<TokenReport> {
    let request = parsed_body(body)?;
    let token = api.web.token(request).map_err(ApiError)?;
    let fingerprint = api.web.fingerprint();
    api.ask(move |engine| {
        Ok(TokenReport {
            role: request.role,
            token: token.as_str().to_owned(),
            urls: urls(&engine.settings.config.web, fingerprint.is_some()),
            certificate_sha256: fingerprint,
        })
    })
    .await
}

/// Returns the addresses of the page for a browser's address bar; none if it is not served.
fn urls(config: &WebConfig, tls: bool) -> Vec<String> {
    let Some(listen) = config.listen else {
        return Vec::new();
    };
    let scheme = if tls { "https" } else { "http" };
    let mut hosts: Vec<String> = config
        .names
        .iter()
        .map(|name| name.as_str().to_owned())
        .collect();
    hosts.push(match listen.ip() {
        ip if ip.is_unspecified() => "localhost".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    });
    let port = listen.port();
    let url = |host| format!("{scheme}://{host}:{port}/");
    hosts.into_iter().map(url).collect()
}

/// The page's listener. It runs on a thread of its own, without capabilities: neither TLS nor a browser delays the loop,
/// and what strangers send meets no privileges.
pub(super) struct WebService(pub(super) ApiState);

/// Everything that decides how the page is served.
#[derive(PartialEq)]
pub(super) struct WantedPage {
    config: WebConfig,
    listen: SocketAddr,
    /// The certificate's file: a renewed one is taken by a reload.
    certificate: Option<Vec<u8>>,
}

/// The thread that serves the page.
pub(super) struct WebThread {
    /// Dropped to end it.
    end: oneshot::Sender<()>,
    /// Completes when its sockets are closed.
    ended: oneshot::Receiver<()>,
}

impl FollowedService for WebService {
    type Wanted = WantedPage;
    type Running = WebThread;

    fn wanted(engine: &Engine) -> Option<WantedPage> {
        let config = &engine.settings.config.web;
        Some(WantedPage {
            listen: config.listen?,
            // An unreadable one is reported by the start.
            certificate: config
                .certificate
                .as_ref()
                .and_then(|path| std::fs::read(path).ok()),
            config: config.clone(),
        })
    }

    async fn start(&self, wanted: &WantedPage) -> Result<WebThread, String> {
        let WantedPage { config, listen, .. } = wanted;
        let place = |why: String| format!("[web] listen = \"{listen}\": {why}");
        let web = &self.0.web;
        let identity = web
            .identity(config, *listen)
            .map_err(|failure| place(failure.to_string()))?;
        let fingerprint = identity
            .as_ref()
            .map(|identity| identity.fingerprint.clone());
        let guard = Guard {
            auth: web.auth.clone(),
            names: config.names.clone(),
        };
        let thread = spawn(*listen, identity, guarded(routes(self.0.clone()), guard));
        let thread = thread.map_err(|error| place(error.to_string()))?;
        tracing::info!(%listen, tls = fingerprint.is_some(), "page for browsers");
        web.set_fingerprint(fingerprint);
        Ok(thread)
    }

    async fn stop(running: WebThread) {
        drop(running.end);
        // It says nothing when it ends.
        let _ = running.ended.await;
    }

    fn note(incidents: &mut Incidents, trouble: Option<String>) {
        incidents.web_error = trouble;
    }
}

fn spawn(
    listen: SocketAddr,
    identity: Option<TlsIdentity>,
    router: Router,
) -> std::io::Result<WebThread> {
    let listener = std::net::TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (end, mut asked_to_end) = oneshot::channel::<()>();
    let (over, ended) = oneshot::channel::<()>();
    let work = move || {
        if let Err(failure) = confine() {
            tracing::warn!(%failure, "the page is not served");
            return;
        }
        runtime.block_on(async {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::warn!(%error, "the page is not served"),
            };
            tokio::select! {
                () = serve(listener, identity, router) => {}
                _ = &mut asked_to_end => {}
            }
        });
        // A name lookup under way is not waited for.
        runtime.shutdown_background();
        drop(over);
    };
    std::thread::Builder::new()
        .name("web".to_owned())
        .spawn(work)?;
    Ok(WebThread { end, ended })
}

/// Takes from this thread what it has no use for, because it reads what strangers send: all capabilities, and all files but
/// those of the system, which a name lookup reads.
fn confine() -> Result<(), UserError> {
    privileges::keep_capabilities(&[], &[])?;
    // A resolver of the system's may keep its file elsewhere.
    let resolver = std::fs::canonicalize("/etc/resolv.conf").ok();
    let folder = resolver.as_deref().and_then(Path::parent);
    privileges::keep_files(Files {
        read: folder.as_slice(),
        ..Files::default()
    })?;
    Ok(())
}

/// Returns everything that a session may see and do. The configuration is no part of it: it may hold secrets, and so
/// may the metrics' consumer; both are for the socket.
fn routes(api: ApiState) -> Router {
    let files = FILES
        .into_iter()
        .fold(Router::new(), |router, (path, kind, text)| {
            router.route(
                path,
                get(move || async move { ([(CONTENT_TYPE, kind)], text) }),
            )
        });
    let api = showing().merge(changing()).with_state(api);
    files.merge(api)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use braid_host::web::Role;

    fn access(folder: &std::path::Path) -> WebAccess {
        WebAccess::open(StateDir::new(folder)).unwrap()
    }

    #[test]
    fn a_token_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let request = |role, new| TokenRequest { role, new };
        let web = access(folder.path());
        let operator = web.token(request(Role::Operator, false)).unwrap();
        let viewer = web.token(request(Role::Viewer, false)).unwrap();
        assert_ne!(operator.as_str(), viewer.as_str());
        // The next daemon knows it.
        let web = access(folder.path());
        let again = web.token(request(Role::Operator, false)).unwrap();
        assert_eq!(again.as_str(), operator.as_str());
        let fresh = web.token(request(Role::Operator, true)).unwrap();
        assert_ne!(fresh.as_str(), operator.as_str());
        let same = web.token(request(Role::Viewer, false)).unwrap();
        assert_eq!(same.as_str(), viewer.as_str(), "the other role's stays");
        // A file that cannot be read is no reason not to start.
        std::fs::write(web.state_dir.web_tokens(), "{").unwrap();
        let made = access(folder.path()).token(request(Role::Operator, false));
        assert_ne!(made.unwrap().as_str(), fresh.as_str());
    }

    #[test]
    fn a_network_gets_tls_and_the_machine_itself_needs_none() {
        let folder = tempfile::tempdir().unwrap();
        let web = access(folder.path());
        let config = WebConfig::default();
        let at = |address: &str| web.identity(&config, address.parse().unwrap()).unwrap();
        assert!(at("127.0.0.1:8080").is_none() && at("[::1]:8080").is_none());
        let made = at("192.168.1.1:8443").unwrap().fingerprint;
        assert_eq!(
            at("192.168.1.1:8443").unwrap().fingerprint,
            made,
            "it is kept"
        );
        assert_ne!(at("192.168.2.1:8443").unwrap().fingerprint, made);
        assert!(at("0.0.0.0:8443").is_some() && at("[::]:8443").is_some());
    }

    #[test]
    fn addresses_for_the_address_bar() {
        let mut config = WebConfig {
            listen: Some((Ipv4Addr::UNSPECIFIED, 8443).into()),
            names: vec!["gate.example".parse().unwrap()],
            ..WebConfig::default()
        };
        let both = ["https://gate.example:8443/", "https://localhost:8443/"];
        assert_eq!(urls(&config, true), both);
        config.names.clear();
        config.listen = Some("[fd00::1]:80".parse().unwrap());
        assert_eq!(urls(&config, false), ["http://[fd00::1]:80/"]);
        config.listen = None;
        assert!(urls(&config, true).is_empty());
    }

    #[test]
    fn the_page_is_small_and_asks_nobody_else() {
        let all: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(all < 150_000, "{all} bytes, not even compressed");
        for (path, _, text) in FILES {
            let foreign: Vec<&str> = text
                .lines()
                .filter(|line| line.contains("://") && !line.contains("http://www.w3.org/2000/svg"))
                .collect();
            assert!(foreign.is_empty(), "{path}: {foreign:?}");
            for unsafe_way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!text.contains(unsafe_way), "{path} has {unsafe_way}");
            }
        }
    }
}
