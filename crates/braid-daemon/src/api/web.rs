//! The page for browsers: its files and its listener.

use std::net::SocketAddr;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use braid_host::api_table::{Audience, router};
use braid_host::config::WebConfig;
use braid_host::web::{
    BoundPage, HTML, JS, PageFile, TokenReport, TokenRequest, WebThread, page_files,
};

use super::followed_listener::FollowedService;
use super::{Answer, ApiState, parsed_body, table};
use crate::engine::Engine;
use crate::engine::incidents::Incidents;

/// Files of the page, besides those that every page has.
const FILES: [PageFile; 8] = [
    ("/", HTML, include_str!("../../web/index.html")),
    ("/main.js", JS, include_str!("../../web/main.js")),
    ("/texts.js", JS, include_str!("../../web/texts.js")),
    ("/uplinks.js", JS, include_str!("../../web/uplinks.js")),
    ("/history.js", JS, include_str!("../../web/history.js")),
    ("/pauses.js", JS, include_str!("../../web/pauses.js")),
    ("/flows.js", JS, include_str!("../../web/flows.js")),
    ("/bond.js", JS, include_str!("../../web/bond.js")),
];

/// `POST /v1/web/token`, on the Unix socket alone.
pub(super) async fn token(
    State(api): State<ApiState>,
    body: Result<Json<TokenRequest>, JsonRejection>,
) -> Answer<TokenReport> {
    let request = parsed_body(body)?;
    let web = api.web.clone();
    api.ask(move |engine| web.report(request, &engine.settings.config.web))
        .await
}

/// The page's listener.
pub(super) struct WebService(pub(super) ApiState);

/// The part of the settings that decides how the page is served.
#[derive(Clone, PartialEq)]
pub(super) struct PageSettings {
    config: WebConfig,
    listen: SocketAddr,
    /// Number of the reload that they come from: a renewed certificate is taken by a reload.
    reload: u64,
}

/// Everything that decides how the page is served.
#[derive(PartialEq)]
pub(super) struct WantedPage {
    config: WebConfig,
    listen: SocketAddr,
    /// The certificate's file.
    certificate: Option<Vec<u8>>,
}

impl FollowedService for WebService {
    type Settings = PageSettings;
    type Wanted = WantedPage;
    type Running = WebThread;

    fn settings(engine: &Engine) -> Option<PageSettings> {
        let config = &engine.settings.config.web;
        Some(PageSettings {
            listen: config.listen?,
            config: config.clone(),
            reload: engine.reloads(),
        })
    }

    fn wanted(settings: &PageSettings) -> WantedPage {
        let PageSettings { config, listen, .. } = settings.clone();
        // An unreadable one is reported by the start.
        let certificate = config.certificate.as_ref();
        WantedPage {
            certificate: certificate.and_then(|path| std::fs::read(path).ok()),
            config,
            listen,
        }
    }

    async fn start(&self, wanted: &WantedPage) -> Result<WebThread, String> {
        let WantedPage { config, listen, .. } = wanted;
        let routes = routes(self.0.clone());
        BoundPage::bind(&self.0.web, config, *listen)
            .and_then(|page| page.serve(routes))
            .map_err(|failure| failure.to_string())
    }

    async fn stop(running: WebThread) {
        running.stop().await;
    }

    fn note(incidents: &mut Incidents, trouble: Option<String>) {
        incidents.web_error = trouble;
    }
}

/// Returns everything that a session may see and do. The configuration is no part of it: it may hold secrets, and so
/// may the metrics' consumer; both are for the socket.
fn routes(api: ApiState) -> Router {
    let api = router(table::INFO, table::requests, Audience::Page).with_state(api);
    page_files(&FILES).merge(api)
}
