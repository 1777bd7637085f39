//! A service on a TCP address that the configuration names and a reload may change.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::api::{Job, put};
use crate::engine::Engine;
use crate::engine::incidents::Incidents;

/// Time until a service that could not start is tried again; its address may come with a device.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A service that runs as the configuration says.
pub(super) trait FollowedService {
    /// The part of the settings that it runs by, as the loop has it.
    type Settings: PartialEq + Send + 'static;
    /// Everything that decides how it runs; another value restarts it.
    type Wanted: PartialEq + Send;
    /// The running service.
    type Running: Send;

    /// Returns its settings; none if it is not to run. The loop is asked after each event.
    fn settings(engine: &Engine) -> Option<Self::Settings>;

    /// Returns how it is to run. Asked only when the settings have changed, so this may read files, as a reload does.
    fn wanted(settings: &Self::Settings) -> Self::Wanted;

    /// Starts it, or returns the reason that it cannot.
    fn start(
        &self,
        wanted: &Self::Wanted,
    ) -> impl Future<Output = Result<Self::Running, String>> + Send;

    /// Stops it; its address is free when this returns.
    fn stop(running: Self::Running) -> impl Future<Output = ()> + Send;

    /// Keeps the reason that it does not run, or that there is none any more.
    fn note(incidents: &mut Incidents, trouble: Option<String>);
}

/// Runs a service until the loop ends. If it cannot start, that is a health problem, and it is tried again.
pub(super) async fn follow<S: FollowedService>(service: S, jobs: mpsc::Sender<Job>) {
    let mut running: Option<(S::Wanted, S::Running)> = None;
    let mut known: Option<S::Settings> = None;
    while let Ok((settings, mut latest)) = put(&jobs, |engine| {
        Ok((S::settings(engine), engine.latest_event()))
    })
    .await
    {
        if running.is_some() && settings == known {
            if latest.changed().await.is_err() {
                break;
            }
            continue;
        }
        let mut trouble = None;
        let wanted = settings.as_ref().map(S::wanted);
        known = settings;
        if running.as_ref().map(|(at, _)| at) != wanted.as_ref() {
            if let Some((_, old)) = running.take() {
                S::stop(old).await;
            }
            if let Some(wanted) = wanted {
                match service.start(&wanted).await {
                    Ok(started) => running = Some((wanted, started)),
                    Err(why) => trouble = Some(why),
                }
            }
        }
        let failed = trouble.is_some();
        let tell = Job::Change(Box::new(|engine| S::note(&mut engine.incidents, trouble)));
        if jobs.send(tell).await.is_err() {
            break;
        }
        let ended = match failed {
            // The interval's end is as good as an event.
            true => matches!(timeout(RETRY_INTERVAL, latest.changed()).await, Ok(Err(_))),
            false => latest.changed().await.is_err(),
        };
        if ended {
            break;
        }
    }
    if let Some((_, old)) = running {
        S::stop(old).await;
    }
}
