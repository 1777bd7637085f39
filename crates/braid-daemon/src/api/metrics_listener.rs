//! Metrics on a TCP port, for a remote Prometheus.

use std::net::SocketAddr;

use braid_host::metrics::offer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::followed_listener::{FollowedService, follow};
use crate::api::{Job, scrape};
use crate::engine::Engine;
use crate::engine::incidents::Incidents;

/// Serves `GET /metrics`, and nothing else, on the configured address while the loop runs. There is no
/// access control, since the port only reads.
pub async fn export(jobs: mpsc::Sender<Job>) {
    follow(MetricsService(jobs.clone()), jobs).await;
}

struct MetricsService(mpsc::Sender<Job>);

impl FollowedService for MetricsService {
    type Settings = SocketAddr;
    type Wanted = SocketAddr;
    type Running = JoinHandle<()>;

    fn settings(engine: &Engine) -> Option<SocketAddr> {
        engine.settings.config.metrics.listen
    }

    fn wanted(address: &SocketAddr) -> SocketAddr {
        *address
    }

    async fn start(&self, address: &SocketAddr) -> Result<JoinHandle<()>, String> {
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.map_err(|error| format!("[metrics] listen = \"{address}\": {error}"))?;
        tracing::info!(%address, "metrics");
        Ok(tokio::spawn(serve(listener, self.0.clone())))
    }

    async fn stop(running: JoinHandle<()>) {
        running.abort();
        // It ends by being aborted.
        let _ = running.await;
    }

    fn note(incidents: &mut Incidents, trouble: Option<String>) {
        incidents.metrics_error = trouble;
    }
}

async fn serve(listener: TcpListener, jobs: mpsc::Sender<Job>) {
    offer(listener, move || {
        let jobs = jobs.clone();
        async move { scrape(&jobs).await }
    })
    .await;
}
