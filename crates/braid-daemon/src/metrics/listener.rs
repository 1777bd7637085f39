//! Figures on a TCP port, for a Prometheus that asks from elsewhere.

use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::api::{Job, put, scrape};

/// Answers `GET /metrics`, and nothing else, on the configuration's address for as long as the loop
/// is at work. Whoever reaches that address may ask; there is nothing to change there. A reload that
/// names another address is followed; one that cannot be had is a health line and is tried again
/// with the next event.
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
        let tell = Job::Change(Box::new(|engine| engine.trouble.metrics = trouble));
        if jobs.send(tell).await.is_err() || latest.changed().await.is_err() {
            break;
        }
    }
}

/// What listens now.
#[derive(Debug, Default)]
struct Listener {
    at: Option<SocketAddr>,
    service: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens where it is wanted, and nowhere else any more. Returns why it cannot.
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
    let answer = move || {
        let jobs = jobs.clone();
        async move { scrape(&jobs).await }
    };
    let router = Router::new()
        .route("/metrics", get(answer))
        .fallback(nothing);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::warn!(%error, "metrics are not served any more");
    }
}

async fn nothing() -> Response {
    (StatusCode::NOT_FOUND, "there is /metrics alone\n").into_response()
}
