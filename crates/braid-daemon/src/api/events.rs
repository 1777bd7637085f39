//! `GET /v1/events`: what changed, also what is yet to.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use tokio::time::timeout;

use super::{Answer, ApiError, ApiState, parsed_query, put};
use crate::report::EventsReport;

/// The longest that a question may wait for an event.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Which events.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Since {
    /// The number of the last one that the asker has; 0 asks for all.
    after: u64,
    /// Seconds to wait for the next one, if the asker has them all.
    wait: u64,
}

pub(super) async fn events(
    State(api): State<ApiState>,
    query: Result<Query<Since>, QueryRejection>,
) -> Answer<EventsReport> {
    let Since { after, wait } = parsed_query(query)?;
    let latest = put(&api.jobs, |engine| Ok(engine.latest_event())).await;
    let mut latest = latest.map_err(ApiError)?;
    let news = latest.wait_for(|latest| *latest != after);
    let patience = Duration::from_secs(wait).min(LONGEST_WAIT);
    // Whether an event, the time or the daemon's end ended the wait: the answer is what there is.
    let _ = timeout(patience, news).await;
    api.ask(move |engine| {
        Ok(EventsReport {
            events: engine.events(after),
            latest: *engine.latest_event().borrow(),
        })
    })
    .await
}
