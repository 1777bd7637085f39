//! Metrics on a TCP port, for a remote Prometheus.

use std::net::SocketAddr;

use braid_host::metrics::offer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::api::{Job, put, scrape};

/// Serves `GET /metrics`, and nothing else, on the configured address while the loop runs. There is no
/// access control, since the port only reads. A reload may change the address. If it cannot be opened,
/// that is a health problem, and the next attempt follows with the next event.
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
        let tell = Job::Change(Box::new(|engine| engine.incidents.metrics_error = trouble));
        if jobs.send(tell).await.is_err() || latest.changed().await.is_err() {
            break;
        }
    }
}

/// The current listener.
#[derive(Debug, Default)]
struct Listener {
    at: Option<SocketAddr>,
    service: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on the wanted address only. Returns the error if it cannot.
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
    offer(listener, move || {
        let jobs = jobs.clone();
        async move { scrape(&jobs).await }
    })
    .await;
}
