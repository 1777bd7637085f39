//! `GET /v1/events`: past events, and a long poll for the next one.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;

use super::{Answer, ApiError, ApiState, parsed_query, put};
use crate::report::EventsReport;

/// Longest wait for an event.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Query string.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Since {
    /// Number of the last event that the client has; 0 for all.
    after: u64,
    /// Seconds to wait for the next event if there are no new ones.
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
    // The wait ends with an event, the time-out or the daemon's end; the answer is the same query.
    let _ = timeout(patience, news).await;
    api.ask(move |engine| {
        Ok(EventsReport {
            events: engine.events(after),
            latest: *engine.latest_event().borrow(),
        })
    })
    .await
}
